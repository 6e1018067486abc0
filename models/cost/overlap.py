"""What each part of a model exposes under a policy: compute, and communication that nothing hides.

Times are of one micro-batch, for one layer of a kind, the embedding or the head; arrays of shape
(n,).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from models.columns import Array, total
from models.cost.kernels import slower_in_chunks
from models.cost.mesh_costs import MeshCosts, Traffic
from models.spec.layout import DUALPIPE, ZERO_BUBBLE_V, Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients, Number

Pair = tuple[Array, Array]
"""Of forward and of backward."""


@dataclass(frozen=True, slots=True)
class Part:
    """Seconds of forward and of both passes, both by term, and in how many of them nothing else is
    sent beside."""

    forward: Array
    both: Array
    terms: dict[str, Array]
    free: Array


class Exposure:
    """Of n layouts, on the costs of their meshes; instead of what they recompute all have one
    `policy` of those of the costs, for that `share` of every stage's layers."""

    def __init__(
        self,
        layouts: Layouts,
        meshes: MeshCosts,
        policy: Array | int | None = None,
        share: Array | None = None,
    ) -> None:
        self.problem, self.layouts, self.meshes, self.c = meshes.problem, layouts, meshes, meshes.c
        self.stack = self.problem.stack
        self.micro_batches = layouts.num_micro_batches(self.problem.workload.global_batch)
        self.zero3 = layouts.zero_stage == 3
        kept_gathered = self.zero3 & ~layouts.reshard
        self.once = (layouts.zero_stage < 2) | (kept_gathered & (layouts.pp > 1))
        self.policy: Array | int = (
            np.searchsorted(meshes.policies, layouts.recompute) if policy is None else policy
        )
        self.share = recomputed(self.problem, layouts) if policy is None else share

    @cached_property
    def overlapped_schedule(self) -> Array:
        return overlaps(self.layouts)

    @cached_property
    def in_parts(self) -> bool:
        """Whether any divides its sequences."""
        return bool((self.layouts.cp > 1).any())

    @cached_property
    def parts(self) -> list[Part]:
        """Every layer kind, the embedding and the head."""
        return [self._part(i) for i in range(self.meshes.kinds + 2)]

    def weights(self) -> list[Array]:
        """Seconds that weight gradients add to every part, less the traffic that hides beside
        them."""
        return [part.both - self._part(i, weight=False).both for i, part in enumerate(self.parts)]

    def whole_model(self) -> Array:
        """Both passes of all layers and ends."""
        return weighed(self.amounts, [part.both for part in self.parts])

    def pass_of(self, parts: Sequence[int]) -> Array:
        """Both passes of some parts of the model."""
        return total(self.amounts[i] * self._part(i).both for i in parts)

    @property
    def amounts(self) -> list[float]:
        """Layers of each kind in the whole model, and one of each end."""
        return self.problem.architecture.trained_part_counts

    def _part(self, index: int, *, weight: bool = True) -> Part:
        t, again = self.meshes.times[index], self.again(index)
        backward = t.backward if weight else t.backward - t.weight
        forward, ahead, back = t.forward, t.forward, backward + again
        terms = {"compute_s": t.forward + backward, "recompute_s": again}
        is_layer = index < self.meshes.kinds
        if is_layer:
            kernels, idle = self._attention(index)
            if self.layouts.offload_activations.any():
                sent, fetched = self._offload(index, ahead, back)
                ahead, back, terms["offload_s"] = ahead + sent, back + fetched, sent + fetched
                idle = idle[0] + sent, idle[1] + fetched
            exposed, idle = self._exposed_tensor(
                index, (ahead - kernels[0], back - kernels[1]), idle
            )
            ahead, back = ahead + exposed[0], back + exposed[1]
            held = self._held_up(index, ahead, back)
            ahead, back, terms["tensor_s"] = (
                ahead + held[0],
                back + held[1],
                total(exposed) + total(held),
            )
            forward = ahead
            if self.in_parts:
                exposed, hidden = self._exposed_context(index, kernels, idle)
                forward, terms["context_s"] = ahead + exposed[0], total(exposed)
                ahead, back = np.maximum(ahead - hidden[0], 0.0), np.maximum(back - hidden[1], 0.0)
        free = ahead + back
        if not self.once.all():
            data: Array | float = 0.0
            if any(self.problem.shard_copy_bytes):
                before, after = self._copied(index)
                ahead, back, forward, data = (
                    ahead + before,
                    back + after,
                    forward + before,
                    before + after,
                )
            exposed, hides = self._exposed_data(self.meshes.traffic[index], ahead, back)
            forward, free, terms["data_s"] = (
                forward + exposed[0],
                ahead + back - hides,
                data + total(exposed),
            )
        if is_layer and self.problem.architecture.kinds[index].moe:
            sent, received, hides = self._exposed_experts(index, free)
            forward, free, terms["expert_s"] = forward + sent, free - hides, sent + received
        return Part(forward, total(terms.values()), terms, free)

    def _attention(self, index: int) -> tuple[Pair, Pair]:
        """Of forward and backward, with what is computed again: kernels of attention, and gaps."""
        t, repeated = self.meshes.times[index], self.meshes.tables.shards.repeated[index]
        kernels = (
            t.attention_forward,
            t.attention_backward + self._once_more(repeated.context) * t.attention_forward,
        )
        return kernels, (
            t.idle_forward,
            t.idle_backward + self._once_more(repeated.whole) * t.idle_forward,
        )

    def _exposed_tensor(self, index: int, beside: Pair, idle: Pair) -> tuple[Pair, Pair]:
        """In forward and backward, and the gaps that are left there. Within a scale-up domain a
        GEMM works on the parts that have come (userbuffers of Transformer Engine); `beside`: what
        all but attention takes, gaps and all."""
        tensor, _, _ = self.meshes.layer_traffic[index]
        again = tensor * (1.0 + self._once_more(self.meshes.tables.shards.repeated[index].tensor))
        if not self.problem.overlaps_tensor:
            return (tensor, again), idle
        hides, most = (
            self.layouts.sequence_parallel & ~self.meshes.tensor_across_domains,
            self.c.tensor_overlap,
        )
        early, late = (
            hides * np.minimum(most * tensor, beside[0]),
            hides * np.minimum(most * again, beside[1]),
        )
        left = np.minimum(idle[0], beside[0] - early), np.minimum(idle[1], beside[1] - late)
        return (tensor - early, again - late), left

    def _held_up(self, index: int, ahead: Array, back: Array) -> Pair:
        """How much longer the host takes with a layer's launches and tensor-parallel collectives
        than the device with all of it."""
        host, stalls = self.meshes.times[index].host, self.meshes.stalls(index)
        repeated = self.meshes.tables.shards.repeated[index]
        again = (
            2 * host
            + self._once_more(repeated.whole) * host
            + stalls * (1.0 + self._once_more(repeated.tensor))
        )
        return np.maximum(host + stalls - ahead, 0.0), np.maximum(again - back, 0.0)

    def _exposed_context(self, index: int, kernels: Pair, idle: Pair) -> tuple[Pair, Pair]:
        """In forward and backward, and what is hidden there."""
        _, traffic, _ = self.meshes.layer_traffic[index]
        once_more = self._once_more(self.meshes.tables.shards.repeated[index].context)
        beside = kernels[0] + idle[0], kernels[1] + idle[1]
        sent = context_sent(self.problem, traffic, once_more)
        return exposed_context(self.meshes, index, sent, beside, kernels)

    def _exposed_experts(self, index: int, free: Array) -> tuple[Array, Array, Array]:
        """In forward and backward, and what of `free` is taken to hide the rest."""
        _, _, traffic = self.meshes.layer_traffic[index]
        again = traffic * (1.0 + self._once_more(self.meshes.tables.shards.repeated[index].expert))
        hides = self._expert_hides
        hidden = np.minimum(self.c.expert_overlap * 2.0 * traffic, free) * hides
        return traffic - hidden / 2, again - hidden / 2, hidden

    def again(self, index: int) -> Array:
        """Seconds of a part of the model that backward computes again."""
        again = self.meshes.again(index, self.policy)
        return again if self.share is None else again * self.share

    def _once_more(self, traffic: Array) -> Array:
        """Of forward's traffic, what the policies bring again."""
        again = traffic[self.policy]
        return again if self.share is None else again * self.share

    @cached_property
    def _expert_hides(self) -> Array | float:
        """Of how many micro-batches the all-to-all may run beside another's compute, where stack
        and schedule bring one: not in the first one's forward, nor in the last one's backward."""
        if not self.stack.overlap_expert:
            return 0.0
        another = (self.layouts.pp == 1) | self.overlapped_schedule
        again = np.max([kind.expert for kind in self.meshes.tables.shards.repeated], axis=0)
        return (another & (again[self.policy] == 0)) * (1 - 1 / self.micro_batches)

    def _copied(self, index: int) -> Pair:
        """Where parameters are gathered or gradients reduced every time (ZeRO 2 and 3), what copies
        beside that take in forward and backward. Once a step they are nothing beside the update."""
        gathered, reduced = self.meshes.copies(index)
        before = ~self.once & self.zero3
        return before * gathered, (before & self.layouts.reshard) * gathered + ~self.once * reduced

    def _exposed_data(
        self, traffic: Traffic, forward: Array, backward: Array
    ) -> tuple[Pair, Array]:
        """Per micro-batch, where parameters are gathered or gradients reduced every time (ZeRO 2
        and 3): in forward and backward, and what is hidden."""
        before, again = ~self.once & self.zero3, ~self.once & self.zero3 & self.layouts.reshard
        ahead = traffic.gather - traffic.stuck
        early, late = before * ahead, ~self.once * traffic.scatter + again * ahead
        in_forward, in_backward = self.hide(early, forward), self.hide(late, backward)
        hidden = early + late - in_forward - in_backward
        return (before * traffic.stuck + in_forward, again * traffic.stuck + in_backward), hidden

    def hide(self, traffic: Array, window: Array | float) -> Array:
        """What `window` seconds of compute leave exposed of data-parallel traffic."""
        return exposed_data(self.problem, self.c, traffic, window)

    def hide_once(self, traffic: Array, window: Array | float) -> Array:
        """The same of what comes once a step."""
        exposed = self.hide(traffic, window)
        if self.stack.overlap_zero1:
            return exposed
        return np.where(self.layouts.zero_stage == 1, traffic, exposed)

    def sends(self, stages: Array | None = None) -> Array:
        """Exposed per-micro-batch sends of a step; beside what `stages` compute, amounts of every
        part (s, n) each, or what the mean of them computes. The first micro-batch has nothing to
        run beside."""
        every, most = self._sends
        if not self._hides_sends:
            return every
        parts = [part.free for part in self.parts]
        free = (
            weighed(self.amounts, parts) / self.layouts.pp
            if stages is None
            else weighed(stages, parts)
        )
        return np.asarray(every - np.minimum(most, (self.micro_batches - 1) * free))

    def sends_within(self, seconds: Array) -> Array:
        """The same beside all that a pipeline takes, so many seconds, in which a stage computes or
        waits for others."""
        every, most = self._sends
        return np.asarray(every - np.minimum(most, (1 - 1 / self.micro_batches) * seconds))

    def least_sends(self) -> Array:
        """What is exposed of them however much there is to run beside."""
        every, most = self._sends
        return np.asarray(every - most)

    @cached_property
    def _hides_sends(self) -> bool:
        return bool(self.stack.overlap_pipeline and self.overlapped_schedule.any())

    @cached_property
    def _sends(self) -> tuple[Array, Array]:
        """Seconds of a step's sends, and how many of them may hide."""
        every = 2 * self.micro_batches * self.layouts.virtual_stages * self._send
        if not self._hides_sends:
            return every, np.zeros_like(every)
        return every, self.overlapped_schedule * (self.c.pipeline_overlap * every)

    def hops(self) -> Array:
        """Latency of filling and draining the pipeline."""
        return np.asarray(2 * (self.layouts.pp - 1) * self._send)

    @cached_property
    def _send(self) -> Array:
        return np.where(self.layouts.pp > 1, self.meshes.send, 0.0)

    def waits(self) -> Array | float:
        """For a node in trouble, whose every send and receipt takes so much longer: two of both
        passes for each neighbour of a stage, and one for each hop of filling and draining the
        pipeline. Without neighbours both passes wait."""
        if not self.problem.cluster.fills_fabric:
            return 0.0
        x = self.layouts
        neighbours = x.virtual_stages * np.clip(x.pp - 1, 1, 2)
        return np.asarray(2 * (self.micro_batches * neighbours + x.pp - 1) * self.c.slow_node_s)

    def _offload(self, index: int, forward: Array, backward: Array) -> Pair:
        """What activations take longer than the compute of forward, beside which they leave, or
        they would pile up, and than that of backward, beside which they come back. Who waits for
        the host may send over other links."""
        traffic = self.layouts.offload_activations * (self.kept(index) / (self.c.host_gb_s * 1e9))
        return np.maximum(traffic - forward, 0.0), np.maximum(traffic - backward, 0.0)

    def kept(self, index: int) -> Array:
        """Bytes that a layer keeps, on average over those that are recomputed and those that are
        not."""
        kept = self.meshes.kept(index, self.policy)
        if self.share is None:
            return kept
        return self.share * kept + (1 - self.share) * self.meshes.kept(index)

    def working(self) -> Array:
        """Bytes of the activations of a layer while it is computed again, and of what it
        gathers."""
        most = [
            self.meshes.kept(i) - self.meshes.kept(i, self.policy) for i in range(self.meshes.kinds)
        ]
        largest = reduce(np.maximum, most)
        return largest + self.meshes.whole_keys if self.stack.context == "allgather" else largest

    def data_once(self) -> list[tuple[Array, Array]]:
        """Of each part, once a step: (parameters gathered, gradients reduced), nothing hidden."""
        stage = self.layouts.zero_stage
        gathers = (stage == 1) | (stage == 2) | (self.once & self.zero3)
        whole = self.stack.all_reduces_gradients(stage)
        return [
            (gathers * traffic.gather, self.once * np.where(whole, traffic.reduce, traffic.scatter))
            for traffic in self.meshes.traffic
        ]

    def update(self, owned: Array, offloaded: Array | bool) -> Array:
        """Clip (read gradients) and update (read and write states) so many parameters, from device
        or host memory."""
        device, host = update_seconds(self.problem, self.c)
        return np.asarray(owned * np.where(offloaded, host, device))

    def norm(self) -> Array:
        return norm_seconds(self.c, self.layouts.num_devices)

    def owned(self, index: int, worth: tuple[float, float] = (1.0, 1.0)) -> Array:
        """Parameters of a part whose optimizer state a device holds, or what they (dense, expert)
        are worth."""
        size, (dense, expert) = self.meshes.bytes[index], worth
        return self.shard(size.dense * dense, size.expert * expert, self.layouts.zero_stage >= 1)

    def shard(self, dense: Array, expert: Array, sharded: Array) -> Array:
        """Over the devices that share them, where they are sharded."""
        by_dense = np.where(sharded, self.meshes.dense_shards, 1.0)
        return np.asarray(
            dense / by_dense + expert / np.where(sharded, self.meshes.expert_shards, 1.0)
        )


