"""The uncertainty of predictions of memory, and the probability that a layout fits.

Reserved memory is taken to be log-normal around its prediction. Its spread is that of its
neighbourhood, and a contribution of each term that no run informs, in proportion to the part of the
memory that the term scales.
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

_ROUNDING = 1e-9  # tenths of a percent: 0.29 · 1000 may come out just below 290
_SHOWN_AS_CERTAIN, _SHOWN_AS_IMPOSSIBLE = 0.99, 0.01
"""A probability above the first is shown as "more than 99%", and one below the second as "less than
1%"."""
_SCALES = {
    "activation_memory": "activations_bytes",
    "logit_memory": "logits_bytes",
    "fragmentation": "fragmentation_bytes",
}
"""The part of the memory that each coefficient multiplies. Fragmentation grows with all that is
allocated."""

MemoryTerms = Mapping[str, Array]
"""Bytes on the fullest device by term, as in predictions."""


@dataclass(frozen=True)
class MemoryUncertainty:
    """Says how far memory may lie from its prediction, and what a layout therefore needs to fit."""

    neighbourhood: Neighbourhood
    """The measured spread of peaks around predictions, for runs like the problem's by a source that
    nobody has seen."""
    variances: Mapping[str, float]
    """The variance of the logarithm of each coefficient of memory, from terms that no run
    informed."""
    probability: float = EVEN_CHANCE
    """The probability with which a layout must fit. With even chances the prediction itself must
    fit."""

    @classmethod
    def of(
        cls, problem: Problem, profile: Profile, probability: float = EVEN_CHANCE
    ) -> MemoryUncertainty:
        variances = dict.fromkeys(_SCALES, 0.0)
        for term in profile.with_offsets(problem.scopes).terms_in(problem.scopes):
            if term.coefficient in variances and term.is_unknown:
                variances[term.coefficient] += term.spread**2
        known = profile.memory_neighbourhood(problem.neighbourhood_scopes)
        # A source that nobody has seen may be as far off as sources lie apart.
        unseen = replace(known, spread=known.total, between=0.0)
        return cls(unseen, variances, probability)

    def spread(self, memory: MemoryTerms) -> Array:
        """Return the standard deviation of the natural logarithm of what each layout reserves,
        (n,)."""
        allocated = total(value for name, value in memory.items() if name not in _NOT_ALLOCATED)
        reserved = allocated + memory["fragmentation_bytes"]
        variance = np.zeros_like(reserved)
        for coefficient, part in _SCALES.items():
            of = reserved if part in _NOT_ALLOCATED else allocated
            variance = (
                variance + self.variances[coefficient] * (memory[part] / np.maximum(of, 1.0)) ** 2
            )
        # The measured spread has some of this variance in it already.
        more = np.maximum(variance - self.neighbourhood.unidentified**2, 0.0)
        return np.asarray(np.sqrt(self.neighbourhood.spread**2 + more))

    @property
    def is_uniform(self) -> bool:
        """Say whether every layout has the spread of the neighbourhood."""
        return sum(self.variances.values()) <= self.neighbourhood.unidentified**2

    @cached_property
    def least_safety_factor(self) -> float:
        """The safety factor of a layout whose memory rests on no terms without runs. No layout has
        a smaller one."""
        return math.exp(self.deviations_asked * self.neighbourhood.spread)

    def fits(self, memory: MemoryTerms, on_host: Array, cluster: Cluster, capacity: float) -> Array:
        """Say of each layout whether it fits, (n,). It is predicted to need no more than `capacity`
        bytes, and would still fit on the device and its host if it needed as much more as its
        safety factor says."""
        factor = self.safety_factor(memory)
        needed = total(memory.values())
        reserved = needed - memory["context_bytes"]
        fits_on_device = needed + (factor - 1) * reserved <= cluster.usable_bytes
        fits_on_host = factor * on_host <= cluster.host_bytes
        return np.asarray((needed <= capacity) & fits_on_device & fits_on_host)

    def deviations(self, memory: MemoryTerms, on_host: Array, cluster: Cluster) -> Array:
        """Return the standard deviations between the logarithm of what each layout is predicted to
        reserve and the logarithm of what is available, (n,). The device or its host counts,
        whichever leaves fewer. They are negative where more is reserved than is available."""
        runtime = memory["context_bytes"]
        reserved = total(memory.values()) - runtime
        with np.errstate(divide="ignore"):
            device = np.log(np.maximum(cluster.usable_bytes - runtime, 0.0) / reserved)
            host = np.log(np.divide(cluster.host_bytes, on_host))
        return np.asarray(np.minimum(device, host) / self.spread(memory))

    def safety_factor(self, memory: MemoryTerms) -> Array | float:
        """Return how many times its predicted reserved memory each layout must have room for."""
        return np.exp(self.deviations_asked * self.spread(memory)) if self.deviations_asked else 1.0

    @cached_property
    def deviations_asked(self) -> float:
        """The standard deviations that a layout must have left, to fit with the probability
        asked."""
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
"""The terms of memory that the framework does not allocate."""
