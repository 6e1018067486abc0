"""Random effects are what all runs of one group have in common and no term of a fit explains. They
are integrated out of the fit. A group is one sparse model that one organisation ran.

Residuals are r = J (θ - θ₀) + z + noise, where z ~ N(0, σ²) is the same for all runs of a group.
However many runs a group has, together they then count as one measurement of how fast its kernels
are, but each of them tells how its layouts differ. With S the IRLS weights of the runs, the
posterior mean of z is Σ S r / (Σ S + σ⁻²), summed over the group's runs, and integrating z out
takes (Σ S J)ᵀ (Σ S J) / (Σ S + σ⁻²) off the normal matrix (Robinson 1991,
doi:10.1214/ss/1177011926).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.calibration.linearisation import Linearisation
from models.columns import Array


@dataclass(frozen=True)
class RandomEffects:
    """One normally distributed effect for each group. `group` (runs,) is the index of each run's
    group, and `spread` (groups,) the standard deviation σ of each effect, 0 for a group without
    one."""

    group: Array
    spread: Array

    def means(self, residual: Array, irls_weight: Array) -> Array:
        """Return the posterior mean of the effect of each run's group, Σ S r / (Σ S + σ⁻²) with
        residuals r and IRLS weights S of the group's runs; shape (runs,)."""
        sums = np.bincount(self.group, irls_weight * residual, len(self.spread))
        return np.asarray((sums * self._variances(irls_weight))[self.group])

    def lost_information(self, linear: Linearisation, irls_weight: Array) -> Array:
        """Return what unknown effects take off the normal matrix JᵀSJ: (Σ S J)ᵀ (Σ S J) / (Σ S +
        σ⁻²), summed over groups, with sums Σ over a group's runs; shape (terms, terms)."""
        is_uncertain = self.spread > 0
        # Groups without an effect lose nothing: the others are numbered without gaps.
        index_among_uncertain = np.cumsum(is_uncertain) - 1
        has_effect = is_uncertain[self.group]
        # The IRLS weights S of the runs of each group, by row of the linearisation.
        weight_of_rows = np.zeros((int(is_uncertain.sum()), len(linear.logs)))
        cells = index_among_uncertain[self.group[has_effect]], linear.row[has_effect]
        np.add.at(weight_of_rows, cells, irls_weight[has_effect])
        sums = linear.gradients(weight_of_rows)  # Σ S J of each group
        return np.asarray(sums.T @ (sums * self._variances(irls_weight)[is_uncertain, None]))

    def loss(self, effect: Array) -> float:
        """Return -2 log of the prior density of the effects, up to a constant. `effect` (runs,) is
        the effect of each run's group."""
        # `first` is one run of each group: all runs of a group have its effect.
        groups, first = np.unique(self.group, return_index=True)
        spread = self.spread[groups]
        has_effect = spread > 0
        return float(((effect[first][has_effect] / spread[has_effect]) ** 2).sum())

    def _variances(self, irls_weight: Array) -> Array:
        """Return the posterior variance 1 / (Σ S + σ⁻²) of each effect, with the IRLS weights S of
        the group's runs and the effect's prior variance σ²; shape (groups,)."""
        variance = self.spread**2
        precision = np.bincount(self.group, irls_weight, len(self.spread))
        # Numerator and denominator are multiplied with σ², which may be 0.
        return np.asarray(variance / (variance * precision + 1))
