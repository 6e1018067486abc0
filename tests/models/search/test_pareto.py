"""The front of layouts that no other beats."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from models.advice.recommendation import recommend
from models.search.pareto import pareto_front, staircase
from tests.benchmarks.problems import NAMED
from tests.models.advice.problems import PROFILE, rows


@given(rows)
def test_the_front_is_what_nothing_beats(choices: list[tuple[int, int, int]]) -> None:
    times, points, free = (np.array(column) for column in zip(*choices, strict=True))

    def beaten(a: tuple[int, int, int]) -> bool:
        return any(b[0] <= a[0] and b[1] <= a[1] and b[2] >= a[2] and b != a for b in choices)

    front = [choices[row] for row in pareto_front(times, points, free)]
    assert sorted(front) == sorted({one for one in choices if not beaten(one)})
    plane = [(int(times[row]), int(points[row])) for row in staircase(times, points)]
    pairs = {one[:2] for one in choices}
    assert sorted(plane) == sorted(
        a for a in pairs if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in pairs)
    )


def test_the_front_goes_from_the_fastest_to_the_simplest() -> None:
    found = recommend(NAMED["llama-3.1-405b"](), PROFILE)
    assert found.front[0] == found.fastest
    assert found.simplest in found.front
    assert min(candidate.complexity for candidate in found.front) == found.simplest.complexity
    assert (
        max(candidate.prediction.step_time_s for candidate in found.front)
        <= found.fastest.prediction.step_time_s * 1.03
    )
