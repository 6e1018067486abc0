"""Argument dumps of other versions and forks of Megatron."""

from __future__ import annotations

import pytest

from models.errors import Invalid, Unsupported
from service.formats import logs
from service.formats.megatron.arguments import question, stated_values
from service.formats.megatron.versions import in_todays_names
from tests.service.formats.logs.dialects import DEEPSEEK, LLAMA, asked, dump, megatron, text

OLD = {
    "DDP_impl": "local", "checkpoint_activations": True, "checkpoint_num_layers": 1,
    "data_parallel_size": 2, "ffn_hidden_size": 16384, "fp16": True, "global_batch_size": 64,
    "hidden_size": 4096, "kv_channels": 128, "micro_batch_size": 1, "num_attention_heads": 32,
    "num_layers": 32, "optimizer": "adam", "padded_vocab_size": 50304,
    "pipeline_model_parallel_size": 2, "seq_length": 2048, "tensor_model_parallel_size": 2,
    "world_size": 8,
}  # fmt: skip
"""Of Megatron-LM in 2020."""
BIGSCIENCE = OLD | {
    "bf16": True, "deepspeed": True, "deepspeed_activation_checkpointing": True, "fp16": False,
    "glu_activation": "geglu", "checkpoint_in_cpu": False, "zero_stage": 1,
}  # fmt: skip


def test_a_dump_of_today_is_left_as_it_is() -> None:
    for arguments in (LLAMA, DEEPSEEK):
        printed = {name: str(value) for name, value in arguments.items()}
        assert in_todays_names(printed) == printed


@pytest.mark.parametrize(
    ("changes", "part", "expected"),
    [
        ({}, "layout", {"recompute": "full", "zero_stage": 0, "dp_replicate": 2}),
        ({}, "layout", {"sequence_parallel": False, "schedule": "1f1b"}),
        ({}, "model", {"gated_mlp": False, "attention_bias": True, "tie_word_embeddings": True}),
        ({"checkpoint_activations": False}, "layout", {"recompute": "none"}),
        (
            {
                "checkpoint_activations": None,
                "activations_checkpoint_method": "uniform",
                "virtual_pipeline_model_parallel_size": None,
            },
            "layout",
            {"recompute": "full"},
        ),
        (
            {
                "checkpoint_activations": None,
                "activations_checkpoint_method": "block",
                "activations_checkpoint_num_layers": 3,
                "virtual_pipeline_model_parallel_size": None,
            },
            "layout",
            {"recompute": "full", "recompute_layers": 3},
        ),
        ({"ffn_hidden_size": None}, "model", {"intermediate_size": 16384}),
        ({"geglu": True}, "model", {"gated_mlp": True}),
        ({"openai_gelu": True}, "model", {"gated_mlp": False}),
        ({"glu_activation": "swiglu"}, "model", {"gated_mlp": True}),
        ({"glu_activation": None}, "model", {"gated_mlp": False}),
        ({"num_attention_heads_kv": 8}, "model", {"num_key_value_heads": 8}),
        ({"attention_head_type": "multiquery"}, "model", {"num_key_value_heads": 1}),
        ({"tie_embed_logits": False}, "model", {"tie_word_embeddings": False}),
        ({"use_bias": False}, "model", {"attention_bias": False}),
        ({"encoder_seq_length": 4096, "seq_length": None}, "workload", {"seq_len": 4096}),
        ({"fp8_hybrid": True}, "workload", {"precision": "fp8"}),
    ],
)
def test_arguments_of_old_versions_mean_what_they_meant(
    changes: dict, part: str, expected: dict
) -> None:
    found = asked(**{**OLD, **changes})
    assert {name: found[part].get(name) for name in expected} == expected
    assert found["num_chips"] == 8


def test_a_batch_of_2019_is_that_of_a_rank() -> None:
    first = {
        "batch_size": 4, "checkpoint_activations": True, "fp16": True, "hidden_size": 1024,
        "model_parallel_size": 8, "num_attention_heads": 16, "num_layers": 24, "seq_length": 1024,
        "padded_vocab_size": 51200, "world_size": 64,
    }  # fmt: skip
    found = asked(**first)
    assert (found["layout"]["tp"], found["layout"]["dp_replicate"]) == (8, 8)
    assert (found["layout"]["micro_batch"], found["workload"]["global_batch"]) == (4, 32)
    assert found["model"]["intermediate_size"] == 4096


def test_deepspeed_says_by_its_stage_how_far_it_shards() -> None:
    layout = asked(**BIGSCIENCE)["layout"]
    assert (layout["zero_stage"], layout["dp_shard"], layout["recompute"]) == (1, 2, "full")
    assert asked(**BIGSCIENCE)["model"]["gated_mlp"]
    for stage, expected in (("1.0", 1), ("2", 2), ("0", 0)):
        assert asked(**{**BIGSCIENCE, "zero_stage": stage})["layout"]["zero_stage"] == expected
    unused = {**BIGSCIENCE, "deepspeed": False, "zero_stage": 1}
    assert asked(**unused)["layout"]["zero_stage"] == 0


