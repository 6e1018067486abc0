"""The uncertainty of predictions of memory, and the probability that a layout fits.

Reserved memory is taken to be log-normal around its prediction. Its spread is that of its
neighbourhood (measured runs of the same kind), and a contribution of each term that no run informs,
in proportion to the part of the memory that the term scales. A *term* here is what a scope, such as
one stack, adds to a coefficient of the profile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np

from models.columns import Array
from models.cost.fit import Margin, MemorySpread, memory_spreads
from models.cost.predictions import StepCosts
from models.spec.constraints import EVEN_CHANCE
from models.spec.hardware import Cluster
from models.spec.problem import Problem
from models.spec.profile import Neighbourhood, Profile

_ROUNDING = 1e-9  # tenths of a percent: 0.29 · 1000 may come out just below 290
_SHOWN_AS_CERTAIN, _SHOWN_AS_IMPOSSIBLE = 0.99, 0.01
"""A probability above the first is shown as "more than 99%", and one below the second as "less than
1%"."""
_COEFFICIENTS = ("activation_memory", "logit_memory", "fragmentation")
"""The coefficients that scale parts of the memory."""


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
        """Return the uncertainty that a profile states for a problem, under the probability with
        which layouts must fit."""
        variances = dict.fromkeys(_COEFFICIENTS, 0.0)
        for term in profile.with_offsets(problem.scopes).terms_in(problem.scopes):
            if term.coefficient in variances and term.is_unknown:
                variances[term.coefficient] += term.spread**2
        known = profile.memory_neighbourhood(problem.neighbourhood_scopes)
        # Runs of a source that nobody has seen lie as far off as runs within a source do, and as
        # sources lie apart, together (`total`). `between`, the latter alone, is not added again.
        unseen = replace(known, spread=known.total, between=0.0)
        return cls(unseen, variances, probability)

    def margin(self, cluster: Cluster, capacity: float) -> Margin:
        """Return the margin against which layouts are tested on this cluster, so that they fit with
        `probability`. In addition, the prediction itself may not exceed `capacity` bytes of a
        device, such as what the caller's memory reserve leaves of it."""
        return Margin(
            capacity=capacity,
            usable=cluster.usable_bytes,
            host=cluster.host_bytes,
            deviations=self.deviations_asked,
            spread=self.by_term,
        )

    @cached_property
    def by_term(self) -> MemorySpread:
        """The spread of memory in the form that compiled functions read."""
        return MemorySpread(
            measured=self.neighbourhood.spread,
            unidentified=self.neighbourhood.unidentified,
            activation_variance=self.variances["activation_memory"],
            logit_variance=self.variances["logit_memory"],
            fragmentation_variance=self.variances["fragmentation"],
        )

    def spreads(self, costs: StepCosts) -> Array:
        """Return the standard deviation of the natural logarithm of what each layout reserves,
        (n,)."""
        return memory_spreads(self.by_term, costs.memory_terms)

    @property
    def is_uniform(self) -> bool:
        """Say whether every layout has the spread of the neighbourhood, whatever its memory
        consists of."""
        # Terms that no run informed add to the spread only what exceeds `unidentified`, the part
        # that the measured spread has of them already. In sum they add at most their variances.
        return sum(self.variances.values()) <= self.neighbourhood.unidentified**2

    @cached_property
    def least_safety_factor(self) -> float:
        """The smallest safety factor that a layout may have: that of the neighbourhood's spread, to
        which uncertain coefficients only add."""
        return math.exp(self.deviations_asked * self.neighbourhood.spread)

    def deviations(self, costs: StepCosts, cluster: Cluster) -> Array:
        """Return how surely each layout fits, (n,): the logarithm of available over predicted
        memory, in standard deviations. The device or its host counts, whichever leaves less. It is
        negative where the prediction exceeds what is available."""
        runtime = costs.memory["context_bytes"]
        # A layout that offloads nothing fits on its host with infinite certainty.
        with np.errstate(divide="ignore"):
            device = np.log(np.maximum(cluster.usable_bytes - runtime, 0.0) / costs.reserved_bytes)
            host = np.log(np.divide(cluster.host_bytes, costs.host_bytes))
        return np.asarray(np.minimum(device, host) / self.spreads(costs))

    @cached_property
    def deviations_asked(self) -> float:
        """The margin that a layout needs to fit with `probability`: predicted memory must lie so
        many standard deviations, of its logarithm, below what the device has."""
        return NormalDist().inv_cdf(self.probability)


def percent(probability: float) -> str:
    """Return a probability in percent, rounded down to a tenth, such as "93.4%". What is shown as
    90% is therefore at least that. Near the ends it is "more than 99%" or "less than 1%"."""
    if probability > _SHOWN_AS_CERTAIN:
        return f"more than {_SHOWN_AS_CERTAIN:.0%}"
    if probability < _SHOWN_AS_IMPOSSIBLE:
        return f"less than {_SHOWN_AS_IMPOSSIBLE:.0%}"
    return f"{math.floor(1000 * probability + _ROUNDING) / 10:g}%"
