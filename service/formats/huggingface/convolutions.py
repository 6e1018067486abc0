"""Reads families with short convolutions (LFM2).

The rows of `families.json` name these functions. One with the name of a family rewrites its config
into the common keys. One that ends in `_kinds` says which layer is of which kind: what it mixes
tokens with, attention over all of a sequence (FULL), over a window (SLIDING), or a convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from models.spec.layer import Layer
from service.formats.huggingface.config import Config
from service.formats.huggingface.mixers import (
    LayerPart,
    attends,
    attends_within,
    recurs,
    short_convolution,
)
from service.formats.huggingface.parts import heads
from service.formats.huggingface.patterns import FULL, SLIDING, num_layers

CONVOLUTION = "conv"


def lfm2_moe(cfg: Config) -> Config:
    """Returns the config with tie_word_embeddings, which older files call tie_embedding."""
    if cfg.get("tie_embedding") is None:
        return cfg
    return cfg.with_value("tie_word_embeddings", cfg.flag("tie_embedding"))


def lfm2(cfg: Config) -> Config:
    """Returns the config with the real width of its MLP. Files may give the width before it is
    cut to two thirds and rounded up."""
    cfg = lfm2_moe(cfg).assuming(block_ffn_dim_multiplier=1.0)
    width = cfg.size("block_ff_dim" if cfg.is_written("block_ff_dim") else "intermediate_size")
    if cfg.flag("block_auto_adjust_ff_dim"):
        width = 2 * width // 3  # a gated MLP has three matrices in place of two
        if not cfg.null("block_ffn_dim_multiplier"):
            multiple = cfg.size("block_multiple_of")
            width = int(cfg.number("block_ffn_dim_multiplier") * width)
            width = -(-width // multiple) * multiple
    return cfg.with_value("intermediate_size", width)


def lfm2_kinds(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind. Layers in `full_attn_idxs` have
    attention and others a convolution; without that key all have attention."""
    if cfg.get("full_attn_idxs") is None:
        return lambda index: FULL
    full = cfg.indices("full_attn_idxs", num_layers(cfg))
    return lambda index: FULL if index in full else CONVOLUTION


def lfm2_moe_kinds(cfg: Config) -> Callable[[int], str]:
    """Raises Invalid. It is called where a config has no layer_types, and this family has no rule
    for the kinds of layers."""
    raise cfg.missing("layer_types")


def lfm3_kinds(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind. Those at index 2, 4, 6 and so
    on have attention, full and within a window in turn; the others are convolutions."""
    turn = (SLIDING, CONVOLUTION, FULL, CONVOLUTION)
    return lambda index: turn[index % 4] if index else CONVOLUTION


def _lfm3_layer(part: LayerPart) -> LayerPart:
    """Returns a reader of the layers that `part` reads, with norms behind the mixer and the
    network too where the config asks for them."""

    def read(cfg: Config) -> Layer:
        return replace(part(cfg), num_norms=4 if cfg.flag("use_sandwich_norm") else 2)

    return read


def lfm3_mixers() -> Mapping[str, LayerPart]:
    """Returns the reader of each kind of layer: full attention, windowed attention and
    convolution."""
    part = heads(qk_norm=True, output_gate="use_attention_gate", gate_per_head=True)
    mixers = {
        FULL: attends(part),
        SLIDING: attends_within(part),
        CONVOLUTION: recurs(short_convolution),
    }
    return {kind: _lfm3_layer(part) for kind, part in mixers.items()}
