"""One prediction as people read it: its terms, its interval and what it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from models.columns import Array, SharedRows
from models.cost.memory_uncertainty import MemoryUncertainty
from models.cost.pipeline import micro_batch_group
from models.cost.stage_partition import Stages
from models.cost.step import Predictions, in_gib, predict
from models.prediction.coverage import Provenance, is_outside, provenance
from models.spec.flops import AttentionCount
from models.spec.hardware import GIB
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Z80, Profile

_DRAWS = 48
_TOGETHER = 128  # layouts, each with its draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Step time in seconds, memory in GiB on the fullest stage, both with central 80% intervals.

    `mfu` and `tflops_per_chip` are keyed by convention: attention counted "causal" or "full"
    (recompute never). `layers_per_chunk`: the partition of the layers, in the order of the model;
    chunk i lies on stage i modulo pp, in a V from pp on on stage 2·pp - 1 - i. `micro_batch_group`:
    of an interleaved schedule, how many micro-batches pass a chunk before the next.
    `fit_probability`: that the memory needed is within what is usable.
    """

    layout: Layout
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    tokens_per_s: float
    tokens_per_s_per_chip: float
    tflops_per_chip: dict[str, float]
    mfu: dict[str, float]
    num_micro_batches: int
    micro_batch_group: int | None
    layers_per_chunk: tuple[int, ...]
    time: dict[str, float]
    memory_gib: dict[str, float]
    allocated_gib: float
    reserved_gib: float
    needed_gib: float
    needed_low_gib: float
    needed_high_gib: float
    usable_gib: float
    host_gib: float
    host_usable_gib: float | None
    memory_stage: int
    fits: bool
    fit_probability: float
    provenance: Provenance


class Spreads(NamedTuple):
    """Standard deviations of log step times, towards less and towards more, and of the logs of
    memory reserved; of shape (n,)."""

    faster: Array
    slower: Array
    reserved: Array


def predict_layouts(
    problem: Problem, layouts: Sequence[Layout], profile: Profile
) -> list[Prediction]:
    """Predictions with intervals; layouts are taken as legal
    (models.layouts.rules.require_legal)."""
    rows = Layouts.of(layouts)
    predictions = predict(problem, rows, profile.coefficients(problem.scopes))
    spreads = log_spreads(predictions, profile)
    return [describe(predictions, i, spreads, profile) for i in range(len(rows))]


