from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from models.errors import Invalid
from service.formats.launch.accelerate import writer as accelerate_writer
from service.formats.launch.job import Inexpressible
from service.formats.launch.recognition import other_format
from service.formats.launch.trainer import reader as accelerate_reader
from tests.service.formats.launch.jobs import job_of, layout_read, problem_of, written

PROBLEM = problem_of("fsdp")
CHOICES: dict[str, tuple[Any, ...]] = {
    "zero_stage": (0, 2, 3),
    "reshard": (True, False),
    "recompute": ("none", "full"),
    "offload_optimizer": (False, True),
    "offload_activations": (False, True),
    "micro_batch": (1, 4),
}
FSDP2 = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "num_machines": 2,
    "num_processes": 16,
    "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
}


def read(document: dict[str, Any]) -> Any:
    return accelerate_reader.read(yaml.safe_dump(document), None)


@given(written(PROBLEM, accelerate_writer.write, **CHOICES))
def test_a_layout_that_is_written_is_read_again(made: Any) -> None:
    job, configuration = made
    reading = read({**configuration.settings, **configuration.script_arguments})
    is_meaningless = job.layout.zero_stage < 3
    expected = replace(job.layout, reshard=True) if is_meaningless else job.layout
    assert layout_read(reading, PROBLEM) == expected
    assert reading.num_devices == 16
    assert reading.num_micro_batches == job.num_micro_batches
    assert reading.workload == {"precision": "bf16", "optimizer": "adamw"}
    assert reading.stack["name"] == "fsdp"
    assert not reading.reservations


def test_zero_3_is_fsdp2() -> None:
    job = job_of(PROBLEM, dp_shard=8, dp_replicate=2, zero_stage=3, recompute="full")
    configuration = accelerate_writer.write(job)
    assert configuration.settings == {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": 2,
        "num_processes": 16,
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": True,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_offload_params": False,
            "fsdp_activation_checkpointing": True,
        },
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": 2,
            "parallelism_config_dp_shard_size": 8,
            "parallelism_config_tp_size": 1,
            "parallelism_config_cp_size": 1,
        },
        "dynamo_config": {"dynamo_backend": "NO"},
    }
    assert configuration.script_arguments == {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 4,
        "optim": "adamw_torch",
    }
    assert [*configuration.placeholders] == ["fsdp_config.fsdp_transformer_layer_cls_to_wrap"]


def test_zero_2_is_fsdp1_which_keeps_parameters_between_micro_batches() -> None:
    job = job_of(PROBLEM, dp_shard=16, zero_stage=2)
    config = accelerate_writer.write(job).settings["fsdp_config"]
    assert (config["fsdp_version"], config["fsdp_sharding_strategy"]) == (1, "SHARD_GRAD_OP")
    hybrid = job_of(PROBLEM, dp_shard=8, dp_replicate=2, zero_stage=2)
    config = accelerate_writer.write(hybrid).settings["fsdp_config"]
    assert config["fsdp_sharding_strategy"] == "HYBRID_SHARD_ZERO2"


def test_replicas_alone_are_plain_data_parallelism() -> None:
    job = job_of(PROBLEM, dp_replicate=16, zero_stage=0, recompute="full")
    configuration = accelerate_writer.write(job)
    assert configuration.settings["distributed_type"] == "MULTI_GPU"
    assert configuration.script_arguments["gradient_checkpointing"] is True
    assert not configuration.placeholders


@pytest.mark.parametrize(
    ("knobs", "knob", "cure"),
    [
        ({"dp_shard": 16, "zero_stage": 3, "recompute": "selective"}, "recompute", "none or full"),
        ({"dp_shard": 4, "dp_replicate": 4, "zero_stage": 2}, "dp_shard", "dp_shard 8"),
        ({"dp_shard": 16, "zero_stage": 1}, "zero_stage", "2 or 3"),
        ({"dp_shard": 8, "cp": 2, "zero_stage": 2}, "cp", "zero_stage 3"),
        ({"dp_shard": 8, "pp": 2, "zero_stage": 3}, "pp", "pp 1"),
        (
            {"dp_shard": 16, "zero_stage": 3, "offload_activations": True},
            "offload_activations",
            "recompute full",
        ),
    ],
)
def test_what_it_cannot_say_is_named_with_the_cure(
    knobs: dict[str, Any], knob: str, cure: str
) -> None:
    with pytest.raises(Inexpressible) as caught:
        accelerate_writer.write(job_of(PROBLEM, **knobs))
    assert caught.value.field == f"layout.{knob}"
    assert cure in caught.value.rule


