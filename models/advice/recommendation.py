"""A recommendation answers "which layout?": the fastest one, the simplest good one, the worth of a
pipeline, and the reasons.

A *bolder* layout is faster and less sure to fit in memory. Whether a pipeline pays is *undecided*
where the uncertainty of step times leaves it open. A *row* is the position of a layout in the
answer of a search.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from models.advice.candidate import Candidate, candidates
from models.advice.divisibility import nearest_lifts
from models.advice.fewer_chips import (
    AnswerOnChips,
    FewerChips,
    fewer_if_faster,
    search_all_else_fewer,
)
from models.advice.more_chips import add_enough_chips
from models.advice.pipelining import (
    Pipelining,
    data_parallel_roofline,
    pipelining_reasons,
    pipelining_verdict,
    undecided_by_divisibility,
)
from models.advice.reason import Figure, Reason
from models.advice.safe_fit import fastest_bolder_layout, solve_avoiding_oom
from models.cost.memory_uncertainty import percent
from models.errors import Infeasible, Invalid
from models.layouts.complexity import TERM_WORDS
from models.layouts.space import Space
from models.prediction.coverage import COMPUTE_TERMS, DECISIVE_SHARE
from models.prediction.prediction import Prediction, host_memory_note, log_ratio_spread
from models.prediction.term_words import TIME_WORDS, in_words, rounded
from models.search.infeasibility import forbidden_schedules, why_none
from models.search.pareto import pareto_front, steps_of
from models.search.result import Certificate, Goal, SearchAnswer, ShouldContinue, run_to_completion
from models.spec.constraints import SAFE_FIT_PROBABILITY, Constraints
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile

_MAX_NEAR_FASTEST = 20_000  # layouts whose free memory is predicted: a bound on the work
# Doing without a pipeline may cost so many tolerances where its worth is undecided.
_UNDECIDED_TOLERANCES = 2
_MUCH_FOR_A_SURER_FIT = 0.1  # of a step: a reason names the cost of a surer fit where it is more
_LEAST_NAMED_SHARE = 0.02  # of a step: a sentence does not name smaller terms
_LEAST_SHOWN = 0.0005  # of a step: less would be shown as 0.0%
_KNOB_OF_TERM = {
    "tensor_s": "tp",
    "context_s": "cp",
    "expert_s": "ep",
    "pipeline_s": "pp",
    "bubble_s": "pp",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The recommended layouts, and the reasons for them.

    `problem` is the one that is answered: the question's, or one with fewer chips where no layout
    uses all or fewer are faster, as `fewer_chips` says. `fastest` is the fastest layout that is as
    sure to fit as the constraints ask, and `simplest` the simplest within the tolerance of it.
    `recommended` is the layout to launch: the simplest, or the fastest without a pipeline where the
    worth of one is undecided and doing without costs at most twice the tolerance. `bolder` is
    faster by at least LEAST_BOLDER_GAIN and less sure: the fastest that fits by the median of its
    memory. `ranked` are the fastest meshes within the tolerance, each with its best policy.

    `front` are layouts within the tolerance that no other beats in time, complexity and free memory
    at once, fastest first. Free memory is counted in steps of 5% of the usable, and compared among
    the layouts that were evaluated; time and complexity are compared among all.

    `tried_fewer` says that there was time to try all numbers of chips that are worth it. The
    `certificate` says whether the search came to its end, and what it left out.
    """

    problem: Problem
    recommended: Candidate
    fastest: Candidate
    simplest: Candidate
    bolder: Candidate | None
    ranked: tuple[Candidate, ...]
    front: tuple[Candidate, ...]
    certificate: Certificate
    reasons: tuple[Reason, ...]
    chips_used: int
    fewer_chips: FewerChips | None
    tried_fewer: bool
    pipelining: Pipelining

    @property
    def layouts(self) -> tuple[Candidate, ...]:
        """Return every layout that is named, once: the recommended one first, the others by step
        time and then by complexity."""
        sides = (self.pipelining.without, self.pipelining.with_pp)
        named = (self.fastest, self.simplest, *self.ranked, *self.front, self.bolder, *sides)
        by_layout = {candidate.prediction.layout: candidate for candidate in named if candidate}
        by_layout.pop(self.recommended.prediction.layout, None)
        others = sorted(
            by_layout.values(),
            key=lambda candidate: (candidate.prediction.step_time_s, candidate.complexity),
        )
        return (self.recommended, *others)

    def of_more_chips(self, num_chips: int, all_chips_s: float) -> Recommendation:
        """Return this recommendation as the answer to a question about `num_chips` chips. An
        earlier comparison found fewer of them to be faster, and only those were searched. On all a
        step takes `all_chips_s` seconds."""
        fewer_chips = FewerChips.that_are_faster(
            self.chips_used, num_chips, self.fastest.prediction.step_time_s, all_chips_s
        )
        # A reason for fewer chips comes first (_reasons), and is replaced.
        reasons = self.reasons[1:] if self.fewer_chips else self.reasons
        return replace(self, fewer_chips=fewer_chips, reasons=(fewer_chips.reason, *reasons))

    @property
    def simplest_gap(self) -> float:
        """Return the cost of simplicity: the step time of the simplest layout over that of the
        fastest, less 1."""
        return _slower_by(self.fastest, self.simplest)

    @property
    def bolder_gain(self) -> float | None:
        """Return the cost of a surer fit: the step time of the fastest layout over that of the
        bolder one, less 1. None without a bolder one."""
        return None if self.bolder is None else _slower_by(self.bolder, self.fastest)


