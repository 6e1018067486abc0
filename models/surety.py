"""What all but surely fits where the fastest may not, and constraints that leave nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import numpy as np

from models.answer import Answer, Goal, GoOn, NothingFaster
from models.array import Array
from models.candidate import Candidate, candidates
from models.constraints import Constraints
from models.errors import Infeasible
from models.groundwork import Groundwork, NoLegalLayout
from models.hardware import GIB
from models.layout import Layouts
from models.prediction import Prediction
from models.problem import Problem
from models.profile import Z80, Profile, left_free
from models.search import search_on
from models.space import Space
from models.step import Predictions, predict

SURE = 0.9
"""Probability to fit from which nothing surer is looked for: the upper end of an 80% interval fits."""
ROUNDING = 1e-3
Found = TypeVar("Found")
_OFFLOADS = ("offload_activations", "offload_optimizer")


def fastest_sure(
    profile: Profile, best: Prediction, answer: Answer, near: Predictions, rows: Array, limit_s: float, go_on: GoOn
) -> Candidate | None:
    """The fastest layout that is sure to fit and takes no more than `limit_s`; `near`: predictions of `rows` of the
    answer, of which the fastest that does leaves less to be searched for."""
    known = rows[_surely_fit(near, best)]
    seconds = float(answer.times[known].min(initial=limit_s * (1 + 1e-12)))
    found = [answer.layouts.take(known[answer.times[known] == seconds][:1])]
    constraints = surely(answer.ground.space.constraints, best, SURE)
    if constraints is not None:
        with suppress(NothingFaster, NoLegalLayout, Infeasible):
            faster = search_on(_under(constraints, answer.ground, profile), Goal(faster_than=seconds), go_on)
            found.insert(0, faster.layouts.take(np.array(faster.ranked[:1])))
    if not sum(map(len, found)):
        return None
    chosen = predict(near.problem, Layouts.concatenate(found), near.meshes.c)
    surest = (one for one in candidates(chosen, profile) if one.prediction.fit_probability >= SURE - ROUNDING)
    return next(surest, None)


def avoiding(
    failed_gib: float, problem: Problem, constraints: Constraints, answer: Callable[[Constraints], Found]
) -> Found:
    """The answer among layouts that need less than a run like these has run out of memory with; where none of those
    fits, as if nothing had failed."""
    reserve = problem.cluster.usable_bytes / GIB - failed_gib + ROUNDING
    if reserve > constraints.memory_reserve_gib:
        with suppress(Infeasible):
            return answer(replace(constraints, memory_reserve_gib=reserve))
    return answer(constraints)


def _surely_fit(predictions: Predictions, best: Prediction) -> Array:
    """Which of them fit even at the upper end of their intervals, as wide as that of the best."""
    cluster = predictions.problem.cluster
    margin = (best.needed_high_gib - best.needed_gib) / best.reserved_gib
    high = predictions.needed_bytes + margin * predictions.reserved_bytes
    on_host = predictions.host_bytes * (1 + margin)
    return np.asarray((high <= cluster.usable_bytes) & (on_host <= cluster.host_bytes))


def surely(constraints: Constraints, best: Prediction, probability: float) -> Constraints | None:
    """Under which what is as uncertain as the best fits with that probability: with more memory kept free; or, where it
    is the host that may be too small, without what the best offloads. None where they ask for that."""
    reserve = _reserve_gib(best, probability)
    if best.needed_gib > best.usable_gib - reserve:
        return replace(constraints, memory_reserve_gib=max(constraints.memory_reserve_gib, reserve))
    without = {
        knob: tuple(value for value in constraints.allowed.get(knob, (False,)) if not value) for knob in offloaded(best)
    }
    if not all(without.values()):
        return None
    return replace(constraints, allowed={**constraints.allowed, **without})


def _under(constraints: Constraints, ground: Groundwork, profile: Profile) -> Groundwork:
    """The same problem under these; with only more memory kept free, on what is known already."""
    if constraints.allowed == ground.space.constraints.allowed:
        return ground.reserving(constraints.memory_reserve_gib)
    return Groundwork(Space(ground.problem, constraints), profile)


def _reserve_gib(best: Prediction, probability: float) -> float:
    """With so much kept free, what fits does so with that probability, where it is as uncertain as the best."""
    runtime = best.memory_gib["context_gib"]
    spread = math.log((best.needed_high_gib - runtime) / best.reserved_gib) / Z80
    return left_free(best.usable_gib - runtime, probability, spread)


def offloaded(best: Prediction) -> list[str]:
    return [knob for knob in _OFFLOADS if getattr(best.layout, knob)]
