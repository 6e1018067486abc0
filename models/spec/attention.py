"""Self-attention: its shape, its parameters, and the number of keys that its queries see.

A matrix is *whole* where tensor parallelism does not cut it and every rank has all of it
(models.spec.projection). Projections that are `fused` read the same input and are computed in one
matrix product. An *entry* is a key and value that was pooled from several tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.columns import Array
from models.spec.projection import Projection, parameters_of, whole_parameters_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """Keys and values of many tokens, pooled to one entry each (DeepSeek-V4 §2.3).

    A gate weighs the `rate` tokens of a window, element by element. With `overlap`, an entry is
    pooled from its own window and from the one before, each through projections of its own. Beside
    the keys of its sliding window, a query sees the entries of all windows before it, or only those
    that an indexer chooses.
    """

    rate: int
    overlap: bool = False

    def projections(self, hidden_size: int, dim: int) -> list[Projection]:
        """Return the projection whose outputs are pooled to entries of `dim` elements, and that of
        the gate which weighs them."""
        return [
            Projection("compressed", hidden_size, self._pooled_elements(dim), "whole"),
            Projection("compression_gate", hidden_size, self._pooled_elements(dim), "whole"),
        ]

    def vector_parameters(self, dim: int) -> int:
        """Return the number of parameters outside matrices: a bias for each place in a window, and
        the norm of an entry."""
        return self.rate * self._pooled_elements(dim) + dim

    def _pooled_elements(self, dim: int) -> int:
        """Return how many elements of each token are pooled: twice `dim` where entries overlap,
        because each token then goes through two projections."""
        return 2 * dim if self.overlap else dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """An indexer chooses the keys that each query sees (DeepSeek-V3.2, arXiv 2512.02556 §2.1).

    It has heads of its own, which score every key that comes before the query; attention then reads
    the `top_k` keys with the largest scores. The keys of the indexer have one head. Every
    tensor-parallel rank has the whole indexer.
    """

    num_heads: int
    head_dim: int
    top_k: int
    """The number of keys, or of compressed entries where attention has those."""
    weighs_heads: bool = True
    """Scores of heads are added with weights that a projection gives. Where it is false, the
    largest score of any head counts (MiniMax-M3)."""
    norm_parameters: int = 0
    """The parameters in the norms of its queries and keys."""
    shared: bool = False
    """The layer uses the indexer of a layer before it, whose choice of keys it reads too (arXiv
    2603.12201)."""

    def projections(
        self, hidden_size: int, query_size: int, compression: Compression | None
    ) -> list[Projection]:
        """Return the projections of the indexer. `query_size` is the number of elements that its
        queries are made from."""
        if self.shared:  # the layer whose indexer it uses has them
            return []
        heads = self.num_heads * self.head_dim
        projections = [Projection("index_q", query_size, heads, "whole")]
        if compression is None:  # its keys have one head, which all heads of queries score
            projections.append(Projection("index_k", hidden_size, self.head_dim, "whole"))
        else:
            projections += [
                pooled._replace(name=f"index_{pooled.name}")
                for pooled in compression.projections(hidden_size, self.head_dim)
            ]
        if self.weighs_heads:
            projections.append(Projection("index_weights", hidden_size, self.num_heads, "whole"))
        return projections


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Self-attention: multi-head, grouped-query, or multi-head latent attention (MLA, DeepSeek-V2,
    arXiv 2405.04434). It is MLA where `kv_lora_rank` is set."""

    num_attention_heads: int
    num_key_value_heads: int
    """Key-value heads. MLA expands the latent to keys and values of every head, and so has
    `num_attention_heads` of them."""
    head_dim: int
    """Elements of a query or a key of one head. For MLA they include those with and those without a
    rotary position."""
    v_head_dim: int
    """Elements of a value of one head."""
    q_lora_rank: int | None = None
    """Elements of the latent that queries are made from; None where queries have no latent."""
    kv_lora_rank: int | None = None
    """Elements of the latent that keys and values are made from."""
    qk_rope_head_dim: int = 0
    """Elements of `head_dim` that have a rotary position, for MLA."""
    sliding_window: int | None = None
    """The most keys that a query sees: the last ones or, with `chunked_attention`, those of its
    chunk."""
    chunked_attention: bool = False
    causal: bool = True
    """A query sees only keys before it. Where it is false, a query sees all of its sequence, or all
    of its chunk."""
    attention_bias: bool = False
    attention_output_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normalised, with one weight of `head_dim` that all heads share, or with
    one for each head if `qk_norm_all_heads`."""
    qk_norm_all_heads: bool = False
    kv_norm: bool = False
    """Keys that are values too are normalised with a weight of `head_dim`."""
    sinks: bool = False
    """Every head has a learned logit that attention may go to instead of a key (gpt-oss)."""
    output_gate: Literal["element", "head"] | None = None
    """The output of each head is multiplied with a gate that is projected from the input. The gate
    has a number for each element (Qwen3-Next) or one for each head (Step-3.5)."""
    values_are_keys: bool = False
    """One projection gives keys and values (DeepSeek-V4, and the full layers of Gemma 4)."""
    o_groups: int = 1
    """Groups that the heads are divided into. Each group has a projection of its own to
    `o_lora_rank` elements, and the output is projected from these."""
    o_lora_rank: int | None = None
    compression: Compression | None = None
    indexer: Indexer | None = None

    @property
    def kv_dim(self) -> int:
        """Elements of the keys and values of one token as attention reads them."""
        per_head = self.head_dim + (0 if self.values_are_keys else self.v_head_dim)
        return self.num_key_value_heads * per_head

    def kv_share(self, tp: Array) -> Array:
        """Return the share of all key-value heads that a device has: 1/tp, but at least one head.
        Heads are repeated on several devices where tp exceeds their number."""
        return np.maximum(1 / tp, 1 / self.num_key_value_heads)

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank is not None

    @property
    def is_sparse(self) -> bool:
        """True where queries see keys that are chosen or pooled, not only the last ones."""
        return self.indexer is not None or self.compression is not None

    @property
    def gate_size(self) -> int:
        """Elements of the gate of a token's output."""
        per_head = {None: 0, "head": 1, "element": self.v_head_dim}[self.output_gate]
        return self.num_attention_heads * per_head

    def projections(self, hidden_size: int) -> list[Projection]:
        """Return every weight matrix of attention, with those of the gate, of pooled keys and of
        the indexer where it has these."""
        matrices = [*self._queries(hidden_size), *self._keys_and_values(hidden_size)]
        if self.gate_size:
            matrices.append(Projection("gate", hidden_size, self.gate_size, "columns", fused=True))
        matrices += self._outputs(hidden_size)
        if self.compression:
            matrices += self.compression.projections(hidden_size, self.head_dim)
        if self.indexer:
            # Queries of the indexer are made from the latent of queries, if there is one.
            query_size = self.q_lora_rank or hidden_size
            matrices += self.indexer.projections(hidden_size, query_size, self.compression)
        return matrices

    def _queries(self, hidden_size: int) -> list[Projection]:
        """Return the projection to queries, or the two through their latent."""
        q_dim = self.num_attention_heads * self.head_dim
        if self.q_lora_rank is None:
            return [Projection("q", hidden_size, q_dim, "columns", fused=True)]
        return [
            # Every tensor-parallel rank has the projection to the latent whole.
            Projection("q_down", hidden_size, self.q_lora_rank, "whole"),
            Projection("q_up", self.q_lora_rank, q_dim, "columns"),
        ]

    def _keys_and_values(self, hidden_size: int) -> list[Projection]:
        """Return the projection to keys and values, or MLA's two through their latent. The first of
        the two also gives the elements with a rotary position, which skip the second."""
        if self.kv_lora_rank is None:
            return [Projection("kv", hidden_size, self.kv_dim, "kv", fused=True)]
        rank = self.kv_lora_rank
        nope_and_value = self.num_attention_heads * (
            self.head_dim - self.qk_rope_head_dim + self.v_head_dim
        )
        return [
            # Every tensor-parallel rank has the projection to the latent whole.
            Projection("kv_down", hidden_size, rank + self.qk_rope_head_dim, "whole"),
            Projection("kv_up", rank, nope_and_value, "columns"),
        ]

    def _outputs(self, hidden_size: int) -> list[Projection]:
        """Return the projection of the heads' outputs to the stream, or two through a latent for
        each group of heads."""
        v_dim = self.num_attention_heads * self.v_head_dim
        if self.o_lora_rank is None:
            return [Projection("o", v_dim, hidden_size, "rows")]
        latent = self.o_groups * self.o_lora_rank
        return [
            Projection("o_down", v_dim, latent, "columns", self.o_groups),
            Projection("o", latent, hidden_size, "rows"),
        ]

    def parameters(self, hidden_size: int) -> int:
        """Return the parameters of attention: matrices, biases, norms, pooling and sinks."""
        matrices = self.projections(hidden_size)
        total = parameters_of(matrices)
        if self.attention_bias:
            # The names of output projections start with "o". attention_output_bias is about them.
            total += sum(matrix.n_out for matrix in matrices if not matrix.name.startswith("o"))
        if self.attention_output_bias:
            total += hidden_size
        total += self._latent_norms + self._head_norms
        if self.compression:
            total += self.compression.vector_parameters(self.head_dim)
        if self.indexer:
            total += self._indexer_vector_parameters(self.indexer)
        return total + (self.num_attention_heads if self.sinks else 0)  # a logit for each head

    @property
    def _latent_norms(self) -> int:
        """The parameters of the RMSNorm on each latent."""
        return (self.kv_lora_rank or 0) + (self.q_lora_rank or 0)

    @property
    def _head_norms(self) -> int:
        """The parameters of norms on queries and keys."""
        total = self.head_dim if self.kv_norm else 0
        if self.qk_norm:
            # Unless every head has a weight of its own, queries share one and keys another.
            norms = (
                self.num_attention_heads + self.num_key_value_heads if self.qk_norm_all_heads else 2
            )
            total += norms * self.head_dim
        return total

    def _indexer_vector_parameters(self, indexer: Indexer) -> int:
        """Return the parameters of the indexer outside its matrices."""
        if indexer.shared:
            return 0
        if self.compression is None:
            return indexer.norm_parameters
        return self.compression.vector_parameters(indexer.head_dim)

    def replicated_parameters(self, hidden_size: int) -> int:
        """Return the parameters that every tensor-parallel rank has whole."""
        return whole_parameters_of(self.projections(hidden_size)) + self._latent_norms

    def mean_keys(self, seq_len: float) -> float:
        """Return how many keys a query sees on average, compressed entries included.

        A causal query sees s/2 of the keys in a sequence of s tokens, w - w²/2s with a sliding
        window w < s, and half a chunk where attention is chunked. It sees at most as many keys as
        the indexer chooses. A query that is not causal sees all keys of its sequence or window.
        """
        if not self.causal:
            return min(self.sliding_window or seq_len, seq_len)
        # Window and indexer each cap the keys of a query; `most` is None where neither does.
        if self.compression is None:
            most = min(filter(None, (self.sliding_window, self._indexer_top_k)), default=None)
            return _mean_positions_seen(most, seq_len, chunked=self.chunked_attention)
        entries = seq_len / self.compression.rate
        in_window = _mean_positions_seen(self.sliding_window, seq_len)
        return in_window + _mean_positions_seen(self._indexer_top_k, entries)

    @property
    def _indexer_top_k(self) -> int | None:
        """The most keys or entries that an indexer chooses for a query; None without an indexer."""
        return None if self.indexer is None else self.indexer.top_k

    def mean_scored_keys(self, seq_len: float) -> float:
        """Return how many keys the indexer scores for a query, on average, or pooled entries where
        attention has those; 0 where this layer has no indexer of its own."""
        if self.indexer is None or self.indexer.shared:
            return 0.0
        # It scores all keys before the query, which are half of the sequence on average.
        return seq_len / 2 / (self.compression.rate if self.compression else 1)

    def most_keys(self, seq_len: float) -> float:
        """Return how many keys the last query of a sequence sees, pooled entries included: the most
        of any query."""
        if self.compression is None:
            return min(filter(None, (self.sliding_window, self._indexer_top_k, seq_len)))
        # With compression a query sees single keys in the window, and pooled entries beside them.
        entries = seq_len / self.compression.rate
        in_window = min(self.sliding_window or seq_len, seq_len)
        return in_window + min(self._indexer_top_k or entries, entries)


def _mean_positions_seen(limit: float | None, length: float, *, chunked: bool = False) -> float:
    """Return how many earlier positions each of `length` positions sees on average, where it sees
    at most the last `limit`, or only those of its chunk if `chunked`."""
    if limit is None or limit >= length:
        return length / 2
    if chunked:
        return limit / 2
    # Positions see `limit` others, but for the first `limit` of them: those see limit / 2 on
    # average, and are the share limit / length of all.
    return limit - limit * limit / (2 * length)