def context_sent(problem: Problem, traffic: Array, once_more: Array | float = 0.0) -> Pair:
    """Context-parallel traffic of a layer in forward, and in backward with what is sent
    `once_more`: keys and values come again there, and their gradients leave; heads that are
    exchanged for tokens go back as they came."""
    return traffic, ((1 if problem.stack.context == "ulysses" else 2) + once_more) * traffic


def exposed_context(
    meshes: MeshCosts, kind: int, sent: Pair, beside: Pair, attention: Pair
) -> tuple[Pair, Pair]:
    """What is left of it, and what is hidden. A ring runs beside so much, at most, and makes
    attention, which takes so much at least, slower in chunks. What is gathered or exchanged is
    there before attention begins, or leaves after it."""
    problem, hides = meshes.problem, meshes.c.context_overlap
    if problem.stack.context != "ring":
        return sent, (np.zeros_like(sent[0]), np.zeros_like(sent[1]))
    kernel = problem.architecture.kinds[kind].attention
    slower = slower_in_chunks(kernel, problem.workload.seq_len, meshes.layouts.cp)
    early, late = (np.minimum(s, hides * b) for s, b in zip(sent, beside, strict=True))
    return (sent[0] - early + slower * attention[0], sent[1] - late + slower * attention[1]), (
        early,
        late,
    )


