"""What the families of Hugging Face configs have in common: attention, windows, experts, the stack
of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from models.errors import Invalid, Unsupported
from models.spec.architecture import Architecture, Attention, Layer, Mlp, Moe
from service.formats._huggingface_config import MAX_LAYERS, Config, shown

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_WINDOW_KEYS = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}


def num_layers(cfg: Config) -> int:
    return cfg.size("num_hidden_layers", most=MAX_LAYERS)


def num_heads(cfg: Config) -> int:
    return cfg.size("num_attention_heads")


def attention(
    cfg: Config,
    *,
    kv_default: int | None = None,
    head_dim: int | None = None,
    bias: bool = False,
    output_bias: bool | None = None,
    qk_norm: bool = False,
    qk_norm_all_heads: bool = False,
    sinks: bool = False,
) -> Attention:
    """Multi-head or grouped-query attention. `head_dim` defaults to the config's own, else to
    hidden / heads.

    `bias` is that of the queries, keys and values, and of the output too unless `output_bias` says
    otherwise.
    """
    heads = num_heads(cfg)
    kv_heads = cfg.size("num_key_value_heads", kv_default)
    if heads % kv_heads:
        raise cfg.invalid(
            "num_key_value_heads", f"must divide {cfg.where('num_attention_heads')} = {heads}"
        )
    dim = head_dim or _head_dim(cfg, heads)
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        v_head_dim=dim,
        qkv_bias=bias,
        output_bias=bias if output_bias is None else output_bias,
        qk_norm=qk_norm,
        qk_norm_all_heads=qk_norm_all_heads,
        sinks=sinks,
    )


def _head_dim(cfg: Config, heads: int) -> int:
    if cfg.get("head_dim") is not None:
        return cfg.size("head_dim")
    hidden = cfg.size("hidden_size")
    if hidden % heads:
        rule = (
            f"is required: {cfg.where('hidden_size')} / {cfg.where('num_attention_heads')} ="
            f" {hidden}/{heads}"
        )
        raise Invalid(cfg.where("head_dim"), None, f"{rule} is not whole")
    return hidden // heads


def layered(
    cfg: Config, block: Attention, kind: Callable[[int], str] | None = None
) -> list[Attention]:
    """The attention of every layer: by `layer_types` if the config has it, else by the family's
    `kind` of an index.

    `use_sliding_window: false` switches all windows off, whatever else is written.
    """
    count = num_layers(cfg)
    kinds = cfg.words("layer_types", count) or [
        kind(index) if kind else FULL for index in range(count)
    ]
    blocks = {kind: _windowed(cfg, block, kind) for kind in dict.fromkeys(kinds)}
    return [blocks[kind] for kind in kinds]


def _windowed(cfg: Config, block: Attention, kind: str) -> Attention:
    if kind != FULL and kind not in _WINDOW_KEYS:
        raise Unsupported(cfg.where("layer_types"), shown(kind), "layers of this kind")
    if kind == FULL or not _windows_on(cfg):
        return block
    return replace(block, window=cfg.size(_WINDOW_KEYS[kind]), chunked=kind == CHUNKED)


def _windows_on(cfg: Config) -> bool:
    return cfg.flag("use_sliding_window", True)


def every(period: int) -> Callable[[int], str]:
    """Every `period`-th layer sees everything, those between them a window."""
    return lambda index: SLIDING if (index + 1) % period else FULL


def throughout(cfg: Config) -> Callable[[int], str]:
    """All layers slide, if there is a window at all."""
    return lambda _: FULL if cfg.get("sliding_window") is None else SLIDING


def from_layer(cfg: Config) -> Callable[[int], str] | None:
    """Layers from `max_window_layers` on slide, if there is a window at all."""
    if not _windows_on(cfg) or cfg.size_or_none("sliding_window") is None:
        return None
    first = cfg.count("max_window_layers")
    return lambda index: SLIDING if index >= first else FULL


def stating_windows(cfg: Config) -> Config:
    """A config without windows, or one whose layer_types says where they are: transformers' rules
    for it changed."""
    cfg = cfg.assuming(use_sliding_window=False)
    if _windows_on(cfg) and not cfg.get("layer_types"):
        raise cfg.missing("layer_types")
    return cfg


def gated(cfg: Config, bias: bool = False) -> Mlp:
    return Mlp(intermediate_size=cfg.size("intermediate_size"), bias=bias)


def plain(cfg: Config, bias: bool = False, default: int | None = None) -> Mlp:
    return Mlp(intermediate_size=cfg.size("intermediate_size", default), gated=False, bias=bias)


def experts(
    cfg: Config,
    *,
    count: str = "num_experts",
    top_k: str = "num_experts_per_tok",
    width: str = "moe_intermediate_size",
    shared: int = 0,
    selection_bias: bool = False,
) -> Moe:
    """Routed experts by the family's keys, and a shared expert of `shared` such widths."""
    num_experts, per_token = cfg.size(count), cfg.size(top_k)
    if per_token > num_experts:
        raise cfg.invalid(top_k, f"must be at most {cfg.where(count)} = {num_experts}")
    num_groups, chosen = _groups(cfg, num_experts, per_token)
    return Moe(
        num_experts=num_experts,
        experts_per_token=per_token,
        intermediate_size=cfg.size(width),
        shared_intermediate_size=shared * cfg.size(width),
        selection_bias=selection_bias,
        num_groups=num_groups,
        groups_per_token=chosen,
    )


