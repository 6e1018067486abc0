"""What is odd about a model, integrated out, against the same terms written out as columns of their
own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.calibration.map_fit import Linear
from models.calibration.random_effects import RandomEffects


def drawn(seed: int) -> tuple[RandomEffects, Linear, np.ndarray, np.ndarray]:
    """Some runs are predicted alike, whosever model they are of."""
    draw = np.random.default_rng(seed)
    runs, models, terms = (
        int(draw.integers(3, 40)),
        int(draw.integers(1, 6)),
        int(draw.integers(1, 5)),
    )
    model = draw.integers(0, models, runs)
    oddities = RandomEffects(
        model, np.where(draw.random(models) < 0.3, 0.0, draw.uniform(0.05, 1.0, models))
    )
    rows = int(draw.integers(1, runs + 1))
    linear = Linear(
        np.zeros(terms),
        np.zeros(rows),
        draw.normal(size=(rows, terms)),
        draw.integers(0, rows, runs),
    )
    return oddities, linear, draw.normal(size=runs), draw.uniform(0.1, 9.0, runs)


@given(seed=st.integers(0, 10_000))
def test_integrating_out_is_solving_with_a_column_for_every_model(seed: int) -> None:
    oddities, linear, residual, say = drawn(seed)
    jacobian, odd = linear.jacobian[linear.row], np.flatnonzero(oddities.spread > 0)
    columns = (oddities.model[:, None] == odd).astype(float)
    whole, terms = np.hstack([jacobian, columns]), jacobian.shape[1]
    prior = np.diag(np.concatenate([np.ones(terms), oddities.spread[odd] ** -2.0]))
    both = np.linalg.solve(prior + whole.T @ (say[:, None] * whole), whole.T @ (say * residual))

    normal = np.eye(terms) + linear.normal(say) - oddities.normal(linear.jacobian, linear.row, say)
    found = np.linalg.solve(normal, linear.pull(say * (residual - oddities.common(residual, say))))
    assert found == pytest.approx(both[:terms])
    left = oddities.common(residual - linear.at(found).predicted, say)
    assert left == pytest.approx(columns @ both[terms:])
    assert oddities.loss(left) == pytest.approx(
        ((both[terms:] / oddities.spread[odd]) ** 2 * np.isin(odd, oddities.model)).sum()
    )


def test_models_that_are_as_they_seem_have_nothing_of_their_own() -> None:
    oddities, linear, residual, say = drawn(0)
    plain = RandomEffects(oddities.model, np.zeros_like(oddities.spread))
    assert not plain.common(residual, say).any()
    assert not plain.normal(linear.jacobian, linear.row, say).any()
    assert plain.loss(np.zeros_like(residual)) == 0


def test_a_thousand_runs_of_one_model_say_no_more_of_its_level_than_its_spread_allows() -> None:
    """Of a common term that every run has alike they leave σ², and of a difference between its
    layouts nothing."""
    runs, noise, spread = 1000, 0.05, 0.12
    oddities = RandomEffects(np.zeros(runs, dtype=int), np.array([spread]))
    jacobian = np.stack([np.ones(runs), np.tile([-1.0, 1.0], runs // 2)], axis=1)
    say = np.full(runs, noise**-2.0)
    normal = jacobian.T @ (say[:, None] * jacobian) - oddities.normal(
        jacobian, np.arange(runs), say
    )
    variance = np.diag(np.linalg.inv(normal))
    assert variance == pytest.approx([spread**2 + noise**2 / runs, noise**2 / runs])
