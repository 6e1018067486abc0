"""Reads families whose attention layers of one kind have other heads than those of another. The
*kind* is FULL for attention over all of a sequence, and SLIDING for attention over a window.

The rows of `families.json` name these functions. One with the name of a family rewrites its config
into the common keys. One that ends in `_kinds` says which layer is of which kind, and one that ends
in `_sparse` which have experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from models.errors import Unsupported
from models.spec.attention import Attention
from models.spec.feed_forward import Moe
from service.formats.huggingface.config import Config, shown
from service.formats.huggingface.family import Norms, mtp_layers
from service.formats.huggingface.parts import AttentionPart, experts, head_counts, heads
from service.formats.huggingface.patterns import FULL, SLIDING, num_layers, sparse_from

_GEMMA4_UNDESCRIBED = {
    "hidden_size_per_layer_input": "embeddings of their own in every layer",
    "num_kv_shared_layers": "keys and values shared across layers",
}


def mimo_v2(cfg: Config) -> Config:
    """Returns the config as it is. Older files give the sizes of heads a second time, for windowed
    layers. These are not read, and Invalid is raised where one differs."""
    for key in ("swa_num_attention_heads", "swa_head_dim", "swa_v_head_dim"):
        common = key.removeprefix("swa_")
        if cfg.get(key) is not None and cfg.size(key) != cfg.size(common):
            rule = f"must be {cfg.where(common)} = {cfg.size(common)}"
            raise cfg.invalid(key, rule)
    return cfg


def mimo_v2_kinds(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind. The first layer and every sixth
    see the whole sequence; older files list 0 for these and 1 for windows."""
    windowed = cfg.switches("hybrid_layer_pattern", num_layers(cfg))
    if windowed:
        return lambda index: SLIDING if windowed[index] else FULL
    return lambda index: SLIDING if index and (index + 1) % 6 else FULL


def mimo_v2_heads(cfg: Config, kind: str) -> Attention:
    """Returns the attention of layers of this kind. Windowed layers have, by default, twice the
    key-value heads, and sinks."""
    num_heads, kv_heads, head_dim = head_counts(cfg)
    if kind == SLIDING:
        kv_heads = cfg.size("swa_num_key_value_heads", 2 * kv_heads)
        sinks = cfg.flag("add_swa_attention_sink_bias", default=True)
    else:
        sinks = cfg.flag("add_full_attention_sink_bias", default=False)
    return Attention(
        num_attention_heads=num_heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=cfg.size("v_head_dim"),
        attention_bias=cfg.flag("attention_bias"),
        sinks=sinks,
    )


def gemma4(cfg: Config) -> Config:
    """Returns the config with the head size and key-value heads of full attention as keys of its
    own. Files of transformers 5.20 and later have them in an object for each such layer. Raises
    Unsupported where these differ."""
    cfg = cfg.assuming(global_head_dim=512, num_global_key_value_heads=None)
    for key, missing in _GEMMA4_UNDESCRIBED.items():
        cfg.refuse_size(key, missing)
    overrides = cfg.get("per_layer_config")
    if not isinstance(overrides, Mapping) or not overrides:
        return cfg
    first = next(iter(overrides.values()))
    if not isinstance(first, Mapping) or any(override != first for override in overrides.values()):
        raise Unsupported(
            cfg.where("per_layer_config"), shown(overrides), "layers that differ within a kind"
        )
    cfg = cfg.with_value("global_head_dim", first.get("head_dim"))
    return cfg.with_value("num_global_key_value_heads", first.get("num_key_value_heads"))


def gemma4_unified(cfg: Config) -> Config:
    """Returns the config without embeddings in each layer, which these models do not have."""
    return gemma4(cfg.assuming(hidden_size_per_layer_input=0))


