"""Documents of DeepSpeed beside the arguments of the Trainer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.formats.launch.job import LaunchReading
from service.formats.launch.trainer.reader import read
from service.formats.shell.files import LaunchFiles

MODEL = "--model_name_or_path Qwen/Qwen2.5-7B"
TYPED = f"deepspeed --num_gpus 8 train.py --deepspeed ds.json {MODEL}"
ZERO3 = {"zero_optimization": {"stage": 3}}


def reading_of(command: str, **files: dict[str, Any]) -> LaunchReading:
    texts = {f"{name}.json": json.dumps(files[name]) for name in files}
    return read(command, None, files=LaunchFiles(texts))


@pytest.mark.parametrize(
    ("document", "arguments", "settings"),
    [
        ({"gradient_clipping": 1.0}, "--max_grad_norm 0.3", ["gradient_clipping"]),
        ({"gradient_clipping": 1}, "--max_grad_norm 1.0", []),
        ({"gradient_clipping": "auto"}, "--max_grad_norm 0.3", []),
        (
            {"optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.95]}}},
            "--learning_rate 1e-5 --adam_beta2 0.999",
            ["optimizer.params.lr", "optimizer.params.betas"],
        ),
        ({"gradient_clipping": 1.0}, "--max_grad_norm $NORM", []),
    ],
)
def test_every_value_that_transformers_compares_stops_it(
    document: dict[str, Any], arguments: str, settings: list[str]
) -> None:
    found = reading_of(f"{TYPED} {arguments}", ds={**ZERO3, **document})
    assert [stop.setting for stop in found.stops] == settings


@pytest.mark.parametrize(
    ("setting", "document"),
    [
        ("bf16.enabled", {"bf16": {"enabled": True}}),
        ("gradient_accumulation_steps", {"gradient_accumulation_steps": 16}),
        ("train_micro_batch_size_per_gpu", {"train_micro_batch_size_per_gpu": 2}),
        ("optimizer.params.lr", {"optimizer": {"type": "AdamW", "params": {"lr": 3e-5}}}),
    ],
)
def test_a_program_may_have_another_default_than_the_trainer(
    setting: str, document: dict[str, Any]
) -> None:
    found = reading_of(TYPED, ds={**ZERO3, **document})
    assert found.stops == ()
    (reservation,) = found.reservations
    assert reservation.setting.startswith(f"{setting} = ")
    own_engine = reading_of("deepspeed --num_gpus 8 train.py --deepspeed ds.json", ds=document)
    assert own_engine.reservations == ()
    by_deepspeed = TYPED.replace("--deepspeed ", "--deepspeed_config ")
    assert reading_of(by_deepspeed, ds={**ZERO3, **document}).reservations == ()


def test_the_defaults_of_trl_and_llama_factory_are_known() -> None:
    of_trl = f"accelerate launch --num_processes 8 trl/scripts/dpo.py --deepspeed ds.json {MODEL}"
    document = {
        **ZERO3,
        "bf16": {"enabled": True},
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-6}},
    }
    assert [stop.setting for stop in reading_of(of_trl, ds=document).stops] == ["gradient_clipping"]
    of_factory = f"llamafactory-cli train --stage sft --deepspeed ds.json --bf16 true {MODEL}"
    factory = reading_of(of_factory, ds={**ZERO3, "gradient_accumulation_steps": 16})
    assert [stop.setting for stop in factory.stops] == ["gradient_accumulation_steps"]


def test_the_document_of_accelerate_has_values_that_are_compared() -> None:
    document = {"distributed_type": "DEEPSPEED", "num_processes": 8, "mixed_precision": "bf16"}
    own = {"zero_stage": 3, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0}
    command = f"accelerate launch --config_file a.json train.py {MODEL} --bf16"
    arguments = "--gradient_accumulation_steps 8 --max_grad_norm 0.3"
    found = reading_of(f"{command} {arguments}", a={**document, "deepspeed_config": own})
    assert [stop.setting for stop in found.stops] == [
        "gradient_accumulation_steps",
        "gradient_clipping",
    ]

    alone = command.replace("train.py", "run_clm_no_trainer.py")
    assert reading_of(f"{alone} {arguments}", a={**document, "deepspeed_config": own}).stops == ()


def test_accelerate_writes_one_step_into_a_document_without_a_number() -> None:
    named = {"deepspeed_config_file": "ds.json"}
    document = {"distributed_type": "DEEPSPEED", "num_processes": 8, "deepspeed_config": named}
    command = f"accelerate launch --config_file a.json train.py {MODEL} --bf16"
    found = reading_of(f"{command} --gradient_accumulation_steps 8", a=document, ds=ZERO3)
    assert [stop.setting for stop in found.stops] == ["gradient_accumulation_steps"]
    by_trainer = reading_of(f"{TYPED} --gradient_accumulation_steps 8", ds=ZERO3)
    assert (by_trainer.stops, by_trainer.num_micro_batches) == ((), 8)


def test_accelerate_stops_at_what_the_document_of_deepspeed_decides() -> None:
    named = {"deepspeed_config": {"deepspeed_config_file": "ds.json"}, "num_processes": 8}
    document = {"distributed_type": "DEEPSPEED", **named}
    launch = f"train.py {MODEL} --bf16"
    command = f"accelerate launch --config_file a.json {launch}"
    written = reading_of(command, a={**document, "mixed_precision": "bf16"}, ds=ZERO3)
    assert [stop.setting for stop in written.stops] == ["mixed_precision"]
    assert reading_of(command, a=document, ds=ZERO3).stops == ()
    flags = "--use_deepspeed --deepspeed_config_file ds.json --mixed_precision bf16"
    assert reading_of(f"accelerate launch {flags} {launch}", ds=ZERO3).stops == ()


def test_the_batch_that_the_trainer_calculates_is_that_of_the_document() -> None:
    document = {**ZERO3, "train_batch_size": 256}
    arguments = "--per_device_train_batch_size 2 --gradient_accumulation_steps"
    (stop,) = reading_of(f"{TYPED} {arguments} 1", ds=document).stops
    assert (stop.setting, stop.cure) == ("train_batch_size", '"auto"')
    assert "16" in stop.rule
    assert reading_of(f"{TYPED} {arguments} 16", ds=document).stops == ()
