"""Kernel time on one device: matrix products, attention and memory-bound work.

Shapes are those of one device; times are in seconds for forward, input gradient and weight
gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from models.compilation.compiled import compiled
from models.cost.facts import CoefficientRecord, Facts, LayerFacts

TILE_M, TILE_N = 128, 256
"""The usual output tile of a tensor-core GEMM on large problems (cuBLAS, CUTLASS)."""
VECTOR_BYTES = 16
"""What kernels on tensor cores load of a row at a time (NVIDIA, Matrix Multiplication Background
User's Guide, "Tensor Core Requirements": fastest where rows are multiples of 16 bytes)."""
FLASH_HALF_LENGTH = 500
"""Tokens at which a flash kernel reaches half its rate; FlashAttention-2 charts, A100 and H100."""
WHOLE_HEAD = 128
"""Wider heads are no faster: FlashAttention-2, cuDNN on H100 (FlashAttention-3's charts)."""
FLASH_BACKWARD = 2.5
"""FLOPs of backward over forward: five products instead of two (FlashAttention-2, arXiv
2307.08691)."""

RECURRENCE_BACKWARD = 3.0
"""Kernels of backward over those of forward, in mamba_ssm and flash-linear-attention: forward's
own, those of the states' gradients, and those of the inputs'."""


class Passes(NamedTuple):
    """Seconds of forward, of input gradients and of weight gradients."""

    forward: float
    input: float
    weight: float


@compiled
def both(one: Passes, other: Passes) -> Passes:
    """One after the other."""
    return Passes(one.forward + other.forward, one.input + other.input, one.weight + other.weight)


@compiled
def times(passes: Passes, factor: float) -> Passes:
    return Passes(passes.forward * factor, passes.input * factor, passes.weight * factor)


@compiled
def backward(passes: Passes) -> float:
    return passes.input + passes.weight


@compiled
def linear(f: Facts, c: CoefficientRecord, m: float, k: float, n: float) -> Passes:
    """A projection of m rows from k to n elements, in the workload's GEMM format."""
    return grouped(f, c, m, k, n, 1.0)


@compiled
def linear_16(f: Facts, c: CoefficientRecord, m: float, k: float, n: float) -> Passes:
    """A projection that stays in 16 bits: the head, a router."""
    rate = f.flops_16 * c.gemm_16 * row_share(f, c, k, n, 2.0)
    return Passes(
        product(f, c, m, k, n, 1.0, rate, 2.0),
        product(f, c, m, n, k, 1.0, rate, 2.0),
        product(f, c, k, m, n, 1.0, rate, 2.0),
    )


@compiled
def grouped(f: Facts, c: CoefficientRecord, m: float, k: float, n: float, groups: float) -> Passes:
    """So many projections at a time, of m rows each: three products of the same FLOPs and different
    shapes."""
    rate = f.gemm_flops * gemm_efficiency(f, c) * row_share(f, c, k, n, f.gemm_bytes)
    if groups > 1:
        rate *= c.grouped_gemm
    return Passes(
        product(f, c, m, k, n, groups, rate, f.gemm_bytes),
        product(f, c, m, n, k, groups, rate, f.gemm_bytes),
        product(f, c, k, m, n, groups, rate, f.gemm_bytes),
    )


@compiled
def gemm_efficiency(f: Facts, c: CoefficientRecord) -> float:
    if f.gemm_format_bits == 8:
        return c.gemm_8 * c.row_scaled_gemm if f.scales_rows else c.gemm_8
    if f.gemm_format_bits == 4:
        return c.gemm_4
    return c.gemm_16


@compiled
def product(
    f: Facts,
    c: CoefficientRecord,
    m: float,
    k: float,
    n: float,
    groups: float,
    rate: float,
    element_bytes: float,
) -> float:
    """Seconds of `groups` products of m x k by k x n matrices: FLOPs at a rate that loses the last,
    partly filled wave of tiles, or bytes at that of memory, whichever takes longer.

    A product of b output tiles on u units takes b/u waves plus a tail; b / (b + tail·u) is the
    share of the time that works. With tail = 0.3 waves this gives 0.80, 0.77, 0.66, 0.41 of peak
    for square 8K, 4K, 2K, 1K on A100, where 0.80, 0.73, 0.71, 0.38 were measured. The tiles of all
    groups fill the waves together, or some groups wait for others, each with a tail of its own.
    """
    tiles = groups * max(m / TILE_M, 1.0) * max(n / TILE_N, 1.0)
    tails = 1 + (groups - 1) * c.expert_serialisation
    busy = tiles / (tiles + c.gemm_tail_waves * f.compute_units * tails)
    flops = groups * 2.0 * m * n * k * whole_tiles(f, m) * whole_tiles(f, n)
    moved = groups * ((m * k + k * n) * element_bytes + m * n * f.activation_bytes)
    return max(flops / (rate * busy), moved / (f.memory_bytes_s * c.memory))


@compiled
def row_share(f: Facts, c: CoefficientRecord, k: float, n: float, element_bytes: float) -> float:
    """The share of the rate that is left of products between k and n features. Each of the three
    reads or writes rows of both, which are slow to load where they are no whole vectors."""
    whole = (k * element_bytes) % VECTOR_BYTES == 0 and (n * element_bytes) % VECTOR_BYTES == 0
    return 1.0 if whole or f.pads_products else c.ragged_rows


@compiled
def whole_tiles(f: Facts, n: float) -> float:
    """Whole tiles over the part that is used of them."""
    return math.ceil(n / f.gemm_tile - 1e-9) * f.gemm_tile / n


@compiled
def attention(
    f: Facts, layer: LayerFacts, c: CoefficientRecord, queries: float, heads: float
) -> Passes:
    """Scores, softmax and values of so many queries and heads, each over the keys that it sees.

    One rate is for forward and backward, as they were measured together.
    """
    dims = layer.score_dims
    if f.materialises_scores:
        return materialised_attention(f, c, queries, heads, dims)
    keys = layer.mean_keys
    if 0 < layer.window < f.attended_length:  # whole blocks of keys are read at a window's edge
        keys = min(keys + f.key_block, f.seq_len / 2)
    flops = 2.0 * queries * keys * heads * dims
    length = min(f.seq_len, 2 * keys)
    narrow = min(layer.head_dim / WHOLE_HEAD, 1.0) ** c.narrow_heads
    shape = length / (length + FLASH_HALF_LENGTH) * narrow
    rate = f.flops_16 * c.attention * shape
    if layer.chooses_keys:
        rate *= c.chosen_keys
    return Passes(flops / rate, FLASH_BACKWARD * flops / rate, 0.0)


@compiled
def choice_of_keys(f: Facts, layer: LayerFacts, c: CoefficientRecord, queries: float) -> Passes:
    """Scores of an indexer for so many queries, and the choice of the largest: each fp32 score is
    written, and read twice. Backward has two products for one, and no choice."""
    products = queries * layer.scoring_flops / (f.flops_16 * c.attention * c.chosen_keys)
    traffic = move(f, c, queries * layer.scored_keys * 4 * 3)
    return Passes(products + traffic, 2 * products + traffic, 0.0)


@compiled
def recurrence(f: Facts, layer: LayerFacts, c: CoefficientRecord, tokens: float) -> Passes:
    """Linear attention or a state-space model, of so many tokens with all heads: its FLOPs, or its
    traffic, whichever takes longer.

    Backward computes states again and passes their gradients back, and has a kernel for each of
    the inputs.
    """
    products = tokens * layer.recurrence_flops / (f.flops_16 * c.gemm_16)
    elements = tokens * layer.recurrence_traffic * c.recurrence_traffic
    seconds = max(products, move(f, c, elements * f.activation_bytes))
    return Passes(seconds, RECURRENCE_BACKWARD * seconds, 0.0)


@compiled
def materialised_attention(
    f: Facts, c: CoefficientRecord, queries: float, heads: float, dims: float
) -> Passes:
    """Every score is computed (no causal skipping) and travels to memory and back.

    An unfused softmax reads and writes scale, mask, softmax and dropout one by one; the fused one
    does once.
    """
    scores = queries * f.seq_len * heads
    products = 2.0 * scores * dims / (f.flops_16 * c.gemm_16)
    traffic = move(f, c, scores * 2 * f.score_passes)
    return Passes(products + traffic, 2 * products + traffic, 0.0)


@compiled
def slower_in_chunks(f: Facts, layer: LayerFacts, chunks: float) -> float:
    """By what share attention takes longer that meets the keys of a sequence chunk by chunk, as in
    a ring (arXiv 2310.01889): each kernel has the rate of its own length, l/c / (l/c + half)
    instead of l / (l + half)."""
    length = min(f.seq_len, 2 * layer.mean_keys)
    return FLASH_HALF_LENGTH * (chunks - 1) / (length + FLASH_HALF_LENGTH)


@compiled
def move(f: Facts, c: CoefficientRecord, size: float) -> float:
    """Seconds for so many bytes to and from memory."""
    return size / (f.memory_bytes_s * c.memory)
