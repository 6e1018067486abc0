"""Reads which layers of a model are of which kind, and which have experts.

The *kind* of a layer is what it mixes tokens with: attention over all of a sequence (FULL), over a
window (SLIDING) or within a chunk (CHUNKED), or a recurrence (LINEAR). A *sparse* layer has
experts. A *reader* takes a config and returns a function from the index of a layer to its kind, or
to whether it has experts. The rows of `families.json` name the readers here, or the functions that
make one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from models.errors import Unsupported
from models.spec.attention import Attention
from models.spec.feed_forward import Mlp, Moe
from service.formats.huggingface.config import MAX_LAYERS, Config, shown
from service.formats.huggingface.parts import AttentionPart, MlpPart, MoePart

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
_WINDOW_KEYS = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}
LINEAR, INDEXED = "linear_attention", "indexed_attention"
DENSE, SPARSE = "dense", "sparse"
_RENAMED = {"mamba": LINEAR, "attention": FULL, "deepseek_sparse_attention": INDEXED}
"""Kinds of layers by their names in files from before transformers 5.20."""

Kinds: TypeAlias = Callable[[Config], Callable[[int], str]]
"""The kind of attention of each layer by its index."""
Sparse: TypeAlias = Callable[[Config], Callable[[int], bool]]
"""Returns a test of whether the layer with this index has experts."""


def num_layers(cfg: Config) -> int:
    return cfg.size("num_hidden_layers", most=MAX_LAYERS)


def all_full(cfg: Config) -> Callable[[int], str]:
    return lambda _: FULL


def all_sparse(cfg: Config) -> Callable[[int], bool]:
    return lambda _: True


def full_every(period: int, key: str | None = None) -> Kinds:
    """Returns a reader of the kinds of layers: every `period`-th sees the whole sequence, the
    others a window. The config may have another period under `key`."""

    def read(cfg: Config) -> Callable[[int], str]:
        """Returns a function from the index of a layer to its kind. The period is the number under
        `key`, or else `period`."""
        every = cfg.size(key, period, most=MAX_LAYERS) if key else period
        return lambda index: SLIDING if (index + 1) % every else FULL

    return read


def repeating(*kinds: str) -> Kinds:
    """Returns a reader of the kinds of layers: these in this order, again and again."""
    return lambda cfg: lambda index: kinds[index % len(kinds)]


def letters_or_period(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind. `sliding_window_pattern` is a
    period of layers that see the whole sequence, 4 by default, or letters that repeat: L for a
    window, G for the whole sequence. Without a window all layers see it (EXAONE 4)."""
    if cfg.null("sliding_window"):
        return all_full(cfg)
    pattern = cfg.get("sliding_window_pattern")
    if not isinstance(pattern, str):
        return full_every(4, "sliding_window_pattern")(cfg)
    if not pattern or not set(pattern) <= {"L", "G"}:
        raise cfg.invalid("sliding_window_pattern", "must be a period, or made of L and G")
    return lambda index: SLIDING if pattern[index % len(pattern)] == "L" else FULL


