"""Kernel time on one device: matrix products, attention and memory-bound work.

Shapes are those of one device. Times are in seconds, for forward, input gradient and weight
gradient. `f` are the facts of the problem and `c` the coefficients of its profile, most of which
are shares of a peak rate (models.cost.facts, models.spec.profile).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from models.compilation.compiled import compiled
from models.cost.facts import CoefficientRecord, Facts, LayerFacts

TILE_M, TILE_N = 128, 256
"""The usual output tile of a tensor-core GEMM on large problems (cuBLAS, CUTLASS)."""
VECTOR_BYTES = 16
"""Bytes of a row that kernels on tensor cores load at a time (NVIDIA, Matrix Multiplication
Background User's Guide, "Tensor Core Requirements": fastest where rows are multiples of 16
bytes)."""
FLASH_HALF_LENGTH = 500
"""Tokens at which a flash kernel reaches half its rate (FlashAttention-2 charts, A100 and H100)."""
WHOLE_HEAD = 128
"""Elements of a head beyond which kernels get no faster (FlashAttention-2; cuDNN on H100, by
FlashAttention-3's charts)."""
FLASH_BACKWARD = 2.5
"""FLOPs of backward over forward: five products instead of two (FlashAttention-2, arXiv
2307.08691)."""
RECURRENCE_BACKWARD = 3.0
"""Time of backward over forward for a recurrence, in mamba_ssm and flash-linear-attention: it runs
forward's own kernels, those of the states' gradients, and those of the inputs'."""


class Passes(NamedTuple):
    """Seconds of forward, of input gradients and of weight gradients."""

    forward: float
    input: float
    weight: float


@compiled
def add(one: Passes, other: Passes) -> Passes:
    """Return the time of two pieces of work one after the other, pass by pass."""
    return Passes(one.forward + other.forward, one.input + other.input, one.weight + other.weight)


@compiled
def scale(passes: Passes, factor: float) -> Passes:
    return Passes(passes.forward * factor, passes.input * factor, passes.weight * factor)


@compiled
def backward(passes: Passes) -> float:
    return passes.input + passes.weight


@compiled
def linear(f: Facts, c: CoefficientRecord, m: float, k: float, n: float) -> Passes:
    """Return the time of a projection of m rows from k to n elements, in the workload's GEMM
    format."""
    return grouped(f, c, m, k, n, 1.0)  # 1.0: a single product


@compiled
def linear_16(f: Facts, c: CoefficientRecord, m: float, k: float, n: float) -> Passes:
    """Return the time of a projection of m rows from k to n elements that is in 16 bits whatever
    the GEMM format, as those of the head and of a router are."""
    rate = f.flops_16 * c.gemm_16 * alignment_factor(f, c, k, n, 2.0)
    # In this order: forward, the gradient of the input (m x k), and that of the weights (k x n).
    return Passes(
        product(f=f, c=c, m=m, k=k, n=n, groups=1.0, rate=rate, element_bytes=2.0),
        product(f=f, c=c, m=m, k=n, n=k, groups=1.0, rate=rate, element_bytes=2.0),
        product(f=f, c=c, m=k, k=m, n=n, groups=1.0, rate=rate, element_bytes=2.0),
    )


@compiled
def grouped(f: Facts, c: CoefficientRecord, m: float, k: float, n: float, groups: float) -> Passes:
    """Return the time of `groups` projections in one kernel, each of m rows from k to n elements.
    Forward and both gradients are products of equal FLOPs and different shapes."""
    rate = f.gemm_flops * gemm_efficiency(f, c) * alignment_factor(f, c, k, n, f.gemm_bytes)
    if groups > 1:
        rate *= c.grouped_gemm  # the share of a plain product's rate that a grouped kernel reaches
    # In this order: forward, the gradient of the input (m x k), and that of the weights (k x n).
    return Passes(
        product(f=f, c=c, m=m, k=k, n=n, groups=groups, rate=rate, element_bytes=f.gemm_bytes),
        product(f=f, c=c, m=m, k=n, n=k, groups=groups, rate=rate, element_bytes=f.gemm_bytes),
        product(f=f, c=c, m=k, k=m, n=n, groups=groups, rate=rate, element_bytes=f.gemm_bytes),
    )


@compiled
def gemm_efficiency(f: Facts, c: CoefficientRecord) -> float:
    """Return the share of the peak rate that large products reach in the workload's GEMM format.
    FP8 with a scale for each row has a factor of its own."""
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
    """Return the seconds of `groups` products of m x k by k x n matrices with operands of
    `element_bytes`. FLOPs run at `rate`, in FLOP/s, less what the last, partly filled wave of tiles
    loses. Bytes move at the rate of memory. The longer of the two counts.

    A product of b output tiles on u units takes b/u waves plus a tail; b / (b + tail·u) is the
    share of the time that works. With tail = 0.3 waves this gives 0.80, 0.77, 0.66, 0.41 of peak
    for square 8K, 4K, 2K, 1K on A100, where 0.80, 0.73, 0.71, 0.38 were measured. The coefficient
    `expert_serialisation` is 0 where the tiles of all groups fill waves together, and 1 where the
    groups run one by one, each with a tail of its own.
    """
    tiles = groups * max(m / TILE_M, 1.0) * max(n / TILE_N, 1.0)
    tails = 1 + (groups - 1) * c.expert_serialisation
    busy = tiles / (tiles + c.gemm_tail_waves * f.compute_units * tails)
    flops = groups * 2.0 * m * n * k * whole_tiles(f, m) * whole_tiles(f, n)
    moved = groups * ((m * k + k * n) * element_bytes + m * n * f.activation_bytes)
    return max(flops / (rate * busy), moved / (f.memory_bytes_s * c.memory))


@compiled
def alignment_factor(
    f: Facts, c: CoefficientRecord, k: float, n: float, element_bytes: float
) -> float:
    """Return the factor of the rate of products between k and n features: below 1 where a row of k
    or of n elements is no multiple of VECTOR_BYTES, which is slow to load, and the stack does not
    pad. Forward and both gradients read or write rows of both sizes."""
    aligned = (k * element_bytes) % VECTOR_BYTES == 0 and (n * element_bytes) % VECTOR_BYTES == 0
    return 1.0 if aligned or f.pads_products else c.ragged_rows


@compiled
def whole_tiles(f: Facts, n: float) -> float:
    """Return n rounded up to whole tiles, over n: the factor of work that padding adds."""
    # 1e-9 absorbs rounding, so that a whole number of tiles does not count as one more.
    return math.ceil(n / f.gemm_tile - 1e-9) * f.gemm_tile / n


@compiled
def attention(
    f: Facts, layer: LayerFacts, c: CoefficientRecord, queries: float, heads: float
) -> Passes:
    """Return the time of attention's scores, softmax and weighted values for this number of queries
    and heads, each over the mean number of keys that a query sees.

    Forward and backward share one rate, since they were measured together.
    """
    dims = layer.score_dims
    if f.materialises_scores:
        return materialised_attention(f, c, queries, heads, dims)
    keys = layer.mean_keys
    # attended_length is that of documents where these are packed into a sequence.
    if 0 < layer.sliding_window < f.attended_length:
        # Whole blocks of keys are read at a window's edge, but no more than causal attention reads
        # without a window.
        keys = min(keys + f.key_block, f.seq_len / 2)
    flops = 2.0 * queries * keys * heads * dims
    # The rate is that of the sequence's length, of which a causal query sees half on average.
    # Kernels are slower on short sequences, and on heads of fewer than WHOLE_HEAD elements.
    length = min(f.seq_len, 2 * keys)
    narrow = min(layer.head_dim / WHOLE_HEAD, 1.0) ** c.narrow_heads
    shape = length / (length + FLASH_HALF_LENGTH) * narrow
    rate = f.flops_16 * c.attention * shape
    if layer.chooses_keys:  # Sparse attention gathers its keys, which slows kernels down.
        rate *= c.chosen_keys
    return Passes(flops / rate, FLASH_BACKWARD * flops / rate, 0.0)  # 0.0: it has no weights


@compiled
def choice_of_keys(f: Facts, layer: LayerFacts, c: CoefficientRecord, queries: float) -> Passes:
    """Return the time in which the indexer of sparse attention scores keys for this number of
    queries and chooses the largest. Each fp32 score is written, and read twice. Backward has two
    products for one."""
    # c.chosen_keys is the share of attention's rate that the choice reaches.
    products = queries * layer.scoring_flops / (f.flops_16 * c.attention * c.chosen_keys)
    traffic = move(f, c, queries * layer.scored_keys * 4 * 3)
    return Passes(products + traffic, 2 * products + traffic, 0.0)  # 0.0: it has no weights


@compiled
def recurrence(f: Facts, layer: LayerFacts, c: CoefficientRecord, tokens: float) -> Passes:
    """Return the time of linear attention or a state-space model over `tokens` with all heads: its
    FLOPs or its traffic, whichever takes longer.

    Backward computes states again and passes their gradients back, and has a kernel for each of the
    inputs.
    """
    products = tokens * layer.recurrence_flops / (f.flops_16 * c.gemm_16)
    elements = tokens * layer.recurrence_traffic * c.recurrence_traffic
    seconds = max(products, move(f, c, elements * f.activation_bytes))
    # 0.0: it has no matrices of its own; its projections are products apart.
    return Passes(seconds, RECURRENCE_BACKWARD * seconds, 0.0)


@compiled
def materialised_attention(
    f: Facts, c: CoefficientRecord, queries: float, heads: float, dims: float
) -> Passes:
    """Return the time of attention that computes every score (no causal skipping) and moves it to
    memory and back. `dims` is the elements of a key and of a value together.

    An unfused softmax reads and writes the scores for scale, mask, softmax and dropout each; a
    fused one does so once (`score_passes`).
    """
    scores = queries * f.seq_len * heads
    products = 2.0 * scores * dims / (f.flops_16 * c.gemm_16)
    traffic = move(f, c, scores * 2 * f.score_passes)  # scores of 16 bits
    return Passes(products + traffic, 2 * products + traffic, 0.0)  # 0.0: it has no weights


@compiled
def slower_in_chunks(f: Facts, layer: LayerFacts, chunks: float) -> float:
    """Return the relative slowdown of attention (0.1 is 10% longer) when it meets the keys of a
    sequence in `chunks` chunks, as in a ring (arXiv 2310.01889). Each kernel has the rate of its
    own length: l/c / (l/c + half) instead of l / (l + half)."""
    # Under a causal mask the mean query sees half of the length; under a window, less.
    length = min(f.seq_len, 2 * layer.mean_keys)
    return FLASH_HALF_LENGTH * (chunks - 1) / (length + FLASH_HALF_LENGTH)


@compiled
def move(f: Facts, c: CoefficientRecord, size: float) -> float:
    """Return the seconds of moving `size` bytes to and from memory."""
    return size / (f.memory_bytes_s * c.memory)
