"""Safe fit gives answers where memory is uncertain: the gain of a *bolder* layout, which is faster
and less sure to fit, and layouts that need less memory than one that is known to have run out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import numpy as np

from models.errors import Infeasible
from models.layouts.space import Space
from models.search.enumeration import search_on
from models.search.result import Goal, NothingFaster, SearchAnswer, ShouldContinue
from models.spec.constraints import EVEN_CHANCE
from models.spec.hardware import GIB
from models.spec.layout import Layouts

LEAST_BOLDER_GAIN = 0.01
"""The least gain, as a share of a step, for which a layout that is less sure to fit is worth
naming."""
_OOM_MARGIN_GIB = 1e-3  # leaves out the layout that ran out itself, whatever is rounded

Solution = TypeVar("Solution")


def fastest_bolder_layout(answer: SearchAnswer, should_continue: ShouldContinue) -> Layouts:
    """Return, as one row, the fastest layout that fits by the median of its memory, if it gains
    LEAST_BOLDER_GAIN over the fastest of the answer, which is surer to fit. Return no row
    otherwise, or where time ran out."""
    no_layout = answer.layouts.take(np.arange(0))
    # The answer's layouts need to fit by the median only: none is bolder.
    if answer.tables.memory_uncertainty.probability <= EVEN_CHANCE:
        return no_layout
    limit_s = float(answer.times[0]) / (1 + LEAST_BOLDER_GAIN)
    tables = answer.tables.at_even_chance  # for layouts that fit by the median
    # `opened` has the meshes that the search could not rule out, even for layouts that fit by the
    # median. If it was exact, no other mesh has a faster layout.
    among = answer.opened if answer.certificate.exact else None
    with suppress(NothingFaster):
        found = search_on(tables, Goal(faster_than=limit_s), should_continue, among=among)
        return found.layouts.take(np.array(found.ranked[:1]))
    return no_layout


def solve_avoiding_oom(
    oom_gib: float, space: Space, solve: Callable[[Space], Solution]
) -> Solution:
    """Return what `solve` finds among the layouts of a space that need less than `oom_gib`, the
    least predicted need at which a run of this model, chip and stack ran out of memory. If none of
    them fits, return what it finds in the whole space."""
    constraints = space.constraints
    # Needing less than oom_gib means leaving the rest of the usable memory free; the margin keeps
    # rounding from letting oom_gib itself through. Without such a run oom_gib is infinite, and
    # nothing is to be left free.
    reserve_gib = space.problem.cluster.usable_bytes / GIB - oom_gib + _OOM_MARGIN_GIB
    if reserve_gib > constraints.memory_reserve_gib:
        with suppress(Infeasible):
            smaller = replace(constraints, memory_reserve_gib=reserve_gib)
            return solve(Space(space.problem, smaller))
    return solve(space)
