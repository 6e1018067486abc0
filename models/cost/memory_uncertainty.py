"""How far off predictions of memory may be, and how sure that leaves a layout to fit.

Reserved memory is log-normal around its prediction: with the spread of its neighbourhood, and what
the terms add that no run informs, in proportion to the part of the memory that each scales.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np

from models.columns import Array, total
from models.spec.constraints import EVEN_CHANCE
from models.spec.hardware import Cluster
from models.spec.problem import Problem
from models.spec.profile import Neighbourhood, Profile

_ROUNDING = 1e-9  # 0.29 · 1000 may come out below 290
_SHOWN_AS_CERTAIN, _SHOWN_AS_IMPOSSIBLE = 0.99, 0.01
"""A probability above the one is shown as "more than 99%", one below the other as "less than
1%"."""
_SCALES = {
    "activation_memory": "activations_bytes",
    "logit_memory": "logits_bytes",
    "fragmentation": "fragmentation_bytes",
}
"""The part of the memory that a coefficient multiplies; fragmentation grows with all that is
allocated."""

MemoryTerms = Mapping[str, Array]
"""Bytes on the fullest device by term, as in predictions."""


@dataclass(frozen=True)
class MemoryUncertainty:
    """How far memory may lie from its prediction, and what a layout therefore needs to fit."""

    neighbourhood: Neighbourhood
    """The measured spread of peaks around predictions, of runs like the problem's by a source that
    nobody has seen."""
    variances: Mapping[str, float]
    """Variance of the logarithm of each coefficient of memory, from terms that no run informed."""
    probability: float = EVEN_CHANCE
    """How likely a layout must be to fit. With even chances the prediction itself must fit."""

    @classmethod
    def of(
        cls, problem: Problem, profile: Profile, probability: float = EVEN_CHANCE
    ) -> MemoryUncertainty:
        variances = dict.fromkeys(_SCALES, 0.0)
        for term in profile.with_offsets(problem.scopes).terms_in(problem.scopes):
            if term.coefficient in variances and term.is_unknown:
                variances[term.coefficient] += term.spread**2
        known = profile.memory_neighbourhood(problem.neighbourhood_scopes)
        unseen = replace(known, spread=known.total, between=0.0)
        return cls(unseen, variances, probability)

    def spread(self, memory: MemoryTerms) -> Array:
        """The standard deviation of the natural logarithm of what each layout reserves; shape
        (n,)."""
        allocated = total(value for name, value in memory.items() if name not in _NOT_ALLOCATED)
        reserved = allocated + memory["fragmentation_bytes"]
        variance = np.zeros_like(reserved)
        for coefficient, part in _SCALES.items():
            of = reserved if part in _NOT_ALLOCATED else allocated
            variance = (
                variance + self.variances[coefficient] * (memory[part] / np.maximum(of, 1.0)) ** 2
            )
        more = np.maximum(variance - self.neighbourhood.unidentified**2, 0.0)
        return np.asarray(np.sqrt(self.neighbourhood.spread**2 + more))

    @property
    def is_uniform(self) -> bool:
        """Whether the spread is that of the neighbourhood, whatever the layout."""
        return sum(self.variances.values()) <= self.neighbourhood.unidentified**2

    @cached_property
    def least_safety_factor(self) -> float:
        """The safety factor of a layout none of whose memory rests on terms without runs."""
        return math.exp(self.deviations_asked * self.neighbourhood.spread)

    def fits(self, memory: MemoryTerms, on_host: Array, cluster: Cluster, capacity: float) -> Array:
        """Whether each layout is predicted to need no more than `capacity` bytes, and would still
        fit on the device and its host if it needed as much more as its safety factor says."""
        factor = self.safety_factor(memory)
        needed = total(memory.values())
        reserved = needed - memory["context_bytes"]
        fits_on_device = needed + (factor - 1) * reserved <= cluster.usable_bytes
        fits_on_host = factor * on_host <= cluster.host_bytes
        return np.asarray((needed <= capacity) & fits_on_device & fits_on_host)

    def deviations(self, memory: MemoryTerms, on_host: Array, cluster: Cluster) -> Array:
        """How many standard deviations of its log lie between what each layout is predicted to
        reserve and what there is, on the device or on its host, whichever is fewer; negative where
        more is reserved than there is. Shape (n,)."""
        runtime = memory["context_bytes"]
        reserved = total(memory.values()) - runtime
        with np.errstate(divide="ignore"):
            device = np.log(np.maximum(cluster.usable_bytes - runtime, 0.0) / reserved)
            host = np.log(np.divide(cluster.host_bytes, on_host))
        return np.asarray(np.minimum(device, host) / self.spread(memory))

    def safety_factor(self, memory: MemoryTerms) -> Array | float:
        """How many times its predicted reserved memory each layout must have room for."""
        return np.exp(self.deviations_asked * self.spread(memory)) if self.deviations_asked else 1.0

    @cached_property
    def deviations_asked(self) -> float:
        """How many standard deviations a layout must have left, to fit as surely as is asked."""
        return NormalDist().inv_cdf(self.probability)


def percent(probability: float) -> str:
    """Return a probability in percent, rounded down to a tenth, so that what is shown as 90% is at
    least that."""
    if probability > _SHOWN_AS_CERTAIN:
        return f"more than {_SHOWN_AS_CERTAIN:.0%}"
    if probability < _SHOWN_AS_IMPOSSIBLE:
        return f"less than {_SHOWN_AS_IMPOSSIBLE:.0%}"
    return f"{math.floor(1000 * probability + _ROUNDING) / 10:g}%"


_NOT_ALLOCATED = ("fragmentation_bytes", "context_bytes")
"""Terms of memory that the framework does not allocate."""
