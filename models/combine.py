"""Schedule, partition, recompute, sharding policy and offload on top of the costs of a mesh, for every layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from models import pipeline
from models.array import Array, total
from models.compute import LayerTime
from models.hardware import GIB
from models.layout import DUALPIPE, FULL, SELECTIVE, ZERO_BUBBLE_V, Layouts
from models.mesh_costs import KindCosts, MeshCosts
from models.problem import Problem
from models.profile import Coefficients

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


@lru_cache(maxsize=1 << 14)
def _stages(
    runs: tuple[tuple[int, int], ...],
    weights: tuple[float, ...],
    head: float,
    pp: int,
    virtual_stages: int,
    balanced: int,
    mirrored: int,
) -> pipeline.Stages:
    return pipeline.partition(
        runs,
        np.array(weights),
        head,
        np.array([pp]),
        np.array([virtual_stages]),
        np.array([bool(balanced)]),
        np.array([bool(mirrored)]),
    )


def partition_of(problem: Problem, pp: int, virtual_stages: int, balanced: int, mirrored: int) -> pipeline.Stages:
    """The stages of one partition, layers weighed by their forward FLOPs."""
    weights, head = problem.forward_flops
    return _stages(problem.architecture.runs, weights, head, pp, virtual_stages, balanced, mirrored)


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind under each layout's policies, per micro-batch: seconds exposed, by term, forward and both passes."""

    forward: Array
    both: Array
    weight: Array
    terms: dict[str, Array]


