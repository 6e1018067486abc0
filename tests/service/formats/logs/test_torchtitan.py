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
