"""Compute time of a layer and of the ends of a model on one device, for one micro-batch.

A layer is its body (attention, dense MLP, norms) and its experts; each depends on fewer cuts than both together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.architecture import Attention, Layer, Moe
from models.array import Array, Shared, total
from models.kernels import Kernels, Passes, joined
from models.problem import Problem
from models.profile import Coefficients
from models.shard import Shards

OLDEST_YEARS = 3.0  # older software is treated as this old: dates further back come with other chips and models
LOGIT_BYTES = 16  # traffic per fp32 logit: written, read for max and sum, gradient written and read


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of one layer (or of a model end) for one micro-batch.

    `backward` is both halves; `weight` the part for weight gradients, which zero-bubble schedules move.
    `beside_forward` and `beside_backward` are what context-parallel traffic can run beside: the attention kernel, and
    the gaps in which the device waits for the host. `selective` and `full` are what each recompute policy adds to
    backward.
    """

    forward: Array
    backward: Array
    weight: Array
    beside_forward: Array
    beside_backward: Array
    selective: Array
    full: Array

    def take(self, rows: Array) -> LayerTime:
        return LayerTime(*(getattr(self, name)[rows] for name in self.__slots__))

    def scaled(self, factor: Array | float) -> LayerTime:
        return LayerTime(*(getattr(self, name) * factor for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class _Part:
    """Products, the attention kernel, memory-bound work; and forward time that selective recompute repeats."""

    products: Passes
    core: Passes
    light: Passes
    again: Array

    def take(self, rows: Array) -> _Part:
        return _Part(self.products.take(rows), self.core.take(rows), self.light.take(rows), self.again[rows])

    def __add__(self, other: _Part) -> _Part:
        return _Part(
            self.products + other.products, self.core + other.core, self.light + other.light, self.again + other.again
        )


class Compute:
    """Times of a problem's layers and ends under some shards; arrays of shape (n,) as the shards'."""

    def __init__(self, problem: Problem, shards: Shards, c: Coefficients, *, shared: bool = True) -> None:
        self.problem, self.shards, self.c = problem, shards, c
        self.h = problem.architecture.hidden_size
        self.kernels = Kernels(problem, c)
        self.bodies: Shared[Shards] = shards.bodies(shared=shared)
        self.experts: Shared[Shards] = shards.experts(shared=shared)
        self.age = min(problem.stack.age_years, OLDEST_YEARS)

    def layer(self, layer: Layer) -> LayerTime:
        """One transformer layer."""
        part = self._body(layer, self.bodies.table).take(self.bodies.code)
        if layer.moe:
            part = part + self._experts(layer.moe, self.experts.table).take(self.experts.code)
        host = self._launches(layer) * self.c.launch_s * np.exp(self.c.launch_ageing * self.age)
        everything = part.products + part.core + part.light
        forward = _slower(everything.forward, host)
        backward = _slower(everything.backward, 2 * host)
        beside_forward = part.core.forward + forward - everything.forward
        beside_backward = part.core.backward + backward - everything.backward
        one = LayerTime(forward, backward, part.products.weight, beside_forward, beside_backward, part.again, forward)
        return one.scaled(self.c.compute_overhead * np.exp(self.c.ageing * self.age))

    def embedding(self) -> LayerTime:
        """The look-up of input embeddings: reading and writing, and a scatter backward."""
        size = self.problem.workload.number_format.activation_bytes
        move = self.kernels.move(3 * self.shards.local_tokens * self.h * size)
        zero = np.zeros_like(move)
        return LayerTime(move, move, zero, zero, zero, zero, zero).scaled(self.c.compute_overhead)

    def head(self) -> LayerTime:
        """Final norm, output projection and cross-entropy over fp32 logits; MTP modules add a layer and a head."""
        x, kernels, modules = self.shards, self.kernels, self.problem.architecture.mtp_layers
        vocab = self.problem.architecture.vocab_size
        matmul = kernels.linear_16(x.tokens, self.h, vocab / x.tp)
        kept = vocab / x.tp if self.problem.stack.parallel_loss else vocab
        logits = kernels.move(x.tokens * kept * LOGIT_BYTES) * 0.5
        zero = np.zeros_like(logits)
        one = LayerTime(matmul.forward + logits, matmul.backward + logits, matmul.weight, zero, zero, zero, zero)
        one = one.scaled(self.c.compute_overhead)
        if not modules:
            return one
        extra = self.layer(self.problem.architecture.layers[-1])
        projection = kernels.linear(x.tokens, 2 * self.h, self.h / x.tp)
        front = LayerTime(
            projection.forward, projection.backward, projection.weight, zero, zero, zero, projection.forward
        ).scaled(self.c.compute_overhead)
        return _sum([one.scaled(1 + modules), extra.scaled(modules), front.scaled(modules)])

    def _body(self, layer: Layer, x: Shards) -> _Part:
        attention, kernels = layer.attention, self.kernels
        products = self._projections(attention, x)
        if dense := layer.dense:
            width = dense.intermediate_size / x.tp
            products = products + kernels.linear(x.tokens, self.h, width * (dense.matrices - 1))
            products = products + kernels.linear(x.tokens, width, self.h)
        core = kernels.attention(attention, x.tokens, attention.num_heads / x.tp)
        light = self._traffic(self._body_traffic(layer, x))
        again = light.forward + self._up_projections(attention, x)
        if kernels.materialises_scores:
            again = again + core.forward
        return _Part(products, core, light, again)

    def _projections(self, attention: Attention, x: Shards) -> Passes:
        """Heads are sharded over tp; MLA's down-projections are not, each device does its own tokens."""
        linear, parts = self.kernels.linear, []
        for name, n_in, n_out in attention.projections(self.h):
            if name.endswith("_down"):
                parts.append(linear(x.local_tokens, n_in, n_out))
            elif name == "o":
                parts.append(linear(x.tokens, n_in / x.tp, n_out))
            elif name == "kv":
                continue
            elif name == "q" and not attention.is_mla:  # one product with keys and values; heads are shared or repeated
                parts.append(linear(x.tokens, n_in, n_out / x.tp + attention.kv_dim * attention.kv_share(x.tp)))
            else:
                parts.append(linear(x.tokens, n_in, n_out / x.tp))
        return joined(parts)

    def _up_projections(self, attention: Attention, x: Shards) -> Array:
        ups = [(i, o) for name, i, o in attention.projections(self.h) if name.endswith("_up")]
        return total(self.kernels.linear(x.tokens, i, o / x.tp).forward for i, o in ups)

    def _body_traffic(self, layer: Layer, x: Shards) -> Array:
        """Bytes of norms, residuals, rotary and activation function: reads and writes of elements by fused kernels."""
        attention, size = layer.attention, self.problem.workload.number_format
        stream = x.local_tokens * self.h * (2 * layer.num_norms + 3 * 2)
        heads = attention.num_heads / x.tp + attention.num_kv_heads * attention.kv_share(x.tp)
        moved = stream + 2 * x.tokens * heads * attention.head_dim
        if dense := layer.dense:
            moved = moved + x.tokens * dense.intermediate_size / x.tp * dense.matrices
        operands = x.tokens * (2 * self.h + attention.num_heads * attention.v_head_dim / x.tp)
        if dense := layer.dense:
            operands = operands + x.tokens * dense.intermediate_size / x.tp
        return moved * size.activation_bytes + self._quantised(operands)

    def _quantised(self, operands: Array) -> Array:
        """Bytes of bringing inputs of products to the format they are multiplied in: read once, and written as they are
        and transposed, for the weight gradient."""
        size = self.problem.workload.number_format
        return operands * (size.activation_bytes + 2 * size.gemm_bytes) * (size.gemm_bytes < size.activation_bytes)

    def _experts(self, moe: Moe, x: Shards) -> _Part:
        """Routed experts as grouped GEMMs: every local expert is a product of its own share of tokens.

        The busiest device sets the pace: natural routing adds `imbalance`.
        """
        routed, local = routed_tokens(moe, x), moe.num_experts / x.ep
        width = moe.intermediate_size / x.etp
        up = self.kernels.grouped(routed / local, self.h, width * (moe.expert.matrices - 1), local)
        down = self.kernels.grouped(routed / local, width, self.h, local)
        router = self.kernels.linear_16(x.local_tokens, self.h, moe.num_experts)
        products = (up + down) * skew(self.problem, self.c) + router
        moved = routed * width * moe.expert.matrices
        moved = moved + 4 * routed * self.h * self.c.routing_traffic * np.exp(self.c.routing_ageing * self.age)
        moved = moved * self.problem.workload.number_format.activation_bytes
        light = self._traffic(moved + self._quantised(routed * (self.h + width)))
        return _Part(products, Passes.of(*(np.zeros_like(moved),) * 2), light, light.forward)

    def _traffic(self, moved: Array) -> Passes:
        """Memory-bound work; backward moves twice as much."""
        forward = self.kernels.move(moved * self.c.elementwise_traffic)
        return Passes.of(forward, 2 * forward)

    def _launches(self, layer: Layer) -> Array:
        """Kernels of a layer's forward: projections, attention, element-wise; routing, dispatch, and a few for every
        local expert where it is sparse; a conversion with every product in a low format."""
        fused, low = self.problem.stack.fused, self.problem.workload.number_format.gemm_bytes < 2
        products = sum(name != "kv" for name, _, _ in layer.attention.projections(self.h)) + (2 if layer.dense else 0)
        count = products * (3 if low else 1) + 2 + layer.num_norms * (1 if fused else 3) + (4 if fused else 10)
        if not layer.moe:
            return np.full(len(self.shards), float(count))
        return count + 20 + layer.moe.num_experts / self.shards.ep * (6 if low else 2)


def routed_tokens(moe: Moe, x: Shards) -> Array:
    """Token copies one device's experts process, on average."""
    return x.local_tokens * moe.experts_per_token * x.etp


def skew(problem: Problem, c: Coefficients) -> Array | float:
    """Work and traffic of the busiest device's experts over the mean."""
    return 1 + c.imbalance if problem.workload.routing == "natural" else 1.0


def _slower(device: Array, host: Array) -> Array:
    """The slower of two that run beside each other, with some of the other where they are close."""
    device, host = device * device, host * host
    return np.asarray(np.sqrt(np.sqrt(device * device + host * host)))


def _sum(times: list[LayerTime]) -> LayerTime:
    return LayerTime(*(total(getattr(t, name) for t in times) for name in LayerTime.__slots__))
