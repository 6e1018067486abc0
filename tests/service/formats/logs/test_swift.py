"""Lines of ms-swift."""

from __future__ import annotations

import pytest

from service.formats import logs
from tests.service.formats.logs.dialects import text


def lines(own: list[float], first: int = 0, unit: str = "s/it", step: str = "iteration") -> str:
    """A run that began at a step, of which each step took so long."""
    printed, total = [], 0.0
    for count, seconds in enumerate(own, 1):
        total += seconds
        mean = total / count
        speed = mean if unit == "s/it" else 1 / mean
        elapsed = f"{int(total) // 60}m {int(total) % 60}s"
        printed.append(
            f"{{'loss': 1.21, 'grad_norm': 1.1, '{step}': '{first + count}/300', 'elapsed_time':"
            f" '{elapsed}', 'remaining_time': '1h 4m 4s', 'memory(GiB)': 47.25,"
            f" 'train_speed({unit})': {speed:.6f}}}"
        )
    return text(printed)


@pytest.mark.parametrize(
    ("unit", "step"),
    [("s/it", "iteration"), ("s/it", "global_step/max_steps"), ("iter/s", "global_step/max_steps")],
)
def test_the_own_time_of_a_step_is_told_from_the_mean_of_all(unit: str, step: str) -> None:
    reading = logs.read(lines([60.0] + [14.0] * 20, unit=unit, step=step))
    assert reading.framework == "ms-swift"
    assert reading.value == pytest.approx(14.0, rel=1e-2)
    assert (reading.memory_gib, reading.memory_kind) == (47.25, "reserved")


def test_a_run_that_was_resumed_counts_from_where_it_began() -> None:
    reading = logs.read(lines([60.0] + [14.0] * 20, first=100))
    assert reading.value == pytest.approx(14.0, rel=0.05)


def test_numbers_as_texts_are_read() -> None:
    quoted = lines([14.0] * 8).replace(": 47.25", ": '47.25'").replace("14.000000", "'14'")
    assert logs.read(quoted).value == pytest.approx(14.0)
