"""Pipelining answers whether a pipeline is needed: it compares the best layouts without and with
one, and says where the difference comes from.

The *gap* is the step time of the best layout without a pipeline over that of the best with one,
less 1. The two *sides* are the layouts without a pipeline and those with one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Literal

from models.advice.candidate import Candidate
from models.advice.divisibility import Lift
from models.advice.reason import Reason
from models.cost.layout_parts import LayoutParts
from models.prediction.prediction import Prediction
from models.prediction.term_words import TIME_WORDS, in_words, rounded
from models.spec.flops import model_flops
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Z80, Coefficients

_MOST_TERMS = 4  # named in a sentence: more are not read
_WORTH_NAMING = 0.1  # of the largest term: a sentence does not name smaller ones
_WORTH_SAYING = 0.02  # of a step: a sentence does not speak of less
_LEAST_SPREAD = 1e-9  # keeps the quotient finite where the gap is known exactly

Need = Literal["yes", "no", "undecided", "unknown"]
"""The answer to whether a pipeline is needed. It is "undecided" where its worth is not known well
enough, or where only the divisibility of chips and batch asks for one. It is "unknown" where the
search was stopped, or where there is no layout without a pipeline, or none with one, and the
constraints may be why."""

_TOSS_UP = 0.1  # on either side of even: such a probability decides nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The roofline tells whether compute can hide data-parallel traffic without a pipeline. It can
    where

        tokens · flops_per_token / flops_s  >=  bytes / bytes_s

    All figures are those of one step on one device. The device computes `tokens` at the predicted
    rate `flops_s` of its kernels. It gathers parameters and reduces gradients, `bytes` in all, at
    the rate `bytes_s` of the data-parallel groups, latencies included. With `tokens_needed` both
    sides are equal. The public scaling book states this per layer (jax-ml/scaling-book,
    training.md).
    """

    tokens: float
    flops_per_token: float
    flops_s: float
    bytes: float
    bytes_s: float
    tokens_needed: float


def is_above(gap: float, tolerance: float) -> bool:
    """Return whether a pipeline is predicted to be worth more than the tolerance. Thresholds and
    crossings lie where this changes.

    `gap` is the step time of the best layout without a pipeline over that of the best with one,
    less 1. It is infinite where only layouts with a pipeline fit, and -1 where only layouts without
    one do.
    """
    return gap > tolerance


def gap_interval(gap: float, spread: float) -> tuple[float, float]:
    """Return the central 80% interval of a gap; `spread` is the standard deviation of log(1 +
    gap)."""
    factor = math.exp(Z80 * spread)
    return (1 + gap) / factor - 1, (1 + gap) * factor - 1


def need_by_gap(gap: float, spread: float, tolerance: float) -> Need:
    """Return whether a pipeline is needed: whether the gap is above the tolerance. It is undecided
    where the tolerance lies in the gap's 80% interval. `spread` is the standard deviation of
    log(1 + gap). All verdicts and frontiers use this definition."""
    if math.isinf(gap) or gap == -1:  # only one side has layouts (is_above)
        return "yes" if gap > 0 else "no"
    low, high = gap_interval(gap, spread)
    if low <= tolerance < high:
        return "undecided"
    return "yes" if is_above(gap, tolerance) else "no"


def probability_above(gap: float, spread: float, tolerance: float) -> float:
    """Return the probability that the gap is above the tolerance. log(1 + gap) is normal, with the
    standard deviation `spread`."""
    if math.isinf(gap) or gap == -1:  # only one side has layouts (is_above)
        return float(gap > 0)
    beyond = math.log1p(gap) - math.log1p(tolerance)
    return NormalDist().cdf(beyond / max(spread, _LEAST_SPREAD))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelining:
    """The best layouts without and with a pipeline, and the verdict on them.

    `gap` is the step time without a pipeline over that with one, less 1, and `gap_low` and
    `gap_high` are its central 80% interval. `split` has the seconds without minus the seconds with,
    by term of the step. `needed_probability` is the probability that the gap is above the
    tolerance; None where `needed` is "unknown". `lifted_by` are values nearby of the chips or the
    batch with which no pipeline is needed, where only their divisibility asks for one. `forbidden`
    are the schedules of the stack that the training recipe rules out when there is more than one
    micro-batch.
    """

    without: Candidate | None
    with_pp: Candidate | None
    gap: float | None = None
    gap_low: float | None = None
    gap_high: float | None = None
    needed: Need
    needed_probability: float | None = None
    split: dict[str, float] = field(default_factory=dict)
    verdict: str
    lifted_by: tuple[Lift, ...] = ()
    forbidden: tuple[str, ...] = ()
    roofline: Roofline | None = None


