"""Readers of the dense families, by `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from models.errors import Unsupported
from models.spec.architecture import Architecture
from service.formats._huggingface_config import Config
from service.formats._huggingface_parts import (
    FULL,
    SLIDING,
    attention,
    attention_layers,
    decoder,
    full_every,
    gated_mlp,
    num_heads,
    num_layers,
    plain_mlp,
    require_stated_windows,
    windows_from_layer,
    windows_in_all_layers,
)


def llama(cfg: Config) -> Architecture:
    block = attention(cfg, kv_default=num_heads(cfg), bias=cfg.flag("attention_bias", False))
    return decoder(cfg, attention_layers(cfg, block), gated_mlp(cfg, cfg.flag("mlp_bias", False)))


def arcee(cfg: Config) -> Architecture:
    block = attention(cfg, kv_default=num_heads(cfg), bias=cfg.flag("attention_bias", False))
    return decoder(cfg, attention_layers(cfg, block), plain_mlp(cfg, cfg.flag("mlp_bias", False)))


def nemotron(cfg: Config) -> Architecture:
    block = attention(cfg, kv_default=num_heads(cfg), bias=cfg.flag("attention_bias", False))
    return decoder(
        cfg,
        attention_layers(cfg, block),
        plain_mlp(cfg, cfg.flag("mlp_bias", False)),
        norm_bias=True,
    )


def internlm2(cfg: Config) -> Architecture:
    block = attention(cfg, kv_default=num_heads(cfg), bias=cfg.flag("bias"))
    return decoder(cfg, attention_layers(cfg, block), gated_mlp(cfg))


def exaone(cfg: Config) -> Architecture:
    cfg = cfg.respell(num_hidden_layers="num_layers")
    tied = cfg.flag("tie_word_embeddings")
    return decoder(
        cfg,
        attention_layers(cfg, attention(cfg, kv_default=num_heads(cfg))),
        gated_mlp(cfg),
        tied=tied,
    )


def smollm3(cfg: Config) -> Architecture:
    cfg = require_stated_windows(cfg)
    block = attention(cfg, bias=cfg.flag("attention_bias", False))
    return decoder(
        cfg, attention_layers(cfg, block), gated_mlp(cfg, cfg.flag("mlp_bias", False)), tied=True
    )


def seed_oss(cfg: Config) -> Architecture:
    bias = cfg.flag("attention_bias", True)
    output_bias = cfg.flag("attention_out_bias", False)
    block = attention(cfg, bias=bias, output_bias=output_bias)
    return decoder(cfg, attention_layers(cfg, block), gated_mlp(cfg, cfg.flag("mlp_bias", False)))


def ernie(cfg: Config) -> Architecture:
    bias = cfg.flag("use_bias", False)
    block = attention(cfg, head_dim=cfg.size("head_dim"), bias=bias)
    return decoder(cfg, attention_layers(cfg, block), gated_mlp(cfg, bias), tied=True)


def mistral(cfg: Config) -> Architecture:
    """An absent sliding_window means Mistral 7B's; null means none."""
    cfg = cfg.assuming(sliding_window=4096)
    return decoder(
        cfg, attention_layers(cfg, attention(cfg), windows_in_all_layers(cfg)), gated_mlp(cfg)
    )


def ministral3(cfg: Config) -> Architecture:
    return decoder(
        cfg, attention_layers(cfg, attention(cfg), windows_in_all_layers(cfg)), gated_mlp(cfg)
    )


def phi3(cfg: Config) -> Architecture:
    block = attention(cfg, kv_default=num_heads(cfg))
    return decoder(cfg, attention_layers(cfg, block, windows_in_all_layers(cfg)), gated_mlp(cfg))


def starcoder2(cfg: Config) -> Architecture:
    bias = cfg.flag("use_bias", True)
    block = attention(cfg, bias=bias)
    return decoder(
        cfg,
        attention_layers(cfg, block, windows_in_all_layers(cfg)),
        plain_mlp(cfg, bias),
        tied=True,
        norm_bias=True,
    )


def qwen2(cfg: Config) -> Architecture:
    """Queries, keys and values always have biases; no key says so."""
    cfg = cfg.assuming(use_sliding_window=False)
    block = attention(cfg, bias=True, output_bias=False)
    return decoder(cfg, attention_layers(cfg, block, windows_from_layer(cfg)), gated_mlp(cfg))


def qwen3(cfg: Config) -> Architecture:
    cfg = cfg.assuming(use_sliding_window=False)
    block = attention(
        cfg, head_dim=cfg.size("head_dim"), bias=cfg.flag("attention_bias", False), qk_norm=True
    )
    return decoder(cfg, attention_layers(cfg, block, windows_from_layer(cfg)), gated_mlp(cfg))


def gemma(cfg: Config) -> Architecture:
    block = attention(cfg, head_dim=cfg.size("head_dim"), bias=cfg.flag("attention_bias", False))
    return decoder(cfg, attention_layers(cfg, block), gated_mlp(cfg), tied=True)