def recommend(
    problem: Problem,
    profile: Profile,
    constraints: Constraints | None = None,
    *,
    tolerance: float = 0.03,
    top: int = 5,
    should_continue: ShouldContinue = run_to_completion,
    oom_gib: float = math.inf,
    untried_bound_s: float = math.inf,
    known: Layouts | None = None,
) -> Recommendation:
    """Return the fastest layout, the simplest within the tolerance of it, and the `top` fastest
    meshes within the tolerance.

    Layouts that need `oom_gib` or more, at which a run of this model, chip and stack ran out of
    memory, are left out, unless no other fits. `known` are layouts on all chips that were found
    before: the search starts from them. `untried_bound_s` is a lower bound of the step time on
    other arrangements of the same chips that there was no time to try.

    Once `should_continue` says no, the answer is the best so far, and its certificate not exact.
    Raise Invalid for a tolerance outside 0 to 1, TooLarge for a space that is too large to search,
    and Infeasible when no layout is legal on any number of chips, or none fits in memory.
    """
    if not 0 <= tolerance <= 1:
        raise Invalid("tolerance", tolerance, "must be between 0 and 1")
    # Both sides: the best layout without a pipeline, and the best with one.
    goal = Goal(tolerance=tolerance, top=top, both_sides=True)

    def recommend_within(space: Space) -> Recommendation:
        """Return the recommendation out of the layouts of a space, or of its parts on fewer
        chips."""
        try:
            solved = search_all_else_fewer(space, profile, goal, should_continue, known)
        except Infeasible as error:
            if error.constraint != "memory":  # more chips help only against a lack of memory
                raise
            raise add_enough_chips(
                error, problem, profile, space.constraints, should_continue
            ) from None
        if math.isfinite(untried_bound_s):
            # An arrangement that was not tried may be as fast as this bound.
            solved = replace(solved, answer=solved.answer.inexact(untried_bound_s))
        if solved.fewer_chips is None:
            solved = fewer_if_faster(solved, profile, goal, should_continue)
        return _recommend_from(solved, profile, tolerance, should_continue)

    return solve_avoiding_oom(
        oom_gib, Space(problem, constraints or Constraints()), recommend_within
    )


def _recommend_from(
    solved: AnswerOnChips, profile: Profile, tolerance: float, should_continue: ShouldContinue
) -> Recommendation:
    """Return the recommendation, with its reasons, that follows from the answer of a search."""
    answer = solved.answer
    problem = solved.space.problem
    shortlist = _shortlist(answer, profile, tolerance, should_continue)
    pipelining = _judge_pipelining(solved, shortlist, profile, tolerance, should_continue)
    recommended = _layout_to_launch(shortlist, pipelining, tolerance)
    return Recommendation(
        problem=problem,
        recommended=recommended,
        fastest=shortlist.fastest,
        simplest=shortlist.simplest,
        bolder=shortlist.bolder,
        ranked=shortlist.ranked,
        front=shortlist.front,
        certificate=answer.certificate,
        reasons=tuple(_reasons(solved, shortlist, recommended, tolerance, pipelining)),
        chips_used=problem.cluster.num_chips,
        fewer_chips=solved.fewer_chips,
        tried_fewer=solved.tried_fewer,
        pipelining=pipelining,
    )


