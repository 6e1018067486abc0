"""Runs that changed their speed for good."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.formats import logs
from tests.long import examples
from tests.service.formats.logs.dialects import maxtext, megatron, text


def noisy(count: int, ms: float) -> list[float]:
    return [ms * (1 + 0.002 * (step % 5)) for step in range(count)]


def test_a_log_of_two_speeds_says_where_it_changed() -> None:
    times = [*noisy(40, 4000.0), *noisy(60, 4400.0)]
    reading = logs.read(text(megatron(100 + step, f"{ms:.1f}") for step, ms in enumerate(times)))
    before, after = reading.regimes
    assert before.first_step == 100
    assert abs(after.first_step - 140) <= 2
    assert (before.value, after.value) == pytest.approx((4.0, 4.4), rel=0.01)


@pytest.mark.parametrize(("slower", "steps"), [(1.4, 40), (1.25, 45), (0.4, 40), (2.5, 15)])
def test_a_speed_that_changed_for_good_is_a_level_however_far_it_went(
    slower: float, steps: int
) -> None:
    times = [*noisy(100 - steps, 4000.0), *noisy(steps, 4000.0 * slower)]
    times[20], times[-3] = 5 * times[20], 5 * times[-3]  # pauses at either
    reading = logs.read(text(megatron(1 + step, f"{ms:.1f}") for step, ms in enumerate(times)))
    assert reading.left_out == {"warm_up": 1, "slow": 2}
    assert [level.steps for level in reading.regimes] == pytest.approx(
        [98 - steps, steps - 1], abs=2
    )
    assert [level.value for level in reading.regimes] == pytest.approx(
        [4.0, 4.0 * slower], rel=0.01
    )


@pytest.mark.parametrize(
    "unsteady", [[4000.0, 9000.0] * 10, [4000.0 * (1 + 10 * 0.8**step) for step in range(30)]]
)
def test_pauses_and_a_long_warm_up_are_no_levels(unsteady: list[float]) -> None:
    reading = logs.read(
        text(
            megatron(1 + step, f"{ms:.1f}")
            for step, ms in enumerate([*unsteady, *noisy(60, 4000.0)])
        )
    )
    assert len(reading.regimes) == 1
    assert reading.high < 4.9


def test_a_clock_that_runs_ahead_for_long_is_no_level() -> None:
    reading = logs.read(text(maxtext(step, 5.6 if step < 40 else 0.002) for step in range(60)))
    assert (reading.value, reading.left_out) == (5.6, {"warm_up": 1, "too_fast": 20})


def test_a_log_of_one_speed_has_one_level() -> None:
    times = [*noisy(50, 4000.0), 9000.0, *noisy(50, 4010.0)]  # a checkpoint between
    reading = logs.read(text(megatron(1 + step, f"{ms:.1f}") for step, ms in enumerate(times)))
    (level,) = reading.regimes
    assert (level.first_step, level.steps, level.value) == (2, reading.steps_used, reading.value)


@settings(max_examples=examples(4))  # each takes a second
@given(st.integers(6000, 9000), st.integers(0, 2**16))
def test_a_long_log_is_cut_into_its_levels(count: int, seed: int) -> None:
    half = count // 2
    wobble = [((seed + 7919 * step) % 101) / 1e5 for step in range(count)]
    times = [(1000.0 if step < half else 1200.0) * (1 + wobble[step]) for step in range(count)]
    reading = logs.read(text(megatron(1 + step, f"{ms:.2f}") for step, ms in enumerate(times)))
    levels = reading.regimes
    assert [level.value for level in levels] == pytest.approx([1.0, 1.2], rel=0.01)
    assert sum(level.steps for level in levels) == reading.steps_used
    assert abs(levels[1].first_step - 1 - half) <= 5
