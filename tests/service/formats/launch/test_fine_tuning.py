"""What launch configurations say of images, of fine-tuning and of the capacity of experts."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from models.spec.adapters import Lora
from models.spec.workload import Reference, Trained
from service.formats.launch.formats import FORMATS
from service.formats.launch.job import Inexpressible, LaunchConfiguration, LaunchReading
from tests.models.cost.encoders import ENCODER, FROZEN, PROJECTOR_ALONE, with_encoder
from tests.service.formats.launch.jobs import job_of, problem_of


def job(stack: str, encoder=ENCODER):
    problem = problem_of(stack)
    problem = replace(problem, architecture=with_encoder(problem.architecture, encoder))
    return job_of(problem, dp_shard=16, zero_stage=1 if stack.startswith("megatron") else 3)


@pytest.mark.parametrize("name", ["megatron", "maxtext", "torchtitan"])
def test_programs_that_train_on_text_alone_have_no_words_for_an_encoder(name: str) -> None:
    with pytest.raises(Inexpressible, match=r"model\.encoder"):
        FORMATS[name].write(job(FORMATS[name].stacks[0]))


@pytest.mark.parametrize("name", ["deepspeed", "accelerate", "megatron-bridge"])
@pytest.mark.parametrize(
    ("encoder", "words"),
    [(ENCODER, "1024 tokens of images"), (PROJECTOR_ALONE, "train its projector"),
     (FROZEN, "freeze the encoder and its projector")],
)  # fmt: skip
def test_others_say_what_a_script_or_a_recipe_has_to_do(name: str, encoder, words: str) -> None:
    written = FORMATS[name].write(job(FORMATS[name].stacks[0], encoder))
    assert any(words in note for note in written.notes)


_SPARSE = {"model": "mixtral-8x7b"}


def tuned(stack: str, **workload):
    problem = problem_of(stack, **workload)
    return job_of(problem, dp_shard=16, zero_stage=1 if stack.startswith("megatron") else 3)


@pytest.mark.parametrize(
    ("name", "lora", "words"),
    [
        ("torchtitan", Lora(rank=8, targets=("attention",)), "target_modules=['wq', 'wkv', 'wo']"),
        ("accelerate", Lora(rank=8, base_bits=4), "bnb_4bit_quant_storage=torch.bfloat16"),
        ("deepspeed", Lora(rank=8), "peft.LoraConfig(r=8"),
    ],
)
def test_what_makes_adapters_is_named(name: str, lora: Lora, words: str) -> None:
    written = FORMATS[name].write(tuned(FORMATS[name].stacks[0], lora=lora))
    assert any(words in note for note in written.notes)


def test_a_recipe_is_given_adapters() -> None:
    written = FORMATS["megatron-bridge"].write(tuned("megatron-bridge", lora=Lora(rank=8)))
    words = FORMATS["megatron-bridge"].words
    assert words is not None
    assert "+peft.dim=8" in words(written.settings)
    made = "LoRA(dim=8, alpha=16, target_modules=['linear_qkv', 'linear_proj', 'linear_fc1', "
    assert any(f"cfg.peft = {made}" in note for note in written.notes)
    assert "checkpoint.pretrained_checkpoint" in written.placeholders


@pytest.mark.parametrize(
    ("name", "workload", "field"),
    [
        ("megatron", {"lora": Lora()}, "workload.lora.rank"),
        ("torchtitan", {"lora": Lora(base_bits=4)}, "workload.lora.base_bits"),
        ("torchtitan", {"lora": Lora(modules=("q_proj",))}, "workload.lora.modules"),
        ("torchtitan", {"lora": Lora(), "model": "qwen3-30b-a3b"}, "workload.lora.targets"),
        ("megatron", {"master_weights": False}, "workload.master_weights"),
        ("torchtitan", {"capacity_factor": 1.25, **_SPARSE}, "workload.capacity_factor"),
        ("deepspeed", {"capacity_factor": 1.25, **_SPARSE}, "workload.capacity_factor"),
        ("accelerate", {"capacity_factor": 1.25, **_SPARSE}, "workload.capacity_factor"),
        ("maxtext", {"capacity_factor": 1.0, "model": "gpt-oss-20b"}, "workload.capacity_factor"),
    ],
)
def test_what_a_program_does_not_do_is_refused(name: str, workload, field: str) -> None:
    with pytest.raises(Inexpressible) as refused:
        FORMATS[name].write(tuned(FORMATS[name].stacks[0], **workload))
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("torchtitan", "training.dtype", "bfloat16"),
        ("maxtext", "weight_dtype", "bfloat16"),
        ("accelerate", "mixed_precision", "no"),
        (
            "deepspeed",
            "bf16",
            {
                "enabled": True,
                "bf16_master_weights_and_grads": True,
                "bf16_optimizer_states": True,
            },
        ),
    ],
)
def test_parameters_go_without_a_copy_of_32_bits(name: str, setting: str, value: object) -> None:
    written = FORMATS[name].write(tuned(FORMATS[name].stacks[0], master_weights=False))
    assert written.settings[setting] == value
    reading = read_again(written)
    assert (reading.workload["precision"], reading.workload["master_weights"]) == ("bf16", False)


def read_again(written: LaunchConfiguration) -> LaunchReading:
    format_ = FORMATS[written.format]
    text = json.dumps({**written.settings, **written.script_arguments})
    if format_.words:
        arguments = shlex.join(format_.words(written.settings))
        text = f"python {' '.join(format_.program)} {arguments}"
    return format_.read(text, None)


@pytest.mark.parametrize("name", ["megatron", "megatron-bridge", "maxtext"])
def test_the_capacity_of_experts_is_written_and_read(name: str) -> None:
    problem = problem_of(FORMATS[name].stacks[0], capacity_factor=1.25, **_SPARSE)
    zero_stage = 3 if name == "maxtext" else 1
    reading = read_again(
        FORMATS[name].write(job_of(problem, dp_shard=16, ep=8, zero_stage=zero_stage))
    )
    assert reading.workload["capacity_factor"] == 1.25
    assert (reading.reservations, reading.stops) == ((), ())


@pytest.mark.parametrize(
    "targets", [("attention",), ("attention", "mlp"), ("experts",), ("attention", "mlp", "experts")]
)
@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v3"])
def test_adapters_of_a_recipe_are_read_again(model: str, targets) -> None:
    lora = Lora(rank=8, targets=targets)
    reading = read_again(
        FORMATS["megatron-bridge"].write(tuned("megatron-bridge", lora=lora, model=model))
    )
    assert reading.workload["lora"] == {"rank": 8, "targets": list(targets)}
    assert (reading.reservations, reading.stops) == ((), ())


_IN_PART = [
    ("workload.trained", {"trained": Trained(layers=(-1,), head=True)}, "layers -1, the head"),
    ("workload.reference", {"reference": Reference(forwards=3)}, "3 forward passes"),
    ("workload.head", {"head": "score"}, "num_labels=1"),
    ("workload.moment_rank", {"moment_rank": 64}, "rank=64"),
]


@pytest.mark.parametrize(("field", "workload", "words"), _IN_PART)
def test_a_script_is_told_what_else_it_trains(field: str, workload, words: str) -> None:
    for name in ("deepspeed", "accelerate"):
        written = FORMATS[name].write(tuned(FORMATS[name].stacks[0], **workload))
        assert any(words in note for note in written.notes)
    for name in ("megatron", "megatron-bridge", "torchtitan", "maxtext"):
        with pytest.raises(Inexpressible) as refused:
            FORMATS[name].write(tuned(FORMATS[name].stacks[0], **workload))
        assert refused.value.field == field
