"""Lines of NeMo 1 and 2."""

from __future__ import annotations

from datetime import datetime

import pytest

from service.formats import logs
from tests.service.formats.logs.dialects import (
    bar,
    dll_log,
    means,
    needs_folder,
    nemo2,
    sample,
    text,
)


@needs_folder
@pytest.mark.parametrize("name", ["nemo-llama3-70b-64xb200.log", "nemo-llama3-8b-8xb200.log"])
def test_the_own_times_of_nemo_are_those_of_its_clock(name: str) -> None:
    stamped = [
        line[line.index("DLL ") + 4 :][:26]
        for line in sample(name).split("\n")
        if "in s : " in line
    ]
    clock = [datetime.fromisoformat(stamp) for stamp in stamped]
    between = sorted(
        (later - stamp).total_seconds() for stamp, later in zip(clock, clock[1:], strict=False)
    )
    reading = logs.read(sample(name))
    assert reading.value == pytest.approx(between[len(between) // 2], rel=1e-3)
    assert between[0] - 0.01 < reading.low < reading.high < between[-1]


@needs_folder
@pytest.mark.parametrize(("name", "typical"), [("70b-64xb200", 4.7), ("8b-8xb200", 4.33)])
@pytest.mark.parametrize("keep", ["Epoch 0: ", "timing in s: ["])
def test_the_rounded_forms_of_nemo_agree_with_the_exact_one(
    name: str, typical: float, keep: str
) -> None:
    lines = (line.split("DLL ")[0] for line in sample(f"nemo-llama3-{name}.log").split("\n"))
    reading = logs.read(text(line for line in lines if keep in line))
    assert (reading.value, reading.steps_used, reading.left_out) == (typical, 15, {"warm_up": 5})


OWN = [44.85, 4.68, 4.64, 4.71, 4.68, 4.69, 4.71, 9.9, 4.73, 4.69, 4.7, 4.71, 4.7]


@pytest.mark.parametrize("window", [1, 2, 5, 10, 100])
def test_means_over_any_window_are_undone(window: int) -> None:
    reading = logs.read(dll_log(OWN, window))
    assert reading.value == pytest.approx(4.7)
    assert reading.left_out == {"warm_up": 1, "slow": 1}
    assert reading.high < 4.74


@pytest.mark.parametrize("window", [1, 5, 100])
def test_means_are_told_from_own_times_without_a_clock(window: int) -> None:
    no_clock = dll_log(OWN, window).replace("DLL 2025-06", "DLL 2025-13")
    assert logs.read(no_clock).value == pytest.approx(4.7)


def test_two_steps_and_a_clock_suffice_to_tell_a_mean() -> None:
    assert logs.read(dll_log(OWN[:2], 5)).value == pytest.approx(4.68)


@pytest.mark.parametrize("slow", [[44.0, 24.0], [44.0, 24.0, 12.0, 6.5], [9.0]])
def test_own_times_with_a_long_warm_up_are_not_taken_for_means(slow: list[float]) -> None:
    reading = logs.read(dll_log([*slow, *OWN[1:7], 4.7, 4.7], 1))
    assert reading.value == pytest.approx(4.7, rel=5e-3)
    assert reading.left_out == {"warm_up": len(slow)}


def test_means_of_a_stretch_from_the_middle_are_taken_as_they_are() -> None:
    own = [*OWN, 4.6, 4.8, 4.7, 4.6, 4.7, 4.8, 4.6, 4.7]
    reading = logs.read(text(dll_log(own, 5).split("\n")[12:]))
    assert reading.value == pytest.approx(sorted(means(own, 5)[12:])[4])
    assert reading.left_out == {}


def test_each_restart_fills_the_window_anew() -> None:
    reading = logs.read(dll_log(OWN, 5) + dll_log(OWN, 5, first=6))
    assert reading.restarts == 1
    assert reading.value == pytest.approx(4.7)
    assert reading.left_out == {"warm_up": 2, "slow": 2}


@pytest.mark.parametrize("joint", ["\n", "\r", ""])
def test_a_progress_bar_is_read_however_its_updates_are_joined(joint: str) -> None:
    printed = means([*OWN[:7], 4.7, 4.7], 5)
    pairs = zip(printed, [None, *printed], strict=False)
    reading = logs.read(
        joint.join(bar(step, mean, before) for step, (mean, before) in enumerate(pairs))
    )
    assert (reading.steps_found, reading.left_out) == (9, {"warm_up": 5})
    assert reading.value == pytest.approx(4.7, rel=5e-3)


def test_the_lines_of_nemo_2_are_read() -> None:
    reading = logs.read(
        text(nemo2(step, seconds) for step, seconds in enumerate([57.25, 4.27, 4.29, 4.28]))
    )
    assert (reading.framework, reading.value, reading.left_out) == ("nemo", 4.28, {"warm_up": 1})
    assert reading.global_batch == 128


@pytest.mark.parametrize(
    "form", [" | peak_memory_usage: {} | memory_allocated: 33289312256", ", peak_memory_usage={}"]
)
def test_the_memory_of_nemo_is_the_most_that_was_reserved(form: str) -> None:
    lines = [
        nemo2(step, 4.28) + form.format(peak)
        for step, peak in enumerate([61203283968, 65498251264, 65498251264])
    ]
    reading = logs.read(text(lines))
    assert (reading.memory_gib, reading.memory_kind) == (pytest.approx(61.0), "reserved")
