"""A prediction says what the measurements behind its profile changed of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.calibration.calibrate import calibrate
from models.calibration.fleet_effects import with_fleet_offsets
from models.calibration.posterior import shipped_posterior
from models.prediction.learned_changes import LearnedChanges, learned_changes
from models.prediction.prediction import predict_layouts
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from tests.models.calibration.test_influences import LLAMA, PROFILE, QWEN


def fitted(*observations) -> Profile:
    problems = [o.problem for o in observations]
    profile = with_fleet_offsets(replace(PROFILE, version=3), problems)
    return calibrate(profile, observations, posterior=shipped_posterior()).profile


def changes(profile: Profile, problem: Problem, layout: Layout) -> LearnedChanges:
    found = learned_changes(problem, layout, profile)
    assert found is not None
    return found


def step_time_s(profile: Profile, problem: Problem, layout: Layout) -> float:
    return predict_layouts(problem, [layout], profile)[0].step_time_s


@pytest.mark.parametrize("run", [LLAMA[0], QWEN[0]], ids=["torchtitan", "megatron"])
def test_the_whole_change_is_that_of_the_two_predictions(run) -> None:
    profile = fitted(*LLAMA, *QWEN)
    found = changes(profile, run.problem, run.layout)
    after, before = (step_time_s(one, run.problem, run.layout) for one in (profile, PROFILE))
    assert abs(after / before - 1) > 0.03
    assert found.step_time_change == pytest.approx(after / before - 1, abs=0.001)
    assert found.against_version == 3


def test_the_changes_of_the_groups_are_nearly_the_whole_one() -> None:
    run = LLAMA[0]
    found = changes(fitted(*LLAMA, *QWEN), run.problem, run.layout)
    product = 1.0
    for _, change in found.groups:
        product *= 1 + change
    assert product == pytest.approx(1 + found.step_time_change, abs=0.005)


def test_slow_runs_lengthen_a_step_and_quick_ones_shorten_it() -> None:
    run = LLAMA[0]
    found = changes(fitted(*LLAMA, *QWEN), run.problem, run.layout)
    by_model = {group.model: change for group, change in found.groups}
    assert by_model["llama-3-8b"] > 0.05
    assert by_model["qwen3-8b"] < 0


def test_a_group_that_measured_alone_makes_the_whole_change() -> None:
    run = LLAMA[0]
    found = changes(fitted(*LLAMA), run.problem, run.layout)
    ((_, change),) = found.groups
    assert change == pytest.approx(found.step_time_change, abs=0.002)


def test_a_profile_of_published_runs_alone_has_no_learned_changes() -> None:
    assert learned_changes(LLAMA[0].problem, LLAMA[0].layout, PROFILE) is None
