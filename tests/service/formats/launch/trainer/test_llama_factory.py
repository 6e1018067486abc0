from __future__ import annotations

from typing import Any

import pytest
import yaml

from service.formats.launch.job import LaunchReading
from service.formats.launch.trainer.reader import read
from service.formats.shell.files import LaunchFiles

SFT: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen3-4B",
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "full",
    "template": "qwen3",
    "dataset": "mine",
    "cutoff_len": 4096,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "bf16": True,
    "output_dir": "out",
}
V1: dict[str, Any] = {
    "model": "Qwen/Qwen3-4B",
    "train_dataset": "mine.yaml",
    "micro_batch_size": 2,
    "dist_config": {"name": "fsdp2"},
}


def reading_of(document: dict[str, Any], **files: str) -> LaunchReading:
    return read(yaml.safe_dump(document), None, files=LaunchFiles(files))


def test_checkpointing_is_on_unless_it_is_switched_off() -> None:
    assert reading_of(SFT).layout["recompute"] == "full"
    off = {**SFT, "disable_gradient_checkpointing": True}
    assert reading_of(off).layout["recompute"] == "none"


def test_parameters_are_trained_in_full_precision_unless_they_are_pure_bf16() -> None:
    assert reading_of(SFT).workload == {"precision": "bf16", "seq_len": 4096}
    pure = reading_of({**SFT, "bf16": None, "pure_bf16": True}).workload
    assert (pure["precision"], pure["master_weights"]) == ("bf16", False)


def test_pure_bf16_has_masters_under_zero_2_and_is_refused_under_zero_3() -> None:
    settings = {**SFT, "bf16": None, "pure_bf16": True, "deepspeed": "ds.json"}
    document = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}
    found = reading_of(settings, **{"ds.json": yaml.safe_dump(document)})
    assert found.workload["precision"] == "bf16"
    assert found.workload.get("master_weights", True)
    assert found.stops == ()
    document["zero_optimization"] = {"stage": 3}
    (stop,) = reading_of(settings, **{"ds.json": yaml.safe_dump(document)}).stops
    assert (stop.setting, "ZeRO 3" in stop.rule) == ("pure_bf16", True)


@pytest.mark.parametrize("kind", ["full", "freeze"])
def test_weights_of_few_bits_are_frozen(kind: str) -> None:
    (stop,) = reading_of({**SFT, "finetuning_type": kind, "quantization_bit": 4}).stops
    assert stop.setting == "quantization_bit"


def test_the_usual_attention_may_be_written() -> None:
    assert reading_of({**SFT, "flash_attn": "auto"}).reservations == ()


@pytest.mark.parametrize(
    ("settings", "lora"),
    [
        ({"finetuning_type": "lora"}, {"rank": 8, "base_bits": 16}),
        ({"finetuning_type": None, "lora_rank": 64}, {"rank": 64}),
        ({"finetuning_type": "lora", "quantization_bit": 4}, {"base_bits": 4}),
        (
            {"finetuning_type": "lora", "lora_target": "q_proj,v_proj"},
            {"targets": ["attention"]},
        ),
        ({"finetuning_type": "oft", "oft_block_size": 32}, {"rank": 8}),
    ],
)
def test_adapters_are_read(settings: dict[str, Any], lora: dict[str, Any]) -> None:
    found = reading_of({**SFT, **settings})
    assert {name: found.workload["lora"][name] for name in lora} == lora


def test_a_document_of_deepspeed_is_read_where_it_is_sent() -> None:
    document = {**SFT, "deepspeed": "examples/deepspeed/ds_z3.json"}
    unsent = reading_of(document)
    (reserved,) = unsent.reservations
    assert (reserved.is_open, unsent.stack["name"]) == (True, "deepspeed")
    assert "zero_stage" not in unsent.layout
    sent = reading_of(
        document,
        **{
            "ds_z3.json": '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"},'
            ' "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto",'
            ' "gradient_accumulation_steps": "auto"}'
        },
    )
    assert not sent.reservations
    assert sent.workload["precision"] == "bf16"
    assert (sent.layout["zero_stage"], sent.layout["micro_batch"]) == (3, 1)
    assert sent.num_micro_batches == 8


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"stage": "ppo"}, "stage = ppo"),
        ({"mixture_of_depths": "convert"}, "mixture_of_depths = convert"),
        ({"use_badam": True, "badam_mode": "ratio"}, "badam_mode = ratio"),
        ({"use_kt": True}, "use_kt = true"),
    ],
)
def test_what_could_matter_is_reserved(settings: dict[str, Any], setting: str) -> None:
    (reserved,) = reading_of({**SFT, **settings}).reservations
    assert reserved.setting == setting


