"""Low-rank adapters: what is trained."""

from __future__ import annotations

import pytest

from models.errors import Invalid
from models.spec import catalogue
from models.spec.adapters import Lora


def test_adapters_of_llama_have_two_matrices_beside_each_of_seven() -> None:
    """Llama-3-8B as peft counts it with rank 16: queries and output 4096 x 4096, keys and values
    4096 x 1024, gate, up and down 4096 x 14336. Fused matrices share the one from the stream."""
    layer = catalogue.architecture("llama-3-8b").layers[0]
    attention = (4096 + 4096) + (4096 + 2 * 1024) + (4096 + 4096)
    network = (4096 + 2 * 14336) + (14336 + 4096)
    assert Lora(rank=16).parameters(layer, 4096) == 16 * (attention + network)
    assert Lora(rank=16, targets=("attention",)).parameters(layer, 4096) == 16 * attention


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
        ({"base_bits": 5}, "workload.lora.base_bits"),
    ],
)
def test_what_breaks_a_rule_is_named(values: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        Lora(**values)  # type: ignore[arg-type]
    assert refused.value.field == field
