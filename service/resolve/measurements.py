"""Measurements of a run: its speed in every form, such as MFU, and its memory and the parts of a
step beside what was predicted."""

from __future__ import annotations

import math

from models.calibration.residual_diagnosis import COMMUNICATION
from models.errors import Invalid
from models.prediction.prediction import Prediction
from models.prediction.term_words import rounded
from models.spec.flops import AttentionCount, model_flops, step_time_from_throughput
from models.spec.problem import Problem
from service.json_pointers import relocate_errors
from service.schemas.measured_run import (
    Measured,
    MeasuredMemory,
    MeasuredMfu,
    MeasuredParts,
    SpeedForm,
)
from service.schemas.report import MeasuredSpeed, MemoryComparison, PartsComparison

SHORTEST_STEP_S = 1e-6  # shorter than any kernel takes to start
LONGEST_STEP_S = 1e7  # four months for one step is a mistake of units
_MOST_TIMES_PREDICTED = 500  # a step given in milliseconds for seconds is a thousand times as long
_COUNTS: tuple[AttentionCount, ...] = ("causal", "full")


def measured_speed(problem: Problem, measured: Measured, predicted_s: float) -> MeasuredSpeed:
    """Returns the measured speed in every form. `predicted_s` is the predicted step time. Raises
    Invalid for a speed that no run can have, such as a figure in a wrong unit."""
    form, step, conversion = _step_time(problem, measured)
    given = getattr(measured, form)
    if not SHORTEST_STEP_S <= step <= LONGEST_STEP_S:
        rule = f"means a step of {rounded(step)} s, which no run has"
        raise Invalid(f"measured.{form}", given, rule)
    if step > _MOST_TIMES_PREDICTED * predicted_s:
        rule = (
            f"means a step of {rounded(step)} s and {step / predicted_s:.0f} times the predicted"
            " one; check the unit"
        )
        raise Invalid(f"measured.{form}", given, rule)
    mfu = mfu_of(problem, step)
    if mfu["causal"] > 1:  # which counts the fewest FLOPs
        rule = (
            f"means a step of {rounded(step)} s and {mfu['causal']:.3g} times the chip's"
            f" peak; check the unit{_batch_in_tokens_words(problem, mfu['causal'])}"
        )
        raise Invalid(f"measured.{form}", given, rule)
    tokens = problem.workload.tokens / step
    return MeasuredSpeed(
        given=form,
        conversion=conversion,
        step_time_s=step,
        tokens_per_s=tokens,
        tokens_per_s_per_chip=tokens / problem.cluster.num_chips,
        mfu=mfu,
    )


def _batch_in_tokens_words(problem: Problem, mfu: float) -> str:
    """Returns words that continue "check the unit" where a global batch seems to be given in
    tokens: the MFU is impossible, and possible with as many sequences as the batch would then be.
    Returns "" elsewhere."""
    sequences, rest = divmod(problem.workload.global_batch, problem.workload.seq_len)
    if rest or mfu > problem.workload.seq_len:
        return ""
    return (
        f", or workload.global_batch, which counts sequences: if {problem.workload.global_batch}"
        f" are tokens, give {sequences}"
    )


def mfu_of(problem: Problem, step_time_s: float) -> dict[str, float]:
    """Returns the model FLOPs utilization of a step, by how attention is counted ("causal" or
    "full"), as a share of the chips' peak in the format of matrix products."""
    gemm_format = problem.workload.number_format.gemm
    peak = problem.cluster.chip.peak_flops(gemm_format) * problem.cluster.num_chips
    return {
        count: model_flops(problem.architecture, problem.workload, count) / step_time_s / peak
        for count in _COUNTS
    }


def compare_memory(measured: MeasuredMemory, prediction: Prediction) -> MemoryComparison:
    """Returns the measured memory beside the predicted one. The prediction is for the fullest
    pipeline stage, so residuals are None for a measurement on another stage."""
    allocated_residual = None
    reserved_residual = None
    if measured.stage in (None, prediction.memory_stage):
        allocated_residual = log_ratio(measured.allocated_gib, prediction.allocated_gib)
        reserved_residual = log_ratio(measured.reserved_gib, prediction.reserved_gib)
    return MemoryComparison.from_attributes(
        measured,
        allocated_residual=allocated_residual,
        reserved_residual=reserved_residual,
    )


