"""Deadlines count the time of computing alone."""

from __future__ import annotations

import pytest

from service.runtime import deadline
from service.runtime.deadline import Deadline, TimedCheckpoint


class Clock:
    """A clock that goes on only when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def go_on(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(deadline, "monotonic", clock)
    return clock


def test_a_computation_that_is_set_aside_loses_no_time(clock: Clock) -> None:
    pauses_s = [0.0, 10.0, 0.0]
    whole = Deadline(5.0, lambda: clock.go_on(pauses_s.pop(0)))
    step = whole.three_quarters()
    assert step()  # at once
    assert step()  # after a pause that is longer than both deadlines
    assert whole()


def test_time_in_which_others_compute_counts_for_who_waits(clock: Clock) -> None:
    def others_compute() -> None:
        clock.go_on(20.0)

    patient = Deadline(10.0, others_compute)
    impatient = Deadline(10.0, TimedCheckpoint(others_compute, clock.now_s + 15.0))
    assert patient()
    assert not impatient()


def test_time_runs_out_and_a_step_ends_before_the_whole(clock: Clock) -> None:
    whole = Deadline(20.0)
    step = whole.at_most(1.0)
    clock.go_on(2.0)
    assert not step()
    assert whole()
    assert not whole.at_most(-1.0)()
    assert whole.at_most(100.0)._ends == whole._ends
    clock.go_on(18.5)
    assert not whole()