def _layout_to_launch(shortlist: _Shortlist, pipelining: Pipelining, tolerance: float) -> Candidate:
    """Return the layout to launch: the simplest within the tolerance. If it is undecided whether a
    pipeline pays, the best layout without one may cost twice the tolerance, because doing without
    one may as well cost less than predicted."""
    simplest = shortlist.simplest
    without = pipelining.without
    if pipelining.needed != "undecided" or without is None or simplest.prediction.layout.pp == 1:
        return simplest
    is_near = _slower_by(shortlist.fastest, without) <= _UNDECIDED_TOLERANCES * tolerance
    return without if is_near else simplest


# -- which layouts are shown
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shortlist:
    """The layouts of an answer that are shown: those of a Recommendation, and the best ones without
    and with a pipeline. Where `bolder` is None, `bolder_is_known` tells "there is none" (true) from
    "time ran out" (false)."""

    simplest: Candidate
    without: Candidate | None
    with_pp: Candidate | None
    ranked: tuple[Candidate, ...]
    front: tuple[Candidate, ...]
    bolder: Candidate | None
    bolder_is_known: bool

    @property
    def fastest(self) -> Candidate:
        return self.ranked[0]


def _shortlist(
    answer: SearchAnswer, profile: Profile, tolerance: float, should_continue: ShouldContinue
) -> _Shortlist:
    """Return the layouts of an answer that are shown, with their full predictions."""
    front_rows = _front_rows(answer, tolerance)
    sides = [row for row in (answer.without, answer.with_pp) if row is not None]
    rows = list(dict.fromkeys([answer.simplest, *sides, *answer.ranked, *front_rows]))
    shown = answer.layouts.take(np.array(rows))
    bolder = fastest_bolder_layout(answer, should_continue)
    # `bolder` has one layout, or no layout: then there is none, or time ran out.
    bolder_is_known = len(bolder) > 0 or should_continue()
    described = candidates(answer.tables.predict(Layouts.concatenate([shown, bolder])), profile)
    # A bolder layout comes last, behind the rows of the answer, and has no row itself.
    by_row: dict[int | None, Candidate] = dict(zip(rows, described, strict=False))
    fastest_probability = by_row[answer.ranked[0]].prediction.fit_probability
    # Where time ran out before the answer's search saw every layout, this one may be faster and as
    # sure to fit. It is then not bolder.
    is_bolder = len(bolder) > 0 and described[-1].prediction.fit_probability < fastest_probability
    return _Shortlist(
        simplest=by_row[answer.simplest],
        without=by_row.get(answer.without),
        with_pp=by_row.get(answer.with_pp),
        ranked=tuple(by_row[row] for row in answer.ranked),
        front=tuple(by_row[row] for row in front_rows),
        bolder=described[-1] if is_bolder else None,
        bolder_is_known=bolder_is_known,
    )


def _front_rows(answer: SearchAnswer, tolerance: float) -> list[int]:
    """Return the rows of layouts within the tolerance of the fastest that no other beats in time,
    complexity and free memory at once, the fastest first. Only the _MAX_NEAR_FASTEST fastest are
    compared, and the answer's own front (SearchAnswer.front), which leaves memory out. That too is
    within the tolerance, but may have rows behind the first _MAX_NEAR_FASTEST."""
    near = np.flatnonzero(answer.times <= answer.times[0] * (1 + tolerance))
    near = np.union1d(near[:_MAX_NEAR_FASTEST], answer.front)
    needed_bytes = answer.tables.predict(answer.layouts.take(near)).needed_bytes
    usable_bytes = answer.tables.problem.cluster.usable_bytes
    # In steps of 5%, so that a few free bytes more do not bring a layout onto the front.
    free_steps = steps_of(usable_bytes - needed_bytes, usable_bytes)
    front = pareto_front(answer.times[near], answer.complexities[near], free_steps)
    return [int(near[position]) for position in front]


