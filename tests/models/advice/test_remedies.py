"""What to try on a job that ran, or ran out of memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.advice.layout_check import LEAST_GAIN
from models.advice.recommendation import recommend
from models.advice.remedies import Memory, Remedy, fit_probability_after, remedies
from models.advice.single_changes import single_changes
from models.layouts.defaults import with_stack_defaults
from models.prediction.prediction import Prediction, predict_layouts
from models.spec.layout import Layout
from models.spec.problem import Problem
from tests.benchmarks.problems import problem
from tests.models.advice.problems import PROFILE, llama


def tried(
    asked: Problem, memory: Memory, best: Prediction | None = None, **knobs: Any
) -> tuple[Prediction, list[Remedy]]:
    layout = with_stack_defaults(asked, Layout(**knobs), knobs)
    (before,) = predict_layouts(asked, [layout], PROFILE)
    return before, remedies(before, single_changes(asked, PROFILE, layout), best, memory)


def test_what_gains_most_comes_first_and_what_gains_little_is_left_out() -> None:
    asked = llama(16, 64)
    best = recommend(asked, PROFILE).fastest.prediction
    before, found = tried(asked, "fitted", best, tp=4, dp_shard=4, zero_stage=1, recompute="full")
    gains = [one.gain for one in found if one.gain is not None]
    assert gains == sorted(gains, reverse=True)
    assert min(gains) >= LEAST_GAIN
    assert found[0].layout == best.layout
    assert found[0].gain == pytest.approx(before.step_time_s / best.step_time_s - 1)
    knobs = [one.change.knob for one in found if one.change is not None]
    assert len(set(knobs)) == len(knobs)
    assert "recompute" in knobs


def test_nothing_is_to_try_on_the_best_layout() -> None:
    asked = llama(16, 64)
    best = recommend(asked, PROFILE).fastest.prediction
    changes = single_changes(asked, PROFILE, best.layout)
    assert remedies(best, changes, best, "fitted") == []


def test_after_it_ran_out_of_memory_only_what_needs_less_is_to_try() -> None:
    asked = problem("llama-3-70b", ("h100", 64), "megatron", seq_len=8192, global_batch=64)
    before, found = tried(asked, "ran_out", tp=4, dp_shard=16, zero_stage=1)
    assert found
    assert all(one.needed_gib < before.needed_gib for one in found)
    assert found[0].is_safe


def test_a_run_that_fitted_shows_that_what_needs_less_fits() -> None:
    asked = problem("llama-3-70b", ("h100", 64), "megatron", seq_len=8192, global_batch=64)
    layout = {"tp": 4, "dp_shard": 16, "zero_stage": 1}
    before, found = tried(asked, "fitted", **layout)
    assert before.fit_probability < 0.9
    assert all(one.is_safe for one in found if one.needed_gib < before.needed_gib)


ASKED = llama(16, 64)
LAYOUT = with_stack_defaults(ASKED, Layout(tp=4, dp_shard=4, zero_stage=1), {"tp", "zero_stage"})
(BEFORE,) = predict_layouts(ASKED, [LAYOUT], PROFILE)


@given(st.floats(0, 1), st.floats(0.001, 0.999), st.sampled_from(["fitted", "ran_out"]))
def test_what_a_run_showed_is_a_probability_and_moves_it_that_way(
    probability: float, known: float, memory: Memory
) -> None:
    before = replace(BEFORE, fit_probability=known)
    after = fit_probability_after(probability, before, memory)
    assert 0 <= after <= 1
    slack = 1e-12
    assert after >= probability - slack if memory == "fitted" else after <= probability + slack
    assert fit_probability_after(probability, before, "not_known") == probability
