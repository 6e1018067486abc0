"""Command lines of the Trainer's tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.errors import Invalid
from service.formats.launch.job import LaunchReading
from service.formats.launch.recognition import recognized
from service.formats.launch.trainer.reader import read
from service.formats.shell.files import LaunchFiles

AUTO = json.dumps(
    {
        "bf16": {"enabled": "auto"},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "reduce_bucket_size": "auto",
        },
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_clipping": "auto",
    }
)
TRAINER = (
    "train.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2"
    " --gradient_accumulation_steps 4 --bf16 --gradient_checkpointing"
)


def reading_of(command: str, **files: str) -> LaunchReading:
    names = {
        name.replace("_json", ".json").replace("_yaml", ".yaml"): files[name] for name in files
    }
    return read(command, None, files=LaunchFiles(names))


def test_arguments_of_the_trainer_fill_in_a_document_of_deepspeed() -> None:
    found = reading_of(
        f"deepspeed --num_nodes 2 --num_gpus 8 {TRAINER} --deepspeed zero3.json", zero3_json=AUTO
    )
    assert (found.format, found.stack["name"]) == ("deepspeed", "deepspeed")
    assert (found.num_devices, found.num_micro_batches) == (16, 4)
    expected = {
        "zero_stage": 3, "dp_shard": 16, "micro_batch": 2, "recompute": "full",
        "offload_optimizer": True,
    }  # fmt: skip
    assert found.layout | expected == found.layout
    assert found.workload["precision"] == "bf16"
    assert found.model == {"name": "qwen3-8b"}
    assert [*found.reservations, *found.stops] == []


@pytest.mark.parametrize("first", ["", "#!/bin/bash\n"])
def test_a_command_with_json_in_it_is_no_document(first: str) -> None:
    command = "trl sft --model_name_or_path Qwen/Qwen3-8B --num_processes 8"
    flag = "--gradient_checkpointing_kwargs '{\"use_reentrant\": false}'"
    assert reading_of(f"{first}{command} {flag}").model == {"name": "qwen3-8b"}


def test_dashes_and_underscores_are_the_same() -> None:
    dashed = f"deepspeed --num_gpus 8 {TRAINER} --deepspeed zero3.json"
    dashed = dashed.replace("--per_device_train_batch_size", "--per-device-train-batch-size")
    found = reading_of(dashed, zero3_json=AUTO)
    assert found.layout["micro_batch"] == 2


@pytest.mark.parametrize(
    ("setting", "value"),
    [("train_micro_batch_size_per_gpu", 4), ("bf16.enabled", False)],
)
def test_transformers_stops_where_a_document_says_otherwise(setting: str, value: Any) -> None:
    document = json.loads(AUTO)
    head, _, tail = setting.partition(".")
    document[head] = {tail: value} if tail else value
    found = reading_of(f"deepspeed {TRAINER} --deepspeed z.json", z_json=json.dumps(document))
    assert [stop.setting for stop in found.stops] == [setting]


def test_zero_3_is_never_dropped_where_its_file_was_not_sent() -> None:
    found = reading_of(f"torchrun --nproc_per_node 8 {TRAINER} --deepspeed zero3.json")
    (reserved,) = found.reservations
    assert reserved.cure == "send it as launch.files['zero3.json']"
    assert found.stack["name"] == "deepspeed"


@pytest.mark.parametrize(
    ("arguments", "layout"),
    [
        ("--fsdp full_shard", {"zero_stage": 3, "reshard": True, "dp_shard": 8}),
        ("--fsdp 'full_shard auto_wrap offload'", {"offload_optimizer": True}),
        ("--fsdp shard_grad_op", {"zero_stage": 3, "reshard": False}),
        ("--fsdp full_shard --fsdp_config fsdp.json", {"zero_stage": 3, "recompute": "full"}),
        ("", {"zero_stage": 0, "dp_replicate": 8, "recompute": "full"}),
    ],
)
def test_fsdp_of_training_arguments_is_read(arguments: str, layout: dict[str, Any]) -> None:
    config = '{"activation_checkpointing": true, "transformer_layer_cls_to_wrap": ["Layer"]}'
    found = reading_of(f"torchrun --nproc_per_node 8 {TRAINER} {arguments}", fsdp_json=config)
    assert {name: found.layout.get(name) for name in layout} == layout
    assert not found.reservations


@pytest.mark.parametrize("strategy", ["no_shard", "hybrid_shard"])
def test_strategies_of_fsdp1_need_its_version(strategy: str) -> None:
    command = f"torchrun --nproc_per_node 8 {TRAINER} --fsdp '{strategy} auto_wrap'"
    (stop,) = reading_of(command).stops
    assert (stop.setting, stop.value) == ("fsdp", strategy)
    version = "--fsdp_config fsdp.json"
    assert reading_of(f"{command} {version}", fsdp_json='{"version": 1}').stops == ()


def test_transformers_stops_where_both_formats_are_on() -> None:
    for launcher in ("torchrun --nproc_per_node 8", "deepspeed --num_gpus 8"):
        (stop,) = reading_of(f"{launcher} {TRAINER} --fp16").stops
        assert stop.setting == "fp16"


def test_accelerate_takes_one_kind_of_training() -> None:
    kinds = "--multi_gpu --use_fsdp --fsdp_version 2"
    (stop,) = reading_of(f"accelerate launch {kinds} --num_processes 8 {TRAINER}").stops
    assert stop.setting == "--use_fsdp"
    assert "--multi_gpu" in stop.rule


@pytest.mark.parametrize("flag", ["--use_dora False", "--auto_find_batch_size false"])
def test_a_default_in_words_changes_nothing(flag: str) -> None:
    assert reading_of(f"torchrun --nproc_per_node 8 {TRAINER} {flag}").reservations == ()


def test_trl_has_defaults_of_its_own() -> None:
    found = reading_of("trl sft --model_name_or_path Qwen/Qwen3-4B --dataset_name mine")
    assert found.workload["seq_len"] == 1024
    assert (found.layout["recompute"], found.layout["micro_batch"]) == ("full", 8)
    assert found.workload["precision"] == "bf16"
    zero3 = reading_of("trl sft --model_name_or_path Qwen/Qwen3-4B --accelerate_config zero3")
    assert (zero3.stack["name"], zero3.layout["zero_stage"]) == ("deepspeed", 3)


@pytest.mark.parametrize(
    ("command", "precision"),
    [
        ("trl sft --num_processes 8 --fp16 False", "bf16"),
        ("trl sft --num_processes 8 --fp16", "fp16"),
        ("trl sft --num_processes 8 --bf16 False", "fp32"),
        ("accelerate launch --mixed_precision no trl/scripts/sft.py", "bf16"),
        ("accelerate launch --mixed_precision no examples/scripts/dpo.py", "bf16"),
        ("accelerate launch --mixed_precision no sft.py", "fp32"),
    ],
)
def test_trl_trains_in_bf16_unless_fp16_is_on(command: str, precision: str) -> None:
    found = reading_of(f"{command} --model_name_or_path Qwen/Qwen3-4B")
    assert found.workload["precision"] == precision


def test_a_length_of_earlier_releases_of_trl_goes_before_the_default() -> None:
    found = reading_of("trl sft --model_name_or_path Qwen/Qwen3-4B --max_seq_length 8192")
    assert found.workload["seq_len"] == 8192
    assert any("max_seq_length" in note for note in found.assumed)


@pytest.mark.parametrize(
    "command",
    [
        "trl dpo --num_processes 8 --no_remove_unused_columns",
        "trl sft --num_processes 8 --no-gradient-checkpointing",
        "NPROC_PER_NODE=8 swift sft --no_gradient_checkpointing --no_dataset_shuffle",
    ],
)
def test_what_is_on_by_default_can_be_switched_off(command: str) -> None:
    found = reading_of(f"{command} --model_name_or_path Qwen/Qwen3-4B")
    assert [*found.stops, *found.reservations] == []
    is_off = "gradient" in command
    assert (found.layout["recompute"] == "none") is is_off
    own = reading_of("trl sft --model_name_or_path Qwen/Qwen3-4B --no_bf16")
    assert [stop.setting for stop in own.stops] == ["no_bf16"]


def test_a_file_of_trl_may_set_variables() -> None:
    text = "model_name_or_path: Qwen/Qwen3-4B\nenv:\n  WANDB_PROJECT: mine\n"
    assert reading_of("trl sft --config c.yaml", c_yaml=text).stops == ()


def test_another_release_may_have_other_names() -> None:
    command = "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-4B --dataset x --its_old_name 1"
    assert reading_of(command).stops
    found = read(command, "3.9.0", files=LaunchFiles({}))
    assert [*found.stops] == []
    assert [each.setting for each in found.reservations] == ["its_old_name = 1"]


def test_trl_stops_at_names_that_it_does_not_have() -> None:
    (stop,) = reading_of("trl sft --model_name_or_path Qwen/Qwen3-4B --lora_rr 8").stops
    assert stop.setting == "lora_rr"
    assert "TRL 1.16.0" in stop.rule


def test_a_recipe_behind_a_flag_is_read_where_it_is_sent() -> None:
    command = "accelerate launch --num_processes 8 --use_fsdp sft.py --config recipe.yaml"
    (reserved,) = reading_of(command).reservations
    assert (reserved.setting, reserved.is_open) == ("--config recipe.yaml", True)
    recipe = "model_name_or_path: Qwen/Qwen3-4B\nmax_length: 6144\nper_device_train_batch_size: 2\n"
    found = reading_of(command, recipe_yaml=recipe)
    assert (found.workload["seq_len"], found.layout["micro_batch"]) == (6144, 2)
    assert not found.reservations


@pytest.mark.parametrize(
    ("command", "devices"),
    [
        ("accelerate launch -m axolotl.cli.train ax.yaml", None),
        ("accelerate launch --num_processes 4 -m axolotl.cli.train ax.yaml", 4),
        ("axolotl train ax.yaml", None),
        ("axolotl train ax.yaml --launcher torchrun -- --nproc_per_node=4", 4),
        ("axolotl train ax.yaml --launcher accelerate -- --num_processes 4", 4),
        ("axolotl train ax.yaml --num-processes 4 --lora-r 8", 4),
        ("axolotl train ax.yaml --launcher torchrun --nproc_per_node=4", 4),
        ("CUDA_VISIBLE_DEVICES=0,1 axolotl train ax.yaml", 2),
        ("CUDA_VISIBLE_DEVICES=GPU-1a-2b,MIG-3c axolotl train ax.yaml", 2),
        ("srun torchrun --nnodes 2 --nproc_per_node 8 -m axolotl.cli.train ax.yaml", 16),
    ],
)
def test_axolotl_is_started_in_many_ways(command: str, devices: int | None) -> None:
    text = "base_model: Qwen/Qwen3-4B\nmicro_batch_size: 3\nsequence_len: 2048\n"
    found = reading_of(command, ax_yaml=text)
    assert (found.framework, found.layout["micro_batch"]) == ("axolotl", 3)
    assert found.num_devices == devices
    assert not found.reservations


SWIFT = (
    "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --dataset mine --torch_dtype bfloat16"
    " --max_length 8192 --target_modules all-linear"
)


@pytest.mark.parametrize(
    ("preset", "layout"),
    [
        ("zero2", {"zero_stage": 2, "offload_optimizer": False}),
        ("zero3", {"zero_stage": 3, "offload_optimizer": False}),
        ("zero2_offload", {"zero_stage": 2, "offload_optimizer": True}),
    ],
)
def test_presets_of_ms_swift_are_documents(preset: str, layout: dict[str, Any]) -> None:
    found = reading_of(f"{SWIFT} --train_type full --deepspeed {preset}")
    assert (found.stack["name"], found.framework) == ("deepspeed", "ms-swift")
    assert {name: found.layout[name] for name in layout} == layout
    assert not found.reservations


def test_ms_swift_trains_adapters_and_takes_16_sequences_a_step_unless_told_otherwise() -> None:
    found = reading_of(SWIFT)
    assert found.workload["lora"]["rank"] == 8
    assert found.workload["seq_len"] == 8192
    assert (found.layout["micro_batch"], found.num_micro_batches) == (1, 2)
    assert found.layout["recompute"] == "full"


def test_sequence_parallelism_of_ms_swift_is_ulysses() -> None:
    found = reading_of(f"{SWIFT} --fsdp fsdp2 --sequence_parallel_size 4")
    assert (found.layout["cp"], found.layout["dp_shard"]) == (4, 2)
    assert found.stack["context"] == "ulysses"


SFT = "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B --dataset x"


def test_a_ring_of_ms_swift_takes_the_ranks_that_heads_leave_over() -> None:
    command = f"{SFT} --deepspeed zero3 --max_length 32768 --attn_impl flash_attn"
    by_heads = reading_of(f"{command} --sequence_parallel_size 4")
    assert ("context" in by_heads.stack, by_heads.stops) == (False, ())
    mixed = reading_of(f"{command} --sequence_parallel_size 8 --padding_free true")
    assert (mixed.stack["context"], mixed.layout["cp"]) == ("ring", 8)
    assert any("a ring of 2" in note for note in mixed.assumed)
    assert mixed.stops == ()
    (stop,) = reading_of(f"{command} --sequence_parallel_size 8").stops
    assert (stop.setting, "padding_free" in stop.rule) == ("sequence_parallel_size", True)


def test_ms_swift_packs_with_flash_attention_alone() -> None:
    (stop,) = reading_of(f"{SFT} --packing true").stops
    assert stop.setting == "packing"
    assert reading_of(f"{SFT} --packing true --attn_impl flash_attn").stops == ()


@pytest.mark.parametrize("command", [SFT, SFT.replace("swift sft", "megatron sft")])
def test_a_model_that_classifies_has_another_head(command: str) -> None:
    command += " --max_length 2048"
    assert reading_of(f"{command} --task_type seq_cls --num_labels 2").workload["head"] == "score"
    assert "head" not in reading_of(f"{command} --task_type causal_lm").workload
    (reserved,) = reading_of(f"{command} --task_type embedding").reservations
    assert reserved.setting == "task_type = embedding"


def test_a_micro_batch_by_trial_is_reserved_in_ms_swift() -> None:
    (reserved,) = reading_of(f"{SFT} --auto_find_batch_size true").reservations
    assert reserved.setting == "auto_find_batch_size = true"
    assert reading_of(f"{SFT} --auto_find_batch_size false --freeze_llm false").reservations == ()


def test_ms_swift_gives_all_devices_to_one_process_unless_told_otherwise() -> None:
    command = SFT.replace("NPROC_PER_NODE=8", "CUDA_VISIBLE_DEVICES=0,1")
    (reserved,) = reading_of(command).reservations
    assert "NPROC_PER_NODE=2" in reserved.cure
    (stop,) = reading_of(f"{command} --deepspeed zero2").stops
    assert stop.setting == "CUDA_VISIBLE_DEVICES"
    for variables in ("CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2", "CUDA_VISIBLE_DEVICES=0"):
        alone = SFT.replace("NPROC_PER_NODE=8", variables)
        assert reading_of(alone).reservations == ()


def test_megatron_swift_counts_layers_of_stages_by_the_model() -> None:
    command = SFT.replace("swift sft", "megatron sft") + " --max_length 2048"
    stages = "--pipeline_model_parallel_size 2"
    first = "--decoder_first_pipeline_num_layers"
    found = reading_of(f"{command} {stages} {first} 15")
    assert (found.layout["layers_per_chunk"], found.stops) == ([15, 13], ())
    four = reading_of(f"{command} --pipeline_model_parallel_size 4 {first} 5")
    assert [stop.setting for stop in four.stops] == [first.strip("-")]
    assert [stop.setting for stop in reading_of(f"{command} {first} 5").stops] == [first.strip("-")]
    folder = command.replace("Qwen/Qwen2.5-7B", "/data/model")
    (reserved,) = reading_of(f"{folder} {stages} {first} 15").reservations
    assert reserved.answered_by == "layout.layers_per_chunk"


@pytest.mark.parametrize(
    "flag",
    [
        "--virtual_pipeline_model_parallel_size 2",
        "--num_layers_per_virtual_pipeline_stage 7",
    ],
)
def test_megatron_swift_has_chunks_by_number_or_by_layers(flag: str) -> None:
    command = SFT.replace("swift sft", "megatron sft") + " --max_length 2048"
    found = reading_of(f"{command} --pipeline_model_parallel_size 2 {flag}")
    assert (found.layout["schedule"], found.layout["virtual_stages"]) == ("interleaved", 2)


def test_a_faulty_file_is_named() -> None:
    with pytest.raises(Invalid, match=r"zero3\.json: "):
        reading_of(f"deepspeed {TRAINER} --deepspeed zero3.json", zero3_json='{"a": [1}')


def test_megatron_swift_may_recompute_nothing() -> None:
    command = SFT.replace("swift sft", "megatron sft") + " --max_length 2048"
    assert reading_of(f"{command} --recompute_granularity none").layout["recompute"] == "none"


def test_megatron_swift_is_a_job_of_megatron() -> None:
    found = reading_of(
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B --tensor_model_parallel_size 2"
        " --sequence_parallel true --max_length 8192 --recompute_granularity full"
        " --recompute_method uniform --recompute_num_layers 1 --dataset mine --train_type lora"
    )
    assert (found.format, found.model) == ("megatron", {"name": "qwen3-8b"})
    expected = {"tp": 2, "sequence_parallel": True, "recompute": "full", "zero_stage": 1}
    assert found.layout | expected == found.layout
    assert found.workload["lora"]["rank"] == 8
    assert (found.workload["seq_len"], found.num_devices) == (8192, 8)
    assert not found.reservations


def test_megatron_swift_splits_the_experts_of_a_model_that_it_loads_from_a_folder() -> None:
    text = (
        "NPROC_PER_NODE=8 megatron sft --load Qwen3-30B-A3B-mcore --expert_model_parallel_size 4"
        " --tensor_model_parallel_size 2 --micro_batch_size 1 --global_batch_size 16"
    )
    found = reading_of(text)
    assert (found.model, found.stops) == (None, ())
    assert (found.layout["ep"], found.layout["etp"]) == (4, 1)
    assert recognized(text, LaunchFiles()).format == "accelerate"


def test_arguments_of_ones_own_script_are_reserved_unless_they_say_what_they_are() -> None:
    found = reading_of(f"python {TRAINER} --tune_mlp_only True --data_path x.json --run_name y")
    assert [one.setting for one in found.reservations] == ["tune_mlp_only = True"]


def test_two_files_in_a_script_are_both_read() -> None:
    script = f"""