def gemma2(cfg: Config) -> Architecture:
    block = attention(cfg, head_dim=cfg.size("head_dim"), bias=cfg.flag("attention_bias", False))
    return decoder(
        cfg, attention_layers(cfg, block, full_every(2)), gated_mlp(cfg), tied=True, num_norms=4
    )


def gemma3(cfg: Config) -> Architecture:
    block = attention(
        cfg, head_dim=cfg.size("head_dim"), bias=cfg.flag("attention_bias", False), qk_norm=True
    )
    windows = full_every(cfg.size("sliding_window_pattern", 6))
    return decoder(
        cfg, attention_layers(cfg, block, windows), gated_mlp(cfg), tied=True, num_norms=4
    )


def glm(cfg: Config) -> Architecture:
    block = attention(cfg, bias=cfg.flag("attention_bias", True), output_bias=False)
    return decoder(cfg, attention_layers(cfg, block), gated_mlp(cfg))


def glm4(cfg: Config) -> Architecture:
    block = attention(cfg, bias=cfg.flag("attention_bias", True), output_bias=False)
    return decoder(cfg, attention_layers(cfg, block), gated_mlp(cfg), num_norms=4)


def olmo2(cfg: Config) -> Architecture:
    block = attention(
        cfg,
        kv_default=num_heads(cfg),
        bias=cfg.flag("attention_bias", False),
        qk_norm=True,
        qk_norm_all_heads=True,
    )
    windows = full_every(4) if cfg.model_type == "olmo3" else None
    return decoder(cfg, attention_layers(cfg, block, windows), gated_mlp(cfg), post_norms=True)


def cohere(cfg: Config) -> Architecture:
    """Attention and MLP run side by side after one norm."""
    block = attention(
        cfg,
        kv_default=num_heads(cfg),
        bias=cfg.flag("attention_bias", False),
        qk_norm=cfg.flag("use_qk_norm", False),
        qk_norm_all_heads=True,
    )
    return decoder(
        cfg, attention_layers(cfg, block), gated_mlp(cfg), tied=True, num_norms=1, parallel=True
    )


def cohere2(cfg: Config) -> Architecture:
    block = attention(cfg, kv_default=num_heads(cfg), bias=cfg.flag("attention_bias", False))
    windows = full_every(cfg.size("sliding_window_pattern", 4))
    return decoder(
        cfg,
        attention_layers(cfg, block, windows),
        gated_mlp(cfg),
        tied=True,
        num_norms=1,
        parallel=True,
    )


def stablelm(cfg: Config) -> Architecture:
    block = attention(
        cfg,
        bias=cfg.flag("use_qkv_bias", False),
        output_bias=False,
        qk_norm=cfg.flag("qk_layernorm", False),
        qk_norm_all_heads=True,
    )
    parallel = cfg.flag("use_parallel_residual", False)
    return decoder(
        cfg,
        attention_layers(cfg, block),
        gated_mlp(cfg),
        num_norms=1 if parallel else 2,
        norm_bias=True,
        parallel=parallel,
    )


def phi(cfg: Config) -> Architecture:
    """Attention and MLP run side by side after one norm; biases everywhere, the LM head's
    included."""
    cfg.refuse("qk_layernorm", "norms with biases on queries and keys")
    block = attention(cfg, kv_default=num_heads(cfg), bias=True)
    return replace(
        decoder(
            cfg,
            attention_layers(cfg, block),
            plain_mlp(cfg, bias=True),
            num_norms=1,
            norm_bias=True,
            parallel=True,
        ),
        lm_head_bias=True,
    )


def gpt2(cfg: Config) -> Architecture:
    cfg = cfg.respell(
        hidden_size="n_embd",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        intermediate_size="n_inner",
        max_position_embeddings="n_positions",
    )
    block = attention(cfg, kv_default=num_heads(cfg), bias=True)
    mlp = plain_mlp(cfg, bias=True, default=4 * cfg.size("hidden_size"))
    return replace(
        decoder(cfg, attention_layers(cfg, block), mlp, tied=True, norm_bias=True),
        learned_positions=cfg.size("max_position_embeddings"),
    )


def gpt_bigcode(cfg: Config) -> Architecture:
    """GPT-2 with one key-value head, unless `multi_query` is false."""
    shared = cfg.flag("multi_query", True)
    return gpt2(replace(cfg, values={**cfg.values, "num_key_value_heads": 1}) if shared else cfg)


def gpt_neo(cfg: Config) -> Architecture:
    """In attention only the output has a bias. `attention_layers` says which layers see a
    window."""
    cfg = cfg.respell(
        num_hidden_layers="num_layers",
        num_attention_heads="num_heads",
        sliding_window="window_size",
    )
    kinds = cfg.words("attention_layers", num_layers(cfg))
    if not kinds:
        raise cfg.missing("attention_layers")
    if not set(kinds) <= {"global", "local"}:
        raise cfg.invalid("attention_layers", "must be made of global and local")
    block = attention(cfg, kv_default=num_heads(cfg), output_bias=True)
    blocks = attention_layers(
        cfg, block, lambda index: SLIDING if kinds[index] == "local" else FULL
    )
    mlp = plain_mlp(cfg, bias=True, default=4 * cfg.size("hidden_size"))
    return replace(
        decoder(cfg, blocks, mlp, tied=True, norm_bias=True),
        learned_positions=cfg.size("max_position_embeddings"),
    )