def _groups(cfg: Config, num_experts: int, per_token: int) -> tuple[int, int]:
    """Of experts, and of how many of them a token's are."""
    if cfg.null("n_group") or cfg.null("topk_group"):
        return 1, 1
    groups, chosen = cfg.size("n_group", 1), cfg.size("topk_group", 1)
    if num_experts % groups:
        raise cfg.invalid("n_group", f"must divide {num_experts} experts")
    if chosen > groups or per_token > chosen * (num_experts // groups):
        raise cfg.invalid(
            "topk_group", f"must be of n_group = {groups} groups that hold {per_token} experts"
        )
    return groups, chosen


def num_shared(cfg: Config, key: str = "n_shared_experts") -> int:
    return 0 if cfg.null(key) else cfg.count(key, most=MAX_LAYERS)


def mixed(
    cfg: Config, sparse: Callable[[int], bool], moe: Moe, dense: Callable[[Config], Mlp] = gated
) -> list[Mlp | Moe]:
    """Experts in the layers that `sparse` picks, in the others the dense MLP: its keys are read
    only if needed."""
    picked = [sparse(index) for index in range(num_layers(cfg))]
    mlp = moe if all(picked) else dense(cfg)
    return [moe if pick else mlp for pick in picked]


def after_dense(cfg: Config) -> Callable[[int], bool]:
    """DeepSeek's rule: sparse from `first_k_dense_replace` on, where `moe_layer_freq` (a period or
    a list) says so."""
    count, first = num_layers(cfg), cfg.count("first_k_dense_replace")
    chosen = (
        cfg.switches("moe_layer_freq", count) if isinstance(cfg.get("moe_layer_freq"), list) else []
    )
    if chosen:
        return lambda index: index >= first and chosen[index]
    period = cfg.size("moe_layer_freq", 1)
    return lambda index: index >= first and index % period == 0


def decoder(
    cfg: Config,
    attentions: Sequence[Attention],
    feed_forward: Mlp | Moe | Sequence[Mlp | Moe],
    *,
    tied: bool = False,
    num_norms: int = 2,
    norm_bias: bool = False,
    parallel: bool = False,
    post_norms: bool = False,
) -> Architecture:
    """The stack; `tied` is what the family means by an absent tie_word_embeddings, `parallel`:
    attention and MLP run side by side; `post_norms`: each is followed by its norm."""
    blocks = (
        [feed_forward] * len(attentions) if isinstance(feed_forward, (Mlp, Moe)) else feed_forward
    )
    norms: dict[str, Any] = {
        "num_norms": num_norms,
        "norm_bias": norm_bias,
        "post_norms": post_norms,
    }
    layers = (
        Layer(attention=block, feed_forward=mlp, parallel=parallel, **norms)
        for block, mlp in zip(attentions, blocks, strict=True)
    )
    return Architecture(
        name=cfg.name,
        hidden_size=cfg.size("hidden_size"),
        vocab_size=cfg.size("vocab_size"),
        layers=tuple(layers),
        tie_word_embeddings=cfg.flag("tie_word_embeddings", tied),
        final_norm_bias=norm_bias,
    )
