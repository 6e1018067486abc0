"""What stacks do with what nobody set."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from models.errors import Invalid
from models.layouts.defaults import with_stack_defaults
from models.layouts.rules import require_legal
from models.spec import catalogue
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.workload import Workload
from tests.models.cost.examples import on_stack, question


@pytest.mark.parametrize("stack", list(catalogue.stacks()))
def test_degrees_alone_make_a_legal_layout(stack: str) -> None:
    found = catalogue.stack(stack)
    problem = Problem(
        architecture=catalogue.architecture("llama-3-8b"),
        cluster=catalogue.cluster(
            {"google": "tpu-v5p", "amd": "mi300x"}.get("".join(found.vendors), "h100"), 16
        ),
        workload=Workload(seq_len=4096, global_batch=64),
        stack=found,
    )
    degrees: list[dict[str, int]] = [{"dp_shard": 16}]
    degrees += [{"tp": 2, "dp_shard": 8}] if found.max_tp > 1 else []
    degrees += (
        [{"pp": 2, "dp_shard": 8}]
        if found.schedules != ("1f1b",) or found.max_virtual_stages > 1
        else []
    )
    for given in degrees:
        require_legal(problem, with_stack_defaults(problem, Layout(**given), given))


def test_defaults_of_the_stack_leave_given_knobs_alone() -> None:
    problem = Problem(
        architecture=catalogue.architecture("llama-3-8b"),
        cluster=catalogue.cluster("h100", 16),
        workload=Workload(seq_len=4096, global_batch=64),
        stack=catalogue.stack("megatron"),
    )
    layout = Layout(dp_shard=16, zero_stage=0)
    assert with_stack_defaults(problem, layout, {"dp_shard", "zero_stage"}) == layout


@pytest.mark.parametrize(
    ("idle", "plain"),
    [
        # Megatron-LM warns of both and runs (arguments.py; core/recompute.py).
        (Layout(dp_shard=16, zero_stage=1, sequence_parallel=True), {"sequence_parallel": False}),
        (
            Layout(dp_shard=16, zero_stage=1, recompute="full", recompute_layers=40),
            {"recompute_layers": 0},
        ),
        (
            Layout(pp=4, dp_shard=4, zero_stage=1, recompute="full", recompute_layers=8),
            {"recompute_layers": 0},
        ),
        (Layout(dp_shard=16, zero_stage=1, recompute="full", recompute_layers=31), {}),
    ],
)
def test_settings_that_change_nothing_are_left_out(idle: Layout, plain: dict[str, Any]) -> None:
    problem = Problem(
        architecture=catalogue.architecture("llama-3-8b"),
        cluster=catalogue.cluster("h100", 16),
        workload=Workload(seq_len=4096, global_batch=64),
        stack=catalogue.stack("megatron"),
    )
    given = {field.name for field in fields(Layout)}
    settled = with_stack_defaults(problem, idle, given)
    assert settled == replace(idle, **plain)
    require_legal(problem, settled)


@pytest.mark.parametrize("stack", ["megatron", "torchtitan", "generic", "nanotron", "deepseek"])
@pytest.mark.parametrize("given", [{"dp_shard": 16}, {"pp": 2, "dp_shard": 8}])
def test_a_schedule_that_is_left_open_is_one_that_the_recipe_allows_where_the_stack_has_any(
    stack: str, given: dict[str, int]
) -> None:
    problem = Problem(
        architecture=catalogue.architecture("mixtral-8x7b"),
        cluster=catalogue.cluster("h100", 16),
        workload=Workload(seq_len=4096, global_batch=64, load_balancing="global_batch_loss"),
        stack=catalogue.stack(stack),
    )
    found = with_stack_defaults(problem, Layout(**given), given)
    if "afab" in problem.stack.schedules or "pp" not in given:
        require_legal(problem, found)
        assert found.schedule == "afab"
    else:
        with pytest.raises(Invalid, match=f"afab\\), which stack {stack} lacks"):
            require_legal(problem, found)


@pytest.mark.parametrize(("stack", "stage"), [("fsdp", 3), ("torchtitan", 3), ("megatron", 0)])
def test_fsdp_shards_over_context_parallelism_too(stack: str, stage: int) -> None:
    problem = on_stack(stack, question(model="llama-3-8b", chips=8))
    assert with_stack_defaults(problem, Layout(cp=8), {"cp"}).zero_stage == stage


@pytest.mark.parametrize(("pp", "reshards"), [(1, True), (2, False)])
def test_torchtitan_keeps_gathered_parameters_through_a_pipeline(pp: int, reshards: bool) -> None:
    problem = on_stack("torchtitan", question(model="llama-3-8b", chips=8))
    given = {"pp": pp, "dp_shard": 8 // pp}
    layout = with_stack_defaults(problem, Layout(**given), given)
    assert (layout.zero_stage, layout.reshard) == (3, reshards)
