"""The answer to "which layout?": the fastest, the simplest good one, what pipelining is worth, and
why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from models.advice.candidate import Candidate, candidates
from models.advice.fewer_chips import (
    FasterOnFewer,
    FewerChips,
    faster_with_fewer,
    search_all_or_fewer,
)
from models.advice.more_chips import with_enough_chips
from models.advice.pipelining import Pipelining, pipelined, roofline, unhidden
from models.advice.safe_fit import SURE, avoiding, fastest_sure, offloaded
from models.columns import Array
from models.errors import Infeasible, Invalid
from models.layouts.complexity import TERM_WORDS
from models.layouts.space import Space
from models.prediction.coverage import DECISIVE
from models.prediction.prediction import Prediction, on_host
from models.search.infeasibility import forbidden_schedules, why_none
from models.search.pareto import pareto_front, steps_of
from models.search.result import Answer, Certificate, Goal, ShouldContinue, run_to_completion
from models.spec.constraints import Constraints
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile

_MOST_WEIGHED = 20_000  # of the fastest, for free memory
_ALL_BUT_SURE = 0.99
_KNOB_OF = {
    "tensor_s": "tp",
    "context_s": "cp",
    "expert_s": "ep",
    "pipeline_s": "pp",
    "bubble_s": "pp",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """`problem` is the one answered: the question's, or with fewer chips where no layout uses all.
    `simplest_gap`: what simplicity costs, time of the simplest / time of the fastest - 1.
    `tried_fewer`: there was time for all numbers of chips that are worth a try, so that none of
    these but `faster_on_fewer` is faster.

    `surer`: where the fastest may not fit, the fastest within the tolerance that all but surely
    does.

    `front`: layouts within the tolerance that no other beats in time, complexity and free memory
    (in steps of 5% of the usable) at once, fastest first. Of all layouts in time and complexity; in
    free memory of those that were evaluated.
    """

    problem: Problem
    fastest: Candidate
    simplest: Candidate
    surer: Candidate | None
    ranked: tuple[Candidate, ...]
    front: tuple[Candidate, ...]
    certificate: Certificate
    reasons: tuple[str, ...]
    chips_used: int
    fewer_chips: FewerChips | None
    faster_on_fewer: FasterOnFewer | None
    tried_fewer: bool
    pipelining: Pipelining

    @property
    def simplest_gap(self) -> float:
        return _slower_by(self.fastest, self.simplest)


def recommend(
    problem: Problem,
    profile: Profile,
    constraints: Constraints | None = None,
    *,
    tolerance: float = 0.03,
    top: int = 5,
    should_continue: ShouldContinue = run_to_completion,
    failed_gib: float = math.inf,
    left_out_s: float = math.inf,
    known: Layouts | None = None,
) -> Recommendation:
    """The fastest and the simplest good layout, of those that need less than `failed_gib`, with
    which a run like these has run out of memory, if any does. `left_out_s`: what a step takes at
    least on others of the chips that were asked about, where there was no time to try all. `known`:
    layouts on all chips that were found before.

    `ranked` are the `top` fastest meshes within the tolerance, each with its best policy. Once
    `should_continue` says no, the answer is the best so far, and its certificate not exact. Raises Infeasible
    when no layout is legal on any number of chips, or none fits in memory.
    """
    if not 0 <= tolerance <= 1:
        raise Invalid("tolerance", tolerance, "must be between 0 and 1")
    goal = Goal(tolerance=tolerance, top=top, both_sides=True)
    return avoiding(
        failed_gib,
        problem,
        constraints or Constraints(),
        lambda heeded: _found(
            Space(problem, heeded), profile, goal, should_continue, left_out_s, known
        ),
    )


def _found(
    whole: Space,
    profile: Profile,
    goal: Goal,
    should_continue: ShouldContinue,
    left_out_s: float,
    known: Layouts | None,
) -> Recommendation:
    """The answer in this space, as to memory by what is predicted."""
    try:
        space, answer, fewer = search_all_or_fewer(whole, profile, goal, should_continue, known)
    except Infeasible as error:
        if error.constraint != "memory":
            raise
        raise with_enough_chips(
            error, whole.problem, profile, whole.constraints, should_continue
        ) from None
    if math.isfinite(left_out_s):
        answer = answer.inexact(left_out_s)
    problem, tolerance = space.problem, goal.tolerance
    best = [row for row in (answer.without, answer.with_pp) if row is not None]
    near = _near(answer, tolerance)
    weighed = np.union1d(near, [answer.simplest, *best, *answer.ranked])
    predictions = answer.ground.predict(answer.layouts.take(weighed))
    front = _front(answer, near, predictions.needed_bytes[np.searchsorted(weighed, near)])
    rows = list(dict.fromkeys([answer.simplest, *best, *answer.ranked, *front]))
    shown = predictions.take(np.searchsorted(weighed, rows))
    sure = fastest_sure(
        answer, predictions, weighed, float(answer.times[0]) * (1 + tolerance), should_continue
    )
    if len(sure):
        shown = answer.ground.predict(Layouts.concatenate([shown.layouts, sure]))
    found = candidates(shown, profile)
    chosen, surer = dict(zip(rows, found, strict=False)), found[-1] if len(sure) else None
    fastest, simplest = chosen[answer.ranked[0]], chosen[answer.simplest]
    pipelining = _pipelining(space, answer, chosen, tolerance)
    if answer.without is not None:
        without = predictions.take(np.searchsorted(weighed, [answer.without]))
        pipelining = replace(pipelining, roofline=roofline(without, chosen[answer.without]))
    seconds = float(answer.times[0])
    faster, tried_fewer = (
        (None, True) if fewer else faster_with_fewer(space, profile, seconds, should_continue)
    )
    return Recommendation(
        problem=problem,
        fastest=fastest,
        simplest=simplest,
        surer=surer,
        ranked=tuple(chosen[row] for row in answer.ranked),
        front=tuple(chosen[row] for row in front),
        certificate=answer.certificate,
        reasons=(
            *_reasons(fastest, simplest, surer, tolerance, answer, pipelining, fewer),
            *_standing_in_the_way(faster, tried_fewer, seconds, problem),
        ),
        chips_used=problem.cluster.num_chips,
        fewer_chips=fewer,
        faster_on_fewer=faster,
        tried_fewer=tried_fewer,
        pipelining=pipelining,
    )


def _pipelining(
    space: Space, answer: Answer, chosen: Mapping[int, Candidate], tolerance: float
) -> Pipelining:
    """The verdict, by the candidates that rows of the answer are, and why a side has none."""
    sides = [None if row is None else chosen[row] for row in (answer.without, answer.with_pp)]
    exact = answer.certificate.exact
    missing = why_none(space, piped=sides[0] is not None) if None in sides and exact else None
    forbidden = forbidden_schedules(space.problem)
    return pipelined(*sides, tolerance=tolerance, exact=exact, missing=missing, forbidden=forbidden)


def _near(answer: Answer, tolerance: float) -> Array:
    """Rows of what was evaluated within the tolerance."""
    near = np.flatnonzero(answer.times <= answer.times[0] * (1 + tolerance))[:_MOST_WEIGHED]
    return np.union1d(near, answer.front)


def _front(answer: Answer, near: Array, needed_bytes: Array) -> list[int]:
    usable = answer.ground.problem.cluster.usable_bytes
    free = steps_of(usable - needed_bytes, usable)
    return [
        int(near[row]) for row in pareto_front(answer.times[near], answer.complexities[near], free)
    ]


def _reasons(
    fastest: Candidate,
    simplest: Candidate,
    surer: Candidate | None,
    tolerance: float,
    answer: Answer,
    pipelining: Pipelining,
    fewer: FewerChips | None,
) -> tuple[str, ...]:
    best, time = fastest.prediction, fastest.prediction.time
    compute = time["compute_s"] / best.step_time_s
    exposed = sorted(
        ((v, k) for k, v in time.items() if k != "compute_s" and v > 0.005 * best.step_time_s),
        reverse=True,
    )
    lost = ", ".join(f"{name} {value / best.step_time_s:.1%}" for value, name in exposed)
    seconds = (
        f"{best.step_time_s:.3g} s a step ({best.step_time_low_s:.3g} to"
        f" {best.step_time_high_s:.3g})"
    )
    reasons = [
        f"fastest: {best.layout.summary()}: {seconds}; compute is {compute:.0%} of it; the rest:"
        f" {lost or 'little'}"
    ]
    if best.micro_batch_group not in (None, best.layout.pp):
        groups = (
            f"its {best.num_micro_batches} micro-batches pass each chunk in groups of"
            f" {best.micro_batch_group}"
        )
        reasons.append(
            f"{groups}, not of pp: a size to be set (microbatch_group_size_per_vp_stage of"
            " Megatron-Core)"
        )
    if simplest.prediction.layout == best.layout:
        reasons.append(f"it is also the simplest of the layouts within {tolerance:.0%}")
    else:
        cost = _slower_by(fastest, simplest)
        dropped = sorted(fastest.complexity_terms.keys() - simplest.complexity_terms.keys())
        without = f", without {', '.join(TERM_WORDS[name] for name in dropped)}" if dropped else ""
        chance = simplest.prediction.fit_probability
        unsure = "" if chance >= SURE else f"; it fits with a probability of {_percent(chance)}"
        named = f"{simplest.prediction.layout.summary()}, {cost:.2%} slower{without}{unsure}"
        reasons.append(f"simplest within {tolerance:.0%}: {named}")
    reasons += [f"pipelining: {pipelining.verdict}", *unhidden(pipelining)]
    reasons.append(
        f"memory: {best.needed_gib:.1f} ({best.needed_low_gib:.1f} to {best.needed_high_gib:.1f})"
        f" of {best.usable_gib:.1f} GiB on stage {best.memory_stage}{on_host(best)}: it fits with a"
        f" probability of {_percent(best.fit_probability)}"
    )
    reasons += _fitting(best, surer, answer.certificate.exact)
    reasons += _unsupported(best)
    if fewer:
        reasons.append(fewer.message)
    if not answer.certificate.exact:
        gap = answer.certificate.gap
        none_faster = f"on these chips none is faster by more than {gap:.1%}"
        reasons.append(f"the search was stopped: this is the best so far, and {none_faster}")
    return tuple(reasons)


def _slower_by(fastest: Candidate, other: Candidate) -> float:
    """How much longer a step of another takes, relative to the fastest."""
    return other.prediction.step_time_s / fastest.prediction.step_time_s - 1


def _fitting(best: Prediction, surer: Candidate | None, exact: bool) -> list[str]:
    """What to launch where the fastest may not fit."""
    if best.fit_probability >= SURE:
        return []
    if surer is not None:
        other = surer.prediction
        cost = other.step_time_s / best.step_time_s - 1
        return [
            f"surer to fit ({_percent(other.fit_probability)}): {other.layout.summary()},"
            f" {cost:.2%} slower"
        ]
    if best.needed_high_gib <= best.usable_gib:  # it is the host that may be too small
        knobs = " and ".join(f"constraints.{knob} = false" for knob in offloaded(best))
        return [
            f"its host may be too small for what it offloads: {knobs} asks for the fastest layout"
            " without"
        ]
    nothing = "nothing" if exact else "nothing that was evaluated"
    return [
        f"{nothing} within the tolerance fits with a probability of {SURE:.0%}:"
        f" constraints.min_fit_probability = {SURE:g} asks for the fastest layout that does,"
        " whatever it costs"
    ]


def _unsupported(best: Prediction) -> list[str]:
    """Of what decides the step, the terms that no run supports."""
    terms = best.provenance.terms
    unseen = [
        name
        for name, seconds in best.time.items()
        if seconds >= DECISIVE * best.step_time_s and terms[name].ground == "data_sheet"
    ]
    if not unseen:
        return []
    knobs = dict.fromkeys(_KNOB_OF[name] for name in unseen if name in _KNOB_OF)
    without = " and ".join(f"constraints.{knob} = 1" for knob in knobs)
    asks = f"; {without} asks for the fastest layout without" if without else ""
    return [
        f"evidence: no run on such chips or this stack had {' or '.join(unseen)}, which rest on"
        f" priors{asks}"
    ]


def _percent(probability: float) -> str:
    """Rounded down, so that what is shown as 90% is."""
    return (
        f"{math.floor(100 * probability)}%"
        if probability <= _ALL_BUT_SURE
        else f"more than {_ALL_BUT_SURE:.0%}"
    )


def _standing_in_the_way(
    faster: FasterOnFewer | None, tried_fewer: bool, seconds: float, problem: Problem
) -> list[str]:
    """Where a number of chips divides in few ways, the job may be faster without some of them."""
    if faster is None:
        late = "time ran out before it was known whether the job is faster on fewer of the chips"
        return [] if tried_fewer else [late]
    times = f"{faster.step_time_s:.5g} s a step against {seconds:.5g} s"
    knobs = [
        "num_chips",
        *["chips_per_domain"] * ((problem.cluster.chips_per_domain or 0) > faster.num_chips),
    ]
    other = " and ".join(f"cluster.{knob} = {faster.num_chips}" for knob in knobs)
    return [
        f"{faster.num_chips} chips would be faster: {times}; this answer, and whether it needs a"
        f" pipeline, is of all chips: {other} asks for the other"
    ]
