"""Hugging Face configs: parameter counts equal to those of the real model code, refusals by name,
no other failure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import Invalid, UnknownName, Unsupported
from models.spec.architecture import Architecture
from service.formats import huggingface
from service.formats.huggingface import FAMILIES, UNSUPPORTED, read
from tests.long import examples
from tests.paths import SHARED
from tests.service.formats.mutated_configs import mutated, reads_or_refuses

FOLDER = SHARED / "hf_configs"
COUNTS = FOLDER / "PARAM_COUNTS.json"
needs_folder = pytest.mark.skipif(
    not COUNTS.is_file(),
    reason="the collection of real config.json files (shared/hf_configs) is not beside the project",
)

FILES_READ = [
    "DeepSeek-V3",
    "DeepSeek-V3.2",
    "DeepSeek-V4-Flash",
    "Kimi-K2-Instruct",
    "Llama-3.0-8B-tpu-recipe",
    "Llama-4-Scout-17B-16E-Instruct",
    "Meta-Llama-3.1-405B",
    "Meta-Llama-3.1-8B",
    "MiMo-V2-Flash",
    "Mixtral-8x7B-tpu-recipe",
    "Mixtral-8x7B-v0.1",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Nemotron-H-56B-Base-8K",
    "Qwen3-0.6B",
    "Qwen3-235B-A22B",
    "Qwen3-30B-A3B",
    "Qwen3-8B",
    "Qwen3.5-397B-A17B",
    "gemma-4-26B-A4B",
    "gpt-oss-120b",
    "phi-2",
    "qwen3-next-80B-A3B",
]
FILES_WITHOUT_COUNT = {
    "Llama-3_3-Nemotron-Super-49B-v1": 49_867_145_216,
    "Step-3.7-Flash": 195_844_496_640,
}
"""Files of families that transformers does not build, with the parameters of the published weights
or of Step3p7TextModel and a head."""
FILES_COUNTED_BY_HAND = ["Kimi-K3", "MiniMax-M3"]
"""In test_hybrid.py."""
DEFAULTS_READ = [
    "arcee",
    "cohere",
    "cohere2",
    "ernie4_5_moe",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt_neox",
    "gptj",
    "granite",
    "granitemoe",
    "minimax",
    "mpt",
    "olmo",
    "olmo2",
    "olmoe",
    "opt",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "smollm3",
    "stablelm",
    "starcoder2",
]
DEFAULTS_REFUSED = ["bloom"]
DEFAULTS_LACKING = {"deepseek_v2": ("num_experts_per_tok", 6), "glm4_moe": ("head_dim", 42)}
DEFAULTS_UNBUILT = ["dbrx", "hunyuan_v1_moe", "nemotron"]


FORMATS = Path(__file__).parents[1]
PUBLISHED: dict[str, Any] = json.loads((FORMATS / "published.json").read_text())
"""Configs of released models written by hand, with the parameters of the model code (of its text
tower alone)."""

(
    DBRX,
    FALCON,
    GEMMA2,
    GLM_AIR,
    GPT2,
    GPT_OSS,
    HY3,
    KIMI,
    MPT,
    OLMO3,
    OPT,
    QWEN3,
    QWEN3_MOE,
    V2_LITE,
) = (
    PUBLISHED[name]["config"]
    for name in (
        *(
            "DBRX",
            "falcon-40b",
            "gemma-2-9b",
            "GLM-4.5-Air",
            "gpt2",
            "gpt-oss-20b",
            "Hy3",
            "Kimi-K2",
            "mpt-7b",
        ),
        *("Olmo-3-7B", "opt-1.3b", "Qwen3-8B", "Qwen3-235B-A22B", "DeepSeek-V2-Lite"),
    )
)
EXAONE, GPT_NEO = (PUBLISHED[name]["config"] for name in ("EXAONE-3.0-7.8B", "gpt-neo-1.3B"))
MINIMAX = PUBLISHED["MiniMax-M2"]["config"]
"""Its published count has the scales of fp8 blocks (13,880,064) and the selection biases (62 x 256)
beside these."""
MAVERICK = PUBLISHED["Llama-4-Maverick"]["config"]["text_config"]


def small(model_type: str = "llama", **keys: Any) -> dict[str, Any]:
    """The keys most families share, two layers of four heads."""
    shape = {
        "model_type": model_type,
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 100,
    }
    return shape | keys


def without(config: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def counts() -> dict[str, Any]:
    return json.loads(COUNTS.read_text())


def config_file(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text())


def windows(model: Architecture) -> list[int | None]:
    return [layer.attention.sliding_window for layer in model.layers]


def sparse(model: Architecture) -> list[bool]:
    return [layer.moe is not None for layer in model.layers]


def refusal(config: Mapping[str, object]) -> Invalid:
    with pytest.raises(Invalid) as caught:
        read(config)
    return caught.value


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_has_the_published_number_of_parameters(name: str) -> None:
    assert read(PUBLISHED[name]["config"]).parameters.total == PUBLISHED[name]["parameters"]


@needs_folder
@pytest.mark.parametrize("name", FILES_READ)
def test_a_real_file_has_exactly_the_parameters_of_the_model_code(name: str) -> None:
    counted, expected = read(config_file(name)).parameters, counts()["files"][f"{name}.json"]
    assert counted.total == expected["total"]
    assert counted.experts == expected["by_kind"].get("expert", 0)
    assert counted.embedding == expected["by_kind"]["embedding"]


@needs_folder
@pytest.mark.parametrize("name", FILES_WITHOUT_COUNT)
def test_a_real_file_has_the_parameters_that_were_published(name: str) -> None:
    assert read(config_file(name)).parameters.total == FILES_WITHOUT_COUNT[name]


@needs_folder
@pytest.mark.parametrize("model_type", DEFAULTS_READ)
def test_a_class_default_has_exactly_the_parameters_of_the_model_code(model_type: str) -> None:
    entry = counts()["class_defaults"][model_type]
    assert read(entry["config"]).parameters.total == entry["total"]


@needs_folder
@pytest.mark.parametrize("model_type", DEFAULTS_REFUSED)
def test_a_class_default_outside_the_cost_model_is_refused_by_name(model_type: str) -> None:
    config = counts()["class_defaults"][model_type].get("config", {"model_type": model_type})
    error = refusal(config)
    assert isinstance(error, Unsupported)
    assert (error.field, error.value) == ("model_type", model_type)


@needs_folder
@pytest.mark.parametrize("model_type", DEFAULTS_LACKING)
def test_a_class_default_that_lacks_a_key_is_refused_until_it_is_written(model_type: str) -> None:
    entry, (key, value) = counts()["class_defaults"][model_type], DEFAULTS_LACKING[model_type]
    assert refusal(entry["config"]).field == key
    assert read(entry["config"] | {key: value}).parameters.total == entry["total"]


def test_experts_that_compute_nothing_have_no_parameters() -> None:
    """The class has up-projections of these, which nothing reads: published weights have none. A
    layer of the config is two, with attention in each and experts in the first."""
    model = read({"model_type": "wrapper", "text_config": {"model_type": "longcat_flash"}})
    first, second = model.layers[:2]
    assert first.moe
    assert (first.moe.num_experts, first.moe.zero_experts) == (512, 256)
    assert (first.moe.experts_per_token, second.moe) == (8, None)
    never_read = 28 * 256 * 2 * 2048 * 6144
    assert model.parameters.total == CLASS_DEFAULTS["longcat_flash"] - never_read
    assert model.parameters.active == pytest.approx(27e9, rel=0.05)  # arXiv 2509.01322 §1


@needs_folder
def test_every_entry_of_the_collection_is_tested() -> None:
    names = [*FILES_READ, *FILES_WITHOUT_COUNT, *FILES_COUNTED_BY_HAND]
    assert set(counts()["files"]) == {f"{name}.json" for name in names}
    defaults = [
        *DEFAULTS_READ,
        *DEFAULTS_REFUSED,
        *DEFAULTS_LACKING,
        *DEFAULTS_UNBUILT,
        "longcat_flash",
    ]
    assert sorted(counts()["class_defaults"]) == sorted(defaults)


@pytest.mark.parametrize("model_type", UNSUPPORTED)
def test_an_undescribed_family_is_refused_with_what_is_missing(model_type: str) -> None:
    error = refusal(small(model_type))
    assert isinstance(error, Unsupported)
    assert (error.field, error.value) == ("model_type", model_type)
    assert error.missing in str(error)


@pytest.mark.parametrize(("model_type", "is_decoder"), [("jamba", True), ("bert", False)])
def test_a_refused_decoder_may_be_given_in_other_forms(model_type: str, is_decoder: bool) -> None:
    assert ("explicit fields" in refusal({"model_type": model_type}).rule) == is_decoder


@pytest.mark.parametrize(
    ("wrong", "cure"),
    [
        ({"hidden_size": "4096"}, "without quotation marks"),
        ({"hidden_size": 4096.5}, "must be a whole number"),
        (
            {"layer_types": ["conv"] * QWEN3["num_hidden_layers"]},
            "full_attention, sliding_attention",
        ),
        ({"model_type": None}, "such as llama"),
    ],
)
def test_a_refusal_says_what_would_do(wrong: dict[str, Any], cure: str) -> None:
    error = refusal(QWEN3 | wrong)
    assert error.field == next(iter(wrong))
    assert cure in error.rule


CLASS_DEFAULTS: dict[str, int] = json.loads((FORMATS / "class_defaults.json").read_text())
"""The parameters of models whose configs have only the defaults of their class, which
tests/launchers/model_code.py asks transformers for."""
CLASS_DEFAULTS_REFUSED = {
    "deepseek_v2": "num_experts_per_tok",
    "gemma4_text": "hidden_size_per_layer_input",
    "glm4_moe": "head_dim",
    "glm4v_moe_text": "head_dim",
    "gpt_neo": "attention_layers",
    "nemotron_h": "hybrid_override_pattern",
    "qwen3_omni_moe_text": "head_dim",
}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("num_key_value_head", "num_key_value_heads"),
        ("num_kv_heads", "num_key_value_heads"),
        ("n_kv_heads", "num_key_value_heads"),
        ("tie_word_embedding", "tie_word_embeddings"),
        ("head_dims", "head_dim"),
    ],
)
def test_a_misspelt_key_is_refused_where_nothing_else_says_it(written: str, meant: str) -> None:
    config = small() | {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": False}
    error = refusal(without(config, meant) | {written: 1})
    assert error.field == written
    assert error.rule.endswith(f"did you mean {meant}?")
    # Beside the key itself it is one of the many keys of a file that nothing reads.
    assert read(config | {written: 1}) == read(config)
    assert read(config | {written: None}) == read(config)


def test_santacoder_shares_its_keys_and_values() -> None:
    shape = {"n_embd": 2048, "n_head": 16, "n_inner": 8192, "n_layer": 24, "n_positions": 2048}
    config = {"model_type": "gpt2", "vocab_size": 49280, **shape}
    santacoder = read(config | {"attention_head_type": "multiquery"})
    assert santacoder.layers[0].attention.num_key_value_heads == 1
    assert read(config | {"attention_head_type": "multihead"}) == read(config)


def test_the_new_decoder_of_falcon_does_not_read_multi_query() -> None:
    assert FALCON["new_decoder_architecture"]
    without = {key: value for key, value in FALCON.items() if key != "multi_query"}
    assert read(without) == read(FALCON)


@pytest.mark.parametrize("model_type", CLASS_DEFAULTS)
def test_a_text_tower_has_the_sizes_of_its_class_where_it_writes_none(model_type: str) -> None:
    config = {"model_type": "wrapper", "text_config": {"model_type": model_type}}
    if key := CLASS_DEFAULTS_REFUSED.get(model_type):
        assert refusal(config).field == f"text_config.{key}"
    elif model_type in ("exaone", "falcon", "mpt"):
        assert refusal(config).rule.startswith("is required")
    elif model_type != "longcat_flash":
        assert read(config).parameters.total == CLASS_DEFAULTS[model_type]


@pytest.mark.parametrize(
    ("config", "is_multimodal"),
    [
        (QWEN3, False),
        ({"model_type": "llava", "text_config": QWEN3}, True),
        ({"model_type": "a-new-wrapper", "language_config": QWEN3}, True),
        ({"model_type": "omni", "thinker_config": {"model_type": "t", "text_config": QWEN3}}, True),
        (QWEN3 | {"model_type": "qwen3_vl", "vision_config": {}}, True),
    ],
)
def test_the_text_tower_of_any_multimodal_config_is_read(
    config: dict[str, Any], is_multimodal: bool
) -> None:
    assert read(config).layers == read(QWEN3).layers
    assert huggingface.is_multimodal(config) is is_multimodal


def test_no_family_is_both_read_and_refused() -> None:
    assert not set(UNSUPPORTED) & {*FAMILIES}


@pytest.mark.parametrize("model_type", ["", "llama-like", "LLAMA", "x" * 10_000])
def test_an_unknown_family_is_never_taken_for_another(model_type: str) -> None:
    error = refusal(small(model_type))
    assert isinstance(error, UnknownName)
    assert error.field == "model_type"
    assert len(str(error)) < 2000


@pytest.mark.parametrize(
    ("model_type", "near"),
    [
        ("lama", "llama"),
        ("qwen-3", "qwen3"),
        ("deepseek-v3", "deepseek_v3"),
        ("deepseek_v9", None),
        ("minimax_m9", None),
        ("brand_new", None),
    ],
)
def test_only_a_family_of_almost_the_same_name_is_said_to_be_meant(
    model_type: str, near: str | None
) -> None:
    error = refusal(small(model_type))
    assert isinstance(error, UnknownName)
    assert (f"did you mean {near}" in error.rule) == (near is not None)
    assert ("the nearest known are" in error.rule) == (near is None)
    assert "explicit fields" in error.rule


@pytest.mark.parametrize("model_type", [None, 3, ["llama"], {}])
def test_a_model_type_that_is_no_name_is_refused(model_type: object) -> None:
    assert refusal({"model_type": model_type}).field == "model_type"


def test_the_config_of_another_tool_is_refused_by_the_first_key_it_lacks() -> None:
    assert refusal({"hidden_dim": 5120, "ffn_embed_dim": 13824, "n_head": 40}).field == "model_type"
    assert (
        refusal({"model_type": "llama", "hidden_dim": 5120, "n_head": 40}).field
        == "num_hidden_layers"
    )


REQUIRED = [
    (small(), "num_hidden_layers hidden_size num_attention_heads intermediate_size vocab_size"),
    (small("mistral"), "num_key_value_heads"),
    (QWEN3, "head_dim"),
    (QWEN3_MOE, "num_experts num_experts_per_tok moe_intermediate_size"),
    (GEMMA2, "head_dim sliding_window"),
    (GPT2, "n_embd n_layer n_head n_positions vocab_size"),
    (
        KIMI,
        (
            "q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim n_shared_experts"
            " intermediate_size"
        ),
    ),
    (MAVERICK, "attention_chunk_size interleave_moe_layer_step intermediate_size_mlp"),
    (GPT_OSS, "num_local_experts num_experts_per_tok"),
    (FALCON | {"new_decoder_architecture": False}, "multi_query"),
    (FALCON, "new_decoder_architecture bias"),
    (DBRX, "attn_config ffn_config d_model"),
]


@pytest.mark.parametrize(
    ("config", "key"), [(config, key) for config, keys in REQUIRED for key in keys.split()]
)
def test_a_missing_required_key_is_named(config: dict[str, Any], key: str) -> None:
    error = refusal(without(config, key))
    assert (error.field, error.value) == (key, None)
    assert "is required" in error.rule


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        4096.0,
        "4096",
        True,
        float("nan"),
        [4096],
        {},
        2**30,
        pytest.param(10**5000, id="huge"),
    ],
)
@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_key_value_heads", "head_dim", "vocab_size"]
)
def test_a_size_that_is_no_size_is_refused_with_its_key(key: str, value: object) -> None:
    error = refusal(small(**{key: value}))
    assert error.field == key
    assert len(str(error)) < 200


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (small(num_key_value_heads=3), "num_key_value_heads"),
        (small("internlm2"), "bias"),
        (GPT_NEO | {"attention_layers": ["global", "odd"] * 12}, "attention_layers"),
        (without(GPT_NEO, "attention_layers"), "attention_layers"),
        (without(GPT_NEO, "window_size"), "window_size"),
        (without(EXAONE, "tie_word_embeddings"), "tie_word_embeddings"),
        (small(hidden_size=66), "head_dim"),
        (small(num_hidden_layers=1025), "num_hidden_layers"),
        (small(mlp_bias="no"), "mlp_bias"),
        (small(tie_word_embeddings=1), "tie_word_embeddings"),
        (small(layer_types=["full_attention"]), "layer_types"),
        (small(layer_types=["full_attention", 1]), "layer_types[1]"),
        (GPT_OSS | {"num_experts_per_tok": 33}, "num_experts_per_tok"),
        (QWEN3_MOE | {"mlp_only_layers": [94]}, "mlp_only_layers[0]"),
        (QWEN3_MOE | {"use_sliding_window": True}, "layer_types"),
        (KIMI | {"moe_layer_freq": [1] * 60}, "moe_layer_freq"),
        (KIMI | {"moe_layer_freq": []}, "moe_layer_freq"),
        (HY3 | {"mlp_layer_types": ["dense"] * 79 + ["odd"]}, "mlp_layer_types"),
        (DBRX | {"attn_config": {"kv_n_heads": 7}}, "num_key_value_heads"),
        (DBRX | {"ffn_config": DBRX["ffn_config"] | {"moe_top_k": 17}}, "ffn_config.moe_top_k"),
        ({"model_type": "llama4"}, "text_config"),
        (
            {"model_type": "llama4", "text_config": MAVERICK, "tie_word_embeddings": 1},
            "tie_word_embeddings",
        ),
        ({"model_type": "llama4", "text_config": []}, "text_config"),
        (
            {"model_type": "llama4", "text_config": MAVERICK | {"vocab_size": 0}},
            "text_config.vocab_size",
        ),
        (
            {"model_type": "llama4", "text_config": MAVERICK | {"model_type": "new"}},
            "text_config.model_type",
        ),
        (
            {"model_type": "internvl_chat", "llm_config": {"num_hidden_layers": 2}},
            "llm_config.model_type",
        ),
    ],
)
def test_what_breaks_a_rule_is_named(config: dict[str, Any], field: str) -> None:
    assert refusal(config).field == field


@pytest.mark.parametrize(
    "config",
    [
        small(is_encoder_decoder=True),
        GPT2 | {"add_cross_attention": True},
        GEMMA2 | {"use_bidirectional_attention": True},
        KIMI | {"attention_bias": True},
        MPT | {"no_bias": False},
        OPT | {"word_embed_proj_dim": 512},
        small("phi", qk_layernorm=True),
        small(layer_types=["full_attention", "linear_attention"]),
        small(num_local_experts=8),
        MINIMAX | {"attn_type_list": [0] + [1] * 61},
        MINIMAX | {"qk_norm_type": "per_head"},
        MINIMAX | {"shared_intermediate_size": 1536},
        small("qwen2", num_experts=64),
        small("mistral", n_routed_experts=2),
        small(index_topk=2048),
        small(lora_rank=16),
        small(linear_attn_config={"num_heads": 4}),
        small("qwen3", mamba_d_state=128),
    ],
)
def test_a_switch_to_something_undescribed_is_refused(config: dict[str, Any]) -> None:
    assert isinstance(refusal(config), Unsupported)


@pytest.mark.parametrize("count", [None, 0, 1])
def test_no_experts_are_no_experts_however_that_is_written(count: int | None) -> None:
    assert read(small(num_experts=count)) == read(small())


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [(False, True, False), (True, False, True), (None, True, True), (None, None, False)],
)
def test_the_outer_object_says_first_whether_embeddings_are_tied(
    outer: bool | None, inner: bool | None, tied: bool
) -> None:
    text = QWEN3 | {"model_type": "qwen3_vl_text", "tie_word_embeddings": inner}
    config = {"model_type": "qwen3_vl", "text_config": text, "tie_word_embeddings": outer}
    assert read(config).tie_word_embeddings is tied


@pytest.mark.parametrize(
    ("config", "tied"),
    [(QWEN3, False), (GEMMA2, True), (GPT2, True), (DBRX, False), (FALCON, True)],
)
def test_an_absent_tie_means_what_it_means_to_the_family(
    config: dict[str, Any], tied: bool
) -> None:
    assert read(config).tie_word_embeddings is tied


def test_absent_key_value_heads_of_llama_are_as_many_as_its_heads() -> None:
    config = without(small(), "num_key_value_heads")
    assert read(config).layers[0].attention.num_key_value_heads == 4


def test_mistral_slides_unless_its_window_is_null() -> None:
    config = small("mistral")
    assert windows(read(config)) == [4096, 4096]
    assert windows(read(config | {"sliding_window": 512})) == [512, 512]
    assert windows(read(config | {"sliding_window": None})) == [None, None]


def test_a_window_that_is_switched_off_is_none() -> None:
    config = small("qwen2", num_hidden_layers=3, sliding_window=32, max_window_layers=1)
    assert windows(read(config)) == [None] * 3
    assert windows(read(config | {"use_sliding_window": False})) == [None] * 3
    assert windows(read(config | {"use_sliding_window": True})) == [None, 32, 32]


@pytest.mark.parametrize(
    ("config", "period"),
    [
        (GEMMA2, 2),
        (GPT_OSS, 2),
        (OLMO3, 4),
        (small("gemma3_text", num_hidden_layers=34, head_dim=16, sliding_window=32), 6),
        (small("cohere2", num_hidden_layers=8, sliding_window=32, sliding_window_pattern=3), 3),
    ],
)
def test_every_few_layers_one_sees_everything(config: dict[str, Any], period: int) -> None:
    window = config["sliding_window"]
    expected = [
        window if (index + 1) % period else None for index in range(config["num_hidden_layers"])
    ]
    assert windows(read(config)) == expected


def test_minimax_m2_is_read_without_multi_token_prediction() -> None:
    """No weights of it were published, whatever the file says."""
    model = read(MINIMAX | {"use_mtp": True, "num_mtp_modules": 3})
    assert model == read(without(MINIMAX, "use_mtp", "num_mtp_modules", "attn_type_list"))
    assert model.mtp_layers == 0
    assert model.layers[0].attention is not None
    assert model.layers[0].attention.qk_norm_all_heads


def test_layers_of_mimo_v2_differ_in_window_sinks_and_key_value_heads() -> None:
    model = read(PUBLISHED["MiMo-V2-Flash"]["config"])
    found = [
        (each.sliding_window, each.sinks, each.num_key_value_heads, each.head_dim, each.v_head_dim)
        for layer in model.layers
        if (each := layer.attention)
    ]
    assert found[:2] == [(None, False, 4, 192, 128), (128, True, 8, 192, 128)]
    assert [window for window, *_ in found].count(None) == 9
    assert sparse(model) == [False] + [True] * 47


def test_gemma_4_has_larger_heads_and_no_values_of_their_own_in_full_layers() -> None:
    config = PUBLISHED["gemma-4-26B-A4B"]["config"]
    local, full = (read(config).layers[index].attention for index in (0, 5))
    assert local is not None
    assert full is not None
    assert (local.sliding_window, local.head_dim, local.num_key_value_heads) == (1024, 256, 8)
    assert (full.sliding_window, full.head_dim, full.num_key_value_heads) == (None, 512, 2)
    assert (local.values_are_keys, full.values_are_keys) == (False, True)
    moe = read(config).layers[0].moe
    assert moe is not None
    assert (moe.num_experts, moe.shared_expert_intermediate_size) == (128, 2112)


def test_layers_of_nemotron_nas_may_have_no_attention_and_widths_of_their_own() -> None:
    layers = read(PUBLISHED["Llama-3.3-Nemotron-Super-49B"]["config"]).layers
    assert sum(layer.attention is None for layer in layers) == 31
    assert {layer.num_norms for layer in layers if layer.attention is None} == {1}
    widths = {layer.dense.intermediate_size for layer in layers if layer.dense}
    assert widths == {2816, 5632, 7168, 14336, 17920, 28672}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("LLG", [8, 8, None, 8, 8]), (2, [8, None, 8, None, 8]), (None, [8, 8, 8, None, 8])],
)
def test_the_pattern_of_exaone_4_is_letters_or_a_period(
    pattern: object, expected: list[int | None]
) -> None:
    config = small("exaone4", num_hidden_layers=5, sliding_window=8, sliding_window_pattern=pattern)
    assert windows(read(config)) == expected
    assert windows(read(config | {"sliding_window": None})) == [None] * 5


def test_lists_of_hunyuan_hold_one_number_for_all_layers() -> None:
    config = PUBLISHED["Hunyuan-A13B"]["config"]
    assert read(config | {"moe_topk": 8}) == read(config)
    assert refusal(config | {"moe_topk": [8] * 31 + [4]}).field == "moe_topk"


def test_layers_of_gpt_neo_that_are_local_see_a_window() -> None:
    assert windows(read(GPT_NEO)) == [None, 256] * 12


def test_starcoder_shares_its_keys_and_values_unless_told_otherwise() -> None:
    config = PUBLISHED["starcoder"]["config"]
    heads = [
        read(config | more).layers[0].attention.num_key_value_heads
        for more in ({}, {"multi_query": False})
    ]
    assert heads == [1, 48]
    assert read(config).learned_positions == 8192


def test_layer_types_overrule_the_family_pattern() -> None:
    kinds = ["full_attention"] * 20 + ["sliding_attention"] * 22
    assert windows(read(GEMMA2 | {"layer_types": kinds})) == [None] * 20 + [4096] * 22


def test_llama_4_attends_within_chunks_in_three_of_four_layers() -> None:
    model = read(MAVERICK)
    assert windows(model) == [8192, 8192, 8192, None] * 12
    assert [layer.attention.chunked_attention for layer in model.layers] == [
        True,
        True,
        True,
        False,
    ] * 12
    assert sparse(model) == [False, True] * 24
    assert {layer.moe.shared_expert_intermediate_size for layer in model.layers if layer.moe} == {
        8192
    }
    stated = read(MAVERICK | {"no_rope_layers": [0, 1] * 24, "moe_layers": [0]})
    assert windows(stated) == [None, 8192] * 24
    assert sparse(stated) == [True] + [False] * 47


def test_dense_layers_stand_where_each_spelling_puts_them() -> None:
    assert sparse(read(KIMI)) == [False] + [True] * 60
    assert sparse(read(KIMI | {"first_k_dense_replace": 2, "moe_layer_freq": 3})) == [
        index >= 2 and index % 3 == 0 for index in range(61)
    ]
    assert (
        sparse(read(KIMI | {"moe_layer_freq": [0, 1] + [0] * 59})) == [False, True] + [False] * 59
    )
    assert sparse(read(QWEN3_MOE | {"mlp_only_layers": [0, 5]})) == [
        index not in (0, 5) for index in range(94)
    ]
    assert sparse(read(QWEN3_MOE | {"decoder_sparse_step": 2})) == [False, True] * 47
    assert sparse(read(HY3)) == [False] + [True] * 79
    assert sparse(read(HY3 | {"mlp_layer_types": ["sparse", "dense"] * 40})) == [True, False] * 40


def test_the_width_of_a_dense_layer_is_needed_only_if_there_is_one() -> None:
    config = without(QWEN3_MOE, "intermediate_size")
    assert read(config).parameters.total == read(QWEN3_MOE).parameters.total
    assert refusal(config | {"mlp_only_layers": [0]}).field == "intermediate_size"


def test_both_spellings_of_a_count_are_read() -> None:
    assert read(without(QWEN3_MOE, "num_experts") | {"num_local_experts": 128}) == read(QWEN3_MOE)
    assert read(without(GPT_OSS, "num_experts_per_tok") | {"experts_per_token": 4}) == read(GPT_OSS)


def test_latent_attention_ignores_the_head_dim_and_key_value_heads_written_beside_it() -> None:
    block = read(KIMI).layers[0].attention
    assert (block.head_dim, block.v_head_dim, block.num_key_value_heads) == (192, 128, 64)
    assert read(KIMI | {"head_dim": 1, "num_key_value_heads": 5}) == read(KIMI)


def test_multi_token_prediction_stands_outside_the_total() -> None:
    with_mtp, bare = read(GLM_AIR), read(GLM_AIR | {"num_nextn_predict_layers": 0})
    assert (with_mtp.mtp_layers, bare.mtp_layers) == (1, 0)
    assert with_mtp.parameters.total == bare.parameters.total
    assert with_mtp.parameters.mtp > bare.parameters.mtp == 0


def test_a_selection_bias_is_noted_and_not_counted() -> None:
    moe = read(KIMI).layers[-1].moe
    assert moe is not None
    assert moe.selection_bias
    other = read(V2_LITE).layers[-1].moe
    assert other is not None
    assert not other.selection_bias


def test_an_architecture_is_named_by_its_caller_then_its_config_then_its_family() -> None:
    assert read(QWEN3, name="mine").name == "mine"
    assert read(QWEN3 | {"_name_or_path": "Qwen/Qwen3-8B"}).name == "Qwen/Qwen3-8B"
    assert read(QWEN3).name == "qwen3"


SEEDS = [entry["config"] for entry in PUBLISHED.values()]
if COUNTS.is_file():
    SEEDS += [config_file(name) for name in FILES_READ]
    SEEDS += [counts()["class_defaults"][model_type]["config"] for model_type in DEFAULTS_READ]
KEYS = sorted(
    {key for seed in SEEDS for key in [*seed, *seed.get("text_config", {})]} - {"model_type"}
)
SCALARS = st.none() | st.booleans() | st.integers(-3, 2**40) | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS | st.sampled_from(["full_attention", "sliding_attention", "chunked_attention"]),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=examples(400))
@given(mutated(SEEDS, KEYS, JSON))
def test_a_mutated_config_is_read_or_refused_and_nothing_else(config: dict[str, Any]) -> None:
    reads_or_refuses(config)


@settings(max_examples=examples(200))
@given(
    st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=10), JSON, max_size=12),
    st.sampled_from([*FAMILIES]),
)
def test_any_json_object_is_read_or_refused_and_nothing_else(
    config: dict[str, Any], model_type: str
) -> None:
    reads_or_refuses(config)
    reads_or_refuses(config | {"model_type": model_type})


@settings(max_examples=examples(100))
@given(st.sampled_from(SEEDS), st.integers(1, 12))
def test_every_further_layer_of_a_kind_adds_the_same_parameters(
    seed: dict[str, Any], layers: int
) -> None:
    key = next((key for key in ("num_hidden_layers", "n_layer", "n_layers") if key in seed), None)
    listed = "hybrid_override_pattern" in seed or any(isinstance(x, list) for x in seed.values())
    if key is None or listed:
        return
    models = [read(seed | {key: layers + more}) for more in range(3)]
    for smaller, larger in pairwise(models):
        added = larger.parameters.total - smaller.parameters.total
        assert added == larger.layers[-1].parameters(larger.hidden_size)