def compare_parts(
    problem: Problem, measured: MeasuredParts, step_time_s: float, prediction: Prediction
) -> PartsComparison:
    """Returns the measured parts of a step beside the predicted ones. Raises Invalid for
    communication longer than the step, and for an imbalance of experts in a model without any."""
    exposed_s = measured.exposed_communication_s
    if exposed_s is not None and exposed_s > step_time_s:
        rule = f"must not exceed the step that it is part of, {rounded(step_time_s)} s"
        raise Invalid("parts.exposed_communication_s", exposed_s, rule)
    if measured.expert_imbalance is not None and not problem.architecture.is_moe:
        rule = f"is of experts, and {problem.architecture.name} has none"
        raise Invalid("parts.expert_imbalance", measured.expert_imbalance, rule)
    predicted_s = sum(prediction.time[name] for name in COMMUNICATION)
    return PartsComparison.from_attributes(measured, predicted_exposed_communication_s=predicted_s)


def is_within_interval(step_time_s: float | None, prediction: Prediction) -> bool | None:
    """Returns whether a measured step time lies in the predicted interval; None where none was
    measured."""
    if step_time_s is None:
        return None
    return prediction.step_time_low_s <= step_time_s <= prediction.step_time_high_s


def log_ratio(measured: float | None, predicted: float) -> float | None:
    return math.log(measured / predicted) if measured else None


def _step_time(problem: Problem, measured: Measured) -> tuple[SpeedForm, float, str]:
    """Returns the form of speed that was given, the step time in seconds that it means, and a text
    on how that follows, such as "4194304 tokens of a step / 52000 tokens/s". Raises Invalid if no
    form is given."""
    tokens = problem.workload.tokens
    chips = problem.cluster.num_chips
    if measured.step_time_s is not None:
        return "step_time_s", measured.step_time_s, "as given"
    if measured.tokens_per_s is not None:
        rate = measured.tokens_per_s
        return "tokens_per_s", tokens / rate, f"{tokens} tokens of a step / {rate:g} tokens/s"
    if measured.tokens_per_s_per_chip is not None:
        rate = measured.tokens_per_s_per_chip
        conversion = f"{tokens} tokens of a step / ({rate:g} tokens/s of a chip * {chips} chips)"
        return "tokens_per_s_per_chip", tokens / (rate * chips), conversion
    if measured.tflops_per_chip is not None:
        tflops = measured.tflops_per_chip
        words = f"{tflops.value:g} TFLOP/s"
        step, conversion = _from_tflops(problem, tflops.value, tflops.attention, words)
        return "tflops_per_chip", step, conversion
    if measured.mfu is not None:
        mfu = measured.mfu
        peak = _peak_tflops(problem, mfu)
        words = f"{mfu.value:g} * {peak:g} TFLOP/s"
        step, conversion = _from_tflops(problem, mfu.value * peak, mfu.attention, words)
        return "mfu", step, conversion
    raise Invalid("measured", None, "is empty")


def _from_tflops(
    problem: Problem, tflops: float, attention: AttentionCount, words: str
) -> tuple[float, str]:
    """Returns the step time in seconds at this rate of a chip, in TFLOP/s of the model, and a text
    on how it follows. `words` are the rate as that text has it."""
    chips = problem.cluster.num_chips
    step = step_time_from_throughput(
        flops_per_chip_s=tflops * 1e12,
        num_chips=chips,
        architecture=problem.architecture,
        workload=problem.workload,
        count=attention,
    )
    flops = model_flops(problem.architecture, problem.workload, attention)
    counted = f"attention counted {attention}, recompute not"
    return step, f"{flops:.6g} FLOPs of a step ({counted}) / ({words} * {chips} chips)"


def _peak_tflops(problem: Problem, mfu: MeasuredMfu) -> float:
    """Returns the peak of a chip, in TFLOP/s, that a measured MFU is a share of: the one given, or
    the chip's own for the given format."""
    if mfu.peak_tflops is not None:
        return mfu.peak_tflops
    dtype = mfu.peak_dtype or problem.workload.number_format.gemm
    # A chip without this peak is an error of the measurement, not of the workload.
    with relocate_errors("workload.precision", "measured.mfu.peak_dtype"):
        return problem.cluster.chip.peak_flops(dtype) / 1e12