def data_parallel_roofline(
    problem: Problem, coefficients: Coefficients, prediction: Prediction
) -> Roofline | None:
    """Return the roofline of a predicted layout without a pipeline: how many tokens a device must
    compute in a step to hide its data-parallel traffic. None for a layout without such traffic."""
    traffic_s, traffic_bytes = _data_parallel_traffic(problem, prediction.layout, coefficients)
    if not traffic_s:
        return None
    tokens = problem.workload.tokens / problem.cluster.num_devices
    step_flops = model_flops(problem.architecture, problem.workload)
    flops_per_token = step_flops / problem.workload.tokens
    flops_s = tokens * flops_per_token / prediction.time["compute_s"]
    # With `tokens_needed` compute takes exactly as long as the traffic.
    return Roofline(
        tokens=tokens,
        flops_per_token=flops_per_token,
        flops_s=flops_s,
        bytes=traffic_bytes,
        bytes_s=traffic_bytes / traffic_s,
        tokens_needed=traffic_s * flops_s / flops_per_token,
    )


def _data_parallel_traffic(
    problem: Problem, layout: Layout, coefficients: Coefficients
) -> tuple[float, float]:
    """Return (seconds, bytes) of a device's data-parallel traffic in a step, if nothing of it were
    hidden: parameters that it gathers, and gradients that it reduces."""
    # Parameters are gathered, and gradients reduced, over the ranks of dp and cp together.
    if layout.dp * layout.cp == 1:
        return 0.0, 0.0
    parts = LayoutParts.of(problem, layout, coefficients)
    # The parts are a layer of each kind, the embedding and the head.
    costs = parts.costs
    all_reduces_gradients = problem.stack.all_reduces_gradients(layout.zero_stage)
    reduction_s = costs["reduce"] if all_reduces_gradients else costs["scatter"]
    seconds_of_parts = parts.gathers * costs["gather"] + parts.reductions * reduction_s
    parameters_of_parts = costs["dense"] + costs["expert"]
    bytes_per_parameter = (
        parts.gathers * problem.gather_bytes + parts.reductions * problem.reduce_bytes
    )
    bytes_of_parts = parameters_of_parts * bytes_per_parameter
    return float(parts.counts @ seconds_of_parts), float(parts.counts @ bytes_of_parts)


def pipelining_verdict(
    without: Candidate | None,
    with_pp: Candidate | None,
    *,
    tolerance: float,
    gap_spread: float | None,
    exact: bool,
    missing: tuple[bool, str] | None,
    forbidden: tuple[tuple[str, ...], str],
) -> Pipelining:
    """Return the verdict on the best candidates without and with a pipeline. `gap_spread` is the
    standard deviation of log(1 + gap) where both exist, and `exact` says that the search was not
    stopped.

    Where a side has no candidate, `missing` is (whether it would have none without the constraints
    too, why); it is None where the search was stopped. `forbidden` is (schedules that the training
    recipe rules out, why).
    """
    if without is None or with_pp is None or gap_spread is None:
        pipelining = _verdict_on_one_side(without, with_pp, missing)
    else:
        pipelining = _verdict_on_both_sides(without, with_pp, tolerance, gap_spread, exact=exact)
    schedules, why_forbidden = forbidden
    if why_forbidden:
        verdict = f"{pipelining.verdict} A recipe limits schedules: {why_forbidden}."
        pipelining = replace(pipelining, verdict=verdict)
    return replace(pipelining, forbidden=schedules)


