"""What a key means where a config leaves it out: the default of the config class.

`huggingface_classes.json` has the defaults of the classes in transformers, which
`python -m tests.launchers.model_code` writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

_LIKE = {
    "exaone4_5_text": "exaone4",
    "kimi_k2": "deepseek_v3",
    "mimo": "qwen2",
    "minimax_m1": "minimax",
    "minimax_m3": "minimax_m3_vl_text",
    "minimax_text_01": "minimax",
}
"""Families outside transformers whose defaults are those of another."""
_REMOTE: Mapping[str, Mapping[str, object]] = {
    "bailing_moe": {
        "first_k_dense_replace": 0,
        "head_dim": None,
        "tie_word_embeddings": False,
        "use_bias": True,
        "use_qkv_bias": False,
    },
    "bailing_moe_v2": {
        "head_dim": None,
        "moe_router_enable_expert_bias": True,
        "tie_word_embeddings": False,
        "use_bias": False,
        "use_qk_norm": True,
        "use_qkv_bias": False,
    },
    "deepseek": {
        "attention_bias": False,
        "head_dim": None,
        "mlp_bias": False,
        "num_key_value_heads": None,
        "tie_word_embeddings": False,
    },
    "nemotron-nas": {
        "attention_bias": False,
        "head_dim": None,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    },
    "internlm": {
        "bias": True,
        "head_dim": None,
        "num_key_value_heads": None,
        "tie_word_embeddings": False,
    },
    "internlm2": {"head_dim": None, "num_key_value_heads": None, "tie_word_embeddings": False},
}
"""Defaults of classes that are published beside the weights."""
_AMBIGUOUS = {
    "exaone": ("tie_word_embeddings",),
    "falcon": ("bias", "multi_query", "new_decoder_architecture", "parallel_attn"),
}
"""Keys whose default in transformers is not that of the code beside the weights."""
UNTIED = ("qwen2_5_omni_text", "qwen3_vl_moe_text")
"""Text towers whose own class ties the embeddings, and the class of the whole does not."""


@cache
def _classes() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(
        (files(__package__) / "huggingface_classes.json").read_text()
    )
    return found


def class_defaults(model_type: str) -> Mapping[str, object]:
    """What transformers takes for the keys that are not written."""
    if model_type in _REMOTE:
        return _REMOTE[model_type]
    defaults = _classes()["defaults"].get(_LIKE.get(model_type, model_type), {})
    ambiguous = _AMBIGUOUS.get(model_type, ())
    found = {key: value for key, value in defaults.items() if key not in ambiguous}
    return {**found, "tie_word_embeddings": False} if model_type in UNTIED else found


def defaults_without_sizes(model_type: str) -> Mapping[str, object]:
    """The defaults of switches, and the nulls: a size that its author forgot is not that of the
    model for which the class was written."""
    return {
        key: value
        for key, value in class_defaults(model_type).items()
        if isinstance(value, bool) or not isinstance(value, int)
    }


def text_towers() -> Mapping[str, str]:
    """The model_type of the text tower of each multimodal family, where the tower itself does not
    say."""
    towers: Mapping[str, str] = _classes()["text_towers"]
    return towers
