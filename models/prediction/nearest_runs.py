"""Nearest runs are the runs most like a question. They are shown beside a prediction, and no
prediction is made from them.

The distance between two runs is a sum over the traits in which they differ. Another chip,
generation, stack or kind of model counts in proportion to how far apart the residuals of such runs
lie (a variogram of residuals under fits that saw neither run's source, docs/lab/intervals.md).
Sizes and degrees explain next to nothing of the residuals and count only because people compare by
them. A *residual* is the log of measured over predicted step time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from models.columns import Array
from models.spec.layout import Layout
from models.spec.problem import Problem

KIND_DISTANCES: dict[str, float] = {
    "stack": 1.5,
    "sparse": 1.25,
    "generation": 1.0,
    "chip": 0.5,
    "precision": 0.5,
}
"""The distance that a difference in each trait adds. Another generation is another chip too, so
both distances add up."""
DISTANCE_PER_DOUBLING = 0.25
"""The distance that a factor of two in any other trait adds: those are sizes and degrees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTraits:
    """The traits by which runs are compared. A trait that a question leaves open is None, and adds
    nothing to the distance."""

    chip: str | None = None
    generation: str | None = None
    stack: str | None = None
    sparse: bool | None = None
    precision: str | None = None
    parameters: float | None = None
    active_parameters: float | None = None
    num_chips: int | None = None
    seq_len: int | None = None
    tokens_per_step: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None

    @classmethod
    def of(cls, problem: Problem, layout: Layout) -> RunTraits:
        """Return the traits of a run of this problem under this layout."""
        chip, parameters = problem.cluster.chip, problem.architecture.parameters
        return cls(
            chip=chip.id,
            generation=chip.generation,
            stack=problem.stack.calibrated_as,  # its own id, or the stack whose coefficients it has
            sparse=problem.architecture.is_moe,
            precision=problem.workload.precision,
            parameters=parameters.total,
            active_parameters=parameters.active,
            num_chips=problem.cluster.num_chips,
            seq_len=problem.workload.seq_len,
            tokens_per_step=problem.workload.tokens,
            tp=layout.tp,
            pp=layout.pp,
            cp=layout.cp,
            ep=layout.ep,
        )

    def differences_from(self, other: RunTraits) -> dict[str, tuple[Any, Any]]:
        """Return the traits that differ in `other`, by name, as pairs (own value, other's value).
        Traits that are None here, and so left open, are not among them."""
        pairs = {
            field.name: (getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)
        }
        return {
            name: (own, others)
            for name, (own, others) in pairs.items()
            if own is not None and own != others
        }


class RunIndex:
    """The traits of many runs, as a column each, so that all distances are found at once."""

    def __init__(self, runs: Sequence[RunTraits]) -> None:
        """Collect the traits of runs, which must state all of them, in columns by name."""
        self._columns = {
            field.name: np.array([getattr(run, field.name) for run in runs])
            for field in fields(RunTraits)
        }
        self._size = len(runs)

    def distances(self, traits: RunTraits) -> Array:
        """Return the distance of every run from these traits, in the order of the runs."""
        total = np.zeros(self._size)
        for name, values in self._columns.items():
            if (value := getattr(traits, name)) is None:
                continue
            if name in KIND_DISTANCES:
                total += KIND_DISTANCES[name] * (values != value)
            else:  # a size or a degree
                total += DISTANCE_PER_DOUBLING * np.abs(np.log2(values / value))
        return total
