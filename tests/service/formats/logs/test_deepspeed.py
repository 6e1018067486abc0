"""Lines of DeepSpeed."""

from __future__ import annotations

import pytest

from models.errors import Invalid
from service.formats import logs
from tests.service.formats.logs.dialects import megatron, text


def rate(step: int, samples_per_s: float) -> str:
    return (
        f"[2025-03-01 10:00:{step % 60:02d},123] [INFO] [timer.py:264:stop]"
        f" epoch=0/micro_step={8 * step}/global_step={step},"
        f" RunningAvgSamplesPerSec={samples_per_s + 1}, CurrSamplesPerSec={samples_per_s},"
        " MemAllocated=12.1GB, MaxMemAllocated=31.25GB"
    )


CONFIG = (
    "[2025-03-01 09:59:00,001] [INFO] [config.py:1000:print]   train_batch_size ............. 64"
)


def test_samples_per_second_are_seconds_by_the_batch_that_is_printed() -> None:
    reading = logs.read(text([CONFIG, *(rate(step, 16.0) for step in range(10, 60, 10))]))
    assert (reading.framework, reading.unit, reading.value) == ("deepspeed", "step_time_s", 4.0)
    assert (reading.global_batch, reading.memory_gib, reading.memory_kind) == (
        64, 31.25, "allocated",
    )  # fmt: skip
    assert reading.timestamp is not None
    assert reading.timestamp.year == 2025


def test_the_batch_of_the_request_gives_the_step_time_where_the_log_has_none() -> None:
    lines = text([rate(step, 16.0) for step in range(10, 60, 10)])
    assert logs.read(lines, global_batch=32).value == 2.0
    with pytest.raises(Invalid, match="give workload.global_batch"):
        logs.read(lines)


def test_the_running_mean_of_early_versions_is_read() -> None:
    line = "[INFO] [timer.py:157:stop] 0/{}, SamplesPerSec=12.8, MemAllocated=1.0GB"
    lines = [line.format(step) for step in (10, 20, 30)]
    assert logs.read(text([CONFIG, *lines])).value == 5.0


def test_a_rate_that_is_cut_off_is_no_step() -> None:
    with pytest.raises(Invalid, match="samples per second, or they are cut off"):
        logs.read(text([CONFIG, rate(10, 16.0).partition("16.0")[0]]))


def test_the_pipeline_engine_prints_the_time() -> None:
    line = "steps: {} loss: 9.1 iter time (s): 12.300 samples/sec: 83.1"
    lines = [line.format(step) for step in (10, 20, 30)]
    assert logs.read(text(lines)).value == 12.3


def test_the_parts_of_a_breakdown_add_up() -> None:
    lines = [
        "[Rank 0] time (ms) | fwd_microstep: 100.00 | bwd_microstep: 200.00 | step_microstep: 1.00",
        "[Rank 0] time (ms) | fwd: 800.00 | bwd: 1600.00 | bwd_inner: 1500.00 | bwd_allreduce:"
        " 90.00 | step: 100.00",
    ]
    assert logs.read(text(lines * 4)).value == 2.5


def test_megatron_deepspeed_is_read_by_megatrons_lines() -> None:
    lines = [text([megatron(step, 4000.0), rate(step, 16.0)]) for step in range(2, 9)]
    assert logs.read(text(lines)).framework == "megatron"
