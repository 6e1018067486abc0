"""Switches of the stacks, in the frameworks' own words and by release."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from models.errors import Invalid
from models.spec import catalogue
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.switches import (
    Switch,
    as_of,
    as_usually_run,
    changed,
    launch_arguments,
    launch_code,
    read_switches,
    release_year,
    releases,
    setting_of,
    switches_of,
)
from tests.models.cost.examples import question
from tests.paths import SHARED

TABLES = {
    "megatron": "megatron_core_0.19.2",
    "torchtitan": "torchtitan_0.3.0",
    "maxtext": "maxtext_0.2.5",
    "deepspeed": "deepspeed_0.19.8",
}
STACKS = {stack.id: stack for stack in catalogue.stacks().values()}
WITH_SWITCHES = [stack for stack in STACKS.values() if switches_of(stack)]
EXPERTS = Layout(pp=4, dp_shard=16, ep=8, zero_stage=1, schedule="interleaved", virtual_stages=3)


def sparse(stack: str, **fields: Any) -> Problem:
    return replace(
        question(model="deepseek-v3", chips=64),
        stack=replace(catalogue.stack(stack), **fields),
    )


def of(stack: str, field: str) -> Switch:
    return next(one for one in switches_of(catalogue.stack(stack)) if one.field == field)


@pytest.mark.parametrize("stack", WITH_SWITCHES, ids=lambda stack: stack.id)
def test_the_newest_value_that_recipes_take_is_that_of_the_catalogue(stack) -> None:
    for switch in switches_of(stack):
        assert switch.recipe_value_at().value == getattr(stack, switch.field), switch.field


@pytest.mark.parametrize("stack", WITH_SWITCHES, ids=lambda stack: stack.id)
def test_values_that_are_taken_or_default_have_words(stack) -> None:
    for switch in switches_of(stack):
        if switch.settings:
            for dated in (*switch.defaults, *switch.taken):
                assert setting_of(switch, dated.value).value == dated.value


@pytest.mark.parametrize("stack", WITH_SWITCHES, ids=lambda stack: stack.id)
def test_what_is_written_is_read_back(stack) -> None:
    """Every value of every switch, by itself."""
    for switch in switches_of(stack):
        for setting in switch.settings:
            written = dict(setting_of(switch, setting.value).arguments)
            read = read_switches(stack.id, written, None, switch.condition.__eq__)
            assert read[switch.field] == setting.value, switch.name


def test_arguments_are_those_of_the_values_that_the_stack_has() -> None:
    arguments = launch_arguments(sparse("megatron"), EXPERTS)
    assert arguments["--moe-token-dispatcher-type"] == "flex"
    assert arguments["--overlap-param-gather"] is True
    assert "--tp-comm-overlap" not in arguments  # without tensor parallelism
    unsharded = launch_arguments(sparse("megatron"), replace(EXPERTS, zero_stage=0))
    assert "--overlap-param-gather" not in unsharded  # without a distributed optimizer
    assert "--overlap-grad-reduce" in unsharded


def test_all_to_alls_do_not_overlap_where_megatron_refuses_it() -> None:
    problem = sparse("megatron")
    assert "--overlap-moe-expert-parallel-comm" in launch_arguments(problem, EXPERTS)
    for refused in (
        replace(EXPERTS, recompute="full"),
        replace(EXPERTS, recompute="selective", recompute_modules=("moe",)),
        replace(EXPERTS, schedule="1f1b", virtual_stages=1),
        replace(EXPERTS, ep=1),
    ):
        assert "--overlap-moe-expert-parallel-comm" not in launch_arguments(problem, refused)


def test_a_value_without_words_is_refused_by_name() -> None:
    with pytest.raises(Invalid, match=r"stack.loss.*--cross-entropy-loss-fusion.*stepwise"):
        launch_arguments(sparse("megatron", loss="compiled"), EXPERTS)


def test_what_the_framework_stops_at_is_read_and_not_written() -> None:
    backend = {"--attention-backend": "local"}
    assert read_switches("megatron", backend, None)["attention_kernel"] == "fused_softmax"
    stack = replace(catalogue.stack("megatron"), attention_kernel="fused_softmax")
    problem = replace(question(), stack=stack)
    with pytest.raises(Invalid, match="stops at --attention-backend local"):
        launch_arguments(problem, Layout())


def test_what_is_left_out_is_as_the_release_has_it() -> None:
    assert read_switches("torchtitan", {}, "0.2.1")["loss_chunks"] == 1
    assert read_switches("torchtitan", {}, "0.3.0")["loss_chunks"] == 8
    assert read_switches("megatron", {}, None)["dispatcher"] == "allgather"


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ({"--moe-token-dispatcher-type": "flex"}, "dispatcher", "deduplicated"),
        (
            {"--moe-token-dispatcher-type": "alltoall", "--moe-flex-dispatcher-backend": "deepep"},
            "dispatcher",
            "alltoall",
        ),
        ({"--overlap-grad-reduce": False}, "overlap_data", False),
        ({"--cross-entropy-loss-fusion": True}, "loss", "fused"),
        ({"--fp8-param-gather": True}, "keeps_operands", False),
    ],
)
def test_arguments_are_read_as_they_were_written(arguments: dict, field: str, value: Any) -> None:
    assert read_switches("megatron", arguments, None)[field] == value


def test_an_argument_with_an_unknown_value_is_refused() -> None:
    with pytest.raises(Invalid, match=r"--moe-token-dispatcher-type.*smoke.*allgather"):
        read_switches("megatron", {"--moe-token-dispatcher-type": "smoke"}, None)


def test_an_argument_may_decide_several_fields() -> None:
    read = read_switches("torchtitan", {"compile.enable": False}, None)
    assert (read["launch"], read["fused"], read["loss"]) == ("eager", False, "pytorch")
    eager = changed(catalogue.stack("torchtitan"), {"launch": "eager"})
    assert (eager.fused, eager.loss) == (False, "pytorch")
    assert (
        changed(catalogue.stack("torchtitan"), {"launch": "eager", "loss": "fused"}).loss == "fused"
    )


def test_torchtitan_computes_experts_again_but_where_it_saves_what_compiled_code_returns() -> None:
    """0.2.1 and 0.2.2 save it, and with it what experts keep. 0.3.0 compiles a block together with
    its checkpointing."""
    now = catalogue.stack("torchtitan")
    eager = changed(now, {"launch": "eager"})
    dated = {v: as_of(now, release_year("torchtitan", v)) for v in ("0.2.0", "0.2.2")}
    again = ["grouped_mm" in stack.selective[0] for stack in (now, eager, *dated.values())]
    assert again == [True, True, True, False]
    assert hash(eager)


def test_torchtitan_keeps_scaled_tokens_in_16_bits_since_it_compiles_the_scaling() -> None:
    now = catalogue.stack("torchtitan")
    before = as_of(now, release_year("torchtitan", "0.2.2"))
    assert [stack.scaled_token_bytes for stack in (now, before)] == [2, 4]


def test_torchtitan_has_scaled_rows_since_it_lost_its_other_recipe() -> None:
    now = catalogue.stack("torchtitan")
    before = as_of(now, release_year("torchtitan", "0.2.2"))
    assert (before.fp8_scaling, before.gather_bytes) == ("tensorwise", 0)
    assert (now.fp8_scaling, now.gather_bytes) == ("rowwise", 2)


def test_a_patch_has_the_date_of_its_minor_release() -> None:
    assert release_year("megatron", "0.16.1") == release_year("megatron", "0.16.0")
    assert release_year("torchtitan", "v0.2.1") == release_year("torchtitan", "0.2.1")
    with pytest.raises(Invalid, match=r"stack.version.*9.9.*0.2.1, 0.2.2, 0.3.0"):
        release_year("torchtitan", "9.9")
    assert [*releases("torchtitan")] == sorted(releases("torchtitan"))


def test_a_stack_without_a_table_has_no_switches() -> None:
    generic = catalogue.stack("generic")
    assert switches_of(generic) == ()
    assert as_of(generic, 2020.0) == generic
    assert read_switches("generic", {"--x": 1}, None) == {}


def test_context_parallelism_of_accelerate_came_with_a_release() -> None:
    fsdp = catalogue.stack("fsdp")
    assert (as_of(fsdp, 2025.0).max_cp, fsdp.max_cp) == (1, 64)
    assert catalogue.stack("llm-foundry").max_cp == 1


def test_experts_of_transformers_were_modules_in_a_loop_before_its_fifth_version() -> None:
    """DeepSpeed has gathered those of a layer at once since 0.18.0 of October 2025."""
    deepspeed, fsdp = catalogue.stack("deepspeed"), catalogue.stack("fsdp")
    loops = [as_of(deepspeed, year) for year in (2025.4, 2025.9, 2026.5)]
    assert [one.experts_at_once for one in loops] == [False, False, True]
    assert [one.expert_loop for one in loops] == ["gathered_modules", "modules", "modules"]
    assert [one.gathers_experts_apart for one in loops] == [True, False, False]
    assert [as_of(fsdp, year).calls_expert_modules for year in (2025.4, 2026.5)] == [True, False]
    for own in ("llm-foundry", "fms-fsdp", "megatron"):  # not the modules of transformers
        assert not as_of(catalogue.stack(own), 2025.4).calls_expert_modules


@pytest.mark.skipif(not SHARED.exists(), reason="the frameworks' fields are not at hand")
@pytest.mark.parametrize("stack", TABLES)
def test_arguments_are_ones_that_the_framework_has(stack: str) -> None:
    document = json.loads((SHARED / f"launch_fields/{TABLES[stack]}.json").read_text())
    for switch in switches_of(catalogue.stack(stack)):
        for setting in switch.settings:
            if switch.of_script or setting.in_code:  # TrainingArguments, and keys of axolotl
                continue
            written = {**setting.arguments, **setting.with_zero, **setting.needs}
            for name, value in written.items():
                _require_field(document, name, value)


_NOT_IN_LISTS = {
    "loss.num_chunks",  # of a configuration that the launch names: components/loss.py
    "parallelism.enable_async_tensor_parallel",  # before 0.3.0
}
_SECTIONS = {
    "compile": "CompileConfig",
    "training": "TrainingConfig",
    "zero_optimization": "DeepSpeedZeroConfig",
    "zero_optimization.offload_param": "DeepSpeedZeroOffloadParamConfig",
    "tensor_parallel": "TPTrainingConfig",
}


def _require_field(document: dict[str, Any], name: str, value: Any) -> None:
    """That the real parser has an argument, of a type and with choices that allow the value."""
    if name in _NOT_IN_LISTS:
        return
    if name.startswith("--"):
        entry = document["flags"][name]
        choices = [str(one).rpartition(".")[2] for one in entry["choices"] or ()]
        assert not choices or str(value) in choices, name
        assert (value is True) == entry["kind"].startswith(("StoreTrue", "StoreFalse")), name
    elif "." in name:
        section, _, key = name.rpartition(".")
        if section == "data_types":
            assert key in document["classes"]["top_level_keys"]
            return
        entry = document["classes"][_SECTIONS[section]][key]
        _require_type(entry["type"], value)
    else:
        _require_type(document["fields"][name]["type"], value)


def _require_type(text: str, value: Any) -> None:
    if "Literal" in text:
        assert f"'{value}'" in text
    elif "<enum" in text:  # whose members the document does not list
        assert isinstance(value, str)
    else:
        assert type(value).__name__ in text


HUGGING_FACE = ["deepspeed", "fsdp"]


@pytest.mark.parametrize("stack", HUGGING_FACE)
@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({}, {"attention_kernel": "pytorch", "loss": "pytorch", "launch": "eager"}),
        ({"attn_implementation": "flash_attention_3"}, {"attention_kernel": "flash3"}),
        ({"attn_implementation": "eager"}, {"attention_kernel": "unfused"}),
        ({"use_liger_kernel": "true"}, {"loss": "fused_linear", "fused": True}),
        ({"torch_compile": True}, {"launch": "compiled", "fused": True}),
        ({"tiled_mlp": True}, {"tiled_mlp": True}),
    ],
)
def test_arguments_of_a_training_script_are_switches(
    stack: str, arguments: dict[str, Any], fields: dict[str, Any]
) -> None:
    read = read_switches(stack, arguments, None)
    assert {name: read[name] for name in fields} == fields


@pytest.mark.parametrize("stack", HUGGING_FACE)
def test_arguments_of_the_script_are_no_settings_of_the_launcher(stack: str) -> None:
    liger = {"loss": "fused_linear", "attention_kernel": "flash3", "tiled_mlp": True}
    problem = replace(question(), stack=changed(catalogue.stack(stack), liger))
    layout = Layout(dp_shard=64, zero_stage=3)
    of_script = {"use_liger_kernel": True, "attn_implementation": "flash_attention_3"}
    assert launch_arguments(problem, layout, of_script=True) == of_script
    assert not of_script.keys() & launch_arguments(problem, layout).keys()
    (sentence,) = launch_code(problem, layout)  # no argument of theirs says it
    assert "TiledMLP" in sentence


def test_parameters_go_to_the_host_beside_the_optimizer_only() -> None:
    stack = changed(catalogue.stack("deepspeed"), {"parameters_on_host": True})
    problem = replace(question(), stack=stack)
    layout = Layout(dp_shard=64, zero_stage=3, offload_optimizer=True)
    name = "zero_optimization.offload_param.device"
    assert launch_arguments(problem, layout)[name] == "cpu"
    for other in (replace(layout, offload_optimizer=False), replace(layout, zero_stage=2)):
        assert name not in launch_arguments(problem, other)


@pytest.mark.parametrize("stack", ["megatron", "megatron-bridge"])
def test_a_graph_of_a_whole_step_brings_what_it_needs(stack: str) -> None:
    problem = replace(sparse(stack), stack=changed(catalogue.stack(stack), {"moe_graphs": "full"}))
    words = " ".join(
        f"{name} {value}" for name, value in launch_arguments(problem, EXPERTS).items()
    )
    for needed in ("full_iteration", "hybridep", "capacity", "paged", "op", "tracker"):
        assert needed in words
    capped = replace(problem, workload=replace(problem.workload, capacity_factor=1.25))
    assert "paged" not in " ".join(launch_arguments(capped, EXPERTS))  # drop and pad does it


def test_a_graph_that_is_read_brings_nothing_with_it() -> None:
    graph = {"--cuda-graph-impl": "full_iteration", "--no-check-for-nan-in-loss-and-grad": True}
    alltoall = {**graph, "--moe-token-dispatcher-type": "alltoall"}
    read = read_switches("megatron", alltoall, None, lambda condition: condition != "dense")
    assert (read["moe_graphs"], read["static_experts"]) == ("full", False)
    static = {**graph, "--moe-expert-rank-capacity-factor": "1.2", "--moe-paged-stash": True}
    read = read_switches("megatron", static, None, lambda condition: condition != "dense")
    assert read["static_experts"]


def test_published_runs_of_bridge_are_captured_as_its_recipes_are() -> None:
    own = catalogue.stack("megatron-bridge")
    assert own.moe_graphs == "none"
    now = as_usually_run(own, "somebody", None)
    assert (now.moe_graphs, now.static_experts) == ("full", True)
    assert as_usually_run(own, "somebody", 2026.2).moe_graphs == "none"
