"""The mixture-of-experts families, by `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from models.errors import Unsupported
from models.spec.attention import Attention
from models.spec.feed_forward import Moe
from service.formats._huggingface_config import Config, shown
from service.formats._huggingface_family import Family, Norms, Refused, mtp_layers
from service.formats._huggingface_parts import (
    AttentionPart,
    experts,
    gated,
    head_counts,
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
        end = cfg.count("moe_layer_end_index", most=last)
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


def _mimo_v2(cfg: Config) -> Config:
    """Older files write 0 for full attention and 1 for windows, and widths of windowed layers of
    their own."""
    for key in ("swa_num_attention_heads", "swa_head_dim", "swa_v_head_dim"):
        common = key.removeprefix("swa_")
        if cfg.get(key) is not None and cfg.size(key) != cfg.size(common):
            rule = f"must be {cfg.where(common)} = {cfg.size(common)}"
            raise cfg.invalid(key, rule)
    return cfg


def _mimo_v2_kinds(cfg: Config) -> Callable[[int], str]:
    """The first layer, every sixth and the last in older files see the whole sequence."""
    windowed = cfg.switches("hybrid_layer_pattern", num_layers(cfg))
    if windowed:
        return lambda index: SLIDING if windowed[index] else FULL
    return lambda index: SLIDING if index and (index + 1) % 6 else FULL


def _mimo_v2_heads(cfg: Config, kind: str) -> Attention:
    """Windowed layers have twice the key-value heads, and sinks."""
    num_heads, kv_heads, head_dim = head_counts(cfg)
    windowed = kind == SLIDING
    if windowed:
        kv_heads = cfg.size("swa_num_key_value_heads", 2 * kv_heads)
    sinks = (
        ("add_swa_attention_sink_bias", True)
        if windowed
        else ("add_full_attention_sink_bias", False)
    )
    return Attention(
        num_heads=num_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=cfg.size("v_head_dim"),
        qkv_bias=cfg.flag("attention_bias"),
        sinks=cfg.flag(*sinks),
    )


def _mimo_v2_sparse(cfg: Config) -> Callable[[int], bool]:
    switches = cfg.switches("moe_layer_freq", num_layers(cfg))
    return (lambda index: switches[index]) if switches else sparse_after_first(cfg)


def _gemma4(cfg: Config) -> Config:
    """Files of transformers 5.20 and later have the head size and key-value heads of layers with
    full attention in an object for each of these layers."""
    cfg = cfg.assuming(global_head_dim=512, num_global_key_value_heads=None)
    if cfg.get("hidden_size_per_layer_input"):
        value = cfg.size("hidden_size_per_layer_input")
        raise Unsupported(
            cfg.where("hidden_size_per_layer_input"),
            value,
            "embeddings of their own in every layer",
        )
    if count := cfg.count("num_kv_shared_layers", 0):
        missing = "keys and values shared across layers"
        raise Unsupported(cfg.where("num_kv_shared_layers"), count, missing)
    overrides = cfg.get("per_layer_config")
    if not isinstance(overrides, Mapping) or not overrides:
        return cfg
    first = next(iter(overrides.values()))
    if not isinstance(first, Mapping) or any(one != first for one in overrides.values()):
        raise Unsupported(
            cfg.where("per_layer_config"), shown(overrides), "layers that differ within a kind"
        )
    cfg = cfg.with_value("global_head_dim", first.get("head_dim"))
    return cfg.with_value("num_global_key_value_heads", first.get("num_key_value_heads"))


def _gemma4_kinds(cfg: Config) -> Callable[[int], str]:
    last = num_layers(cfg) - 1
    return lambda index: FULL if index == last or (index + 1) % 6 == 0 else SLIDING


def _gemma4_heads(cfg: Config, kind: str) -> Attention:
    """Layers with full attention have larger heads, and may have fewer key-value heads and values
    that are the keys."""
    if kind != FULL:
        return _GEMMA4_HEADS(cfg, kind)
    if (head_dim := cfg.get("global_head_dim")) is not None:
        cfg = cfg.with_value("head_dim", head_dim)
    shared = cfg.flag("attention_k_eq_v")
    if shared and (kv_heads := cfg.get("num_global_key_value_heads")) is not None:
        cfg = cfg.with_value("num_key_value_heads", kv_heads)
    return replace(_GEMMA4_HEADS(cfg, kind), values_are_keys=shared)


def _gemma4_experts(cfg: Config) -> Moe:
    """The dense MLP stands beside the experts, like a shared expert."""
    part = experts(top_k="top_k_experts", shared_width="intermediate_size")
    return replace(part(cfg), router_scales=True)


def _gemma4_sparse(cfg: Config) -> Callable[[int], bool]:
    has_experts = cfg.flag("enable_moe_block", False)
    return lambda _: has_experts


def _gemma4_norms(cfg: Config) -> Norms:
    """Experts and the dense MLP beside them have a norm each behind them, and the experts one in
    front."""
    return Norms(num=7 if cfg.flag("enable_moe_block", False) else 4)


def _step(cfg: Config) -> Config:
    """Files from before transformers 5 have lists that go on with the layers of multi-token
    prediction, the sparse layers as a text, and heads of windowed layers in an object."""
    count = num_layers(cfg)
    for key in ("layer_types", "mlp_layer_types"):
        value = cfg.get(key)
        if isinstance(value, list) and len(value) == count + mtp_layers(cfg):
            cfg = cfg.with_value(key, value[:count])
    setting = "attention_other_setting"
    if cfg.get("num_sliding_attention_heads") is None and cfg.get(setting) is not None:
        num_heads = cfg.inner(setting).size("num_attention_heads")
        cfg = cfg.with_value("num_sliding_attention_heads", num_heads)
    return cfg


def _step_sparse(cfg: Config) -> Callable[[int], bool]:
    """Layers from the fourth on, unless `moe_layers_enum` lists them."""
    written = cfg.get("moe_layers_enum")
    if not isinstance(written, str):
        first = cfg.count("first_k_dense_replace", 3)
        return lambda index: index >= first
    try:
        chosen = {int(index) for index in written.split(",")}
    except ValueError:
        raise cfg.invalid("moe_layers_enum", "must be numbers with commas between them") from None
    return lambda index: index in chosen


def _heads_of_windows(part: AttentionPart) -> AttentionPart:
    """Layers with windows may have another number of heads."""

    def read(cfg: Config, kind: str) -> Attention:
        num_heads = cfg.get("num_sliding_attention_heads")
        if kind == SLIDING and num_heads is not None:
            cfg = cfg.with_value("num_attention_heads", num_heads)
        return part(cfg, kind)

    return read


def _laguna(cfg: Config) -> Config:
    """The heads of each layer are in a list."""
    key = "num_attention_heads_per_layer"
    num_heads = cfg.get(key)
    if num_heads is None:
        return cfg
    kinds = cfg.words("layer_types", num_layers(cfg)) or [FULL] * num_layers(cfg)
    if not isinstance(num_heads, list) or len(num_heads) != len(kinds):
        raise cfg.invalid(key, f"must be a list of {len(kinds)}")
    found = dict(zip(kinds, num_heads, strict=True))
    if any(found[kind] != number for kind, number in zip(kinds, num_heads, strict=True)):
        raise Unsupported(cfg.where(key), shown(num_heads), "heads that differ within a kind")
    cfg = cfg.with_value("num_sliding_attention_heads", found.get(SLIDING))
    return cfg.with_value("num_attention_heads", found.get(FULL, cfg.get("num_attention_heads")))


def _laguna_heads(cfg: Config, kind: str) -> Attention:
    per_head = cfg.get("gating") in (True, None, "per-head")
    part = heads(
        bias="attention_bias",
        output_bias="attention_bias",
        qk_norm=True,
        output_gate=True,
        gate_per_head=per_head,
    )
    return _heads_of_windows(part)(cfg, kind)


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
_GEMMA4_HEADS = heads(bias="attention_bias", qk_norm=True)
_GEMMA4 = Family(
    prepare=_gemma4,
    attention=_gemma4_heads,
    kinds=_gemma4_kinds,
    experts=_gemma4_experts,
    sparse=_gemma4_sparse,
    norms=_gemma4_norms,
)
_BAILING = Family(
    attention=heads(bias="use_qkv_bias", output_bias="use_bias"),
    experts=_SHARED,
    sparse=sparse_from("first_k_dense_replace"),
)

_STEP = Family(
    prepare=_step,
    attention=_heads_of_windows(
        heads(bias="attention_bias", qk_norm=True, output_gate=True, gate_per_head=True)
    ),
    refused=(Refused("mlp_bias", "biases of experts without one of the router"),),
    experts=experts(shared_width="share_expert_dim", selection_bias=True),
    sparse=_step_sparse,
)

FAMILIES: Mapping[str, Family] = {
    "afmoe": Family(
        attention=heads(bias="attention_bias", qk_norm=True, output_gate=True),
        kinds=full_every(4, "global_attn_every_n_layers"),
        experts=experts(
            shared="num_shared_experts", selection_bias=True, selection_bias_is_parameter=True
        ),
        sparse=sparse_from("num_dense_layers"),
        norms=Norms(num=4),
    ),
    "aria_text": Family(
        attention=heads(bias="attention_bias"),
        refused=(Refused("mlp_bias", "biases of experts without one of the router"),),
        experts=experts(
            count="moe_num_experts",
            top_k="moe_topk",
            width="intermediate_size",
            shared="moe_num_shared_experts",
        ),
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
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
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
    "laguna": Family(
        prepare=_laguna,
        attention=_laguna_heads,
        experts=experts(
            shared_width="shared_expert_intermediate_size",
            selection_bias=True,
            selection_bias_is_parameter=True,
        ),
        sparse=sparse_after_first,
    ),
    "llama4_text": Family(
        attention=heads(bias="attention_bias"),
        kinds=_llama4_kinds,
        mlp=gated(width="intermediate_size_mlp"),
        experts=experts(count="num_local_experts", width="intermediate_size", shared=1),
        sparse=_llama4_sparse,
    ),
    "mellum": replace(_QWEN3_MOE, kinds=all_full, sparse=all_sparse),
    "mimo_v2_flash": Family(
        prepare=_mimo_v2,
        attention=_mimo_v2_heads,
        kinds=_mimo_v2_kinds,
        experts=experts(selection_bias=True),
        sparse=_mimo_v2_sparse,
    ),
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
    "step3p5": _STEP,
    "unlimited_ocr_text": replace(
        _DEEPSEEK_MOE, prepare=lambda cfg: cfg.assuming(first_k_dense_replace=1)
    ),
    "solar_open": Family(
        attention=heads(bias="attention_bias", output_bias=False), experts=_BALANCED
    ),
}
