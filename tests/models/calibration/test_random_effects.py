"""What the runs of a group have in common, integrated out, against the same terms written out as
columns of their own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.calibration.linearisation import Block, Linearisation
from models.calibration.random_effects import RandomEffects


def linear_in(jacobian: np.ndarray, row: np.ndarray) -> Linearisation:
    """Predictions with this Jacobian, where every coefficient has one term."""
    rows, terms = jacobian.shape
    block = Block(slice(0, rows), np.arange(terms), np.arange(terms))
    return Linearisation(np.zeros(terms), np.zeros(rows), jacobian, [block], row)


def drawn(seed: int) -> tuple[RandomEffects, Linearisation, np.ndarray, np.ndarray]:
    """Some runs are predicted alike, whatever their group."""
    draw = np.random.default_rng(seed)
    runs, groups, terms = (
        int(draw.integers(3, 40)),
        int(draw.integers(1, 6)),
        int(draw.integers(1, 5)),
    )
    group = draw.integers(0, groups, runs)
    random_effects = RandomEffects(
        group, np.where(draw.random(groups) < 0.3, 0.0, draw.uniform(0.05, 1.0, groups))
    )
    rows = int(draw.integers(1, runs + 1))
    linear = linear_in(draw.normal(size=(rows, terms)), draw.integers(0, rows, runs))
    return random_effects, linear, draw.normal(size=runs), draw.uniform(0.1, 9.0, runs)


@given(seed=st.integers(0, 10_000))
def test_integrating_out_is_solving_with_a_column_for_every_group(seed: int) -> None:
    random_effects, linear, residual, irls_weight = drawn(seed)
    jacobian, odd = linear.slopes[linear.row], np.flatnonzero(random_effects.spread > 0)
    columns = (random_effects.group[:, None] == odd).astype(float)
    whole, terms = np.hstack([jacobian, columns]), jacobian.shape[1]
    prior = np.diag(np.concatenate([np.ones(terms), random_effects.spread[odd] ** -2.0]))
    both = np.linalg.solve(
        prior + whole.T @ (irls_weight[:, None] * whole), whole.T @ (irls_weight * residual)
    )

    normal = (
        np.eye(terms)
        + linear.normal_matrix(irls_weight)
        - random_effects.lost_information(linear, irls_weight)
    )
    found = np.linalg.solve(
        normal,
        linear.gradient(irls_weight * (residual - random_effects.means(residual, irls_weight))),
    )
    assert found == pytest.approx(both[:terms])
    left = random_effects.means(residual - linear.at(found).predicted, irls_weight)
    assert left == pytest.approx(columns @ both[terms:])
    assert random_effects.loss(left) == pytest.approx(
        (
            (both[terms:] / random_effects.spread[odd]) ** 2 * np.isin(odd, random_effects.group)
        ).sum()
    )


def test_groups_that_are_as_they_seem_have_nothing_of_their_own() -> None:
    random_effects, linear, residual, irls_weight = drawn(0)
    plain = RandomEffects(random_effects.group, np.zeros_like(random_effects.spread))
    assert not plain.means(residual, irls_weight).any()
    assert not plain.lost_information(linear, irls_weight).any()
    assert plain.loss(np.zeros_like(residual)) == 0


def test_a_thousand_runs_of_one_group_say_no_more_of_its_level_than_its_spread_allows() -> None:
    """Of a common term that every run has alike they leave σ², and of a difference between its
    layouts nothing."""
    runs, noise, spread = 1000, 0.05, 0.12
    random_effects = RandomEffects(np.zeros(runs, dtype=int), np.array([spread]))
    jacobian = np.stack([np.ones(runs), np.tile([-1.0, 1.0], runs // 2)], axis=1)
    irls_weight = np.full(runs, noise**-2.0)
    linear = linear_in(jacobian, np.arange(runs))
    lost = random_effects.lost_information(linear, irls_weight)
    normal = jacobian.T @ (irls_weight[:, None] * jacobian) - lost
    variance = np.diag(np.linalg.inv(normal))
    assert variance == pytest.approx([spread**2 + noise**2 / runs, noise**2 / runs])
