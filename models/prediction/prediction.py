"""A prediction as people read it: its terms, its intervals and what it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.cost.memory_uncertainty import MemoryUncertainty
from models.cost.pipeline import micro_batch_group
from models.cost.predictions import Predictions, Split, in_gib, predict
from models.prediction.coverage import Provenance, extrapolates, provenance
from models.spec.flops import AttentionCount
from models.spec.hardware import GIB
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Z80, Profile

_DRAWS = 48  # of the unknown terms, for each layout
_LAYOUTS_TOGETHER = 128  # each with its draws: a limit of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What is predicted of one layout: step time in seconds, and memory in GiB on the fullest
    stage, both with central 80% intervals.

    `mfu` and `tflops_per_chip` are keyed by convention: attention counted "causal" or "full";
    recompute is never counted. `layers_per_chunk` is the partition of the layers in the order of
    the model: chunk i lies on stage i modulo pp, except that in a V the chunks from pp on lie on
    stage 2·pp - 1 - i. `micro_batch_group` is set for an interleaved schedule: how many
    micro-batches pass a chunk before the next. `fit_probability` is the probability that the memory
    needed is within what is usable, on the device and on its host.
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


class LogSpreads(NamedTuple):
    """Standard deviations of the logarithms of step time, towards `faster` and towards `slower`,
    and of memory `reserved`; each of shape (n,)."""

    faster: Array
    slower: Array
    reserved: Array


def predict_layouts(
    problem: Problem, layouts: Sequence[Layout], profile: Profile
) -> list[Prediction]:
    """Return a prediction with its intervals for each layout. The layouts must be legal
    (models.layouts.rules.require_legal)."""
    rows = Layouts.of(layouts)
    predictions = predict(problem, rows, profile.coefficients(problem.scopes))
    spreads = log_spreads(predictions, profile)
    return [describe(predictions, row, spreads, profile) for row in range(len(rows))]


def describe(
    predictions: Predictions, row: int, spreads: LogSpreads, profile: Profile
) -> Prediction:
    """Return one row of many predictions, made with this profile, in full."""
    problem = predictions.problem
    layout = predictions.layouts[row]
    step_time_s = float(predictions.step_time_s[row])
    tokens_per_s = problem.workload.tokens / step_time_s
    conventions: tuple[AttentionCount, ...] = ("causal", "full")
    mfu: dict[str, float] = {count: float(predictions.mfu(count)[row]) for count in conventions}
    # No step is shorter than the model's own FLOPs at the chip's peak.
    least_step_time_s = step_time_s * mfu["causal"]
    faster, slower, memory_factor = (math.exp(Z80 * float(spread[row])) for spread in spreads)
    time = {name: float(seconds[row]) for name, seconds in predictions.time.items()}
    memory = {in_gib(name): float(size[row]) / GIB for name, size in predictions.memory.items()}
    context_gib = memory["context_gib"]  # of the runtime: it is not part of what is uncertain
    usable_gib = problem.cluster.usable_bytes / GIB
    reserved_gib = float(predictions.reserved_bytes[row]) / GIB
    host_bytes = float(predictions.host_bytes[row])
    host_usable_bytes = problem.cluster.host_bytes
    memory_spread = float(spreads.reserved[row])
    micro_batches = max(problem.workload.global_batch // (layout.dp * layout.micro_batch), 1)
    return Prediction(
        layout=layout,
        step_time_s=step_time_s,
        step_time_low_s=min(max(step_time_s / faster, least_step_time_s), step_time_s),
        step_time_high_s=step_time_s * slower,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_chip=tokens_per_s / float(predictions.chips[row]),
        tflops_per_chip={
            count: float(predictions.tflops_per_chip(count)[row]) for count in conventions
        },
        mfu=mfu,
        num_micro_batches=micro_batches,
        micro_batch_group=_interleaving_group(layout, micro_batches),
        layers_per_chunk=predictions.layers_per_chunk[row],
        time=time,
        memory_gib=memory,
        allocated_gib=float(predictions.allocated_bytes[row]) / GIB,
        reserved_gib=reserved_gib,
        needed_gib=float(predictions.needed_bytes[row]) / GIB,
        needed_low_gib=reserved_gib / memory_factor + context_gib,
        needed_high_gib=reserved_gib * memory_factor + context_gib,
        usable_gib=usable_gib,
        host_gib=host_bytes / GIB,
        host_usable_gib=None if math.isinf(host_usable_bytes) else host_usable_bytes / GIB,
        memory_stage=int(predictions.memory_stage[row]),
        fits=bool(predictions.fits()[row]),
        fit_probability=min(
            _probability_within(usable_gib - context_gib, reserved_gib, memory_spread),
            _probability_within(host_usable_bytes, host_bytes, memory_spread),
        ),
        provenance=provenance(problem, layout, time, memory, profile),
    )


def _interleaving_group(layout: Layout, micro_batches: int) -> int | None:
    if layout.schedule != "interleaved":
        return None
    return int(micro_batch_group(layout.pp, micro_batches))


def host_memory_note(prediction: Prediction) -> str:
    """Return in words how much is offloaded to host memory; empty where nothing is."""
    if not prediction.host_gib:
        return ""
    usable_gib = prediction.host_usable_gib
    limit = "" if usable_gib is None else f" of {usable_gib:.1f}"
    return f", {prediction.host_gib:.1f}{limit} GiB in host memory"


def _probability_within(limit: float, median: float, spread: float) -> float:
    """Return the probability that a log-normal quantity is at most the limit."""
    if limit <= 0 or median <= 0 or math.isinf(limit):
        return float(limit > 0)
    return NormalDist().cdf(math.log(limit / median) / spread)


def log_spreads(predictions: Predictions, profile: Profile) -> LogSpreads:
    """Return how far off predictions by this profile may be.

    Step times are as far off as those of their neighbourhood were, and farther by what the terms
    without runs add. A chip or stack that no run informed has more of those terms than the
    neighbourhood's own runs had, and is given the difference. Where the question extrapolates
    beyond every run, the spread is multiplied by what that was found to cost. The spread of memory
    is that of models.cost.memory_uncertainty. Random draws are the same for every layout and on
    every call, so that a prediction is a function of its inputs.
    """
    problem = predictions.problem
    layouts = predictions.layouts
    neighbourhood = profile.neighbourhood(problem.neighbourhood_scopes)
    widened = profile.with_unmet_scopes(problem.scopes)
    variances = []
    for start in range(0, len(layouts), _LAYOUTS_TOGETHER):
        rows = np.arange(start, min(start + _LAYOUTS_TOGETHER, len(layouts)))
        stages = predictions.stages.take(rows)
        variances.append(_unknown_variances(problem, layouts.take(rows), stages, widened))
    faster, slower = (
        np.array([neighbourhood.with_variance(float(variance)) for variance in of_side])
        for of_side in np.concatenate(variances, axis=1)
    )
    widening = np.where(extrapolates(problem, layouts, widened), widened.unseen_widening, 1.0)
    memory = MemoryUncertainty.of(problem, profile)
    return LogSpreads(
        faster=faster * widening,
        slower=slower * widening,
        reserved=memory.spread(predictions.memory),
    )


def _unknown_variances(
    problem: Problem, layouts: Layouts, stages: Split, profile: Profile
) -> Array:
    """Return the variances of log step time that come from the terms without runs, towards faster
    and towards slower; shape (2, n). `stages` are those of the layouts.

    They are found by drawing those terms, and are those of normal distributions with the same
    central 80%: some draws have tails (a rate of ageing is a logarithm in an exponent). Time that
    is hidden can only slow a step down, so the distribution may be narrower towards faster, and
    that side is then as narrow as it is.
    """
    low, middle, high = np.quantile(
        _drawn_log_times(problem, layouts, stages, profile), [0.1, 0.5, 0.9], axis=1
    )
    half_width = (high - low) / 2
    half_widths = np.array([np.minimum(middle - low, half_width), half_width])
    return (half_widths / Z80) ** 2


def log_ratio_spread(pair: Predictions, profile: Profile) -> float:
    """Return the standard deviation of the logarithm of the ratio of two layouts' step times.

    The errors of two layouts of one question have about half of their variance in common, so that
    the ratio is as far off as one step time of their neighbourhood is: of 178 published questions
    that were measured both without and with a pipeline, 71% lie in the 80% interval of their ratio
    (tests/benchmarks/pipeline_gaps.py), and 77% where each counts as much as in the fit. The terms
    without runs are the same for both layouts, so that they are drawn once, and what they do to the
    ratio counts. Where the question extrapolates beyond every run, the spread is widened as that of
    a prediction is (log_spreads).
    """
    problem = pair.problem
    neighbourhood = profile.neighbourhood(problem.neighbourhood_scopes)
    widened = profile.with_unmet_scopes(problem.scopes)
    drawn = _drawn_log_times(problem, pair.layouts, pair.stages, widened)
    low, high = np.quantile(drawn[0] - drawn[1], [0.1, 0.9])
    unknown_spread = (high - low) / 2 / Z80
    spread = neighbourhood.with_variance(float(unknown_spread**2))
    outside = extrapolates(problem, pair.layouts, widened)
    widening = widened.unseen_widening if outside.any() else 1.0
    return spread * widening


def _drawn_log_times(problem: Problem, layouts: Layouts, stages: Split, profile: Profile) -> Array:
    """Return log step times under draws of the terms without runs, the same for every layout; shape
    (n, draws)."""
    n = len(layouts)
    generator = np.random.default_rng(0)
    draws = {
        term.key: np.tile(term.spread * generator.standard_normal(_DRAWS), n)
        for term in profile.terms_in(problem.scopes)
        if term.is_unknown
    }
    rows = np.repeat(np.arange(n), _DRAWS)
    coefficients = profile.coefficients(problem.scopes, draws)
    drawn = predict(problem, layouts.take(rows), coefficients, stages.take(rows))
    return np.asarray(np.log(drawn.step_time_s).reshape(n, _DRAWS))
