"""Low-rank adapters: what is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from models.errors import Invalid
from models.spec import catalogue
from models.spec.adapters import Lora, Module
from tests.benchmarks.problems import problem


def test_adapters_of_llama_have_two_matrices_beside_each_of_seven() -> None:
    """Llama-3-8B as peft counts it with rank 16: queries and output 4096 x 4096, keys and values
    4096 x 1024, gate, up and down 4096 x 14336. Fused matrices share the one from the stream."""
    layer = catalogue.architecture("llama-3-8b").layers[0]
    attention = (4096 + 4096) + (4096 + 2 * 1024) + (4096 + 4096)
    network = (4096 + 2 * 14336) + (14336 + 4096)
    assert Lora(rank=16).parameters(layer, 4096) == 16 * (attention + network)
    assert Lora(rank=16, targets=("attention",)).parameters(layer, 4096) == 16 * attention


def test_named_modules_have_two_matrices_each() -> None:
    """Llama-3-8B as peft counts it, whose print_trainable_parameters says 41,943,040 of all linear
    modules with rank 16, and 3,407,872 of queries and values with rank 8."""
    model = catalogue.architecture("llama-3-8b")
    (layer,) = set(model.layers)
    every = get_args(Module)
    assert 32 * Lora(rank=16, modules=every).parameters(layer, 4096) == 41_943_040
    some = Lora(rank=8, modules=("q_proj", "v_proj"))
    assert 32 * some.parameters(layer, 4096) == 3_407_872


@pytest.mark.parametrize(("name", "inputs"), [("llama-3-8b", 2), ("nemotron-4-15b", 1)])
def test_modules_that_read_the_token_are_parts_of_one_matrix(name: str, inputs: int) -> None:
    model = catalogue.architecture(name)
    layer, hidden = model.layers[0], model.hidden_size
    both = [*Lora(targets=("mlp",)).matrices(layer, hidden)]
    named = [*Lora(targets=("mlp",), modules=("gate_proj", "up_proj")).matrices(layer, hidden)]
    assert len(named) == inputs
    assert sum(each.n_out for each in named) == both[0].n_out


def test_modules_that_the_model_does_not_have_are_refused() -> None:
    question = problem("deepseek-v3", ("h100", 64), "fsdp", seq_len=4096, global_batch=64)
    lora = Lora(targets=("attention",), modules=("k_proj",))
    with pytest.raises(Invalid) as refused:
        replace(question, workload=replace(question.workload, lora=lora))
    assert refused.value.field == "workload.lora.modules"


def test_targets_that_the_model_does_not_have_are_refused() -> None:
    question = problem("llama-3-8b", ("h100", 8), "trl", seq_len=4096, global_batch=64)
    lora = Lora(targets=("experts",))
    with pytest.raises(Invalid, match="has no matrices of experts") as refused:
        replace(question, workload=replace(question.workload, lora=lora))
    assert refused.value.field == "workload.lora.targets"


def test_every_routed_expert_has_its_own() -> None:
    layer = catalogue.architecture("mixtral-8x7b").layers[0]
    each = 4 * ((4096 + 2 * 14336) + (14336 + 4096))
    assert Lora(rank=4).expert_parameters(layer, 4096) == 8 * each
    assert Lora(rank=4, targets=("attention",)).expert_parameters(layer, 4096) == 0


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"rank": 0}, "workload.lora.rank"),
        ({"targets": ()}, "workload.lora.targets"),
        ({"targets": ("everything",)}, "workload.lora.targets"),
        ({"modules": ("qkv",)}, "workload.lora.modules"),
        ({"targets": ("attention",), "modules": ("q_proj", "up_proj")}, "workload.lora.modules"),
        ({"targets": ("mlp", "experts"), "modules": ("q_proj",)}, "workload.lora.modules"),
        ({"base_bits": 5}, "workload.lora.base_bits"),
    ],
)
def test_what_breaks_a_rule_is_named(values: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        Lora(**values)  # type: ignore[arg-type]
    assert refused.value.field == field
