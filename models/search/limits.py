"""The most seconds that a layout may take and still be in an answer, by what a search has found so
far.

The two *sides* are the layouts without a pipeline (0) and those with one (1). The *ranking* has the
fastest meshes (the parallel degrees of layouts). The *front* has the least time for each
complexity, counted in points (models.layouts.complexity).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.rows import Row
from models.layouts.complexity import MOST_POINTS
from models.search.pareto import ROUNDED

_SAME_TIMES = 1e-8
"""Step times that differ by less, relatively, may have the same nine digits, by which a ranking
tells times apart."""
_BELOW = 1 - 1e-15
"""Times count as shorter only if they are shorter by this factor, which is a few units in the last
place of a double."""
_LONGEST = float(np.finfo(np.float64).max)
"""The limit before anything is found. It is finite, so that no layout which takes forever is within
it."""


class Limits(NamedTuple):
    """Holds what is asked for, what has been found of it, and how long other layouts may take to be
    in the answer."""

    # as in Goal
    tolerance: float
    faster_than: float
    both_sides: bool
    # what is asked for, and what has been found
    top: int
    """The number of different times of meshes that are asked for."""
    is_fixed: bool
    """True where layouts may take as long as `fixed` says, whatever has been found."""
    fixed: Array
    """The most seconds without and with a pipeline, (2,)."""
    best: Array
    """The least seconds of any layout, (1,)."""
    sides: Array
    """The least seconds without and with a pipeline, (2,)."""
    last: Array
    """The seconds up to which the ranking is complete, (1,): the least that the last of `top`
    different times has ever been."""
    ranked_count: Array
    """The number of ranked meshes, (1,)."""
    ranked: Array
    """Ranked meshes, records of Row: the fastest, as many as make up the different
    times."""
    times: Array
    """The least seconds of each ranked mesh, ascending."""
    front: Array
    """The least seconds of layouts with so many points of complexity or fewer, (points,)."""
    longest: Array
    """The most seconds that layouts without and with a pipeline, of so many points of complexity,
    may take and still be in the answer, (2, points)."""


@inlined
def slowest_tolerated(limits: Limits) -> float:
    """Return the seconds beyond which a layout is too slow for the ranking, and for its simplicity
    to make up for it; -inf where limits are fixed. They are raised by a rounding error, since
    bounds are summed in another order than the times that they bound."""
    return -np.inf if limits.is_fixed else limits.best[0] * (1 + limits.tolerance) * ROUNDED


@inlined
def slowest_of_fastest(limits: Limits, side: int) -> float:
    """Return the seconds beyond which a layout is not in the answer for its speed. `side` is 0
    without a pipeline and 1 with one. Slower layouts may be in it for their simplicity."""
    if limits.is_fixed:
        return limits.fixed[side]
    # The ranking ends at its last time or at the tolerance, but never before the best layout.
    ranked_to = max(min(limits.last[0], slowest_tolerated(limits)), limits.best[0])
    if not limits.both_sides:
        return ranked_to
    # The best layout of this side is in the answer too, however slow it is.
    return max(ranked_to, limits.sides[side])


@compiled
def set_longest(limits: Limits) -> None:
    """Write `limits.longest` (2, points): the seconds within which layouts must be. A layout is in
    the answer if it is among the fastest, or if it is within the tolerance and faster than all that
    are as simple."""
    # `_BELOW` makes "at most this long" mean "shorter than".
    within, most = slowest_tolerated(limits), min(limits.faster_than * _BELOW, _LONGEST)
    for side in range(2):
        fast = slowest_of_fastest(limits, side)
        for points in range(MOST_POINTS):
            simple = min(limits.front[points], within) * _BELOW
            limits.longest[side, points] = min(max(fast, simple), most)


@compiled
def consider(limits: Limits, row: Row, seconds: float, points: int) -> bool:
    """Tighten the limits by a layout that takes `seconds` and has `points` of complexity. Return
    whether it may be in the answer, which has no layout that takes `faster_than` or longer."""
    if seconds >= limits.faster_than:
        return False
    side = 1 if row.pp > 1 else 0
    last_before = limits.last[0]  # the slowest time in the ranking
    tightens = seconds < limits.sides[side]
    limits.best[0] = min(limits.best[0], seconds)
    limits.sides[side] = min(limits.sides[side], seconds)
    may_be_in_answer = seconds <= max(slowest_of_fastest(limits, side), slowest_tolerated(limits))
    if may_be_in_answer:
        rank(limits, row, seconds)
        tightens = tightens or limits.last[0] < last_before
        # front[p] is the least time with p points or fewer, so it falls with p: after the first
        # entry that is as fast, all are.
        for most_points in range(points, MOST_POINTS):
            # ROUNDED: a gain by rounding errors alone does not count as faster.
            if seconds * ROUNDED >= limits.front[most_points]:
                break
            limits.front[most_points] = seconds
            tightens = True
    if tightens:
        set_longest(limits)
    return may_be_in_answer


@compiled
def rank(limits: Limits, row: Row, seconds: float) -> None:
    """Put the mesh of a layout that takes `seconds` into its place in the ranking, which ascends,
    or move it up. Meshes beyond `top` different times are dropped, and `limits.last` is lowered to
    the last of these times."""
    ranked, times = limits.ranked, limits.times
    count = limits.ranked_count[0]
    place = 0
    # A mesh that is not ranked yet gets the first free place, whose time is infinite. Where the
    # list is full, it takes the place of the slowest.
    while place < count and not same_degrees(ranked[place], row):
        place += 1
    if place == len(times):
        place -= 1
    if seconds >= times[place]:
        return
    count = max(count, place + 1)
    while place > 0 and times[place - 1] > seconds:
        ranked[place], times[place] = ranked[place - 1], times[place - 1]
        place -= 1
    ranked[place], times[place] = row, seconds
    # Meshes that take equally long count as one time, that of the fastest of them.
    different, counted = 1, times[0]
    for i in range(1, count):
        if times[i] > counted * (1 + _SAME_TIMES):
            counted = times[i]
            different += 1
        if different > limits.top:
            times[i:count] = np.inf
            count = i
            break
    limits.ranked_count[0] = count
    if different >= limits.top:
        limits.last[0] = min(limits.last[0], times[count - 1])


@inlined
def same_degrees(one: Row, other: Row) -> bool:
    """Say whether two layouts have equal degrees on all axes, experts included: one mesh, which
    counts once in the ranking."""
    return (
        one.pp == other.pp
        and one.dp_replicate == other.dp_replicate
        and one.dp_shard == other.dp_shard
        and one.cp == other.cp
        and one.tp == other.tp
        and one.ep == other.ep
        and one.etp == other.etp
    )


@compiled
def consider_all(limits: Limits, rows: Array, seconds: Array, points: Array, held: Array) -> None:
    """Tighten the limits by n layouts, one after the other, and write to `held` (n,) whether each
    may be in the answer."""
    for i in range(len(rows)):
        held[i] = consider(limits, rows[i], seconds[i], points[i])
