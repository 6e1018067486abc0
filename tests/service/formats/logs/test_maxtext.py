"""Lines of MaxText."""

from __future__ import annotations

import pytest

from models.errors import Invalid
from service.formats import logs
from tests.service.formats.logs.dialects import maxtext, text


def test_maxtext_clocks_that_run_ahead_are_waited_for() -> None:
    seconds = [44.9, 12.4, 0.002, 11.7, 11.6, 11.7, 11.8]
    reading = logs.read(text(maxtext(step, each) for step, each in enumerate(seconds)))
    assert (reading.framework, reading.unit, reading.value) == ("maxtext", "step_time_s", 11.7)
    assert reading.left_out == {"warm_up": 2, "too_fast": 1}


def test_hosts_that_print_one_step_late_are_no_restarts() -> None:
    steps = [0, 0, 1, 2, 1, 2, 3, 3, 4, 5, 4, 5]
    seconds = [20 if step == 0 else 4.2 + index / 100 for index, step in enumerate(steps)]
    lines = map(maxtext, steps, seconds)
    reading = logs.read(text(lines))
    assert (reading.restarts, reading.left_out) == (0, {"warm_up": 1, "repeated": 6})


def test_a_clock_that_runs_ahead_to_the_end_leaves_the_steps_before() -> None:
    assert logs.read(text([maxtext(5, 5.6), maxtext(6, 0.002)])).value == 5.6


def test_maxtext_memory_is_the_plan_of_the_compiler() -> None:
    plan = (
        "Total memory size: 37.5 GB, Output size: 11.2 GB, Temp size: 26.3 GB, Argument size:"
        " 11.2 GB"
    )
    reading = logs.read(text([plan, maxtext(9, 5.669)]))
    assert (reading.memory_gib, reading.memory_kind) == (37.5, "allocated")


RAMP_UP = [f"[Rampup Batch Size Phase], {maxtext(step, 0.6 + 0.1 * step)}" for step in range(6)]


def test_steps_of_a_ramp_up_are_not_those_of_the_run() -> None:
    reading = logs.read(text([*RAMP_UP, *(maxtext(step, 2.4) for step in (6, 7, 8))]))
    assert (reading.value, reading.steps_used, reading.left_out) == (2.4, 3, {"ramp_up": 6})


def test_a_log_of_a_ramp_up_alone_says_so() -> None:
    with pytest.raises(Invalid, match="every step is of the ramp-up phase"):
        logs.read(text(RAMP_UP))
