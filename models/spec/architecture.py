"""The transformer: its layers, their shapes and their parameters.

An :class:`Architecture` is one list of layers. Configs write down in many ways which layers are of
what kind (layer_types, periods, pattern strings). All of them are turned into that list when they
are read, so that nothing downstream asks "which layers are dense?". A *kind* stands for all equal
layers of the list.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from models.errors import Invalid
from models.spec.attention import Attention
from models.spec.encoder import Encoder
from models.spec.feed_forward import Mlp, Moe
from models.spec.layer import Layer
from models.spec.recurrence import Mamba2, Recurrence

MAX_LAYERS = 1024  # the deepest model that a request may have


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Numbers of parameters by part of the model."""

    total: int
    """Parameters of the language model, counted as model cards and transformers do: without the
    modules of multi-token prediction and without the encoder of images."""
    embedding: int
    lm_head: int
    experts: int
    """Parameters in routed experts."""
    active: int
    """Parameters that one token visits: all but the routed experts that it is not sent to."""
    mtp: int
    """Parameters in the modules of multi-token prediction."""
    encoder: int
    """Parameters in the encoder of images and its projector."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder-only transformer, which may have an encoder of images. Only old model families have
    `learned_positions`, `lm_head_bias` and `final_norm_bias`."""

    name: str
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    tie_word_embeddings: bool = False
    mtp_layers: int = 0
    """The number of modules of multi-token prediction; each has a layer like the last."""
    learned_positions: int = 0
    """The number of positions with a learned embedding; 0 where positions are rotary or absent."""
    lm_head_bias: bool = False
    final_norm_weight: bool = True
    final_norm_bias: bool = False
    encoder: Encoder | None = None
    head_size: int | None = None
    """The outputs of the output projection for every token; None stands for one logit for every
    word."""

    @property
    def head_outputs(self) -> int:
        return self.vocab_size if self.head_size is None else self.head_size

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """The distinct layers, in order of first appearance."""
        return tuple(dict.fromkeys(self.layers))

    @cached_property
    def layer_runs(self) -> tuple[tuple[int, int], ...]:
        """The layers run-length encoded: pairs of an index into `kinds` and a number of layers in a
        row."""
        index = {kind: i for i, kind in enumerate(self.kinds)}
        return tuple(
            (kind, len(list(run))) for kind, run in groupby(index[layer] for layer in self.layers)
        )

    @cached_property
    def layers_per_kind(self) -> tuple[int, ...]:
        """The number of layers of each of `kinds`."""
        return tuple(map(self.layers.count, self.kinds))

    @cached_property
    def layers_per_kind_with_mtp(self) -> tuple[int, ...]:
        """The number of layers of each of `kinds` that run in training: those of the model, and one
        of the last layer's kind for each module of multi-token prediction (MTP)."""
        counts = [*self.layers_per_kind]
        counts[self.kinds.index(self.layers[-1])] += self.mtp_layers
        return tuple(counts)

    @property
    def attentions(self) -> list[Attention]:
        """The attention of every kind of layer that has one."""
        return [layer.attention for layer in self.kinds if layer.attention]

    @property
    def recurrences(self) -> list[Recurrence]:
        """The recurrence of every kind of layer that has one."""
        return [layer.recurrence for layer in self.kinds if layer.recurrence]

    @property
    def residual_streams(self) -> int:
        return max(layer.residual_streams for layer in self.kinds)

    @property
    def is_moe(self) -> bool:
        return any(layer.moe for layer in self.kinds)

    @property
    def is_hybrid(self) -> bool:
        """True where some layer has Mamba-2, or has a mixer alone or a network alone. Frameworks
        run such models with other code than transformers."""
        has_state_space = any(isinstance(recurrence, Mamba2) for recurrence in self.recurrences)
        return has_state_space or any(layer.blocks == 1 for layer in self.kinds)

    def with_depth_scaled(self, times: float) -> Architecture:
        """Return this architecture made `times` times as deep, for sweeps over the size of a model.
        Kinds of layers keep their order and their proportions. Raise Invalid above MAX_LAYERS."""
        depth = self.num_layers
        scaled = max(round(times * depth), 1)
        if scaled > MAX_LAYERS:
            rule = f"makes {scaled} layers of {depth}; a model has at most {MAX_LAYERS}"
            raise Invalid("layers", times, rule)
        # Each layer is that of the same relative depth in this architecture.
        return replace(self, layers=tuple(self.layers[i * depth // scaled] for i in range(scaled)))

    @cached_property
    def parameters(self) -> ParameterCount:
        """The numbers of parameters of the model and of its parts."""
        h = self.hidden_size
        body = 0
        experts = 0
        inactive = 0
        for layer, count in zip(self.kinds, self.layers_per_kind, strict=True):
            body += count * layer.parameters(h)
            if moe := layer.moe:
                experts += count * moe.expert_parameters(h)
                # A token is sent to some experts; the others are inactive for it.
                unvisited = moe.num_experts - moe.experts_per_token
                inactive += count * unvisited * moe.expert.parameters(moe.token_size(h))
        embedding = (self.vocab_size + self.learned_positions) * h
        lm_head = 0 if self.tie_word_embeddings else self.head_outputs * h
        # A tied head shares the matrix of the embedding, but its bias is its own.
        lm_head += self.head_outputs if self.lm_head_bias else 0
        total = body + embedding + lm_head + h * (self.final_norm_weight + self.final_norm_bias)
        streams = self.residual_streams
        if streams > 1:  # weights that join the streams before the head (DeepseekV4HyperHead)
            total += streams * streams * h + streams + 1
        return ParameterCount(
            total=total,
            embedding=embedding,
            lm_head=lm_head,
            experts=experts,
            active=total - inactive,
            mtp=self.mtp_layers * self.mtp_parameters,
            encoder=self.encoder.parameters if self.encoder else 0,
        )

    @property
    def mtp_parameters(self) -> int:
        """The parameters of one module of multi-token prediction: a layer like the last, a
        projection from 2h to h and three norms. It shares embedding and head with the main model
        (DeepSeek-V3, arXiv 2412.19437 §2.2)."""
        h = self.hidden_size
        return self.layers[-1].parameters(h) + 2 * h * h + 3 * h

    @classmethod
    def from_shape(
        cls,
        *,
        name: str,
        num_layers: int,
        hidden_size: int,
        intermediate_size: int,
        num_attention_heads: int,
        vocab_size: int,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        gated_mlp: bool = True,
        tie_word_embeddings: bool = False,
        qk_norm: bool = False,
        attention_bias: bool = False,
        attention_output_bias: bool | None = None,
        num_norms: int = 2,
        parallel_blocks: bool | None = None,
        sliding_window: int | None = None,
        chunked_attention: bool = False,
        full_attention_period: int | None = None,
        mla: MlaShape | None = None,
        moe: MoeShape | None = None,
        mtp_layers: int = 0,
    ) -> Architecture:
        """Return an architecture made from the fields that people write down.

        With a `sliding_window`, every `full_attention_period`-th layer has full attention instead;
        without a period, none has. Where `attention_output_bias` is not given, the output
        projection has a bias if the other projections have one and there is no MLA. Where
        `parallel_blocks` is not given, blocks are parallel if a layer has one norm. Raise Invalid
        where fields contradict each other.
        """
        full = _attention(
            hidden_size=hidden_size,
            num_heads=num_attention_heads,
            num_kv_heads=num_key_value_heads,
            head_dim=head_dim,
            mla=mla,
            qk_norm=qk_norm,
            bias=attention_bias,
        )
        if attention_output_bias is not None:
            full = replace(full, attention_output_bias=attention_output_bias)
        if full_attention_period is not None and sliding_window is None:
            raise Invalid("full_attention_period", full_attention_period, "needs sliding_window")
        if chunked_attention and sliding_window is None:
            rule = "needs sliding_window, the length of a chunk"
            raise Invalid("chunked_attention", chunked_attention, rule)
        # Layers between those of full attention. Without a window they are the same.
        local = replace(full, sliding_window=sliding_window, chunked_attention=chunked_attention)
        dense = Mlp(intermediate_size=intermediate_size, gated=gated_mlp)
        parallel = num_norms == 1 if parallel_blocks is None else parallel_blocks
        layers = []
        for index in range(num_layers):
            is_full = full_attention_period and (index + 1) % full_attention_period == 0
            layer = Layer(
                attention=full if is_full else local,
                feed_forward=moe.feed_forward(gated_mlp) if moe and moe.is_sparse(index) else dense,
                num_norms=num_norms,
                parallel=parallel,
            )
            layers.append(layer)
        return cls(
            name=name,
            hidden_size=hidden_size,
            vocab_size=vocab_size,
            layers=tuple(layers),
            tie_word_embeddings=tie_word_embeddings,
            mtp_layers=mtp_layers,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaShape:
    """The fields of multi-head latent attention, as configs write them down (DeepSeek-V2, arXiv
    2405.04434)."""

    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape:
    """The sparse layers of a model and their shape, as configs write them down.

    The first `first_k_dense` layers are dense. Among the other layers, the last of every
    `moe_layer_freq` in a row is sparse (every second one in Llama-4 Maverick). With `bias`, the
    router and every expert have biases (gpt-oss). Where `groups_per_token` is not given, a token
    may go to all groups.
    """

    num_experts: int
    experts_per_token: int
    moe_intermediate_size: int
    num_shared_experts: int = 0
    shared_expert_intermediate_size: int | None = None
    first_k_dense: int = 0
    moe_layer_freq: int = 1
    bias: bool = False
    num_groups: int = 1
    groups_per_token: int | None = None

    def is_sparse(self, index: int) -> bool:
        """Say whether the layer with this index, counted from 0, is sparse: behind the first dense
        layers, it is the last of every `moe_layer_freq`."""
        return index >= self.first_k_dense and (index + 1) % self.moe_layer_freq == 0

    def feed_forward(self, gated: bool) -> Moe:
        """Return the feed-forward network of a sparse layer."""
        shared = self.shared_expert_intermediate_size
        if shared is None:  # all shared experts count as one, as wide as they are together
            shared = self.num_shared_experts * self.moe_intermediate_size
        return Moe(
            num_experts=self.num_experts,
            experts_per_token=self.experts_per_token,
            intermediate_size=self.moe_intermediate_size,
            shared_expert_intermediate_size=shared,
            gated=gated,
            bias=self.bias,
            router_bias=self.bias,
            num_groups=self.num_groups,
            groups_per_token=(
                self.num_groups if self.groups_per_token is None else self.groups_per_token
            ),
        )


def _attention(
    hidden_size: int,
    num_heads: int,
    num_kv_heads: int | None,
    head_dim: int | None,
    mla: MlaShape | None,
    qk_norm: bool,
    bias: bool,
) -> Attention:
    """Return the attention that these fields describe: MLA if `mla` is given, and otherwise
    attention whose keys and values have the same size. Raise Invalid where num_kv_heads does not
    divide num_heads, or head_dim is missing and does not follow from the others."""
    if mla is not None:
        return Attention(
            num_attention_heads=num_heads,
            num_key_value_heads=num_heads,  # the latent is expanded to keys of every head
            head_dim=mla.qk_nope_head_dim + mla.qk_rope_head_dim,
            v_head_dim=mla.v_head_dim,
            q_lora_rank=mla.q_lora_rank,
            kv_lora_rank=mla.kv_lora_rank,
            qk_rope_head_dim=mla.qk_rope_head_dim,
            attention_bias=bias,
            qk_norm=qk_norm,
        )
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if num_heads % kv_heads:
        rule = f"must divide num_attention_heads = {num_heads}"
        raise Invalid("num_key_value_heads", kv_heads, rule)
    if head_dim is None and hidden_size % num_heads:
        quotient = f"{hidden_size}/{num_heads}"
        rule = f"must be given: hidden_size / num_attention_heads = {quotient} is not whole"
        raise Invalid("head_dim", None, rule)
    dim = hidden_size // num_heads if head_dim is None else head_dim
    return Attention(
        num_attention_heads=num_heads,
        num_key_value_heads=kv_heads,
        head_dim=dim,
        v_head_dim=dim,
        attention_bias=bias,
        attention_output_bias=bias,
        qk_norm=qk_norm,
    )
