"""The parts that readers of Hugging Face families share: attention, windows, MLPs, experts and the
stack of layers."""

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
    """Multi-head or grouped-query attention.

    `kv_default` is the number of key-value heads where the config does not say; `head_dim` defaults
    to the config's own, or else to hidden_size / num_attention_heads. `bias` is that of queries,
    keys and values, and of the output too unless `output_bias` says otherwise.
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


def attention_layers(
    cfg: Config, block: Attention, kind: Callable[[int], str] | None = None
) -> list[Attention]:
    """The attention of every layer. Its kind is that of `layer_types` if the config has that key,
    or else what the family's `kind` returns for the index of the layer.

    `use_sliding_window: false` switches all windows off, whatever else is written.
    """
    count = num_layers(cfg)
    kinds = cfg.words("layer_types", count)
    if not kinds:
        kinds = [kind(index) if kind else FULL for index in range(count)]
    blocks = {kind: _attention_of_kind(cfg, block, kind) for kind in dict.fromkeys(kinds)}
    return [blocks[kind] for kind in kinds]


def _attention_of_kind(cfg: Config, block: Attention, kind: str) -> Attention:
    if kind != FULL and kind not in _WINDOW_KEYS:
        raise Unsupported(cfg.where("layer_types"), shown(kind), "layers of this kind")
    if kind == FULL or not _has_windows(cfg):
        return block
    return replace(block, window=cfg.size(_WINDOW_KEYS[kind]), chunked=kind == CHUNKED)


def _has_windows(cfg: Config) -> bool:
    return cfg.flag("use_sliding_window", True)


def full_every(period: int) -> Callable[[int], str]:
    """Every `period`-th layer sees the whole sequence, and the others a window."""
    return lambda index: SLIDING if (index + 1) % period else FULL


def windows_in_all_layers(cfg: Config) -> Callable[[int], str]:
    """All layers have a sliding window, if the config has one at all."""
    return lambda _: FULL if cfg.get("sliding_window") is None else SLIDING


def windows_from_layer(cfg: Config) -> Callable[[int], str] | None:
    """Layers from `max_window_layers` on have a sliding window, if the config has one at all."""
    if not _has_windows(cfg) or cfg.size_or_none("sliding_window") is None:
        return None
    first = cfg.count("max_window_layers")
    return lambda index: SLIDING if index >= first else FULL


def require_stated_windows(cfg: Config) -> Config:
    """The config, which must be without windows unless its layer_types say where they are: the
    rules of transformers for this family changed over time."""
    cfg = cfg.assuming(use_sliding_window=False)
    if _has_windows(cfg) and not cfg.get("layer_types"):
        raise cfg.missing("layer_types")
    return cfg


def gated_mlp(cfg: Config, bias: bool = False) -> Mlp:
    return Mlp(intermediate_size=cfg.size("intermediate_size"), bias=bias)


def plain_mlp(cfg: Config, bias: bool = False, default: int | None = None) -> Mlp:
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
    """Routed experts by the keys of the family, and a shared expert that is `shared` times as wide
    as one of them."""
    num_experts = cfg.size(count)
    per_token = cfg.size(top_k)
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
    """The number of groups of experts, and of how many groups a token's experts are."""
    if cfg.null("n_group") or cfg.null("topk_group"):
        return 1, 1
    groups = cfg.size("n_group", 1)
    chosen = cfg.size("topk_group", 1)
    if num_experts % groups:
        raise cfg.invalid("n_group", f"must divide {num_experts} experts")
    if chosen > groups or per_token > chosen * (num_experts // groups):
        raise cfg.invalid(
            "topk_group", f"must be of n_group = {groups} groups that hold {per_token} experts"
        )
    return groups, chosen


def num_shared_experts(cfg: Config, key: str = "n_shared_experts") -> int:
    return 0 if cfg.null(key) else cfg.count(key, most=MAX_LAYERS)


def feed_forward_layers(
    cfg: Config, sparse: Callable[[int], bool], moe: Moe, dense: Callable[[Config], Mlp] = gated_mlp
) -> list[Mlp | Moe]:
    """The feed-forward part of each layer: experts where `sparse` says so of its index, and the
    dense MLP elsewhere. The keys of the MLP are read only if a layer has one."""
    is_sparse = [sparse(index) for index in range(num_layers(cfg))]
    mlp = moe if all(is_sparse) else dense(cfg)
    return [moe if sparse_layer else mlp for sparse_layer in is_sparse]


def deepseek_sparse_layers(cfg: Config) -> Callable[[int], bool]:
    """DeepSeek's rule: layers from `first_k_dense_replace` on are sparse, where `moe_layer_freq` (a
    period or a list) says so."""
    first = cfg.count("first_k_dense_replace")
    if isinstance(cfg.get("moe_layer_freq"), list):
        switches = cfg.switches("moe_layer_freq", num_layers(cfg))
        if switches:
            return lambda index: index >= first and switches[index]
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
    """The whole architecture.

    `tied` is what the family means by an absent tie_word_embeddings. With `parallel` attention and
    MLP run side by side; with `post_norms` each is followed by its norm.
    """
    if isinstance(feed_forward, (Mlp, Moe)):
        feed_forward = [feed_forward] * len(attentions)
    norms: dict[str, Any] = {
        "num_norms": num_norms,
        "norm_bias": norm_bias,
        "post_norms": post_norms,
    }
    layers = (
        Layer(attention=block, feed_forward=mlp, parallel=parallel, **norms)
        for block, mlp in zip(attentions, feed_forward, strict=True)
    )
    return Architecture(
        name=cfg.name,
        hidden_size=cfg.size("hidden_size"),
        vocab_size=cfg.size("vocab_size"),
        layers=tuple(layers),
        tie_word_embeddings=cfg.flag("tie_word_embeddings", tied),
        final_norm_bias=norm_bias,
    )
