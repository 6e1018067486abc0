"""What a reviewer would raise about a layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.advice.layout_warnings import LayoutWarning, layout_warnings
from models.advice.recommendation import recommend
from models.layouts.defaults import with_stack_defaults
from models.layouts.rules import require_legal
from models.prediction.prediction import predict_layouts
from models.spec import catalogue
from models.spec.layout import Layout
from models.spec.problem import Problem
from tests.benchmarks.problems import problem
from tests.models.advice.problems import PROFILE, llama


def warned(asked: Problem, **given: object) -> dict[str, LayoutWarning]:
    layout = with_stack_defaults(asked, Layout(**given), given)  # type: ignore[arg-type]
    require_legal(asked, layout)
    (prediction,) = predict_layouts(asked, [layout], PROFILE)
    return {one.code: one for one in layout_warnings(asked, PROFILE, prediction)}


def test_tensor_parallelism_beyond_a_node_is_named() -> None:
    asked = llama(32, 64)
    beyond = warned(asked, tp=16, dp_shard=2, zero_stage=1)["tensor_across_domains"]
    assert beyond.numbers["tp"] == 16
    assert beyond.numbers["scale_up_domain"] == 8
    assert beyond.message.startswith("tp(16) reaches beyond the scale-up domain")
    assert "tensor_across_domains" not in warned(asked, tp=8, dp_shard=4, zero_stage=1)


def test_expert_parallelism_beyond_a_node_is_named() -> None:
    asked = problem("qwen3-30b-a3b", ("h100", 32), "megatron", seq_len=4096, global_batch=64)
    assert "expert_across_domains" in warned(asked, dp_shard=32, ep=16, zero_stage=1)
    assert "expert_across_domains" not in warned(asked, dp_shard=32, ep=8, zero_stage=1)
    rack = replace(asked, cluster=catalogue.cluster("gb200-nvl72", 32))
    assert "expert_across_domains" not in warned(rack, dp_shard=32, ep=16, zero_stage=1)


def test_axes_that_reach_beyond_a_node_together_are_named_with_the_cure() -> None:
    asked = problem("qwen3-30b-a3b", ("h100", 32), "megatron", seq_len=4096, global_batch=64)
    beyond = warned(asked, dp_shard=16, tp=2, ep=8, etp=2, zero_stage=1)["expert_across_domains"]
    assert beyond.message.startswith("ep(8) * etp(2) = 16 devices reach beyond")
    assert beyond.numbers["etp"] == 2
    assert "; etp 1 keeps it inside a domain" in beyond.message
    more = problem("qwen3-30b-a3b", ("h100", 64), "megatron", seq_len=4096, global_batch=64)
    alone = warned(more, dp_shard=64, ep=16, zero_stage=1, recompute="full")[
        "expert_across_domains"
    ]
    assert alone.message.startswith("ep(16) reaches beyond")
    assert "; ep 8 keeps it inside a domain" in alone.message


def test_experts_in_a_loop_of_python_are_named_with_both_cures() -> None:
    asked = problem("qwen3-30b-a3b", ("a800", 16), "deepspeed", seq_len=8192, global_batch=16)
    layout = {"dp_shard": 16, "zero_stage": 3, "recompute": "full"}
    assert "looped_experts" not in warned(asked, **layout)
    apart = replace(
        asked,
        stack=replace(asked.stack, experts_at_once=False, expert_loop="gathered_modules"),
    )
    found = warned(apart, **layout)["looped_experts"]
    assert 0 < found.numbers["saved_as_leaves_s"] < found.numbers["saved_s"]
    assert found.numbers["share"] > 0.8
    assert "set_z3_leaf_modules" in found.message
    assert 'experts_implementation="grouped_mm"' in found.message
    leaves = replace(apart, stack=replace(apart.stack, expert_loop="modules"))
    assert "set_z3_leaf_modules" not in warned(leaves, **layout)["looped_experts"].message
    in_c = replace(apart, stack=replace(apart.stack, expert_loop="kernels"))
    assert "looped_experts" not in warned(in_c, **layout)


def test_a_pipeline_that_is_starved_is_named_with_its_bubble() -> None:
    asked = llama(16, 8)
    found = warned(asked, pp=8, dp_shard=2, zero_stage=1)
    assert found["few_micro_batches"].numbers == {"micro_batches": 4, "pp": 8}
    assert found["large_bubble"].numbers["share"] > 0.2
    full = warned(llama(16, 256), pp=2, dp_shard=8, zero_stage=1)
    assert not {"few_micro_batches", "large_bubble"} & full.keys()


def test_exposed_communication_is_named_by_its_term() -> None:
    asked = llama(32, 32)
    slow = replace(asked, cluster=asked.cluster.with_changes(scale_out=0.05))
    found = warned(slow, dp_shard=32, zero_stage=1)["exposed_data"]
    assert found.numbers["share"] > 0.1
    assert f"{found.numbers['share']:.0%} of the step" in found.message


def test_recompute_is_named_where_it_is_not_needed_only() -> None:
    asked = llama(32, 64)
    found = warned(asked, tp=2, dp_shard=16, zero_stage=1, recompute="full")
    assert found["unneeded_recompute"].numbers["saved_s"] > 0
    assert "unneeded_recompute" not in warned(asked, tp=2, dp_shard=16, zero_stage=1)
    tight = problem("llama-3-70b", ("h100", 64), "megatron", seq_len=8192, global_batch=64)
    assert "unneeded_recompute" not in warned(
        tight, tp=4, dp_shard=16, zero_stage=1, recompute="full"
    )
    offloads = {"dp_shard": 32, "zero_stage": 3, "recompute": "full", "offload_activations": True}
    slower = problem("llama-3-8b", ("a100-sxm-80gb", 32), "fsdp", seq_len=4096, global_batch=64)
    assert "unneeded_recompute" not in warned(slower, micro_batch=2, **offloads)


def test_replicated_optimizer_states_are_named_where_shards_cost_nothing() -> None:
    asked = llama(32, 64)
    found = warned(asked, tp=2, dp_replicate=16)
    assert found["replicated_optimizer_states"].numbers["dp_replicate"] == 16
    assert found["replicated_optimizer_states"].numbers["saved_gib"] > 1
    assert "replicated_optimizer_states" not in warned(asked, tp=2, dp_shard=16, zero_stage=1)


def test_sequence_parallelism_is_missed_where_the_stack_has_it() -> None:
    asked = llama(16, 64)
    either = replace(asked, stack=replace(asked.stack, sequence_parallel=(False, True)))
    found = warned(either, tp=4, dp_shard=4, zero_stage=1, sequence_parallel=False)
    assert found["no_sequence_parallelism"].numbers["saved_gib"] > 0
    assert "no_sequence_parallelism" not in warned(asked, tp=4, dp_shard=4, zero_stage=1)


@pytest.mark.parametrize("chips", [8, 64])
def test_the_recommended_layout_is_not_warned_about_what_it_could_change(chips: int) -> None:
    asked = llama(chips, 128)
    best = recommend(asked, PROFILE).fastest.prediction
    codes = {one.code for one in layout_warnings(asked, PROFILE, best)}
    assert not codes & {"unneeded_recompute", "few_micro_batches", "large_bubble"}
