"""Layers that a config lists one by one, each with widths of its own or without attention or MLP:
the results of a neural architecture search (Puzzle, arXiv 2411.19146). A *block* here is one entry
of the list, which stands for a layer."""

from __future__ import annotations

from models.errors import Unsupported
from models.spec.attention import Attention
from models.spec.feed_forward import Mlp
from service.formats.huggingface.config import Config, shown
from service.formats.huggingface.parts import gated, heads
from service.formats.huggingface.patterns import FULL, num_layers

_WIDTH_MULTIPLE = 256  # to which _ffn_mult_to_intermediate_size of the published code rounds up
_UNDESCRIBED = {
    "replace_with_linear": "a single matrix in place of a block",
    "num_sink_tokens": "windows with sink tokens",
    "sparsify": "sparse weights",
}
_read_heads = heads(bias="attention_bias")


def listed_layers(cfg: Config) -> list[tuple[Attention | None, Mlp | None]]:
    """Returns the attention and the MLP of each layer in `block_configs`, None where a layer has
    none: {"attention": {"n_heads_in_group": 8}, "ffn": {"no_op": true}}."""
    blocks = cfg.inners("block_configs", num_layers(cfg))
    return [(_attention_of(cfg, block), _mlp_of(cfg, block)) for block in blocks]


def _attention_of(cfg: Config, block: Config) -> Attention | None:
    """Returns the attention of one block; None where it has none. Raises Unsupported for
    windows."""
    part = _require_described(block.inner("attention"))
    if part.flag("no_op", default=False):
        return None
    group = part.size("n_heads_in_group")  # queries' heads for each key-value head
    num_heads = cfg.size("num_attention_heads")
    if num_heads % group:
        rule = f"must divide {cfg.where('num_attention_heads')} = {num_heads}"
        raise part.invalid("n_heads_in_group", rule)
    if part.get("window_length") is not None:
        raise Unsupported(part.where("window_length"), part.get("window_length"), "windows here")
    cfg = cfg.with_value("num_key_value_heads", num_heads // group)
    return _read_heads(cfg, FULL)


def _mlp_of(cfg: Config, block: Config) -> Mlp | None:
    """Returns the MLP of one block; None where it has none. Its width is two thirds of
    `ffn_mult` times the hidden size, rounded down to a whole number and then up to a multiple of
    256 (`modeling_decilm.py` beside the weights)."""
    part = _require_described(block.inner("ffn"))
    if part.flag("no_op", default=False):
        return None
    if part.get("intermediate_size") is not None:
        width = part.size("intermediate_size")
    else:
        width = int(2 * part.number("ffn_mult") * cfg.size("hidden_size") / 3)
        width = -(-width // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE
    return gated(bias="mlp_bias")(cfg.with_value("intermediate_size", width))


def _require_described(part: Config) -> Config:
    """Returns this part of a block unchanged. Raises Unsupported where it has a key that the cost
    model does not cover."""
    for key, missing in _UNDESCRIBED.items():
        if part.get(key):
            raise Unsupported(part.where(key), shown(part.get(key)), missing)
    return part
