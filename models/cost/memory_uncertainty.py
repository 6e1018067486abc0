"""How far off predictions of memory may be, and how sure that leaves a layout to fit.

Reserved memory is log-normal around its prediction: with the spread of its neighbourhood, and what
the terms add that no run informs, in proportion to the part of the memory that each scales.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from models.columns import Array, total
from models.spec.constraints import EVEN_CHANCE
from models.spec.hardware import Cluster
from models.spec.problem import Problem
from models.spec.profile import Neighbourhood, Profile

_SCALES = {
    "activation_memory": "activations_bytes",
    "logit_memory": "logits_bytes",
    "fragmentation": "fragmentation_bytes",
}
"""The part of the memory that a coefficient multiplies; fragmentation grows with all that is
allocated."""

Memory = Mapping[str, Array]
"""Bytes on the fullest device by term, as in predictions."""


@dataclass(frozen=True)
class MemoryUncertainty:
    """`variances`: of the logs of coefficients, from terms without runs. A layout fits where it
    does with the `probability`: with even chances where its prediction does."""

    neighbourhood: Neighbourhood
    variances: Mapping[str, float]
    probability: float = EVEN_CHANCE

    @classmethod
    def of(
        cls, problem: Problem, profile: Profile, probability: float = EVEN_CHANCE
    ) -> MemoryUncertainty:
        variances = dict.fromkeys(_SCALES, 0.0)
        for term in profile.with_unmet_scopes(problem.scopes).terms_in(problem.scopes):
            if term.coefficient in variances and term.is_unknown:
                variances[term.coefficient] += term.spread**2
        return cls(
            profile.memory_neighbourhood(problem.neighbourhood_scopes), variances, probability
        )

    def spread(self, memory: Memory) -> Array:
        """Standard deviation of the log of what each layout reserves."""
        allocated = total(value for name, value in memory.items() if name not in _BESIDES)
        reserved = allocated + memory["fragmentation_bytes"]
        variance = np.zeros_like(reserved)
        for coefficient, part in _SCALES.items():
            of = reserved if part in _BESIDES else allocated
            variance = (
                variance + self.variances[coefficient] * (memory[part] / np.maximum(of, 1.0)) ** 2
            )
        more = np.maximum(variance - self.neighbourhood.unidentified**2, 0.0)
        return np.asarray(np.sqrt(self.neighbourhood.spread**2 + more))

    @cached_property
    def least(self) -> float:
        """How many times its prediction a layout must have, however little of it is uncertain."""
        return math.exp(self._deviations * self.neighbourhood.spread)

    def fits(self, memory: Memory, on_host: Array, cluster: Cluster, capacity: float) -> Array:
        """Whether layouts need no more than the capacity, and have the margin in all of the device
        and of its host."""
        times, needed = self.times(memory), total(memory.values())
        surely = needed + (times - 1) * (needed - memory["context_bytes"]) <= cluster.usable_bytes
        return np.asarray((needed <= capacity) & surely & (times * on_host <= cluster.host_bytes))

    def needed(self, memory: Memory) -> Array:
        """Bytes that layouts would need to be as unsure to fit as they are, were as little of them
        uncertain as of any can be."""
        runtime = memory["context_bytes"]
        return np.asarray(
            runtime + self.times(memory) / self.least * (total(memory.values()) - runtime)
        )

    def times(self, memory: Memory) -> Array | float:
        """How many times what is predicted each must have."""
        return np.exp(self._deviations * self.spread(memory)) if self._deviations else 1.0

    @cached_property
    def _deviations(self) -> float:
        return NormalDist().inv_cdf(self.probability)


_BESIDES = ("fragmentation_bytes", "context_bytes")
"""What is not allocated by the framework."""
