"""What to try on a job that ran, or ran out of memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.advice.layout_check import LEAST_GAIN
from models.advice.recommendation import recommend
from models.advice.remedies import MemoryShown, Remedy, fit_probability_after, remedies
from models.advice.single_changes import single_changes
from models.layouts.defaults import with_stack_defaults
from models.prediction.prediction import Prediction, predict_layouts
from models.spec.layout import Layout
from models.spec.problem import Problem
from tests.benchmarks.problems import problem
from tests.models.advice.problems import PROFILE, llama

FITTED = MemoryShown("fitted")
RAN_OUT = MemoryShown("ran_out")


def tried(
    asked: Problem, shown: MemoryShown, best: Prediction | None = None, **knobs: Any
) -> tuple[Prediction, list[Remedy]]:
    layout = with_stack_defaults(asked, Layout(**knobs), knobs)
    (before,) = predict_layouts(asked, [layout], PROFILE)
    return before, remedies(before, single_changes(asked, PROFILE, layout), best, shown)


def test_what_gains_most_comes_first_and_what_gains_little_is_left_out() -> None:
    asked = llama(16, 64)
    best = recommend(asked, PROFILE).fastest.prediction
    before, found = tried(asked, FITTED, best, tp=4, dp_shard=4, zero_stage=1, recompute="full")
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
    assert remedies(best, changes, best, FITTED) == []


def test_after_it_ran_out_of_memory_only_what_needs_less_is_to_try() -> None:
    asked = problem("llama-3-70b", ("h100", 64), "megatron", seq_len=8192, global_batch=64)
    before, found = tried(asked, RAN_OUT, tp=4, dp_shard=16, zero_stage=1)
    assert found
    assert all(one.needed_gib < before.needed_gib for one in found)
    assert found[0].is_safe


def test_a_run_that_fitted_shows_that_what_needs_less_fits() -> None:
    asked = problem("llama-3-70b", ("h100", 64), "megatron", seq_len=8192, global_batch=64)
    layout = {"tp": 4, "dp_shard": 16, "zero_stage": 1}
    before, found = tried(asked, FITTED, **layout)
    assert before.fit_probability < 0.9
    assert all(one.is_safe for one in found if one.needed_gib < before.needed_gib)


ASKED = llama(16, 64)
LAYOUT = with_stack_defaults(ASKED, Layout(tp=4, dp_shard=4, zero_stage=1), {"tp", "zero_stage"})
(BEFORE,) = predict_layouts(ASKED, [LAYOUT], PROFILE)


GIB = st.floats(5, 200)


def fits_after(needed_gib: float, ran_gib: float, shown: MemoryShown) -> float:
    """The probability that a layout fits after a run that was predicted to need `ran_gib`."""
    context_gib = BEFORE.memory_gib["context_gib"]
    factor = (ran_gib - context_gib) / BEFORE.reserved_gib
    before = replace(
        BEFORE,
        needed_gib=ran_gib,
        reserved_gib=ran_gib - context_gib,
        needed_high_gib=context_gib + factor * (BEFORE.needed_high_gib - context_gib),
    )
    return fit_probability_after(0.5, needed_gib, before, shown)


@given(GIB, GIB, GIB, st.sampled_from([FITTED, RAN_OUT, MemoryShown("fitted", 1.3)]))
def test_what_a_run_showed_is_a_probability_and_keeps_the_order(
    one: float, other: float, ran: float, shown: MemoryShown
) -> None:
    more, less = (fits_after(gib, ran, shown) for gib in sorted((one, other)))
    assert 0 <= less <= 1
    assert less <= more + 0.05
    assert fits_after(one, ran, MemoryShown("not_known")) == 0.5


@given(st.floats(5, 300))
def test_what_needs_as_much_as_the_run_fits_where_that_did(ran: float) -> None:
    assert fits_after(ran, ran, FITTED) == pytest.approx(1, abs=0.01)
    assert fits_after(0.7 * ran, ran, FITTED) > 0.99
    assert fits_after(ran, ran, RAN_OUT) == pytest.approx(0, abs=0.01)
    assert fits_after(1.5 * ran, ran, RAN_OUT) < 0.01


def test_a_measured_peak_says_how_far_off_the_prediction_is() -> None:
    tight = fits_after(76, 70, MemoryShown("fitted", peak_factor=1.05))
    roomy = fits_after(76, 70, MemoryShown("fitted", peak_factor=0.8))
    assert tight < 0.6 < 0.99 < roomy
    assert fits_after(12, 10, MemoryShown("fitted", peak_factor=3.0)) > 0.99