def _judge_pipelining(
    solved: AnswerOnChips,
    shortlist: _Shortlist,
    profile: Profile,
    tolerance: float,
    should_continue: ShouldContinue,
) -> Pipelining:
    """Return the verdict on the best layouts without and with a pipeline. It has the roofline of
    the one without, and nearby numbers of chips or batches that need no pipeline."""
    answer = solved.answer
    without, with_pp = shortlist.without, shortlist.with_pp
    exact = answer.certificate.exact
    missing = None
    if exact and (without is None or with_pp is None):
        # Where a layout without a pipeline exists, the missing one is that with a pipeline.
        missing = why_none(solved.space, with_pipeline=without is not None)
    pipelining = pipelining_verdict(
        without,
        with_pp,
        tolerance=tolerance,
        gap_spread=_gap_spread(answer, profile),
        exact=exact,
        missing=missing,
        forbidden=forbidden_schedules(solved.space.problem),
    )
    # A pipeline may only be needed because numbers divide badly: then a number nearby needs none.
    if pipelining.needed == "yes" and with_pp is not None:
        # nearest_lifts takes this step time as a first guess of that nearby. Where no layout
        # without a pipeline fits, there is nothing to guess from, and infinity means no guess.
        pipeline_s = with_pp.prediction.step_time_s if without else math.inf
        lifted_by = nearest_lifts(solved.space, profile, tolerance, pipeline_s, should_continue)
        pipelining = undecided_by_divisibility(pipelining, lifted_by)
    if without is None:
        return pipelining
    tables = answer.tables
    roofline = data_parallel_roofline(tables.problem, tables.coefficients, without.prediction)
    return replace(pipelining, roofline=roofline)


def _gap_spread(answer: SearchAnswer, profile: Profile) -> float | None:
    """Return the standard deviation of the log ratio of step times of the best layouts without and
    with a pipeline; None where there is only one of them."""
    if answer.without is None or answer.with_pp is None:
        return None
    best = answer.layouts.take(np.array([answer.without, answer.with_pp]))
    return log_ratio_spread(answer.tables.predict(best), profile)


# -- reasons
# --------------------------------------------------------------------------------------------------


def _reasons(
    solved: AnswerOnChips,
    shortlist: _Shortlist,
    recommended: Candidate,
    tolerance: float,
    pipelining: Pipelining,
) -> Iterator[Reason]:
    """Yield the reasons of a recommendation, in the order in which they are read."""
    certificate = solved.answer.certificate
    fastest = shortlist.fastest
    prediction = recommended.prediction
    if solved.fewer_chips:
        yield solved.fewer_chips.reason
    yield _step_time_reason(solved.space, fastest.prediction)
    yield _recommended_reason(fastest, recommended, tolerance, recommended is pipelining.without)
    yield from _interleaving_reasons(prediction)
    yield from pipelining_reasons(pipelining)
    yield _memory_reason(prediction, fastest.prediction)
    yield from _unsafe_fit_reasons(prediction)
    yield from _bolder_reasons(shortlist)
    yield from _unsupported_reasons(prediction)
    if not solved.tried_fewer:
        yield Reason(
            "stopped",
            "Time ran out before it was known whether fewer of the chips are faster: a longer"
            " time_limit_s finds out.",
        )
    if not certificate.exact:
        yield Reason(
            "stopped",
            "The search was stopped: this is the best layout so far. On these chips no layout is"
            f" faster by more than {certificate.gap:.1%}.",
            {"gap": certificate.gap},
        )


