"""Reads a Hugging Face `config.json` of a decoder-only language model: its layers, as the model's
own family means them.

Nothing is guessed. A `model_type` that no reader knows is refused, and so is a config that lacks a
key its family needs. A class default of transformers stands in only where an absent key has that
one meaning. Of a multimodal model the text tower is read, and its vision tower is left out.

To add a family, read its modelling code in transformers, then
1. write a function from Config to Architecture in `_huggingface_dense` or `_huggingface_moe`, out
   of the parts in `_huggingface_parts` (`qwen3` is a short example), and enter it in READERS there
   under its `model_type`;
2. for a multimodal model, enter its outer `model_type` in WRAPPERS here;
3. call `cfg.refuse` for every switch that adds what the cost model does not describe, and test that
   a published config gives the published number of parameters.
A family that the cost model cannot describe goes into _UNSUPPORTED_LAYERS, with what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from models.errors import Invalid, UnknownName, Unsupported
from models.spec.architecture import Architecture
from service.formats import _huggingface_dense, _huggingface_moe
from service.formats._huggingface_config import Config, shown

FAMILIES = {**_huggingface_dense.READERS, **_huggingface_moe.READERS}


@dataclass(frozen=True)
class Wrapper:
    """A multimodal config around that of a text tower."""

    text_type: str | None = None
    """The tower's model_type, where the tower itself does not say."""
    omitted: Mapping[str, object] = field(default_factory=dict)
    """Keys that published files leave out because they equal the class default."""


WRAPPERS = {
    "deepseek_vl_v2": Wrapper(),
    "gemma3": Wrapper(
        "gemma3_text",
        {
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
        },
    ),
    "internvl": Wrapper(),
    "internvl_chat": Wrapper(),
    "kimi_k25": Wrapper("kimi_k2"),
    "kimi_vl": Wrapper(),
    "llama4": Wrapper("llama4_text"),
    "mistral3": Wrapper("mistral"),
    "qwen2_5_vl": Wrapper("qwen2_5_vl_text"),
    "qwen2_vl": Wrapper("qwen2_vl_text"),
    "qwen3_vl": Wrapper("qwen3_vl_text"),
    "qwen3_vl_moe": Wrapper("qwen3_vl_moe_text"),
}
_TEXT_TOWERS = ("text_config", "language_config", "llm_config")

_UNSUPPORTED_LAYERS = {
    "linear attention (gated delta net) layers": (
        "qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text olmo_hybrid bailing_hybrid"
    ),
    "linear attention (Kimi delta attention) layers": "kimi_linear kimi_k3",
    "linear (lightning) attention layers": "minimax minimax_text_01 minimax_m1",
    "sparse attention chosen by an indexer": "deepseek_v32 glm_moe_dsa minimax_m3 minimax_m3_vl",
    "compressed sparse attention and hyper-connections": "deepseek_v4",
    "state-space (Mamba) layers": (
        "mamba mamba2 falcon_mamba falcon_h1 jamba bamba zamba zamba2 nemotron_h granitemoehybrid"
        " plamo2"
    ),
    "recurrent layers": "rwkv rwkv5 rwkv6 rwkv7 recurrent_gemma xlstm",
    "short-convolution layers": "lfm2 lfm2_moe lfm2_vl",
    "layers whose attention or MLP is left out or resized one by one": "nemotron-nas deci",
    "per-layer embeddings and alternating updates": "gemma3n gemma3n_text",
    "key-value heads and attention sinks that differ from layer to layer": (
        "mimo_v2 mimo_v2_flash mimo_v2_pro"
    ),
    "a dense MLP beside the experts and per-kind head sizes": "gemma4 gemma4_text gemma4_unified",
    "attention heads that differ from layer to layer, with gates": (
        "step3 step3_text step3_vl step3p5 step3p7"
    ),
    "per-layer expert lists and keys shared across layers": "hunyuan_v1_moe hunyuan",
    "two attention blocks a layer and experts that compute nothing": "longcat_flash",
    "norms without weights": "olmo",
    "a norm after the embedding": "bloom",
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
    for missing, model_types in _UNSUPPORTED_LAYERS.items()
    for model_type in model_types.split()
}
"""What the cost model lacks for each family that it cannot describe, by model_type."""
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
"""Keys by which a config adds what no family here has."""
_NOT_A_DECODER = {
    "is_encoder_decoder": "cross-attention (an encoder-decoder)",
    "add_cross_attention": "cross-attention",
    "use_bidirectional_attention": "bidirectional attention",
}


