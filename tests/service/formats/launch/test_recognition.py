from __future__ import annotations

import time

import pytest

from models.errors import Invalid
from service.formats.launch.formats import FORMATS
from service.formats.launch.knob_settings import KNOB_SETTINGS
from service.formats.launch.recognition import (
    other_format,
    program_without_training,
    recognized,
)
from service.formats.launch.rendering import as_shell
from service.formats.shell.files import NO_FILES
from tests.launchers.jobs import random_jobs

JOBS = 20
MEGATRON = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --micro-batch-size 1 --bf16"
TEXTS = {
    "megatron": MEGATRON,
    "megatron-bridge": "model.tensor_model_parallel_size=4 train.micro_batch_size=1",
    "torchtitan": "--training.seq_len 8192 --parallelism.tensor_parallel_degree 4",
    "maxtext": "python3 -m maxtext.trainers.pre_train.train base.yml ici_fsdp_parallelism=8",
    "deepspeed": '{"zero_optimization": {"stage": 3}, "train_batch_size": 64}',
    "accelerate": "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n",
}


@pytest.mark.parametrize("format_", KNOB_SETTINGS)
@pytest.mark.parametrize("own", TEXTS)
def test_a_text_of_another_format_is_told_by_its_settings(format_: str, own: str) -> None:
    is_own = format_ == own or {format_, own} == {"accelerate", "deepspeed"}  # of one reader
    assert other_format(format_, TEXTS[own]) == (None if is_own else own)


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (
            '[training]\nseq_len = 4096\nlocal_batch_size = 2\n[model]\nname = "llama3"',
            "torchtitan",
        ),
        ("--training.seq_len 8192 --activation_checkpoint.mode full", "torchtitan"),
        ("  num_layers ...... 32\n  bf16 ....... True\n  hidden_size ... 4096", "megatron"),
        ("num_layers: 32\nmicro_batch_size: 2\nhidden_size: 4096", "megatron"),
        (
            "model:\n  tensor_model_parallel_size: 4\n  seq_length: 8192\n"
            "train:\n  micro_batch_size: 1\n",
            "megatron-bridge",
        ),
        (
            "trainer:\n  precision: bf16\nmodel:\n  tensor_model_parallel_size: 4\n"
            "  num_layers: 32\n  bias: false\n",
            "megatron-bridge",
        ),
        ('{"fsdp_config": {"fsdp_version": 2}, "mixed_precision": "bf16"}', "accelerate"),
        ("accelerate launch --use_fsdp --fsdp_version 2 train.py --bf16 true", "accelerate"),
    ],
)
def test_the_other_forms_of_a_text_are_told_too(text: str, own: str) -> None:
    other = "maxtext" if own == "accelerate" else "deepspeed"
    assert other_format(other, text) == own
    assert other_format(own, text) is None


def test_a_launcher_of_trainings_is_one_whatever_its_name_says() -> None:
    text = (
        "python scripts/performance/setup_experiment.py -tp 2 -mb 1 --model_recipe_name llama3_8b"
    )
    found = recognized(text, NO_FILES)
    assert found is not None
    assert found.format == "megatron-bridge"
    assert program_without_training(text, NO_FILES) is None


@pytest.mark.parametrize(
    "text", ["", "{}", "a b c", "--puzzle 3", "deepspeed train.py --deepspeed_config ds.json"]
)
def test_a_text_of_no_format_is_left_to_its_reader(text: str) -> None:
    assert other_format("deepspeed", text) is None


@pytest.mark.parametrize(
    "text",
    [
        "torchrun --nproc_per_node 8 train.py --model_name_or_path a/b --bf16 --seed 1 --fp16",
        "megatron sft --model a/b --tensor_model_parallel_size 2 --micro_batch_size 1 --bf16 true",
        "base_model: a/b\nmicro_batch_size: 2\nsequence_len: 2048\nlearning_rate: 1e-4",
        "model_name_or_path: a/b\nfinetuning_type: lora\ntensor_model_parallel_size: 2\nbf16: true",
    ],
)
def test_tools_around_the_trainer_are_left_to_their_reader(text: str) -> None:
    assert other_format("accelerate", text) is None


@pytest.mark.parametrize("format_", FORMATS)
def test_what_is_written_is_of_its_own_format(format_: str) -> None:
    count = 0
    for job in random_jobs(FORMATS[format_].stacks, seed=f"recognition {format_}"):
        try:
            text = as_shell(FORMATS[format_].write(job))
        except Invalid:  # which the format has no words for
            continue
        assert other_format(format_, text) is None
        count += 1
        if count == JOBS:
            return


@pytest.mark.parametrize(
    ("format_", "text"),
    [
        ("megatron-bridge", "python run_recipe.py --recipe " + "_pretrain" * 8000 + "!"),
        ("accelerate", "python -m " + "llamafactory." * 8000 + "x --model_name_or_path a"),
    ],
)
def test_no_launch_takes_long(format_: str, text: str) -> None:
    begun_s = time.thread_time()
    FORMATS[format_].read(text, None)
    assert time.thread_time() - begun_s < 2