def _step_time_reason(space: Space, best: Prediction) -> Reason:
    """Return the reason that names the fastest layout, its step time, and the shares of its
    terms."""
    cluster = space.problem.cluster
    devices_words = ""
    if cluster.num_devices != cluster.num_chips:
        of_each = cluster.num_devices // cluster.num_chips
        devices_words = f", on {cluster.num_chips:,} chips of {of_each} devices each"
    fit_words = f"fits with a probability of {space.constraints.min_fit_probability:.0%} or more"
    shares = {name: seconds / best.step_time_s for name, seconds in best.time.items()}
    largest_first = sorted(shares, key=lambda name: -shares[name])
    parts = [f"{shares['compute_s']:.0%} is compute"] + [
        f"{shares[name]:.0%} {TIME_WORDS[name]}"
        for name in largest_first
        if name != "compute_s" and shares[name] >= _LEAST_NAMED_SHARE
    ]
    sentence = (
        f"The fastest layout that {fit_words} is {best.layout.summary()}{devices_words}: a step"
        f" takes {rounded(best.step_time_s)} s (80% sure: {rounded(best.step_time_low_s)} to"
        f" {rounded(best.step_time_high_s)} s), of which {in_words(parts)}."
    )
    figures = {
        "step_time_s": best.step_time_s,
        "step_time_low_s": best.step_time_low_s,
        "step_time_high_s": best.step_time_high_s,
        **best.time,
    }
    return Reason("fastest", sentence, figures)


def _interleaving_reasons(recommended: Prediction) -> Iterator[Reason]:
    """Yield a reason if the recommended layout interleaves micro-batches in groups of another size
    than pp, which is what frameworks take by default."""
    group = recommended.micro_batch_group  # None unless the schedule is interleaved
    if group in (None, recommended.layout.pp):
        return
    yield Reason(
        "micro_batch_group",
        "The predicted time of the recommended layout assumes micro-batches that are interleaved in"
        f" groups of {group}: set microbatch_group_size_per_vp_stage (Megatron-Core) to {group}."
        f" Its default is pp = {recommended.layout.pp}.",
        {"micro_batch_group": group, "num_micro_batches": recommended.num_micro_batches},
    )


def _recommended_reason(
    fastest: Candidate, recommended: Candidate, tolerance: float, avoids_pipeline: bool
) -> Reason:
    """Return why this layout is recommended instead of the fastest, and what that costs.
    `avoids_pipeline` says that it is the best layout without a pipeline."""
    layout = recommended.prediction.layout
    step_s = rounded(recommended.prediction.step_time_s)
    slower_by = _slower_by(fastest, recommended)
    figures: dict[str, Figure] = {"tolerance": tolerance, "slower_by": slower_by}
    if layout == fastest.prediction.layout:
        sentence = (
            "It is also the recommended one: every simpler layout is more than"
            f" {tolerance:.0%} slower."
        )
        return Reason("recommended", sentence, figures)
    slower = f"{slower_by:.1%} more" if slower_by >= _LEAST_SHOWN else "as much"
    if slower_by > tolerance and avoids_pipeline:
        sentence = (
            f"Recommended is the fastest layout without a pipeline, {layout.summary()}: a step"
            f" takes {step_s} s, {slower}. It is not sure that a pipeline pays, so going without"
            f" may cost twice the tolerance of {tolerance:.0%}."
        )
        return Reason("recommended", sentence, figures)
    sentence = (
        f"Recommended is the simplest that is at most {tolerance:.0%} slower, {layout.summary()}: a"
        f" step takes {step_s} s, {slower}"
    )
    dropped = sorted(fastest.complexity_terms.keys() - recommended.complexity_terms.keys())
    if dropped:
        harder = in_words([TERM_WORDS[name] for name in dropped])
        sentence += f". The fastest is harder to run: it has {harder}"
    return Reason("recommended", f"{sentence}.", figures)


def _slower_by(fastest: Candidate, other: Candidate) -> float:
    """Return the step time of another layout over that of the fastest, less 1."""
    return other.prediction.step_time_s / fastest.prediction.step_time_s - 1


def _memory_reason(recommended: Prediction, fastest: Prediction) -> Reason:
    """Return the reason on the memory of the recommended layout, and of the fastest if that is
    another."""
    sentence = (
        f"The recommended layout needs {recommended.needed_gib:.1f} GiB of memory (80% sure:"
        f" {recommended.needed_low_gib:.1f} to {recommended.needed_high_gib:.1f}) of the"
        f" {recommended.usable_gib:.1f} GiB that a device has{host_memory_note(recommended)}: it"
        f" fits with a probability of {percent(recommended.fit_probability)}"
    )
    figures: dict[str, Figure] = {
        "needed_gib": recommended.needed_gib,
        "needed_low_gib": recommended.needed_low_gib,
        "needed_high_gib": recommended.needed_high_gib,
        "usable_gib": recommended.usable_gib,
        "fit_probability": recommended.fit_probability,
        "stage": recommended.memory_stage,
    }
    if fastest.layout != recommended.layout:
        figures["fastest_needed_gib"] = fastest.needed_gib
        figures["fastest_fit_probability"] = fastest.fit_probability
        sentence += (
            f". The fastest needs {fastest.needed_gib:.1f} GiB and fits with"
            f" {percent(fastest.fit_probability)}"
        )
    return Reason("memory", f"{sentence}.", figures)


