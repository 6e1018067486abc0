"""Deadlines count the time of computing alone."""

from __future__ import annotations

import time

from service.runtime.deadline import Deadline


def test_a_computation_that_is_set_aside_loses_no_time() -> None:
    pauses = [0.0, 0.1, 0.0]

    def set_aside() -> None:
        time.sleep(pauses.pop(0))

    whole = Deadline(0.05, set_aside)
    step = whole.three_quarters()
    assert step()  # at once
    assert step()  # after a pause that is longer than both deadlines
    assert whole()


def test_time_runs_out_and_a_step_ends_before_the_whole() -> None:
    whole = Deadline(0.2)
    step = whole.at_most(0.01)
    time.sleep(0.02)
    assert not step()
    assert whole()
    assert not whole.at_most(-1.0)()
    assert whole.at_most(10.0)._ends == whole._ends
