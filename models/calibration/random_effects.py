"""What all runs of one model have in common that no term of a fit explains, integrated out of it.

Residuals are r = J (θ - θ₀) + z + noise, with z ~ N(0, σ²) the same for all runs of a model.
However many they are, they then tell one thing of how fast its kernels are, and everything of how
its layouts differ. With S the weights of the runs' squared residuals, z is on average Σ S r / (Σ S
+ σ⁻²) over the model's runs, and integrating it out takes (Σ S J)ᵀ (Σ S J) / (Σ S + σ⁻²) off the
normal matrix (Robinson 1991, doi:10.1214/ss/1177011926).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.columns import Array


@dataclass(frozen=True)
class RandomEffects:
    """`model` (runs,): whose each run is, numbered from 0; `spread` (models,): σ, 0 of models that
    are as they seem."""

    model: Array
    spread: Array

    def _kept(self, say: Array) -> Array:
        """(models,): 1 / (Σ S + σ⁻²)."""
        variance = self.spread**2
        return np.asarray(
            variance / (variance * np.bincount(self.model, say, len(self.spread)) + 1)
        )

    def common(self, residual: Array, say: Array) -> Array:
        """(runs,): z of each run's model."""
        return np.asarray(
            (np.bincount(self.model, say * residual, len(self.spread)) * self._kept(say))[
                self.model
            ]
        )

    def normal(self, jacobian: Array, row: Array, say: Array) -> Array:
        """What knowing no z takes off JᵀSJ; `row` (runs,): of the Jacobian, of each run."""
        odd, whose = self.spread[self.model] > 0, np.zeros((len(self.spread), len(jacobian)))
        np.add.at(whose, (self.model[odd], row[odd]), say[odd])
        sums = whose @ jacobian
        return np.asarray(sums.T @ (sums * self._kept(say)[:, None]))

    def loss(self, common: Array) -> float:
        """-2 log of the prior of z, (runs,)."""
        models, first = np.unique(self.model, return_index=True)
        spread = self.spread[models]
        odd = spread > 0
        return float(((common[first][odd] / spread[odd]) ** 2).sum())
