"""Schedule, partition, recompute, sharding policy and offload on top of the costs of a mesh, for every layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from models import pipeline
from models.array import Array, distinct, total
from models.hardware import GIB
from models.kernels import FLASH_BACKWARD
from models.layout import DUALPIPE, FULL, SELECTIVE, ZERO_BUBBLE_V, Layouts
from models.mesh_costs import MeshCosts, Traffic

TIME_TERMS: dict[str, str] = {
    "compute_s": "kernels of forward and backward on the slowest stage",
    "recompute_s": "forward work done again in backward",
    "tensor_s": "exposed tensor-parallel traffic",
    "context_s": "exposed context-parallel traffic",
    "expert_s": "exposed expert all-to-all",
    "data_s": "exposed data-parallel traffic: FSDP gathers, gradient reduction, parameter gather",
    "pipeline_s": "exposed sends between stages",
    "bubble_s": "idle time of the slowest stage: pipeline fill and drain",
    "offload_s": "exposed traffic to host memory",
    "optimizer_s": "gradient clipping and parameter update",
    "fixed_s": "host work once a step",
    "jitter_s": "stragglers, growing with scale",
}
MEMORY_TERMS: dict[str, str] = {
    "parameters_bytes": "parameters in use, and FSDP's gathered layers",
    "gradients_bytes": "accumulated gradients",
    "optimizer_bytes": "master copy and moments",
    "activations_bytes": "activations of the micro-batches in flight, and the layer being worked on",
    "logits_bytes": "fp32 logits and their gradient",
    "context_bytes": "runtime, libraries, communication buffers",
    "fragmentation_bytes": "reserved by the allocator beyond what is in use",
}


@dataclass(frozen=True, slots=True)
class _Part:
    """A layer kind or an end under each layout's policies, per micro-batch: seconds exposed, by term and together."""

    forward: Array
    both: Array
    terms: dict[str, Array]


