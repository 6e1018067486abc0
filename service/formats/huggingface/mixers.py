"""Mixers of tokens that only some families have: recurrences, and attention over chosen or pooled
keys.

A *part*, or reader, is a function that reads a mixer, or a layer with it, from a config. The rows
of `families.json` name the functions of this file, which are parts or return one. An *indexer*
chooses the keys of sparse attention; a *pooled* key stands for those of several tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from models.errors import Unsupported
from models.spec.attention import Attention, Compression, Indexer
from models.spec.layer import Layer
from models.spec.recurrence import (
    DeltaNet,
    LightningAttention,
    Mamba2,
    Recurrence,
    ShortConvolution,
)
from service.formats.huggingface.config import Config
from service.formats.huggingface.parts import AttentionPart, MlpPart, MoePart, Switch, is_on, latent
from service.formats.huggingface.patterns import FULL, SLIDING

LayerPart: TypeAlias = Callable[[Config], Layer]
"""Reads a layer of one kind, which has a mixer, or a feed-forward network, but not both."""
RecurrencePart: TypeAlias = Callable[[Config], Recurrence]


def attends(part: AttentionPart, *, norms_behind: bool = False) -> LayerPart:
    """Returns a reader of layers whose attention sees the whole sequence. With `norms_behind`
    norms follow attention and network instead of preceding them."""
    return lambda cfg: Layer(attention=part(cfg, FULL), post_norms=norms_behind)


def attends_within(part: AttentionPart) -> LayerPart:
    """Returns a reader of layers whose attention sees a sliding window."""

    def read(cfg: Config) -> Layer:
        """Returns a layer with the attention that `part` reads, within the config's window."""
        return Layer(
            attention=replace(part(cfg, SLIDING), sliding_window=cfg.size("sliding_window"))
        )

    return read


def recurs(part: RecurrencePart) -> LayerPart:
    """Returns a reader of layers with a recurrence."""
    return lambda cfg: Layer(recurrence=part(cfg))


def feeds_forward(part: MlpPart | MoePart) -> LayerPart:
    """Returns a reader of layers that are a feed-forward network alone."""
    return lambda cfg: Layer(feed_forward=part(cfg))


def side_by_side(attention: AttentionPart, recurrence: RecurrencePart) -> LayerPart:
    """Returns a reader of layers with attention and a recurrence that read the same input."""
    return lambda cfg: Layer(attention=attention(cfg, FULL), recurrence=recurrence(cfg))


def delta_net(cfg: Config) -> DeltaNet:
    """Returns the gated delta net of Qwen3-Next. Where the config leaves out numbers of heads,
    they are those of attention. A missing key dim is three quarters of an attention head's, and a
    missing value dim is twice the key's (OLMo Hybrid)."""
    num_heads = cfg.size_or_none("linear_num_value_heads") or cfg.size("num_attention_heads")
    key_heads = cfg.size_or_none("linear_num_key_heads") or cfg.size("num_attention_heads")
    key_dim = cfg.size_or_none("linear_key_head_dim")
    key_dim = key_dim or 3 * cfg.size("hidden_size") // (4 * key_heads)
    return DeltaNet(
        num_heads=num_heads,
        num_key_heads=_num_groups(cfg, "linear_num_key_heads", key_heads, num_heads),
        key_head_dim=key_dim,
        value_head_dim=cfg.size_or_none("linear_value_head_dim") or 2 * key_dim,
        conv_kernel=cfg.size("linear_conv_kernel_dim"),
    )


def kimi_delta_attention(*, full_rank_decay: bool, full_rank_gate: Switch) -> RecurrencePart:
    """Returns a reader of Kimi's delta attention, whose keys and values have equal sizes. A
    decay or an output gate that is not of full rank has the rank of a head."""

    def read(cfg: Config) -> DeltaNet:
        """Returns the delta attention of a config. Decay and gate have the rank of a head unless
        they are of full rank."""
        head_dim = cfg.size("linear_head_dim")
        num_heads = cfg.size("linear_num_heads")
        return DeltaNet(
            num_heads=num_heads,
            num_key_heads=num_heads,
            key_head_dim=head_dim,
            value_head_dim=head_dim,
            conv_kernel=cfg.size("linear_conv_kernel_dim"),
            decay_per_element=True,
            decay_rank=None if full_rank_decay else head_dim,
            gate_rank=None if is_on(cfg, full_rank_gate) else head_dim,
        )

    return read


def lightning_attention(part: AttentionPart) -> RecurrencePart:
    """Returns a reader of recurrences with as many heads, of the same sizes, as the attention that
    `part` reads. Each head has keys of its own."""

    def read(cfg: Config) -> LightningAttention:
        """Returns the recurrence of a config, with the heads of the attention that `part` reads."""
        attention = part(cfg, FULL)
        return LightningAttention(
            num_heads=attention.num_attention_heads,
            num_key_heads=attention.num_attention_heads,
            key_head_dim=attention.head_dim,
            value_head_dim=attention.v_head_dim,
        )

    return read


def short_convolution(cfg: Config) -> ShortConvolution:
    """Returns the convolution of LFM2, with one channel for each element of the hidden state."""
    return ShortConvolution.of(
        channels=cfg.size("hidden_size"),
        conv_kernel=cfg.size("conv_L_cache"),  # the cache holds as many tokens as the kernel spans
        bias=cfg.flag("conv_bias"),
    )