def _verdict_on_one_side(
    without: Candidate | None, with_pp: Candidate | None, missing: tuple[bool, str] | None
) -> Pipelining:
    """Return the verdict where no layout without a pipeline was found, or none with one. `missing`
    is (whether there would be none without the constraints too, why); None where the search was
    stopped. Where constraints are why, it is not known whether a pipeline is needed."""
    stopped = (False, "had been found when the search was stopped")
    is_known, why = missing or stopped
    # A pipeline is needed where no layout does without one.
    is_needed = without is None
    verdict = f"No layout {'without' if is_needed else 'with'} a pipeline {why}."
    draft = Pipelining(without=without, with_pp=with_pp, needed="unknown", verdict=verdict)
    if not is_known:
        return replace(draft, verdict=f"{verdict} So it is not known whether one is needed.")
    return replace(draft, needed="yes" if is_needed else "no", needed_probability=float(is_needed))


def _verdict_on_both_sides(
    without: Candidate, with_pp: Candidate, tolerance: float, gap_spread: float, *, exact: bool
) -> Pipelining:
    """Return the verdict on the best candidates without and with a pipeline, by the gap between
    their step times and its uncertainty. It is "unknown" where the search was not `exact`."""
    with_time = with_pp.prediction.time
    split = {name: seconds - with_time[name] for name, seconds in without.prediction.time.items()}
    gap = without.prediction.step_time_s / with_pp.prediction.step_time_s - 1
    gap_low, gap_high = gap_interval(gap, gap_spread)
    needed = need_by_gap(gap, gap_spread, tolerance) if exact else "unknown"
    probability = probability_above(gap, gap_spread, tolerance) if exact else None
    worth = _worth_of_pipeline(gap, (gap_low, gap_high), tolerance, split)
    return Pipelining(
        without=without,
        with_pp=with_pp,
        gap=gap,
        gap_low=gap_low,
        gap_high=gap_high,
        needed=needed,
        needed_probability=probability,
        split=split,
        verdict=f"{_first_sentence(needed, probability)} {worth}",
    )


def undecided_by_divisibility(pipelining: Pipelining, lifted_by: tuple[Lift, ...]) -> Pipelining:
    """Return the verdict "undecided" in place of "yes" if nearby values need no pipeline: then only
    the divisibility of chips and batch asks for one. Return the verdict unchanged without such
    values."""
    if not lifted_by:
        return pipelining
    values = " or ".join(f"{lift.field} = {lift.value}" for lift in lifted_by)
    verdict = (
        "Only divisibility asks for a pipeline here: the chips and the batch share too few factors."
        f" With {values} none is needed. As asked: {pipelining.verdict}"
    )
    return replace(pipelining, needed="undecided", verdict=verdict, lifted_by=lifted_by)


def pipelining_reasons(pipelining: Pipelining) -> list[Reason]:
    """Return the verdict as a reason, and the reasons that the roofline adds to it."""
    figures = {
        "needed": pipelining.needed,
        "probability": pipelining.needed_probability,
        "gap": pipelining.gap,
        "gap_low": pipelining.gap_low,
        "gap_high": pipelining.gap_high,
        **pipelining.split,
    }
    return [Reason("pipelining", pipelining.verdict, figures), *_traffic_reasons(pipelining)]


def _traffic_reasons(pipelining: Pipelining) -> list[Reason]:
    """Return a reason if much data-parallel traffic stays exposed without a pipeline: compute
    cannot hide it, or could but does not. A roofline compares whole steps, and not all of a step is
    there to hide behind."""
    if pipelining.roofline is None or pipelining.without is None:
        return []
    roofline = pipelining.roofline
    best = pipelining.without.prediction
    exposed_s = best.time["data_s"]
    if exposed_s < _WORTH_SAYING * best.step_time_s:
        return []
    figures = {
        "exposed_s": exposed_s,
        "tokens": roofline.tokens,
        "tokens_needed": roofline.tokens_needed,
    }
    exposed = (
        f"In the best layout without a pipeline, {rounded(exposed_s)} s a step of data-parallel"
        " traffic are not hidden"
    )
    takes, has = f"{roofline.tokens_needed:,.0f}", f"{roofline.tokens:,.0f}"
    if roofline.tokens < roofline.tokens_needed:
        sentence = (
            f"{exposed}. A larger batch would help: hiding all of it takes at least {takes} tokens"
            f" a device and step, and there are only {has}."
        )
    else:
        sentence = (
            f"{exposed}, because {_why_exposed(best)}. A larger batch would not help: with perfect"
            f" overlap {takes} tokens a device and step would do, and there are {has}."
        )
    return [Reason("data_traffic", sentence, figures)]


