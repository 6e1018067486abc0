"""Measured runs, as calibrations read them. A *source* is a tenant that reports runs, or a family
of published ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from models.spec.layout import Layout
from models.spec.problem import Problem

# The most runs that any source counts for, so that no flood of reports drags a profile.
MAX_SOURCE_WEIGHT = 50.0
# The runs that every source may count for, however few the others have.
MIN_SOURCE_LIMIT = 10.0

MemoryKind = Literal["allocated", "reserved", "needed"]
"""The memory that a peak counts, in the words of models.cost.predictions.Predictions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The measurements of a run, or of a part of a step by a micro-benchmark.

    `memory_bytes` is the peak on the fullest device of the memory that `memory_kind` names: what
    the framework allocated or reserved, or all that the device needed. A run with `out_of_memory`
    did not fit, and so needed at least what the device has. `exposed_s` is the time of
    communication that no compute hid. `coefficients` are those that were measured by themselves:
    the imbalance of experts in a run, or the subject of a micro-benchmark.

    Keys sort by time. `weight` is the number of runs that the observation counts for. Runs of one
    `source` share a level of noise. Runs of one `group` are alike (one model on one chip and
    stack), and cross-validation holds them out together. `organisation` is who ran a published run.
    Published runs of one `effect_group`, one sparse model by one organisation, may all be off
    alike.
    """

    key: str
    problem: Problem
    layout: Layout
    step_time_s: float | None = None
    memory_bytes: float | None = None
    memory_kind: MemoryKind = "reserved"
    out_of_memory: bool = False
    exposed_s: float | None = None
    coefficients: Mapping[str, float] = field(default_factory=dict)
    weight: float = 1.0
    source: str = ""
    group: str = ""
    organisation: str = ""
    effect_group: str = ""

    @property
    def is_benchmark(self) -> bool:
        """Return whether this is a micro-benchmark, which measured no run."""
        return self.step_time_s is None and self.memory_bytes is None and not self.out_of_memory

    def without_parts(self) -> Observation:
        """Return the run without the measurements of the parts of its step. A fit uses it where
        these contradict the step time."""
        if self.step_time_s is None:  # The parts are all that was measured.
            return self
        return replace(self, exposed_s=None, coefficients={})


def with_limited_sources(observations: Sequence[Observation]) -> list[Observation]:
    """Return the runs with the weights of large sources lowered, so that a flood of reports from
    one source does not drag everybody's profile. No source counts for more than MAX_SOURCE_WEIGHT
    runs. Where there are several sources, none counts for more than the second largest of them or,
    where that is smaller, MIN_SOURCE_LIMIT."""
    sizes = Counter(o.source for o in observations)
    limit = MAX_SOURCE_WEIGHT
    if len(sizes) > 1:
        second_largest = sorted(sizes.values())[-2]
        limit = min(MAX_SOURCE_WEIGHT, max(second_largest, MIN_SOURCE_LIMIT))
    return [replace(o, weight=o.weight * min(1.0, limit / sizes[o.source])) for o in observations]
