"""How far sources lie from each other, against medians worked out by hand and drawn ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from models.calibration.between_sources import spread_of_sources
from models.calibration.map_fit import Fit


def a_fit(
    stacks: list[str],
    quantity: str = "step_time",
    side: str = "equal",
    generations: list[str] | None = None,
) -> Fit:
    """As much of a fit as is read: the quantity, the stack and the generation of every target."""
    targets = [
        SimpleNamespace(
            quantity=quantity,
            side=side,
            problem=SimpleNamespace(
                stack=SimpleNamespace(calibrated_as=stack),
                cluster=SimpleNamespace(chip=SimpleNamespace(generation=generation)),
            ),
        )
        for stack, generation in zip(stacks, generations or ["hopper"] * len(stacks), strict=True)
    ]
    return cast(Any, SimpleNamespace(targets=targets))


def spread(fit: Fit, residuals: np.ndarray, names: list[str]) -> float:
    return spread_of_sources(fit, residuals, np.array(names), ("step_time",))


def test_the_spread_is_that_of_the_medians_of_sources_and_not_of_their_runs() -> None:
    medians = [0.0, 0.02, -0.04, 0.06, -0.2, 0.3]
    names = [name for name in "abcdef" for _ in range(3)]
    noisy = np.array([m + noise for m in medians for noise in (-0.5, 0.0, 0.5)])
    fit = a_fit(["one"] * 18)
    assert spread(fit, noisy, names) == spread(fit, np.repeat(medians, 3), names) > 0


def test_the_farthest_fifth_of_sources_counts_for_nothing() -> None:
    names = [name for name in "abcde" for _ in range(3)]
    fit = a_fit(["one"] * 15)
    near, far = (np.repeat([0.0, 0.02, -0.04, 0.06, last], 3) for last in (0.07, 3.0))
    assert spread(fit, near, names) == spread(fit, far, names)


def test_peaks_of_memory_count_together_whatever_they_count() -> None:
    medians = np.repeat([0.0, 0.02, -0.04, 0.06, -0.2, 0.3], 3)
    names = np.array([name for name in "abcdef" for _ in range(3)])
    fit = a_fit(["one"] * 18, "reserved")
    found = spread_of_sources(fit, medians, names, ("allocated", "reserved"))
    assert found == spread(a_fit(["one"] * 18), medians, [*names])


def test_drawn_sources_are_told_as_far_apart_as_they_were_drawn() -> None:
    draw = np.random.default_rng(0)
    names = [f"{i}" for i in range(400) for _ in range(9)]
    residuals = np.repeat(draw.normal(0, 0.15, 400), 9) + draw.normal(0, 0.05, 3600)
    found = spread(a_fit(["one"] * 3600), residuals, names)
    assert found == pytest.approx(0.15, rel=0.1)


def test_a_stack_of_one_organisation_tells_nothing() -> None:
    names = [name for name in "abcdefg" for _ in range(3)]
    residuals = np.repeat([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 9.0], 3)
    stacks = ["one"] * 18 + ["other"] * 3
    without = spread(a_fit(["one"] * 18), residuals[:18], names[:18])
    assert spread(a_fit(stacks), residuals, names) == without > 0


def test_a_stack_on_chips_of_one_organisation_tells_nothing() -> None:
    names = [name for name in "abcdefg" for _ in range(3)]
    residuals = np.repeat([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 9.0], 3)
    fit = a_fit(["one"] * 21, generations=["hopper"] * 18 + ["trainium"] * 3)
    without = spread(a_fit(["one"] * 18), residuals[:18], names[:18])
    assert spread(fit, residuals, names) == without > 0


@pytest.mark.parametrize("organisations", ["aaabbbcccddd", "aabbccddeeffgghh"])
def test_too_few_sources_or_runs_tell_nothing(organisations: str) -> None:
    residuals = np.full(len(organisations), 0.3)
    assert spread(a_fit(["one"] * len(residuals)), residuals, [*organisations]) == 0.0


def test_bounds_and_other_quantities_tell_nothing() -> None:
    names = [*"aaabbbcccdddeeefff"]
    residuals = np.full(len(names), 0.3)
    for fit in (a_fit(["one"] * 18, side="at_least"), a_fit(["one"] * 18, "reserved")):
        assert spread(fit, residuals, names) == 0.0
