"""Linear attention, state-space models and short convolutions: mixers whose state has the same size
after every token.

In training they run over chunks of a sequence, as products of matrices within a chunk and from one
chunk's state to the next (Mamba-2, arXiv 2405.21060 §6; gated delta rule, arXiv 2412.06464 §3.3). A
*mixer* is the block of a layer that mixes tokens, as attention does. Projections that are `fused`
read the same input, and the mixer computes them together in one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.spec.projection import Projection, parameters_of, whole_parameters_of


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """A recurrence has heads, each with a state of `key_head_dim` x `value_head_dim` elements. The
    class holds what all kinds of recurrence share."""

    num_heads: int
    """The heads of values, and of the output."""
    num_key_heads: int
    """The heads of keys and queries (in Mamba-2 the groups of B and C). Each serves an equal number
    of heads of values."""
    key_head_dim: int
    """Elements of a key; in Mamba-2 the size of the state, N."""
    value_head_dim: int
    """Elements of a value."""
    conv_kernel: int = 0
    """Tokens that the convolution before the recurrence sees; 0 where there is no convolution."""

    @property
    def kind(self) -> str:
        """The name of this kind of recurrence in requests, such as "mamba2"."""
        raise NotImplementedError

    @property
    def value_elements(self) -> int:
        return self.num_heads * self.value_head_dim

    @property
    def key_elements(self) -> int:
        return self.num_key_heads * self.key_head_dim

    @property
    def state_elements(self) -> int:
        """Elements of the state of all heads."""
        return self.value_elements * self.key_head_dim

    @property
    def input_elements(self) -> int:
        """Elements of a token that the recurrence reads: queries, keys and values, or what stands
        for them (C, B and x in Mamba-2, two gates and a value in a short convolution)."""
        return 2 * self.key_elements + self.value_elements  # queries have as many as keys

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution, through which all that the recurrence reads goes before."""
        return self.input_elements if self.conv_kernel else 0

    def projections(self, hidden_size: int) -> list[Projection]:
        """Return every weight matrix: those that read the stream, and that of the output."""
        output = Projection("out", self.value_elements, hidden_size, "rows")
        return [*self._input_projections(hidden_size), output]

    def _input_projections(self, hidden_size: int) -> list[Projection]:
        raise NotImplementedError

    def parameters(self, hidden_size: int) -> int:
        # Each channel has its own weights, one for each token that it sees (depthwise).
        convolution = self.conv_channels * self.conv_kernel
        return parameters_of(self.projections(hidden_size)) + convolution + self._vector_parameters

    @property
    def _vector_parameters(self) -> int:
        """Parameters outside matrices and the convolution."""
        raise NotImplementedError

    @property
    def flops(self) -> float:
        """Forward FLOPs of the recurrence for each token, with its convolution. Papers and
        frameworks count them as if the recurrence took one step after the other."""
        # The convolution multiplies and adds for each of its `conv_kernel` tokens.
        return self._state_flops + 2 * self.conv_channels * self.conv_kernel

    @property
    def _state_flops(self) -> float:
        raise NotImplementedError

    chunk = 128
    """Tokens that are worked on together: as many as in Megatron-Core's Mamba."""

    @property
    def elementwise_traffic(self) -> float:
        """Elements of a token that forward reads and writes beside the recurrence: the convolution
        reads and writes its channels, and the norm and gate read the output and the gate and write
        one result."""
        return 2 * self.conv_channels + 3 * self.value_elements

    @property
    def kernel_traffic(self) -> float:
        """Elements of a token, of 16 bits, that the kernels of the recurrence read and write in
        forward. The first kernel makes the state of each chunk, the next passes states on, and the
        last reads them with its tokens. So states, which are fp32 and count as two elements each,
        are written twice and read twice, and tokens are read twice (the kernels of mamba_ssm's
        ssd_combined.py). The output is written once."""
        states = 4 * 2 * self.state_elements / self.chunk
        return states + 2 * self.input_elements + self.value_elements

    @property
    def kept_elements(self) -> float:
        """Elements of a token that are kept for backward beside the outputs of projections: the
        output of the recurrence before its norm and gate, and after them."""
        return 2 * self.value_elements

    def replicated_parameters(self, hidden_size: int) -> int:
        """Return the parameters that every tensor-parallel rank has whole."""
        return whole_parameters_of(self.projections(hidden_size))


