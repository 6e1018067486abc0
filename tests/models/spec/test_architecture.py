"""The parameters of an architecture: parts that add up, presets that match published counts."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import Invalid
from models.spec.architecture import Architecture, MlaShape, MoeShape
from models.spec.attention import Attention
from models.spec.feed_forward import Mlp, Moe
from models.spec.layer import Layer
from models.spec.projection import parameters_of

PRESETS: list[dict[str, Any]] = json.loads(
    (files("models") / "data/architectures.json").read_text()
)
SHAPES = {preset["id"]: preset["shape"] for preset in PRESETS}
NOTED = [preset["id"] for preset in PRESETS if "note" in preset]

PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-34b": 33_743_970_304,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-4-scout": 107_769_861_120,
    "tinyllama-1.1b": 1_100_048_384,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mixtral-8x7b": 46_702_792_704,
    "deepseek-moe-16b": 16_375_728_128,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,
    "kimi-k2": 1_026_408_209_408,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2-57b-a14b": 57_408_658_944,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-4b": 3_880_263_168,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-neox-20b": 20_554_567_680,
    "phi-2": 2_779_683_840,
    "bloom-176b": 176_247_271_424,
    "mpt-7b": 6_649_286_656,
    "dbrx-132b": 131_596_523_520,
    "nemotron-4-340b": 341_029_195_776,
    "hy3-295b-a21b": 295_033_528_320,
    "glm-4.5-air": 106_852_245_504,
}
"""Parameters of the model code of transformers 5.23, the text tower without multi-token
prediction."""

ROUNDED = {
    "palm-540b": 540.35e9,
    "grok-1": 314e9,
    "llama-4-maverick": 400e9,
    "mixtral-8x22b": 141e9,
    "pangu-ultra-moe-718b": 718e9,
    "megatron-145b": 145.6e9,
    "megatron-1t": 1008e9,
    "gpt-3-175b": 174.6e9,
}
ACTIVE = {
    "deepseek-v3": 37,
    "kimi-k2": 32,
    "qwen3-235b-a22b": 22,
    "mixtral-8x7b": 12.9,
    "mixtral-8x22b": 39,
    "llama-4-maverick": 17,
    "gpt-oss-120b": 5.1,
    "hy3-295b-a21b": 21,
    "deepseek-v2": 21,
    "dbrx-132b": 36,
}
"""Billions; model cards count the input embedding or leave it out."""


def preset(name: str) -> Architecture:
    shape = dict(SHAPES[name])
    if "mla" in shape:
        shape["mla"] = MlaShape(**shape["mla"])
    if "moe" in shape:
        shape["moe"] = MoeShape(**shape["moe"])
    return Architecture.from_shape(name=name, **shape)


sizes = st.integers(1, 64)
latents = st.builds(
    MlaShape,
    kv_lora_rank=sizes,
    qk_nope_head_dim=sizes,
    qk_rope_head_dim=sizes,
    v_head_dim=sizes,
    q_lora_rank=st.none() | sizes,
)
mixtures = st.builds(
    MoeShape,
    num_experts=st.integers(8, 16),
    experts_per_token=st.integers(1, 8),
    moe_intermediate_size=sizes,
    num_shared_experts=st.integers(0, 2),
    first_k_dense=st.integers(0, 3),
    moe_layer_freq=st.integers(1, 3),
)


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    heads, groups = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    window = draw(st.none() | sizes)
    return Architecture.from_shape(
        name="drawn",
        num_layers=draw(st.integers(1, 8)),
        hidden_size=draw(sizes),
        intermediate_size=draw(sizes),
        num_attention_heads=heads * groups,
        num_key_value_heads=heads,
        head_dim=draw(sizes),
        vocab_size=draw(sizes),
        gated_mlp=draw(st.booleans()),
        tie_word_embeddings=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        attention_bias=draw(st.booleans()),
        sliding_window=window,
        full_attention_period=draw(st.none() | st.integers(1, 4)) if window else None,
        mla=draw(st.none() | latents),
        moe=draw(st.none() | mixtures),
        mtp_layers=draw(st.integers(0, 2)),
    )


@given(architectures())
def test_the_parts_add_up_to_the_whole(model: Architecture) -> None:
    counted, hidden = model.parameters, model.hidden_size
    layers = sum(layer.parameters(hidden) for layer in model.layers)
    assert counted.total == layers + counted.embedding + counted.lm_head + hidden
    assert counted.experts == sum(
        layer.moe.expert_parameters(hidden) for layer in model.layers if layer.moe
    )
    assert counted.experts <= layers


@given(architectures())
def test_a_layer_is_its_matrices_and_what_little_is_beside_them(model: Architecture) -> None:
    for layer in model.kinds:
        matrices = parameters_of(layer.attention.projections(model.hidden_size))
        assert matrices <= layer.attention.parameters(model.hidden_size)
        parts = layer.attention.parameters(model.hidden_size) + layer.feed_forward.parameters(
            model.hidden_size
        )
        assert layer.parameters(model.hidden_size) == parts + layer.num_norms * model.hidden_size


@given(architectures())
def test_one_token_visits_everything_but_the_experts_it_is_not_sent_to(model: Architecture) -> None:
    counted = model.parameters
    visited = sum(
        layer.moe.experts_per_token * layer.moe.expert.parameters(model.hidden_size)
        for layer in model.layers
        if layer.moe
    )
    assert counted.active == counted.total - counted.experts + visited
    assert model.is_moe or counted.active == counted.total


@given(architectures())
def test_run_lengths_give_the_layers_back(model: Architecture) -> None:
    assert (
        tuple(model.kinds[kind] for kind, count in model.layer_runs for _ in range(count))
        == model.layers
    )
    assert sum(count for _, count in model.layer_runs) == model.num_layers
    assert len(set(model.kinds)) == len(model.kinds)


@given(architectures())
def test_windows_and_tied_embeddings_change_what_they_should(model: Architecture) -> None:
    full = replace(
        model,
        layers=tuple(
            replace(layer, attention=replace(layer.attention, sliding_window=None))
            for layer in model.layers
        ),
    )
    assert full.parameters == model.parameters
    tied, untied = (
        replace(model, tie_word_embeddings=tied).parameters.total for tied in (True, False)
    )
    assert untied - tied == model.vocab_size * model.hidden_size


@given(architectures())
def test_multi_token_prediction_is_counted_apart(model: Architecture) -> None:
    bare = replace(model, mtp_layers=0)
    assert bare.parameters.total == model.parameters.total
    assert bare.parameters.mtp == 0
    assert model.parameters.mtp == model.mtp_layers * model.mtp_parameters


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        ({}, 0),
        ({"qk_norm": True}, 2 * 8),
        ({"qk_norm": True, "qk_norm_all_heads": True}, (4 + 2) * 8),
        ({"attention_bias": True}, (4 + 2 * 2) * 8),
        ({"attention_output_bias": True}, 32),
        ({"sinks": True}, 4),
    ],
)
def test_attention_counts_its_norms_biases_and_sinks(
    attention: dict[str, bool], expected: int
) -> None:
    block = Attention(
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, v_head_dim=8, **attention
    )
    assert block.parameters(32) == 32 * (32 + 32) + 32 * 32 + expected


@pytest.mark.parametrize(
    ("moe", "expected"),
    [
        ({}, 0),
        ({"bias": True}, 4 * (16 + 16 + 32)),
        ({"router_bias": True}, 4),
        ({"selection_bias": True}, 0),
        ({"shared_expert_intermediate_size": 8, "shared_gate": True}, 3 * 32 * 8 + 32),
    ],
)
def test_a_mixture_counts_its_biases_gate_and_shared_expert(
    moe: dict[str, Any], expected: int
) -> None:
    block = Moe(num_experts=4, experts_per_token=1, intermediate_size=16, **moe)
    assert block.parameters(32) == 4 * 3 * 32 * 16 + 4 * 32 + expected


def test_what_old_families_add_is_counted() -> None:
    layer = Layer(
        attention=Attention(
            num_attention_heads=12,
            num_key_value_heads=12,
            head_dim=64,
            v_head_dim=64,
            attention_bias=True,
            attention_output_bias=True,
        ),
        feed_forward=Mlp(intermediate_size=3072, gated=False, bias=True),
        norm_bias=True,
    )
    gpt2 = Architecture(
        name="gpt2",
        hidden_size=768,
        vocab_size=50257,
        layers=(layer,) * 12,
        tie_word_embeddings=True,
        learned_positions=1024,
        final_norm_bias=True,
    )
    assert gpt2.parameters.total == 124_439_808
    assert replace(gpt2, lm_head_bias=True).parameters.total == 124_439_808 + 50257


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_size": 33}, "head_dim"),
        ({"full_attention_period": 2}, "full_attention_period"),
    ],
)
def test_a_shape_that_breaks_a_rule_is_refused(change: dict[str, int], field: str) -> None:
    shape = {
        "num_layers": 1,
        "hidden_size": 32,
        "intermediate_size": 8,
        "num_attention_heads": 4,
        "vocab_size": 9,
    }
    with pytest.raises(Invalid) as caught:
        Architecture.from_shape(name="broken", **(shape | change))  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_the_published_parameters(name: str) -> None:
    """Exactly, or within a few ten-thousandths where its note says what is left out."""
    tolerance = 4e-4 if name in NOTED else 0
    assert preset(name).parameters.total == pytest.approx(PUBLISHED[name], rel=tolerance, abs=0)


@pytest.mark.parametrize("name", ROUNDED)
def test_a_preset_agrees_with_a_rounded_count(name: str) -> None:
    assert preset(name).parameters.total == pytest.approx(ROUNDED[name], rel=0.006)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_the_published_ones_within_their_rounding(name: str) -> None:
    counted, published = preset(name).parameters, ACTIVE[name]
    half = 0.05 if isinstance(published, float) else 0.5
    assert (
        (counted.active - counted.embedding) / 1e9 - half
        <= published
        <= counted.active / 1e9 + half
    )


def test_every_preset_builds_and_says_where_it_comes_from() -> None:
    for entry in PRESETS:
        assert preset(entry["id"]).parameters.total > 0
        assert entry["source"]
        assert set(entry) <= {"id", "aliases", "family", "source", "note", "shape"}


def test_the_names_of_presets_are_lower_case_and_no_two_are_the_same() -> None:
    names = [name.lower() for entry in PRESETS for name in (entry["id"], *entry["aliases"])]
    assert len(set(names)) == len(names)
    assert all(name == name.lower() and " " not in name for name in SHAPES)


def test_the_windows_of_presets_follow_their_pattern() -> None:
    scout, gemma, mistral = preset("llama-4-scout"), preset("gemma-3-27b"), preset("mistral-7b")
    assert [layer.attention.sliding_window for layer in scout.layers] == [
        8192,
        8192,
        8192,
        None,
    ] * 12
    assert all(
        layer.attention.chunked_attention
        for layer in scout.layers
        if layer.attention.sliding_window
    )
    assert sum(layer.attention.sliding_window is None for layer in gemma.layers) == 10
    assert {layer.attention.sliding_window for layer in mistral.layers} == {4096}
