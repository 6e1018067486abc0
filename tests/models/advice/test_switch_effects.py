"""What it would cost to have a switch of the software otherwise."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from models.advice.switch_effects import SwitchEffect, switch_effects
from models.cost.predictions import predict
from models.errors import Invalid
from models.spec import catalogue
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.switches import changed, switches_of
from models.spec.workload import Precision
from tests.models.cost.examples import question

EXPERTS = Layout(
    pp=8, dp_shard=32, ep=32, schedule="interleaved", virtual_stages=2, zero_stage=1, balanced=True
)
PROFILE = shipped_profile()


def deepseek(stack: str = "megatron", precision: Precision = "bf16", **fields: Any) -> Problem:
    base = question(model="deepseek-v3", chips=256)
    workload = replace(base.workload, global_batch=1024, precision=precision)
    return replace(base, workload=workload, stack=replace(catalogue.stack(stack), **fields))


def effects(problem: Problem, layout: Layout = EXPERTS) -> dict[str, SwitchEffect]:
    return {one.switch.field: one for one in switch_effects(problem, PROFILE, layout)}


def test_an_effect_is_the_difference_of_two_predictions() -> None:
    problem = deepseek()
    effect = effects(problem)["dispatcher"]
    assert (effect.value, effect.otherwise) == ("deduplicated", "allgather")
    other = replace(problem, stack=changed(problem.stack, {"dispatcher": "allgather"}))
    now, then = (
        predict(one, Layouts.of([EXPERTS]), PROFILE.coefficients(one.scopes)).step_time_s[0]
        for one in (problem, other)
    )
    assert effect.step_time_s == pytest.approx(then - now)


def test_the_alternative_is_what_the_framework_does_by_itself() -> None:
    assert effects(deepseek(dispatcher="alltoall"))["dispatcher"].otherwise == "allgather"
    assert effects(deepseek(dispatcher="allgather"))["dispatcher"].otherwise == "deduplicated"


def test_switches_that_move_little_or_mean_nothing_are_left_out() -> None:
    found = effects(deepseek())
    assert "overlap_tensor" not in found  # without tensor parallelism
    assert "fused_routing" not in found  # which moves less than 2%
    assert all(one.share > 0.02 for one in found.values())
    assert [*found.values()] == sorted(found.values(), key=lambda one: -one.share)


def test_copies_of_operands_are_named_where_they_are_not_kept() -> None:
    effect = effects(deepseek("megatron-bridge", "fp8"))["keeps_operands"]
    assert effect.value is False
    assert effect.needed_gib > 1


def test_a_kernel_that_does_not_run_on_the_chip_is_no_alternative() -> None:
    base = deepseek()
    tpu = replace(
        base,
        cluster=catalogue.cluster("tpu-v5p", 256),
        stack=replace(catalogue.stack("maxtext"), attention_kernel="auto"),
    )
    layout = Layout(dp_shard=256, ep=32, zero_stage=3, recompute="full")
    effect = effects(tpu, layout).get("attention_kernel")
    assert effect is None or effect.otherwise not in ("cudnn", "flash2")


def test_older_software_has_the_defaults_of_its_time() -> None:
    newest = PROFILE.software_year
    then = effects(deepseek(age_years=newest - 2024.0, attention_kernel="auto"))
    assert then["attention_kernel"].default.value == "fused_softmax"


def test_a_stack_without_switches_has_no_effects() -> None:
    assert effects(deepseek("generic")) == {}


@pytest.mark.parametrize("stack", ["megatron", "megatron-bridge", "torchtitan", "maxtext"])
def test_what_predictions_of_two_stacks_share_is_the_same_for_both(stack: str) -> None:
    """Every value of every switch: as it would be predicted by itself."""
    problem = deepseek(stack)
    layouts = Layouts.of([replace(EXPERTS, tp=2, dp_shard=16, sequence_parallel=True)])
    base = predict(problem, layouts, PROFILE.coefficients(problem.scopes))
    assert base.step_time_s[0] > 0
    for switch in switches_of(problem.stack):
        for setting in switch.settings:
            with suppress(Invalid):  # kernels that do not run on the chip
                changes = {switch.field: setting.value}
                other = replace(problem, stack=changed(problem.stack, changes))
                c = PROFILE.coefficients(other.scopes)
                shared, alone = base.with_stack(other, c), predict(other, layouts, c)
                assert shared.step_time_s[0] == alone.step_time_s[0], switch.field
                assert shared.needed_bytes[0] == alone.needed_bytes[0], switch.field
