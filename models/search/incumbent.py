"""The answer of a search so far, and the limits that it sets for layouts to come.

A *mesh* is the parallel degrees of a layout, and the *ranking* has the fastest meshes, each with
the time of its fastest layout. The two *sides* are the layouts without a pipeline and those with
one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models.columns import Array, distinct
from models.cost.rows import ROW
from models.layouts.complexity import MOST_POINTS
from models.search.compiled_tables import Meshes
from models.search.limits import Limits, consider_all, set_longest, slowest_tolerated
from models.search.pareto import staircase
from models.search.result import Certificate, Goal, SearchAnswer
from models.search.tables import SearchTables
from models.spec.layout import DEGREES, Layouts

_ROUNDING = 1e-9  # times that differ by less, relatively, differ by rounding only
# Meshes that the ranking has room for, for each that is asked for. Meshes that take equally long
# count as one, and may be many.
_RANKED = 64


def limits_for(goal: Goal, fixed: Array | None) -> Limits:
    """Return the limits of a search before it has found anything. If `fixed` (2,) is given, it has
    the most seconds of layouts without and with a pipeline, and the limits never get tighter."""
    # The ranking has `top` different times, each of which several meshes may share.
    capacity = _RANKED * goal.top
    limits = Limits(
        tolerance=float(goal.tolerance),
        faster_than=float(goal.faster_than),
        both_sides=bool(goal.both_sides),
        top=int(goal.top),
        is_fixed=fixed is not None,
        fixed=np.full(2, -np.inf) if fixed is None else np.asarray(fixed, dtype=float),
        best=np.full(1, np.inf),
        sides=np.full(2, np.inf),
        last=np.full(1, np.inf),
        ranked_count=np.zeros(1, dtype=np.int64),
        ranked=np.zeros(capacity, dtype=ROW),
        times=np.full(capacity, np.inf),
        front=np.full(MOST_POINTS, np.inf),
        longest=np.empty((2, MOST_POINTS)),
    )
    set_longest(limits)
    return limits


class Incumbent:
    """Holds layouts that may be in the answer, and the limits that they set.

    If `all_within` (2,) is given, all layouts are held that take at most so many seconds: its first
    entry is for layouts without a pipeline, and its second for layouts with one.
    """

    def __init__(self, goal: Goal, all_within: Array | None = None) -> None:
        self.goal = goal
        self.limits = limits_for(goal, all_within)
        self.layouts: list[Layouts] = []
        self.times: list[Array] = []
        self.complexities: list[Array] = []

    @property
    def best(self) -> float:
        """The least step time in seconds."""
        return float(self.limits.best[0])

    @property
    def has_step_time_limit(self) -> bool:
        """Say whether layouts have to reach a step time: one that the caller gave, or the best that
        was found."""
        limits = self.limits
        return limits.is_fixed or bool(np.isfinite(min(limits.best[0], limits.faster_than)))

    def add(self, layouts: Layouts, times: Array, complexities: Array) -> None:
        """Tighten the limits by these layouts, and keep those that may be in the answer. `times`
        has seconds of a step and `complexities` points, each (n,)."""
        rows = np.zeros(len(layouts), dtype=ROW)
        for name in DEGREES:  # The limits read no other field.
            rows[name] = getattr(layouts, name)
        held = np.empty(len(rows), dtype=bool)
        consider_all(self.limits, rows, times, complexities, held)
        self.keep(layouts.take(held), times[held], complexities[held])

    def keep(self, layouts: Layouts, times: Array, complexities: Array) -> None:
        """Keep layouts without tightening the limits. Call this only for layouts that have
        tightened them already: compiled functions do so with every layout that they find."""
        if len(layouts):
            self.layouts.append(layouts.materialised())
            self.times.append(times)
            self.complexities.append(complexities)

    def add_known(self, layouts: Layouts, times: Array, complexities: Array) -> None:
        """Add layouts that are known before the search begins. The best times without and with a
        pipeline are then raised by a rounding error, since the search must also find layouts that
        take equally long."""
        self.add(layouts, times, complexities)
        self.limits.sides[:] *= 1 + _ROUNDING
        set_longest(self.limits)

    @property
    def may_lack_meshes(self) -> bool:
        """Say whether the search may have dropped meshes that belong in the ranking. The ranking
        has `top` meshes of different times (to nine digits). When a faster layout of a ranked mesh
        is found, the mesh may come to the time of another. Both then count as one, and a mesh that
        was dropped before belongs in the free place."""
        times = self.limits.times[: self.limits.ranked_count[0]]
        different = np.unique([_to_nine_digits(time) for time in times])
        top = self.goal.top
        last = float(different[top - 1]) if len(different) >= top else np.inf
        # Slower meshes than `limits.last` were dropped, but the ranking goes on to `last`, or to
        # the slowest time that is tolerated.
        return _to_nine_digits(float(self.limits.last[0])) < min(
            last, slowest_tolerated(self.limits)
        )

    def for_second_search(self) -> Incumbent:
        """Return a new incumbent for a search that finds the meshes which the ranking may lack
        (may_lack_meshes). It holds no layouts, but starts from the ranking and from the best times
        without and with a pipeline. The latter are raised by a rounding error, since bounds may
        exceed what they bound by as much."""
        other = Incumbent(self.goal)
        for name in ("best", "ranked_count", "ranked", "times"):
            getattr(other.limits, name)[:] = getattr(self.limits, name)
        other.limits.sides[:] = self.limits.sides * (1 + _ROUNDING)
        set_longest(other.limits)
        return other

    def is_promising(self, bound: Array, with_pipeline: Array, points: Array) -> Array:
        """Return for each of n rows whether a layout that grows from it may be in the answer, (n,).
        `bound` has its least seconds of a step, `with_pipeline` whether it has a pipeline, and
        `points` its least complexity."""
        return np.asarray(bound <= self.limits.longest[with_pipeline.astype(np.int64), points])

    def answer(
        self, certificate: Certificate, tables: SearchTables, opened: Sequence[Meshes]
    ) -> SearchAnswer:
        """Return the answer made of the kept layouts, sorted by time and complexity. The
        certificate, tables and opened meshes, which say how the search went, are passed on."""
        layouts = Layouts.concatenate(self.layouts)
        times = _equalise_times(np.concatenate(self.times))
        points = np.concatenate(self.complexities)
        # Of layouts that take as long the simplest comes first. The knobs settle the ties that are
        # left, so that the order does not depend on how the search went.
        order = np.lexsort((*(getattr(layouts, name) for name in Layouts.__slots__), points, times))
        # The search may have met known layouts again: of equal layouts the first is kept.
        order = order[_differs_from_previous(layouts.take(order))]
        layouts = layouts.take(order)
        times = times[order]
        points = points[order]
        # The front goes up to the tolerance, and the ranking no further than to its `last` time.
        within, last = slowest_tolerated(self.limits), float(self.limits.last[0])
        near = np.flatnonzero(times <= within)
        best: dict[bool, int | None] = {}
        for with_pipeline in (False, True):
            of_side = np.flatnonzero((layouts.pp > 1) == with_pipeline)
            best[with_pipeline] = int(of_side[0]) if len(of_side) and self.goal.both_sides else None
        return SearchAnswer(
            layouts,
            times,
            points,
            ranked=_distinct_meshes(layouts.take(near), times[near], self.goal.top, last),
            front=staircase(times[near], points[near]),
            without=best[False],
            with_pp=best[True],
            certificate=certificate,
            tables=tables,
            opened=opened,
        )


def _distinct_meshes(layouts: Layouts, times: Array, top: int, last: float) -> list[int]:
    """Return the positions of the fastest layout of each mesh, for the `top` fastest meshes that
    take up to `last` seconds. `times` must ascend. Of meshes that take equally long only the first
    is listed, since near copies of one mesh would crowd a short list."""
    # Of equal rows `distinct` names the last that it meets: backwards, that is the fastest.
    first, _ = distinct(*(getattr(layouts, name)[::-1] for name in DEGREES))
    rows = np.sort(len(layouts) - 1 - first).tolist()
    seen: dict[float, int] = {}
    for row in rows:
        if _to_nine_digits(times[row]) <= _to_nine_digits(last):
            seen.setdefault(_to_nine_digits(times[row]), row)
    return list(seen.values())[:top]


def _differs_from_previous(layouts: Layouts) -> Array:
    """Return for each layout whether it differs from the one before it in any field, (n,); true for
    the first."""
    columns = (getattr(layouts, name) for name in Layouts.__slots__)
    return np.concatenate(
        [[True], np.any([column[1:] != column[:-1] for column in columns], axis=0)]
    )


def _equalise_times(times: Array) -> Array:
    """Return times (n,) in the order given, where times that differ by rounding errors only are set
    to the least of them: which of them is less means nothing."""
    order = np.argsort(times, kind="stable")
    ascending = times[order]
    # A group of equal times starts where a time exceeds the one before it by more than rounding.
    starts = np.flatnonzero(np.diff(ascending, prepend=0.0) > _ROUNDING * ascending)
    alike = np.empty_like(times)
    alike[order] = np.repeat(ascending[starts], np.diff(starts, append=len(times)))
    return alike


def _to_nine_digits(time: float) -> float:
    """Return a step time to nine digits, so that times which differ by rounding errors only are the
    same."""
    return float(f"{time:.9g}")
