"""A prediction and its interval."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.prediction.prediction import _quantiles, predict_layouts
from models.spec import catalogue
from models.spec.layout import Layout
from models.spec.profile import Z80
from tests.models.cost.examples import PROFILE, question


def test_the_interval_of_a_chip_that_no_run_informed_is_wider() -> None:
    layout = Layout(dp_shard=64, zero_stage=3, recompute="full")
    widths = {}
    for chip in ("h100", "mi300x"):
        problem = replace(
            question(), cluster=catalogue.cluster(chip, 64), stack=catalogue.stack("torchtitan")
        )
        found = predict_layouts(problem, [layout], PROFILE)[0]
        widths[chip] = found.step_time_high_s / found.step_time_low_s
    assert widths["mi300x"] > 1.1 * widths["h100"]


def test_an_interval_holds_how_far_sources_lie_from_each_other() -> None:
    layout = Layout(dp_shard=64, zero_stage=3)
    near, far = (
        predict_layouts(question(), [layout], replace(PROFILE, between_sources=between))[0]
        for between in (0.0, 0.3)
    )
    widths = [np.log(p.step_time_high_s / p.step_time_s) / Z80 for p in (near, far)]
    assert widths[1] == pytest.approx(np.hypot(widths[0], 0.3), rel=0.01)
    assert near.step_time_s == far.step_time_s


def test_memory_is_less_sure_where_sources_lie_apart() -> None:
    layout = Layout(dp_shard=64, zero_stage=3, recompute="full")
    sure, unsure = (
        predict_layouts(question(), [layout], replace(PROFILE, memory_between_sources=between))[0]
        for between in (0.0, 0.5)
    )
    assert unsure.needed_high_gib > sure.needed_high_gib
    assert sure.fit_probability > unsure.fit_probability > 0.5


def test_layouts_are_predicted_together_as_if_alone() -> None:
    problem = question()
    layouts = [
        Layout(dp_shard=64, zero_stage=3),
        Layout(dp_shard=16, pp=4, zero_stage=1, recompute="full"),
        Layout(dp_shard=32, tp=2, zero_stage=3),
    ]
    alone = [predict_layouts(problem, [layout], PROFILE)[0] for layout in layouts]
    assert predict_layouts(problem, layouts, PROFILE) == alone


def test_another_problem_or_profile_is_not_answered_from_what_was_kept() -> None:
    layout = Layout(dp_shard=64, zero_stage=3)
    first = predict_layouts(question(), [layout], PROFILE)[0]
    assert predict_layouts(question(), [layout], replace(PROFILE))[0] == first
    longer = predict_layouts(question(seq_len=16384), [layout], PROFILE)[0]
    assert longer.step_time_s > 1.5 * first.step_time_s
    key = ("compute_overhead", "all")
    slower = {key: replace(PROFILE.by_key[key], mean=PROFILE.by_key[key].mean + 0.5)}
    found = predict_layouts(question(), [layout], PROFILE.with_terms(slower))[0]
    assert found.step_time_s > 1.3 * first.step_time_s


def test_intervals_are_quantiles_as_numpy_has_them() -> None:
    values = np.random.default_rng(0).normal(size=(5, 48))
    shares = [0.1, 0.5, 0.9]
    assert _quantiles(values, shares) == pytest.approx(np.quantile(values, shares, axis=1))
    assert _quantiles(values[0], shares) == pytest.approx(np.quantile(values[0], shares))
