"""Where the fastest layout may not fit: the fastest that all but surely does."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace

import numpy as np

from models.answer import Answer, Goal, GoOn, NothingFaster
from models.array import Array
from models.candidate import Candidate, candidates
from models.errors import Infeasible
from models.groundwork import Groundwork, NoLegalLayout
from models.hardware import GIB
from models.layout import Layouts
from models.prediction import Prediction
from models.profile import Profile
from models.search import search_on
from models.space import Space
from models.step import Predictions, predict

SURE = 0.9
"""Probability to fit from which nothing surer is looked for: the upper end of an 80% interval fits."""
_ROUNDING = 1e-3
_OFFLOADS = ("offload_activations", "offload_optimizer")


def fastest_sure(
    profile: Profile,
    best: Prediction,
    answer: Answer,
    near: Predictions,
    rows: Array,
    limit_s: float,
    go_on: GoOn,
    failed_gib: float = np.inf,
) -> Candidate | None:
    """The fastest layout that is sure to fit, needs less than what is known to have failed, and takes no more than
    `limit_s`; `near`: predictions of `rows` of the answer, of which the fastest that does leaves less to be searched
    for."""
    known = rows[_surely_fit(near, best) & (near.needed_bytes < failed_gib * GIB)]
    seconds = float(answer.times[known].min(initial=limit_s * (1 + 1e-12)))
    found = [answer.layouts.take(known[answer.times[known] == seconds][:1])]
    with suppress(NothingFaster, NoLegalLayout, Infeasible):
        faster = search_on(_surely(answer.ground, best, failed_gib), Goal(faster_than=seconds), go_on)
        found.insert(0, faster.layouts.take(np.array(faster.ranked[:1])))
    if not sum(map(len, found)):
        return None
    chosen = predict(near.problem, Layouts.concatenate(found), near.meshes.c)
    sure = SURE - _ROUNDING
    surely = (one for one in candidates(chosen, profile) if one.prediction.fit_probability >= sure)
    return next((one for one in surely if one.prediction.needed_gib < failed_gib), None)


def _surely_fit(predictions: Predictions, best: Prediction) -> Array:
    """Which of them fit even at the upper end of their intervals, as wide as that of the best."""
    cluster = predictions.problem.cluster
    margin = (best.needed_high_gib - best.needed_gib) / best.reserved_gib
    high = predictions.needed_bytes + margin * predictions.reserved_bytes
    on_host = predictions.host_bytes * (1 + margin)
    return np.asarray((high <= cluster.usable_bytes) & (on_host <= cluster.host_bytes))


def _surely(ground: Groundwork, best: Prediction, failed_gib: float) -> Groundwork:
    """With as much memory in reserve as the upper end needs, and as leaves out what is known to have failed; where it
    is the host that may be too small, without what the best offloads."""
    space, constraints = ground.space, ground.space.constraints
    reserve = reserve_gib(best) if best.needed_high_gib > best.usable_gib else 0.0
    if best.needed_gib >= failed_gib:
        reserve = max(reserve, best.usable_gib - failed_gib + _ROUNDING)
    if reserve:
        return ground.reserving(max(constraints.memory_reserve_gib, reserve))
    without = {
        knob: tuple(value for value in constraints.allowed.get(knob, (False,)) if not value) for knob in offloaded(best)
    }
    if not all(without.values()):
        raise NoLegalLayout(Counter())
    return Groundwork(Space(space.problem, replace(constraints, allowed={**constraints.allowed, **without})), ground.c)


def reserve_gib(best: Prediction) -> float:
    """With so much kept free, what fits does at the upper end of an interval as wide as that of the best."""
    runtime = best.memory_gib["context_gib"]
    return (best.usable_gib - runtime) * (1 - best.reserved_gib / (best.needed_high_gib - runtime))


def offloaded(best: Prediction) -> list[str]:
    return [knob for knob in _OFFLOADS if getattr(best.layout, knob)]
