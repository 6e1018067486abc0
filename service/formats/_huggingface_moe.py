"""The mixture-of-experts families, by `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from models.errors import Unsupported
from models.spec.attention import Attention
from models.spec.feed_forward import Moe
from service.formats._huggingface_config import MAX_LAYERS, Config, shown
from service.formats._huggingface_family import Family, Norms, Refused
from service.formats._huggingface_parts import (
    experts,
    gated,
    heads,
    latent,
)
from service.formats._huggingface_patterns import (
    CHUNKED,
    FULL,
    SLIDING,
    all_full,
    all_sparse,
    deepseek_sparse,
    full_every,
    full_every_from_first,
    letters_or_period,
    num_layers,
    qwen_sparse,
    sparse_after_first,
    sparse_from,
    stated_windows,
    windows_from_layer,
    windows_in_all_layers,
)

_EXPERT_BIASES = Refused("mlp_bias", "biases of experts without one of the router")
_GATE_BIASES = Refused("attention_bias", "biases of attention beside a gate that has none")
_DENSE_BIASES = "biases of the dense layers alone"


def _dbrx(cfg: Config) -> Config:
    """Attention and experts have objects of their own. The tie_word_embeddings in those mean
    nothing."""
    kv_heads = cfg.inner("attn_config").size("kv_n_heads")
    return cfg.with_value("num_key_value_heads", kv_heads)


def _dbrx_experts(cfg: Config) -> Moe:
    part = experts(count="moe_num_experts", top_k="moe_top_k", width="ffn_hidden_size")
    return part(cfg.inner("ffn_config"))


def _latent_or_heads(cfg: Config, kind: str) -> Attention:
    """DeepSeek-VL2's small towers have no latent attention."""
    part = latent if cfg.flag("use_mla", True) else heads(bias="attention_bias")
    return part(cfg, kind)


def _llama4_kinds(cfg: Config) -> Callable[[int], str]:
    """The layers with rotary embedding are the ones with chunked attention."""
    if cfg.size_or_none("attention_chunk_size") is None:
        return lambda _: FULL
    period = cfg.size("no_rope_layer_interval", 4)
    rotary = cfg.switches("no_rope_layers", num_layers(cfg))
    return lambda index: CHUNKED if (rotary[index] if rotary else (index + 1) % period) else FULL


def _llama4_sparse(cfg: Config) -> Callable[[int], bool]:
    if cfg.get("moe_layers") is not None:
        chosen = cfg.indices("moe_layers", num_layers(cfg))
        return lambda index: index in chosen
    step = cfg.size("interleave_moe_layer_step")
    return lambda index: (index + 1) % step == 0


def _ernie_sparse(cfg: Config) -> Callable[[int], bool]:
    """From layer moe_layer_start_index to layer moe_layer_end_index (-1: the last) every
    moe_layer_interval-th is sparse."""
    last = num_layers(cfg) - 1
    end = last
    if cfg.get("moe_layer_end_index") not in (None, -1):
        end = cfg.count("moe_layer_end_index", most=MAX_LAYERS)
    start = cfg.count("moe_layer_start_index")
    interval = cfg.size("moe_layer_interval", 1)
    return lambda index: start <= index <= end and (index + 1) % interval == 0


def _minimax_m2(cfg: Config) -> Config:
    """The published file switches on modules of multi-token prediction, of which neither
    transformers nor the published weights have any: they are left out."""
    if not all(cfg.switches("attn_type_list", num_layers(cfg))):
        raise Unsupported(cfg.where("attn_type_list"), 0, "linear (lightning) attention layers")
    if cfg.word("qk_norm_type", "per_layer") != "per_layer":
        raise Unsupported(cfg.where("qk_norm_type"), cfg.get("qk_norm_type"), "norms of this kind")
    if width := cfg.count("shared_intermediate_size", 0):
        raise Unsupported(
            cfg.where("shared_intermediate_size"), width, "shared experts of this family"
        )
    return cfg.assuming(use_qk_norm=True)


def _same_in_all_layers(*keys: str) -> Callable[[Config], Config]:
    """Reads a list with one number for each layer as that number, where they are all the same."""

    def prepare(cfg: Config) -> Config:
        for key in keys:
            value = cfg.get(key)
            if isinstance(value, list) and value:
                if any(one != value[0] for one in value):
                    missing = "experts that differ from layer to layer"
                    raise Unsupported(cfg.where(key), shown(value), missing)
                cfg = cfg.with_value(key, value[0])
        return cfg

    return prepare


def _flint_kinds(cfg: Config) -> Callable[[int], str]:
    """The first two layers, every fourth and the last see the whole sequence."""
    last = num_layers(cfg) - 1
    return lambda index: FULL if index < 2 or index % 4 == 1 or index == last else SLIDING


def _flint_sparse(cfg: Config) -> Callable[[int], bool]:
    """Layers but the first two, unless `mlp_only_layers` says which."""
    return qwen_sparse(cfg.assuming(mlp_only_layers=[0, 1]))


