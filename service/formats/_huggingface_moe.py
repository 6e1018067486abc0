"""Readers of the mixture-of-experts families, by `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from models.errors import Unsupported
from models.spec.architecture import Architecture, Attention, Mlp
from service.formats._huggingface_config import MAX_LAYERS, Config
from service.formats._huggingface_parts import (
    CHUNKED,
    FULL,
    attention,
    attention_layers,
    decoder,
    deepseek_sparse_layers,
    experts,
    feed_forward_layers,
    full_every,
    num_heads,
    num_layers,
    num_shared_experts,
    require_stated_windows,
    windows_from_layer,
    windows_in_all_layers,
)


def mixtral(cfg: Config) -> Architecture:
    """`intermediate_size` is that of one expert."""
    moe = experts(cfg, count="num_local_experts", width="intermediate_size")
    return decoder(cfg, attention_layers(cfg, attention(cfg), windows_in_all_layers(cfg)), moe)


def granitemoe(cfg: Config) -> Architecture:
    block = attention(cfg, kv_default=num_heads(cfg), bias=cfg.flag("attention_bias", False))
    return decoder(
        cfg,
        attention_layers(cfg, block),
        experts(cfg, count="num_local_experts", width="intermediate_size"),
    )


def olmoe(cfg: Config) -> Architecture:
    block = attention(
        cfg,
        kv_default=num_heads(cfg),
        bias=cfg.flag("attention_bias", False),
        qk_norm=True,
        qk_norm_all_heads=True,
    )
    return decoder(cfg, attention_layers(cfg, block), experts(cfg, width="intermediate_size"))


def dbrx(cfg: Config) -> Architecture:
    """Attention and experts have objects of their own. The tie_word_embeddings in those mean
    nothing."""
    attention_config = cfg.inner("attn_config")
    ffn_config = cfg.inner("ffn_config")
    cfg = cfg.respell(
        hidden_size="d_model", num_hidden_layers="n_layers", num_attention_heads="n_heads"
    )
    cfg = cfg.assuming(num_key_value_heads=attention_config.size("kv_n_heads"))
    moe = experts(ffn_config, count="moe_num_experts", top_k="moe_top_k", width="ffn_hidden_size")
    return decoder(cfg, attention_layers(cfg, attention(cfg)), moe)


def qwen2_moe(cfg: Config) -> Architecture:
    """The shared expert has a width of its own and a gate."""
    cfg = require_stated_windows(cfg)
    block = attention(cfg, bias=cfg.flag("qkv_bias", True), output_bias=False)
    moe = replace(
        experts(cfg),
        shared_intermediate_size=cfg.size("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return decoder(
        cfg, attention_layers(cfg, block), feed_forward_layers(cfg, _qwen_sparse(cfg), moe)
    )


def qwen3_moe(cfg: Config) -> Architecture:
    """Transformers 5 writes num_local_experts for num_experts."""
    cfg = require_stated_windows(cfg).respell(num_local_experts="num_experts")
    block = attention(
        cfg, head_dim=cfg.size("head_dim"), bias=cfg.flag("attention_bias", False), qk_norm=True
    )
    moe = experts(cfg, count="num_local_experts")
    return decoder(
        cfg, attention_layers(cfg, block), feed_forward_layers(cfg, _qwen_sparse(cfg), moe)
    )


def _qwen_sparse(cfg: Config) -> Callable[[int], bool]:
    dense = cfg.indices("mlp_only_layers", num_layers(cfg))
    step = cfg.size("decoder_sparse_step", 1)
    return lambda index: index not in dense and (index + 1) % step == 0


def gpt_oss(cfg: Config) -> Architecture:
    """Biases on everything but the norms, attention sinks, and windows in every other layer."""
    cfg = cfg.respell(experts_per_token="num_experts_per_tok")
    block = attention(
        cfg, head_dim=cfg.size("head_dim"), bias=cfg.flag("attention_bias", True), sinks=True
    )
    moe = experts(
        cfg, count="num_local_experts", top_k="experts_per_token", width="intermediate_size"
    )
    return decoder(
        cfg, attention_layers(cfg, block, full_every(2)), replace(moe, bias=True, router_bias=True)
    )


def deepseek_v2(cfg: Config) -> Architecture:
    return _deepseek(cfg, selection_bias=False)


def deepseek_v3(cfg: Config) -> Architecture:
    return _deepseek(cfg, selection_bias=True)


def _deepseek(cfg: Config, selection_bias: bool) -> Architecture:
    cfg.refuse("use_mla", "DeepSeek without latent attention", value=False)
    cfg.refuse("mlp_bias", "biases of the dense layers alone")
    moe = experts(
        cfg,
        count="n_routed_experts",
        shared=num_shared_experts(cfg),
        selection_bias=selection_bias,
    )
    attentions = attention_layers(cfg, _latent_attention(cfg))
    feed_forward = feed_forward_layers(cfg, deepseek_sparse_layers(cfg), moe)
    return _with_mtp(cfg, decoder(cfg, attentions, feed_forward))


def _latent_attention(cfg: Config) -> Attention:
    """Multi-head latent attention. A config has `head_dim` and `num_key_value_heads` too, which
    mean nothing here."""
    cfg.refuse("attention_bias", "biases of the down-projections of latent attention")
    rope = cfg.size("qk_rope_head_dim")
    heads = num_heads(cfg)
    return Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=cfg.size("qk_nope_head_dim") + rope,
        v_head_dim=cfg.size("v_head_dim"),
        q_lora_rank=cfg.size_or_none("q_lora_rank"),
        kv_lora_rank=cfg.size("kv_lora_rank"),
        rope_head_dim=rope,
    )


def _with_mtp(cfg: Config, model: Architecture) -> Architecture:
    """The model with the multi-token-prediction layers that stand beside the stack. Newer files
    call their number num_mtp_layers."""
    cfg = cfg.respell(num_nextn_predict_layers="num_mtp_layers")
    return replace(model, mtp_layers=cfg.count("num_nextn_predict_layers", 0, most=MAX_LAYERS))


def glm4_moe(cfg: Config) -> Architecture:
    bias = cfg.flag("attention_bias", False)
    qk_norm = cfg.flag("use_qk_norm", False)
    block = attention(cfg, bias=bias, output_bias=False, qk_norm=qk_norm)
    moe = experts(
        cfg, count="n_routed_experts", shared=num_shared_experts(cfg), selection_bias=True
    )
    attentions = attention_layers(cfg, block)
    feed_forward = feed_forward_layers(cfg, deepseek_sparse_layers(cfg), moe)
    return _with_mtp(cfg, decoder(cfg, attentions, feed_forward))


def dots1(cfg: Config) -> Architecture:
    block = attention(cfg, bias=cfg.flag("attention_bias", False), qk_norm=True)
    moe = experts(
        cfg, count="n_routed_experts", shared=num_shared_experts(cfg), selection_bias=True
    )
    attentions = attention_layers(cfg, block, windows_from_layer(cfg))
    feed_forward = feed_forward_layers(cfg, deepseek_sparse_layers(cfg), moe)
    return decoder(cfg, attentions, feed_forward)


def llama4(cfg: Config) -> Architecture:
    """One shared expert is implied. `intermediate_size` is that of an expert,
    `intermediate_size_mlp` that of a dense layer.

    The layers with rotary embedding are the ones with chunked attention. The norms on queries and
    keys have no weights.
    """
    block = attention(cfg, bias=cfg.flag("attention_bias", False))
    moe = experts(cfg, count="num_local_experts", width="intermediate_size", shared=1)
    return decoder(
        cfg,
        attention_layers(cfg, block, _llama4_kind(cfg)),
        feed_forward_layers(cfg, _llama4_sparse(cfg), moe, _llama4_dense),
    )


def _llama4_kind(cfg: Config) -> Callable[[int], str] | None:
    if cfg.size_or_none("attention_chunk_size") is None:
        return None
    period = cfg.size("no_rope_layer_interval", 4)
    rotary = cfg.switches("no_rope_layers", num_layers(cfg))
    return lambda index: CHUNKED if (rotary[index] if rotary else (index + 1) % period) else FULL


def _llama4_sparse(cfg: Config) -> Callable[[int], bool]:
    if cfg.get("moe_layers") is not None:
        chosen = cfg.indices("moe_layers", num_layers(cfg))
        return lambda index: index in chosen
    step = cfg.size("interleave_moe_layer_step")
    return lambda index: (index + 1) % step == 0


def _llama4_dense(cfg: Config) -> Mlp:
    return Mlp(intermediate_size=cfg.size("intermediate_size_mlp"))


def ernie_moe(cfg: Config) -> Architecture:
    """From layer moe_layer_start_index to layer moe_layer_end_index (-1: the last) every
    moe_layer_interval-th is sparse."""
    cfg.refuse("use_bias", "biases of the dense layers alone")
    last = num_layers(cfg) - 1
    end = last
    if cfg.get("moe_layer_end_index") not in (None, -1):
        end = cfg.count("moe_layer_end_index", most=last)
    start = cfg.count("moe_layer_start_index")
    interval = cfg.size("moe_layer_interval", 1)
    moe = experts(
        cfg,
        count="moe_num_experts",
        top_k="moe_k",
        shared=num_shared_experts(cfg, "moe_num_shared_experts"),
        selection_bias=True,
    )

    def is_sparse(index: int) -> bool:
        return start <= index <= end and (index + 1) % interval == 0

    feed_forward = feed_forward_layers(cfg, is_sparse, moe)
    return decoder(cfg, attention_layers(cfg, attention(cfg)), feed_forward, tied=True)


def minimax_m2(cfg: Config) -> Architecture:
    """The published file switches on a multi-token prediction that transformers leaves out: such a
    config is refused."""
    modules = cfg.count("num_mtp_modules", 0)
    if cfg.flag("use_mtp", modules > 0):
        missing = (
            "multi-token-prediction modules of which no weights are published (use_mtp: false"
            " leaves them out)"
        )
        key = "num_mtp_modules" if cfg.get("use_mtp") is None else "use_mtp"
        raise Unsupported(cfg.where(key), cfg.get(key), missing)
    if not all(cfg.switches("attn_type_list", num_layers(cfg))):
        raise Unsupported(cfg.where("attn_type_list"), 0, "linear (lightning) attention layers")
    if cfg.word("qk_norm_type", "per_layer") != "per_layer":
        raise Unsupported(cfg.where("qk_norm_type"), cfg.get("qk_norm_type"), "norms of this kind")
    if width := cfg.count("shared_intermediate_size", 0):
        raise Unsupported(
            cfg.where("shared_intermediate_size"), width, "shared experts of this family"
        )
    block = attention(cfg, qk_norm=cfg.flag("use_qk_norm", True), qk_norm_all_heads=True)
    moe = experts(cfg, count="num_local_experts", width="intermediate_size", selection_bias=True)
    return decoder(cfg, attention_layers(cfg, block), moe)


def hunyuan_v3(cfg: Config) -> Architecture:
    """The first layer is dense unless mlp_layer_types says which are."""
    cfg.refuse("mlp_bias", "biases of the dense layers alone")
    block = attention(
        cfg, head_dim=cfg.size("head_dim"), bias=cfg.flag("attention_bias", False), qk_norm=True
    )
    moe = experts(cfg, shared=num_shared_experts(cfg, "num_shared_experts"), selection_bias=True)
    kinds = cfg.words("mlp_layer_types", num_layers(cfg))
    if not set(kinds) <= {"dense", "sparse"}:
        raise cfg.invalid("mlp_layer_types", "must be made of dense and sparse")

    def is_sparse(index: int) -> bool:
        return kinds[index] == "sparse" if kinds else index > 0

    feed_forward = feed_forward_layers(cfg, is_sparse, moe)
    return _with_mtp(cfg, decoder(cfg, attention_layers(cfg, block), feed_forward))


READERS: Mapping[str, Callable[[Config], Architecture]] = {
    "dbrx": dbrx,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "dots1": dots1,
    "ernie4_5_moe": ernie_moe,
    "glm4_moe": glm4_moe,
    "gpt_oss": gpt_oss,
    "granitemoe": granitemoe,
    "hy_v3": hunyuan_v3,
    "kimi_k2": deepseek_v3,
    "llama4_text": llama4,
    "minimax_m2": minimax_m2,
    "mixtral": mixtral,
    "olmoe": olmoe,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "qwen3_vl_moe_text": qwen3_moe,
}