def fsdp1(**config: Any) -> dict[str, Any]:
    return {**FSDP2, "fsdp_config": config}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (FSDP2, {"zero_stage": 3, "reshard": True, "dp_shard": 16}),
        (
            {**FSDP2, "fsdp_config": {"version": 2, "reshard_after_forward": "false"}},
            {"zero_stage": 3, "reshard": False},
        ),
        (
            {**FSDP2, "parallelism_config": {"parallelism_config_dp_shard_size": 4,
                "parallelism_config_dp_replicate_size": 2, "parallelism_config_tp_size": 2}},
            {"dp_shard": 4, "dp_replicate": 2, "tp": 2, "cp": 1},
        ),
        (fsdp1(), {"zero_stage": 3, "dp_shard": 16, "dp_replicate": 1}),
        (fsdp1(fsdp_sharding_strategy="SHARD_GRAD_OP"), {"zero_stage": 2, "dp_shard": 16}),
        (fsdp1(fsdp_sharding_strategy=1), {"zero_stage": 3, "dp_shard": 16}),
        (fsdp1(fsdp_sharding_strategy=2), {"zero_stage": 2}),
        (fsdp1(fsdp_sharding_strategy="NO_SHARD"), {"zero_stage": 0, "dp_replicate": 16}),
        (
            fsdp1(fsdp_sharding_strategy="HYBRID_SHARD"),
            {"zero_stage": 3, "dp_shard": 8, "dp_replicate": 2},
        ),
        (
            fsdp1(fsdp_sharding_strategy="HYBRID_SHARD_ZERO2"),
            {"zero_stage": 2, "dp_shard": 8, "dp_replicate": 2},
        ),
        (fsdp1(fsdp_offload_params=True), {"offload_optimizer": True}),
        ({**FSDP2, "distributed_type": "MULTI_GPU"}, {"zero_stage": 0, "dp_replicate": 16}),
        (
            {**FSDP2, "distributed_type": "MULTI_GPU", "activation_checkpointing": True},
            {"recompute": "full"},
        ),
        (
            {"distributed_type": "DEEPSPEED", "num_processes": 8,
                "deepspeed_config": {"zero_stage": 3, "offload_optimizer_device": "cpu"}},
            {"zero_stage": 3, "dp_shard": 8, "offload_optimizer": True},
        ),
        (
            {"distributed_type": "MEGATRON_LM", "num_processes": 16, "megatron_lm_config": {
                "megatron_lm_tp_degree": 2, "megatron_lm_pp_degree": 2,
                "megatron_lm_use_distributed_optimizer": True}},
            {"tp": 2, "pp": 2, "zero_stage": 1, "dp_shard": 4},
        ),
    ],
)  # fmt: skip
def test_knobs_are_read(document: dict[str, Any], expected: dict[str, Any]) -> None:
    found = read(document).layout
    assert {knob: found.get(knob) for knob in expected} == expected


def test_the_stack_is_that_of_the_kind() -> None:
    assert read(FSDP2).stack["name"] == "fsdp"
    assert read({"distributed_type": "DEEPSPEED"}).stack["name"] == "deepspeed"
    assert read({"distributed_type": "MEGATRON_LM"}).stack == {"name": "megatron"}


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "shard_grad_op", "2"])
def test_fsdp2_takes_no_strategy(strategy: str) -> None:
    config = {"version": 2, "reshard_after_forward": strategy}
    (stop,) = read({**FSDP2, "fsdp_config": config}).stops
    assert stop.setting == "fsdp_config.fsdp_reshard_after_forward"


def test_empty_parts_and_the_old_name_of_dynamo_are_known() -> None:
    old = {"dynamo_backend": "NO", "megatron_lm_config": {}, "dynamo_config": {}}
    found = read({**FSDP2, **old})
    assert found.reservations == ()
    assert found.stack["launch"] == "eager"


def test_words_that_yaml_spoils_are_understood() -> None:
    text = "distributed_type: NO\nmixed_precision: no\ndynamo_config: {dynamo_backend: NO}\n"
    found = accelerate_reader.read(text, None)
    assert found.workload["precision"] == "fp32"
    assert found.stack["launch"] == "eager"
    assert found.layout["zero_stage"] == 0


COMMAND = """
accelerate launch --use_fsdp --fsdp_version=2 --num_machines 2 --num_processes 16 \\
  --fsdp_activation_checkpointing true --mixed_precision bf16 --debug \\
  train.py --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_seq_length 4096 \\
  --optim adamw_torch_fused --output_dir out --learning_rate 1e-4 --packing
"""