def _unsafe_fit_reasons(recommended: Prediction) -> Iterator[Reason]:
    """Yield a reason if the recommended layout may not fit, since the request allows that. It says
    what to ask for instead."""
    if recommended.fit_probability >= SAFE_FIT_PROBABILITY:
        return
    # If a device almost surely has enough memory, what may not fit is the memory of the host.
    if recommended.needed_high_gib <= recommended.usable_gib:
        knobs = " and ".join(
            f"constraints.{knob} = false"
            for knob in ("offload_activations", "offload_optimizer")
            if getattr(recommended.layout, knob)
        )
        yield Reason(
            "fit",
            f"Hosts may be too small for what the recommended layout offloads: {knobs} asks for the"
            " fastest layout without offload.",
        )
        return
    yield Reason(
        "fit",
        "The recommended layout may not fit: constraints.min_fit_probability ="
        f" {SAFE_FIT_PROBABILITY:g}, the default, asks for layouts that fit more surely.",
    )


def _bolder_reasons(shortlist: _Shortlist) -> Iterator[Reason]:
    """Yield a reason if a layout that is less sure to fit is much faster, or if there was no time
    to find out."""
    if shortlist.bolder is None:
        if not shortlist.bolder_is_known:
            yield Reason(
                "stopped",
                "Time ran out before it was known whether a layout that is less sure to fit would"
                " be faster: a longer time_limit_s finds out.",
            )
        return
    best = shortlist.fastest.prediction
    bolder = shortlist.bolder.prediction
    gain = _slower_by(shortlist.bolder, shortlist.fastest)
    if gain <= _MUCH_FOR_A_SURER_FIT:
        return
    yield Reason(
        "bolder",
        f"A bolder layout, {bolder.layout.summary()}, would take {rounded(bolder.step_time_s)} s a"
        f" step instead of {rounded(best.step_time_s)} s, but runs out of memory with a probability"
        f" of {percent(1 - bolder.fit_probability)}.",
        {
            "gain": gain,
            "step_time_s": bolder.step_time_s,
            "fit_probability": bolder.fit_probability,
        },
    )


def _unsupported_reasons(recommended: Prediction) -> Iterator[Reason]:
    """Yield a reason if large terms of the recommended layout's step rest on data sheets alone,
    without any run."""
    evidence = recommended.provenance.terms
    least_s = DECISIVE_SHARE * recommended.step_time_s
    unsupported = [
        name
        for name, seconds in recommended.time.items()
        if seconds >= least_s and evidence[name].ground == "data_sheet"
    ]
    if not unsupported:
        return
    words = in_words([TIME_WORDS[name] for name in unsupported])
    # Compute needs runs on these chips, other terms runs on them or with this framework.
    is_compute_alone = not set(unsupported) - COMPUTE_TERMS
    shown_by = "on a chip of this generation"
    if not is_compute_alone:
        shown_by += " or with this framework"
    sentence = (
        f"The predicted time of {words} rests on data sheets alone: no published run {shown_by}"
        " confirms it. Measure a few steps before you rely on it"
    )
    # The degrees that cause these terms, such as tp for tensor_s; with degree 1 a term is gone.
    knobs = dict.fromkeys(_KNOB_OF_TERM[name] for name in unsupported if name in _KNOB_OF_TERM)
    if knobs:
        without = " and ".join(f"constraints.{knob} = 1" for knob in knobs)
        sentence += f". {without} asks for the fastest layout without it"
    figures = {name: recommended.time[name] for name in unsupported}
    yield Reason("unsupported", f"{sentence}.", figures)
