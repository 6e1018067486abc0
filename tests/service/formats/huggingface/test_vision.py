"""Encoders of images as Hugging Face configs describe them, against the code of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.errors import Invalid, Unsupported
from models.spec.encoder import Encoder
from service.formats import huggingface

FORMATS = Path(__file__).parents[1]
COUNTED: list[dict[str, Any]] = json.loads((FORMATS / "vision_towers.json").read_text())
"""Configs, with the parameters that transformers 5.24.0 has beside the language model."""


def encoder_of(config: dict[str, Any], tokens: int = 1000, image: int | None = None) -> Encoder:
    text = huggingface.read(config)
    return huggingface.read_tower(config, text).encoder(tokens, image)


def config_of(model_type: str) -> dict[str, Any]:
    """The first of COUNTED of a family."""
    return next(one["config"] for one in COUNTED if one["config"]["model_type"] == model_type)


@pytest.mark.parametrize("one", COUNTED, ids=lambda one: one["config"]["model_type"])
def test_parameters_are_those_of_the_model_code(one: dict[str, Any]) -> None:
    assert encoder_of(one["config"]).parameters == one["parameters"]


def test_the_whole_of_qwen3_vl_8b_is_as_large_as_its_weights() -> None:
    """17,534,247,392 bytes of 16 bits in the index of Qwen/Qwen3-VL-8B-Instruct."""
    config = COUNTED[-2]["config"]
    text = huggingface.read(config).parameters.total
    assert text + encoder_of(config).parameters == 17_534_247_392 // 2


@pytest.mark.parametrize(
    ("model_type", "patches", "image"),
    [
        ("qwen3_vl", 4, None),  # any size
        ("gemma3", 4, 16),  # 64 patches of 32 x 32 pixels, averaged
        ("gemma4", 9, None),
        ("llama4", 4, 16),  # a tile
        ("kimi_k25", 4, None),
        ("internvl", 4, 16),
        ("mistral3", 4, None),
        ("llava", 1, 64),
    ],
)
def test_patches_make_tokens(model_type: str, patches: int, image: int | None) -> None:
    encoder = encoder_of(config_of(model_type))
    assert encoder.patches_per_token == patches
    assert encoder.tokens_per_image == (image or 1000)
    assert encoder_of(config_of(model_type), image=300).tokens_per_image == 300


def test_attention_of_qwen2_5_vl_is_within_windows_but_in_some_layers() -> None:
    layers = encoder_of(config_of("qwen2_5_vl")).layers
    windows = [layer.attention.sliding_window for layer in layers if layer.attention]
    assert windows == [784, None, 784]  # 112 pixels of 4 a patch, squared
    assert not any(layer.attention.causal for layer in layers if layer.attention)


def test_keys_of_kimi_are_read_as_they_stand_beside_its_weights() -> None:
    config = json.loads(json.dumps(config_of("kimi_k25")))
    vision = config["vision_config"]
    named = {
        "vt_hidden_size": vision.pop("hidden_size"),
        "vt_intermediate_size": vision.pop("intermediate_size"),
        "vt_num_attention_heads": vision.pop("num_attention_heads"),
        "vt_num_hidden_layers": vision.pop("num_hidden_layers"),
        "init_pos_emb_height": 64,
        "init_pos_emb_width": 64,
        "mm_hidden_size": config.pop("projection_hidden_size"),
    }
    config["vision_config"] = {**vision, **named}
    assert encoder_of(config) == encoder_of(config_of("kimi_k25"))


def test_an_encoder_that_is_not_known_is_refused() -> None:
    config = {**config_of("qwen3_vl"), "model_type": "glm4v"}
    with pytest.raises(Unsupported, match="encoder of this family"):
        huggingface.read_tower(config, huggingface.read(config_of("qwen3_vl")))
    nested = {**config_of("llava"), "vision_config": {"model_type": "dinov2"}}
    with pytest.raises(Unsupported, match=r"vision_config\.model_type"):
        encoder_of(nested)


@pytest.mark.parametrize(
    ("model_type", "sizes", "field"),
    [
        ("qwen2_5_vl", {"hidden_size": 3}, "num_heads"),
        ("llava", {"hidden_size": 3}, "num_attention_heads"),
        ("gemma3", {"image_size": 224, "patch_size": 100}, "patch_size"),
        ("gemma3", {"image_size": 2}, "image_size"),
        ("internvl", {"image_size": 8, "patch_size": 8}, "image_size"),
        ("llama4", {"pixel_shuffle_ratio": 2.0}, "pixel_shuffle_ratio"),
    ],
)
def test_sizes_that_leave_nothing_of_a_head_or_a_token_are_refused(
    model_type: str, sizes: dict[str, Any], field: str
) -> None:
    config = config_of(model_type)
    with pytest.raises(Invalid, match=rf"vision_config\.{field}"):
        encoder_of({**config, "vision_config": {**config["vision_config"], **sizes}})


def test_a_size_that_is_wrong_is_named() -> None:
    config = config_of("qwen3_vl")
    wrong = {**config, "vision_config": {**config["vision_config"], "depth": 0}}
    with pytest.raises(Invalid, match=r"vision_config\.depth"):
        encoder_of(wrong)