@pytest.mark.parametrize(
    "text",
    [
        COMMAND,
        f"srun {COMMAND.strip()}",
        COMMAND.replace("accelerate launch", "python -m accelerate.commands.launch"),
        COMMAND.replace("accelerate launch", "accelerate-launch"),
        f"#!/bin/bash\nexport OMP_NUM_THREADS=8\n{COMMAND}",
    ],
)
def test_a_command_line_is_read(text: str) -> None:
    found = accelerate_reader.read(text, None)
    expected = {"zero_stage": 3, "dp_shard": 16, "micro_batch": 2, "recompute": "full"}
    assert {knob: found.layout.get(knob) for knob in expected} == expected
    assert found.workload == {"precision": "bf16", "optimizer": "adamw", "seq_len": 4096}
    assert (found.num_devices, found.num_micro_batches) == (16, 4)
    assert not found.reservations
    assert any("workload.packing" in line for line in found.assumed)
    assert {line.split(" = ")[0] for line in found.ignored} == {
        "debug",
        "output_dir",
        "learning_rate",
    }


@pytest.mark.parametrize(
    ("document", "unread"),
    [
        (fsdp1(fsdp_reshard_after_forward="SHARD_GRAD_OP"), "FSDP1 takes fsdp_sharding_strategy"),
        (fsdp1(fsdp_auto_wrap_policy="NO_WRAP"), "fsdp_auto_wrap_policy"),
        (
            {"distributed_type": "DEEPSPEED",
                "deepspeed_config": {"deepspeed_config_file": "ds.json"}},
            "the text of ds.json was not sent",
        ),
    ],
)  # fmt: skip
def test_what_could_matter_and_is_not_understood_is_listed(
    document: dict[str, Any], unread: str
) -> None:
    assert any(unread in each.text for each in read(document).reservations)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"distributed_type": "XLA"}, "must be FSDP"),
        ({**FSDP2, "mixed_precision": "int4"}, "must be no, bf16"),
        (fsdp1(fsdp_sharding_strategy="SOME"), "must be one of FULL_SHARD"),
        (fsdp1(fsdp_sharding_strategy="²"), "must be one of FULL_SHARD"),
        ({**FSDP2, "dynamo_config": {"dynamo_backend": "TVM"}}, "must be one of"),
        ({**FSDP2, "num_processes": "many"}, "whole number"),
    ],
)
def test_what_cannot_be_is_refused(document: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        read(document)
    assert caught.value.field == "launch.arguments"


@pytest.mark.parametrize(
    ("document", "rule", "cure"),
    [
        (
            {**FSDP2, "parallelism_config": {"parallelism_config_dp_shard_size": 4}},
            "dp_shard(4) * tp(1) * cp(1) = 4",
            "num_processes 4",
        ),
        (
            {**fsdp1(fsdp_sharding_strategy=4), "num_machines": 3},
            "multiple of num_machines",
            "num_processes 15 or 18",
        ),
    ],
)
def test_what_accelerate_stops_at(document: dict[str, Any], rule: str, cure: str) -> None:
    (stop,) = read(document).stops
    assert (stop.setting, stop.cure) == ("num_processes", cure)
    assert rule in stop.rule


KEYS = ["distributed_type", "fsdp_config", "fsdp_version", "num_processes", "parallelism_config"]
LEAVES = st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["FSDP", "NO"])


@given(
    st.recursive(
        LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner)
    )
)
def test_any_document_is_read_or_refused(document: Any) -> None:
    with suppress(Invalid):
        accelerate_reader.read(json.dumps(document), None)


def test_a_command_with_a_document_is_read_where_both_are_sent() -> None:
    command = "accelerate launch --config_file fsdp.yaml --num_processes 32 train.py --bf16"
    (reserved,) = accelerate_reader.read(command, None).reservations
    assert (reserved.setting, reserved.is_open) == ("--config_file fsdp.yaml", True)
    assert "launch.files['fsdp.yaml']" in reserved.cure
    script = f"cat > fsdp.yaml <<EOF\n{yaml.safe_dump(FSDP2)}EOF\n{command}\n"
    found = accelerate_reader.read(script, None)
    assert (found.num_devices, found.layout["dp_shard"]) == (32, 32)
    assert found.layout["zero_stage"] == 3


