"""What all but surely fits where the fastest may not, and constraints that leave nothing else."""

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

SURE = 0.9
"""Probability to fit from which nothing surer is looked for: the upper end of an 80% interval
fits."""
ROUNDING = 1e-3
Found = TypeVar("Found")
_OFFLOADS = ("offload_activations", "offload_optimizer")


def fastest_sure(
    answer: Answer, near: Predictions, rows: Array, limit_s: float, should_continue: ShouldContinue
) -> Layouts:
    """Where the fastest of the answer is not sure to fit, the fastest layout that is and takes no
    more than `limit_s`, if there is one. `near`: predictions of `rows` of the answer, of which the
    fastest that is sure leaves less to be searched for: only what recomputes more layers, where the
    answer has all other layouts that are faster."""
    sure = answer.ground.as_sure(SURE)
    known = rows[sure.fits(near.memory, near.host_bytes)]
    if 0 in known:
        return answer.layouts.take(known[:0])
    seconds = float(answer.times[known].min(initial=limit_s * ROUNDED))
    faster = np.flatnonzero(answer.times < seconds)
    complete = (
        answer.certificate.exact and seconds <= answer.complete_s and np.isin(faster, rows).all()
    )
    left = sure.with_layers_open() if complete else sure
    if left is not None:
        with suppress(NothingFaster, NoLegalLayout, Infeasible):
            found = search_on(left, Goal(faster_than=seconds), should_continue)
            return found.layouts.take(np.array(found.ranked[:1]))
    return answer.layouts.take(known[answer.times[known] == seconds][:1])


def avoiding(
    failed_gib: float,
    problem: Problem,
    constraints: Constraints,
    answer: Callable[[Constraints], Found],
) -> Found:
    """The answer among layouts that need less than a run like these has run out of memory with;
    where none of those fits, as if nothing had failed."""
    reserve = problem.cluster.usable_bytes / GIB - failed_gib + ROUNDING
    if reserve > constraints.memory_reserve_gib:
        with suppress(Infeasible):
            return answer(replace(constraints, memory_reserve_gib=reserve))
    return answer(constraints)


def offloaded(best: Prediction) -> list[str]:
    return [knob for knob in _OFFLOADS if getattr(best.layout, knob)]