def _cohere2_kinds(cfg: Config) -> Callable[[int], str]:
    """The first `first_k_dense_replace` layers have a period of their own, and the count of the
    others begins behind them."""
    dense = cfg.count("first_k_dense_replace", 0)
    of_dense = full_every(1, "prefix_dense_sliding_window_pattern")(cfg)
    of_others = full_every(4, "sliding_window_pattern")(cfg)
    return lambda index: of_dense(index) if index < dense else of_others(index - dense)


def _cohere2_sparse(cfg: Config) -> Callable[[int], bool]:
    dense = cfg.count("first_k_dense_replace", 0)
    return lambda index: index >= dense


def _longcat_flash(cfg: Config) -> Config:
    """A layer has attention and a dense MLP twice, and experts beside all but its first attention.
    It is read as two layers: the experts stand beside the first MLP, like beside a shared expert.
    """
    return cfg.with_value("num_hidden_layers", 2 * cfg.size("num_layers", most=MAX_LAYERS // 2))


def _longcat_flash_sparse(cfg: Config) -> Callable[[int], bool]:
    return lambda index: index % 2 == 0


def _longcat_flash_experts(cfg: Config) -> Moe:
    """A token goes to as many experts that compute as it would where all are chosen equally often,
    to which the model is balanced (arXiv 2509.01322 §2.1)."""
    zero_experts = cfg.count("zero_expert_num")
    part = experts(
        count="n_routed_experts",
        top_k="moe_topk",
        width="expert_ffn_hidden_size",
        shared_width="ffn_hidden_size",
        selection_bias=True,
    )
    found = part(cfg)
    computing = found.num_experts / (found.num_experts + zero_experts)
    return replace(
        found,
        experts_per_token=max(round(found.experts_per_token * computing), 1),
        zero_experts=zero_experts,
    )


_OF_INTERMEDIATE_SIZE = experts(width="intermediate_size")
_SHARED = experts(shared="n_shared_experts")
_BALANCED = experts(shared="n_shared_experts", selection_bias=True)
_DEEPSEEK_V3 = Family(
    refused=(Refused("mlp_bias", _DENSE_BIASES),),
    attention=latent,
    experts=_BALANCED,
    sparse=deepseek_sparse,
)
_DEEPSEEK_MOE = replace(_DEEPSEEK_V3, attention=heads(bias="attention_bias"), experts=_SHARED)
_GLM4_MOE = Family(
    attention=heads(bias="attention_bias", output_bias=False, qk_norm="use_qk_norm"),
    experts=_BALANCED,
    sparse=deepseek_sparse,
)
_GRANITE = Family(attention=heads(bias="attention_bias"), experts=_OF_INTERMEDIATE_SIZE)
_GRANITE_SHARED = replace(
    _GRANITE, experts=experts(width="intermediate_size", shared_width="shared_intermediate_size")
)
_OLMOE = Family(
    attention=heads(bias="attention_bias", qk_norm=True, qk_norm_all_heads=True),
    experts=_OF_INTERMEDIATE_SIZE,
)
_QWEN3_MOE = Family(
    attention=heads(bias="attention_bias", qk_norm=True),
    kinds=stated_windows,
    experts=experts(),
    sparse=qwen_sparse,
)
_BAILING = Family(
    attention=heads(bias="use_qkv_bias", output_bias="use_bias"),
    experts=_SHARED,
    sparse=sparse_from("first_k_dense_replace"),
)


FAMILIES: Mapping[str, Family] = {
    "afmoe": Family(
        refused=(_GATE_BIASES,),
        attention=heads(qk_norm=True, output_gate=True),
        kinds=full_every(4, "global_attn_every_n_layers"),
        experts=experts(
            shared="num_shared_experts", selection_bias=True, selection_bias_is_parameter=True
        ),
        sparse=sparse_from("num_dense_layers"),
        norms=Norms(num=4),
    ),
    "aria_text": Family(
        attention=heads(bias="attention_bias"),
        refused=(_EXPERT_BIASES,),
        experts=experts(
            count="moe_num_experts",
            top_k="moe_topk",
            width="intermediate_size",
            shared="moe_num_shared_experts",
        ),
    ),
    "axk1": replace(
        _DEEPSEEK_V3,
        prepare=lambda cfg: cfg.assuming(first_k_dense_replace=1),
        experts_normed=True,
    ),
    "bailing_moe": _BAILING,
    "bailing_moe_v2": replace(
        _BAILING,
        attention=heads(bias="use_qkv_bias", output_bias="use_bias", qk_norm="use_qk_norm"),
        experts=experts(shared="n_shared_experts", selection_bias="moe_router_enable_expert_bias"),
    ),
    "cohere2_moe": Family(
        attention=heads(bias="attention_bias"),
        kinds=_cohere2_kinds,
        mlp=gated(width="prefix_dense_intermediate_size"),
        experts=experts(width="intermediate_size", shared="n_shared_experts"),
        sparse=_cohere2_sparse,
        norms=Norms(num=1, parallel=True),
    ),
    "dbrx": Family(
        keys={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
        },
        prepare=_dbrx,
        experts=_dbrx_experts,
    ),
    "deepseek": _DEEPSEEK_MOE,
    "deepseek_ocr2_text": _DEEPSEEK_MOE,
    "deepseek_v2": replace(_DEEPSEEK_V3, experts=_SHARED, attention=_latent_or_heads),
    "deepseek_v3": _DEEPSEEK_V3,
    "dots1": Family(
        attention=heads(bias="attention_bias", qk_norm=True),
        kinds=windows_from_layer,
        experts=_BALANCED,
        sparse=deepseek_sparse,
    ),
    "ernie4_5_moe": Family(
        refused=(Refused("use_bias", _DENSE_BIASES),),
        experts=experts(
            count="moe_num_experts",
            top_k="moe_k",
            shared="moe_num_shared_experts",
            selection_bias=True,
            selection_bias_is_parameter=True,
        ),
        sparse=_ernie_sparse,
    ),
    "exaone_moe": Family(
        attention=heads(qk_norm=True),
        kinds=letters_or_period,
        experts=_BALANCED,
        sparse=sparse_from("first_k_dense_replace"),
    ),
    "flex_olmo": replace(_OLMOE, norms=Norms(behind=True)),
    "flint": Family(
        attention=heads(bias="attention_bias", qk_norm=True, sinks=True),
        kinds=_flint_kinds,
        experts=experts(shared_width="shared_expert_intermediate_size"),
        sparse=_flint_sparse,
    ),
    "glm4_moe": _GLM4_MOE,
    "glm4_moe_lite": replace(_DEEPSEEK_V3, sparse=sparse_after_first),
    "glm4v_moe_text": replace(_GLM4_MOE, attention=heads(bias="attention_bias", output_bias=False)),
    "gpt_oss": Family(
        attention=heads(bias="attention_bias", sinks=True),
        kinds=full_every(2),
        experts=experts(count="num_local_experts", width="intermediate_size", bias=True),
    ),
    "granitemoe": _GRANITE,
    "granitemoe_swa": replace(
        _GRANITE_SHARED,
        attention=heads(bias="attention_bias", sinks=True),
        kinds=full_every_from_first(4),
    ),
    "granitemoeshared": _GRANITE_SHARED,
    "hunyuan_v1_moe": Family(
        prepare=_same_in_all_layers("num_experts", "moe_topk"),
        refused=(Refused("use_cla", "keys and values shared across layers"),),
        attention=heads(bias="attention_bias", qk_norm=True),
        experts=experts(top_k="moe_topk", width="intermediate_size", shared=1),
    ),
    "hy_v3": Family(
        refused=(Refused("mlp_bias", _DENSE_BIASES),),
        attention=heads(bias="attention_bias", qk_norm=True),
        experts=_BALANCED,
        sparse=sparse_after_first,
    ),
    "kimi_k2": _DEEPSEEK_V3,
    "kolibri1": Family(
        attention=heads(qk_norm=True),
        kinds=full_every(5),
        experts=experts(shared_width="shared_expert_intermediate_size"),
        norms=Norms(num=4),
    ),
    "llama4_text": Family(
        attention=heads(bias="attention_bias"),
        kinds=_llama4_kinds,
        mlp=gated(width="intermediate_size_mlp"),
        experts=experts(count="num_local_experts", width="intermediate_size", shared=1),
        sparse=_llama4_sparse,
    ),
    "longcat_flash": Family(
        prepare=_longcat_flash,
        attention=latent,
        mlp=gated(width="ffn_hidden_size"),
        experts=_longcat_flash_experts,
        sparse=_longcat_flash_sparse,
    ),
    "mellum": replace(_QWEN3_MOE, kinds=all_full, sparse=all_sparse),
    "mistral4": replace(_DEEPSEEK_V3, experts=_SHARED),
    "minimax_m2": Family(
        prepare=_minimax_m2,
        attention=heads(qk_norm="use_qk_norm", qk_norm_all_heads=True),
        experts=experts(count="num_local_experts", width="intermediate_size", selection_bias=True),
    ),
    "mixtral": Family(
        kinds=windows_in_all_layers,
        experts=experts(count="num_local_experts", width="intermediate_size"),
    ),
    "olmoe": _OLMOE,
    "phimoe": Family(
        attention=heads(bias="attention_bias"),
        kinds=windows_in_all_layers,
        experts=experts(count="num_local_experts", width="intermediate_size"),
        norms=Norms(bias=True),
        lm_head_bias="lm_head_bias",
    ),
    "qwen2_moe": Family(
        attention=heads(bias="qkv_bias", output_bias=False),
        kinds=stated_windows,
        experts=experts(shared_width="shared_expert_intermediate_size", shared_gate=True),
        sparse=qwen_sparse,
    ),
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_omni_moe_text": replace(_QWEN3_MOE, kinds=all_full),
    "qwen3_vl_moe_text": replace(_QWEN3_MOE, kinds=all_full),
    "sarvam_mla": _DEEPSEEK_V3,
    "sarvam_moe": _GLM4_MOE,
    "solar_open": Family(
        attention=heads(bias="attention_bias", output_bias=False), experts=_BALANCED
    ),
}