cat > ds.json <<'END'
{AUTO}
END
cat > recipe.yaml <<END
model_name_or_path: Qwen/Qwen3-8B
per_device_train_batch_size: 2
bf16: true
deepspeed: ds.json
END
torchrun --nproc_per_node 4 sft.py --config recipe.yaml
"""
    found = reading_of(script)
    assert (found.num_devices, found.layout["zero_stage"]) == (4, 3)
    assert not found.reservations


def test_what_starts_nothing_is_refused() -> None:
    with pytest.raises(Invalid, match="neither a document nor a command that trains"):
        reading_of("python -c 'print(1)'")


CONFIG = json.dumps({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2})


@pytest.mark.parametrize("name", ["./models/tiny", "someone/unheard-of", "/data/tiny/"])
def test_a_config_beside_a_command_is_the_model(name: str) -> None:
    command = f"trl sft --model_name_or_path {name}"
    files = {"models/tiny/config.json": CONFIG}
    found = read(command, None, files=LaunchFiles(files))
    assert found.model == json.loads(CONFIG)
    assert found.unresolved_parts == {}


def test_a_document_of_deepspeed_is_no_model() -> None:
    command = f"deepspeed --num_gpus 8 {TRAINER} --deepspeed config.json"
    found = read(command, None, files=LaunchFiles({"config.json": AUTO}))
    assert found.model == {"name": "qwen3-8b"}


def test_a_launcher_says_how_many_ranks_there_are_whatever_the_document_says() -> None:
    found = reading_of(f"deepspeed --num_gpus 4 {TRAINER} --deepspeed ds.json", ds_json=AUTO)
    assert (found.num_devices, found.devices_setting) == (4, None)
