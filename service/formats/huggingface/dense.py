"""Reads dense families, as far as their configs differ from Llama's.

The rows of `families.json` name these functions. One with the name of a family rewrites its config
into the keys that most families use. The *kind* of a layer says whether its attention sees all of a
sequence (FULL) or a window (SLIDING).
"""

from __future__ import annotations

from collections.abc import Callable

from models.errors import Unsupported
from service.formats.huggingface.config import Config
from service.formats.huggingface.family import Norms
from service.formats.huggingface.patterns import FULL, SLIDING, num_layers

_BIASED = Norms(bias=True)
_BIASED_PARALLEL = Norms(num=1, bias=True, parallel=True)


def assuming(**absent: object) -> Callable[[Config], Config]:
    """Returns a function that gives a config these values for keys that it does not write."""
    return lambda cfg: cfg.assuming(**absent)


def gpt_neo_windows(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind, by the words global and local in
    attention_layers."""
    kinds = cfg.words("attention_layers", num_layers(cfg))
    if not kinds:
        raise cfg.missing("attention_layers")
    if not set(kinds) <= {"global", "local"}:
        raise cfg.invalid("attention_layers", "must be made of global and local")
    return lambda index: SLIDING if kinds[index] == "local" else FULL


def full_every_fourth_from_last(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind. Counted from the last, every
    fourth sees the whole sequence, the others a window."""
    last = num_layers(cfg) - 1
    return lambda index: SLIDING if (last - index) % 4 else FULL


def stablelm_norms(cfg: Config) -> Norms:
    return _BIASED_PARALLEL if cfg.flag("use_parallel_residual") else _BIASED


def gpt_neox_norms(cfg: Config) -> Norms:
    return Norms(bias=True, parallel=cfg.flag("use_parallel_residual"))


def hyperclovax_norms(cfg: Config) -> Norms:
    return Norms(num=4 if cfg.flag("use_post_norm") else 2)


def gpt2(cfg: Config) -> Config:
    """Returns the config with one key-value head where the code beside the weights, that of
    SantaCoder, has multi-query attention."""
    is_multi_query = cfg.get("attention_head_type") == "multiquery"
    return cfg.with_value("num_key_value_heads", 1) if is_multi_query else cfg


def gpt_bigcode(cfg: Config) -> Config:
    """Returns the config with one key-value head, unless `multi_query` is false."""
    return cfg.with_value("num_key_value_heads", 1) if cfg.flag("multi_query") else cfg


def internlm3(cfg: Config) -> Config:
    """Returns the config with its biases under their present names. Files from before
    transformers 5 write qkv_bias and bias."""
    return cfg.respell(
        {
            common: other
            for common, other in (("attention_bias", "qkv_bias"), ("mlp_bias", "bias"))
            if cfg.is_written(other)
        }
    )


def opt(cfg: Config) -> Config:
    """Returns the config. Raises Unsupported where embeddings are narrower than the hidden size."""
    key = "word_embed_proj_dim"
    hidden = cfg.size("hidden_size")
    if cfg.size(key, hidden) != hidden:
        raise Unsupported(cfg.where(key), cfg.get(key), "embeddings of another width")
    return cfg


def falcon(cfg: Config) -> Config:
    """Returns the config with one key-value head where it has multi-query attention, as Falcon
    7B does."""
    # The new decoder, that of 40B and 180B, does not read multi_query.
    one_head = not cfg.flag("new_decoder_architecture") and cfg.flag("multi_query")
    return cfg.with_value("num_kv_heads", 1) if one_head else cfg


def falcon_norms(cfg: Config) -> Norms:
    """Returns the norms of Falcon's layers: one in 7B, two in the new decoder of 40B and 180B,
    and two with attention and MLP in sequence in the RW variants."""
    parallel = cfg.flag("parallel_attn")
    num = 2
    if parallel:
        default = 2 if cfg.flag("new_decoder_architecture") else 1
        num = cfg.size("num_ln_in_parallel_attn", default, most=2)
    return Norms(num=num, bias=True, parallel=parallel)


def mpt(cfg: Config) -> Config:
    """Returns the config with the key-value heads and the MLP width that it gives in other
    words. Raises Unsupported for learned positions and for norms of queries and keys."""
    inner = cfg.inner("attn_config")
    inner.refuse("alibi", "the learned positions of MPT without ALiBi", value=False)
    inner.refuse("qk_ln", "norms over all queries and keys")
    is_multi_query = inner.word("attn_type", "multihead_attention") == "multiquery_attention"
    kv_heads = inner.size("kv_n_heads", 1 if is_multi_query else cfg.size("num_attention_heads"))
    width = cfg.size("hidden_size") * cfg.size("expansion_ratio", most=64)
    cfg = cfg.with_value("num_key_value_heads", kv_heads)
    return cfg.with_value("intermediate_size", width)
