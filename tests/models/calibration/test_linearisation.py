"""Linearisations in blocks, against the Jacobian written out, and against predictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.calibration.linearisation import Block, Linearisation
from models.calibration.observation import Observation
from models.calibration.posterior import Posterior
from models.calibration.time_and_memory_fits import memory_fit, time_fit
from models.cost.predictions import predict
from models.spec.layout import Layout, Layouts
from models.spec.profile import shipped_profile
from tests.models.cost.examples import question


def drawn(draw: np.random.Generator) -> tuple[Linearisation, np.ndarray]:
    """A linearisation, and its Jacobian with a row for each of its rows."""
    terms, coefficients = int(draw.integers(1, 9)), int(draw.integers(1, 5))
    rows = int(draw.integers(1, 30))
    slopes = draw.normal(size=(rows, coefficients))
    ends = np.unique([0, rows, *draw.integers(0, rows + 1, 3)])
    blocks = []
    jacobian = np.zeros((rows, terms))
    for begin, end in zip(ends[:-1], ends[1:], strict=True):
        parts = draw.permutation(terms)[: draw.integers(0, terms + 1)]
        of = draw.integers(0, coefficients, len(parts))
        blocks.append(Block(slice(int(begin), int(end)), parts, of))
        for term, coefficient in zip(parts, of, strict=True):
            jacobian[begin:end, term] = slopes[begin:end, coefficient]
    row = draw.integers(0, rows, int(draw.integers(1, 40)))
    theta = draw.normal(size=terms)
    return Linearisation(theta, draw.normal(size=rows), slopes, blocks, row), jacobian


@given(seed=st.integers(0, 10_000))
def test_blocks_say_what_the_jacobian_says(seed: int) -> None:
    draw = np.random.default_rng(seed)
    linear, of_rows = drawn(draw)
    jacobian = of_rows[linear.row]
    runs, terms = jacobian.shape
    weight, moved = draw.uniform(0.1, 9.0, runs), draw.normal(size=terms)
    away = moved - linear.theta
    assert linear.at(moved).predicted == pytest.approx(linear.predicted + jacobian @ away)
    assert linear.gradient(weight) == pytest.approx(jacobian.T @ weight)
    assert linear.normal_matrix(weight) == pytest.approx(jacobian.T @ np.diag(weight) @ jacobian)
    variance = draw.uniform(0.0, 2.0, terms)
    expected = np.diag(jacobian @ np.diag(variance) @ jacobian.T)
    assert linear.prediction_variance(variance) == pytest.approx(expected)
    sums = draw.normal(size=(3, len(of_rows)))
    assert linear.gradients(sums) == pytest.approx(sums @ of_rows)


def test_a_fit_is_linearised_as_its_predictions_move_with_every_term() -> None:
    problems = [question(), question("qwen3-30b-a3b"), question(global_batch=64)]
    layouts = [Layout(dp_shard=64, zero_stage=3), Layout(dp_shard=16, pp=4, zero_stage=1)]
    runs = [
        Observation(key=f"{i}", problem=problem, layout=layout, step_time_s=5.0, memory_bytes=4e10)
        for i, (problem, layout) in enumerate((p, one) for p in problems for one in layouts)
    ]
    for make in (time_fit, memory_fit):
        fit = make(shipped_profile(), runs, Posterior.independent())
        linear = fit.linearise(fit.prior_mean)
        assert linear.predicted == pytest.approx(fit.log_predictions(fit.prior_mean), abs=1e-12)
        jacobian = linear.gradients(np.eye(len(linear.logs)))[linear.row]
        assert jacobian.any(axis=1).all()
        step = 1e-3
        for term in range(len(fit.terms)):
            moved = step * np.eye(len(fit.terms))[term]
            up, down = (fit.log_predictions(fit.prior_mean + way * moved) for way in (1, -1))
            assert jacobian[:, term] == pytest.approx((up - down) / (2 * step), abs=1e-9)


def test_predictions_of_a_fit_are_those_of_the_profile_with_its_terms() -> None:
    problem, layout = question(), Layout(dp_shard=64, zero_stage=3)
    run = Observation(key="a", problem=problem, layout=layout, step_time_s=5.0)
    fit = time_fit(shipped_profile(), [run], Posterior.independent())
    theta = fit.prior_mean + 0.1 * np.arange(len(fit.terms)) / len(fit.terms)
    terms = {t.key: replace(t, mean=float(m)) for t, m in zip(fit.terms, theta, strict=True)}
    profile = shipped_profile().with_terms(terms)
    found = predict(problem, Layouts.of([layout]), profile.coefficients(problem.scopes))
    assert fit.log_predictions(theta) == pytest.approx(np.log(found.step_time_s), abs=1e-12)
    wanted = np.zeros(1, dtype=bool)
    assert np.isnan(fit.log_predictions(theta, wanted)).all()
