"""Changes of level are found where they were made, and not where there are none."""

from __future__ import annotations

import numpy as np
import pytest

from models.calibration.drift import MIN_RUNS, level_changes, level_changes_among_kinds


def series(*parts: tuple[int, float], noise: float = 0.03, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.concatenate([level + noise * generator.standard_normal(n) for n, level in parts])


@pytest.mark.parametrize("shift", [0.06, -0.1, 0.5])
def test_a_shift_is_found_where_it_was_made(shift: float) -> None:
    (found,) = level_changes(series((30, 0.0), (20, shift)))
    assert abs(found.index - 30) <= 2
    assert found.shift == pytest.approx(shift, abs=0.02)
    assert found.p_value < 0.001


def test_two_shifts_are_two_changes() -> None:
    found = level_changes(series((40, 0.0), (40, 0.2), (40, 0.05)))
    assert [abs(change.index - at) <= 2 for change, at in zip(found, (40, 80), strict=True)] == [
        True,
        True,
    ]
    assert [change.shift > 0 for change in found] == [True, False]


@pytest.mark.parametrize(
    "levels", [(0.0, 0.1, 0.2), (0.0, 0.1, 0.0), (0.0, -0.1, 0.1), (0.0, 0.1, 0.2, 0.1)]
)
@pytest.mark.parametrize("seed", range(5))
def test_each_of_several_shifts_has_its_place_and_size(
    levels: tuple[float, ...], seed: int
) -> None:
    found = level_changes(series(*((30, level) for level in levels), seed=seed))
    assert [change.index for change in found] == pytest.approx(
        range(30, 30 * len(levels), 30), abs=3
    )
    assert [change.shift for change in found] == pytest.approx(np.diff(levels).tolist(), abs=0.03)


def test_an_odd_run_before_a_shift_is_no_part_of_what_comes_after() -> None:
    """Ranks alone would count the largest of the runs before it."""
    before = series((18, 0.0), noise=0.01)
    before[-1] = before.max() + 0.005
    (found,) = level_changes(np.concatenate([before, series((12, 0.12), noise=0.01, seed=1)]))
    assert found.index == 18


def test_noise_is_no_change() -> None:
    """At a significance of one in a hundred, about one series in a hundred may be taken for a
    change."""
    wrong = sum(bool(level_changes(series((60, 0.0), seed=seed))) for seed in range(400))
    assert wrong <= 10


def test_outliers_are_no_change() -> None:
    residuals = series((60, 0.0))
    residuals[[10, 45]] = 2.3
    assert level_changes(residuals) == []


def mixed(
    share_before: float, share_after: float, shift: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """A hundred runs of two kinds, one of which always takes 8% longer; all take `shift` longer
    from the middle on."""
    generator = np.random.default_rng(seed)
    share = np.repeat([share_before, share_after], 50)
    kinds = (generator.random(100) > share).astype(int)
    residuals = 0.08 * kinds + np.repeat([0.0, shift], 50) + 0.015 * generator.standard_normal(100)
    return residuals, kinds


@pytest.mark.parametrize("seed", range(5))
def test_another_mix_of_questions_is_no_change(seed: int) -> None:
    residuals, kinds = mixed(0.9, 0.1, 0.0, seed)
    assert level_changes(residuals)
    assert level_changes_among_kinds(residuals, kinds) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_change_among_several_questions_is_found(seed: int) -> None:
    residuals, kinds = mixed(0.7, 0.4, 0.06, seed)
    (found,) = level_changes_among_kinds(residuals, kinds)
    assert abs(found.index - 50) <= 3
    assert found.shift == pytest.approx(0.06, abs=0.02)


def test_questions_of_few_runs_are_aligned_together() -> None:
    residuals = series((30, 0.0), (20, 0.06))
    (found,) = level_changes_among_kinds(residuals, np.arange(50))
    assert abs(found.index - 30) <= 2


def test_few_runs_say_nothing() -> None:
    assert level_changes(series((MIN_RUNS, 0.0), (MIN_RUNS - 1, 1.0))) == []
    assert level_changes(np.zeros(50)) == []
    assert level_changes(np.array([])) == []


def test_pettitts_statistic_is_that_computed_by_hand() -> None:
    """Ranks 1 to 12 in order: U at 6 is 2 * 21 - 6 * 13 = -36, so p = 2 exp(-6 * 36^2 / (12^3 +
    12^2))."""
    (found,) = level_changes(np.arange(12.0), significance=0.1)
    assert found.index == 6
    assert found.p_value == pytest.approx(2 * np.exp(-6 * 36**2 / (12**3 + 12**2)))