def test_a_micro_batch_that_nobody_wrote_is_not_made_of_the_batch() -> None:
    silent = read(FSDP2)
    assert "micro_batch" not in silent.layout
    assert silent.num_micro_batches is None
    stated = read({**FSDP2, "gradient_accumulation_steps": 2})
    assert (stated.num_micro_batches, stated.default_origins.get("num_micro_batches")) == (2, None)
    micro = read({**FSDP2, "per_device_train_batch_size": 2})
    assert micro.num_micro_batches == 1
    assert "default" in micro.default_origins["num_micro_batches"]


def test_misspelt_keys_name_the_key_that_may_be_meant() -> None:
    config = {**FSDP2["fsdp_config"], "fsdp_reshard_after_foward": False}
    (reserved,) = read({**FSDP2, "fsdp_config": config}).reservations
    assert reserved.cure == "did you mean fsdp_config.fsdp_reshard_after_forward?"


_SFT = "accelerate launch --num_processes 8 --use_fsdp --fsdp_version 2 sft.py"


@pytest.mark.parametrize(
    ("flags", "lora", "noted"),
    [
        ("--use_peft --lora_target_modules q_proj k_proj v_proj o_proj",
         {"rank": 16, "targets": ["attention"], "base_bits": 16}, 0),
        ("--use_peft --lora_r 8 --load_in_4bit --lora_target_modules all-linear --lora_alpha 16",
         {"rank": 8, "targets": ["attention", "mlp", "experts"], "base_bits": 4}, 0),
        ("--use_peft --lora_target_modules up_proj",
         {"rank": 16, "targets": ["mlp", "experts"], "modules": ["up_proj"], "base_bits": 16}, 0),
        ("--use_peft",
         {"rank": 16, "targets": ["attention", "mlp", "experts"], "base_bits": 16}, 1),
        ("--lora_r 8", None, 1),
    ],
)  # fmt: skip
def test_adapters_of_trl_are_read(flags: str, lora: dict[str, Any] | None, noted: int) -> None:
    reading = accelerate_reader.read(f"{_SFT} {flags}", None)
    assert reading.workload.get("lora") == lora
    assert len(reading.assumed) + len(reading.reservations) == noted


@pytest.mark.parametrize(
    ("flags", "precision", "masters"),
    [
        ("--dtype bfloat16", "bf16", False),
        ("--dtype float32", "fp32", True),
        ("--dtype bfloat16 --bf16", "bf16", True),
    ],
)
def test_what_the_model_is_loaded_in(flags: str, precision: str, masters: bool) -> None:
    workload = accelerate_reader.read(f"{_SFT} {flags}", None).workload
    assert (workload["precision"], workload.get("master_weights", True)) == (precision, masters)
    with pytest.raises(Invalid, match="dtype"):
        accelerate_reader.read(f"{_SFT} --dtype int8", None)


_AXOLOTL = """
base_model: meta-llama/Llama-3.1-70B
adapter: qlora
load_in_4bit: true
lora_r: 32
lora_target_linear: true
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
bf16: auto
optimizer: adamw_torch
fsdp_version: 2
fsdp_config:
  offload_params: true
  reshard_after_forward: false
dp_shard_size: 8
tensor_parallel_size: 2
gradient_checkpointing: true
sample_packing: true
"""


def test_a_file_of_axolotl_is_read() -> None:
    reading = accelerate_reader.read(_AXOLOTL, None)
    assert reading.workload == {
        "precision": "bf16",
        "optimizer": "adamw",
        "seq_len": 4096,
        "lora": {"rank": 32, "targets": ["attention", "mlp", "experts"], "base_bits": 4},
    }
    assert reading.layout | {"tp": 2, "dp_shard": 8, "zero_stage": 3, "reshard": False} == (
        reading.layout
    )
    assert (reading.layout["recompute"], reading.layout["offload_optimizer"]) == ("full", True)
    assert (reading.layout["micro_batch"], reading.num_micro_batches) == (2, 4)
    assert not reading.reservations
    assert (reading.framework, reading.version) == ("axolotl", "0.21.0")
    short = "base_model: x\nadapter: lora\nlora_r: 8\nmicro_batch_size: 2\nsequence_len: 2048\n"
    assert other_format("accelerate", short) is None


def test_arguments_of_the_trainer_set_switches() -> None:
    arguments = {"torch_compile": True, "use_liger_kernel": True, "attn_implementation": "eager"}
    found = read({**FSDP2, **arguments}).stack
    assert (found["launch"], found["loss"]) == ("compiled", "fused_linear")
    assert (found["attention_kernel"], found["fused"]) == ("unfused", True)
    assert read({**FSDP2, "torch_compile": False}).stack["launch"] == "eager"