def gemma4_kinds(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind. Every sixth and the last see the
    whole sequence, the others a window."""
    last = num_layers(cfg) - 1
    return lambda index: FULL if index == last or (index + 1) % 6 == 0 else SLIDING


def gemma4_heads(cfg: Config, kind: str) -> Attention:
    """Returns the attention of layers of this kind. Full attention has larger heads, and may
    have fewer key-value heads and use its keys as values."""
    if kind != FULL:
        return _GEMMA4_HEADS(cfg, kind)
    if (head_dim := cfg.get("global_head_dim")) is not None:
        cfg = cfg.with_value("head_dim", head_dim)
    keys_as_values = cfg.flag("attention_k_eq_v")
    if keys_as_values and (kv_heads := cfg.get("num_global_key_value_heads")) is not None:
        cfg = cfg.with_value("num_key_value_heads", kv_heads)
    return replace(_GEMMA4_HEADS(cfg, kind), values_are_keys=keys_as_values)


def gemma4_experts(cfg: Config) -> Moe:
    """Returns the experts of a layer. The dense MLP beside them counts as a shared expert."""
    part = experts(top_k="top_k_experts", shared_width="intermediate_size")
    return replace(part(cfg), router_scales=True)  # of the router's input and each expert's output


def gemma4_sparse(cfg: Config) -> Callable[[int], bool]:
    """Returns a test of whether the layer at an index has experts: all layers, or none."""
    has_experts = cfg.flag("enable_moe_block", default=False)
    return lambda _: has_experts


def gemma4_norms(cfg: Config) -> Norms:
    """Returns the norms of a layer: four, and with experts three more, behind the experts and
    the MLP and in front of the experts."""
    return Norms(num=7 if cfg.flag("enable_moe_block", default=False) else 4)


def step(cfg: Config) -> Config:
    """Returns the config of Step 3.5 with lists cut to the model's layers, and with the number of
    heads of windowed layers as a key of its own. Files from before transformers 5 have lists that
    go on with multi-token prediction, and that number in an object."""
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


def step_sparse(cfg: Config) -> Callable[[int], bool]:
    """Returns a test of whether the layer at an index has experts: those in `moe_layers_enum`,
    which is a list or numbers between commas; without it, layers from `first_k_dense_replace` on,
    by default from the fourth."""
    key = "moe_layers_enum"
    if cfg.get(key) is None:
        return sparse_from("first_k_dense_replace", 3)(cfg)
    if isinstance(cfg.get(key), list):
        chosen = cfg.indices(key, num_layers(cfg))
    else:
        try:
            chosen = {int(index) for index in cfg.word(key).split(",")}
        except ValueError:
            raise cfg.invalid(key, "must be numbers with commas between them") from None
    return lambda index: index in chosen


def heads_of_windows(part: AttentionPart) -> AttentionPart:
    """Returns a reader of attention like `part`, with another number of heads in windowed layers
    where the config has one."""

    def read(cfg: Config, kind: str) -> Attention:
        """Returns the attention of layers of this kind, as `part` reads it, with the number of
        heads that windowed layers have of their own."""
        num_heads = cfg.get("num_sliding_attention_heads")
        if kind == SLIDING and num_heads is not None:
            cfg = cfg.with_value("num_attention_heads", num_heads)
        return part(cfg, kind)

    return read


def laguna(cfg: Config) -> Config:
    """Returns the config with one number of heads for full attention and one for windows, from
    the list with a number for each layer. Raises Unsupported where layers of one kind differ."""
    key = "num_attention_heads_per_layer"
    num_heads = cfg.get(key)
    if num_heads is None:
        return cfg
    kinds = cfg.words("layer_types", num_layers(cfg)) or [FULL] * num_layers(cfg)
    if not isinstance(num_heads, list) or len(num_heads) != len(kinds):
        raise cfg.invalid(key, f"must be a list of {len(kinds)}")
    # The last layer of each kind stands for all of it, with which the others must agree.
    heads_of_kind = dict(zip(kinds, num_heads, strict=True))
    if any(heads_of_kind[kind] != number for kind, number in zip(kinds, num_heads, strict=True)):
        raise Unsupported(cfg.where(key), shown(num_heads), "heads that differ within a kind")
    cfg = cfg.with_value("num_sliding_attention_heads", heads_of_kind.get(SLIDING))
    return cfg.with_value(
        "num_attention_heads", heads_of_kind.get(FULL, cfg.get("num_attention_heads"))
    )


def laguna_heads(cfg: Config, kind: str) -> Attention:
    """Returns the attention of Laguna's layers of this kind: with norms of queries and keys, a gate
    for each head (by default) or each element, and in windowed layers a number of heads of their
    own."""
    per_head = cfg.get("gating") in (True, None, "per-head")
    part = heads(qk_norm=True, output_gate=True, gate_per_head=per_head)
    return heads_of_windows(part)(cfg, kind)


_GEMMA4_HEADS = heads(bias="attention_bias", qk_norm=True)
