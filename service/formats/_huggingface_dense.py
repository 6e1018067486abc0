"""The dense families, by `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from models.errors import Unsupported
from service.formats._huggingface_blocks import listed_layers
from service.formats._huggingface_config import Config
from service.formats._huggingface_family import Family, Norms, Refused
from service.formats._huggingface_parts import gated, heads, latent, plain
from service.formats._huggingface_patterns import (
    FULL,
    SLIDING,
    all_full,
    full_every,
    full_every_from_first,
    letters_or_period,
    num_layers,
    stated_windows,
    windows_from_layer,
    windows_in_all_layers,
)

_GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}
_BIASED = Norms(bias=True)
_BIASED_PARALLEL = Norms(num=1, bias=True, parallel=True)


def _assuming(**absent: object) -> Callable[[Config], Config]:
    return lambda cfg: cfg.assuming(**absent)


def _gpt_neo_windows(cfg: Config) -> Callable[[int], str]:
    kinds = cfg.words("attention_layers", num_layers(cfg))
    if not kinds:
        raise cfg.missing("attention_layers")
    if not set(kinds) <= {"global", "local"}:
        raise cfg.invalid("attention_layers", "must be made of global and local")
    return lambda index: SLIDING if kinds[index] == "local" else FULL


def _full_every_fourth_from_last(cfg: Config) -> Callable[[int], str]:
    last = num_layers(cfg) - 1
    return lambda index: SLIDING if (last - index) % 4 else FULL


def _stablelm_norms(cfg: Config) -> Norms:
    return _BIASED_PARALLEL if cfg.flag("use_parallel_residual") else _BIASED


def _gpt_neox_norms(cfg: Config) -> Norms:
    return Norms(bias=True, parallel=cfg.flag("use_parallel_residual"))


def _hyperclovax_norms(cfg: Config) -> Norms:
    return Norms(num=4 if cfg.flag("use_post_norm") else 2)


def _gpt_bigcode(cfg: Config) -> Config:
    """GPT-2 with one key-value head, unless `multi_query` is false."""
    return cfg.with_value("num_key_value_heads", 1) if cfg.flag("multi_query") else cfg


def _internlm3(cfg: Config) -> Config:
    """Files from before transformers 5 write qkv_bias and bias."""
    return cfg.respell(
        {
            common: other
            for common, other in (("attention_bias", "qkv_bias"), ("mlp_bias", "bias"))
            if cfg.is_written(other)
        }
    )


def _opt(cfg: Config) -> Config:
    hidden = cfg.size("hidden_size")
    if cfg.size("word_embed_proj_dim", hidden) != hidden:
        raise Unsupported(
            cfg.where("word_embed_proj_dim"),
            cfg.get("word_embed_proj_dim"),
            "embeddings of another width",
        )
    return cfg


def _falcon(cfg: Config) -> Config:
    """Falcon 7B has one key-value head."""
    one_head = cfg.flag("multi_query") and not cfg.flag("new_decoder_architecture")
    return cfg.with_value("num_kv_heads", 1) if one_head else cfg


def _falcon_norms(cfg: Config) -> Norms:
    """Falcon 7B has one norm a layer, the new decoder of 40B and 180B two, and the RW variants two
    in sequence."""
    parallel = cfg.flag("parallel_attn")
    num = 2
    if parallel:
        default = 2 if cfg.flag("new_decoder_architecture") else 1
        num = cfg.size("num_ln_in_parallel_attn", default, most=2)
    return Norms(num=num, bias=True, parallel=parallel)


def _mpt(cfg: Config) -> Config:
    inner = cfg.inner("attn_config")
    inner.refuse("alibi", "the learned positions of MPT without ALiBi", value=False)
    inner.refuse("qk_ln", "norms over all queries and keys")
    kv_heads = 1 if inner.word("attn_type", "multihead_attention") == "multiquery_attention" else 0
    kv_heads = inner.size("kv_n_heads", kv_heads or cfg.size("num_attention_heads"))
    width = cfg.size("hidden_size") * cfg.size("expansion_ratio", most=64)
    cfg = cfg.with_value("num_key_value_heads", kv_heads)
    return cfg.with_value("intermediate_size", width)


_APERTUS = Family(
    attention=heads(bias="attention_bias", qk_norm=True), mlp=plain(learned_activation=True)
)
_ERNIE = Family(attention=heads(bias="use_bias"), mlp=gated(bias="use_bias"))
_HUNYUAN = Family(
    attention=heads(bias="attention_bias", qk_norm=True),
    refused=(Refused("use_cla", "keys and values shared across layers"),),
)
_LLAMA = Family(attention=heads(bias="attention_bias"), mlp=gated(bias="mlp_bias"))
_MISTRAL = Family(kinds=windows_in_all_layers)
_QWEN2 = Family(attention=heads(bias=True, output_bias=False), kinds=windows_from_layer)
_QWEN3 = Family(attention=heads(bias="attention_bias", qk_norm=True), kinds=windows_from_layer)
_GEMMA = Family(attention=heads(bias="attention_bias"))
_GEMMA3 = Family(
    attention=heads(bias="attention_bias", qk_norm=True),
    kinds=full_every(6, "sliding_window_pattern"),
    norms=Norms(num=4),
)
_GLM = Family(attention=heads(bias="attention_bias", output_bias=False))
_GLM4 = replace(_GLM, norms=Norms(num=4))
_OLMO2 = Family(
    attention=heads(bias="attention_bias", qk_norm=True, qk_norm_all_heads=True),
    norms=Norms(behind=True),
)
_COHERE = Family(
    attention=heads(bias="attention_bias", qk_norm="use_qk_norm", qk_norm_all_heads=True),
    norms=Norms(num=1, parallel=True),
)
_EXAONE4 = Family(attention=heads(qk_norm=True), kinds=letters_or_period, norms=Norms(behind=True))
_GPT2 = Family(
    keys=_GPT2_KEYS,
    attention=heads(bias=True),
    mlp=plain(bias=True, times_hidden=4),
    norms=_BIASED,
    learned_positions="max_position_embeddings",
)
_GPTJ = Family(
    keys=_GPT2_KEYS,
    mlp=plain(bias=True, times_hidden=4),
    norms=_BIASED_PARALLEL,
    lm_head_bias=True,
)

FAMILIES: Mapping[str, Family] = {
    "apertus": _APERTUS,
    "apertus1p5_text": _APERTUS,
    "arcee": replace(_LLAMA, mlp=plain(bias="mlp_bias")),
    "biogpt": Family(
        attention=heads(bias=True),
        mlp=plain(bias=True),
        norms=_BIASED,
        learned_positions="max_position_embeddings",
        more_positions=2,
    ),
    "codegen": _GPTJ,
    "cohere": _COHERE,
    "cohere2": replace(
        _COHERE,
        attention=heads(bias="attention_bias"),
        kinds=full_every(4, "sliding_window_pattern"),
    ),
    "cosmos3_edge_text": replace(_LLAMA, mlp=plain(bias="mlp_bias")),
    "cwm": Family(mlp=gated(bias="mlp_bias"), kinds=full_every_from_first(4)),
    "emu3_text_model": replace(_LLAMA, prepare=_assuming(attention_bias=False, mlp_bias=False)),
    "ernie4_5": _ERNIE,
    "exaone": replace(_LLAMA, keys={"num_hidden_layers": "num_layers"}),
    "exaone4": _EXAONE4,
    "exaone4_5_text": _EXAONE4,
    "falcon": Family(
        keys={"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
        prepare=_falcon,
        attention=heads(bias="bias"),
        mlp=plain(bias="bias", times_hidden=4),
        norms=_falcon_norms,
    ),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, kinds=full_every(2), norms=Norms(num=4)),
    "gemma3_text": _GEMMA3,
    "glm": _GLM,
    "glm4": _GLM4,
    "glm_ocr_text": replace(_GLM4, attention=heads()),
    "glm4v_text": replace(_GLM4, attention=heads(bias=True, output_bias=False)),
    "gpt2": _GPT2,
    "gpt_bigcode": replace(_GPT2, prepare=_gpt_bigcode),
    "gpt_neo": Family(
        keys={
            "num_hidden_layers": "num_layers",
            "num_attention_heads": "num_heads",
            "sliding_window": "window_size",
        },
        attention=heads(output_bias=True),
        kinds=_gpt_neo_windows,
        mlp=plain(bias=True, times_hidden=4),
        norms=_BIASED,
        learned_positions="max_position_embeddings",
    ),
    "gpt_neox": Family(
        attention=heads(bias="attention_bias"), mlp=plain(bias=True), norms=_gpt_neox_norms
    ),
    "gptj": _GPTJ,
    "granite": _LLAMA,
    "granite4_vision_text": _LLAMA,
    "granite_docling_text": _LLAMA,
    "granite_swa": replace(
        _LLAMA, attention=heads(bias="attention_bias", sinks=True), kinds=full_every_from_first(4)
    ),
    "helium": replace(_LLAMA, attention=heads(bias="attention_bias", output_bias=False)),
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_vl_text": _HUNYUAN,
    "hyperclovax": replace(_LLAMA, norms=_hyperclovax_norms),
    "internlm": Family(attention=heads(bias="bias")),
    "internlm2": Family(attention=heads(bias="bias")),
    "internlm3": replace(_LLAMA, prepare=_internlm3),
    "iquestcoder": _LLAMA,
    "jais2": Family(
        attention=heads(bias="attention_bias"), mlp=plain(bias="mlp_bias"), norms=_BIASED
    ),
    "llama": _LLAMA,
    "mimo": _QWEN2,
    "minicpm3": Family(attention=latent, mlp=gated(bias="mlp_bias")),
    "ministral": _MISTRAL,
    "ministral3": _MISTRAL,
    "mistral": replace(_MISTRAL, prepare=_assuming(sliding_window=4096)),
    "mpt": Family(
        keys={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
        },
        prepare=_mpt,
        refused=(Refused("no_bias", "the biases of MPT", False),),
        mlp=plain(),
    ),
    "nemotron": Family(
        attention=heads(bias="attention_bias"), mlp=plain(bias="mlp_bias"), norms=_BIASED
    ),
    "muse_glimmer_text": Family(
        refused=(Refused("attention_bias", "biases of attention beside a gate that has none"),),
        attention=heads(output_gate=True),
        kinds=_full_every_fourth_from_last,
        norms=Norms(num=4),
    ),
    "nanochat": Family(
        attention=heads(bias="attention_bias"), mlp=plain(), norms=Norms(weight=False)
    ),
    "nemotron-nas": Family(listed=listed_layers),
    "olmo": Family(attention=heads(bias="attention_bias"), norms=Norms(weight=False)),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, kinds=full_every(4)),
    "opt": Family(
        keys={"intermediate_size": "ffn_dim"},
        prepare=_opt,
        refused=(
            Refused("do_layer_norm_before", "norms behind the blocks", False),
            Refused("layer_norm_elementwise_affine", "norms without weights", False),
            Refused("_remove_final_layer_norm", "a stack without a final norm"),
        ),
        attention=heads(bias="enable_bias"),
        mlp=plain(bias="enable_bias"),
        norms=_BIASED,
        learned_positions="max_position_embeddings",
        more_positions=2,
    ),
    "paddleocr_vl_text": _ERNIE,
    "phi": Family(
        refused=(Refused("qk_layernorm", "norms with biases on queries and keys"),),
        attention=heads(bias=True),
        mlp=plain(bias=True),
        norms=_BIASED_PARALLEL,
        lm_head_bias=True,
    ),
    "phi3": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen2_5_omni_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_vl_text": replace(_QWEN3, kinds=all_full),
    "seed_oss": Family(
        attention=heads(bias="attention_bias", output_bias="attention_out_bias"),
        mlp=gated(bias="mlp_bias"),
    ),
    "smollm3": replace(_LLAMA, kinds=stated_windows),
    "stablelm": Family(
        attention=heads(
            bias="use_qkv_bias",
            output_bias=False,
            qk_norm="qk_layernorm",
            qk_norm_all_heads=True,
        ),
        norms=_stablelm_norms,
    ),
    "starcoder2": Family(
        attention=heads(bias="use_bias"),
        kinds=windows_in_all_layers,
        mlp=plain(bias="use_bias"),
        norms=_BIASED,
    ),
    "vaultgemma": replace(_GEMMA, kinds=full_every(2)),
    "youtu": Family(attention=latent),
}
