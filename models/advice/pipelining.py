"""Is a pipeline needed? The best layouts without and with one, and where the difference comes
from."""

from __future__ import annotations

from dataclasses import dataclass

from models.advice.candidate import Candidate
from models.cost.overlap import Exposure
from models.cost.step import Predictions
from models.spec.flops import model_flops
from models.spec.layout import Layout

_WORTH_NAMING = 0.1  # of the largest term
_LEAST_REST = 0.005
_WORTH_SAYING = 0.02  # of a step
_WORDS = {True: "needed", False: "not needed", None: "not known"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Whether data-parallel traffic can hide behind compute without a pipeline: it can where

        tokens · flops_per_token / flops_s  >=  bytes / bytes_s

    All of a step and a device: `tokens` it computes, at `flops_s` (kernels only, as predicted);
    `bytes` of parameters gathered and gradients reduced, at `bytes_s` of the data-parallel groups
    (latencies included). `tokens_needed` makes both sides equal. The public scaling book states it
    per layer (jax-ml/scaling-book, training.md).
    """

    tokens: float
    flops_per_token: float
    flops_s: float
    bytes: float
    bytes_s: float
    tokens_needed: float


def is_needed(gap: float, tolerance: float) -> bool:
    """A pipeline is needed where it is worth more than the tolerance: what every verdict, threshold
    and frontier means.

    `gap` = time without / time with - 1 of the best layouts; infinite where only a pipeline will
    do, -1 where none will.
    """
    return gap > tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelining:
    """The best layout without and with a pipeline. `gap` = time without / time with - 1; `split`:
    where the difference comes from, seconds by term of the step, without minus with. `needed`
    (is_needed) is None where a side is missing and that may be for the constraints, or for a search
    that was stopped. `forbidden`: the stack's schedules that the recipe rules out with more than
    one micro-batch."""

    without: Candidate | None
    with_pp: Candidate | None
    gap: float | None
    needed: bool | None
    split: dict[str, float]
    verdict: str
    forbidden: tuple[str, ...] = ()
    roofline: Roofline | None = None


def roofline(one: Predictions, candidate: Candidate) -> Roofline | None:
    """Of one layout without a pipeline; None where nothing is data-parallel."""
    problem, exposure = one.problem, Exposure(one.layouts, one.meshes)
    seconds, size = _traffic(
        exposure, candidate.prediction.layout, candidate.prediction.num_micro_batches
    )
    if not seconds:
        return None
    tokens = problem.workload.tokens / problem.cluster.num_devices
    per_token = model_flops(problem.architecture, problem.workload) / problem.workload.tokens
    computed = candidate.prediction.time["compute_s"]
    flops_s = tokens * per_token / computed
    return Roofline(
        tokens=tokens,
        flops_per_token=per_token,
        flops_s=flops_s,
        bytes=size,
        bytes_s=size / seconds,
        tokens_needed=seconds * flops_s / per_token,
    )


def _traffic(exposure: Exposure, layout: Layout, micro_batches: int) -> tuple[float, float]:
    """(seconds, bytes) of data-parallel traffic in a step, nothing hidden."""
    meshes, problem = exposure.meshes, exposure.problem
    gathers = {0: 0, 1: 1, 2: 1, 3: micro_batches * (2 if layout.reshard else 1)}[layout.zero_stage]
    reductions = micro_batches if layout.zero_stage >= 2 else 1
    seconds = size = 0.0
    for amount, traffic, part in zip(exposure.amounts, meshes.traffic, meshes.bytes, strict=True):
        parameters = float((part.dense + part.expert)[0])
        reduced = float(
            (
                traffic.reduce
                if problem.stack.all_reduces_gradients(layout.zero_stage)
                else traffic.scatter
            )[0]
        )
        seconds += amount * (gathers * float(traffic.gather[0]) + reductions * reduced)
        size += (
            amount
            * parameters
            * (gathers * problem.gather_bytes + reductions * problem.gradient_bytes)
        )
    return (seconds, size) if layout.dp * layout.cp > 1 else (0.0, 0.0)


def pipelined(
    without: Candidate | None,
    with_pp: Candidate | None,
    *,
    tolerance: float,
    exact: bool,
    missing: tuple[bool, str] | None,
    forbidden: tuple[tuple[str, ...], str],
) -> Pipelining:
    """`missing`: whether one of them is None whatever the constraints, and why; None where the
    search was stopped. `forbidden`: schedules that the recipe rules out, and why."""
    schedules, ruled_out = forbidden
    if without is None or with_pp is None:
        is_so, why = missing or (False, "the search had found none when it was stopped")
        needed, side = (
            (without is None) if is_so else None,
            "without" if without is None else "with",
        )
        gap, split = None, dict[str, float]()
        verdict = f"{_WORDS[needed]}: of layouts {side} a pipeline {why}"
    else:
        split = {
            name: value - with_pp.prediction.time[name]
            for name, value in without.prediction.time.items()
        }
        gap = without.prediction.step_time_s / with_pp.prediction.step_time_s - 1
        needed = is_needed(gap, tolerance) if exact else None
        so_far = ":" if exact else ", for the search was stopped; so far"
        verdict = f"{_WORDS[needed]}{so_far} {_worth(gap, tolerance, split)}"
    return Pipelining(
        without=without,
        with_pp=with_pp,
        gap=gap,
        needed=needed,
        split=split,
        verdict=f"{verdict}; {ruled_out}" if ruled_out else verdict,
        forbidden=schedules,
    )


def unhidden(found: Pipelining) -> list[str]:
    """What the roofline says where traffic stays exposed: that it cannot hide; or, since a roofline
    asks of all of a step, why it does not, though it could."""
    if found.roofline is None or found.without is None:
        return []
    line, best = found.roofline, found.without.prediction
    exposed, stage, m = best.time["data_s"], best.layout.zero_stage, best.num_micro_batches
    if exposed < _WORTH_SAYING * best.step_time_s:
        return []
    told = (
        f"roofline without a pipeline: {line.tokens:,.0f} tokens a device,"
        f" {line.tokens_needed:,.0f} needed for data-parallel traffic to hide beside a whole step;"
        f" {exposed:.3g} s is lost to it"
    )
    if line.tokens < line.tokens_needed:
        return [told]
    beside = (
        f"ZeRO {stage} moves it once a step, beside the first forward and the last backward of {m}"
        " micro-batches"
    )
    partly = (
        "a layer's compute hides no more than a share of its own time, and what it hides slows it"
        " down"
    )
    return [f"{told} all the same: {beside if stage < 2 and m > 1 else partly}"]


def _worth(gap: float, tolerance: float, split: dict[str, float]) -> str:
    if gap <= 0:
        return f"the best layout without a pipeline is {-gap:.1%} faster than the best with one"
    beside = (
        f"{'above' if is_needed(gap, tolerance) else 'within'} the tolerance of"
        f" {100 * tolerance:g}%"
    )
    return (
        f"worth {gap:.1%}, {beside}: without a pipeline a step takes"
        f" {_seconds(sum(split.values()))}: {_summed(split)}"
    )


def _summed(split: dict[str, float]) -> str:
    """The terms that make up a difference, largest first; the small ones together."""
    most = max(map(abs, split.values()))
    named = {
        term: seconds for term, seconds in split.items() if abs(seconds) >= _WORTH_NAMING * most
    }
    parts = [
        f"{term} {_seconds(named[term])}" for term in sorted(named, key=lambda term: -named[term])
    ]
    rest = sum(split.values()) - sum(named.values())
    return ", ".join(
        [*parts, *([f"the rest {_seconds(rest)}"] if abs(rest) > _LEAST_REST * most else [])]
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:+.3g} s"
