"""A check of one layout: what it breaks, whether it fits, and what would be better."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.advice.layout_check import LEAST_GAIN, LayoutCheck, check_layout
from models.advice.rule_cures import BrokenRule, Cure, broken_rules_of
from models.layouts.defaults import with_stack_defaults
from models.layouts.neighbours import KNOBS
from models.layouts.rules import RULES, broken_rules
from models.prediction.prediction import predict_layouts
from models.spec.constraints import Constraints
from models.spec.layout import Layout
from models.spec.problem import Problem
from tests.benchmarks.problems import problem
from tests.models.advice.problems import PROFILE, llama

LLAMA_70B = problem("llama-3-70b", ("h100", 64), "megatron", seq_len=8192, global_batch=256)
MIXTRAL = problem("mixtral-8x7b", ("h100", 64), "megatron", seq_len=4096, global_batch=256)


def check(asked: Problem, constraints: Constraints | None = None, **knobs: object) -> LayoutCheck:
    layout = with_stack_defaults(asked, Layout(**knobs), knobs)  # type: ignore[arg-type]
    return check_layout(asked, PROFILE, layout, constraints)


def test_the_prediction_is_that_of_the_layout() -> None:
    found = check(llama(16, 64), dp_shard=8, tp=2, zero_stage=1)
    assert found.prediction is not None
    (predicted,) = predict_layouts(llama(16, 64), [found.prediction.layout], PROFILE)
    assert found.prediction == predicted


degrees = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=12)
@given(degrees, degrees, degrees, st.sampled_from(["none", "full"]))
def test_the_best_is_never_slower_than_a_layout_that_surely_fits(
    tp: int, pp: int, micro_batch: int, recompute: str
) -> None:
    found = check(
        LLAMA_70B,
        tp=tp,
        pp=pp,
        dp_shard=64 // (tp * pp),
        micro_batch=micro_batch,
        zero_stage=1,
        recompute=recompute,
    )
    assert found.best is not None
    assert found.best.fit_probability >= 0.9
    if found.prediction is not None and found.prediction.fit_probability >= 0.9:
        assert found.gain is not None
        assert found.gain >= 0
        assert found.gain_probability is not None
        assert found.gain_probability >= 0.5
    if found.prediction is None:
        assert found.broken_rules
        assert found.gain is None


@settings(max_examples=12)
@given(degrees, degrees, st.integers(1, 6))
def test_the_first_change_is_one_choice(tp: int, ep: int, micro_batch: int) -> None:
    knobs = {"tp": tp, "ep": ep, "dp_shard": 64 // tp, "micro_batch": micro_batch, "zero_stage": 1}
    given_layout = with_stack_defaults(MIXTRAL, Layout(**knobs), knobs)
    found = check_layout(MIXTRAL, PROFILE, given_layout)
    change = found.first_change
    if change is None:
        return
    if change.switch is not None:
        assert change.layout == given_layout
        assert change.problem.stack != MIXTRAL.stack
        return
    if change.is_whole:
        assert found.best is not None
        assert change.layout == found.best.layout
        return
    before, after = asdict(given_layout), asdict(change.layout)
    differing = {name for name in before if before[name] != after[name]}
    knob = KNOBS[change.knob]
    assert differing & {*knob.fields}
    assert differing <= {*knob.fields, *knob.followers}
    assert not broken_rules(MIXTRAL, change.layout)


def test_of_a_layout_that_fits_the_first_change_gains() -> None:
    found = check(llama(16, 64), dp_shard=2, tp=8, zero_stage=1)
    assert found.first_change is not None
    assert found.first_change.knob == "tp"
    assert found.first_change.gain is not None
    assert found.first_change.gain >= LEAST_GAIN
    assert not found.fitting


def test_of_a_layout_that_does_not_fit_the_first_change_makes_it_fit_at_least_cost() -> None:
    found = check(LLAMA_70B, dp_shard=4, pp=2, tp=8, zero_stage=1, micro_batch=2)
    assert found.prediction is not None
    assert not found.prediction.fits
    assert found.first_change is found.fitting[0]
    assert all(change.outcome.fit_probability >= 0.9 for change in found.fitting)
    times = [change.outcome.step_time_s for change in found.fitting]
    assert times == sorted(times)
    assert len({change.knob for change in found.fitting}) == len(found.fitting)


def test_where_single_changes_are_slow_the_best_layout_is_the_way_out() -> None:
    """One knob alone has tensor parallelism leave the node."""
    found = check(LLAMA_70B, dp_shard=8, tp=8, zero_stage=1, micro_batch=4)
    assert found.best is not None
    assert found.first_change is not None
    assert found.first_change.is_whole
    assert found.first_change.layout == found.best.layout
    assert found.first_change.words.startswith(
        "no single change does as well; the best layout changes: tp from 8 to "
    )
    assert found.fitting
    slowest = 1.25 * found.best.step_time_s
    assert all(change.outcome.step_time_s > slowest for change in found.fitting)


def test_of_two_faults_all_is_named_that_the_best_layout_has_otherwise() -> None:
    found = check(LLAMA_70B, dp_shard=2, pp=4, tp=3, zero_stage=1, micro_batch=3)
    assert found.best is not None
    change = found.first_change
    assert change is not None
    assert change.is_whole
    assert change.given is None
    assert change.layout == found.best.layout
    assert dict(zip(change.fields, change.before, strict=True))["tp"] == 3


def test_an_illegal_layout_is_repaired_by_the_least_change() -> None:
    found = check(LLAMA_70B, dp_shard=64, tp=1, zero_stage=3, micro_batch=3, recompute="full")
    assert [broken.knob for broken in found.broken_rules] == ["micro_batch"]
    assert found.first_change is not None
    assert found.first_change.knob == "micro_batch"
    others = [one for one in found.single_changes if one.outcome.fit_probability >= 0.9]
    of_knob = [one.after for one in others if one.knob == "micro_batch"]
    assert found.first_change.after == min(of_knob, key=lambda size: abs(math.log(size / 3)))


def test_a_change_that_makes_a_layout_legal_also_makes_it_fit() -> None:
    found = check(LLAMA_70B, dp_shard=64, tp=1, zero_stage=1, micro_batch=3)
    assert found.broken_rules
    assert found.first_change is not None
    assert found.first_change.outcome.fit_probability >= 0.9


def test_a_schedule_that_has_too_few_micro_batches_is_offered_a_batch() -> None:
    asked = problem("llama-3-70b", ("h100", 64), "megatron", seq_len=8192, global_batch=6)
    knobs = {"dp_shard": 2, "pp": 4, "tp": 8, "zero_stage": 1, "virtual_stages": 2}
    (broken,) = check(asked, **knobs, schedule="interleaved").broken_rules
    assert broken.rule.name == "schedule_shape"
    assert {cure.name: cure.values for cure in broken.cures}["global_batch"] == (8,)
    assert broken.cure.endswith(", or global_batch = 8")


def test_every_broken_rule_is_named_with_a_cure() -> None:
    found = check(llama(64, 256), dp_shard=7, tp=3, pp=5, zero_stage=1)
    names = [broken.rule.name for broken in found.broken_rules]
    assert {"mesh_fills_cluster", "tensor_divides_heads", "batch_divides"} <= {*names}
    assert names == [rule.name for rule in RULES if rule.name in names]
    cures = {broken.rule.name: broken.cure for broken in found.broken_rules}
    # Not 1: sequence parallelism is on, and needs more than one rank.
    assert cures["tensor_divides_heads"] == "tp = 2, 4, 8 or 16"
    assert found.prediction is None
    assert found.best is not None
    assert found.warnings == ()


def test_values_of_a_cure_break_no_other_rule() -> None:
    """12 devices and 64 heads: tp 12 fills the mesh, and does not divide the heads. 128 sequences
    divide over none of the degrees of data parallelism that the other degrees leave."""
    asked = problem("llama-3-70b", ("h100", 12), "megatron", seq_len=8192, global_batch=128)
    for tp in (8, 12):
        for broken in check(asked, tp=tp, zero_stage=1).broken_rules:
            cure = broken.cures[0]
            assert (cure.name, cure.values, cure.batches) == ("tp", (1, 2, 4), (120, 132))
            assert broken.cure == (
                "tp = 1, 2 or 4, with data parallelism over the other devices,"
                " and global_batch = 120 or 132"
            )


@settings(max_examples=40)
@given(
    st.sampled_from([1, 2, 3, 4, 8, 12]),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([1, 2, 3, 8]),
    st.sampled_from([1, 3, 5]),
    st.sampled_from([24, 64, 96]),
)
def test_with_a_cure_nothing_is_broken_but_what_has_a_cure_of_its_own(
    tp: int, pp: int, dp_shard: int, micro_batch: int, batch: int
) -> None:
    asked = problem("llama-3-70b", ("h100", 24), "megatron", seq_len=8192, global_batch=batch)
    knobs = {"tp": tp, "pp": pp, "dp_shard": dp_shard, "micro_batch": micro_batch, "zero_stage": 1}
    layout = with_stack_defaults(asked, Layout(**knobs), knobs)  # type: ignore[arg-type]
    given_rules = broken_rules_of(asked, layout)
    before = {broken.rule.name for broken in given_rules}
    for broken in given_rules:
        for cure in broken.cures:
            for value in cure.values:
                assert any(
                    after < before and broken.rule.name not in after
                    for after in _broken_after(asked, layout, cure, value)
                ), (broken.rule.name, cure)


def test_a_rule_that_no_value_cures_points_to_the_best_layout() -> None:
    """Sentences begin with "Set" or "Legal would be", and go on with the cure."""
    without = BrokenRule(rule=RULES[0], knob=None, is_of_batch=False, message="", cures=())
    assert without.cure.startswith("the values of the best layout")


def _broken_after(asked: Problem, layout: Layout, cure: Cure, value: Any) -> Iterator[set[str]]:
    """The rules that are broken with a value of a cure, in each layout that has it."""
    variants = [layout]
    if not cure.is_of_batch:
        variants = [replace(layout, **{cure.name: value})]
        if cure.name in KNOBS:  # with what follows a change of this knob
            near = KNOBS[cure.name].variants(asked, layout)
            variants += [variant for variant in near if getattr(variant, cure.name) == value]
    batches = [value] if cure.is_of_batch else cure.batches or [asked.workload.global_batch]
    for variant in variants:
        for batch in batches:
            workload = replace(asked.workload, global_batch=batch)
            broken = broken_rules(replace(asked, workload=workload), variant)
            yield {rule.name for rule in broken}


def test_a_cure_obeys_its_rule() -> None:
    asked = llama(64, 256)
    found = check(asked, dp_shard=8, tp=8, pp=1, cp=1, micro_batch=3, zero_stage=1)
    (broken,) = found.broken_rules
    assert (broken.rule.name, broken.knob) == ("batch_divides", "micro_batch")
    name, _, values = broken.cure.partition(" = ")
    assert name == "micro_batch"
    for value in values.replace(" or ", ", ").split(", "):
        layout = Layout(dp_shard=8, tp=8, micro_batch=int(value), zero_stage=1)
        assert "batch_divides" not in {rule.name for rule in broken_rules(asked, layout)}


def test_an_illegal_layout_one_change_from_a_legal_one_is_told_so() -> None:
    found = check(llama(16, 64), dp_shard=8, tp=2, micro_batch=3, zero_stage=1)
    assert found.prediction is None
    assert found.first_change is not None
    assert found.first_change.knob == "micro_batch"
    assert found.first_change.gain is None


def test_a_layout_is_held_against_those_that_the_constraints_allow() -> None:
    free = check(llama(16, 64), dp_shard=2, tp=8, zero_stage=1)
    bound = check(
        llama(16, 64), Constraints(allowed={"tp": (4, 8)}), dp_shard=2, tp=8, zero_stage=1
    )
    assert free.best is not None
    assert bound.best is not None
    assert free.best.layout.tp < 4
    assert bound.best.layout.tp == 4
    assert bound.first_change is not None
    assert bound.first_change.layout.tp in (4, 8)


@pytest.mark.parametrize("tp", [8, 3])
def test_where_no_layout_fits_the_reason_is_given(tp: int) -> None:
    asked = problem("llama-3.1-405b", ("h100", 8), "megatron", seq_len=8192, global_batch=8)
    found = check(asked, tp=tp)
    assert (found.prediction is None) == (tp == 3)
    assert found.best is None
    assert found.no_best is not None
    assert "GiB" in found.no_best


def test_without_time_for_a_search_the_best_is_a_single_change() -> None:
    layout = Layout(dp_shard=2, tp=8, zero_stage=1, sequence_parallel=True)
    found = check_layout(llama(16, 64), PROFILE, layout, should_continue=lambda: False)
    assert found.best is not None
    assert found.gain is not None
    assert found.gain > 0


def test_memory_that_ran_out_before_is_not_proposed_again() -> None:
    layout = Layout(dp_shard=8, tp=2, zero_stage=1, sequence_parallel=True)
    asked = llama(16, 64)
    found = check_layout(asked, PROFILE, layout)
    assert found.best is not None
    limit = found.best.needed_gib
    warned = check_layout(asked, PROFILE, layout, oom_gib=limit)
    assert warned.best is not None
    assert warned.best.needed_gib < limit


@pytest.mark.parametrize(("probability", "codes"), [(0.9, {"may_not_fit"}), (0.5, set())])
def test_a_layout_that_may_not_fit_is_warned_of(probability: float, codes: set[str]) -> None:
    asked = llama(16, 64)
    layout = Layout(dp_shard=16, zero_stage=1, micro_batch=2)
    (predicted,) = predict_layouts(asked, [layout], PROFILE)
    chip = replace(asked.cluster.chip, usable_memory_gib=predicted.needed_gib * 1.02)
    tight = replace(asked, cluster=replace(asked.cluster, chip=chip))
    found = check_layout(tight, PROFILE, layout, Constraints(min_fit_probability=probability))
    assert {warning.code for warning in found.warnings} & {"may_not_fit"} == codes


def test_only_layouts_that_are_accepted_are_named() -> None:
    layout = Layout(dp_shard=2, tp=8, zero_stage=1, sequence_parallel=True)
    usual = check_layout(llama(16, 64), PROFILE, layout)
    assert usual.first_change is not None
    assert usual.best is not None
    taken = [usual.first_change.layout, usual.best.layout]
    other = check_layout(
        llama(16, 64), PROFILE, layout, accepts=lambda problem, layout: layout not in taken
    )
    assert other.first_change is not None
    assert other.best is not None
    assert other.first_change.layout not in taken
    assert other.best.layout not in taken
    assert other.best.step_time_s >= usual.best.step_time_s
    assert not other.best_is_exact


def test_where_no_layout_is_accepted_the_reason_is_said() -> None:
    found = check_layout(llama(16, 64), PROFILE, None, accepts=lambda problem, layout: False)
    assert found.best is found.first_change is None
    assert found.no_best is not None
    assert "no words" in found.no_best


def test_of_a_layout_that_cannot_be_told_there_is_a_best_alone() -> None:
    found = check_layout(llama(16, 64), PROFILE, None)
    assert found.prediction is found.first_change is None
    assert found.broken_rules == found.fitting == ()
    assert found.best is not None
    assert found.best.fits