def test_experts_of_deepspeed_are_a_list() -> None:
    assert "moe" not in asked(**{**BIGSCIENCE, "num_experts": "[1]", "topk": 1})["model"]
    sparse = {
        "num_experts": "[16]", "topk": 2, "expert_interval": 2, "moe_expert_parallel_size": 2,
    }  # fmt: skip
    found = asked(**{**BIGSCIENCE, **sparse})
    moe = found["model"]["moe"]
    assert (moe["num_experts"], moe["experts_per_token"], moe["moe_layer_freq"]) == (16, 2, 2)
    assert (found["layout"]["ep"], found["layout"]["etp"]) == (2, 1)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("recompute_granularity", "layout"), ("use_distributed_optimizer", "layout"),
        ("tensor_model_parallel_size", "layout"), ("pipeline_model_parallel_size", "layout"),
        ("sequence_parallel", "layout"), ("swiglu", "model"), ("group_query_attention", "model"),
        ("untie_embeddings_and_output_weights", "model"), ("num_experts", "model"),
    ],
)  # fmt: skip
def test_an_argument_that_was_cut_off_is_not_off(name: str, part: str) -> None:
    kept = {key: value for key, value in LLAMA.items() if key != name}
    with pytest.raises(Invalid, match="an absent argument is not one that is off") as refused:
        asked(**kept)
    assert refused.value.field == f"log.arguments.{name}"
    assert f"or give {part} in the request" in refused.value.rule
    printed = {key: str(value) for key, value in kept.items()}
    assert part not in question(printed, optional=[part])


def test_virtual_stages_that_were_cut_off_are_not_none() -> None:
    kept = {key: value for key, value in LLAMA.items() if "virtual" not in key}
    kept |= {"pipeline_model_parallel_size": 2, "data_parallel_size": 16}
    with pytest.raises(Invalid, match="virtual_pipeline_model_parallel_size"):
        asked(**kept)


def test_zero_of_deepspeed_that_was_cut_off_is_not_0() -> None:
    with pytest.raises(Invalid, match=r"zero_stage = None: is not in the dump"):
        asked(**{name: value for name, value in BIGSCIENCE.items() if name != "zero_stage"})


@pytest.mark.parametrize(
    ("name", "value"),
    [("checkpoint_in_cpu", True), ("ds_sequence_parallel_size", 4), ("num_experts_switch", 8)],
)
def test_what_old_versions_had_and_no_layout_has_is_named(name: str, value: object) -> None:
    with pytest.raises(Unsupported) as refused:
        asked(**{**BIGSCIENCE, name: value})
    assert refused.value.field == f"log.arguments.{name}"


NEOX = """
-------------------- arguments --------------------
  hidden_size ..................... 4096........................updated
  num_layers ...................... 32..........................updated
  pipe_parallel_size .............. 2...........................updated
  model_parallel_size ............. 4...........................updated
  seq_length ...................... 2048........................updated
  checkpoint_activations .......... True........................updated
  attention_dropout ............... 0...........................default
---------------- end of arguments ----------------
"""


def test_a_dump_of_gpt_neox_is_recognised_and_compared() -> None:
    lines = [f" samples/sec: 30.2 |{megatron(10 * k, 4000.0)}" for k in range(1, 5)]
    reading = logs.read(NEOX + text(lines))
    assert (reading.value, reading.arguments["hidden_size"]) == (4.0, "4096")
    with pytest.raises(Invalid, match="GPT-NeoX.*give model, workload and layout"):
        question(reading.arguments)
    stated = stated_values(reading.arguments)
    assert stated["model"] == {"num_layers": 32, "hidden_size": 4096}
    assert (stated["layout"]["tp"], stated["layout"]["pp"]) == (4, 2)


def test_what_stands_before_the_lines_of_a_dump_changes_nothing() -> None:
    printed = {name: str(value) for name, value in LLAMA.items()}
    for prefix in ("[1,0]<stdout>:", "stdout: ", "0: ", "2025-12-19T10:49:15Z stdout F "):
        lines = [prefix + line for line in dump(**LLAMA).splitlines()]
        found = logs.read_arguments(text(lines))
        assert found == logs.RunArguments("megatron", printed)
    assert logs.read_arguments("nothing\n") is None


@pytest.mark.parametrize(
    ("changes", "cut_off", "named"),
    [
        ({"bf16": False, "fp16": True}, ["fp16"], "fp16"),
        ({"bf16": True, "fp16": False}, ["bf16"], "bf16"),
        ({}, ["context_parallel_size", "data_parallel_size"], "context_parallel_size"),
        ({"DDP_impl": "local"}, ["ffn_hidden_size"], "ffn_hidden_size"),
        ({"DDP_impl": "local"}, ["swiglu"], "swiglu"),
        ({"DDP_impl": "local"}, ["use_distributed_optimizer"], "use_distributed_optimizer"),
    ],
)
def test_what_came_together_was_cut_off_where_one_is_there(
    changes: dict, cut_off: list[str], named: str
) -> None:
    kept = {name: value for name, value in {**LLAMA, **changes}.items() if name not in cut_off}
    with pytest.raises(Invalid) as refused:
        asked(**kept)
    assert refused.value.field == f"log.arguments.{named}"
