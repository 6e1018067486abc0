"""Kernel time of one layer on one device: GEMMs, grouped GEMMs, attention and memory-bound work.

Times are in seconds for one micro-batch. Arrays have shape (n,), one entry per layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.architecture import Attention, Layer, Mlp, Moe
from models.array import Array, total
from models.flops import mean_keys
from models.layout import Layouts
from models.problem import Problem
from models.profile import Coefficients

TILE_M, TILE_N = 128, 256  # the usual output tile of a tensor-core GEMM on large problems (cuBLAS, CUTLASS)
FLASH_HALF_LENGTH = 500  # tokens at which a flash kernel reaches half its rate; FlashAttention-2 charts, A100 and H100
FLASH_BACKWARD = 2.5  # backward FLOPs over forward: five products instead of two (FlashAttention-2, arXiv 2307.08691)
KEY_BLOCK = {"splash": 512}  # keys a kernel takes at a time (sa_block_kv of MaxText); others 128, as flash kernels
OLDEST_YEARS = 3.0  # older software is treated as this old: dates further back come with other chips and models
LOGIT_BYTES = 16  # traffic per fp32 logit: written, read for max and sum, gradient written and read


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of one layer (or of a model end) for one micro-batch.

    `backward` is both halves; `weight` the part for weight gradients, which zero-bubble schedules move.
    `attention` is the forward attention kernel (context-parallel traffic hides behind it). `selective` and
    `full` are what each recompute policy adds to backward. `experts`: forward time of routed experts.
    """

    forward: Array
    backward: Array
    weight: Array
    attention: Array
    selective: Array
    full: Array

    def take(self, rows: Array) -> LayerTime:
        return LayerTime(*(getattr(self, name)[rows] for name in self.__slots__))

    def scaled(self, factor: Array | float) -> LayerTime:
        return LayerTime(*(getattr(self, name) * factor for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class _Passes:
    """Forward, input-gradient and weight-gradient seconds."""

    forward: Array
    input: Array
    weight: Array

    def __add__(self, other: _Passes) -> _Passes:
        return _Passes(self.forward + other.forward, self.input + other.input, self.weight + other.weight)

    def __mul__(self, factor: Array | float) -> _Passes:
        return _Passes(self.forward * factor, self.input * factor, self.weight * factor)


class Kernels:
    """Kernel times of a problem's layers under sharded layouts."""

    def __init__(self, problem: Problem, layouts: Layouts, c: Coefficients) -> None:
        self.problem, self.c = problem, c
        workload, cluster = problem.workload, problem.cluster
        self.h = problem.architecture.hidden_size
        self.seq_len = workload.seq_len
        self.format = workload.number_format
        self.tp, self.cp, self.ep, self.etp = layouts.tp, layouts.cp, layouts.ep, layouts.etp
        self.tokens = layouts.micro_batch * workload.seq_len / layouts.cp
        self.sequences = layouts.micro_batch
        self.local_tokens = self.tokens / np.where(layouts.sequence_parallel, layouts.tp, 1)
        self.tile = cluster.chip.gemm_tile
        self.age = min(problem.stack.age_years, OLDEST_YEARS)
        self.units = cluster.chip.compute_units / cluster.chip.devices_per_chip
        self.peak = cluster.peak_flops(self.format.gemm)
        self.peak_16 = self.peak if workload.precision == "fp32" else cluster.peak_flops_16
        self.memory_rate = cluster.memory_bytes_s * c.memory
        rate = {"fp8": c.gemm_8, "int8": c.gemm_8, "fp4": c.gemm_4}.get(self.format.gemm, c.gemm_16)
        self.gemm_rate = self.peak * rate
        self.gemm_rate_16 = self.peak_16 * c.gemm_16

    def layer(self, layer: Layer) -> LayerTime:
        """One transformer layer."""
        attention = self._attention_projections(layer.attention)
        core = self._attention_core(layer.attention)
        light = self._layer_elementwise(layer)
        matmul = attention
        if layer.dense:
            matmul = matmul + self._mlp(layer.dense, self.tokens, self.tp)
        if layer.moe:
            matmul = matmul + self._experts(layer.moe)
        launches = self._launches(layer)
        everything = matmul + core + light
        host = launches * self.c.launch_s * np.exp(self.c.launch_ageing * self.age)
        forward = _slower(everything.forward, host)
        backward = _slower(everything.input + everything.weight, 2 * host)
        selective = light.forward + self._up_projections(layer.attention).forward
        if self.problem.kernel in ("unfused", "fused_softmax"):
            selective = selective + core.forward
        weight = matmul.weight
        one = LayerTime(forward, backward, weight, core.forward, selective, forward)
        return one.scaled(self.c.compute_overhead * np.exp(self.c.ageing * self.age))

    def embedding(self) -> LayerTime:
        """The look-up of input embeddings: reading and writing, and a scatter backward."""
        move = self._move(3 * self.local_tokens * self.h * self.format.activation_bytes)
        zero = np.zeros_like(move)
        return LayerTime(move, move, zero, zero, zero, zero).scaled(self.c.compute_overhead)

    def head(self) -> LayerTime:
        """Final norm, output projection and cross-entropy over fp32 logits; MTP modules add a layer and a head."""
        vocab = self.problem.architecture.vocab_size / self.tp
        matmul = self._gemm(self.tokens, self.h, vocab, self.gemm_rate_16, 2)
        kept = vocab if self.problem.stack.parallel_loss else self.problem.architecture.vocab_size
        logits = self._move(self.tokens * kept * LOGIT_BYTES) * 0.5
        zero = np.zeros_like(logits)
        backward = matmul.input + matmul.weight + logits
        one = LayerTime(matmul.forward + logits, backward, matmul.weight, zero, zero, zero)
        one = one.scaled(self.c.compute_overhead)
        modules = self.problem.architecture.mtp_layers
        if not modules:
            return one
        extra = self.layer(self.problem.architecture.layers[-1])
        projection = self._gemm(self.tokens, 2 * self.h, self.h / self.tp, self.gemm_rate, self.format.gemm_bytes)
        joined = LayerTime(
            projection.forward, projection.input + projection.weight, projection.weight, zero, zero, projection.forward
        ).scaled(self.c.compute_overhead)
        return _sum([one.scaled(1 + modules), extra.scaled(modules), joined.scaled(modules)])

    def routed_tokens(self, moe: Moe) -> Array:
        """Token copies one device's experts process, on average."""
        return self.local_tokens * moe.experts_per_token * self.etp

    def _gemm(self, m: Array, k: Array | float, n: Array | float, rate: Array | float, size: float) -> _Passes:
        """Three products of the same FLOPs and different shapes: forward, input gradient, weight gradient."""
        forward = self._product(m, k, n, rate, size)
        input_gradient = self._product(m, n, k, rate, size)
        weight_gradient = self._product(k, m, n, rate, size)
        return _Passes(forward, input_gradient, weight_gradient)

    def _product(self, m: Array | float, k: Array | float, n: Array | float, rate: Array | float, size: float) -> Array:
        """An m x k by k x n product: FLOPs at a rate that loses the last, partly filled wave of tiles, or its bytes.

        A GEMM of b output tiles on u units takes b/u waves plus a tail; b / (b + tail·u) is the share of time that
        works. With tail = 0.3 waves this gives 0.80, 0.77, 0.66, 0.41 of peak for square 8K, 4K, 2K, 1K on A100,
        where 0.80, 0.73, 0.71, 0.38 were measured.
        """
        tiles = np.maximum(m / TILE_M, 1) * np.maximum(n / TILE_N, 1)
        busy = tiles / (tiles + self.c.gemm_tail_waves * self.units)
        wasted = self._whole(m) * self._whole(n)
        math = 2.0 * m * n * k * wasted / (rate * busy)
        moved = (m * k + k * n) * size + m * n * self.format.activation_bytes
        return np.maximum(math, moved / self.memory_rate)

    def _whole(self, n: Array | float) -> Array:
        """Whole tiles over the part that is used of them."""
        tile = self.tile
        return np.asarray(np.ceil(n / tile - 1e-9) * tile / n)

    def _attention_projections(self, attention: Attention) -> _Passes:
        """Heads are sharded over tp; MLA's down-projections are not, each device does its own tokens."""
        parts = []
        for name, n_in, n_out in attention.projections(self.h):
            if name.endswith("_down"):
                parts.append(self._linear(self.local_tokens, n_in, n_out))
            elif name == "o":
                parts.append(self._linear(self.tokens, n_in / self.tp, n_out))
            elif name == "kv":
                continue
            elif name == "q" and not attention.is_mla:  # one product with keys and values; heads are shared or repeated
                parts.append(
                    self._linear(self.tokens, n_in, n_out / self.tp + attention.kv_dim * attention.kv_share(self.tp))
                )
            else:
                parts.append(self._linear(self.tokens, n_in, n_out / self.tp))
        return _total(parts)

    def _up_projections(self, attention: Attention) -> _Passes:
        ups = [(i, o) for name, i, o in attention.projections(self.h) if name.endswith("_up")]
        zero = np.zeros_like(self.tokens)
        return _total([_Passes(zero, zero, zero), *(self._linear(self.tokens, i, o / self.tp) for i, o in ups)])

    def _linear(self, m: Array, k: Array | float, n: Array | float) -> _Passes:
        return self._gemm(m, k, n, self.gemm_rate, self.format.gemm_bytes)

    def _mlp(self, mlp: Mlp, tokens: Array, shards: Array) -> _Passes:
        width = mlp.intermediate_size / shards
        up = self._linear(tokens, self.h, width * (mlp.matrices - 1))
        return up + self._linear(tokens, width, self.h)

    def _experts(self, moe: Moe) -> _Passes:
        """Routed experts as grouped GEMMs: every local expert is a product of its own share of tokens.

        The busiest device sets the pace: natural routing adds `imbalance`.
        """
        local = moe.num_experts / self.ep
        per_expert = self.routed_tokens(moe) / local
        width = moe.intermediate_size / self.etp
        rate = self.gemm_rate * self.c.grouped_gemm
        size = self.format.gemm_bytes
        up = self._gemm_group(per_expert, self.h, width * (moe.expert.matrices - 1), local, rate, size)
        down = self._gemm_group(per_expert, width, self.h, local, rate, size)
        router = self._gemm(self.local_tokens, self.h, moe.num_experts, self.gemm_rate_16, 2)
        skew = 1 + self.c.imbalance if self.problem.workload.routing == "natural" else 1.0
        return (up + down) * skew + router

    def _gemm_group(
        self, m: Array, k: Array | float, n: Array | float, groups: Array, rate: Array | float, size: float
    ) -> _Passes:
        """`groups` products at a time: tiles of all of them fill the waves together, or some wait for others."""

        def product(m: Array | float, k: Array | float, n: Array | float) -> Array:
            tiles = groups * np.maximum(m / TILE_M, 1) * np.maximum(n / TILE_N, 1)
            tails = 1 + (groups - 1) * self.c.expert_serialisation
            busy = tiles / (tiles + self.c.gemm_tail_waves * self.units * tails)
            math = groups * 2.0 * m * n * k * self._whole(m) * self._whole(n) / (rate * busy)
            moved = groups * ((m * k + k * n) * size + m * n * self.format.activation_bytes)
            return np.maximum(math, moved / self.memory_rate)

        return _Passes(product(m, k, n), product(m, n, k), product(k, m, n))

    def _attention_core(self, attention: Attention) -> _Passes:
        """Scores, softmax and values. Heads are sharded over tp, the sequence (balanced) over cp."""
        heads = attention.num_heads / self.tp
        dims = attention.head_dim + attention.v_head_dim
        queries = self.sequences * self.seq_len / self.cp
        if self.problem.kernel in ("unfused", "fused_softmax"):
            return self._materialised_attention(queries, heads, dims)
        keys = mean_keys(attention, self.seq_len)
        if attention.window and attention.window < self.seq_len:  # whole blocks of keys are read at a window's edge
            keys = min(keys + KEY_BLOCK.get(self.problem.kernel, 128), self.seq_len / 2)
        flops = 2.0 * queries * keys * heads * dims
        length = min(self.seq_len, 2 * keys)
        head_dim = attention.head_dim
        rate = self.peak_16 * self.c.attention * length / (length + FLASH_HALF_LENGTH) * (head_dim / 128) ** 0.3
        # one rate for forward and backward, as measured together
        return _Passes(flops / rate, FLASH_BACKWARD * flops / rate, np.zeros_like(flops))

    def _materialised_attention(self, queries: Array, heads: Array, dims: int) -> _Passes:
        """Every score is computed (no causal skipping) and travels to memory and back.

        Unfused softmax reads and writes scale, mask, softmax and dropout one by one; the fused one does once.
        """
        scores = queries * self.seq_len * heads
        products = 2.0 * scores * dims / self.gemm_rate_16
        passes = 10 if self.problem.kernel == "unfused" else 5
        traffic = self._move(scores * 2 * passes)
        return _Passes(products + traffic, 2 * products + traffic, np.zeros_like(products))

    def _layer_elementwise(self, layer: Layer) -> _Passes:
        """Norms, residuals, rotary, activation function, expert permutation: bytes, not FLOPs.

        Counted in reads and writes of activation elements by fused kernels; backward moves twice as much.
        """
        attention, h = layer.attention, self.h
        stream = self.local_tokens * h * (2 * layer.num_norms + 3 * 2)
        heads = attention.num_heads / self.tp + attention.num_kv_heads * attention.kv_share(self.tp)
        rotary = 2 * self.tokens * heads * attention.head_dim
        moved = stream + rotary
        if dense := layer.dense:
            moved = moved + self.tokens * dense.intermediate_size / self.tp * (dense.matrices + 0.0)
        if moe := layer.moe:
            routed = self.routed_tokens(moe)
            moved = moved + routed * moe.intermediate_size / self.etp * moe.expert.matrices
            moved = moved + 4 * routed * h * self.c.routing_traffic * np.exp(self.c.routing_ageing * self.age)
        moved = moved * self.format.activation_bytes
        if self.format.gemm_bytes < 2:  # operands are read and written once more, to be quantised
            moved = moved + (self.tokens * h * 2 + self.tokens * h) * 2
        forward = self._move(moved * self.c.elementwise_traffic)
        return _Passes(forward, 2 * forward, np.zeros_like(forward))

    def _move(self, size: Array) -> Array:
        return size / self.memory_rate

    def _launches(self, layer: Layer) -> Array:
        """Kernels of a layer's forward: projections, attention, element-wise; routing, dispatch, and a few for every
        local expert where it is sparse; a conversion with every product in a low format."""
        fused, low = self.problem.stack.fused, self.format.gemm_bytes < 2
        products = sum(name != "kv" for name, _, _ in layer.attention.projections(self.h)) + (2 if layer.dense else 0)
        count = products * (3 if low else 1) + 2 + layer.num_norms * (1 if fused else 3) + (4 if fused else 10)
        if not layer.moe:
            return np.full(len(self.tp), float(count))
        return count + 20 + layer.moe.num_experts / self.ep * (6 if low else 2)


def _slower(device: Array, host: Array) -> Array:
    """The slower of two that run beside each other, with some of the other where they are close."""
    return np.asarray((device**4 + host**4) ** 0.25)


def _total(parts: list[_Passes]) -> _Passes:
    joined = parts[0]
    for part in parts[1:]:
        joined = joined + part
    return joined


def _sum(times: list[LayerTime]) -> LayerTime:
    return LayerTime(*(total(getattr(t, name) for t in times) for name in LayerTime.__slots__))