def _why_exposed(prediction: Prediction) -> str:
    """Return words on why data-parallel traffic is exposed although there is enough compute to hide
    it."""
    zero_stage = prediction.layout.zero_stage
    micro_batches = prediction.num_micro_batches
    if zero_stage < 2 and micro_batches > 1:
        return (
            f"ZeRO {zero_stage} sends it once a step, and it overlaps only the first forward"
            f" and the last backward of {micro_batches} micro-batches"
        )
    return "it overlaps only a part of each layer's compute"


def _first_sentence(needed: Need, probability: float | None) -> str:
    """Return the first sentence of a verdict: whether a pipeline is needed. `probability` is that a
    pipeline pays, and None where the search was stopped."""
    if needed == "yes":
        return "A pipeline pays here."
    if needed == "no":
        return "No pipeline is needed."
    if probability is None:
        return "The search was stopped, so it is not known whether a pipeline is needed."
    if abs(probability - 0.5) <= _TOSS_UP:
        return f"Whether a pipeline pays here is a toss-up (a probability of {probability:.0%})."
    verb = "pays" if probability > 0.5 else "does not pay"
    surer = max(probability, 1 - probability)
    return f"A pipeline probably {verb} here (a probability of {surer:.0%})."


def _worth_of_pipeline(
    gap: float, interval: tuple[float, float], tolerance: float, split: dict[str, float]
) -> str:
    """Return a sentence on how much slower the best layout without a pipeline is, and in which
    terms. `split` has the seconds without a pipeline minus those with one, by term of the step."""
    low, high = interval
    sentence = (
        f"The best layout without one is {_pace(gap)} than the best with one (80% sure:"
        f" {_pace_range(low, high)})"
    )
    if gap > 0 and (terms := _largest_terms(split)):
        sentence += f". Its step takes {rounded(sum(split.values()))} s longer: {terms}"
    if gap > 0 and not is_above(gap, tolerance):
        sentence += f". The tolerance is {100 * tolerance:g}%"
    return f"{sentence}."


def _pace(gap: float) -> str:
    """Return words such as "14% slower" for a gap of 0.14."""
    return f"{_percent(gap)} {'slower' if gap > 0 else 'faster'}"


def _pace_range(low: float, high: float) -> str:
    """Return words such as "2.1% to 14% slower", or "3.0% faster to 14% slower" where the signs
    differ."""
    if low > 0:
        return f"{_percent(low)} to {_pace(high)}"
    if high <= 0:
        return f"{_percent(high)} to {_pace(low)}"
    return f"{_pace(low)} to {_pace(high)}"


def _percent(share: float) -> str:
    """Return the size of a share in percent, with one decimal if it is below 10%."""
    size = abs(share)
    return f"{size:.1%}" if size < 0.1 else f"{size:.0%}"


def _largest_terms(split: dict[str, float]) -> str:
    """Return words on the terms that change most without a pipeline, the largest first, and on the
    sum of all others. `split` has the change of each term in seconds."""
    largest_first = sorted(split, key=lambda term: -abs(split[term]))
    least_s = _WORTH_NAMING * abs(split[largest_first[0]])
    named = [term for term in largest_first[:_MOST_TERMS] if abs(split[term]) >= least_s]
    words = [f"{TIME_WORDS[term]} {split[term]:+.2g} s" for term in named]
    others_s = sum(seconds for term, seconds in split.items() if term not in named)
    if abs(others_s) >= least_s:
        words.append(f"all else {others_s:+.2g} s")
    return in_words(words)
