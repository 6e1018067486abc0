"""Compute time of a layer and of the ends of a model on one device, for one micro-batch.

A layer is its body (attention, dense MLP, norms) and its experts; each depends on fewer cuts than
both together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist

import numpy as np

from models.columns import Array, Columns, SharedRows, total
from models.cost.kernels import Kernels, Passes, joined
from models.cost.shard import Shards
from models.spec.architecture import Attention, Layer, Mlp, Moe
from models.spec.problem import Problem
from models.spec.profile import Coefficients, Number
from models.spec.recompute import LAST, PIECES, Recomputed

# older software is treated as this old: dates further back come with other chips and models
OLDEST_YEARS = 3.0
SETTLED_YEARS = 0.5  # dense runs of one layout have been as fast for longer (docs/experiments.md)
_DOUBLINGS = np.arange(15)
_LARGEST = np.array([NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) for n in 2.0**_DOUBLINGS])
"""The largest of 1, 2, 4, ... normal values (Blom 1958, Statistical Estimates and Transformed
Beta-Variables)."""
EAGER_NORM = 18
"""Elements of 16 bits that an RMSNorm reads and writes for each of its input, operation by
operation: to fp32, squared, averaged, scaled, back, times its weight, 6 + 8 + 4 + 8 + 6 + 4 bytes.
One fused kernel: 2."""
EAGER_ROTARY = 9  # two products, a rotated copy and a sum, where one kernel has 2
EAGER_GATE = 2  # the activated gate, written and read again
LOGIT_BYTES = {"fused": 16, "compiled": 16, "pytorch": 40, "stepwise": 52}
"""Traffic per fp32 logit. One kernel writes it, reads it for its maximum and sum, writes a gradient
and reads that. PyTorch's cross-entropy converts it (6 bytes), takes log-softmax (12), clears a
gradient (4), fills it (12) and converts that (6). Step by step, as Megatron-LM's
vocab_parallel_cross_entropy does unless told otherwise: converted (6), maximum (4), subtracted (8),
exponent (8), sum (4), divided (8); backward scaled (8) and converted (6)."""


@dataclass(frozen=True, slots=True)
class LayerTime(Columns):
    """Seconds of one layer (or of a model end) for one micro-batch.

    `backward` is both halves; `weight` is what weight gradients, which zero-bubble schedules move,
    add to it. Both have the attention kernel, and the gaps in which the device is `idle`, waiting
    for the host, which takes `host` for forward and twice that for backward.
    """

    forward: Array
    backward: Array
    weight: Array
    attention_forward: Array
    attention_backward: Array
    idle_forward: Array
    idle_backward: Array
    host: Array

    @classmethod
    def plain(cls, forward: Array, backward: Array, weight: Array) -> LayerTime:
        """Of work without attention that no host holds up."""
        return cls(forward, backward, weight, *[np.zeros_like(forward)] * 5)

    def of_stretches(self, starts: Array, extreme: np.ufunc) -> LayerTime:
        """Of stretches of rows that start there one value each: np.maximum, or np.minimum, of all
        of them."""
        return LayerTime(
            *(extreme.reduceat(getattr(self, name), starts) for name in self.__slots__)
        )

    def scaled(self, factor: Array | float) -> LayerTime:
        return LayerTime(*(getattr(self, name) * factor for name in self.__slots__))

    def __add__(self, other: LayerTime) -> LayerTime:
        return LayerTime(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class _Part:
    """Products, the attention kernel, memory-bound work; and forward seconds of the pieces that can
    be computed again by themselves (models.spec.recompute.PIECES)."""

    products: Passes
    core: Passes
    light: Passes
    pieces: dict[str, Array]

    def take(self, rows: Array) -> _Part:
        pieces = {name: seconds.take(rows) for name, seconds in self.pieces.items()}
        return _Part(self.products.take(rows), self.core.take(rows), self.light.take(rows), pieces)

    def __add__(self, other: _Part) -> _Part:
        return _Part(
            self.products + other.products,
            self.core + other.core,
            self.light + other.light,
            self.pieces | other.pieces,
        )


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """A layer's, and what each recompute policy adds to its backward, (policies, n)."""

    once: LayerTime
    again: Array

    def take(self, rows: Array) -> LayerTimes:
        return LayerTimes(self.once.take(rows), self.again.take(rows, axis=1))

    def scaled(self, factor: Array | float) -> LayerTimes:
        return LayerTimes(self.once.scaled(factor), self.again * factor)

    def __add__(self, other: LayerTimes) -> LayerTimes:
        return LayerTimes(self.once + other.once, self.again + other.again)