class Combiner:
    """The second pass. Arrays have shape (n,) for layouts, (s, n) for the different stages of each."""

    def __init__(self, layouts: Layouts, meshes: MeshCosts) -> None:
        self.problem, self.layouts, self.meshes, self.c = meshes.problem, layouts, meshes, meshes.c
        self.stack = self.problem.stack
        self.micro_batches = layouts.num_micro_batches(self.problem.workload.global_batch)
        self.zero3 = layouts.zero_stage == 3
        self.kept_gathered = self.zero3 & ~layouts.reshard
        self.once = (layouts.zero_stage < 2) | (self.kept_gathered & (layouts.pp > 1))
        self.full = layouts.recompute == FULL
        self.selective = layouts.recompute == SELECTIVE
        self.overlapped_schedule = (
            (layouts.virtual_stages > 1) | (layouts.schedule == DUALPIPE) | (layouts.schedule == ZERO_BUBBLE_V)
        )

    @cached_property
    def stages(self) -> pipeline.Stages:
        """Layers weighed by forward FLOPs, which every partition of (stages, chunks, policy) shares."""
        x = self.layouts
        mirrored = x.schedule == DUALPIPE
        first, code = distinct(x.pp, x.virtual_stages, x.balanced, mirrored)
        weights, head = self.problem.forward_flops
        parts = (x.pp[first], x.virtual_stages[first], x.balanced[first], mirrored[first])
        return pipeline.partition(self.problem.architecture.runs, np.array(weights), head, *parts).take(code)

    # -- time ---------------------------------------------------------------------------------------------------

    def time(self) -> dict[str, Array]:
        x, m, stages = self.layouts, self.micro_batches, self.stages
        parts = [self._part(i) for i in range(self.meshes.kinds + 2)]
        both = _weighed(stages.amounts, [part.both for part in parts])
        forward = _weighed(stages.amounts, [part.forward for part in parts])
        slow = _largest(both)
        amounts = [_pick(a, slow) for a in stages.amounts]
        slowest, slowest_forward = _pick(both, slow), _pick(forward, slow)
        idle = pipeline.bubble(
            x.schedule,
            x.pp,
            x.virtual_stages,
            total=_weighed(self._totals, [part.both for part in parts]),
            slowest=slowest,
            weight=_weighed(amounts, [time.weight for time in self.meshes.times]),
            backward=slowest - slowest_forward,
            forward_slowest=forward.max(axis=0),
            backward_slowest=(both - forward).max(axis=0),
            micro_batches=m,
        )
        time = {
            name: m * total(a * part.terms[name] for a, part in zip(amounts, parts, strict=True) if name in part.terms)
            for name in ("compute_s", "recompute_s", "tensor_s", "context_s", "expert_s", "data_s", "offload_s")
        }
        sends, hops = self._sends()
        time["data_s"] = time["data_s"] + self._data_once(amounts, slowest_forward, slowest)
        time["pipeline_s"] = sends
        time["bubble_s"] = np.where(x.pp > 1, np.maximum(idle, 0.0), 0.0) + hops
        time["optimizer_s"] = self._optimizer(amounts)
        time["fixed_s"] = np.zeros_like(sends) + self.c.step_fixed_s
        subtotal = total(time.values())
        node = min(8, self.problem.cluster.scale_up_domain)
        time["jitter_s"] = subtotal * self.c.jitter * np.log2(np.maximum(x.num_devices / node, 1.0))
        return {name: time[name] + np.zeros_like(subtotal) for name in TIME_TERMS}

    @property
    def _totals(self) -> list[float]:
        """Layers of each kind in the whole model, and one of each end."""
        counts = [0.0] * self.meshes.kinds
        for kind, count in self.problem.architecture.runs:
            counts[kind] += count
        return [*counts, 1.0, 1.0]

    def _part(self, index: int) -> _Part:
        t, traffic = self.meshes.times[index], self.meshes.traffic[index]
        again = self.full * t.full + self.selective * t.selective
        backward = t.backward + again
        terms = {"compute_s": t.forward + t.backward, "recompute_s": again}
        forward = t.forward
        if index < self.meshes.kinds:
            layer = self.problem.architecture.kinds[index]
            passes = 2.0 + self.full
            tensor = traffic.tensor * self._tensor_exposed
            context_forward, context_backward = self._exposed_context(traffic.context, t.attention)
            terms["tensor_s"] = tensor * passes
            terms["context_s"] = context_forward * (1.0 + self.full) + context_backward
            forward = forward + tensor + context_forward
            if layer.moe:
                expert = traffic.expert * self._expert_exposed
                terms["expert_s"] = expert * passes
                forward = forward + expert
        if not self.once.all():
            data_forward, data_backward = self._exposed_data(traffic, t.forward, backward)
            terms["data_s"] = data_forward + data_backward
            forward = forward + data_forward
        if self.layouts.offload_activations.any():
            terms["offload_s"] = self._offload(index, t.forward + t.backward)
        return _Part(forward, total(terms.values()), terms)

    @cached_property
    def _tensor_exposed(self) -> Array | float:
        if not self.stack.overlap_tensor:
            return 1.0
        return np.where(self.layouts.sequence_parallel, 1 - self.c.tensor_overlap, 1.0)

    def _exposed_context(self, raw: Array, attention: Array) -> tuple[Array, Array]:
        window = self.c.context_overlap * attention
        return np.maximum(raw - window, 0.0), np.maximum(2 * raw - FLASH_BACKWARD * window, 0.0)

    @cached_property
    def _expert_exposed(self) -> Array | float:
        """All-to-all hides behind another micro-batch's compute, where the stack and the schedule bring one."""
        if not self.stack.overlap_expert:
            return 1.0
        another = np.where(self.layouts.pp > 1, self.overlapped_schedule, self.micro_batches > 1) & ~self.full
        return np.where(another, 1 - self.c.expert_overlap, 1.0)

    def _exposed_data(self, traffic: Traffic, forward: Array, backward: Array) -> tuple[Array, Array]:
        """Per micro-batch, where parameters are gathered or gradients reduced every time (ZeRO 2 and 3)."""
        before, again = ~self.once & self.zero3, ~self.once & self.zero3 & self.layouts.reshard
        ahead = traffic.gather - traffic.stuck
        in_forward = before * traffic.stuck + self._hide(before * ahead, forward)
        hideable = ~self.once * traffic.scatter + again * ahead
        return in_forward, again * traffic.stuck + self._hide(hideable, backward)

    def _hide(self, traffic: Array, window: Array) -> Array:
        """What `window` seconds of compute leave exposed, plus what the hidden part slows them by."""
        if not self.stack.overlap_data:
            return traffic
        return np.asarray(traffic - np.minimum(traffic, self.c.data_overlap * window) * (1 - self.c.interference))

    def _data_once(self, amounts: list[Array], forward: Array, both: Array) -> Array:
        """Gradient reduction behind the last micro-batch's backward, parameter gather behind the first forward."""
        traffic, stage = self.meshes.traffic, self.layouts.zero_stage
        gather = _weighed(amounts, [t.gather for t in traffic])
        scatter = _weighed(amounts, [t.scatter for t in traffic])
        reduced = _weighed(amounts, [t.reduce for t in traffic])
        gathers = np.where((stage == 1) | (stage == 2) | (self.once & self.zero3), gather, 0.0)
        scatters = np.where(self.once, np.where(stage == 0, reduced, scatter), 0.0)
        return self._hide(gathers, forward) + self._hide(scatters, both - forward)

    def _sends(self) -> tuple[Array, Array]:
        """(exposed per-micro-batch sends of a step, latency of filling and draining the pipeline)."""
        x, m = self.layouts, self.micro_batches
        once = np.where(x.pp > 1, self.meshes.send, 0.0)
        exposed: Array | float = 1.0
        if self.stack.overlap_pipeline:
            exposed = np.where(self.overlapped_schedule, 1 - self.c.pipeline_overlap, 1.0)
        return 2 * m * x.virtual_stages * once * exposed, 2 * (x.pp - 1) * once

    def _offload(self, index: int, window: Array) -> Array:
        """Activations leave in forward and come back in backward, beside compute."""
        traffic = 2 * self._kept(index) / (self.c.host_gb_s * 1e9)
        return self.layouts.offload_activations * np.maximum(traffic - window, 0.0)

    def _kept(self, index: int) -> Array:
        none, selective, full = self.meshes.bytes[index].kept
        return np.where(self.full, full, np.where(self.selective, selective, none))

    def _optimizer(self, amounts: list[Array]) -> Array:
        """Clip (read gradients), update (read and write states), from device or host memory; and two reductions."""
        x, problem = self.layouts, self.problem
        owned = self._owned(amounts)
        states = 2 * (problem.master_bytes + problem.workload.optimizer_state.moment_bytes)
        moved = problem.gradient_bytes + problem.parameter_bytes
        device = owned * ((states + problem.gradient_bytes + moved) / (problem.cluster.memory_bytes_s * self.c.memory))
        # a device's share of host memory is about as fast as its link to it
        host = owned * ((states + 2 * moved) / (self.c.host_gb_s * 1e9))
        norm = 2 * (self.c.collective_s + self.c.scaleout_hop_s * np.log2(np.maximum(x.num_devices, 1)))
        return np.where(x.offload_optimizer, host, device) + norm + self._orthogonalisation(amounts)

    def _orthogonalisation(self, amounts: list[Array]) -> Array | float:
        """Muon's five Newton-Schulz steps on every matrix (arXiv 2502.16982 §2.2), spread over those who share it."""
        if self.problem.workload.optimizer != "muon":
            return 0.0
        architecture = self.problem.architecture
        flops = [layer.orthogonalisation_flops(architecture.hidden_size) for layer in architecture.kinds]
        ends = [(0.0, 0.0)] * 2  # embedding and head stay with AdamW
        return self._owned(amounts, flops + ends) / (self.problem.cluster.peak_flops_16 * self.c.gemm_16)

    def _owned(self, amounts: list[Array], worth: Sequence[tuple[float, float]] | None = None) -> Array:
        """Parameters whose optimizer state this device holds, or what they are worth: dense and expert ones of each
        layer kind, of the embedding and of the head."""
        size = self.meshes.bytes
        worth = worth or [(1.0, 1.0)] * len(size)
        dense = total(a * s.dense * w for a, s, (w, _) in zip(amounts, size, worth, strict=True))
        expert = total(a * s.expert * w for a, s, (_, w) in zip(amounts, size, worth, strict=True))
        sharded = self.layouts.zero_stage >= 1
        return self._shard(dense, expert, sharded)

    # -- memory -------------------------------------------------------------------------------------------------

    def memory(self) -> tuple[dict[str, Array], Array]:
        """Bytes by term on the fullest stage, and which that is."""
        x, c, stages, size = self.layouts, self.c, self.stages, self.meshes.bytes
        copies = 1.0 + (x.schedule == DUALPIPE)  # DualPipe holds two stages' parameters
        dense = _weighed(stages.amounts, [part.dense for part in size]) * copies
        expert = _weighed(stages.amounts, [part.expert for part in size]) * copies
        kept = _weighed(stages.amounts, [self._kept(i) for i in range(self.meshes.kinds)])
        flying = pipeline.in_flight(x.schedule, stages.index, x.pp, x.virtual_stages, self.micro_batches)
        resident = kept * flying
        if x.offload_activations.any():
            resident = np.where(x.offload_activations, np.minimum(2 * self._working, resident), resident)
        recomputing = self._working * (x.recompute != 0)
        states = self._master_bytes() + self.problem.workload.optimizer_state.moment_bytes
        parts = {
            "parameters_bytes": self._parameter_bytes(dense, expert),
            "gradients_bytes": self._gradient_bytes(dense, expert),
            "optimizer_bytes": ~x.offload_optimizer * states * self._shard(dense, expert, x.zero_stage >= 1),
            "activations_bytes": (resident + recomputing) * c.activation_memory,
            "logits_bytes": (stages.amounts[-1] > 0) * (self.meshes.logits * c.logit_memory),
        }
        allocated = total(parts.values())
        worst = _largest(allocated)
        held = {name: _pick(value, worst) for name, value in parts.items()}
        held["context_bytes"] = np.zeros(len(x)) + c.context_gib * GIB
        held["fragmentation_bytes"] = _pick(allocated, worst) * c.fragmentation
        return {name: held[name] for name in MEMORY_TERMS}, _pick(stages.index, worst)

    @cached_property
    def _working(self) -> Array:
        """Activations of the layer that is worked on."""
        return np.max([part.kept[0] for part in self.meshes.bytes[: self.meshes.kinds]], axis=0)

    @cached_property
    def _unit(self) -> Array:
        """Parameters gathered, or gradients reduced, at a time."""
        return np.max([part.unit for part in self.meshes.bytes[: self.meshes.kinds]], axis=0)

    def _shard(self, dense: Array, expert: Array, sharded: Array) -> Array:
        return dense / np.where(sharded, self.meshes.dense_shards, 1.0) + expert / np.where(
            sharded, self.meshes.expert_shards, 1.0
        )

    def _master_bytes(self) -> Array:
        """FSDP's sharded parameters are the fp32 copy, whatever the parameters in use are."""
        whole = self.problem.workload.optimizer_state.master_bytes
        return np.where(self.zero3, whole, self.problem.master_bytes)

    def _parameter_bytes(self, dense: Array, expert: Array) -> Array:
        """Parameters in use. FSDP keeps only the sharded master copy (counted with the optimizer) and two
        gathered layers, unless it does not reshard."""
        x = self.layouts
        held = dense + expert
        if self.zero3.any():
            held = np.where(self.zero3 & x.reshard, np.minimum(2 * self._unit, held), held)
            held = held + (self.zero3 & x.offload_optimizer) * self._shard(dense, expert, self.zero3)
        return self.problem.parameter_bytes * held

    def _gradient_bytes(self, dense: Array, expert: Array) -> Array:
        sharded = (self.layouts.zero_stage >= 2) & ~self.once
        reduced = sharded * (self.problem.parameter_bytes * self._unit)
        return self.problem.gradient_bytes * self._shard(dense, expert, sharded) + reduced


def _weighed(amounts: Array | Sequence[Array | float], values: Sequence[Array]) -> Array:
    """Σ amount·value over parts of the model; amounts may be those of (s, n) stages."""
    return total(amount * value for amount, value in zip(amounts, values, strict=False))


def _largest(values: Array) -> Array:
    """For each layout, the first of its stages with the most; (s, n) to (n,)."""
    largest, at = values[0], np.zeros(values.shape[1], dtype=np.int64)
    for stage in range(1, len(values)):
        more = values[stage] > largest
        at[more] = stage
        largest = np.maximum(largest, values[stage])
    return at


def _pick(values: Array, stage: Array) -> Array:
    """Of (s, n) values, each layout's at its stage."""
    return np.asarray(values.reshape(-1)[stage * values.shape[1] + np.arange(values.shape[1])])
