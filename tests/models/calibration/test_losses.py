"""Reweighted least squares have the slope of the losses that they stand for, and bounds say what
they should of runs that failed."""

from __future__ import annotations

import numpy as np
import pytest

from models.calibration.losses import BoundLoss, student_t_loss, student_t_weight

ONE = np.ones(1)
NOISE = np.array([0.1])


@pytest.mark.parametrize("residual", [-1.0, -0.1, 0.02, 0.5])
def test_student_t_weights_have_the_slope_of_the_loss(residual: float) -> None:
    at = np.array([residual])
    step = 1e-6
    slope = (student_t_loss(at + step, NOISE) - student_t_loss(at - step, NOISE)) / (2 * step)
    assert 2 * student_t_weight(at, ONE, NOISE) * at == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("distance", [-1.0, -0.1, 0.0, 0.02, 0.4, 1.5])
def test_a_bound_is_reweighted_to_the_slope_of_its_loss(sign: int, distance: float) -> None:
    def bound(at: float) -> BoundLoss:
        return BoundLoss.of(np.array([sign]), np.array([at]), NOISE)

    step = 1e-6
    slope = (bound(distance + step).loss() - bound(distance - step).loss()) / (2 * step)
    here = bound(distance)
    assert 2 * here.irls_weight(ONE) * here.irls_residual() == pytest.approx(
        slope, rel=1e-4, abs=1e-9
    )
    assert here.irls_weight(ONE) >= here.information(ONE) * (1 - 1e-9)


def test_a_bound_that_is_missed_by_far_pulls_less_than_one_that_is_just_missed() -> None:
    near, far = (BoundLoss.of(ONE, np.array([at]), NOISE) for at in (0.05, 1.5))
    pulls = [bound.irls_weight(ONE) * bound.irls_residual() for bound in (near, far)]
    assert 0 < pulls[1] < pulls[0]


def test_a_bound_that_is_kept_by_far_says_nothing() -> None:
    kept = BoundLoss.of(ONE, np.array([-2.0]), NOISE)
    assert kept.loss() == pytest.approx(0, abs=1e-9)
    assert kept.information(ONE) == pytest.approx(0, abs=1e-6)