class Compute:
    """Times of a problem's layers and ends under some shards, arrays of shape (n,) as the shards';
    and under some recompute policies."""

    def __init__(
        self,
        problem: Problem,
        shards: Shards,
        c: Coefficients,
        policies: Sequence[int],
        *,
        shared: bool = True,
    ) -> None:
        self.problem, self.shards, self.c, self.policies = problem, shards, c, policies
        kinds = problem.architecture.kinds
        done = [problem.recomputed(policy, kind) for policy in policies for kind in kinds]
        self.repeated = {piece for what in done for piece in what.pieces}
        self.repeated |= {LAST for what in done if what.whole and what.skips_last}
        self.h = problem.architecture.hidden_size
        self.kernels = Kernels(problem, c)
        self.bodies: SharedRows[Shards] = shards.bodies(shared=shared)
        self.experts: SharedRows[Shards] = shards.experts(shared=shared)
        self.age = min(problem.stack.age_years, OLDEST_YEARS)
        kernel_age = np.clip(problem.stack.age_years, c.kernel_age, OLDEST_YEARS)
        self.slower = c.compute_overhead * np.exp(
            c.ageing * np.maximum(kernel_age - SETTLED_YEARS, 0.0)
        )

    def layer(self, layer: Layer) -> LayerTimes:
        """One transformer layer."""
        body = self._body(layer, self.bodies.table)
        if not layer.moe:
            return self._times(layer, body).take(self.bodies.code)
        experts = self._experts(layer.moe, self.experts.table).take(self.experts.code)
        return self._times(layer, body.take(self.bodies.code) + experts)

    def _times(self, layer: Layer, part: _Part) -> LayerTimes:
        each, of_experts = self._launches(layer)
        host = (each * self.c.launch_s + of_experts * self.c.expert_launch_s) * np.exp(
            self.c.launch_ageing * self.age
        )
        everything = part.products + part.core + part.light
        forward = _slower(everything.forward, host)
        backward = _slower(everything.backward, 2 * host)
        idle = forward - everything.forward, backward - everything.backward
        weight = backward - _slower(everything.backward - part.products.weight, 2 * host)
        beside = part.core.forward, part.core.backward, *idle, host + np.zeros_like(forward)
        once = LayerTime(forward, backward, weight, *beside)
        again = [
            self._again(self.problem.recomputed(policy, layer), forward, part.pieces)
            for policy in self.policies
        ]
        return LayerTimes(once, np.stack(again)).scaled(self.slower)

    @staticmethod
    def _again(what: Recomputed, forward: Array, pieces: dict[str, Array]) -> Array:
        if what.whole:
            return forward - pieces[LAST] if what.skips_last else forward
        return np.asarray(
            sum((pieces[name] for name in PIECES if name in what.pieces), np.zeros_like(forward))
        )

    def embedding(self) -> LayerTime:
        """The look-up of input embeddings: reading and writing, and a scatter backward."""
        size = self.problem.workload.number_format.activation_bytes
        move = self.kernels.move(3 * self.bodies.table.local_tokens * self.h * size)
        return (
            LayerTime.plain(move, move, np.zeros_like(move))
            .scaled(self.slower)
            .take(self.bodies.code)
        )

    def head(self) -> LayerTimes:
        """Final norm, output projection and cross-entropy over fp32 logits; MTP modules add a
        projection and a head each, and a layer, which is counted with the others."""
        x, kernels, modules = self.bodies.table, self.kernels, self.problem.architecture.mtp_layers
        vocab = self.problem.architecture.vocab_size
        matmul = kernels.linear_16(x.tokens, self.h, vocab / x.tp)
        kept = vocab / x.tp if self.problem.stack.parallel_loss else vocab
        logits = kernels.move(x.tokens * kept * LOGIT_BYTES[self.problem.stack.loss]) * 0.5
        none = np.zeros((len(self.policies), len(x)))
        one = LayerTime.plain(matmul.forward + logits, matmul.backward + logits, matmul.weight)
        head = LayerTimes(one.scaled(self.slower), none)
        if modules:
            head = head.scaled(1 + modules) + self._projection(x).scaled(modules)
        return head.take(self.bodies.code)

    def _projection(self, x: Shards) -> LayerTimes:
        """Of an MTP module, from what its layer reads to what the layer takes: again, where that
        layer is."""
        product = self.kernels.linear(x.tokens, 2 * self.h, self.h / x.tp)
        once = LayerTime.plain(product.forward, product.backward, product.weight).scaled(
            self.slower
        )
        last = self.problem.architecture.layers[-1]
        whole = np.array([self.problem.recomputed(policy, last).whole for policy in self.policies])
        return LayerTimes(once, whole[:, None] * once.forward)

    def _body(self, layer: Layer, x: Shards) -> _Part:
        attention, pieces = layer.attention, dict[str, Callable[[], Array]]()
        products = self._projections(attention, x)
        if dense := layer.dense:
            up, down = self._dense(dense, x)
            mlp = up + down
            products = products + mlp
            left = down.forward * self.problem.skips_last_product(layer)
            pieces[LAST] = lambda: left
            pieces["dense"] = lambda: (
                mlp.forward - left - self._half(dense, attention, x, down.forward - left)
            )
            pieces["dense_half"] = lambda: self._half(dense, attention, x, down.forward - left)
        core = self.kernels.attention(attention, x.tokens, attention.num_heads / x.tp)
        pieces["attention"] = lambda: core.forward
        pieces["up"] = lambda: self._up_projections(attention, x)
        pieces["ends"] = lambda: self._keys_and_output(attention, x)
        moved = self._body_traffic(layer, x)
        pieces |= {name: partial(self._moving, size) for name, size in moved.items()}
        return _Part(products, core, self._traffic(total(moved.values())), self._wanted(pieces))

    def _wanted(self, pieces: Mapping[str, Callable[[], Array]]) -> dict[str, Array]:
        """Those that some policy computes again."""
        return {name: seconds() for name, seconds in pieces.items() if name in self.repeated}

    def _dense(self, dense: Mlp, x: Shards) -> tuple[Passes, Passes]:
        """Up, with a gate's product, and down."""
        width = dense.intermediate_size / x.tp
        up = self.kernels.linear(x.tokens, self.h, width * (dense.matrices - 1))
        return up, self.kernels.linear(x.tokens, width, self.h)

    def _half(self, dense: Mlp, attention: Attention, x: Shards, down: Array) -> Array:
        """Forward of the products of an MLP that are the second, fourth and so on of their layer,
        after queries, keys, values and output, or after five of MLA; `down`: what is done again of
        the last."""
        up = self.kernels.linear(x.tokens, self.h, dense.intermediate_size / x.tp).forward
        if attention.is_mla:
            return up + down if dense.gated else up
        return up if dense.gated else down

    def _projections(self, attention: Attention, x: Shards) -> Passes:
        """Heads are sharded over tp; MLA's down-projections are not, each device does its own
        tokens."""
        linear, parts = self.kernels.linear, []
        for name, n_in, n_out in attention.projections(self.h):
            if name.endswith("_down"):
                parts.append(linear(x.local_tokens, n_in, n_out))
            elif name == "o":
                parts.append(linear(x.tokens, n_in / x.tp, n_out))
            elif name == "kv":
                continue
            elif (
                name == "q" and not attention.is_mla
            ):  # one product with keys and values; heads are shared or repeated
                parts.append(
                    linear(
                        x.tokens, n_in, n_out / x.tp + attention.kv_dim * attention.kv_share(x.tp)
                    )
                )
            else:
                parts.append(linear(x.tokens, n_in, n_out / x.tp))
        return joined(parts)

    def _up_projections(self, attention: Attention, x: Shards) -> Array:
        ups = [(i, o) for name, i, o in attention.projections(self.h) if name.endswith("_up")]
        return total(self.kernels.linear(x.tokens, i, o / x.tp).forward for i, o in ups)

    def _keys_and_output(self, attention: Attention, x: Shards) -> Array:
        keys = self.kernels.linear(
            x.tokens, self.h, attention.kv_dim / 2 * attention.kv_share(x.tp)
        )
        output = self.kernels.linear(
            x.tokens, attention.num_heads * attention.v_head_dim / x.tp, self.h
        )
        return keys.forward + output.forward

    def _body_traffic(self, layer: Layer, x: Shards) -> dict[str, Array]:
        """Bytes of norms, of a dense activation function, and of residuals, rotary and the rest:
        reads and writes of elements by fused kernels, or of a Llama-like layer (the one with gates)
        operation by operation."""
        attention, size = layer.attention, self.problem.workload.number_format.activation_bytes
        stream = x.local_tokens * self.h
        heads = attention.num_heads / x.tp + attention.num_kv_heads * attention.kv_share(x.tp)
        stack, gated = self.problem.stack, layer.feed_forward.gated
        eager = gated and not stack.fused
        norm = EAGER_NORM if eager and not stack.fused_norm else 2
        rest = (
            stream * 3 * 2 + (EAGER_ROTARY if eager else 2) * x.tokens * heads * attention.head_dim
        )
        values = x.tokens * attention.num_heads * attention.v_head_dim / x.tp
        moved = {
            "norm": stream * norm * layer.num_norms * size + self._quantised(x.tokens * 2 * self.h),
            "other": rest * size + self._quantised(values),
        }
        if dense := layer.dense:
            width = x.tokens * dense.intermediate_size / x.tp
            moved["dense_act"] = width * (
                dense.matrices + (EAGER_GATE if eager else 0)
            ) * size + self._quantised(width)
        return moved

    def _quantised(self, operands: Array) -> Array:
        """Bytes of bringing inputs of products to the format they are multiplied in: read once, and
        written as they are and transposed, for the weight gradient."""
        size = self.problem.workload.number_format
        return (
            operands
            * (size.activation_bytes + 2 * size.gemm_bytes)
            * (size.gemm_bytes < size.activation_bytes)
        )

    def _experts(self, moe: Moe, x: Shards) -> _Part:
        """Routed experts as grouped GEMMs: every local expert is a product of its own share of
        tokens.

        The busiest device sets the pace.
        """
        routed, local = routed_tokens(moe, x), moe.num_experts / x.ep
        width = moe.intermediate_size / x.etp
        up = self.kernels.grouped(routed / local, self.h, width * (moe.expert.matrices - 1), local)
        down = self.kernels.grouped(routed / local, width, self.h, local)
        router = self.kernels.linear_16(x.local_tokens, self.h, moe.num_experts)
        products = (up + down) * skew(self.problem, self.c, moe, x.ep) + router
        size = self.problem.workload.number_format.activation_bytes
        act = routed * width * moe.expert.matrices * size + self._quantised(routed * width)
        if moe.bias:
            act = (
                act
                + routed * (width * (moe.expert.matrices - 1) + self.h) * size * self.c.bias_traffic
            )
        sorting = (
            4 * routed * self.h * self.c.routing_traffic * np.exp(self.c.routing_ageing * self.age)
        )
        light = self._traffic(act + sorting * size + self._quantised(routed * self.h))
        pieces: dict[str, Callable[[], Array]] = {
            "expert_act": partial(self._moving, act),
            "experts": lambda: products.forward + light.forward - self._moving(act),
        }
        return _Part(products, Passes.of(*(np.zeros_like(act),) * 2), light, self._wanted(pieces))

    def _moving(self, moved: Array) -> Array:
        return self._traffic(moved).forward

    def _traffic(self, moved: Array) -> Passes:
        """Memory-bound work; backward moves twice as much."""
        forward = self.kernels.move(moved * self.c.elementwise_traffic)
        return Passes.of(forward, 2 * forward)

    def _launches(self, layer: Layer) -> tuple[Number, Array | float]:
        """Kernels of a layer's forward: projections, attention, element-wise, and where it is
        sparse routing and dispatch; and a few for every local expert, from a loop in C++, or for
        all at once. A conversion goes with every product in a low format."""
        fused, low = self.problem.stack.fused, self.problem.workload.number_format.gemm_bytes < 2
        products = sum(name != "kv" for name, _, _ in layer.attention.projections(self.h)) + (
            2 if layer.dense else 0
        )
        count = (
            products * (3 if low else 1)
            + 2
            + layer.num_norms * (1 if fused else 3)
            + (4 if fused else 10)
        )
        if not layer.moe:
            return count, 0.0
        experts = (
            1 if self.problem.stack.experts_at_once else layer.moe.num_experts / self.shards.ep
        )
        return count + self.c.routing_launches, experts * (6 if low else 2)