def is_multimodal(config: Mapping[str, object]) -> bool:
    """Whether `read` leaves out towers other than that of text."""
    return config.get("model_type") in WRAPPERS


def read(config: Mapping[str, object], name: str | None = None) -> Architecture:
    """The architecture that a config.json describes. Its name is `name`, or else the config's own,
    or else its model_type. Raises Invalid, UnknownName or Unsupported, each with the key."""
    text = _text_tower(config)
    for key, missing in _NOT_A_DECODER.items():
        text.refuse(key, missing)
    for key, missing in _UNSUPPORTED_KEYS.items():
        if value := text.get(key):
            raise Unsupported(text.where(key), shown(value), missing)
    if text.model_type in _huggingface_dense.READERS:
        _require_dense(text)
    own_name = config.get("_name_or_path")
    default = own_name if isinstance(own_name, str) and own_name else text.model_type
    read_family = FAMILIES[text.model_type]
    return read_family(text.named(name or default))


def family(config: Mapping[str, object]) -> str:
    """The model_type of the language model. Raises as `read` does."""
    return _text_tower(config).model_type


def rope_theta(config: Mapping[str, object]) -> float | None:
    """The base of rotary positions, where a config has one for all layers: `rope_theta`, which
    since transformers 5 is in `rope_parameters`."""
    values = _text_tower(config).values
    parameters = values.get("rope_parameters")
    inner = parameters if isinstance(parameters, Mapping) else {}
    theta = inner.get("rope_theta", values.get("rope_theta"))
    is_number = isinstance(theta, (int, float)) and not isinstance(theta, bool)
    return float(theta) if is_number else None


def is_quantized(config: Mapping[str, object]) -> bool:
    """Whether the file describes weights in a format for inference."""
    towers = (config.get(key) for key in _TEXT_TOWERS)
    return any(
        tower.get("quantization_config") is not None
        for tower in (config, *towers)
        if isinstance(tower, Mapping)
    )


def _require_dense(text: Config) -> None:
    """Raises Unsupported where a config of a dense family has experts."""
    for key in _EXPERT_COUNT_KEYS:
        if (count := text.get(key)) is not None and count not in (0, 1):
            raise Unsupported(
                text.where(key), shown(count), f"experts in the dense family {text.model_type}"
            )


def _text_tower(config: Mapping[str, object]) -> Config:
    """The config of the language model, which is the whole unless the model is multimodal."""
    outer_type = _model_type(config, "model_type", {*FAMILIES, *WRAPPERS})
    if outer_type not in WRAPPERS:
        return Config(config, outer_type)
    wrapper = WRAPPERS[outer_type]
    outer = Config(config, outer_type)
    key = next((key for key in _TEXT_TOWERS if config.get(key) is not None), _TEXT_TOWERS[0])
    if wrapper.text_type and config.get(key) is None and "hidden_size" in config:
        # Older files have the fields of the text tower beside the object of the vision tower.
        text_fields = {name: value for name, value in config.items() if name != "vision_config"}
        return Config({**text_fields, "model_type": wrapper.text_type}, wrapper.text_type)
    values = {"model_type": wrapper.text_type, **wrapper.omitted, **outer.inner(key).values}
    if outer.get("tie_word_embeddings") is not None:
        values["tie_word_embeddings"] = outer.flag("tie_word_embeddings")
    return Config(values, _model_type(values, f"{key}.model_type", set(FAMILIES)), path=f"{key}.")


def _model_type(config: Mapping[str, object], where: str, known: set[str]) -> str:
    value = config.get("model_type")
    if not isinstance(value, str):
        raise Invalid(where, shown(value), "must be the name of a model family")
    if value in UNSUPPORTED:
        raise Unsupported(where, value, UNSUPPORTED[value])
    if value not in known:
        raise UnknownName(where, str(shown(value)), known)
    return value
