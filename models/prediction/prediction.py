"""A prediction as people read it: its terms, its intervals and what it rests on.

*Terms of the breakdown* are the parts of a step time or of memory, such as compute. *Terms of a
profile* are what scopes, such as one chip or stack, add to a coefficient of the cost model; those
*without runs* are known by their priors alone (models.spec.profile).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.cost.facts import coefficient_records
from models.cost.memory_uncertainty import MemoryUncertainty
from models.cost.pipeline.bubble import micro_batch_group
from models.cost.predictions import (
    MEMORY_TERMS,
    TIME_TERMS,
    LayoutRows,
    Predictions,
    in_gib,
    predict,
    step_costs_under_each,
)
from models.prediction.coverage import Provenance, extrapolates, provenance
from models.spec.flops import AttentionCount
from models.spec.hardware import GIB
from models.spec.identity import cached_by_identity
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Z80, Neighbourhood, Profile

_DRAWS = 48  # of the unknown terms, for each layout; their quantiles make its interval
_LAYOUTS_TOGETHER = 128  # each with its draws, which bounds the memory of one call
_MEMORY_TERMS_GIB = tuple(map(in_gib, MEMORY_TERMS))
_CACHED_LAYOUTS = 64  # layouts that were predicted alone
_CACHED_SPREADS = 64  # pairs of a profile and a problem, or of a profile and its scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The prediction of one layout: step time in seconds, and memory in GiB on the fullest stage,
    both with central 80% intervals.

    `mfu` and `tflops_per_chip` are keyed by convention: attention counted "causal" or "full";
    recompute is never counted. `layers_per_chunk` is the partition of the layers in the order of
    the model. Chunk i lies on stage i modulo pp, except that in a V the chunks from pp on lie on
    stage 2·pp - 1 - i. `micro_batch_group` is the number of micro-batches that pass a chunk before
    the next, and is None unless the schedule is interleaved. `fit_probability` is the probability
    that the memory needed is within what is usable, on the device and on its host.
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
    # A single layout is often asked about more than once, so its prediction is cached.
    if len(layouts) == 1:
        predictions = predictions_of(problem, profile, layouts[0])
    else:
        coefficients = profile.coefficients(problem.scopes)
        predictions = predict(problem, Layouts.of(layouts), coefficients)
    spreads = log_spreads(predictions, profile)
    return [describe(predictions, row, spreads, profile) for row in range(len(layouts))]


@cached_by_identity(_CACHED_LAYOUTS, objects=2)
def predictions_of(problem: Problem, profile: Profile, layout: Layout) -> Predictions:
    """Return the prediction of one layout as columns of length one. The same problem and profile
    objects get a result that was kept, since an answer and its explanation both ask for it."""
    return predict(problem, Layouts.of([layout]), profile.coefficients(problem.scopes))


def describe(
    predictions: Predictions, row: int, spreads: LogSpreads, profile: Profile
) -> Prediction:
    """Return row `row` of many predictions as a Prediction, with intervals from `spreads` and the
    evidence behind it. The predictions must have been made with `profile`."""
    problem = predictions.problem
    layout = predictions.layouts[row]
    step_time_s = float(predictions.step_time_s[row])
    tokens_per_s = problem.workload.tokens / step_time_s
    conventions: tuple[AttentionCount, ...] = ("causal", "full")
    mfu: dict[str, float] = {count: float(predictions.mfu(count)[row]) for count in conventions}
    # No step is shorter than the model's FLOPs at the chip's peak. MFU is that time over the step.
    # (Where the prediction itself is shorter, its interval begins at the prediction.)
    least_step_time_s = step_time_s * mfu["causal"]
    faster, slower, memory_factor = (math.exp(Z80 * float(spread[row])) for spread in spreads)
    time = dict(zip(TIME_TERMS, predictions.time_terms[row].tolist(), strict=True))
    memory_gib = (predictions.memory_terms[row] / GIB).tolist()
    memory = dict(zip(_MEMORY_TERMS_GIB, memory_gib, strict=True))
    context_gib = memory["context_gib"]  # the runtime's memory is no part of what is uncertain
    usable_gib = problem.cluster.usable_bytes / GIB
    reserved_gib = float(predictions.reserved_bytes[row]) / GIB
    host_bytes = float(predictions.host_bytes[row])
    host_usable_bytes = problem.cluster.host_bytes
    memory_spread = float(spreads.reserved[row])
    micro_batches = max(problem.workload.global_batch // (layout.dp * layout.micro_batch), 1)
    interleaving_group = None
    if layout.schedule == "interleaved":
        interleaving_group = int(micro_batch_group(layout.pp, micro_batches))
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
        micro_batch_group=interleaving_group,
        layers_per_chunk=predictions.rows.layers_per_chunk(row),
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


def host_memory_note(prediction: Prediction) -> str:
    """Return how much is offloaded to host memory, as the end of a sentence such as ", 12.0 of 64.0
    GiB in host memory"; empty where nothing is."""
    if not prediction.host_gib:
        return ""
    usable_gib = prediction.host_usable_gib
    limit = "" if usable_gib is None else f" of {usable_gib:.1f}"
    return f", {prediction.host_gib:.1f}{limit} GiB in host memory"


