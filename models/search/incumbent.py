"""What a search holds of its answer so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from models.columns import Array, distinct
from models.search.pareto import ROUNDED, staircase
from models.search.result import Answer, Certificate, Goal
from models.search.tables import SearchTables
from models.spec.layout import DEGREES, Layouts

_ROUNDING = 1e-9  # times that differ by less are the same


@dataclass
class Incumbent:
    """What the search holds: layouts that may be in the answer, and the limits that they set."""

    goal: Goal
    layouts: list[Layouts] = field(default_factory=list)
    times: list[Array] = field(default_factory=list)
    complexities: list[Array] = field(default_factory=list)
    best: float = np.inf
    sides: Array = field(default_factory=lambda: np.full(2, np.inf))
    fastest: dict[tuple[int, ...], float] = field(default_factory=dict)
    last: float = np.inf
    """Up to here the ranking is complete: the least that the last of as many as are asked for ever
    took."""
    all_within: Array | None = None
    """If given, all that take no longer are held instead, by whether they have a pipeline; nothing
    is tolerated."""
    front: tuple[Array, Array] = field(
        default_factory=lambda: (np.zeros(0, dtype=np.int64), np.zeros(0))
    )
    """Within the tolerance: complexities, and the least time with no more."""

    def add(self, layouts: Layouts, times: Array, complexities: Array) -> None:
        fast = times < self.goal.faster_than
        if not fast.all():
            layouts, times, complexities = layouts.take(fast), times[fast], complexities[fast]
        piped = (layouts.pp > 1).astype(int)
        for side in range(2):
            self.sides[side] = min(
                self.sides[side], float(times[piped == side].min(initial=np.inf))
            )
        self.best = min(self.best, float(times.min(initial=np.inf)))
        near = times <= np.maximum(self.limit(piped), self.tolerated)
        if not near.any():
            return
        layouts, times = layouts.take(near).materialised(), times[near]
        self.layouts.append(layouts)
        self.times.append(times)
        self.complexities.append(complexities[near])
        self._rank(layouts, times)
        self._advance(complexities[near], times)

    def _rank(self, layouts: Layouts, times: Array) -> None:
        """Keep the fastest degrees, as many as make up `top` different times."""
        order = np.argsort(times, kind="stable")[: 64 * self.goal.top]
        degrees = np.stack([getattr(layouts, name)[order] for name in DEGREES], axis=1).tolist()
        for key, time in zip(map(tuple, degrees), times[order].tolist(), strict=True):
            self.fastest[key] = min(time, self.fastest.get(key, np.inf))
        last = self._last()
        self.fastest = {
            key: time for key, time in self.fastest.items() if _told_apart(time) <= last
        }
        if np.isfinite(last):
            self.last = min(self.last, max(self.fastest.values()))

    def _advance(self, points: Array, times: Array) -> None:
        points, times = (
            np.concatenate([self.front[0], points]),
            np.concatenate([self.front[1], times]),
        )
        near = times <= self.tolerated
        points, times = points[near], times[near]
        steps = staircase(times, points)
        self.front = points[steps], times[steps]

    def knowing(self, layouts: Layouts, times: Array, complexities: Array) -> None:
        """Hold layouts that are known before the search meets them again, and what takes as
        long."""
        self.add(layouts, times, complexities)
        self.sides *= 1 + _ROUNDING

    @property
    def short(self) -> bool:
        """Whether meshes of the ranking became as fast as others: there may be slower ones to take
        their places."""
        return _told_apart(self.last) < min(self._last(), self.tolerated)

    def again(self) -> Incumbent:
        """To search once more with what is known of the fastest, and of the sides: bounds may
        exceed what they bound by rounding errors."""
        return Incumbent(
            self.goal,
            best=self.best,
            sides=self.sides * (1 + _ROUNDING),
            fastest=self.fastest.copy(),
        )

    def _last(self) -> float:
        """Of different times as many as are asked for, the last; infinite if there are fewer."""
        different = np.unique([_told_apart(time) for time in self.fastest.values()])
        return float(different[self.goal.top - 1]) if len(different) >= self.goal.top else np.inf

    @property
    def tolerated(self) -> float:
        """Layouts slower than this are no part of the ranking, nor simple enough to make up for it.
        What is slower by a rounding error is not: bounds are summed in another order than the times
        that they bound."""
        return (
            self.best * (1 + self.goal.tolerance) * ROUNDED if self.all_within is None else -np.inf
        )

    def limit(self, piped: Array) -> Array:
        """Layouts slower than this, by whether they have a pipeline, are not among the fastest."""
        if self.all_within is not None:
            return self.all_within.take(piped)
        limits = np.full(2, self._ranked_to)
        if self.goal.both_sides:
            limits = np.maximum(limits, self.sides)
        return limits.take(piped)

    @property
    def _ranked_to(self) -> float:
        return max(min(self.last, self.tolerated), self.best)

    def fast(self, bound: Array, piped: Array) -> Array:
        """Whether what has this least time may be among the fastest."""
        return np.asarray((bound <= self.limit(piped)) & (bound < self.goal.faster_than))

    def wanted(self, bound: Array, piped: Array, points: Array) -> Array:
        """Whether what has this least time and least complexity may be in the answer."""
        simple = bound < np.minimum(self.simple_enough(points), self.goal.faster_than)
        return np.asarray(self.fast(bound, piped) | simple)

    def simple_enough(self, points: Array) -> Array:
        """Of layouts with so many points of complexity, the time that they have to be faster than
        to make up for all others."""
        simpler = np.searchsorted(self.front[0], points, side="right")
        return np.concatenate([[self.tolerated], self.front[1]]).take(simpler)

    def answer(self, certificate: Certificate, tables: SearchTables) -> Answer:
        """Of what is held, with how the search went."""
        layouts = Layouts.concatenate(self.layouts)
        times, points = _alike(np.concatenate(self.times)), np.concatenate(self.complexities)
        order = np.lexsort((*(getattr(layouts, name) for name in Layouts.__slots__), points, times))
        order = order[_differ(layouts.take(order))]  # those that are known may have been met again
        layouts, times, points = layouts.take(order), times[order], points[order]
        near = np.flatnonzero(times <= self.tolerated)
        best: dict[bool, int | None] = {}
        for piped in (False, True):
            mine = np.flatnonzero((layouts.pp > 1) == piped)
            best[piped] = int(mine[0]) if len(mine) and self.goal.both_sides else None
        return Answer(
            layouts,
            times,
            points,
            ranked=_distinct_meshes(layouts.take(near), times[near], self.goal.top, self.last),
            front=staircase(times[near], points[near]),
            without=best[False],
            with_pp=best[True],
            certificate=certificate,
            tables=tables,
        )


def _distinct_meshes(layouts: Layouts, times: Array, top: int, last: float) -> list[int]:
    """Positions of the fastest layout of each mesh up to the `last`, and of meshes that take
    equally long the first: variants would crowd a short list. `times` ascend."""
    first, _ = distinct(
        *(getattr(layouts, name)[::-1] for name in DEGREES)
    )  # names the last that it meets
    rows = np.sort(len(layouts) - 1 - first).tolist()
    seen: dict[float, int] = {}
    for row in rows:
        if _told_apart(times[row]) <= _told_apart(last):
            seen.setdefault(_told_apart(times[row]), row)
    return list(seen.values())[:top]


def _differ(layouts: Layouts) -> Array:
    """Whether each is another than the one before it, (n,)."""
    columns = (getattr(layouts, name) for name in Layouts.__slots__)
    return np.concatenate(
        [[True], np.any([column[1:] != column[:-1] for column in columns], axis=0)]
    )


def _alike(times: Array) -> Array:
    """With one time, the least, for all that differ by rounding errors only: which of them is less
    says nothing."""
    order = np.argsort(times, kind="stable")
    ascending = times[order]
    starts = np.flatnonzero(np.diff(ascending, prepend=0.0) > _ROUNDING * ascending)
    alike = np.empty_like(times)
    alike[order] = np.repeat(ascending[starts], np.diff(starts, append=len(times)))
    return alike


def _told_apart(time: float) -> float:
    """Step times that differ by rounding errors only are the same."""
    return float(f"{time:.9g}")