def gptj(cfg: Config) -> Architecture:
    cfg = cfg.respell(
        hidden_size="n_embd",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        intermediate_size="n_inner",
    )
    mlp = plain_mlp(cfg, bias=True, default=4 * cfg.size("hidden_size"))
    block = attention(cfg, kv_default=num_heads(cfg))
    found = decoder(
        cfg, attention_layers(cfg, block), mlp, num_norms=1, norm_bias=True, parallel=True
    )
    return replace(found, lm_head_bias=True)


def gpt_neox(cfg: Config) -> Architecture:
    block = attention(cfg, kv_default=num_heads(cfg), bias=cfg.flag("attention_bias", True))
    parallel = cfg.flag("use_parallel_residual", True)
    return decoder(
        cfg,
        attention_layers(cfg, block),
        plain_mlp(cfg, bias=True),
        norm_bias=True,
        parallel=parallel,
    )


def opt(cfg: Config) -> Architecture:
    """Positions are learned, in a table with two rows more than there are positions."""
    hidden = cfg.size("hidden_size")
    if cfg.size("word_embed_proj_dim", hidden) != hidden:
        raise Unsupported(
            "word_embed_proj_dim", cfg.get("word_embed_proj_dim"), "embeddings of another width"
        )
    cfg.refuse("do_layer_norm_before", "norms behind the blocks", value=False)
    cfg.refuse("layer_norm_elementwise_affine", "norms without weights", value=False)
    cfg.refuse("_remove_final_layer_norm", "a stack without a final norm")
    cfg = cfg.respell(intermediate_size="ffn_dim")
    bias = cfg.flag("enable_bias", True)
    block = attention(cfg, kv_default=num_heads(cfg), bias=bias)
    return replace(
        decoder(cfg, attention_layers(cfg, block), plain_mlp(cfg, bias), tied=True, norm_bias=True),
        learned_positions=cfg.size("max_position_embeddings") + 2,
    )


def falcon(cfg: Config) -> Architecture:
    """Falcon 7B (one key-value head, one norm a layer), the new decoder of 40B and 180B, and the RW
    variants."""
    is_new = cfg.flag("new_decoder_architecture")
    parallel = cfg.flag("parallel_attn")
    cfg = cfg.respell(num_key_value_heads="num_kv_heads", intermediate_size="ffn_hidden_size")
    if cfg.flag("multi_query") and not is_new:
        cfg = replace(cfg, values={**cfg.values, "num_kv_heads": 1})
    bias = cfg.flag("bias")
    block = attention(cfg, kv_default=num_heads(cfg), bias=bias)
    mlp = plain_mlp(cfg, bias, default=4 * cfg.size("hidden_size"))
    norms = 2
    if parallel:
        norms = cfg.size("num_ln_in_parallel_attn", 2 if is_new else 1, most=2)
    stack = attention_layers(cfg, block)
    return decoder(cfg, stack, mlp, tied=True, num_norms=norms, norm_bias=True, parallel=parallel)


def mpt(cfg: Config) -> Architecture:
    cfg.refuse("no_bias", "the biases of MPT", value=False)
    inner = cfg.inner("attn_config")
    inner.refuse("alibi", "the learned positions of MPT without ALiBi", value=False)
    inner.refuse("qk_ln", "norms over all queries and keys")
    cfg = cfg.respell(
        hidden_size="d_model", num_hidden_layers="n_layers", num_attention_heads="n_heads"
    )
    hidden = cfg.size("hidden_size")
    mlp = plain_mlp(cfg, default=hidden * cfg.size("expansion_ratio", most=64))
    multi_query = inner.word("attn_type", "multihead_attention") == "multiquery_attention"
    cfg = cfg.assuming(
        num_key_value_heads=inner.size("kv_n_heads", 1 if multi_query else num_heads(cfg))
    )
    return decoder(cfg, attention_layers(cfg, attention(cfg)), mlp, tied=True)


READERS: Mapping[str, Callable[[Config], Architecture]] = {
    "arcee": arcee,
    "cohere": cohere,
    "cohere2": cohere2,
    "codegen": gptj,
    "ernie4_5": ernie,
    "exaone": exaone,
    "falcon": falcon,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "glm": glm,
    "glm4": glm4,
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    "gpt_neox": gpt_neox,
    "gptj": gptj,
    "granite": llama,
    "internlm2": internlm2,
    "llama": llama,
    "ministral3": ministral3,
    "mistral": mistral,
    "mpt": mpt,
    "nemotron": nemotron,
    "olmo2": olmo2,
    "olmo3": olmo2,
    "opt": opt,
    "phi": phi,
    "phi3": phi3,
    "qwen2": qwen2,
    "qwen2_5_vl_text": qwen2,
    "qwen2_vl_text": qwen2,
    "qwen3": qwen3,
    "qwen3_vl_text": qwen3,
    "seed_oss": seed_oss,
    "smollm3": smollm3,
    "stablelm": stablelm,
    "starcoder2": starcoder2,
}