def windows_in_all_layers(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind: a sliding window in all layers,
    where the config has one."""
    return lambda _: FULL if cfg.get("sliding_window") is None else SLIDING


def windows_from_layer(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind. Layers from `max_window_layers`
    on have a sliding window, where the config has one."""
    if not _has_windows(cfg) or cfg.size_or_none("sliding_window") is None:
        return all_full(cfg)
    first = cfg.count("max_window_layers")
    return lambda index: SLIDING if index >= first else FULL


def stated_windows(cfg: Config) -> Callable[[int], str]:
    """Returns a function from the index of a layer to its kind, for a config without layer_types:
    full attention everywhere. Raises Invalid where windows are on, because transformers has
    changed its rule for which layers of these families have them."""
    if _has_windows(cfg):
        raise cfg.missing("layer_types")
    return all_full(cfg)


def _has_windows(cfg: Config) -> bool:
    return cfg.flag("use_sliding_window", default=True)


def stated_or(default: Kinds) -> Kinds:
    """Returns a reader of the kinds of layers: those in `layer_types`, or else those of
    `default`."""

    def read(cfg: Config) -> Callable[[int], str]:
        """Returns a function from the index of a layer to its kind, in the words of this file. A
        config without a list of kinds is read by `default`."""
        layer_types = cfg.words("layer_types", num_layers(cfg))
        if not layer_types:
            return default(cfg)
        return [_RENAMED.get(kind, kind) for kind in layer_types].__getitem__

    return read


def all_of(kind: str) -> Kinds:
    return lambda cfg: lambda index: kind


def attention_every(period: int, key: str | None = None) -> Kinds:
    """Returns a reader of the kinds of layers: every `period`-th has attention, the others a
    recurrence. The config may have another period under `key`."""

    def read(cfg: Config) -> Callable[[int], str]:
        """Returns a function from the index of a layer to its kind. The period is the number under
        `key`, or else `period`."""
        every = cfg.size(key, period) if key else period
        return lambda index: LINEAR if (index + 1) % every else FULL

    return read


def attention_layers(cfg: Config, part: AttentionPart, kinds: Kinds) -> list[Attention]:
    """Returns the attention of every layer: `part` reads it, and `layer_types` or else `kinds` say
    which layers see a window.

    `use_sliding_window: false` switches all windows off.
    """
    count = num_layers(cfg)
    layer_types = cfg.words("layer_types", count)
    if not layer_types:
        kind_of = kinds(cfg)
        layer_types = [kind_of(index) for index in range(count)]
    blocks = {kind: _attention_of_kind(cfg, part, kind) for kind in dict.fromkeys(layer_types)}
    return [blocks[kind] for kind in layer_types]


def _attention_of_kind(cfg: Config, part: AttentionPart, kind: str) -> Attention:
    """Returns the attention of layers of one kind, with their window. Raises Unsupported for an
    unknown kind."""
    if kind != FULL and kind not in _WINDOW_KEYS:
        raise undescribed_kind(cfg, kind, (FULL, *_WINDOW_KEYS))
    block = part(cfg, kind)
    if kind == FULL or not _has_windows(cfg):
        return block
    return replace(
        block, sliding_window=cfg.size(_WINDOW_KEYS[kind]), chunked_attention=kind == CHUNKED
    )


def undescribed_kind(cfg: Config, kind: str, known: Iterable[str]) -> Unsupported:
    """Returns the error for a kind of layer that the family does not have; `known` are those it
    has."""
    missing = f"layers of this kind; those of this family are {', '.join(known)}"
    return Unsupported(cfg.where("layer_types"), shown(kind), missing)


def sparse_from(key: str, default: int | None = None) -> Sparse:
    """Returns a reader of which layers have experts: all from the index that the config has
    under `key`, or else from `default`."""

    def read(cfg: Config) -> Callable[[int], bool]:
        """Returns a test of whether the layer at an index has experts: those from the first on,
        whose index the config has under `key`, or else `default`."""
        first = cfg.count(key, default)
        return lambda index: index >= first

    return read


def sparse_where_listed(otherwise: Sparse) -> Sparse:
    """Returns a reader of which layers have experts: those with 1 in the list `moe_layer_freq`,
    or else those of `otherwise`."""

    def read(cfg: Config) -> Callable[[int], bool]:
        """Returns a test of whether the layer at an index has experts, by the list of zeros and
        ones that the config has, or else by the reader `otherwise`."""
        switches = cfg.switches("moe_layer_freq", num_layers(cfg))
        return switches.__getitem__ if switches else otherwise(cfg)

    return read


def sparse_after_first(cfg: Config) -> Callable[[int], bool]:
    return lambda index: index > 0


def deepseek_sparse(cfg: Config) -> Callable[[int], bool]:
    """Returns a test of whether the layer at an index has experts: layers from
    `first_k_dense_replace` on, at the period in `moe_layer_freq` or where it lists 1."""
    first = cfg.count("first_k_dense_replace")
    if isinstance(cfg.get("moe_layer_freq"), list):
        switches = cfg.switches("moe_layer_freq", num_layers(cfg))
        if switches:  # an empty list is refused below, where it is read as a number
            return lambda index: index >= first and switches[index]
    period = cfg.size("moe_layer_freq", 1)
    return lambda index: index >= first and index % period == 0


def qwen_sparse(cfg: Config) -> Callable[[int], bool]:
    """Returns a test of whether the layer at an index has experts: the last of every
    `decoder_sparse_step` layers, unless `mlp_only_layers` lists it."""
    dense = cfg.indices("mlp_only_layers", num_layers(cfg))
    step = cfg.size("decoder_sparse_step", 1)
    return lambda index: index not in dense and (index + 1) % step == 0


def feed_forward_layers(
    cfg: Config, dense: MlpPart, sparse: MoePart, is_sparse: Sparse
) -> list[Mlp | Moe]:
    """Returns the feed-forward network of every layer. `mlp_layer_types`, or else `is_sparse`,
    says which layers have experts. Keys of dense or sparse networks are read only where a layer
    has such a network."""
    count = num_layers(cfg)
    layer_types = cfg.words("mlp_layer_types", count)
    if not set(layer_types) <= {DENSE, SPARSE}:
        raise cfg.invalid("mlp_layer_types", f"must be made of {DENSE} and {SPARSE}")
    if not layer_types:
        sparse_at = is_sparse(cfg)
        layer_types = [SPARSE if sparse_at(index) else DENSE for index in range(count)]
    parts: dict[str, MlpPart | MoePart] = {DENSE: dense, SPARSE: sparse}
    blocks = {kind: parts[kind](cfg) for kind in dict.fromkeys(layer_types)}
    return [blocks[kind] for kind in layer_types]
