"""Reads a Hugging Face `config.json` of a decoder-only language model: its layers, as the model's
own family means them.

Nothing is guessed. A `model_type` that is in no table is refused, and so is a config that lacks a
size its family needs. Other keys that are absent have the default of their class in transformers,
and so have the sizes of a text tower, from which transformers leaves out what equals the default.
Of a multimodal model the *text tower* (its language model) is read, and on demand its encoder of
images (`vision`); other towers are left out.

A family is all models of one `model_type`; a *tower* is one of the models that make up a multimodal
one. What the cost model cannot describe goes into `unsupported.json`, with what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from models.errors import Invalid, UnknownName, Unsupported
from models.spec.architecture import Architecture
from service.formats.huggingface import vision
from service.formats.huggingface.classes import class_defaults, defaults_without_sizes, text_towers
from service.formats.huggingface.config import Config, shown
from service.formats.huggingface.data import data
from service.formats.huggingface.families import FAMILIES
from service.formats.huggingface.misspelt_keys import require_known_spelling
from service.formats.huggingface.towers import Tower
from service.nearest_names import unknown_name

_UNSUPPORTED = data("unsupported")
UNSUPPORTED = {
    model_type: missing
    for kind in ("layers", "not_decoders")
    for missing, model_types in _UNSUPPORTED[kind].items()
    for model_type in model_types
}
"""The part that the cost model lacks for each family it cannot describe, by model_type."""
_TEXT_TOWERS = ("text_config", "language_config", "llm_config", "thinker_config")

_CURE = (
    "give the model's shape in explicit fields instead (num_layers, hidden_size, …), or its layers"
)
_UNSUPPORTED_KEYS = {
    "index_topk": "sparse attention chosen by an indexer",
    "linear_attn_config": "linear attention layers",
    "linear_num_value_heads": "linear attention layers",
    "mamba_d_state": "state-space (Mamba) layers",
    "ssm_state_size": "state-space (Mamba) layers",
    "lora_rank": "low-rank adapters",
    "hc_mult": "hyper-connections",
}
"""Keys by which a config adds what its family does not have, and what the cost model then lacks."""
_NOT_A_DECODER = {
    "is_encoder_decoder": "cross-attention (an encoder-decoder)",
    "add_cross_attention": "cross-attention",
    "use_bidirectional_attention": "bidirectional attention",
}
_ON_IMAGES_ALONE = "vision"
"""The value of use_bidirectional_attention for a model whose text is causal."""


def is_multimodal(config: Mapping[str, object]) -> bool:
    """Returns True where the model has towers beside that of text. `read` leaves them out."""
    return _tower_key(config) is not None or config.get("model_type") in text_towers()


def read(config: Mapping[str, object], name: str | None = None) -> Architecture:
    """Returns the architecture that a config.json describes. Its name is `name`, else the
    config's own, else its model_type. Raises Invalid, UnknownName or Unsupported, naming the key
    at fault."""
    text = text_tower(config)
    require_known_spelling(text)
    for key, missing in _NOT_A_DECODER.items():
        # Attention that is bidirectional among the tokens of an image leaves text causal.
        if text.get(key) != _ON_IMAGES_ALONE:
            text.refuse(key, missing)
    family = FAMILIES[text.model_type]
    # Keys of features such as an indexer. Only families with the key in `described` read them.
    for key, missing in _UNSUPPORTED_KEYS.items():
        if key not in family.described and (value := text.get(key)):
            raise Unsupported(text.where(key), shown(value), missing)
    own_name = config.get("_name_or_path")
    default = own_name if isinstance(own_name, str) and own_name else text.model_type
    return family.read(text.named(name or default))


def reads_tower(config: Mapping[str, object]) -> bool:
    """Returns True where `read_tower` knows the image encoder of this config."""
    return vision.is_known(config)


def read_tower(config: Mapping[str, object], text: Architecture) -> Tower:
    """Returns the image encoder of a vision-language model, whose language model is `text`.
    Raises Unsupported for an unknown family."""
    return vision.read(config, text.hidden_size)


def family(config: Mapping[str, object]) -> str:
    """Returns the model_type of the language model. Raises as `read` does."""
    return text_tower(config).model_type


def is_quantized(config: Mapping[str, object]) -> bool:
    """Returns True where the config describes quantized weights. They are for inference, and an
    answer says that they have no effect on the training."""
    towers = (config.get(key) for key in _TEXT_TOWERS)
    return any(
        tower.get("quantization_config") is not None
        for tower in (config, *towers)
        if isinstance(tower, Mapping)
    )


def _tower_key(config: Mapping[str, object]) -> str | None:
    """Returns the key under which a multimodal config has its language model; None where the
    config is itself a language model's, or has no such key."""
    if config.get("model_type") in FAMILIES:
        return None
    return next((key for key in _TEXT_TOWERS if config.get(key) is not None), None)


def text_tower(config: Mapping[str, object]) -> Config:
    """Returns the config of the language model: the whole, or a part of a multimodal model's
    config."""
    return _text_tower_at(config, "")


def _text_tower_at(config: Mapping[str, object], path: str) -> Config:
    """Returns the config of the language model inside of an object. `path` has the keys that lead
    to that object, with a dot at the end: "thinker_config."."""
    model_type = _model_type(config, path)
    if model_type in FAMILIES:
        # With a path this is a text tower, whose file leaves out sizes that equal the default.
        absent = class_defaults(model_type) if path else defaults_without_sizes(model_type)
        return Config(config, model_type, absent=absent, path=path)
    key = _tower_key(config)
    text_type = text_towers().get(model_type)
    if key is None and text_type is None:
        raise _unknown_family(model_type, path)
    if key is None and "hidden_size" in config:
        # Older files have the fields of the text tower beside the object of the vision tower.
        text_fields = {name: value for name, value in config.items() if name != "vision_config"}
        return _text_tower_at({**text_fields, "model_type": text_type}, path)
    key = key or _TEXT_TOWERS[0]  # without any, the error is about the usual key
    whole = Config(config, model_type, path=path)
    tower = dict(whole.inner(key).values)
    if text_type and tower.get("model_type") is None:
        tower["model_type"] = text_type
    # The whole model's key overrides that of the tower.
    if whole.get("tie_word_embeddings") is not None:
        tower["tie_word_embeddings"] = whole.flag("tie_word_embeddings")
    return _text_tower_at(tower, f"{path}{key}.")


def _model_type(config: Mapping[str, object], path: str) -> str:
    """Returns the model_type. Raises Invalid where there is none, and Unsupported for a family
    that is known not to be supported."""
    value = config.get("model_type")
    where = f"{path}model_type"
    if not isinstance(value, str):
        raise Invalid(where, shown(value), "must be the name of a model family, such as llama")
    if missing := UNSUPPORTED.get(value):
        # Only a decoder can be described by its shape instead, as _CURE says.
        is_decoder = missing in _UNSUPPORTED["layers"]
        raise Unsupported(where, value, f"{missing}; {_CURE}" if is_decoder else missing)
    return value


def _unknown_family(model_type: str, path: str) -> UnknownName:
    """Returns the error for a family that is not known, with similar names."""
    known = [*FAMILIES, *text_towers()]
    where = f"{path}model_type"
    return unknown_name(where, str(shown(model_type)), known, _CURE, what="a family that is read")
