"""One layer: a mixer of tokens, and a network that mixes the channels of each token.

Each of the two is a *block*. The *stream* is the residual stream between blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.spec.attention import Attention
from models.spec.feed_forward import Mlp, Moe
from models.spec.identity import cached_by_identity
from models.spec.projection import Projection
from models.spec.recurrence import Recurrence

Gradients = Literal["weights", "inputs", "none"]
_KEPT = 1024  # sizes of layers: a problem asks for each dozens of times


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer on a residual stream has a mixer of tokens, which is attention, a recurrence or
    both side by side, and then a feed-forward network. Some layers have only one of the two."""

    attention: Attention | None = None
    recurrence: Recurrence | None = None
    feed_forward: Mlp | Moe | None = None
    num_norms: int = 2
    """The number of norms on the residual stream. Of two, one stands before the mixer and one
    before the network."""
    post_norms: bool = False
    """Norms stand behind the mixer and the network instead of before them."""
    norm_weight: bool = True
    norm_bias: bool = False
    parallel: bool = False
    """Attention and the feed-forward network read the same stream. Their outputs are added up
    before they are reduced over tensor parallelism."""
    residual_streams: int = 1
    """The number of residual streams. With several, a block reads a weighted sum of the streams;
    afterwards the streams and its output are mixed anew (manifold-constrained hyper-connections,
    arXiv 2512.24880)."""
    attention_residuals: bool = False
    """A block reads a weighted sum of the outputs of groups of layers before it, with weights from
    a query and a norm of its own (arXiv 2603.15031). Only the parameters of the query and the norm
    are counted: the sum is not priced."""
    gradients: Gradients = "weights"
    """The gradients that backward computes: those of weights and inputs ("weights"), those of
    inputs alone where the weights are frozen ("inputs"), or "none" where nothing before the layer
    is trained either."""

    @property
    def mixers(self) -> list[Attention | Recurrence]:
        return [mixer for mixer in (self.attention, self.recurrence) if mixer is not None]

    @property
    def blocks(self) -> int:
        """The number of blocks: 2 with a mixer and a network, 1 with one of them alone."""
        return bool(self.mixers) + (self.feed_forward is not None)

    @property
    def dense(self) -> Mlp | None:
        """The network that every token visits: the feed-forward network of a dense layer, or the
        shared expert of a sparse one; None where there is neither."""
        network = self.feed_forward
        return network.shared if isinstance(network, Moe) else network

    @property
    def norm_follows(self) -> bool:
        """True where the output of the feed-forward network is normalised before it is added to the
        stream."""
        # More than two norms stand both before and behind blocks (Gemma 2).
        return self.post_norms or self.num_norms > 2

    @property
    def moe(self) -> Moe | None:
        return self.feed_forward if isinstance(self.feed_forward, Moe) else None

    def projections(self, hidden_size: int) -> list[Projection]:
        """Return the matrices of the mixers."""
        return [matrix for mixer in self.mixers for matrix in mixer.projections(hidden_size)]

    @cached_by_identity(_KEPT)
    def parameters(self, hidden_size: int) -> int:
        """Return all parameters of the layer: mixers, feed-forward network, norms and what mixes
        residual streams."""
        blocks = sum(mixer.parameters(hidden_size) for mixer in self.mixers)
        blocks += self.feed_forward.parameters(hidden_size) if self.feed_forward else 0
        return blocks + self._stream_parameters(hidden_size)

    def _stream_parameters(self, hidden_size: int) -> int:
        """Return the parameters of norms, and of the mixing of residual streams."""
        norms = self.num_norms * hidden_size * (self.norm_weight + self.norm_bias)
        if self.attention_residuals:
            norms += self.blocks * 2 * hidden_size  # a query and a norm for each block
        if self.residual_streams == 1:
            return norms
        return norms + self.blocks * hyper_connection_parameters(hidden_size, self.residual_streams)

    def replicated_parameters(self, hidden_size: int) -> int:
        """Return the parameters that every tensor-parallel rank has whole: norms, routers,
        projections to latents, and the like."""
        whole = self._stream_parameters(hidden_size)
        whole += sum(mixer.replicated_parameters(hidden_size) for mixer in self.mixers)
        return whole + (self.moe.replicated_parameters(hidden_size) if self.moe else 0)

    @cached_by_identity(_KEPT)
    def orthogonalisation_flops(self, hidden_size: int) -> tuple[float, float]:
        """Return the FLOPs of Muon's orthogonalisation for each parameter outside routed experts,
        and for each parameter inside them. Muon takes five Newton-Schulz steps (arXiv 2502.16982
        §2.2).

        A step on an m x n matrix X, m <= n, computes X X^T, its square, and the product of both
        with X: 4 m² n + 2 m³ FLOPs.
        """
        outside: list[tuple[int, int]] = []
        for matrix in self.projections(hidden_size):
            block = (matrix.n_in // matrix.groups, matrix.n_out // matrix.groups)
            outside += [block] * matrix.groups  # each block is orthogonalised by itself
        if self.dense:
            outside += [(hidden_size, self.dense.intermediate_size)] * self.dense.matrices
        # All matrices of experts have the same sides, so one gives their FLOPs per parameter.
        inside = []
        if self.moe:
            inside = [(self.moe.token_size(hidden_size), self.moe.intermediate_size)]
        return _newton_schulz_flops(outside), _newton_schulz_flops(inside)


def _newton_schulz_flops(matrices: list[tuple[int, int]]) -> float:
    """Return the FLOPs for each element of five Newton-Schulz steps, with which the optimizer Muon
    orthogonalises matrices of these sizes; 0 where there are none. A step on an m x n matrix,
    m <= n, takes 4 m² n + 2 m³."""
    flops = elements = 0
    for sides in matrices:
        m, n = min(sides), max(sides)
        flops += 5 * (4 * m**2 * n + 2 * m**3)
        elements += m * n
    return flops / max(elements, 1)


def hyper_connection_parameters(hidden_size: int, streams: int) -> int:
    """Return the parameters that hyper-connections over `streams` residual streams add to a block:
    a projection of all streams to the weights that collapse, expand and mix them, the offsets of
    these weights, and three scales (DeepseekV4HyperConnection of transformers)."""
    weights = (2 + streams) * streams  # one for each stream to collapse and to expand, n² to mix
    return weights * streams * hidden_size + weights + 3