@dataclass(frozen=True, kw_only=True)
class Mamba2(Recurrence):
    """Mamba-2 (arXiv 2405.21060) has one projection that gives the gate, values, B and C, and a
    time step for each head. Its parameters are those of NemotronHMamba2Mixer of transformers."""

    conv_bias: bool = True
    bias: bool = False
    norm: bool = True
    """The output is normalised, before or after it is gated."""
    kind = "mamba2"

    def _input_projections(self, hidden_size: int) -> list[Projection]:
        # The gate and values, B and C, and a time step for each head.
        columns = 2 * self.value_elements + 2 * self.key_elements + self.num_heads
        return [Projection("in", hidden_size, columns, "columns", fused=True)]

    @property
    def _vector_parameters(self) -> int:
        """Parameters outside matrices and the convolution: A, D and the bias of the time step for
        each head, the biases of the convolution and the norm."""
        biases = self.conv_channels if self.conv_bias else 0
        return biases + 3 * self.num_heads + (self.value_elements if self.norm else 0)

    def parameters(self, hidden_size: int) -> int:
        biases = sum(matrix.n_out for matrix in self.projections(hidden_size)) if self.bias else 0
        return super().parameters(hidden_size) + biases

    @property
    def _state_flops(self) -> float:
        """Forward FLOPs of the state for each token: 7 for each element (mamba_layer_flops of
        Megatron-LM's training.py)."""
        return 7 * self.state_elements


@dataclass(frozen=True, kw_only=True)
class DeltaNet(Recurrence):
    """The gated delta rule (arXiv 2412.06464), or Kimi delta attention (arXiv 2510.26692), whose
    state decays with a rate for each element of a key.

    Its parameters are those of Qwen3NextGatedDeltaNet and KimiLinearDeltaAttention of transformers.
    """

    decay_per_element: bool = False
    decay_rank: int | None = None
    """Elements that the decay of each element is projected from. None stands for one decay of a
    head, projected from the input."""
    gate_rank: int | None = None
    """Elements that the gate of the output is projected from; None stands for one matrix from the
    input."""

    @property
    def kind(self) -> str:
        return "kimi_delta_attention" if self.decay_per_element else "gated_delta_net"

    def _input_projections(self, hidden_size: int) -> list[Projection]:
        """Return the projections to queries, keys, values, the step size beta, the decay and the
        gate."""
        return [
            Projection("q", hidden_size, self.key_elements, "columns", fused=True),
            Projection("k", hidden_size, self.key_elements, "columns", fused=True),
            Projection("v", hidden_size, self.value_elements, "columns", fused=True),
            Projection("beta", hidden_size, self.num_heads, "columns", fused=True),
            *_projections_through(self.decay_rank, "decay", hidden_size, self._decays),
            *_projections_through(self.gate_rank, "gate", hidden_size, self.value_elements),
        ]

    @property
    def _decays(self) -> int:
        """The number of decays of a token: one for each head, or for each element of its key."""
        return self.num_heads * (self.key_head_dim if self.decay_per_element else 1)

    @property
    def _vector_parameters(self) -> int:
        """Parameters outside matrices and the convolution: A for each head, the bias of every
        decay, and the norm that heads share."""
        return self.num_heads + self._decays + self.value_head_dim

    chunk = 64
    """Tokens that are worked on together: as many as in flash-linear-attention."""

    @property
    def kernel_traffic(self) -> float:
        """Elements of a token, of 16 bits, that the kernels read and write in forward. Beside the
        traffic of states and tokens, keys and values are transformed within each chunk for every
        head, and read again (arXiv 2406.06484 §3.2). States have 16 bits."""
        # Written twice and read twice, as in Recurrence, where states are fp32 and count double.
        states = 4 * self.state_elements / self.chunk
        # Written once, and read once by the kernel that follows.
        transformed = 2 * (self.num_heads * self.key_head_dim + self.value_elements)
        return states + transformed + 2 * self.input_elements + self.value_elements

    @property
    def kept_elements(self) -> float:
        """Elements of a token that are kept for backward beside the outputs of projections. They
        include the output of the convolution, which the kernels do not compute again
        (chunk_gated_delta_rule of flash-linear-attention)."""
        return super().kept_elements + self.conv_channels

    @property
    def _state_flops(self) -> float:
        """Forward FLOPs of the state for each token, which takes part in four products: those of
        keys with themselves and with values, its update, and the product with the query (linear
        attention in Megatron-LM's training.py)."""
        return 8 * self.state_elements


