"""Safe fit answers where memory is uncertain: the fastest layout that fits with a high probability,
and layouts that need less memory than one that is known to have run out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import numpy as np

from models.columns import Array
from models.cost.step import Predictions
from models.errors import Infeasible
from models.prediction.prediction import Prediction
from models.search.branch_and_bound import search_on
from models.search.pareto import ROUNDED
from models.search.result import Answer, Goal, NothingFaster, ShouldContinue
from models.search.tables import NoLegalLayout
from models.spec.constraints import Constraints
from models.spec.hardware import GIB
from models.spec.layout import Layouts
from models.spec.problem import Problem

SAFE_FIT_PROBABILITY = 0.9
"""A layout that fits with at least this probability is safe: the upper end of the 80% interval of
its memory is within what is usable."""
_OOM_MARGIN_GIB = 1e-3  # so that the layout that ran out is itself left out, whatever is rounded
_OFFLOAD_KNOBS = ("offload_activations", "offload_optimizer")

Solution = TypeVar("Solution")


def fastest_safe_layout(
    answer: Answer, near: Predictions, rows: Array, limit_s: float, should_continue: ShouldContinue
) -> Layouts:
    """Return the fastest layout that is safe to fit and takes at most `limit_s`, as one row.
    There is no row where the fastest of the answer is safe itself, or none is within the limit.

    `near` are the predictions of `rows` of the answer. The fastest of these that is safe leaves
    only what is faster to be searched for. Where the answer holds all layouts that are faster, but
    for those that recompute more layers, only these are searched.
    """
    safe = answer.tables.at_fit_probability(SAFE_FIT_PROBABILITY)
    safe_rows = rows[safe.fits(near.memory, near.host_bytes)]
    if 0 in safe_rows:
        return answer.layouts.take(safe_rows[:0])
    seconds = float(answer.times[safe_rows].min(initial=limit_s * ROUNDED))
    faster_rows = np.flatnonzero(answer.times < seconds)
    has_all_faster = (
        answer.certificate.exact
        and seconds <= answer.complete_s
        and np.isin(faster_rows, rows).all()
    )
    tables = safe.with_layers_open() if has_all_faster else safe
    if tables is not None:
        with suppress(NothingFaster, NoLegalLayout, Infeasible):
            found = search_on(tables, Goal(faster_than=seconds), should_continue)
            return found.layouts.take(np.array(found.ranked[:1]))
    return answer.layouts.take(safe_rows[answer.times[safe_rows] == seconds][:1])


def solve_avoiding_oom(
    oom_gib: float,
    problem: Problem,
    constraints: Constraints,
    solve: Callable[[Constraints], Solution],
) -> Solution:
    """Return the solution among layouts that need less than `oom_gib`, the least memory with which
    a run like these ran out. Where none of those fits, solve as if no run had."""
    reserve_gib = problem.cluster.usable_bytes / GIB - oom_gib + _OOM_MARGIN_GIB
    if reserve_gib > constraints.memory_reserve_gib:
        with suppress(Infeasible):
            return solve(replace(constraints, memory_reserve_gib=reserve_gib))
    return solve(constraints)


def offload_knobs(prediction: Prediction) -> list[str]:
    """Return the names of the constraints that switch off what the layout offloads."""
    return [knob for knob in _OFFLOAD_KNOBS if getattr(prediction.layout, knob)]
