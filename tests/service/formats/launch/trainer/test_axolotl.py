from __future__ import annotations

from typing import Any

import pytest
import yaml

from service.formats.launch.job import LaunchReading
from service.formats.launch.trainer.reader import read

FULL: dict[str, Any] = {
    "base_model": "Qwen/Qwen3-4B",
    "sequence_len": 4096,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
}
LORA = {**FULL, "adapter": "lora", "lora_r": 16, "lora_target_linear": True}


def reading_of(document: dict[str, Any], version: str | None = None) -> LaunchReading:
    return read(yaml.safe_dump(document), version)


def test_the_model_is_named_by_its_name_at_hugging_face() -> None:
    assert reading_of({**FULL, "base_model": "qwen/QWEN3-4b"}).model == {"name": "qwen3-4b"}
    unknown = reading_of({**FULL, "base_model": "someone/unheard-of-9b"})
    assert unknown.model is None
    assert unknown.unresolved_parts["model"].startswith("base_model = someone/unheard-of-9b")
    assert "config.json" in unknown.unresolved_parts["model"]


@pytest.mark.parametrize("name", ["./qwen3-4b", "/data/models/Qwen3-4B", "${MODEL}"])
def test_a_folder_or_a_variable_names_no_model(name: str) -> None:
    found = reading_of({**FULL, "base_model": name})
    assert found.model is None
    assert "send its config.json" in found.unresolved_parts["model"]


def test_nothing_said_is_what_axolotl_does() -> None:
    found = reading_of({name: FULL[name] for name in ("base_model", "micro_batch_size")})
    assert found.workload == {
        "precision": "bf16",
        "optimizer": "adamw",
        "seq_len": 512,
        "master_weights": False,
    }
    assert found.layout["recompute"] == "none"
    assert found.num_micro_batches == 1


@pytest.mark.parametrize(
    ("settings", "workload"),
    [
        ({"bf16": "auto"}, {"precision": "bf16"}),
        ({"fp16": True}, {"precision": "fp16"}),
        ({"bf16": True, "fp16": True}, {"precision": "bf16"}),
        ({"bf16": False}, {"precision": "fp32"}),
        ({"optimizer": "paged_adamw_8bit"}, {"optimizer": "paged_adamw_8bit"}),
        ({"optimizer": "muon"}, {"optimizer": "muon"}),
        ({"optimizer": "adamw_torch_4bit"}, {"optimizer": "adamw_8bit"}),
    ],
)
def test_precision_and_optimizer_are_read(
    settings: dict[str, Any], workload: dict[str, Any]
) -> None:
    found = reading_of({**FULL, **settings}).workload
    assert {name: found[name] for name in workload} == workload


@pytest.mark.parametrize(
    ("settings", "lora"),
    [
        ({}, {"rank": 16, "targets": ["attention", "mlp", "experts"], "base_bits": 16}),
        ({"adapter": "qlora", "load_in_4bit": True}, {"base_bits": 4}),
        ({"load_in_8bit": True}, {"base_bits": 8}),
        ({"base_model": "unsloth/Qwen3-4B-bnb-4bit"}, {"base_bits": 4}),
        (
            {"lora_target_linear": None, "lora_target_modules": ["qkv_proj", "o_proj"]},
            {"targets": ["attention"]},
        ),
        (
            {"lora_target_linear": None, "lora_target_modules": "['gate_up_proj', 'down_proj']"},
            {"targets": ["mlp", "experts"]},
        ),
        (
            {
                "lora_target_linear": None,
                "lora_target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
                "lora_target_parameters": ["mlp.experts.gate_up_proj"],
            },
            {"targets": ["attention", "experts"]},
        ),
        (
            {"lora_target_linear": None, "lora_target_modules": ["q_proj", "v_proj"]},
            {"targets": ["attention"], "modules": ["q_proj", "v_proj"]},
        ),
        (
            {
                "lora_target_linear": None,
                "lora_target_modules": ["self_attn.qkv_proj", "mlp.up_proj", "o_proj"],
            },
            {
                "targets": ["attention", "mlp", "experts"],
                "modules": ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"],
            },
        ),
        (
            {
                "lora_target_linear": None,
                "lora_target_modules": ["v_proj"],
                "lora_target_parameters": ["mlp.experts.down_proj"],
            },
            {
                "targets": ["attention", "experts"],
                "modules": ["v_proj", "gate_proj", "up_proj", "down_proj"],
            },
        ),
    ],
)
def test_adapters_are_read(settings: dict[str, Any], lora: dict[str, Any]) -> None:
    found = reading_of({**LORA, **settings})
    assert {name: found.workload["lora"][name] for name in lora} == lora
    assert not [*found.reservations, *found.stops]


