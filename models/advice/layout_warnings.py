"""Layout warnings: facts about a layout that a reviewer would raise before it is launched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from models.advice.single_changes import (
    Outcome,
    outcome_if_legal,
    outcomes,
    value_in_words,
)
from models.calibration.residual_diagnosis import COMMUNICATION
from models.cost.memory_uncertainty import percent
from models.cost.predictions import TIME_TERMS
from models.layouts.complexity import complexity_terms
from models.layouts.neighbours import neighbours
from models.prediction.prediction import Prediction
from models.prediction.term_words import rounded
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile
from models.spec.stack import Stack

_LEAST_EXPOSED_SHARE = 0.1  # of a step: a term that takes more is worth a warning
_LEAST_BUBBLE_SHARE = 0.2  # of a step: a larger bubble is worth a warning
_FREE = 0.01  # of a step: a change that costs less counts as free
_LEAST_SAVED_GIB = 1.0  # a change that frees less is not worth a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutWarning:
    """A fact about a layout: a code to program against, the figures behind it, and a sentence."""

    code: str
    numbers: Mapping[str, float]
    message: str


@dataclass(frozen=True)
class _Review:
    """A legal layout with its prediction."""

    problem: Problem
    profile: Profile
    prediction: Prediction

    @property
    def layout(self) -> Layout:
        return self.prediction.layout

    def share(self, term: str) -> float:
        """Return the share of a step that a term takes."""
        return self.prediction.time[term] / self.prediction.step_time_s

    def outcome_of(self, layout: Layout) -> Outcome | None:
        """Return the predicted outcome of another layout; None if that layout is not legal."""
        return outcome_if_legal(self.problem, self.profile, layout)

    def seconds_saved_with(self, stack: Stack) -> float:
        """Return the seconds that a step of the layout saves with another stack (the same software,
        set otherwise)."""
        (outcome,) = outcomes(replace(self.problem, stack=stack), self.profile, [self.layout])
        return self.prediction.step_time_s - outcome.step_time_s


def layout_warnings(
    problem: Problem, profile: Profile, prediction: Prediction
) -> list[LayoutWarning]:
    """Return the warnings about a legal layout, whose prediction was made with this profile."""
    review = _Review(problem, profile, prediction)
    return [warning for check in _CHECKS for warning in check(review)]


def _axes_across_domains(review: _Review) -> Iterator[LayoutWarning]:
    """Yield a warning for tensor and for expert parallelism where it leaves the scale-up domain."""
    domain = review.problem.cluster.scale_up_domain
    for axis, parallelism, term in (("tp", "tensor", "tensor_s"), ("ep", "expert", "expert_s")):
        if not _crosses_domains(review.problem, review.layout, parallelism):
            continue
        factors = {axis: getattr(review.layout, axis), **_degrees_inside(review.layout, axis)}
        yield LayoutWarning(
            code=f"{parallelism}_across_domains",
            numbers={**factors, "scale_up_domain": domain, "share": review.share(term)},
            message=(
                f"{_span_in_words(factors, domain)}: {parallelism}-parallel traffic crosses the"
                " network between"
                f" domains, and what of it is not hidden takes {review.share(term):.0%} of the step"
                f"{_change_that_stays_inside(review, axis, parallelism)}"
            ),
        )


def _crosses_domains(problem: Problem, layout: Layout, parallelism: str) -> bool:
    """Return whether groups of "tensor" or "expert" parallelism lie in several scale-up domains.
    This is read off the points of complexity that such layouts get for it."""
    points = complexity_terms(problem, Layouts.of([layout]))
    return bool(points[f"{parallelism}_across_domains"][0])


def _degrees_inside(layout: Layout, axis: str) -> dict[str, int]:
    """Return the degrees above 1 of the axes that are placed inside this one, "tp" or "ep". Their
    product is the distance, in devices, between neighbours of this axis."""
    # Whatever the placement, only experts' tensor parallelism lies inside expert parallelism.
    placement = [*layout.placement]
    inside = placement[: placement.index("tp")] if axis == "tp" else ["etp"]
    degrees = {name: getattr(layout, name) for name in inside}
    return {name: degree for name, degree in degrees.items() if degree > 1}


def _span_in_words(factors: Mapping[str, int], domain: int) -> str:
    """Return words on how the devices of an axis lie across domains, such as "ep(8) * etp(2) = 16
    devices reach beyond the scale-up domain (NVLink or the like) of 8 devices". `factors` are the
    degrees that make up the span."""
    span = math.prod(factors.values())
    product = " * ".join(f"{name}({degree})" for name, degree in factors.items())
    is_single = len(factors) == 1
    whole = product if is_single else f"{product} = {span} devices"
    if span > domain:
        verb = "reaches beyond" if is_single else "reach beyond"
    else:
        verb = "does not divide" if is_single else "do not divide"
    return f"{whole} {verb} the scale-up domain (NVLink or the like) of {domain} devices"


def _change_that_stays_inside(review: _Review, axis: str, parallelism: str) -> str:
    """Return words on the change of one knob that keeps an axis ("tp" of "tensor" parallelism, "ep"
    of "expert") inside a domain and surely fits; empty where there is none. First tried are the
    degrees of axes placed inside this one, since they space out its ranks, then the placement,
    then the axis itself."""
    variants = neighbours(review.problem, review.layout)
    for knob in (*_degrees_inside(review.layout, axis), "placement", axis):
        inside = [
            layout
            for name, layout in variants
            if name == knob and not _crosses_domains(review.problem, layout, parallelism)
        ]
        predicted = zip(inside, outcomes(review.problem, review.profile, inside), strict=True)
        step_times = {
            layout: outcome.step_time_s for layout, outcome in predicted if outcome.is_safe
        }
        if not step_times:
            continue
        layout = min(step_times, key=lambda layout: step_times[layout])
        saved_s = review.prediction.step_time_s - step_times[layout]
        return (
            f"; {knob} {value_in_words(getattr(layout, knob))} keeps it inside a domain, and a step"
            f" takes {abs(saved_s):.2g} s {'less' if saved_s > 0 else 'longer'}"
        )
    return ""


def _few_micro_batches(review: _Review) -> Iterator[LayoutWarning]:
    """Yield a warning if a step has fewer micro-batches than pipeline stages."""
    micro_batches = review.prediction.num_micro_batches
    pp = review.layout.pp
    if micro_batches >= pp:
        return
    yield LayoutWarning(
        code="few_micro_batches",
        numbers={"micro_batches": micro_batches, "pp": pp},
        message=(
            f"{micro_batches} micro-batches for pp({pp}) stages: some stages have nothing to do at"
            " any time. Smaller micro-batches, fewer stages or a larger global batch fill them"
        ),
    )


def _exposed_communication(review: _Review) -> Iterator[LayoutWarning]:
    """Yield a warning for each kind of communication that takes much of the step unhidden, the
    largest first."""
    for term in sorted(COMMUNICATION, key=review.share, reverse=True):
        if review.share(term) <= _LEAST_EXPOSED_SHARE:
            continue
        seconds = review.prediction.time[term]
        yield LayoutWarning(
            code=f"exposed_{term.removesuffix('_s')}",
            numbers={"seconds": seconds, "share": review.share(term)},
            message=(
                f"{review.share(term):.0%} of the step ({rounded(seconds)} s) is"
                f" {TIME_TERMS[term]}: no compute runs beside it"
            ),
        )


def _large_bubble(review: _Review) -> Iterator[LayoutWarning]:
    """Yield a warning if the pipeline bubble takes much of the step."""
    if review.share("bubble_s") <= _LEAST_BUBBLE_SHARE:
        return
    micro_batches = review.prediction.num_micro_batches
    yield LayoutWarning(
        code="large_bubble",
        numbers={
            "seconds": review.prediction.time["bubble_s"],
            "share": review.share("bubble_s"),
            "micro_batches": micro_batches,
            "pp": review.layout.pp,
        },
        message=(
            f"stages are idle for {review.share('bubble_s'):.0%} of the step: {micro_batches}"
            f" micro-batches fill and drain pp({review.layout.pp}) stages"
        ),
    )


def _unneeded_recompute(review: _Review) -> Iterator[LayoutWarning]:
    """Yield a warning if the layout recomputes, but would surely fit and be faster without."""
    if review.layout.recompute == "none":
        return
    without = review.outcome_of(
        replace(review.layout, recompute="none", recompute_modules=(), recompute_layers=0)
    )
    if without is None or not without.is_safe:
        return
    saved_s = review.prediction.step_time_s - without.step_time_s
    if saved_s <= 0:  # to offload activations may take longer than to compute them again
        return
    yield LayoutWarning(
        code="unneeded_recompute",
        numbers={"saved_s": saved_s, "fit_probability": without.fit_probability},
        message=(
            f"recompute is not needed: without it the layout fits with a probability of"
            f" {percent(without.fit_probability)}, and a step takes {rounded(saved_s)} s less"
        ),
    )


def _without_sequence_parallelism(review: _Review) -> Iterator[LayoutWarning]:
    """Yield a warning if tensor parallelism runs without sequence parallelism, though it is
    legal."""
    if review.layout.tp == 1 or review.layout.sequence_parallel:
        return
    with_it = review.outcome_of(replace(review.layout, sequence_parallel=True))
    if with_it is None:
        return
    saved_gib = review.prediction.needed_gib - with_it.needed_gib
    saved_s = review.prediction.step_time_s - with_it.step_time_s
    yield LayoutWarning(
        code="no_sequence_parallelism",
        numbers={"tp": review.layout.tp, "saved_s": saved_s, "saved_gib": saved_gib},
        message=(
            f"sequence parallelism is off with tp({review.layout.tp}): every tensor-parallel rank"
            " keeps and works on the same norms and residuals. With it a device needs"
            f" {saved_gib:.1f} GiB less"
        ),
    )


def _replicated_states(review: _Review) -> Iterator[LayoutWarning]:
    """Yield a warning if optimizer states that are replicated could be sharded at no cost in
    time."""
    layout = review.layout
    if layout.dp_replicate == 1:
        return
    # The lowest stage that shards optimizer states without taking back what the layout shards.
    stages = [
        stage for stage in review.problem.stack.zero_stages if stage >= max(layout.zero_stage, 1)
    ]
    if not stages:
        return
    sharded = review.outcome_of(
        replace(layout, zero_stage=min(stages), dp_replicate=1, dp_shard=layout.dp)
    )
    if sharded is None:
        return
    saved_gib = review.prediction.needed_gib - sharded.needed_gib
    slower = sharded.step_time_s / review.prediction.step_time_s - 1
    if slower > _FREE or saved_gib < _LEAST_SAVED_GIB:
        return
    yield LayoutWarning(
        code="replicated_optimizer_states",
        numbers={
            "dp_replicate": layout.dp_replicate,
            "saved_gib": saved_gib,
            "saved_s": review.prediction.step_time_s - sharded.step_time_s,
        },
        message=(
            f"optimizer states are kept {layout.dp_replicate} times over: sharding them over all"
            f" {layout.dp} data-parallel ranks (ZeRO {min(stages)}) frees {saved_gib:.1f} GiB of"
            " each device and costs no time"
        ),
    )


def _looped_experts(review: _Review) -> Iterator[LayoutWarning]:
    """Yield a warning if Python goes through experts one by one, and that takes much of the
    step."""
    stack = review.problem.stack
    if not review.problem.architecture.is_moe or not stack.calls_expert_modules:
        return
    saved_s = review.seconds_saved_with(replace(stack, experts_at_once=True))
    share = saved_s / review.prediction.step_time_s
    if share <= _LEAST_EXPOSED_SHARE:
        return
    gathered, cure = "", ""
    numbers = {"saved_s": saved_s, "share": share}
    if stack.gathers_experts_apart and review.layout.zero_stage == 3:
        # DeepSpeed then gathers a sparse layer as one leaf, and still runs its experts in turn.
        as_leaves_s = review.seconds_saved_with(replace(stack, expert_loop="modules"))
        numbers["saved_as_leaves_s"] = as_leaves_s
        gathered = ", and ZeRO 3 gathers each of their matrices by itself"
        cure = (
            "; with deepspeed.utils.set_z3_leaf_modules, which gathers a layer at a time, it takes"
            f" {rounded(as_leaves_s)} s less"
        )
    yield LayoutWarning(
        code="looped_experts",
        numbers=numbers,
        message=(
            f"Python goes through experts one by one{gathered}: multiplied all at once"
            ' (transformers 5, experts_implementation="grouped_mm") a step takes'
            f" {rounded(saved_s)} s less{cure}"
        ),
    )


_CHECKS: tuple[Callable[[_Review], Iterator[LayoutWarning]], ...] = (
    _axes_across_domains,
    _few_micro_batches,
    _exposed_communication,
    _large_bubble,
    _unneeded_recompute,
    _without_sequence_parallelism,
    _replicated_states,
    _looped_experts,
)