class Combiner:
    """The second pass. Arrays have shape (n,) for layouts, (n, s) for layouts and their representative stages."""

    def __init__(self, problem: Problem, layouts: Layouts, meshes: MeshCosts, rows: Array, c: Coefficients) -> None:
        self.problem, self.layouts, self.meshes, self.rows, self.c = problem, layouts, meshes, rows, c
        self.stack = problem.stack
        self.micro_batches = layouts.num_micro_batches(problem.workload.global_batch)
        self.zero3 = layouts.zero_stage == 3
        self.kept_gathered = self.zero3 & ~layouts.reshard
        self.once = (layouts.zero_stage < 2) | (self.kept_gathered & (layouts.pp > 1))
        self.overlapped_schedule = (
            (layouts.virtual_stages > 1) | (layouts.schedule == DUALPIPE) | (layouts.schedule == ZERO_BUBBLE_V)
        )
        self.stages = self._partition()
        self.dense_shards = meshes.dense_shards[rows]
        self.expert_shards = meshes.expert_shards[rows]

    def _partition(self) -> pipeline.Stages:
        """One partition per distinct (stages, chunks, policy), weighed by forward FLOPs."""
        lay = self.layouts
        mirrored = lay.schedule == DUALPIPE
        key = ((lay.pp * 64 + lay.virtual_stages) * 2 + lay.balanced) * 2 + mirrored
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        chosen = np.stack([lay.pp, lay.virtual_stages, lay.balanced, mirrored], axis=1)[first]
        parts = [partition_of(self.problem, *row) for row in chosen.tolist()]
        return pipeline.Stages.stack(parts).take(inverse)

    # -- time ---------------------------------------------------------------------------------------------------

    def time(self) -> dict[str, Array]:
        lay, m, stages = self.layouts, self.micro_batches, self.stages
        kinds = [self._kind(k) for k in self.meshes.kinds]
        ends = [self._kind(self.meshes.embedding), self._kind(self.meshes.head)]
        everything = [*kinds, *ends]
        amounts = [stages.counts[:, :, i] for i in range(len(kinds))] + [stages.first, stages.last]

        both = total(a * k.both[:, None] for a, k in zip(amounts, everything, strict=True))
        forward = total(a * k.forward[:, None] for a, k in zip(amounts, everything, strict=True))
        slow = np.argmax(both, axis=1)
        pick = (np.arange(len(slow)), slow)
        on_slowest = [a[pick] for a in amounts]
        slowest = both[pick]

        totals = self._totals(len(kinds))
        weight = total(a * k.weight for a, k in zip(on_slowest, everything, strict=True))
        idle = pipeline.bubble(
            lay.schedule,
            lay.pp,
            lay.virtual_stages,
            total=total(t * k.both for t, k in zip(totals, everything, strict=True)),
            slowest=slowest,
            weight=weight,
            backward=slowest - forward[pick],
            forward_slowest=forward.max(axis=1),
            backward_slowest=(both - forward).max(axis=1),
            micro_batches=m,
        )
        time = {
            name: m * total(a * k.terms[name] for a, k in zip(on_slowest, everything, strict=True))
            for name in ("compute_s", "recompute_s", "tensor_s", "context_s", "expert_s", "data_s", "offload_s")
        }
        sends, hops = self._sends()
        time["data_s"] = time["data_s"] + self._data_once(on_slowest, forward[pick], slowest)
        time["pipeline_s"] = sends
        time["bubble_s"] = np.where(lay.pp > 1, np.maximum(idle, 0.0), 0.0) + hops
        time["optimizer_s"] = self._optimizer(on_slowest)
        time["fixed_s"] = np.zeros_like(sends) + self.c.step_fixed_s
        subtotal = total(time.values())
        node = min(8, self.problem.cluster.scale_up_domain)
        time["jitter_s"] = subtotal * self.c.jitter * np.log2(np.maximum(lay.num_devices / node, 1.0))
        return {name: time[name] for name in TIME_TERMS}

    def _totals(self, kinds: int) -> list[Array | float]:
        """Layers of each kind in the whole model, and one of each end."""
        counts = [0.0] * kinds
        for kind, count in self.problem.architecture.runs:
            counts[kind] += count
        return [*counts, 1.0, 1.0]

    def _kind(self, kind: KindCosts) -> _Kind:
        lay, rows, stack, c = self.layouts, self.rows, self.stack, self.c
        t = LayerTime(*(getattr(kind.time, name)[rows] for name in LayerTime.__slots__))
        full = lay.recompute == FULL
        again = np.select([full, lay.recompute == SELECTIVE], [t.full, t.selective], 0.0)

        tensor_once = kind.tensor[rows]
        if stack.overlap_tensor:
            tensor_once = tensor_once * np.where(lay.sequence_parallel, 1 - c.tensor_overlap, 1.0)
        tensor = tensor_once * np.where(full, 3.0, 2.0)

        raw = kind.context[rows]
        context_forward = np.maximum(raw - c.context_overlap * t.attention, 0.0)
        context_backward = np.maximum(2 * raw - c.context_overlap * 2.5 * t.attention, 0.0)
        context = context_forward * np.where(full, 2.0, 1.0) + context_backward

        expert_once = self._exposed_expert(kind.expert[rows])
        expert = expert_once * np.where(full, 3.0, 2.0)

        data_forward, data_backward = self._exposed_data(
            kind.gather[rows], kind.stuck[rows], kind.scatter[rows], t.forward, t.backward + again
        )
        offload = self._offload(kind, t.forward + t.backward)
        forward = t.forward + tensor_once + context_forward + expert_once + data_forward
        terms = {
            "compute_s": t.forward + t.backward,
            "recompute_s": again,
            "tensor_s": tensor,
            "context_s": context,
            "expert_s": expert,
            "data_s": data_forward + data_backward,
            "offload_s": offload,
        }
        return _Kind(forward, total(terms.values()), t.weight, terms)

    def _exposed_expert(self, once: Array) -> Array:
        """All-to-all hides behind another micro-batch's compute, where the stack and the schedule bring one."""
        if not self.stack.overlap_expert:
            return once
        lay = self.layouts
        another = np.where(lay.pp > 1, self.overlapped_schedule, self.micro_batches > 1) & (lay.recompute != FULL)
        return once * np.where(another, 1 - self.c.expert_overlap, 1.0)

    def _exposed_data(
        self, gather: Array, stuck: Array, scatter: Array, forward: Array, backward: Array
    ) -> tuple[Array, Array]:
        """Per micro-batch, where parameters are gathered or gradients reduced every time (ZeRO 2 and 3)."""
        lay = self.layouts
        each_time = ~self.once
        before, again = each_time & self.zero3, each_time & self.zero3 & lay.reshard
        ahead = gather - stuck
        in_forward = np.where(before, stuck, 0.0) + self._hide(np.where(before, ahead, 0.0), forward)
        hideable = np.where(each_time, scatter, 0.0) + np.where(again, ahead, 0.0)
        return in_forward, np.where(again, stuck, 0.0) + self._hide(hideable, backward)

    def _hide(self, traffic: Array, window: Array) -> Array:
        """What `window` seconds of compute leave exposed, plus what the hidden part slows them by."""
        if not self.stack.overlap_data:
            return traffic
        hidden = np.minimum(traffic, self.c.data_overlap * window)
        return traffic - hidden + self.c.interference * hidden

    def _data_once(self, amounts: list[Array], forward: Array, both: Array) -> Array:
        """Gradient reduction behind the last micro-batch's backward, parameter gather behind the first forward."""
        everything = [*self.meshes.kinds, self.meshes.embedding, self.meshes.head]
        gather = total(a * k.gather[self.rows] for a, k in zip(amounts, everything, strict=True))
        scatter = total(a * k.scatter[self.rows] for a, k in zip(amounts, everything, strict=True))
        reduced = total(a * k.reduce[self.rows] for a, k in zip(amounts, everything, strict=True))
        stage = self.layouts.zero_stage
        gathers = np.where((stage == 1) | (stage == 2) | (self.once & self.zero3), gather, 0.0)
        scatters = np.where(self.once, np.where(stage == 0, reduced, scatter), 0.0)
        return self._hide(gathers, forward) + self._hide(scatters, both - forward)

    def _sends(self) -> tuple[Array, Array]:
        """(exposed per-micro-batch sends of a step, latency of filling and draining the pipeline)."""
        lay, m = self.layouts, self.micro_batches
        once = np.where(lay.pp > 1, self.meshes.send[self.rows], 0.0)
        exposed = np.ones_like(once)
        if self.stack.overlap_pipeline:
            exposed = np.where(self.overlapped_schedule, 1 - self.c.pipeline_overlap, 1.0)
        return 2 * m * lay.virtual_stages * once * exposed, 2 * (lay.pp - 1) * once

    def _offload(self, kind: KindCosts, window: Array) -> Array:
        """Activations leave in forward and come back in backward, beside compute."""
        lay = self.layouts
        if not lay.offload_activations.any():
            return np.zeros_like(window)
        traffic = 2 * self._kept(kind) / (self.c.host_gb_s * 1e9)
        return np.where(lay.offload_activations, np.maximum(traffic - window, 0.0), 0.0)

    def _kept(self, kind: KindCosts) -> Array:
        none, selective, full = (k[self.rows] for k in kind.bytes.kept)
        return np.select([self.layouts.recompute == FULL, self.layouts.recompute == SELECTIVE], [full, selective], none)

    def _optimizer(self, amounts: list[Array]) -> Array:
        """Clip (read gradients), update (read and write states), from device or host memory; and two reductions."""
        lay, problem = self.layouts, self.problem
        owned = self._owned(amounts)
        states = 2 * (problem.master_bytes + problem.workload.optimizer_state.moment_bytes)
        moved = problem.gradient_bytes + problem.parameter_bytes
        device = owned * (states + problem.gradient_bytes + moved) / (problem.cluster.memory_bytes_s * self.c.memory)
        # a device's share of host memory is about as fast as its link to it
        host = owned * (states + 2 * moved) / (self.c.host_gb_s * 1e9)
        norm = 2 * (self.c.collective_s + self.c.scaleout_hop_s * np.log2(np.maximum(lay.num_devices, 1)))
        return np.where(lay.offload_optimizer, host, device) + norm + self._orthogonalisation(amounts)

    def _orthogonalisation(self, amounts: list[Array]) -> Array:
        """Muon's five Newton-Schulz steps on every matrix (arXiv 2502.16982 §2.2), spread over those who share it."""
        if self.problem.workload.optimizer != "muon":
            return np.zeros(len(self.layouts))
        architecture = self.problem.architecture
        flops = [layer.orthogonalisation_flops(architecture.hidden_size) for layer in architecture.kinds]
        ends = [(0.0, 0.0)] * 2  # embedding and head stay with AdamW
        return self._owned(amounts, flops + ends) / (self.problem.cluster.peak_flops_16 * self.c.gemm_16)

    def _owned(self, amounts: list[Array], worth: Sequence[tuple[float, float]] | None = None) -> Array:
        """Parameters whose optimizer state this device holds, or what they are worth: dense and expert ones of each
        layer kind, of the embedding and of the head."""
        everything = [*self.meshes.kinds, self.meshes.embedding, self.meshes.head]
        parts = list(zip(amounts, everything, worth or [(1.0, 1.0)] * len(everything), strict=True))
        dense = total(a * k.bytes.dense[self.rows] * w for a, k, (w, _) in parts)
        expert = total(a * k.bytes.expert[self.rows] * w for a, k, (_, w) in parts)
        sharded = self.layouts.zero_stage >= 1
        return dense / np.where(sharded, self.dense_shards, 1) + expert / np.where(sharded, self.expert_shards, 1)

    # -- memory -------------------------------------------------------------------------------------------------

    def memory(self) -> tuple[dict[str, Array], Array]:
        lay, c, stages = self.layouts, self.c, self.stages
        copies = np.where(lay.schedule == DUALPIPE, 2.0, 1.0)[:, None]  # DualPipe holds two stages' parameters
        everything = [*self.meshes.kinds, self.meshes.embedding, self.meshes.head]
        amounts = [stages.counts[:, :, i] for i in range(len(self.meshes.kinds))] + [stages.first, stages.last]

        def per_stage(values: list[Array]) -> Array:
            return total(a * v[:, None] for a, v in zip(amounts, values, strict=True))

        dense = per_stage([k.bytes.dense[self.rows] for k in everything]) * copies
        expert = per_stage([k.bytes.expert[self.rows] for k in everything]) * copies
        kept = per_stage([self._kept(k) for k in everything])
        flying = pipeline.in_flight(
            lay.schedule[:, None],
            stages.index,
            lay.pp[:, None],
            lay.virtual_stages[:, None],
            self.micro_batches[:, None],
        )
        working = np.max([k.bytes.kept[0][self.rows] for k in self.meshes.kinds], axis=0)[:, None]
        resident = np.where(lay.offload_activations[:, None], np.minimum(2 * working, kept * flying), kept * flying)
        recomputing = np.where((lay.recompute != 0)[:, None], working, 0.0)
        states = self._master_bytes() + self.problem.workload.optimizer_state.moment_bytes
        parts = {
            "parameters_bytes": self._parameter_bytes(dense, expert),
            "gradients_bytes": self._gradient_bytes(dense, expert),
            "optimizer_bytes": np.where(lay.offload_optimizer, 0.0, states)[:, None]
            * self._shard(dense, expert, lay.zero_stage >= 1),
            "activations_bytes": (resident + recomputing) * c_column(c.activation_memory),
            "logits_bytes": (stages.last > 0) * self.meshes.logits[self.rows][:, None] * c_column(c.logit_memory),
        }
        allocated = total(parts.values())
        parts["context_bytes"] = np.zeros_like(allocated) + c_column(c.context_gib) * GIB
        parts["fragmentation_bytes"] = allocated * c_column(c.fragmentation)
        worst = np.argmax(allocated, axis=1)
        pick = (np.arange(len(worst)), worst)
        return {name: parts[name][pick] for name in MEMORY_TERMS}, stages.index[pick]

    def _shard(self, dense: Array, expert: Array, sharded: Array) -> Array:
        by_dense = np.where(sharded, self.dense_shards, 1)[:, None]
        by_expert = np.where(sharded, self.expert_shards, 1)[:, None]
        return dense / by_dense + expert / by_expert

    def _master_bytes(self) -> Array:
        """FSDP's sharded parameters are the fp32 copy, whatever the parameters in use are."""
        whole = self.problem.workload.optimizer_state.master_bytes
        return np.where(self.zero3, whole, self.problem.master_bytes)

    def _parameter_bytes(self, dense: Array, expert: Array) -> Array:
        """Parameters in use. FSDP keeps only the sharded master copy (counted with the optimizer) and two
        gathered layers, unless it does not reshard."""
        lay = self.layouts
        unit = np.max([k.bytes.unit[self.rows] for k in self.meshes.kinds], axis=0)
        gathered = np.minimum(2 * unit[:, None], dense + expert)
        dropped = (self.zero3 & lay.reshard)[:, None]
        offloaded_master = np.where((self.zero3 & lay.offload_optimizer)[:, None], 1.0, 0.0)
        sharded = self._shard(dense, expert, self.zero3) * offloaded_master
        return self.problem.parameter_bytes * (np.where(dropped, gathered, dense + expert) + sharded)

    def _gradient_bytes(self, dense: Array, expert: Array) -> Array:
        lay = self.layouts
        sharded = (lay.zero_stage >= 2) & ~self.once
        unit = np.max([k.bytes.unit[self.rows] for k in self.meshes.kinds], axis=0)
        unsharded = np.where(sharded[:, None], self.problem.parameter_bytes * unit[:, None], 0.0)  # being reduced
        return self.problem.gradient_bytes * self._shard(dense, expert, sharded) + unsharded


def c_column(value: Array | float) -> Array | float:
    """A coefficient against arrays of shape (n, s)."""
    return value[:, None] if isinstance(value, np.ndarray) else value
