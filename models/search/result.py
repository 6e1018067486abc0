"""What a search is asked for, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.columns import Array
from models.search.compiled_tables import Meshes
from models.search.tables import SearchTables
from models.spec.layout import Layouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What an answer has to contain: the `top` fastest meshes, the simplest layout within the
    tolerance of the fastest, and, with `both_sides`, the best with and without a pipeline. Nothing
    is an answer that is not `faster_than` so many seconds."""

    tolerance: float = 0.0
    top: int = 1
    both_sides: bool = False
    faster_than: float = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What the search looked at. Every layout of the space is in exactly one of the counts.

    `rejected` by the first rule that refused them, where the search got as far (with "dominated"
    for policies that recompute more than they have to; schedules where no mesh has them, or a mesh
    has none); `over_memory` evaluated and too large; `pruned_by_memory` by a bound of what a core
    needs; `evaluated` fully; `pruned_by_bound` all the rest, legal or not, below parts of the space
    whose bound, of what fits, is no better than the answer. `closing_bound_s` is the least of those
    bounds; `exact` says that the search came to its end, and `gap` by how much, at most, a layout
    that it did not look at is faster than the answer: (answer - that) / that.
    """

    space: int
    cardinality: dict[str, int]
    rejected: dict[str, int]
    over_memory: int
    pruned_by_memory: int
    pruned_by_bound: int
    evaluated: int
    closing_bound_s: float | None
    exact: bool
    gap: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Layouts in order of (step time, complexity), and how the search went: the `ranked` fastest
    meshes, each with its best policy and placement, the simplest of those that take equally long;
    `front`: the fastest of each complexity that is within the tolerance and faster than any simpler
    one, the `simplest` first; and the best `without` and `with_pp`. All as positions. `tables`:
    what the search looked up; `opened`: the meshes that it did not rule out, nor would where
    layouts have to fit with an even chance only."""

    layouts: Layouts
    times: Array
    complexities: Array
    ranked: list[int]
    front: list[int]
    without: int | None
    with_pp: int | None
    certificate: Certificate
    tables: SearchTables
    opened: Sequence[Meshes]

    @property
    def simplest(self) -> int:
        return self.front[0]

    def inexact(self, bound_s: float = np.inf) -> Answer:
        """The same, where there was no time for all of it: what was not looked at takes `bound_s`
        at least."""
        found = self.certificate
        closing = min(bound_s, np.inf if found.closing_bound_s is None else found.closing_bound_s)
        gap = max(found.gap, float(self.times[0]) / bound_s - 1)
        closing_bound_s = closing if np.isfinite(closing) else None
        return replace(
            self, certificate=replace(found, closing_bound_s=closing_bound_s, exact=False, gap=gap)
        )


ShouldContinue = Callable[[], bool]


def run_to_completion() -> bool:
    return True


class NothingFaster(Exception):
    """No layout that fits is faster than the goal asks."""
