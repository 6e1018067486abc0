"""The transformer: its layers, their shapes and their parameters.

An :class:`Architecture` is one list of layers. Every way in which configs write down which layers
are of what kind (layer_types, periods, pattern strings) is turned into that list when it is read,
so that nothing downstream asks "which layers are dense?".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np

from models.columns import Array
from models.errors import Invalid

MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Causal self-attention: multi-head, grouped-query, or multi-head latent (MLA, DeepSeek-V2,
    arXiv 2405.04434), which it is where `kv_lora_rank` is set."""

    num_heads: int
    num_kv_heads: int
    """As many as `num_heads` for MLA, which expands the latent to keys and values of every head."""
    head_dim: int
    """Elements of a query or a key of one head; for MLA with and without rotary position."""
    v_head_dim: int
    """Elements of a value of one head."""
    q_lora_rank: int | None = None
    """Elements of the latent that queries are made from; None where they have no latent."""
    kv_lora_rank: int | None = None
    """Elements of the latent that keys and values are made from."""
    rope_head_dim: int = 0
    """For MLA, how many elements of `head_dim` have a rotary position."""
    window: int | None = None
    """A query sees at most this many keys: the last ones or, if `chunked`, those of its chunk."""
    chunked: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normalised, with one weight of `head_dim` that all heads share, or one
    for each head if `qk_norm_all_heads`."""
    qk_norm_all_heads: bool = False
    sinks: bool = False
    """Every head has a learned logit that attention may go to instead of a key (gpt-oss)."""

    @property
    def kv_dim(self) -> int:
        """Elements of one token's keys and values as attention reads them."""
        return self.num_kv_heads * (self.head_dim + self.v_head_dim)

    def kv_share(self, tp: Array) -> Array:
        """The share of all key-value heads that a device has: 1/tp, but at least one head, which is
        repeated on several devices where tp exceeds their number."""
        return np.maximum(1 / tp, 1 / self.num_kv_heads)

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank is not None

    def projections(self, hidden_size: int) -> list[tuple[str, int, int]]:
        """The weight matrices as (name, elements in, elements out)."""
        q_dim = self.num_heads * self.head_dim
        v_dim = self.num_heads * self.v_head_dim
        output = ("o", v_dim, hidden_size)
        if self.kv_lora_rank is None:
            return [("q", hidden_size, q_dim), ("kv", hidden_size, self.kv_dim), output]
        rank = self.kv_lora_rank
        query = [("q", hidden_size, q_dim)]
        if self.q_lora_rank is not None:
            query = [("q_down", hidden_size, self.q_lora_rank), ("q_up", self.q_lora_rank, q_dim)]
        nope_and_value = self.num_heads * (self.head_dim - self.rope_head_dim + self.v_head_dim)
        return [
            *query,
            ("kv_down", hidden_size, rank + self.rope_head_dim),
            ("kv_up", rank, nope_and_value),
            output,
        ]

    def parameters(self, hidden_size: int) -> int:
        matrices = self.projections(hidden_size)
        total = sum(n_in * n_out for _, n_in, n_out in matrices)
        if self.qkv_bias:
            total += sum(n_out for name, _, n_out in matrices if name != "o")
        if self.output_bias:
            total += hidden_size
        if self.kv_lora_rank is not None:  # RMSNorm on each latent
            total += self.kv_lora_rank + (self.q_lora_rank or 0)
        if self.qk_norm:
            norms = self.num_heads + self.num_kv_heads if self.qk_norm_all_heads else 2
            total += norms * self.head_dim
        return total + (self.num_heads if self.sinks else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """A dense feed-forward block: gated (SwiGLU, GeGLU; three matrices) or plain (two)."""

    intermediate_size: int
    gated: bool = True
    bias: bool = False

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    def parameters(self, hidden_size: int) -> int:
        bias = hidden_size + (self.matrices - 1) * self.intermediate_size if self.bias else 0
        return self.matrices * hidden_size * self.intermediate_size + bias


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """A mixture of experts: a router, `num_experts` routed experts, and a shared expert that every
    token visits, if it has a size."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    """The intermediate size of each routed expert."""
    shared_intermediate_size: int = 0
    """The intermediate size of the shared expert; 0 where there is none."""
    gated: bool = True
    bias: bool = False
    """Every expert has biases."""
    router_bias: bool = False
    shared_gate: bool = False
    """What the shared expert puts out is multiplied with a gate of the token."""
    selection_bias: bool = False
    """The router adds a bias for each expert when it selects them: DeepSeek's balancing without an
    auxiliary loss. The bias is updated by a rule, not by a gradient. Checkpoints carry it and
    `transformers` counts it as a buffer, and so it is not counted as a parameter."""
    num_groups: int = 1
    """Experts are divided into this many groups, each of the same number of experts in a row
    (DeepSeek-V2, arXiv 2405.04434 §2.2.2)."""
    groups_per_token: int = 1
    """All experts of a token come from this many groups."""

    def domains_in_reach(self, domains: Array) -> Array:
        """In how many domains the groups of a token lie on average, where the experts are divided
        evenly over `domains` domains."""
        if self.groups_per_token == self.num_groups:
            return domains
        domains_per_group = np.maximum(domains / self.num_groups, 1.0)
        groups_per_domain = np.maximum(self.num_groups / domains, 1.0)
        # The probability that a domain holds none of the groups, which are drawn without
        # replacement.
        missed = np.ones_like(domains_per_group)
        for drawn in range(self.groups_per_token):
            left = self.num_groups - drawn
            missed = missed * np.clip((left - groups_per_domain) / left, 0.0, 1.0)
        return np.where(
            groups_per_domain > 1,
            domains * (1 - missed),
            self.groups_per_token * domains_per_group,
        )

    @property
    def expert(self) -> Mlp:
        return Mlp(intermediate_size=self.intermediate_size, gated=self.gated, bias=self.bias)

    @property
    def shared(self) -> Mlp | None:
        size = self.shared_intermediate_size
        return Mlp(intermediate_size=size, gated=self.gated, bias=self.bias) if size else None

    def expert_parameters(self, hidden_size: int) -> int:
        return self.num_experts * self.expert.parameters(hidden_size)

    def parameters(self, hidden_size: int) -> int:
        total = self.expert_parameters(hidden_size) + hidden_size * self.num_experts
        total += self.num_experts if self.router_bias else 0
        total += hidden_size if self.shared_gate else 0
        return total + (self.shared.parameters(hidden_size) if self.shared else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One transformer layer: attention and a feed-forward network on a residual stream."""

    attention: Attention
    feed_forward: Mlp | Moe
    num_norms: int = 2
    """Norms on the residual stream. Two stand before attention and the feed-forward network."""
    post_norms: bool = False
    """The two stand behind attention and the feed-forward network instead."""
    norm_bias: bool = False
    parallel: bool = False
    """Attention and the feed-forward network read the same stream, and their outputs are added up
    before they are reduced over tensor parallelism."""

    @property
    def dense(self) -> Mlp | None:
        """The block that every token visits: the feed-forward network of a dense layer, the shared
        expert of a sparse one."""
        return self.feed_forward if isinstance(self.feed_forward, Mlp) else self.feed_forward.shared

    @property
    def norm_follows(self) -> bool:
        """Whether the output of the feed-forward network is normalised before it is added."""
        return self.post_norms or self.num_norms > 2

    @property
    def moe(self) -> Moe | None:
        return self.feed_forward if isinstance(self.feed_forward, Moe) else None

    def parameters(self, hidden_size: int) -> int:
        blocks = self.attention.parameters(hidden_size) + self.feed_forward.parameters(hidden_size)
        return blocks + self._norm_parameters(hidden_size)

    def _norm_parameters(self, hidden_size: int) -> int:
        return self.num_norms * hidden_size * (2 if self.norm_bias else 1)

    def replicated_parameters(self, hidden_size: int) -> int:
        """The parameters that every tensor-parallel rank has whole: norms, routers, and the
        down-projections of MLA."""
        whole = self._norm_parameters(hidden_size)
        for name, n_in, n_out in self.attention.projections(hidden_size):
            whole += n_in * n_out if name.endswith("_down") else 0
        whole += (self.attention.kv_lora_rank or 0) + (self.attention.q_lora_rank or 0)
        return whole + (hidden_size * self.moe.num_experts if self.moe else 0)

    def orthogonalisation_flops(self, hidden_size: int) -> tuple[float, float]:
        """FLOPs of Muon's orthogonalisation, for each parameter outside and for each inside routed
        experts: five Newton-Schulz steps (arXiv 2502.16982 §2.2).

        A step on an m x n matrix X, m <= n, computes X X^T, its square, and the product of both
        with X: 4 m² n + 2 m³ FLOPs.
        """
        matrices = [(n_in, n_out) for _, n_in, n_out in self.attention.projections(hidden_size)]
        if self.dense:
            matrices += [(hidden_size, self.dense.intermediate_size)] * self.dense.matrices
        inside = [(hidden_size, self.moe.intermediate_size)] if self.moe else []
        return _newton_schulz_flops(matrices), _newton_schulz_flops(inside)


def _newton_schulz_flops(matrices: list[tuple[int, int]]) -> float:
    """FLOPs of five steps on each of these matrices, for each of their parameters."""
    flops = sum(5 * (4 * min(m) ** 2 * max(m) + 2 * min(m) ** 3) for m in matrices)
    return flops / max(sum(a * b for a, b in matrices), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Numbers of parameters by part of the model."""

    total: int
    """Without the modules of multi-token prediction, as model cards and transformers count."""
    embedding: int
    lm_head: int
    experts: int
    """In routed experts."""
    active: int
    """What one token visits: all but the routed experts that it is not sent to."""
    mtp: int
    """In the modules of multi-token prediction."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder-only transformer. `learned_positions`, `lm_head_bias` and `final_norm_bias` are for
    old model families."""

    name: str
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    tie_word_embeddings: bool = False
    mtp_layers: int = 0
    """Modules of multi-token prediction, each with a layer like the last."""
    learned_positions: int = 0
    """Positions that have a learned embedding; 0 where positions are rotary or absent."""
    lm_head_bias: bool = False
    final_norm_bias: bool = False

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """The distinct layers, in order of first appearance."""
        return tuple(dict.fromkeys(self.layers))

    @cached_property
    def layer_runs(self) -> tuple[tuple[int, int], ...]:
        """The layers run-length encoded: (index into `kinds`, how many in a row)."""
        index = {kind: i for i, kind in enumerate(self.kinds)}
        return tuple(
            (kind, len(list(run))) for kind, run in groupby(index[layer] for layer in self.layers)
        )

    @cached_property
    def layers_per_kind(self) -> tuple[int, ...]:
        """How many layers are of each of `kinds`."""
        return tuple(
            sum(count for kind, count in self.layer_runs if kind == one)
            for one in range(len(self.kinds))
        )

    @cached_property
    def trained_layers_per_kind(self) -> tuple[int, ...]:
        """How many layers are of each of `kinds`, with those of multi-token prediction, which are
        like the last layer."""
        last = self.layer_runs[-1][0]
        return tuple(
            count + self.mtp_layers * (kind == last)
            for kind, count in enumerate(self.layers_per_kind)
        )

    @property
    def trained_part_counts(self) -> list[float]:
        """How often each part of the model occurs: a layer of each of `kinds`, then the embedding
        and the head, which occur once."""
        return [*self.trained_layers_per_kind, 1.0, 1.0]

    def part_has_experts(self, part: int) -> bool:
        """Whether a part has routed experts; parts are numbered as in `trained_part_counts`."""
        return part < len(self.kinds) and self.kinds[part].moe is not None

    @property
    def is_moe(self) -> bool:
        return any(layer.moe for layer in self.kinds)

    def with_depth_scaled(self, times: float) -> Architecture:
        """An architecture that is `times` times as deep, its kinds of layers in the same order and
        proportion. Raises Invalid above MAX_LAYERS."""
        have = len(self.layers)
        wanted = max(round(times * have), 1)
        if wanted > MAX_LAYERS:
            rule = f"makes {wanted} layers of {have}; a model has at most {MAX_LAYERS}"
            raise Invalid("layers", times, rule)
        return replace(self, layers=tuple(self.layers[i * have // wanted] for i in range(wanted)))

    @cached_property
    def parameters(self) -> ParameterCount:
        h = self.hidden_size
        body = 0
        experts = 0
        inactive = 0
        for layer, count in zip(self.kinds, self.layers_per_kind, strict=True):
            body += count * layer.parameters(h)
            if moe := layer.moe:
                experts += count * moe.expert_parameters(h)
                unvisited = moe.num_experts - moe.experts_per_token
                inactive += count * unvisited * moe.expert.parameters(h)
        embedding = (self.vocab_size + self.learned_positions) * h
        lm_head = 0 if self.tie_word_embeddings else self.vocab_size * h
        lm_head += self.vocab_size if self.lm_head_bias else 0
        total = body + embedding + lm_head + h * (2 if self.final_norm_bias else 1)
        return ParameterCount(
            total=total,
            embedding=embedding,
            lm_head=lm_head,
            experts=experts,
            active=total - inactive,
            mtp=self.mtp_layers * self.mtp_parameters,
        )

    @property
    def mtp_parameters(self) -> int:
        """Parameters of one module of multi-token prediction: a layer like the last, a projection
        from 2h to h and three norms. It shares embedding and head with the main model (DeepSeek-V3,
        arXiv 2412.19437 §2.2)."""
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
        """An architecture from the fields that people write down.

        With a `sliding_window`, every `full_attention_period`-th layer has full attention instead;
        none has if that is not given. Unless given, the output projection of attention has a bias
        where the others have one and there is no MLA, and blocks are parallel where a layer has one
        norm. Raises Invalid where fields contradict each other.
        """
        attention = _attention(
            hidden_size,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            mla,
            qk_norm,
            attention_bias,
        )
        if attention_output_bias is not None:
            attention = replace(attention, output_bias=attention_output_bias)
        if full_attention_period is not None and sliding_window is None:
            raise Invalid("full_attention_period", full_attention_period, "needs sliding_window")
        dense = Mlp(intermediate_size=intermediate_size, gated=gated_mlp)
        if chunked_attention and sliding_window is None:
            rule = "needs sliding_window, the length of a chunk"
            raise Invalid("chunked_attention", chunked_attention, rule)
        local = attention
        if sliding_window is not None:
            local = replace(attention, window=sliding_window, chunked=chunked_attention)
        parallel = num_norms == 1 if parallel_blocks is None else parallel_blocks
        layers = []
        for index in range(num_layers):
            is_full = full_attention_period and (index + 1) % full_attention_period == 0
            layer = Layer(
                attention=attention if is_full else local,
                feed_forward=moe.block(gated_mlp) if moe and moe.covers(index) else dense,
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
    """Which layers are sparse and how, as configs write it down.

    The first `first_k_dense` layers are dense. Of the others the last of every `moe_layer_freq` in
    a row is sparse (every second one in Llama-4 Maverick). `bias` is that of the router and of
    every expert (gpt-oss). `groups_per_token` is all groups unless given.
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

    def covers(self, index: int) -> bool:
        """Whether the layer of this index, counted from 0, is sparse."""
        return index >= self.first_k_dense and (index + 1) % self.moe_layer_freq == 0

    def block(self, gated: bool) -> Moe:
        """The feed-forward network of a sparse layer."""
        shared = self.shared_expert_intermediate_size
        if shared is None:
            shared = self.num_shared_experts * self.moe_intermediate_size
        return Moe(
            num_experts=self.num_experts,
            experts_per_token=self.experts_per_token,
            intermediate_size=self.moe_intermediate_size,
            shared_intermediate_size=shared,
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
    if mla is not None:
        return Attention(
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=mla.qk_nope_head_dim + mla.qk_rope_head_dim,
            v_head_dim=mla.v_head_dim,
            q_lora_rank=mla.q_lora_rank,
            kv_lora_rank=mla.kv_lora_rank,
            rope_head_dim=mla.qk_rope_head_dim,
            qkv_bias=bias,
            qk_norm=qk_norm,
        )
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if num_heads % kv_heads:
        raise Invalid(
            "num_key_value_heads", kv_heads, f"must divide num_attention_heads = {num_heads}"
        )
    if head_dim is None and hidden_size % num_heads:
        quotient = f"{hidden_size}/{num_heads}"
        rule = f"must be given: hidden_size / num_attention_heads = {quotient} is not whole"
        raise Invalid("head_dim", None, rule)
    dim = hidden_size // num_heads if head_dim is None else head_dim
    return Attention(
        num_heads=num_heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        v_head_dim=dim,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=qk_norm,
    )
