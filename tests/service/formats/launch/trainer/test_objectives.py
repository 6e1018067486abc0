"""What the tools train for: sequences of a sample, references, heads."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from models.errors import Invalid
from service.formats.launch.job import LaunchReading
from service.formats.launch.trainer.objectives import objective_in_name
from service.formats.launch.trainer.reader import read
from service.formats.shell.files import LaunchFiles

TRL = "--model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 --num_processes 8"
AXOLOTL: dict[str, Any] = {"base_model": "Qwen/Qwen3-8B", "micro_batch_size": 2, "sequence_len": 64}
FACTORY: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen3-8B",
    "finetuning_type": "full",
    "per_device_train_batch_size": 2,
}
WITH_COPY = {"forwards": 1.0, "own_weights": True}
SHARED = {"forwards": 1.0, "own_weights": False}


def reading_of(launch: str | dict[str, Any], **files: str) -> LaunchReading:
    text = launch if isinstance(launch, str) else yaml.safe_dump(launch)
    return read(text, None, files=LaunchFiles(files))


@pytest.mark.parametrize(
    ("launch", "micro_batch", "reference"),
    [
        (f"trl dpo {TRL}", 4, WITH_COPY),
        (f"trl dpo {TRL} --use_peft", 4, SHARED),
        (f"trl dpo {TRL} --precompute_ref_log_probs", 4, None),
        (f"trl kto {TRL}", 2, {"forwards": 3.0, "own_weights": True}),
        (f"trl kto {TRL} --use_peft", 2, {"forwards": 3.0, "own_weights": False}),
        (f"trl kto {TRL} --loss_type apo_zero_unpaired", 2, WITH_COPY),
        (f"accelerate launch trl/scripts/dpo.py {TRL}", 4, WITH_COPY),
        (f"accelerate launch run_orpo.py {TRL}", 4, None),
        (f"trl sft {TRL}", 2, None),
        ({**AXOLOTL, "rl": "dpo"}, 4, WITH_COPY),
        ({**AXOLOTL, "rl": "ipo", "adapter": "lora"}, 4, SHARED),
        ({**AXOLOTL, "rl": "ipo", "adapter": "lora", "rl_adapter_ref_model": True}, 4, WITH_COPY),
        ({**AXOLOTL, "rl": "simpo"}, 4, None),
        ({**FACTORY, "stage": "dpo"}, 4, WITH_COPY),
        ({**FACTORY, "stage": "dpo", "finetuning_type": "lora"}, 4, SHARED),
        ({**FACTORY, "stage": "dpo", "pref_loss": "orpo"}, 4, None),
        ({**FACTORY, "stage": "rm"}, 4, None),
        ({**FACTORY, "use_asft_loss": True}, 2, WITH_COPY),
        ("swift rlhf --model Qwen/Qwen3-8B --per_device_train_batch_size 2", 4, SHARED),
        (
            "swift rlhf --rlhf_type orpo --model Qwen/Qwen3-8B --per_device_train_batch_size 2",
            4,
            None,
        ),
    ],
)
def test_pairs_are_two_sequences_and_references_are_forwards(
    launch: str | dict[str, Any], micro_batch: int, reference: dict[str, Any] | None
) -> None:
    found = reading_of(launch)
    assert found.layout["micro_batch"] == micro_batch
    assert found.workload.get("reference") == reference
    assert [*found.reservations, *found.stops] == []


@pytest.mark.parametrize(
    ("launch", "micro_batch"),
    [
        (f"trl reward {TRL}", 4),
        ({**AXOLOTL, "reward_model": True}, 4),
        ({**AXOLOTL, "process_reward_model": True}, 2),
        (
            "swift rlhf --rlhf_type rm --model Qwen/Qwen3-8B --per_device_train_batch_size 2",
            4,
        ),
    ],
)
def test_the_head_of_a_reward_model_gives_one_number(
    launch: str | dict[str, Any], micro_batch: int
) -> None:
    found = reading_of(launch)
    assert (found.layout["micro_batch"], found.workload["head"]) == (micro_batch, "score")
    assert "reference" not in found.workload


@pytest.mark.parametrize(
    ("launch", "setting"),
    [
        (f"trl grpo {TRL}", "trl grpo"),
        (f"accelerate launch my_ppo.py {TRL}", "my_ppo.py"),
        (f"accelerate launch train.py {TRL} --use_vllm true", "use_vllm = true"),
        ({**AXOLOTL, "rl": "grpo"}, "rl = grpo"),
        ({**FACTORY, "stage": "ppo"}, "stage = ppo"),
        ("swift rlhf --rlhf_type gkd --model Qwen/Qwen3-8B", "rlhf_type = gkd"),
        ("megatron rlhf --rlhf_type grpo --model Qwen/Qwen3-8B", "rlhf_type = grpo"),
    ],
)
def test_training_that_generates_is_reserved_by_its_own_name(
    launch: str | dict[str, Any], setting: str
) -> None:
    (reserved,) = reading_of(launch).reservations
    assert (reserved.setting, "generated" in reserved.reason) == (setting, True)


def test_batches_of_a_document_are_counted_in_sequences_too() -> None:
    document = '{"train_batch_size": 32, "gradient_accumulation_steps": 2, "train_micro_batch_size'
    document += '_per_gpu": 2, "zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
    command = "deepspeed --num_gpus 8 train_dpo.py --deepspeed ds.json"
    found = reading_of(f"{command} {TRL} --bf16", **{"ds.json": document})
    assert (found.layout["micro_batch"], found.workload["global_batch"]) == (4, 64)
    assert found.num_micro_batches == 2


def test_megatron_swift_counts_pairs_in_sequences_too() -> None:
    command = "NPROC_PER_NODE=8 megatron rlhf --model Qwen/Qwen3-8B --micro_batch_size 1"
    found = reading_of(f"{command} --global_batch_size 16 --tuner_type full")
    assert (found.layout["micro_batch"], found.workload["global_batch"]) == (2, 32)
    assert found.workload["reference"] == WITH_COPY


@pytest.mark.parametrize(
    ("program", "objective"),
    [
        ("scripts/run_dpo.py", "dpo"),
        ("train-orpo.py", "orpo"),
        ("kto.py", "kto"),
        ("dpo/train.py", None),
        ("deploy.py", None),
        ("sft_tempo.py", None),
    ],
)
def test_the_name_of_a_program_may_say_what_it_trains_for(
    program: str, objective: str | None
) -> None:
    assert objective_in_name(program) == objective


def test_losses_of_trl_make_logits_of_some_tokens_at_a_time() -> None:
    for launch in (f"trl sft {TRL}", f"trl dpo {TRL}", f"trl sft {TRL} --loss_type nll"):
        found = reading_of(launch)
        assert found.stack["loss"] == "fused_linear"
        assert any("makes all" in line for line in found.assumed)
    other = reading_of(f"trl sft {TRL} --loss_type dft")
    assert "loss" not in other.stack or other.stack["loss"] == "pytorch"


@pytest.mark.parametrize("name", ["objective", "trained", "moment_rank", "reference_model"])
def test_an_argument_of_ones_own_is_not_what_a_tool_decides(name: str) -> None:
    found = reading_of(f"torchrun train.py {TRL} --{name} dpo")
    assert found.reservations[0].setting == f"{name} = dpo"
    assert "reference" not in found.workload
    with pytest.raises(Invalid):
        reading_of(f"trl sft {TRL} --told:{name} dpo".replace("trl sft", ""))


def test_trl_has_settings_of_preferences_that_change_nothing() -> None:
    found = reading_of(f"trl dpo {TRL} --beta 0.1 --label_smoothing 0.1 --sync_ref_model true")
    assert [*found.reservations, *found.stops] == []
    (reserved,) = reading_of(f"trl grpo {TRL} --num_generations 8 --use_vllm true").reservations
    assert reserved.setting == "trl grpo"


def test_ms_swift_has_settings_of_generation() -> None:
    command = "swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --use_vllm true --epsilon_high 0.3"
    found = reading_of(f"{command} --num_generations 8 --vllm_mode colocate")
    assert [one.setting for one in found.reservations] == ["rlhf_type = grpo"]
    assert found.stops == ()
