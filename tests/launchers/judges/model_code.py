"""What transformers makes of configs: the parameters of its models, built without memory, and the
defaults of its config classes."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

logging.set_verbosity(logging.CRITICAL)

TEXT_MODELS = {
    "deepseek_ocr2_text": "DeepseekOcr2TextModel",
    "emu3_text_model": "Emu3TextModel",
    "granite4_vision_text": "Granite4VisionTextModel",
    "paddleocr_vl_text": "PaddleOCRTextModel",
    "qwen2_5_omni_text": "Qwen2_5OmniThinkerTextModel",
    "qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextModel",
    "step3p5": "Step3p7TextModel",
}
"""Classes of text towers that no automatic class finds."""


def parameters(config: Mapping[str, Any]) -> int:
    """Of the language model that a config describes. A text tower has no head of its own: the one
    of its embedding's size is added."""
    fields = {key: value for key, value in config.items() if key != "model_type"}
    built = AutoConfig.for_model(config["model_type"], **fields)
    with torch.device("meta"):
        try:
            return size(AutoModelForCausalLM.from_config(built))
        except ValueError as error:
            if "Unrecognized configuration class" not in str(error):
                raise
        tied = getattr(built, "tie_word_embeddings", False)
        return size(text_model(built)) + (0 if tied else built.vocab_size * built.hidden_size)


def tower_parameters(config: Mapping[str, Any]) -> int:
    """Of a vision-language model those beside its language model."""
    fields = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(
            AutoConfig.for_model(config["model_type"], **fields)
        )
    return sum(
        weight.numel()
        for name, weight in model.named_parameters()
        if not name.removeprefix("model.").startswith(("language_model.", "lm_head."))
    )


def text_model(config: PreTrainedConfig) -> torch.nn.Module:
    if config.model_type not in TEXT_MODELS:
        return AutoModel.from_config(config)
    module = type(config).__module__.replace("configuration_", "modeling_")
    return getattr(importlib.import_module(module), TEXT_MODELS[config.model_type])(config)


def size(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def counted(config: Mapping[str, Any]) -> int | str:
    """The parameters, or why transformers cannot build the model."""
    try:
        return parameters(config)
    except Exception as error:  # noqa: BLE001 - whatever a model class raises
        return f"{type(error).__name__}: {error}"


def defaults(model_type: str) -> dict[str, Any]:
    """Of the fields of a config class that are switches, whole numbers or null."""
    fields = {each.name: each.default for each in dataclasses.fields(CONFIG_MAPPING[model_type])}
    return {
        name: value for name, value in fields.items() if value is None or isinstance(value, int)
    }


def text_towers() -> Iterable[tuple[str, str]]:
    """The model_type of each multimodal config, and that of its text tower."""
    for model_type in CONFIG_MAPPING:
        inner = getattr(CONFIG_MAPPING[model_type], "sub_configs_defaults", None) or {}
        for key in ("text_config", "thinker_config"):
            if key in inner:
                yield model_type, inner[key].model_type


def main() -> None:
    """Answers the question in standard input in the file that is named."""
    question = json.load(sys.stdin)
    known = [each for each in question["families"] if each in CONFIG_MAPPING]
    answer = {
        "parameters": [counted(config) for config in question["configs"]],
        "towers": [tower_parameters(config) for config in question["vision_configs"]],
        "defaults": {each: defaults(each) for each in known},
        "text_towers": dict(text_towers()),
    }
    with open(sys.argv[1], "w") as file:
        json.dump(answer, file)


main()