@pytest.mark.parametrize(
    ("settings", "setting"), [({}, "adapter"), ({"load_in_8bit": True}, "load_in_8bit")]
)
def test_qlora_needs_weights_of_4_bits(settings: dict[str, Any], setting: str) -> None:
    (stop,) = reading_of({**LORA, "adapter": "qlora", **settings}).stops
    assert stop.setting == setting


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            ["q_proj", "k_proj", "v_proj", "o_proj", "lm_head"],
            "adapters of lm_head are not described",
        ),
        ("model.layers.[0-9].self_attn.(qkv_proj|o_proj)", "on all layers"),
    ],
)
def test_modules_that_are_not_read_as_they_are_are_reserved(written: Any, said: str) -> None:
    settings = {**LORA, "lora_target_linear": None, "lora_target_modules": written}
    (reserved,) = reading_of(settings).reservations
    assert said in reserved.reason
    assert reserved.answered_by == "workload.lora"


def test_training_that_rounds_weights_is_reserved() -> None:
    (reserved,) = reading_of({**FULL, "qat": {"weight_dtype": "int4"}}).reservations
    assert "rounding" in reserved.reason


def test_keys_of_adapters_without_an_adapter_train_all_parameters() -> None:
    assert "lora" not in reading_of({**LORA, "adapter": None}).workload


@pytest.mark.parametrize(
    ("settings", "layout"),
    [
        ({"gradient_checkpointing": True}, {"recompute": "full"}),
        (
            {"gradient_checkpointing": "offload"},
            {"recompute": "full", "offload_activations": True},
        ),
        ({"fsdp_config": {"reshard_after_forward": False}}, {"zero_stage": 3, "reshard": False}),
        ({"fsdp_config": {"fsdp_offload_params": True}}, {"offload_optimizer": True}),
        ({"fsdp_config": {"activation_checkpointing": True}}, {"recompute": "full"}),
        (
            {"dp_shard_size": 4, "tensor_parallel_size": 2},
            {"dp_shard": 4, "tp": 2},
        ),
        ({"fsdp_config": None, "tensor_parallel_size": 2}, {"zero_stage": 0, "tp": 2}),
    ],
)
def test_what_shards_the_model_is_read(settings: dict[str, Any], layout: dict[str, Any]) -> None:
    found = reading_of({**FULL, "fsdp_config": {"offload_params": False}, **settings})
    assert {name: found.layout.get(name) for name in layout} == layout


def test_devices_that_no_degree_takes_are_left_open() -> None:
    found = reading_of(
        {**FULL, "fsdp_config": {"offload_params": False}, "context_parallel_size": 4}
    )
    assert found.layout["cp"] == 4
    assert "dp_shard" not in found.layout


def test_fsdp1_is_refused_by_releases_that_removed_it() -> None:
    document = {
        **FULL,
        "fsdp": ["full_shard", "auto_wrap"],
        "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD", "fsdp_offload_params": True},
    }
    newest = reading_of(document)
    assert {stop.setting for stop in newest.stops} == {
        "fsdp",
        "fsdp_config.fsdp_sharding_strategy",
    }
    earlier = reading_of({**document, "fsdp_version": 1}, "0.9.0")
    assert not earlier.stops
    assert (earlier.layout["zero_stage"], earlier.layout["offload_optimizer"]) == (3, True)


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"rl": "grpo"}, "rl = grpo"),
        ({"kd_trainer": True}, "kd_trainer"),
        ({"unfrozen_parameters": ["score"]}, "unfrozen_parameters"),
        ({"plugins": ["mine.Plugin"]}, "plugins"),
        ({"optimizer": "q_galore_adamw8bit"}, "optimizer = q_galore_adamw8bit"),
        ({"deepspeed": "deepspeed_configs/zero3.json"}, "deepspeed deepspeed_configs/zero3.json"),
        ({"model_config": {"num_experts_per_tok": 2}}, "model_config.num_experts_per_tok"),
    ],
)
def test_what_could_matter_is_reserved_by_its_own_name(
    settings: dict[str, Any], setting: str
) -> None:
    (reserved,) = reading_of({**FULL, **settings}).reservations
    assert reserved.setting.startswith(setting)
    assert reserved.cure


