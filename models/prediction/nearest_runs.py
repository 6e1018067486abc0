"""Which runs are like a question, and by how much.

The distance orders runs to show beside a prediction; no prediction is made from it. What another
chip, generation, stack or kind of model counts is in proportion to how far residuals then lie apart
(a variogram of residuals that saw neither run's source, docs/experiments.md). Sizes and degrees
explain next to nothing of the residuals and count only because people compare by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from models.columns import Array
from models.spec.layout import Layout
from models.spec.problem import Problem

KINDS: dict[str, float] = {
    "stack": 1.5,
    "sparse": 1.25,
    "generation": 1.0,
    "chip": 0.5,
    "precision": 0.5,
}
"""What a difference counts; another generation is another chip too."""
DOUBLING = 0.25
"""What a factor of two counts, of any size or degree."""
SIZES = (
    "parameters", "active_parameters", "num_chips", "seq_len", "tokens_per_step", "tp", "pp", "cp",
    "ep",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What makes runs alike. Of a question, None where it leaves something open: that counts for
    nothing."""

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
    def of(cls, problem: Problem, layout: Layout) -> Traits:
        chip, parameters = problem.cluster.chip, problem.architecture.parameters
        return cls(
            chip=chip.id,
            generation=chip.generation,
            stack=problem.stack.calibrated_as,
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

    def differing(self, other: Traits) -> dict[str, tuple[Any, Any]]:
        """What is stated here and not the same there."""
        mine, theirs = asdict(self), asdict(other)
        return {
            name: (value, theirs[name])
            for name, value in mine.items()
            if value not in (None, theirs[name])
        }


class Library:
    """Traits of many runs, as columns."""

    def __init__(self, traits: Sequence[Traits]) -> None:
        self._columns = {
            f.name: np.array([getattr(one, f.name) for one in traits]) for f in fields(Traits)
        }
        self._size = len(traits)

    def distances(self, wanted: Traits) -> Array:
        """Of every run from what is wanted, in the order given."""
        total = np.zeros(self._size)
        for name, worth in KINDS.items():
            if (value := getattr(wanted, name)) is not None:
                total += worth * (self._columns[name] != value)
        for name in SIZES:
            if (value := getattr(wanted, name)) is not None:
                total += DOUBLING * np.abs(np.log2(self._columns[name] / value))
        return total