def _probability_within(limit: float, median: float, spread: float) -> float:
    """Return the probability that a log-normal quantity with this median, and this standard
    deviation of its logarithm, is at most the limit."""
    # Nothing fits into less than nothing; a quantity of 0, or no limit, fits certainly.
    if limit <= 0 or median <= 0 or math.isinf(limit):
        return float(limit > 0)
    return NormalDist().cdf(math.log(limit / median) / spread)


def log_spreads(predictions: Predictions, profile: Profile) -> LogSpreads:
    """Return the standard deviations of the logarithms of step time, towards faster and towards
    slower, and of memory, for n predictions of this profile, (n,) each.

    Step times of runs like the problem's (its neighbourhood) scatter by some spread. The distance
    between sources of runs adds to it, and so do terms without runs. Runs of the neighbourhood had
    such terms too, so only what a chip or stack without runs has beyond them is added. Where the
    question extrapolates beyond every run, the spread is multiplied by `profile.unseen_widening`.
    The spread of memory is that of models.cost.memory_uncertainty. Random draws are the same for
    every layout and on every call, so a prediction depends on its inputs alone.
    """
    problem = predictions.problem
    layouts = predictions.layouts
    known = _known_spreads(profile, problem)
    blocks = [
        predictions.rows.take(slice(start, start + _LAYOUTS_TOGETHER))
        for start in range(0, len(layouts), _LAYOUTS_TOGETHER)
    ]
    variances = np.concatenate([_unknown_variances(rows, known.draws) for rows in blocks], axis=1)
    faster, slower = (
        np.array([known.neighbourhood.spread_for_unseen_source(variance) for variance in of_side])
        for of_side in variances.tolist()
    )
    widening = np.where(extrapolates(problem, layouts, known.profile), profile.unseen_widening, 1.0)
    return LogSpreads(
        faster=faster * widening,
        slower=slower * widening,
        reserved=known.memory.spreads(predictions),
    )


class _KnownSpreads(NamedTuple):
    """The spreads that a profile knows for all predictions of a problem, whatever the layout."""

    profile: Profile
    """The profile, with an offset of mean zero wherever no run has informed one."""
    neighbourhood: Neighbourhood
    draws: Array
    """Records of coefficients under draws of the terms without runs, of shape (draws,)."""
    memory: MemoryUncertainty


@cached_by_identity(_CACHED_SPREADS, objects=2)
def _known_spreads(profile: Profile, problem: Problem) -> _KnownSpreads:
    """Return the spreads that a profile has for a problem. No layout changes them, so they are
    worked out once."""
    # Coefficients that no run on this chip or stack informed get an offset of mean zero here, whose
    # spread widens the intervals.
    widened = profile.with_offsets(problem.scopes)
    return _KnownSpreads(
        profile=widened,
        neighbourhood=profile.neighbourhood(problem.neighbourhood_scopes),
        draws=_draws_of_unknown_terms(widened, problem.scopes),
        memory=MemoryUncertainty.of(problem, profile),
    )


