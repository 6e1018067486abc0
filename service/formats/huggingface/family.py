"""A family of Hugging Face models, which are read by the same rules: one row of `families.json`.

A *part* is a function that reads one part of a layer, such as its attention, from a config. The
*kind* of a layer is what it mixes tokens with: attention of some form, or a recurrence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from models.errors import Unsupported
from models.spec.architecture import Architecture
from models.spec.attention import Attention
from models.spec.feed_forward import Mlp, Moe
from models.spec.layer import Layer
from service.formats.huggingface.config import MAX_LAYERS, Config, shown
from service.formats.huggingface.mixers import LayerPart
from service.formats.huggingface.parts import (
    AttentionPart,
    MlpPart,
    MoePart,
    Switch,
    gated,
    heads,
    is_on,
)
from service.formats.huggingface.patterns import (
    Kinds,
    Sparse,
    all_full,
    all_sparse,
    attention_layers,
    feed_forward_layers,
    num_layers,
    undescribed_kind,
)

_EXPERT_COUNT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True, kw_only=True)
class Norms:
    """Norms say where normalisation stands relative to attention, MLP and residual stream, in the
    terms of `Layer`."""

    num: int = 2
    weight: bool = True
    bias: bool = False
    behind: bool = False
    parallel: bool = False


@dataclass(frozen=True)
class Refused:
    """A switch that adds what the cost model does not describe where it has `value`."""

    key: str
    missing: str
    """The part of a model that is not described, in the words of the error."""
    value: bool = True


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family says what the keys of its configs mean."""

    keys: Mapping[str, str] = field(default_factory=dict)
    """From a common key to the one that this family uses."""
    prepare: Callable[[Config], Config] = lambda cfg: cfg
    """Rewrites a config into the common terms, and refuses what has none."""
    refused: tuple[Refused, ...] = ()
    attention: AttentionPart = heads()
    kinds: Kinds = all_full
    """Which layer is of which kind. The configs of most families state it themselves."""
    mlp: MlpPart = gated()
    experts: MoePart | None = None
    sparse: Sparse = all_sparse
    """Which layers have experts."""
    listed: Callable[[Config], Sequence[tuple[Attention | None, Mlp | Moe | None]]] | None = None
    """Reads layers that are listed one by one, in place of the five fields above."""
    norms: Norms | Callable[[Config], Norms] = Norms()
    experts_normed: bool = False
    """Layers with experts have one more norm, behind these."""
    lm_head_bias: Switch = False
    learned_positions: str | None = None
    """The key with the number of positions that have an embedding."""
    more_positions: int = 0
    """Embeddings of positions beyond that number."""
    has_positions: Callable[[Config], bool] = lambda cfg: True
    described: tuple[str, ...] = ()
    """Keys of features that other families do not have, for which their configs are refused."""

    def read(self, cfg: Config) -> Architecture:
        """Returns the architecture of a config. Raises Invalid for impossible values, and
        Unsupported for what the cost model does not cover."""
        cfg = self.prepare(cfg.respell(self.keys))
        for refusal in self.refused:
            cfg.refuse(refusal.key, refusal.missing, refusal.value)
        norms = self.norms if isinstance(self.norms, Norms) else self.norms(cfg)
        layers = tuple(self.layers(cfg, norms))
        positions = self.learned_positions
        return Architecture(
            name=cfg.name,
            hidden_size=cfg.size("hidden_size"),
            vocab_size=cfg.size("vocab_size"),
            layers=layers,
            tie_word_embeddings=cfg.flag("tie_word_embeddings"),
            mtp_layers=mtp_layers(cfg),
            learned_positions=cfg.size(positions) + self.more_positions if positions else 0,
            lm_head_bias=is_on(cfg, self.lm_head_bias),
            final_norm_weight=norms.weight,
            final_norm_bias=norms.bias,
        )

    def layers(self, cfg: Config, norms: Norms) -> list[Layer]:
        """Returns the layers of the model. A layer with neither attention nor a feed-forward
        network, as some configs list, is left out."""
        return [
            Layer(
                attention=attention,
                feed_forward=feed_forward,
                num_norms=self._num_norms(norms, attention, feed_forward),
                norm_weight=norms.weight,
                norm_bias=norms.bias,
                post_norms=norms.behind,
                parallel=norms.parallel,
            )
            for attention, feed_forward in self._layer_blocks(cfg)
            if attention or feed_forward
        ]

    def _layer_blocks(self, cfg: Config) -> Iterable[tuple[Attention | None, Mlp | Moe | None]]:
        """Returns the attention and the feed-forward network of each layer."""
        if self.listed is not None:
            return self.listed(cfg)
        attentions = attention_layers(cfg, self.attention, self.kinds)
        return zip(attentions, self.feed_forward_networks(cfg), strict=True)

    def _num_norms(
        self, norms: Norms, attention: Attention | None, feed_forward: Mlp | Moe | None
    ) -> int:
        """Returns the number of norms of a layer. A layer that has only attention, or only a
        network, has one, and experts may have one more (`experts_normed`)."""
        num = norms.num if attention and feed_forward else 1
        return num + (self.experts_normed and isinstance(feed_forward, Moe))

    def feed_forward_networks(self, cfg: Config) -> list[Mlp | Moe]:
        """Returns the feed-forward network of each layer."""
        if self.experts is not None:
            return feed_forward_layers(cfg, self.mlp, self.experts, self.sparse)
        _require_dense(cfg)
        return [self.mlp(cfg)] * num_layers(cfg)


@dataclass(frozen=True, kw_only=True)
class Hybrid(Family):
    """A family whose layers have one of several mixers. `kinds` says which layer is of which kind,
    `mixers` has the reader of each kind, and `attention` is not used."""

    mixers: Mapping[str, LayerPart]
    one_block: bool = False
    """A layer has a mixer or a feed-forward network, not both; `mixers` has the readers of both."""

    def layers(self, cfg: Config, norms: Norms) -> list[Layer]:
        """Returns the layers of the model, each read by the mixer of its kind. With `one_block`
        a layer is a mixer or a network alone; otherwise each mixer gets the network of its
        index."""
        kind_of = self.kinds(cfg)
        kinds = [kind_of(index) for index in range(num_layers(cfg))]
        layer_of_kind = {kind: self._layer_of_kind(cfg, kind) for kind in dict.fromkeys(kinds)}
        layers = [layer_of_kind[kind] for kind in kinds]
        if self.one_block:
            return [replace(layer, num_norms=1) for layer in layers]  # a norm for its one block
        pairs = zip(layers, self.feed_forward_networks(cfg), strict=True)
        return [replace(layer, feed_forward=network) for layer, network in pairs]

    def _layer_of_kind(self, cfg: Config, kind: str) -> Layer:
        """Returns a layer of this kind. Raises Unsupported for a kind that the family does not
        describe."""
        if kind not in self.mixers:
            raise undescribed_kind(cfg, kind, self.mixers)
        return self.mixers[kind](cfg)


def mtp_layers(cfg: Config) -> int:
    """Returns the number of multi-token-prediction modules, which are not among the layers."""
    return cfg.count("num_nextn_predict_layers", 0, most=MAX_LAYERS)


def _require_dense(cfg: Config) -> None:
    """Raises Unsupported where a config of a dense family has experts."""
    for key in _EXPERT_COUNT_KEYS:
        if (count := cfg.get(key)) is not None and count not in (0, 1):
            missing = f"experts in the dense family {cfg.model_type}"
            raise Unsupported(cfg.where(key), shown(count), missing)
