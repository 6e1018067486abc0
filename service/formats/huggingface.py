"""Reads a Hugging Face `config.json` of a decoder-only language model: its layers, as the model's
own family means them.

Nothing is guessed. A `model_type` that is in no table is refused, and so is a config that lacks a
size its family needs. Other keys that are absent have the default of their class in transformers,
and so have the sizes of a text tower, from which transformers leaves out what equals the default.
Of a multimodal model the text tower is read, and on demand its encoder of images
(`_huggingface_vision`); other towers are left out.

To add a family, read its modelling code in transformers, then
1. enter a row in FAMILIES of `_huggingface_dense`, `_huggingface_moe`, `_huggingface_per_kind`
   (heads differ from layer to layer), `_huggingface_hybrid` (recurrences, sparse attention) or
   `_huggingface_convolutions`, out of the parts in `_huggingface_parts`, `_huggingface_mixers` and
   `_huggingface_patterns` (`qwen3` is a short example);
2. name in `refused` every switch that adds what the cost model does not describe;
3. run `python -m tests.launchers.model_code`, which carries the defaults of its class into
   `huggingface_classes.json`, and test that its configs have the parameters of the model code.
A family that the cost model cannot describe goes into _UNSUPPORTED_LAYERS, with what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from models.errors import Invalid, UnknownName, Unsupported
from models.spec.architecture import Architecture
from service.formats import (
    _huggingface_convolutions,
    _huggingface_dense,
    _huggingface_hybrid,
    _huggingface_moe,
    _huggingface_per_kind,
    _huggingface_vision,
)
from service.formats._huggingface_classes import (
    class_defaults,
    defaults_without_sizes,
    text_towers,
)
from service.formats._huggingface_config import Config, shown
from service.formats.rope_scaling import RopeScaling
from service.nearest_names import unknown_name

FAMILIES = {
    **_huggingface_dense.FAMILIES,
    **_huggingface_moe.FAMILIES,
    **_huggingface_per_kind.FAMILIES,
    **_huggingface_hybrid.FAMILIES,
    **_huggingface_convolutions.FAMILIES,
}
_NORM_EPSILONS = (
    "rms_norm_eps",
    "layer_norm_epsilon",
    "layer_norm_eps",
    "layernorm_epsilon",
    "norm_epsilon",
    "norm_eps",
)
"""The keys that families have for it."""
_CONTEXT_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")
_TEXT_TOWERS = ("text_config", "language_config", "llm_config", "thinker_config")

_UNSUPPORTED_LAYERS = {
    "state-space layers of Mamba-1": "mamba falcon_mamba jamba zamba",
    "attention blocks whose weights layers share": "zamba2",
    "norms of Mamba's own inputs": "plamo2",
    "recurrent layers": "rwkv rwkv5 rwkv6 rwkv7 recurrent_gemma xlstm",
    "per-layer embeddings and alternating updates": "gemma3n gemma3n_text",
    "keys and values shared by all heads, with queries from a latent (multi-matrix attention)": (
        "step3 step3_text step3_vl"
    ),
    "keys and values shared across layers": "hunyuan",
    "a norm after the embedding": "bloom",
    "norms between the projections of a block": "bitnet",
    "norms with networks of their own": "axk2",
    "a bias of the gate of attention": "beam",
    "differences of attention maps": "diffllama",
    "experts in attention": "jetmoe",
    "layers that run several times": "dory hrm_text inkling2_loop_text",
    "relative positions and convolutions in attention": "inkling_text inkling2_text",
    "convolutions in attention, and routers that are networks": "zaya",
    "gated latent attention with norms or sinks of its own": "dots3_note_text hy_v4",
    "an indexer of pooled keys beside attention to all of them": "glm5_next_text",
    "scales of the softmax of latent attention": "mistral_large4_text",
    "gates of the residual stream": "muse_spark_text doge",
}
_NOT_DECODERS = {
    "cross-attention (an encoder-decoder)": (
        "t5 mt5 umt5 longt5 switch_transformers t5gemma t5gemma2 bart mbart marian pegasus m2m_100"
        " nllb-moe led prophetnet blenderbot whisper speech_to_text seamless_m4t seamless_m4t_v2"
        " encoder-decoder mllama"
    ),
    "bidirectional attention (an encoder)": (
        "bert roberta xlm-roberta xlm-roberta-xl camembert distilbert albert electra deberta"
        " deberta-v2 mpnet modernbert nomic_bert eurobert esm longformer big_bird funnel layoutlm"
        " layoutlmv2 layoutlmv3 xlnet"
    ),
    "image or audio models without a language model": (
        "vit vit_mae vit_msn deit beit swin swinv2 convnext convnextv2 resnet regnet dinov2"
        " dinov3_vit clip siglip siglip2 detr segformer mask2former sam sam2 wav2vec2 wav2vec2-bert"
        " hubert wavlm encodec"
    ),
}
UNSUPPORTED = {
    model_type: missing
    for missing, model_types in {**_UNSUPPORTED_LAYERS, **_NOT_DECODERS}.items()
    for model_type in model_types.split()
}
"""What the cost model lacks for each family that it cannot describe, by model_type."""
_CURE = (
    "give the model's shape in explicit fields instead (num_layers, hidden_size, …), or its layers"
)
_EXPERT_COUNT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_UNSUPPORTED_KEYS = {
    "index_topk": "sparse attention chosen by an indexer",
    "linear_attn_config": "linear attention layers",
    "linear_num_value_heads": "linear attention layers",
    "mamba_d_state": "state-space (Mamba) layers",
    "ssm_state_size": "state-space (Mamba) layers",
    "lora_rank": "low-rank adapters",
    "hc_mult": "hyper-connections",
}
"""Keys by which a config adds what its family does not have."""
_NOT_A_DECODER = {
    "is_encoder_decoder": "cross-attention (an encoder-decoder)",
    "add_cross_attention": "cross-attention",
    "use_bidirectional_attention": "bidirectional attention",
}
_ON_IMAGES_ALONE = "vision"
"""What use_bidirectional_attention says of a model whose text is causal."""


def is_multimodal(config: Mapping[str, object]) -> bool:
    """Whether there are towers other than that of text, which `read` leaves out."""
    return _tower_key(config) is not None or config.get("model_type") in text_towers()


def read(config: Mapping[str, object], name: str | None = None) -> Architecture:
    """The architecture that a config.json describes. Its name is `name`, or else the config's own,
    or else its model_type. Raises Invalid, UnknownName or Unsupported, each with the key."""
    text = _text_tower(config)
    for key, missing in _NOT_A_DECODER.items():
        if text.get(key) != _ON_IMAGES_ALONE:
            text.refuse(key, missing)
    own = FAMILIES[text.model_type]
    for key, missing in _UNSUPPORTED_KEYS.items():
        if key not in own.described and (value := text.get(key)):
            raise Unsupported(text.where(key), shown(value), missing)
    own_name = config.get("_name_or_path")
    default = own_name if isinstance(own_name, str) and own_name else text.model_type
    return own.read(text.named(name or default))


def reads_tower(config: Mapping[str, object]) -> bool:
    """Whether `read_tower` knows the encoder of images of this config."""
    return _huggingface_vision.is_known(config)


def read_tower(config: Mapping[str, object], text: Architecture) -> _huggingface_vision.Tower:
    """The encoder of images beside a language model that `read` has read. Raises Unsupported where
    it is of a family that is not known."""
    return _huggingface_vision.read(config, text.hidden_size)


def family(config: Mapping[str, object]) -> str:
    """The model_type of the language model. Raises as `read` does."""
    return _text_tower(config).model_type


def rope_theta(config: Mapping[str, object]) -> float | None:
    """The base of rotary positions, where a config has one for all layers."""
    return _rotary_number(config, "rope_theta")


def rotary_share(config: Mapping[str, object]) -> float | None:
    """The share of a head that has rotary positions, where a config has one for all layers."""
    return _rotary_number(config, "partial_rotary_factor")


def rope_scaling(config: Mapping[str, object]) -> RopeScaling | None:
    """The stretching of rotary positions, where a config says it for all layers."""
    values = _text_tower(config).values
    for key in ("rope_parameters", "rope_scaling"):
        found = values.get(key)
        if isinstance(found, Mapping):
            return RopeScaling.of(found)
    return None


def norm_epsilon(config: Mapping[str, object]) -> float | None:
    """The number that norms add to the variance, where a config says it."""
    return _first_number(config, _NORM_EPSILONS)


def context_length(config: Mapping[str, object]) -> int | None:
    """The longest sequence that a model is made for, where a config says it."""
    length = _first_number(config, _CONTEXT_LENGTHS)
    return None if length is None or not length.is_integer() else int(length)


def _first_number(config: Mapping[str, object], keys: Sequence[str]) -> float | None:
    """The value of the first of some keys that a config has as a number."""
    values = _text_tower(config).values
    numbers = (values.get(key) for key in keys)
    is_number = (each for each in numbers if isinstance(each, (int, float)))
    found = next((each for each in is_number if not isinstance(each, bool)), None)
    return None if found is None else float(found)


def _rotary_number(config: Mapping[str, object], key: str) -> float | None:
    """A number that since transformers 5 is in `rope_parameters`, and was beside it before."""
    values = _text_tower(config).values
    parameters = values.get("rope_parameters")
    inner = parameters if isinstance(parameters, Mapping) else {}
    number = inner.get(key, values.get(key))
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    return float(number) if is_number else None


def has_positions(config: Mapping[str, object]) -> bool:
    """Whether attention has positions of any kind: some hybrids leave these to their
    recurrences."""
    text = _text_tower(config)
    return FAMILIES[text.model_type].has_positions(text)


def activation(config: Mapping[str, object]) -> str | None:
    """The activation function of networks, by the name that transformers has for it."""
    values = _text_tower(config).values
    keys = ("mlp_hidden_act", "hidden_activation", "hidden_act", "activation_function")
    found = next((values[key] for key in keys if values.get(key) is not None), None)
    return found if isinstance(found, str) else None


def is_quantized(config: Mapping[str, object]) -> bool:
    """Whether the file describes weights in a format for inference."""
    towers = (config.get(key) for key in _TEXT_TOWERS)
    return any(
        tower.get("quantization_config") is not None
        for tower in (config, *towers)
        if isinstance(tower, Mapping)
    )


def _tower_key(config: Mapping[str, object]) -> str | None:
    """The key of the object with the text tower; None where the config is that of a language
    model."""
    if config.get("model_type") in FAMILIES:
        return None
    return next((key for key in _TEXT_TOWERS if config.get(key) is not None), None)


def _text_tower(config: Mapping[str, object]) -> Config:
    """The config of the language model, which is the whole unless the model is multimodal."""
    return _text_tower_at(config, "")


def _text_tower_at(config: Mapping[str, object], path: str) -> Config:
    """The config of the language model in an object, to which `path` leads from the whole."""
    model_type = _model_type(config, path)
    if model_type in FAMILIES:
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
    key = key or _TEXT_TOWERS[0]
    outer = Config(config, model_type, path=path)
    tower = dict(outer.inner(key).values)
    if text_type and tower.get("model_type") is None:
        tower["model_type"] = text_type
    if outer.get("tie_word_embeddings") is not None:
        tower["tie_word_embeddings"] = outer.flag("tie_word_embeddings")
    return _text_tower_at(tower, f"{path}{key}.")


def _model_type(config: Mapping[str, object], path: str) -> str:
    value = config.get("model_type")
    where = f"{path}model_type"
    if not isinstance(value, str):
        raise Invalid(where, shown(value), "must be the name of a model family, such as llama")
    if missing := UNSUPPORTED.get(value):
        is_decoder = missing in _UNSUPPORTED_LAYERS
        raise Unsupported(where, value, f"{missing}; {_CURE}" if is_decoder else missing)
    return value


def _unknown_family(model_type: str, path: str) -> UnknownName:
    known = [*FAMILIES, *text_towers()]
    where = f"{path}model_type"
    return unknown_name(where, str(shown(model_type)), known, _CURE, what="a family that is read")
