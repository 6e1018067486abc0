"""A measured speed in every form, and a measured memory beside the predicted one."""

from __future__ import annotations

import math
from typing import Literal

from models.calibration.residual_diagnosis import COMMUNICATION
from models.errors import Invalid
from models.prediction.prediction import Prediction
from models.spec.flops import AttentionCount, model_flops, step_time_from_throughput
from models.spec.problem import Problem
from service.json_pointers import instead_of
from service.schemas.report import (
    Measured,
    MeasuredMemory,
    MeasuredMfu,
    MeasuredParts,
    MeasuredSpeed,
    MemoryComparison,
    PartsComparison,
)

Form = Literal["step_time_s", "tokens_per_s", "tokens_per_s_per_chip", "tflops_per_chip", "mfu"]

SHORTEST_S, LONGEST_S = 1e-6, 1e7
_SLOWEST = 500  # times the predicted step: milliseconds for seconds are a thousand
_COUNTS: tuple[AttentionCount, ...] = ("causal", "full")


def speed(problem: Problem, measured: Measured, predicted_s: float) -> MeasuredSpeed:
    form, step, conversion = _step_time(problem, measured)
    given = getattr(measured, form)
    if not SHORTEST_S <= step <= LONGEST_S:
        raise Invalid(f"measured.{form}", given, f"means a step of {step:.3g} s, which no run has")
    if step > _SLOWEST * predicted_s:
        rule = (
            f"means a step of {step:.3g} s and {step / predicted_s:.0f} times the predicted one;"
            " check the unit"
        )
        raise Invalid(f"measured.{form}", given, rule)
    mfu = mfu_of(problem, step)
    if mfu["causal"] > 1:
        rule = (
            f"means a step of {step:.3g} s and {mfu['causal']:.3g} times the chip's peak; check the"
            " unit"
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


def mfu_of(problem: Problem, step_time_s: float) -> dict[str, float]:
    """By convention, of the peak in the format of the matrix multiplications."""
    peak = (
        problem.cluster.chip.peak_flops(problem.workload.number_format.gemm)
        * problem.cluster.num_chips
    )
    return {
        count: model_flops(problem.architecture, problem.workload, count) / step_time_s / peak
        for count in _COUNTS
    }


def memory(measured: MeasuredMemory, prediction: Prediction) -> MemoryComparison:
    fullest = measured.stage in (None, prediction.memory_stage)
    return MemoryComparison(
        **measured.model_dump(),
        allocated_residual=(
            log_ratio(measured.allocated_gib, prediction.allocated_gib) if fullest else None
        ),
        reserved_residual=(
            log_ratio(measured.reserved_gib, prediction.reserved_gib) if fullest else None
        ),
    )


def parts(
    problem: Problem, measured: MeasuredParts, step_time_s: float, prediction: Prediction
) -> PartsComparison:
    if (
        measured.exposed_communication_s is not None
        and measured.exposed_communication_s > step_time_s
    ):
        rule = f"must not exceed the step that it is part of, {step_time_s:.3g} s"
        raise Invalid("parts.exposed_communication_s", measured.exposed_communication_s, rule)
    if measured.expert_imbalance is not None and not problem.architecture.is_moe:
        rule = f"is of experts, and {problem.architecture.name} has none"
        raise Invalid("parts.expert_imbalance", measured.expert_imbalance, rule)
    exposed = sum(prediction.time[name] for name in COMMUNICATION)
    return PartsComparison(**measured.model_dump(), predicted_exposed_communication_s=exposed)


def within(step_time_s: float | None, prediction: Prediction) -> bool | None:
    """Whether a measured step time lies in the predicted interval."""
    return (
        None
        if step_time_s is None
        else prediction.step_time_low_s <= step_time_s <= prediction.step_time_high_s
    )


def log_ratio(measured: float | None, predicted: float) -> float | None:
    return math.log(measured / predicted) if measured else None


def _step_time(problem: Problem, measured: Measured) -> tuple[Form, float, str]:
    """The form that was given, the step time it means, and how it follows."""
    tokens, chips = problem.workload.tokens, problem.cluster.num_chips
    if (step := measured.step_time_s) is not None:
        return "step_time_s", step, "as given"
    if (rate := measured.tokens_per_s) is not None:
        return "tokens_per_s", tokens / rate, f"{tokens} tokens of a step / {rate:g} tokens/s"
    if (rate := measured.tokens_per_s_per_chip) is not None:
        how = f"{tokens} tokens of a step / ({rate:g} tokens/s of a chip * {chips} chips)"
        return "tokens_per_s_per_chip", tokens / (rate * chips), how
    if (done := measured.tflops_per_chip) is not None:
        return "tflops_per_chip", *_from_tflops(
            problem, done.value, done.attention, f"{done.value:g} TFLOP/s"
        )
    if measured.mfu is None:
        raise Invalid("measured", None, "is empty")
    mfu, peak = measured.mfu, _peak_tflops(problem, measured.mfu)
    return "mfu", *_from_tflops(
        problem, mfu.value * peak, mfu.attention, f"{mfu.value:g} * {peak:g} TFLOP/s"
    )


def _from_tflops(
    problem: Problem, tflops: float, attention: AttentionCount, written: str
) -> tuple[float, str]:
    """Of a chip."""
    chips = problem.cluster.num_chips
    step = step_time_from_throughput(
        tflops * 1e12, chips, problem.architecture, problem.workload, attention
    )
    flops = model_flops(problem.architecture, problem.workload, attention)
    counted = f"attention counted {attention}, recompute not"
    return step, f"{flops:.6g} FLOPs of a step ({counted}) / ({written} * {chips} chips)"


def _peak_tflops(problem: Problem, mfu: MeasuredMfu) -> float:
    if mfu.peak_tflops is not None:
        return mfu.peak_tflops
    dtype = mfu.peak_dtype or problem.workload.number_format.gemm
    with instead_of("workload.precision", "measured.mfu.peak_dtype"):
        return problem.cluster.chip.peak_flops(dtype) / 1e12