def describe(predictions: Predictions, i: int, spreads: Spreads, profile: Profile) -> Prediction:
    """Row `i` of many, with how far off they may be and the profile that they were made with."""
    problem, layout = predictions.problem, predictions.layouts[i]
    step = float(predictions.step_time_s[i])
    counts: tuple[AttentionCount, ...] = ("causal", "full")
    mfu: dict[str, float] = {count: float(predictions.mfu(count)[i]) for count in counts}
    peak = step * mfu["causal"]  # seconds of the model's own FLOPs at the chip's peak
    time = {name: float(value[i]) for name, value in predictions.time.items()}
    memory = {in_gib(name): float(v[i]) / GIB for name, v in predictions.memory.items()}
    usable, reserved = (
        problem.cluster.usable_bytes / GIB,
        float(predictions.reserved_bytes[i]) / GIB,
    )
    faster, slower, memory_factor = (math.exp(Z80 * float(spread[i])) for spread in spreads)
    micro_batches = max(problem.workload.global_batch // (layout.dp * layout.micro_batch), 1)
    return Prediction(
        layout=layout,
        step_time_s=step,
        step_time_low_s=min(max(step / faster, peak), step),
        step_time_high_s=step * slower,
        tokens_per_s=problem.workload.tokens / step,
        tokens_per_s_per_chip=problem.workload.tokens / step / float(predictions.chips[i]),
        tflops_per_chip={count: float(predictions.tflops_per_chip(count)[i]) for count in counts},
        mfu=mfu,
        num_micro_batches=micro_batches,
        micro_batch_group=_group(layout, micro_batches),
        layers_per_chunk=predictions.layers_per_chunk[i],
        time=time,
        memory_gib=memory,
        allocated_gib=float(predictions.allocated_bytes[i]) / GIB,
        reserved_gib=reserved,
        needed_gib=float(predictions.needed_bytes[i]) / GIB,
        needed_low_gib=reserved / memory_factor + memory["context_gib"],
        needed_high_gib=reserved * memory_factor + memory["context_gib"],
        usable_gib=usable,
        host_gib=float(predictions.host_bytes[i]) / GIB,
        host_usable_gib=None
        if math.isinf(problem.cluster.host_bytes)
        else problem.cluster.host_bytes / GIB,
        memory_stage=int(predictions.memory_stage[i]),
        fits=bool(predictions.fits()[i]),
        fit_probability=min(
            _at_most(usable - memory["context_gib"], reserved, float(spreads.reserved[i])),
            _at_most(
                problem.cluster.host_bytes,
                float(predictions.host_bytes[i]),
                float(spreads.reserved[i]),
            ),
        ),
        provenance=provenance(problem, layout, time, memory, profile),
    )


def _group(layout: Layout, micro_batches: int) -> int | None:
    return (
        int(micro_batch_group(layout.pp, micro_batches))
        if layout.schedule == "interleaved"
        else None
    )


def on_host(p: Prediction) -> str:
    """What is offloaded, in words; nothing where nothing is."""
    limit = "" if p.host_usable_gib is None else f" of {p.host_usable_gib:.1f}"
    return f", {p.host_gib:.1f}{limit} GiB in host memory" if p.host_gib else ""


def _at_most(limit: float, median: float, spread: float) -> float:
    """The probability that a log-normal quantity is within a limit."""
    if limit <= 0 or median <= 0 or math.isinf(limit):
        return float(limit > 0)
    return NormalDist().cdf(math.log(limit / median) / spread)


def log_spreads(predictions: Predictions, profile: Profile) -> Spreads:
    """How far off predictions by this profile may be: as far as those of their neighbourhood, and
    what terms without runs add to it (of memory: models.cost.memory_uncertainty).

    A chip or stack that no run informed has more of those than its neighbourhood's runs had, and is
    given the difference. Where no run has been, step times are as much farther off as that was
    found to make them. Draws are the same for every layout and on every call, so that a prediction
    is a function of its inputs.
    """
    problem, layouts = predictions.problem, predictions.layouts
    timed, covering = (
        profile.neighbourhood(problem.neighbourhood_scopes),
        profile.with_unmet_scopes(problem.scopes),
    )
    starts = range(0, len(layouts), _TOGETHER)
    rows = [np.arange(start, min(start + _TOGETHER, len(layouts))) for start in starts]
    found = [
        _variances(problem, layouts.take(some), predictions.stages.take(some), covering)
        for some in rows
    ]
    faster, slower = (
        np.array([timed.with_variance(float(v)) for v in of_each])
        for of_each in np.concatenate(found, axis=1)
    )
    beyond = np.where(is_outside(problem, layouts, covering), covering.unseen_widening, 1.0)
    return Spreads(
        faster * beyond,
        slower * beyond,
        MemoryUncertainty.of(problem, profile).spread(predictions.memory),
    )


def _variances(
    problem: Problem, layouts: Layouts, stages: SharedRows[Stages], profile: Profile
) -> Array:
    """Of log step time, towards less and towards more, over draws of the terms without runs; shape
    (2, n). `stages`: of the layouts.

    Those of normal distributions with the same central 80%: a rate of ageing, a logarithm in an
    exponent, has tails. What is hidden can only slow a step down: a half that is narrower towards
    less is that narrow.
    """
    n, generator = len(layouts), np.random.default_rng(0)
    terms = [term for term in profile.terms_in(problem.scopes) if term.is_unknown]
    draws = {
        term.key: np.tile(term.spread * generator.standard_normal(_DRAWS), n) for term in terms
    }
    repeated, coefficients = (
        np.repeat(np.arange(n), _DRAWS),
        profile.coefficients(problem.scopes, draws),
    )
    drawn = predict(problem, layouts.take(repeated), coefficients, stages.take(repeated))
    logs = np.log(drawn.step_time_s).reshape(n, _DRAWS)
    low, middle, high = np.quantile(logs, [0.1, 0.5, 0.9], axis=1)
    half = (high - low) / 2
    return (np.array([np.minimum(middle - low, half), half]) / Z80) ** 2
