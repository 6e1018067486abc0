"""Families with layers of several kinds: parameter counts equal to those of the real model code, or
counted by hand where there is none, and which layers are of which kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import Invalid, Unsupported
from models.spec.architecture import Architecture
from models.spec.attention import Attention
from models.spec.layer import Layer
from models.spec.recurrence import DeltaNet, LightningAttention, Mamba2
from service.formats import huggingface
from service.formats.huggingface import FAMILIES, read
from service.formats.huggingface.family import Hybrid
from tests.long import examples
from tests.paths import SHARED
from tests.service.formats.mutated_configs import mutated, reads_or_refuses

FORMATS = Path(__file__).parents[1]
HYBRIDS: list[dict[str, Any]] = json.loads((FORMATS / "hybrids.json").read_text())
"""Small models of every family, with the parameters that transformers builds from them:
tests/launchers/model_code.py asks it."""
CONFIGS: list[dict[str, Any]] = [one["config"] for one in HYBRIDS]


def config_of(model_type: str, **keys: Any) -> dict[str, Any]:
    """The first small model of a family, with these keys."""
    return next(each for each in CONFIGS if each["model_type"] == model_type) | keys


def refusal(config: Mapping[str, object]) -> Invalid:
    with pytest.raises(Invalid) as caught:
        read(config)
    return caught.value


@pytest.mark.parametrize(
    "entry",
    [pytest.param(one, id=f"{i}-{one['config']['model_type']}") for i, one in enumerate(HYBRIDS)],
)
def test_a_small_model_has_exactly_the_parameters_of_the_model_code(entry: dict[str, Any]) -> None:
    assert read(entry["config"]).parameters.total == entry["parameters"]


def test_every_family_of_transformers_has_small_models() -> None:
    beside_the_weights = {"minimax_m1", "minimax_m3", "minimax_text_01"}
    families = {name for name, family in FAMILIES.items() if isinstance(family, Hybrid)}
    assert {each["model_type"] for each in CONFIGS} == families - beside_the_weights


MINIMAX_TEXT_01 = {
    "model_type": "minimax_text_01",
    "attn_type_list": ([0] * 7 + [1]) * 10,
    "head_dim": 128,
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 80,
    "num_local_experts": 32,
    "num_experts_per_tok": 2,
    "postnorm": True,
    "shared_intermediate_size": 0,
    "tie_word_embeddings": False,
    "vocab_size": 200064,
}
KIMI_LINEAR = {
    "model_type": "kimi_linear",
    "first_k_dense_replace": 1,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "kda_layers": [layer for layer in range(1, 27) if layer % 4],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 27,
    "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "v_head_dim": 128,
    "vocab_size": 163840,
}


NEMOTRON_NANO_9B = {
    "model_type": "nemotron_h",
    "attention_head_dim": 128,
    "conv_kernel": 4,
    "hidden_size": 4480,
    "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
    "intermediate_size": 15680,
    "mamba_head_dim": 80,
    "mamba_num_heads": 128,
    "n_groups": 8,
    "num_attention_heads": 40,
    "num_hidden_layers": 56,
    "num_key_value_heads": 8,
    "ssm_state_size": 128,
    "vocab_size": 131072,
}
FALCON_H1 = {
    "model_type": "falcon_h1",
    "head_dim": 64,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "mamba_d_conv": 4,
    "mamba_d_head": 64,
    "mamba_d_ssm": 1536,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 24,
    "num_attention_heads": 8,
    "num_hidden_layers": 36,
    "num_key_value_heads": 2,
    "vocab_size": 32784,
}


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (MINIMAX_TEXT_01, 456_089_655_296),
        # These weights have the selection biases of 26 layers, too.
        (KIMI_LINEAR, 49_122_681_728 - 26 * 256),
        (NEMOTRON_NANO_9B, 8_888_227_328),
        (FALCON_H1, 521_411_104),
    ],
)
def test_a_published_config_has_the_parameters_of_its_weights(
    config: dict[str, Any], published: int
) -> None:
    assert read(config).parameters.total == published


KIMI_K3 = {
    "model_type": "kimi_k3",
    "text_config": {
        "model_type": "kimi_linear",
        "attn_res_block_size": 12,
        "first_k_dense_replace": 1,
        "hidden_size": 7168,
        "intermediate_size": 33792,
        "kv_lora_rank": 512,
        "latent_moe_use_norm": True,
        "linear_attn_config": {
            "full_attn_layers": [*range(4, 93, 4), 93],
            "gate_lower_bound": -5.0,
            "head_dim": 128,
            "kda_layers": [layer for layer in range(1, 93) if layer % 4],
            "num_heads": 96,
            "short_conv_kernel_size": 4,
            "use_full_rank_gate": True,
        },
        "mla_use_output_gate": True,
        "moe_intermediate_size": 3072,
        "moe_layer_freq": 1,
        "num_attention_heads": 96,
        "num_expert_group": 1,
        "num_experts": 896,
        "num_experts_per_token": 16,
        "num_hidden_layers": 93,
        "num_shared_experts": 2,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "routed_expert_hidden_size": 3584,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "v_head_dim": 128,
        "vocab_size": 163840,
    },
    "vision_config": {},
}


def kimi_k3_by_hand() -> int:
    """The parameters of Kimi-K3, of which there is no model code here.

    What its config shares with Kimi Linear is as in KimiLinearForCausalLM of transformers. Assumed
    of what it adds: the gate of latent attention has an element for each element of a value; the
    full-rank gate is one matrix, and the decay stays of low rank; shared experts read the stream,
    and routed ones a latent, with one projection to it and one back, before which it is normalised;
    and attention residuals have a query and a norm for each mixer and each network (arXiv
    2603.15031), but none behind the last layer.
    """
    hidden = 7168
    head_width = 96 * 128
    queries = hidden * 1536 + 1536 + 1536 * 96 * (128 + 64)
    keys_and_values = hidden * (512 + 64) + 512 + 512 * 96 * (128 + 128)
    latent_attention = queries + keys_and_values + hidden * head_width + head_width * hidden
    streams = 3 * hidden * head_width + 3 * head_width * 4
    beta, decay = hidden * 96, hidden * 128 + 128 * head_width
    gate, out = hidden * head_width, head_width * hidden
    vectors = 96 + head_width + 128
    delta_attention = streams + beta + decay + gate + out + vectors
    dense = 3 * hidden * 33792
    routed = 896 * 3 * 3584 * 3072
    experts = 896 * hidden + 3 * hidden * 2 * 3072 + 2 * hidden * 3584 + 3584 + routed
    of_every_layer = 2 * hidden + 2 * 2 * hidden
    embeddings_and_norm = 2 * 163840 * hidden + hidden
    mixers = 24 * latent_attention + 69 * delta_attention
    return mixers + dense + 92 * experts + 93 * of_every_layer + embeddings_and_norm


def test_kimi_k3_has_the_parameters_that_are_counted_by_hand() -> None:
    assert read(KIMI_K3).parameters.total == kimi_k3_by_hand()


def minimax_m3_by_hand() -> int:
    """Three dense layers with attention to all keys, and 57 of experts with an indexer."""
    hidden = 6144
    attention = hidden * 128 * (64 + 4 + 4) + 64 * 128 * hidden + 2 * 128
    indexer = hidden * 128 * (4 + 1) + 2 * 128
    dense = 3 * hidden * 12288
    experts = hidden * 128 + (128 + 1) * 3 * hidden * 3072
    embeddings_and_norm = 2 * 200064 * hidden + hidden
    layers = 60 * (attention + 2 * hidden) + 3 * dense + 57 * (indexer + experts)
    return layers + embeddings_and_norm


@pytest.mark.skipif(
    not (SHARED / "hf_configs").is_dir(),
    reason="the collection of real config.json files (shared/hf_configs) is not beside the project",
)
def test_real_files_have_the_parameters_that_are_counted_by_hand() -> None:
    for name, count in {"Kimi-K3": kimi_k3_by_hand(), "MiniMax-M3": minimax_m3_by_hand()}.items():
        config = json.loads((SHARED / f"hf_configs/{name}.json").read_text())
        assert read(config).parameters.total == count


def letter(layer: Layer) -> str:
    """Of what the layer mixes tokens with, or of its network."""
    if layer.recurrence:
        return "M"
    return "*" if layer.attention else "E" if layer.moe else "-"


def letters(model: Architecture) -> str:
    return "".join(map(letter, model.layers))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (config_of("qwen3_next"), "MMM*MM"),
        (config_of("qwen3_next", full_attention_interval=2), "M*M*M*"),
        (config_of("olmo_hybrid"), "MMM*MM"),
        (config_of("olmo_hybrid", num_hidden_layers=3), "MM*"),
        (config_of("bailing_hybrid"), "MM*MM*"),
        (config_of("kimi_linear"), "MMMM*MMM*"),
        (KIMI_LINEAR, "MMM*" * 6 + "MM*"),
        (KIMI_K3, "MMM*" * 23 + "*"),
        (config_of("minimax"), "*M*M*M"),
        (MINIMAX_TEXT_01, "MMMMMMM*" * 10),
        (config_of("bamba"), "M*MM*M"),
        (config_of("granitemoehybrid"), "MM*MM*"),
        (config_of("granitemoehybrid", layer_types=None), "MMMMMM"),
        (config_of("falcon_h1"), "MMMMMM"),
        (config_of("deepseek_v32"), "******"),
    ],
)
def test_layers_mix_tokens_where_each_spelling_says(config: dict[str, Any], expected: str) -> None:
    assert letters(read(config)) == expected


@pytest.mark.parametrize("pattern", ["M-M*-M-", "MEM*EME", "M*-E"])
def test_a_layer_of_nemotron_h_has_a_mixer_or_a_network(pattern: str) -> None:
    config = config_of("nemotron_h", hybrid_override_pattern=pattern, num_hidden_layers=None)
    del config["num_hidden_layers"]
    model = read(config)
    assert letters(model) == pattern
    assert {layer.blocks for layer in model.layers} == {1}
    assert {layer.num_norms for layer in model.layers} == {1}


def test_kinds_of_recurrences_have_the_sizes_of_their_configs() -> None:
    delta = read(config_of("qwen3_next")).recurrences
    assert delta == [
        DeltaNet(num_heads=8, num_key_heads=4, key_head_dim=16, value_head_dim=24, conv_kernel=4)
    ]
    for kimi in read(KIMI_K3).recurrences:
        assert isinstance(kimi, DeltaNet)
        assert (kimi.decay_per_element, kimi.decay_rank, kimi.gate_rank) == (True, 128, None)
    assert read(MINIMAX_TEXT_01).recurrences == [
        LightningAttention(num_heads=64, num_key_heads=64, key_head_dim=128, value_head_dim=128)
    ]
    (mamba,) = read(config_of("falcon_h1")).recurrences
    assert isinstance(mamba, Mamba2)
    assert (mamba.num_heads, mamba.value_head_dim, mamba.norm) == (8, 8, False)


def test_attention_and_mamba_of_falcon_h1_are_side_by_side() -> None:
    (layer,) = read(config_of("falcon_h1")).kinds
    assert len(layer.mixers) == 2
    assert layer.feed_forward is not None


def test_norms_of_olmo_hybrid_stand_behind_attention_alone() -> None:
    layers = read(config_of("olmo_hybrid")).layers
    assert [layer.post_norms for layer in layers] == [bool(layer.attention) for layer in layers]


def attentions(config: Mapping[str, Any]) -> list[Attention]:
    found = [layer.attention for layer in read(config).layers]
    assert all(found)
    return [attention for attention in found if attention]


def test_kimi_k3_gates_elements_and_bailing_gates_heads() -> None:
    assert {one.gate_size for one in read(KIMI_K3).attentions} == {96 * 128}
    assert {one.gate_size for one in read(config_of("bailing_hybrid")).attentions} == {4}


@pytest.mark.parametrize(
    ("keys", "shared"),
    [
        ({}, "......"),
        ({"index_topk_freq": 2}, "..s.s."),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, ".ss.ss"),
        ({"index_topk_pattern": "FSSFSF"}, ".ss.s."),
        ({"indexer_types": ["full", "shared", "full", "full", "full", "shared"]}, ".s...s"),
    ],
)
def test_layers_of_glm_read_keys_that_a_layer_before_chose(
    keys: dict[str, Any], shared: str
) -> None:
    found = attentions(config_of("glm_moe_dsa", **keys))
    indexers = [attention.indexer for attention in found if attention.indexer]
    assert "".join("s" if indexer.shared else "." for indexer in indexers) == shared
    for attention in found:
        assert attention.mean_keys(1000) == pytest.approx(32 - 32 * 32 / 2000)
        is_shared = attention.indexer is not None and attention.indexer.shared
        assert (attention.mean_scored_keys(1000) == 0) == is_shared


def test_layers_of_deepseek_v4_pool_keys_where_each_spelling_says() -> None:
    ratios = [0, 0, 4, 128, 4, 128, 4, 0]
    published = attentions(config_of("deepseek_v4", compress_ratios=ratios, num_hidden_layers=7))
    rates = [one.compression.rate if one.compression else 0 for one in published]
    assert rates == ratios[:7]
    assert [one.indexer is not None for one in published] == [rate == 4 for rate in rates]
    assert {one.sliding_window for one in published} == {16}
    default = attentions(config_of("deepseek_v4", num_hidden_layers=5))
    assert [one.compression.rate for one in default if one.compression] == [128, 128, 128, 4, 128]
    assert {layer.residual_streams for layer in read(config_of("deepseek_v4")).layers} == {4}


def test_layers_of_minimax_m3_choose_blocks_of_keys() -> None:
    published = next(each for each in CONFIGS if "sparse_attention_config" in each)
    indexers = [attention.indexer for attention in attentions(published)]
    assert [indexer is not None for indexer in indexers] == [False] * 2 + [True] * 4
    assert {indexer.top_k for indexer in indexers if indexer} == {2 * 8}


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("qwen3_5", "qwen3_5_text"),
        ("qwen3_5_moe", "qwen3_5_moe_text"),
        ("minimax_m3_vl", "minimax_m3_vl_text"),
        ("nemotron_h_omni", "nemotron_h"),
    ],
)
def test_the_text_tower_of_a_multimodal_hybrid_is_read(outer: str, inner: str) -> None:
    text = config_of(inner)
    named = {"model_type": outer, "text_config": text, "vision_config": {}}
    unnamed = {key: value for key, value in text.items() if key != "model_type"}
    assert read(named).layers == read(text).layers
    assert read({"model_type": outer, "text_config": unnamed}).layers == read(text).layers
    assert huggingface.is_multimodal(named)


def test_multi_token_prediction_of_qwen_stands_outside_the_total() -> None:
    config = config_of("qwen3_5_moe_text")
    model = read(config | {"mtp_num_hidden_layers": 1})
    assert model.mtp_layers == 1
    assert model.parameters.total == read(config).parameters.total


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (config_of("qwen3_next", linear_num_key_heads=3), "linear_num_key_heads"),
        (config_of("qwen3_next", linear_value_head_dim=0), "linear_value_head_dim"),
        (config_of("qwen3_next", layer_types=["mamba"] * 5), "layer_types"),
        (config_of("qwen3_next", layer_types=["conv"] * 6), "layer_types"),
        (config_of("qwen3_next", attn_output_gate=False), "attn_output_gate"),
        (config_of("qwen3_next", index_topk=16), "index_topk"),
        (config_of("bamba", mamba_n_heads=7, mamba_n_groups=1), "mamba_n_heads"),
        (config_of("bamba", mamba_d_head=25), "mamba_d_head"),
        (config_of("bamba", mamba_n_groups=3), "mamba_n_groups"),
        (config_of("bamba", attn_layer_indices=[6]), "attn_layer_indices[0]"),
        (config_of("falcon_h1", projectors_bias=True), "projectors_bias"),
        (config_of("nemotron_h", hybrid_override_pattern="MX*"), "hybrid_override_pattern"),
        (config_of("nemotron_h", hybrid_override_pattern="M*"), "hybrid_override_pattern"),
        (config_of("nemotron_h", hybrid_override_pattern=None), "hybrid_override_pattern"),
        (config_of("nemotron_h", hybrid_override_pattern="MEM*EM-", mlp_bias=True), "mlp_bias"),
        (config_of("deepseek_v32", q_lora_rank=None), "q_lora_rank"),
        (config_of("deepseek_v32", mlp_bias=True), "mlp_bias"),
        (config_of("glm_moe_dsa", index_topk_pattern="SFFFFF"), "indexer_types"),
        (config_of("glm_moe_dsa", index_topk_pattern="FFF"), "index_topk_pattern"),
        (config_of("deepseek_v4", compress_ratios=[0, 4, 8, 0, 0, 0, 0]), "compress_ratios"),
        (config_of("deepseek_v4", mlp_layer_types=["dense"] * 7), "mlp_layer_types"),
        (config_of("deepseek_v4", o_groups=3), "o_groups"),
        (
            config_of("kimi_linear", linear_attn_config=KIMI_LINEAR["linear_attn_config"]),
            "linear_attn_config.full_attn_layers[2]",
        ),
        (config_of("minimax", shared_intermediate_size=8), "shared_intermediate_size"),
        (config_of("minimax_m3_vl_text", attention_output_gate=True), "attention_output_gate"),
    ],
)
def test_what_breaks_a_rule_or_is_not_described_is_named(
    config: dict[str, Any], field: str
) -> None:
    assert refusal(config).field == field


def test_layers_of_kimi_are_listed_once_each() -> None:
    inner = {"head_dim": 16, "num_heads": 6, "short_conv_kernel_size": 4}
    for full, linear in (([2], [1]), ([2, 3], [1, 2]), ([0, 2, 3], [1])):
        lists = {"full_attn_layers": full, "kda_layers": linear}
        config = config_of("kimi_linear", num_hidden_layers=3, linear_attn_config=inner | lists)
        assert refusal(config).field == "linear_attn_config.full_attn_layers"


def test_values_of_the_indexer_of_minimax_m3_are_refused() -> None:
    published = next(each for each in CONFIGS if "sparse_attention_config" in each)
    inner = published["sparse_attention_config"] | {"sparse_disable_index_value": [0] * 6}
    error = refusal(published | {"sparse_attention_config": inner})
    assert isinstance(error, Unsupported)
    assert error.field == "sparse_attention_config.sparse_disable_index_value"


SEEDS = [*CONFIGS, MINIMAX_TEXT_01, KIMI_LINEAR, KIMI_K3, NEMOTRON_NANO_9B, FALCON_H1]
KEYS = sorted({key for seed in SEEDS for key in seed} - {"model_type"})
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 2**40)
    | st.floats()
    | st.text(max_size=8)
    | st.lists(st.integers(-1, 130) | st.sampled_from(["full", "mamba", "conv"]), max_size=8)
    | st.dictionaries(st.sampled_from(KEYS), st.integers(0, 9), max_size=3)
)


@settings(max_examples=examples(400))
@given(mutated(SEEDS, KEYS, VALUES))
def test_a_mutated_config_is_read_or_refused_and_nothing_else(config: dict[str, Any]) -> None:
    reads_or_refuses(config)
