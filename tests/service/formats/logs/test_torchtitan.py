"""Lines of torchtitan."""

from __future__ import annotations

import pytest

from service.formats import logs
from tests.service.formats.logs.dialects import text, torchtitan


def test_torchtitan_prints_a_rate_for_each_device() -> None:
    reading = logs.read(
        text([torchtitan(1, "375"), torchtitan(10, "7,034"), torchtitan(20, "7,022", memory=47.5)])
    )
    assert (reading.framework, reading.unit, reading.value) == (
        "torchtitan",
        "tokens_per_s_per_chip",
        7028.0,
    )
    assert (reading.memory_gib, reading.memory_kind) == (47.5, "reserved")
    assert reading.left_out == {"warm_up": 1}


def printed_at(step: int, second: int) -> str:
    time = f"08:{second // 60:02d}:{second % 60:02d}"
    return torchtitan(step, f"6,2{step:02d}").replace("08:52:21", time)


@pytest.mark.parametrize("late", [1, 2, 5])
def test_ranks_without_labels_that_print_late_are_no_restarts(late: int) -> None:
    lines = list[str]()
    for step in range(1, 31):
        lines.append(printed_at(step, 2 * step))
        if step > late:
            lines.append(printed_at(step - late, 2 * (step - late)))
    reading = logs.read(text(lines))
    assert (reading.restarts, reading.steps_used) == (0, 29)
    assert reading.left_out == {"warm_up": 1, "repeated": 30 - late}


def test_steps_that_are_printed_again_later_are_of_a_restart() -> None:
    lines = [printed_at(step, 2 * step) for step in range(1, 21)]
    lines += [printed_at(step, 100 + 2 * step) for step in range(20 - 1, 31)]
    reading = logs.read(text(lines))
    assert (reading.restarts, reading.left_out) == (1, {"warm_up": 2})


def test_torchtitan_prints_memory_of_small_devices_in_mib() -> None:
    line = torchtitan(10, "7,034").replace("30.99GiB", "50083.84MiB")
    assert logs.read(text([line])).memory_gib == pytest.approx(48.91, abs=0.01)


def test_evaluations_of_torchtitan_are_no_steps() -> None:
    evaluation = torchtitan(20, "90,000", memory=70).replace("step: 20", "validate step: 20")
    reading = logs.read(text([torchtitan(10, "7,000"), evaluation, torchtitan(20, "7,000")]))
    assert (reading.steps_found, reading.value, reading.memory_gib) == (2, 7000.0, 30.99)


def test_the_rate_of_early_versions_is_read() -> None:
    lines = [torchtitan(10 * k, "7,034").replace("tps:", "wps:") for k in range(1, 4)]
    assert logs.read(text(lines)).value == 7034.0