def routed_tokens(moe: Moe, x: Shards) -> Array:
    """Token copies one device's experts process, on average."""
    return x.local_tokens * moe.experts_per_token * x.etp


def skew(problem: Problem, c: Coefficients, moe: Moe, ep: Array) -> Array | float:
    """Work and traffic of the busiest device's experts over the mean."""
    return 1 + c.imbalance * busiest(moe, ep) if problem.workload.routing == "natural" else 1.0


def deviation(problem: Problem, ep: int, imbalance: float) -> float | None:
    """The coefficient `imbalance`, where the busiest of ep devices had so many tokens more than the
    mean, as a share of it. None where all experts are on one device or balance is forced: that says
    nothing of how they are chosen."""
    moe = next((kind.moe for kind in problem.architecture.kinds if kind.moe), None)
    if moe is None or ep == 1 or problem.workload.routing != "natural":
        return None
    return imbalance / float(busiest(moe, ep))


def busiest(moe: Moe, ep: Array | int) -> Array:
    """How far the largest of ep shares of the tokens lies above their mean, in standard deviations
    of an expert's: each is the mean of E/ep experts' shares, all normal."""
    return np.asarray(np.interp(np.log2(ep), _DOUBLINGS, _LARGEST) * np.sqrt(ep / moe.num_experts))


def _slower(device: Array, host: Array) -> Array:
    """The slower of two that run beside each other, with some of the other where they are close."""
    device, host = device * device, host * host
    return np.asarray(np.sqrt(np.sqrt(device * device + host * host)))