def test_its_parser_stops_at_names_that_it_does_not_have() -> None:
    (stop,) = reading_of({**SFT, "lora_rnak": 8}).stops
    assert (stop.setting, stop.cure) == ("lora_rnak", "lora_rank")


def test_degrees_of_megatron_make_a_job_of_megatron() -> None:
    found = reading_of(
        {**SFT, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4,
            "use_distributed_optimizer": True, "recompute_granularity": "full"}
    )  # fmt: skip
    assert found.stack["name"] == "megatron"
    expected = {"tp": 2, "pp": 4, "zero_stage": 1, "recompute": "full"}
    assert found.layout | expected == found.layout


def test_the_second_interface_has_its_own_defaults() -> None:
    found = reading_of(V1)
    assert found.workload == {"precision": "bf16", "seq_len": 2048}
    expected = {"zero_stage": 3, "recompute": "full", "micro_batch": 2}
    assert found.layout | expected == found.layout
    ulysses = {"name": "fsdp2", "cp_mode": "ulysses", "cp_size": 2}
    long = reading_of({**V1, "dist_config": ulysses})
    assert (long.layout["cp"], long.stack["context"]) == (2, "ulysses")
    lora = reading_of({**V1, "peft_config": {"name": "lora", "r": 4, "target_modules": "all"}})
    assert lora.workload["lora"]["rank"] == 4


def test_a_command_may_override_its_file() -> None:
    command = "FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=8 llamafactory-cli train sft.yaml"
    files = LaunchFiles({"sft.yaml": yaml.safe_dump(SFT)})
    found = read(f"{command} per_device_train_batch_size=4", None, files=files)
    assert (found.num_devices, found.layout["micro_batch"]) == (16, 4)
    assert (found.framework, found.version) == ("llamafactory", "0.9.5")


@pytest.mark.parametrize(
    ("settings", "workload"),
    [
        ({"use_galore": True}, {"optimizer": "adamw", "moment_rank": 16}),
        ({"use_galore": True, "galore_rank": 128}, {"optimizer": "adamw", "moment_rank": 128}),
        ({"use_apollo": True, "apollo_rank": 256, "optim": "adamw_8bit"},
         {"optimizer": "adamw_8bit", "moment_rank": 256}),
        ({"optim": "galore_adamw", "optim_args": "rank=64, update_proj_gap=100"},
         {"optimizer": "adamw", "moment_rank": 64}),
        ({"optim": "apollo_adamw"}, {"optimizer": "adamw", "moment_rank": 1}),
    ],
)  # fmt: skip
def test_projected_gradients_have_moments_of_their_rank(
    settings: dict[str, Any], workload: dict[str, Any]
) -> None:
    found = reading_of({**SFT, **settings})
    assert found.workload | workload == found.workload
    assert found.reservations == ()


@pytest.mark.parametrize(("bits", "reserved"), [(2, 0), (3, 0), (5, 1)])
def test_frozen_weights_have_few_bits(bits: int, reserved: int) -> None:
    lora = {"finetuning_type": "lora", "quantization_bit": bits, "quantization_method": "hqq"}
    found = reading_of({**SFT, **lora})
    assert len(found.reservations) == reserved
    assert found.workload["lora"]["base_bits"] == (16 if reserved else bits)


def test_workers_of_ray_have_resources_in_earlier_releases() -> None:
    ray = {"ray_num_workers": 4, "resources_per_worker": {"GPU": 1}, "placement_strategy": "PACK"}
    found = reading_of({"stage": "sft", "model_name_or_path": "Qwen/Qwen3-4B", **ray})
    assert (found.stops, found.num_devices) == ((), 4)