def mamba2(*, norm: Switch = True, width: Callable[[Config], int] | None = None) -> RecurrencePart:
    """Returns a reader of Mamba-2. `width` returns the elements of all heads together; without
    it the config has the elements of one head."""

    def read(cfg: Config) -> Mamba2:
        """Returns the Mamba-2 of a config, with the arguments of `mamba2`. Its groups count as key
        heads, and its state as their size. `width` gives the elements of all heads together."""
        num_heads = cfg.size("mamba_n_heads")
        return Mamba2(
            num_heads=num_heads,
            num_key_heads=_num_groups(cfg, "mamba_n_groups", cfg.size("mamba_n_groups"), num_heads),
            key_head_dim=cfg.size("mamba_d_state"),
            value_head_dim=_mamba_head_dim(cfg, width(cfg), num_heads)
            if width
            else cfg.size("mamba_d_head"),
            conv_kernel=cfg.size("mamba_d_conv"),
            conv_bias=cfg.flag("mamba_conv_bias"),
            bias=cfg.flag("mamba_proj_bias"),
            norm=is_on(cfg, norm),
        )

    return read


def expanded(cfg: Config) -> int:
    """Returns the elements of all heads of Mamba-2, a multiple of the hidden size."""
    return cfg.size("mamba_expand", most=64) * cfg.size("hidden_size")


def _mamba_head_dim(cfg: Config, elements: int, num_heads: int) -> int:
    """Returns the elements of one head, given those of all heads. Raises Invalid where the heads
    do not divide `elements`, or where `mamba_d_head` is another number than the quotient."""
    if elements % num_heads:
        raise cfg.invalid("mamba_n_heads", f"must divide the {elements} elements of all heads")
    head_dim = cfg.get("mamba_d_head")
    if head_dim not in (None, "auto") and cfg.size("mamba_d_head") * num_heads != elements:
        raise cfg.invalid("mamba_d_head", f"must be {elements} elements / {num_heads} heads")
    return elements // num_heads


def _num_groups(cfg: Config, key: str, parts: int, num_heads: int) -> int:
    """Returns `parts`, a number of groups of heads that is the value of `key`. Raises Invalid
    where it does not divide the heads, and groups would be unequal."""
    if num_heads % parts:
        raise cfg.invalid(key, f"must divide {num_heads} heads")
    return parts


def chosen_keys(*, shared: bool = False) -> LayerPart:
    """Returns a reader of layers with latent attention to keys that an indexer chooses
    (DeepSeek-V3.2). With `shared` an earlier layer's indexer chooses them."""

    def read(cfg: Config) -> Layer:
        """Returns a layer with latent attention and its indexer, which is an earlier layer's if
        `shared`. Raises Unsupported where queries have no latent, which the indexer reads."""
        dim = cfg.size("index_head_dim")
        indexer = Indexer(
            num_heads=cfg.size("index_n_heads"),
            head_dim=dim,
            top_k=cfg.size("index_topk"),
            norm_parameters=2 * dim,  # the weight and the bias of one norm
            shared=shared,
        )
        attention = latent(cfg, FULL)
        if attention.q_lora_rank is None:
            missing = "an indexer of queries without a latent"
            raise Unsupported(cfg.where("q_lora_rank"), None, missing)
        return Layer(attention=replace(attention, indexer=indexer))

    return read


def chosen_blocks(part: AttentionPart) -> LayerPart:
    """Returns a reader of layers with attention to blocks of keys that an indexer chooses
    (MiniMax-M3). The indexer has norms of its queries and keys."""

    def read(cfg: Config) -> Layer:
        """Returns a layer whose attention has an indexer. The indexer chooses whole blocks, and
        `top_k` counts the keys in them."""
        dim = cfg.size("index_head_dim")
        indexer = Indexer(
            num_heads=cfg.size("index_n_heads"),
            head_dim=dim,
            top_k=cfg.size("index_topk_blocks") * cfg.size("index_block_size"),
            weighs_heads=False,  # the largest score of any head counts
            norm_parameters=2 * dim,  # a norm of its queries, and one of its keys
        )
        return Layer(attention=replace(part(cfg, FULL), indexer=indexer))

    return read


def pooled_keys(rate_key: str | None = None, *, indexed: bool = False) -> LayerPart:
    """Returns a reader of layers with the attention of DeepSeek-V4 (§2.3). They attend to a
    window, and with a `rate_key` also to pooled keys; under that key the config has the number of
    keys in a pool. With `indexed` an indexer chooses among the pooled keys, and pools overlap."""

    def read(cfg: Config) -> Layer:
        """Returns a layer with the attention of DeepSeek-V4. All heads share one head of keys,
        which are its values too. `rate_key`, if any, has the number of keys in a pool; with
        `indexed` an indexer chooses among the pools."""
        num_heads = cfg.size("num_attention_heads")
        head_dim = cfg.size("head_dim")
        indexer = Indexer(
            num_heads=cfg.size("index_n_heads"),
            head_dim=cfg.size("index_head_dim"),
            top_k=cfg.size("index_topk"),
        )
        attention = Attention(
            num_attention_heads=num_heads,
            num_key_value_heads=1,
            head_dim=head_dim,
            v_head_dim=head_dim,
            q_lora_rank=cfg.size("q_lora_rank"),
            sliding_window=cfg.size("sliding_window"),
            values_are_keys=True,
            kv_norm=True,
            sinks=True,
            o_groups=_num_groups(cfg, "o_groups", cfg.size("o_groups"), num_heads),
            o_lora_rank=cfg.size("o_lora_rank"),
            compression=Compression(rate=cfg.size(rate_key), overlap=indexed) if rate_key else None,
            indexer=indexer if indexed else None,
        )
        # Hyper-connections carry `hc_mult` residual streams from layer to layer.
        return Layer(attention=attention, residual_streams=cfg.size("hc_mult"))

    return read
