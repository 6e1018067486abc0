"""Single changes of a layout, and what they gain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.advice.recommendation import recommend
from models.advice.single_changes import SingleChange, single_changes
from models.layouts.defaults import with_stack_defaults
from models.layouts.neighbours import neighbours
from models.layouts.rules import require_legal
from models.prediction.prediction import predict_layouts
from models.spec.constraints import SAFE_FIT_PROBABILITY, Constraints
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.switches import switches_of
from tests.benchmarks.problems import problem
from tests.models.advice.problems import PROFILE, llama

DEEPSEEK = problem(
    "deepseek-v3",
    ("h100", 2048),
    "megatron",
    seq_len=4096,
    global_batch=15360,
    precision="fp8",
)
DEEPSEEK_LAYOUT = {"pp": 16, "dp_shard": 128, "ep": 64, "zero_stage": 1}

CASES = [
    (DEEPSEEK, DEEPSEEK_LAYOUT),
    (llama(16, 64), {"tp": 4, "dp_shard": 4, "zero_stage": 1, "recompute": "full"}),
    (
        problem("mixtral-8x7b", ("h100", 64), "torchtitan", seq_len=4096, global_batch=128),
        {"dp_shard": 64, "ep": 8, "zero_stage": 3},
    ),
    (
        problem("llama-3-70b", ("tpu-v5p", 64), "maxtext", seq_len=8192, global_batch=64),
        {"dp_shard": 64},
    ),
]


def changes_of(asked: Problem, given: dict[str, object]) -> tuple[Layout, list[SingleChange]]:
    layout = with_stack_defaults(asked, Layout(**given), given)  # type: ignore[arg-type]
    return layout, single_changes(asked, PROFILE, layout)


@pytest.mark.parametrize(("asked", "given"), CASES)
def test_a_change_is_predicted_as_any_layout_is(asked: Problem, given: dict[str, object]) -> None:
    layout, found = changes_of(asked, given)
    (before,) = predict_layouts(asked, [layout], PROFILE)
    for change in [*found[:3], *found[-3:], *(one for one in found if one.switch)]:
        (after,) = predict_layouts(change.problem, [change.layout], PROFILE)
        assert change.outcome.step_time_s == pytest.approx(after.step_time_s)
        assert change.outcome.needed_gib == pytest.approx(after.needed_gib)
        assert change.outcome.fit_probability == pytest.approx(after.fit_probability)
        assert change.outcome.time == pytest.approx(after.time)
        assert change.saved_s == pytest.approx(before.step_time_s - after.step_time_s)
        assert change.gain == pytest.approx(before.step_time_s / after.step_time_s - 1)


@pytest.mark.parametrize(("asked", "given"), CASES)
def test_every_neighbour_and_every_switch_is_a_change(
    asked: Problem, given: dict[str, object]
) -> None:
    layout, found = changes_of(asked, given)
    of_layout = [(one.knob, one.layout) for one in found if one.switch is None]
    assert sorted(of_layout, key=str) == sorted(neighbours(asked, layout), key=str)
    for change in found:
        require_legal(change.problem, change.layout)
        if change.switch is None:
            assert change.problem == asked
            assert change.before != change.after
            continue
        assert change.setting is not None
        assert change.layout == layout
        assert change.switch in switches_of(asked.stack)
        assert getattr(change.problem.stack, change.knob) == change.after == change.setting.value
        assert getattr(asked.stack, change.knob) == change.before != change.after


@pytest.mark.parametrize(("asked", "given"), CASES)
def test_what_is_sure_to_fit_comes_first_and_then_what_is_fastest(
    asked: Problem, given: dict[str, object]
) -> None:
    _, found = changes_of(asked, given)
    order = [
        (one.outcome.fit_probability < SAFE_FIT_PROBABILITY, one.outcome.step_time_s)
        for one in found
    ]
    assert order == sorted(order)


def test_the_best_layout_has_no_better_neighbour() -> None:
    asked = llama(16, 64)
    best = recommend(asked, PROFILE, Constraints()).fastest.prediction.layout
    safe = [
        one
        for one in single_changes(asked, PROFILE, best)
        if one.outcome.is_safe and not one.switch
    ]
    # Sets of modules that the search does not try may do better, but no value that it does.
    gains = [one.gain for one in safe if one.knob != "recompute" and one.gain is not None]
    assert max(gains) <= 1e-9


def test_a_layout_that_does_not_fit_is_told_what_makes_it_fit() -> None:
    asked = problem("llama-3-70b", ("h100", 64), "megatron", seq_len=8192, global_batch=64)
    layout, found = changes_of(asked, {"dp_shard": 64, "zero_stage": 1})
    (before,) = predict_layouts(asked, [layout], PROFILE)
    assert not before.fits
    assert found[0].outcome.is_safe
    assert found[0].gain is not None


def test_an_illegal_layout_is_told_what_makes_it_legal() -> None:
    asked = llama(16, 64)
    legal = with_stack_defaults(asked, Layout(dp_shard=16, zero_stage=1), {"zero_stage"})
    found = single_changes(asked, PROFILE, replace(legal, dp_shard=8))
    assert {one.gain for one in found} == {one.saved_s for one in found} == {None}
    assert legal in [one.layout for one in found]


def test_a_change_is_told_with_what_follows_it() -> None:
    _, found = changes_of(llama(16, 64), {"tp": 4, "dp_shard": 4, "zero_stage": 1})
    words = {one.words for one in found}
    assert "tp from 4 to 1, with dp_shard 16 and sequence_parallel off" in words
    assert "recompute from none to full" in words
    assert "dp_replicate from 1 to 2 and dp_shard from 4 to 2" in words
    assert "leave out --tp-comm-overlap (overlap_tensor from on to off)" in words


def test_what_is_computed_is_not_for_a_change_to_decide() -> None:
    _, found = changes_of(llama(16, 64), {"dp_shard": 16, "zero_stage": 1})
    switches = {one.switch.name for one in found if one.switch}
    assert "--overlap-grad-reduce" in switches
    assert "--grad-reduce-in-bf16" not in switches