def _unknown_variances(rows: LayoutRows, draws: Array) -> Array:
    """Return the variances of log step time that come from terms of the profile without runs,
    towards faster and towards slower; shape (2, n).

    The terms are drawn, and each variance is that of a normal distribution with the same central
    80%: some draws have long tails (a rate of ageing is a logarithm in an exponent). Traffic that
    hides in the mean case can only slow a step down, so the distribution may be narrower towards
    faster. The variance towards faster is then that of this narrower side.
    """
    # Half of the width of the central 80%. Towards faster it is less where the median lies nearer
    # to the low end.
    low, middle, high = _quantiles(_drawn_log_times(rows, draws), [0.1, 0.5, 0.9])
    half_width = (high - low) / 2
    half_widths = np.array([np.minimum(middle - low, half_width), half_width])
    return (half_widths / Z80) ** 2


def log_ratio_spread(pair: Predictions, profile: Profile) -> float:
    """Return the standard deviation of the logarithm of the ratio of two layouts' step times.

    The errors of two layouts of one question have about half of their variance in common, so the
    ratio is as far off as one step time of their neighbourhood is. Of 178 published questions that
    were measured both without and with a pipeline, 71% lie in the 80% interval of their ratio
    (tests/benchmarks/pipeline_gaps.py), and 77% with each question weighted as in the fit. The
    terms without runs are the same for both layouts: they are drawn once, and only their effect on
    the ratio counts. Where the question extrapolates beyond every run, the spread is widened as for
    a single prediction (log_spreads).
    """
    problem = pair.problem
    known = _known_spreads(profile, problem)
    drawn = _drawn_log_times(pair.rows, known.draws)
    low, high = _quantiles(drawn[0] - drawn[1], [0.1, 0.9])
    # Half of a normal distribution's central 80% is Z80 standard deviations.
    unknown_spread = (high - low) / 2 / Z80
    spread = known.neighbourhood.spread_within_source(float(unknown_spread**2))
    outside = extrapolates(problem, pair.layouts, known.profile)
    return spread * (profile.unseen_widening if outside.any() else 1.0)


def _quantiles(values: Array, shares: Sequence[float]) -> Array:
    """Return the quantiles of `values` along their last axis at these shares between 0 and 1, with
    an axis for the shares first. np.quantile returns the same and takes five times as long for few
    values. Shares must be below 1, since the value above each is read too."""
    ordered = np.sort(values, axis=-1)
    position = np.array(shares) * (values.shape[-1] - 1)
    below = position.astype(np.int64)
    quantiles = ordered[..., below]
    # A quantile between two values lies on the straight line between them.
    quantiles = quantiles + (position - below) * (ordered[..., below + 1] - quantiles)
    return np.asarray(quantiles.T)


def _drawn_log_times(rows: LayoutRows, draws: Array) -> Array:
    """Return the logarithms of n layouts' step times under each draw of the coefficients, (n,
    draws). All layouts have the same draws."""
    step_time_s = step_costs_under_each(rows, draws).step_time_s
    return np.asarray(np.log(step_time_s).reshape(-1, len(draws)))


@cached_by_identity(_CACHED_SPREADS)
def _draws_of_unknown_terms(profile: Profile, scopes: tuple[str, ...]) -> Array:
    """Return records of coefficients, (_DRAWS,). Each has other random values of the terms that no
    run informed, with their spreads; all other terms are at their mean."""
    # The fixed seed makes equal questions get equal answers.
    generator = np.random.default_rng(0)
    draws = {
        term.key: term.spread * generator.standard_normal(_DRAWS)
        for term in profile.terms_in(scopes)
        if term.is_unknown
    }
    records = coefficient_records(profile.coefficients(scopes, draws))
    # Where all terms have runs there is one record, which stands for all draws.
    return np.broadcast_to(records, _DRAWS)