@dataclass(frozen=True, kw_only=True)
class LightningAttention(Recurrence):
    """Linear attention with a fixed decay for each head (arXiv 2401.04658), as in MiniMax-01 (arXiv
    2501.08313 §2.2). Its parameters are those of MiniMaxLightningAttention of transformers."""

    kind = "lightning_attention"

    def _input_projections(self, hidden_size: int) -> list[Projection]:
        return [
            Projection("qkv", hidden_size, self.input_elements, "columns", fused=True),
            Projection("gate", hidden_size, self.value_elements, "columns", fused=True),
        ]

    @property
    def _vector_parameters(self) -> int:
        """Parameters outside matrices: the norm of the outputs of heads."""
        return self.value_elements

    @property
    def _state_flops(self) -> float:
        """Forward FLOPs of the state for each token: two for each element in its update, and
        two in the query's product with it (arXiv 2501.08313 §2.2.2)."""
        return 4 * self.state_elements


@dataclass(frozen=True, kw_only=True)
class ShortConvolution(Recurrence):
    """A convolution over the last few tokens between two gates (LFM2). These tokens are its state.
    Its channels are the heads, of one element each.

    Its parameters are those of Lfm2ShortConv of transformers.
    """

    bias: bool = False
    """The convolution and both projections have biases."""
    kind = "short_convolution"

    @classmethod
    def of(cls, channels: int, conv_kernel: int, *, bias: bool = False) -> ShortConvolution:
        """Return a convolution over `conv_kernel` tokens. Each of its `channels` counts as a head
        of one element, since it has no heads of its own."""
        return cls(
            num_heads=channels,
            num_key_heads=channels,
            key_head_dim=1,
            value_head_dim=1,
            conv_kernel=conv_kernel,
            bias=bias,
        )

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution. They are those of the values alone, because the first gate
        has joined its two inputs before."""
        return self.value_elements

    def _input_projections(self, hidden_size: int) -> list[Projection]:
        """Return the single projection to both gates and the values."""
        return [Projection("in", hidden_size, self.input_elements, "columns", fused=True)]

    def parameters(self, hidden_size: int) -> int:
        # Each bias has the size of an output: of the convolution, the projection in and that out.
        biases = self.conv_channels + self.input_elements + hidden_size if self.bias else 0
        return super().parameters(hidden_size) + biases

    @property
    def _vector_parameters(self) -> int:
        return 0

    @property
    def _state_flops(self) -> float:
        """Forward FLOPs for each token beside the convolution: those of its two gates."""
        return 2 * self.value_elements

    @property
    def elementwise_traffic(self) -> float:
        """Elements of a token that forward reads and writes: each gate reads two streams and writes
        one, and the convolution reads and writes one."""
        return 8 * self.value_elements

    @property
    def kernel_traffic(self) -> float:
        """Zero, because there are no states."""
        return 0.0

    @property
    def kept_elements(self) -> float:
        """Elements of a token that are kept for backward: the input and the output of the
        convolution, and the output of the gate behind it."""
        return 3 * self.value_elements


def _projections_through(rank: int | None, name: str, n_in: int, n_out: int) -> list[Projection]:
    """Return the projection `name` from n_in to n_out elements; or if `rank` is given, a projection
    down to that many elements and one up again. Tensor parallelism cuts "columns" by their outputs,
    and leaves the small one down "whole" on every rank."""
    if rank is None:
        return [Projection(name, n_in, n_out, "columns", fused=True)]
    return [
        Projection(f"{name}_down", n_in, rank, "whole"),
        Projection(f"{name}_up", rank, n_out, "columns"),
    ]
