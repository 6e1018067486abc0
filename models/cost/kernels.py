"""Kernel time on one device: GEMMs, grouped GEMMs, attention and memory-bound work.

Shapes are those of one device; times are in seconds for forward, input gradient and weight
gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from models.columns import Array
from models.spec.architecture import Attention
from models.spec.flops import mean_keys
from models.spec.problem import Problem
from models.spec.profile import Coefficients

TILE_M, TILE_N = (
    128,
    256,
)  # the usual output tile of a tensor-core GEMM on large problems (cuBLAS, CUTLASS)
# tokens at which a flash kernel reaches half its rate; FlashAttention-2 charts, A100 and H100
FLASH_HALF_LENGTH = 500
WHOLE_HEAD = (
    128  # wider heads are no faster: FlashAttention-2, cuDNN on H100 (FlashAttention-3's charts)
)
# backward FLOPs over forward: five products instead of two (FlashAttention-2, arXiv 2307.08691)
FLASH_BACKWARD = 2.5
KEY_BLOCK = {
    "splash": 512
}  # keys a kernel takes at a time (sa_block_kv of MaxText); others 128, as flash kernels

Size = Array | float


def slower_in_chunks(attention: Attention, seq_len: int, chunks: Array) -> Array:
    """By what share attention takes longer that meets the keys of a sequence chunk by chunk, as in
    a ring (arXiv 2310.01889): each kernel has the rate of its own length, l/c / (l/c + half)
    instead of l / (l + half)."""
    length = min(seq_len, 2 * mean_keys(attention, seq_len))
    return FLASH_HALF_LENGTH * (chunks - 1) / (length + FLASH_HALF_LENGTH)


@dataclass(frozen=True, slots=True)
class Passes:
    """Forward, input-gradient and weight-gradient seconds."""

    forward: Array
    input: Array
    weight: Array

    @classmethod
    def of(cls, forward: Array, backward: Array) -> Passes:
        """Of work without weights."""
        return cls(forward, backward, np.zeros_like(forward))

    def take(self, rows: Array) -> Passes:
        return Passes(self.forward.take(rows), self.input.take(rows), self.weight.take(rows))

    @property
    def backward(self) -> Array:
        return self.input + self.weight

    def __add__(self, other: Passes) -> Passes:
        return Passes(
            self.forward + other.forward, self.input + other.input, self.weight + other.weight
        )

    def __mul__(self, factor: Array | float) -> Passes:
        return Passes(self.forward * factor, self.input * factor, self.weight * factor)


def joined(parts: list[Passes]) -> Passes:
    return reduce(add, parts)


class Kernels:
    """The kernels of a stack on a chip, for a problem's number format."""

    def __init__(self, problem: Problem, c: Coefficients) -> None:
        self.problem, self.c = problem, c
        workload, cluster = problem.workload, problem.cluster
        self.seq_len = workload.seq_len
        self.format = workload.number_format
        self.tile = cluster.chip.gemm_tile
        self.units = cluster.chip.compute_units / cluster.chip.devices_per_chip
        peak = cluster.peak_flops(self.format.gemm)
        self.peak_16 = peak if workload.precision == "fp32" else cluster.peak_flops_16
        self.memory_rate = cluster.memory_bytes_s * c.memory
        rate = {"fp8": c.gemm_8, "int8": c.gemm_8, "fp4": c.gemm_4}.get(self.format.gemm, c.gemm_16)
        self.rate = peak * rate
        self.rate_16 = self.peak_16 * c.gemm_16

    def linear(self, m: Size, k: Size, n: Size) -> Passes:
        """A projection in the workload's GEMM format."""
        return self._gemm(m, k, n, self.rate, self.format.gemm_bytes)

    def linear_16(self, m: Size, k: Size, n: Size) -> Passes:
        """A projection kept in 16 bits: the head, a router."""
        return self._gemm(m, k, n, self.rate_16, 2)

    def _gemm(self, m: Size, k: Size, n: Size, rate: Size, size: float) -> Passes:
        """Three products of the same FLOPs and different shapes: forward, input gradient, weight
        gradient."""
        return Passes(
            self._product(m, k, n, rate, size),
            self._product(m, n, k, rate, size),
            self._product(k, m, n, rate, size),
        )

    def _product(self, m: Size, k: Size, n: Size, rate: Size, size: float) -> Array:
        """An m x k by k x n product: FLOPs at a rate that loses the last, partly filled wave of
        tiles, or its bytes.

        A GEMM of b output tiles on u units takes b/u waves plus a tail; b / (b + tail·u) is the
        share of time that works. With tail = 0.3 waves this gives 0.80, 0.77, 0.66, 0.41 of peak
        for square 8K, 4K, 2K, 1K on A100, where 0.80, 0.73, 0.71, 0.38 were measured.
        """
        tiles = np.maximum(m / TILE_M, 1) * np.maximum(n / TILE_N, 1)
        busy = tiles / (tiles + self.c.gemm_tail_waves * self.units)
        math = 2.0 * m * n * k * self._whole(m) * self._whole(n) / (rate * busy)
        moved = (m * k + k * n) * size + m * n * self.format.activation_bytes
        return np.maximum(math, moved / self.memory_rate)

    def _whole(self, n: Size) -> Array:
        """Whole tiles over the part that is used of them."""
        return np.asarray(np.ceil(n / self.tile - 1e-9) * self.tile / n)

    def grouped(self, m: Size, k: Size, n: Size, groups: Array) -> Passes:
        """`groups` projections at a time: tiles of all of them fill the waves together, or some
        wait for others. A single one is a plain product."""
        rate = self.rate * np.where(np.asarray(groups) > 1, self.c.grouped_gemm, 1.0)
        size = self.format.gemm_bytes

        def product(m: Size, k: Size, n: Size) -> Array:
            tiles = groups * np.maximum(m / TILE_M, 1) * np.maximum(n / TILE_N, 1)
            tails = 1 + (groups - 1) * self.c.expert_serialisation
            busy = tiles / (tiles + self.c.gemm_tail_waves * self.units * tails)
            math = groups * 2.0 * m * n * k * self._whole(m) * self._whole(n) / (rate * busy)
            moved = groups * ((m * k + k * n) * size + m * n * self.format.activation_bytes)
            return np.maximum(math, moved / self.memory_rate)

        return Passes(product(m, k, n), product(m, n, k), product(k, m, n))

    def attention(self, attention: Attention, queries: Array, heads: Array) -> Passes:
        """Scores, softmax and values of so many heads and queries, each over the keys it sees."""
        dims = attention.head_dim + attention.v_head_dim
        if self.problem.materialises_scores:
            return self._materialised_attention(queries, heads, dims)
        keys = mean_keys(attention, self.seq_len)
        if (
            attention.window and attention.window < self.seq_len
        ):  # whole blocks of keys are read at a window's edge
            keys = min(keys + KEY_BLOCK.get(self.problem.kernel, 128), self.seq_len / 2)
        flops = 2.0 * queries * keys * heads * dims
        length = min(self.seq_len, 2 * keys)
        narrow = min(attention.head_dim / WHOLE_HEAD, 1.0) ** self.c.narrow_heads
        shape = length / (length + FLASH_HALF_LENGTH) * narrow
        rate = (
            self.peak_16 * self.c.attention * shape
        )  # one for forward and backward, as measured together
        return Passes.of(flops / rate, FLASH_BACKWARD * flops / rate)

    def _materialised_attention(self, queries: Array, heads: Array, dims: int) -> Passes:
        """Every score is computed (no causal skipping) and travels to memory and back.

        Unfused softmax reads and writes scale, mask, softmax and dropout one by one; the fused one
        does once.
        """
        scores = queries * self.seq_len * heads
        products = 2.0 * scores * dims / self.rate_16
        traffic = self.move(scores * 2 * (10 if self.problem.kernel == "unfused" else 5))
        return Passes.of(products + traffic, 2 * products + traffic)

    def move(self, size: Array) -> Array:
        """Bytes to and from memory."""
        return np.asarray(size / self.memory_rate)