def test_what_changes_nothing_is_passed_over() -> None:
    found = reading_of(
        {
            **FULL,
            "datasets": [{"path": "some/data", "type": "alpaca"}],
            "special_tokens": {"pad_token": "<pad>"},
            "wandb_project": "mine",
            "learning_rate": 2e-5,
            "lora_dropout": 0.05,
            "warmup_ratio": 0.1,
            "rl": None,
        }
    )
    assert [*found.reservations, *found.warnings, *found.stops] == []


def test_an_unknown_key_is_a_warning_with_its_nearest() -> None:
    (warning,) = reading_of({**FULL, "context_paralel_size": 2}).warnings
    assert warning.endswith("did you mean context_parallel_size?")


FSDP2 = {"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True}}


@pytest.mark.parametrize(
    ("settings", "layout"),
    [
        ({"expert_parallel_size": 4}, {"ep": 4}),
        ({"expert_parallel_size": 2, "dp_shard_size": 2}, {"ep": 2, "dp_shard": 4}),
        (
            {"expert_parallel_size": 8, "dp_shard_size": 1, "dp_replicate_size": 2},
            {"ep": 8, "dp_shard": 8, "dp_replicate": 2},
        ),
    ],
)
def test_ranks_of_experts_shard_the_rest_of_the_model(
    settings: dict[str, Any], layout: dict[str, int]
) -> None:
    """With those of dp_shard (monkeypatch/accelerate/parallelism_config.py, dp_shard_cp)."""
    found = reading_of({**FULL, **FSDP2, **settings})
    assert found.layout | layout == found.layout
    assert [*found.reservations, *found.stops] == []


def test_expert_parallelism_stops_without_fsdp() -> None:
    (stop,) = reading_of({**FULL, "expert_parallel_size": 4}).stops
    assert (stop.setting, "fsdp_config" in stop.rule) == ("expert_parallel_size", True)


@pytest.mark.parametrize(("cap", "reserved"), [(100, 1), (10**6, 0)])
def test_a_capacity_of_experts_matters_where_it_can_be_reached(cap: int, reserved: int) -> None:
    capped = {"expert_parallel_size": 2, "expert_parallel_token_capacity": cap}
    assert len(reading_of({**FULL, **FSDP2, **capped}).reservations) == reserved


@pytest.mark.parametrize(
    ("settings", "version", "context"),
    [
        ({}, None, "ulysses"),
        ({"context_parallel": {"size": 2, "backend": "ring"}}, None, "ring"),
        ({}, "0.19.0", "ring"),
    ],
)
def test_sequences_are_shared_by_heads_unless_a_ring_is_asked_for(
    settings: dict[str, Any], version: str | None, context: str
) -> None:
    found = reading_of({**FULL, **FSDP2, "context_parallel_size": 2, **settings}, version)
    assert found.layout["cp"] == 2
    assert found.stack.get("context") == context


def test_activations_go_to_the_host_however_the_model_is_sharded() -> None:
    offloading = {"gradient_checkpointing": True, "activation_offloading": True}
    for sharded in ({}, FSDP2):
        found = reading_of({**FULL, **offloading, **sharded})
        assert found.layout["offload_activations"]
        assert found.stack["offloads_checkpoints"] is False


def test_the_default_of_a_setting_is_said_to_be_one() -> None:
    found = reading_of({"base_model": "Qwen/Qwen3-4B", "micro_batch_size": 1})
    assert found.default_origins["workload.seq_len"] == "the default of sequence_len in axolotl"
    assert "layout.micro_batch" not in found.default_origins
