"""Names and patterns of the parts that are trained."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest
import yaml

from service.formats.launch.job import LaunchReading
from service.formats.launch.trainer.reader import read
from service.formats.launch.trainer.trained_parts import end_layers, parts_matching
from service.formats.shell.files import LaunchFiles

AXOLOTL: dict[str, Any] = {"base_model": "Qwen/Qwen3-8B", "micro_batch_size": 1}
FACTORY: dict[str, Any] = {"model_name_or_path": "Qwen/Qwen3-8B", "stage": "sft"}
ENDS = {"embedding": True, "head": True}
NO_ENDS = {"embedding": False, "head": False}


def reading_of(document: dict[str, Any]) -> LaunchReading:
    return read(yaml.safe_dump(document), None, files=LaunchFiles({}))


@pytest.mark.parametrize(
    ("patterns", "layers", "ends"),
    [
        (["^lm_head.weight$", "^model.embed_tokens.weight$[:32000]"], [], ENDS),
        (["model.layers.4[4-9]+.block_sparse_moe.gate"], [*range(44, 50)], NO_ENDS),
        (["model.layers.4[4-9]+.mlp", "model.layers.5[0-5]+.mlp"], [*range(44, 56)], NO_ENDS),
        (["transformer.blocks.[0-7]."], [*range(8)], NO_ENDS),
        (["^model\\.layers\\.3\\..*", "lm_head"], [3], {"embedding": False, "head": True}),
        (["model.layers.[0-9]+"], None, NO_ENDS),
        (["model.layers.*"], None, NO_ENDS),
    ],
)
def test_patterns_name_layers_and_ends(
    patterns: list[str], layers: list[int] | None, ends: dict[str, bool]
) -> None:
    parts = parts_matching(patterns)
    assert parts.fields == {"layers": layers, **ends}
    assert parts.unknown == []


@pytest.mark.parametrize(
    "patterns",
    [["^model.language_model.*", "^lm_head.*"], ["model.*", "lm_head"], [".*"]],
)  # fmt: skip
def test_patterns_of_the_whole_language_model_freeze_none_of_it(patterns: list[str]) -> None:
    assert parts_matching(patterns).fields is None


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "score", "model.layers.[9-0].mlp", "*" * 60_000 + "x"]
)
def test_patterns_that_say_no_part_are_unknown_and_take_no_time(pattern: str) -> None:
    begun_s = process_time()
    assert parts_matching([pattern] * 100).unknown
    assert process_time() - begun_s < 1


def test_layers_of_mixtral_that_are_trained_in_part_are_counted_as_whole() -> None:
    found = reading_of({**AXOLOTL, "unfrozen_parameters": ["model.layers.2[0-9]+.mlp.gate"]})
    assert found.workload["trained"] == {"layers": [*range(20, 30)], **NO_ENDS}
    assert any("trained in part" in line for line in found.assumed)
    unknown = reading_of({**AXOLOTL, "unfrozen_parameters": ["score"]})
    assert unknown.reservations[0].answered_by == "workload.trained"


@pytest.mark.parametrize(
    ("settings", "trained"),
    [
        ({"finetuning_type": "freeze"}, {"layers": [-2, -1], **NO_ENDS}),
        (
            {"finetuning_type": "freeze", "freeze_trainable_layers": -3},
            {"layers": [0, 1, 2], **NO_ENDS},
        ),
        (
            {"finetuning_type": "freeze", "freeze_extra_modules": "embed_tokens,lm_head,norm"},
            {"layers": [-2, -1], **ENDS},
        ),
        (
            {"finetuning_type": "freeze", "use_llama_pro": True, "freeze_trainable_layers": 4},
            {"layers": [8, 17, 26, 35], **NO_ENDS},
        ),
        ({"finetuning_type": "full", "use_badam": True}, {"layers": [0], **NO_ENDS}),
        ({"additional_target": "lm_head"}, {"layers": [], "embedding": False, "head": True}),
    ],
)
def test_llama_factory_says_which_layers_it_trains(
    settings: dict[str, Any], trained: dict[str, Any]
) -> None:
    found = reading_of({**FACTORY, **settings})
    assert found.workload["trained"] == trained
    assert found.reservations == ()


def test_layers_at_equal_distances_need_a_model_that_is_known() -> None:
    unknown = {**FACTORY, "model_name_or_path": "models/pro", "finetuning_type": "freeze"}
    found = reading_of({**unknown, "use_llama_pro": True})
    (reserved,) = found.reservations
    assert reserved.setting == "use_llama_pro = true"
    assert "trained" not in found.workload  # so that the request may say it


def test_the_second_interface_freezes_alike() -> None:
    freeze = {"name": "freeze", "freeze_trainable_layers": 1, "freeze_trainable_modules": "q_proj"}
    found = reading_of({"model": "a/b", "model_class": "llm", "peft_config": freeze})
    assert found.workload["trained"] == {"layers": [-1], **NO_ENDS}
    assert any("trained in part" in line for line in found.assumed)


@pytest.mark.parametrize(
    "document",
    [
        {**AXOLOTL, "adapter": "lora", "lora_modules_to_save": ["embed_tokens", "lm_head"]},
        {**FACTORY, "finetuning_type": "lora", "additional_target": "embed_tokens,lm_head"},
    ],
)
def test_modules_are_trained_whole_beside_adapters(document: dict[str, Any]) -> None:
    found = reading_of(document)
    assert found.workload["trained"] == {"layers": [], **ENDS}
    assert "lora" in found.workload


def test_modules_that_are_no_ends_are_reserved() -> None:
    found = reading_of({**AXOLOTL, "adapter": "lora", "lora_modules_to_save": ["classifier"]})
    assert "trained" not in found.workload
    assert found.reservations[0].setting.startswith("lora_modules_to_save")


def test_a_number_of_layers_counts_from_the_end_or_from_the_front() -> None:
    assert (end_layers(2), end_layers(-2), end_layers(0)) == ([-2, -1], [0, 1], [])