def exposed_data(problem: Problem, c: Coefficients, traffic: Array, window: Array | float) -> Array:
    """What `window` seconds of compute leave exposed, plus what the hidden part slows them by."""
    if not problem.stack.overlap_data:
        return traffic
    return np.asarray(traffic - np.minimum(traffic, c.data_overlap * window) * (1 - c.interference))


def update_seconds(problem: Problem, c: Coefficients) -> tuple[Number, Number]:
    """Of one parameter, (on the device, on the host)."""
    states = 2 * (problem.master_bytes + problem.workload.optimizer_state.moment_bytes)
    moved = problem.gradient_bytes + problem.parameter_bytes
    device = (states + problem.gradient_bytes + moved) / (problem.cluster.memory_bytes_s * c.memory)
    # a device's share of host memory is about as fast as its link to it
    return device, (states + 2 * moved) / (c.host_gb_s * 1e9)


def norm_seconds(c: Coefficients, devices: Array | int) -> Array:
    """Of the gradient's norm: two reductions over all devices, if there are several."""
    return np.where(
        devices > 1, 2 * (c.collective_s + c.scaleout_hop_s * np.log2(np.maximum(devices, 1))), 0.0
    )


def straggling(problem: Problem, c: Coefficients, devices: Array | int) -> Array:
    """What waiting for the slowest of so many devices adds to a step, as a share of it, with each
    doubling beyond a node."""
    node = min(8, problem.cluster.scale_up_domain)
    return np.asarray(c.jitter * np.log2(np.maximum(devices / node, 1.0)))


def recomputed(problem: Problem, layouts: Layouts) -> Array | None:
    """Share of the layers of a stage that its policy is for, where that is not all of them for
    every layout: a full one may be for the first few of each chunk."""
    if not layouts.recompute_layers.any():
        return None
    chunk = problem.architecture.num_layers / (layouts.pp * layouts.virtual_stages)
    return np.where(
        layouts.recompute_layers > 0, np.minimum(layouts.recompute_layers / chunk, 1.0), 1.0
    )


def overlaps(layouts: Layouts) -> Array:
    """Schedules that run one micro-batch's compute beside another's communication."""
    return (
        (layouts.virtual_stages > 1)
        | (layouts.schedule == DUALPIPE)
        | (layouts.schedule == ZERO_BUBBLE_V)
    )


def weighed(amounts: Array | Sequence[Array | float], values: Sequence[Array]) -> Array:
    """Σ amount·value over parts of the model; amounts may be those of (s, n) stages."""
    return total(amount * value for amount, value in zip(amounts, values, strict=False))
