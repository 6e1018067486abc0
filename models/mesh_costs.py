"""What depends on the mesh, its placement and the micro-batch only: kernel and collective times, bytes per layer.

Many layouts share a row of these costs; :mod:`models.combine` adds schedule, recompute, sharding and offload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from models import memory
from models.architecture import Layer
from models.array import Array
from models.communication import Network
from models.compute import Kernels, LayerTime
from models.layout import Layouts
from models.mesh import Groups, closest_groups, groups
from models.problem import Problem
from models.profile import Coefficients

MESH_FIELDS = (
    "pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp", "placement", "micro_batch", "sequence_parallel",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KindCosts:
    """One layer kind (or model end) on each mesh, for one micro-batch."""

    time: LayerTime
    tensor: Array
    context: Array
    expert: Array
    gather: Array
    stuck: Array
    scatter: Array
    reduce: Array
    bytes: memory.LayerBytes


@dataclass(frozen=True)
class MeshCosts:
    """Everything that depends on degrees, placement, micro-batch and sequence parallelism; arrays of shape (m,).

    Communication here is the forward pass's, unhidden; `predict` decides what overlaps.
    """

    layouts: Layouts
    groups: Groups
    kinds: list[KindCosts]
    embedding: KindCosts
    head: KindCosts
    send: Array
    logits: Array
    dense_shards: Array
    expert_shards: Array

    @classmethod
    def of(cls, problem: Problem, layouts: Layouts, c: Coefficients) -> MeshCosts:
        return _MeshBuilder(problem, layouts, c, groups(problem.cluster, layouts)).build()

    @classmethod
    def unplaced(cls, problem: Problem, layouts: Layouts, c: Coefficients) -> MeshCosts:
        """No placement costs less: every axis is as close as it can be, and free on a torus."""
        closest = closest_groups(problem.cluster, layouts)
        return _MeshBuilder(problem, layouts, c, closest, problem.cluster.fabric.torus is None).build()


def is_drawn(c: Coefficients) -> bool:
    """Whether each layout comes with coefficients of its own, so that equal layouts do not cost the same."""
    return any(np.ndim(getattr(c, f.name)) for f in fields(c))


def distinct(layouts: Layouts, names: Sequence[str]) -> tuple[Array, Array]:
    """Positions of the layouts that differ in the named fields, and for each layout which of them it equals.

    Without names every layout is its own.
    """
    if not names:
        return np.arange(len(layouts)), np.arange(len(layouts))
    key = np.zeros(len(layouts), dtype=np.int64)
    for name in names:
        _, code = np.unique(getattr(layouts, name), return_inverse=True)
        key = key * (int(code.max(initial=0)) + 1) + code
    _, first, rows = np.unique(key, return_index=True, return_inverse=True)
    return first, rows


_KERNEL_FIELDS = ("cp", "tp", "ep", "etp", "micro_batch", "sequence_parallel")


class _MeshBuilder:
    def __init__(
        self, problem: Problem, layouts: Layouts, c: Coefficients, groups: Groups, communication: bool = True
    ) -> None:
        self.problem, self.layouts, self.c, self.groups = problem, layouts, c, groups
        self.communication = communication
        self.kernels = Kernels(problem, layouts, c)
        self.network = Network.of(problem.cluster, c)
        self.element = problem.workload.number_format.activation_bytes
        self.h = problem.architecture.hidden_size
        self.zero = np.zeros(len(layouts))
        first, self.shard = distinct(layouts, () if is_drawn(c) else _KERNEL_FIELDS)
        self.sharded = Kernels(problem, layouts.take(first), c)

    def build(self) -> MeshCosts:
        architecture, g = self.problem.architecture, self.groups
        embedding, head = memory.end_parameters(architecture, self.layouts)
        mtp_experts = memory.mtp_expert_parameters(architecture, self.layouts)
        outer = self.kernels.local_tokens * self.h * self.element
        return MeshCosts(
            layouts=self.layouts,
            groups=g,
            kinds=[self._kind(layer) for layer in architecture.kinds],
            embedding=self._end(self.sharded.embedding(), embedding, self.zero),
            head=self._end(self.sharded.head(), head, mtp_experts),
            send=self.network.send(outer, g.pp) + self.c.send_s if self.communication else self.zero,
            logits=memory.logit_bytes(self.problem, self.layouts),
            dense_shards=g.dp_shard.degree * g.cp.degree,
            expert_shards=g.edp.degree,
        )

    def _kind(self, layer: Layer) -> KindCosts:
        size = memory.layer_bytes(self.problem, layer, self.layouts)
        time = self.sharded.layer(layer).take(self.shard)
        if not self.communication:
            return KindCosts(time, *(self.zero,) * 7, size)
        traffic = self._sharding(size.dense, size.expert)
        return KindCosts(time, self._tensor(layer), self._context(layer), self._expert(layer), *traffic, size)

    def _end(self, time: LayerTime, dense: Array, expert: Array) -> KindCosts:
        gather, stuck, scatter, reduce = (self.zero,) * 4
        if self.communication:
            gather, stuck, scatter, reduce = self._sharding(dense, expert)
        size = memory.LayerBytes(dense, expert, dense + expert, (self.zero, self.zero, self.zero))
        return KindCosts(time.take(self.shard), self.zero, self.zero, self.zero, gather, stuck, scatter, reduce, size)

    def _tensor(self, layer: Layer) -> Array:
        """Forward: with sequence parallelism a gather before and a scatter after each block; else all-reduces.

        Megatron-LM §3 (arXiv 1909.08053) and Korthikanti et al. §4.2.1. A sparse block without a shared expert
        needs none: its tokens stay sharded and travel by all-to-all.
        """
        blocks = 1 + (1 if layer.dense else 0)
        size = self.kernels.tokens * self.h * self.element
        per_block = np.where(
            self.layouts.sequence_parallel,
            2 * self.network.gather(size, self.groups.tp),
            self.network.reduce(size, self.groups.tp),
        )
        traffic = blocks * per_block
        hops = (self.layouts.tp - 1) * np.where(self.layouts.sequence_parallel, 2, 1)
        traffic = traffic + np.where(self.layouts.pp > 1, blocks * hops * self.c.stall_s, 0.0)
        if layer.moe:  # tokens of the etp group are gathered for the experts' slices, and scattered back
            routed = self.kernels.routed_tokens(layer.moe) * self.h * self.element
            traffic = traffic + np.where(self.layouts.etp > 1, 2 * self.network.gather(routed, self.groups.etp), 0.0)
        return traffic

    def _context(self, layer: Layer) -> Array:
        """Forward: keys and values of the whole sequence pass every device (ring or gather), or heads for tokens."""
        attention, tp = layer.attention, self.layouts.tp
        tokens = self.kernels.tokens / tp
        if self.problem.stack.context == "ulysses":
            moved = tokens * (attention.num_heads * (attention.head_dim + attention.v_head_dim) + attention.kv_dim)
            return np.where(self.layouts.cp > 1, self.network.all_to_all(moved * self.element, self.groups.cp), 0.0)
        reach = min(attention.window or self.problem.workload.seq_len, self.problem.workload.seq_len)
        share = np.minimum(reach / (self.problem.workload.seq_len / self.layouts.cp), self.layouts.cp)
        moved = tokens * share * attention.kv_dim * self.element
        return np.where(self.layouts.cp > 1, self.network.gather(moved, self.groups.cp), 0.0)

    def _expert(self, layer: Layer) -> Array:
        """Forward: dispatch and combine."""
        moe = layer.moe
        if moe is None:
            return self.zero
        stack, fmt = self.problem.stack, self.problem.workload.number_format
        chosen = moe.experts_per_token
        dispatch_bytes = fmt.gemm_bytes if stack.dispatcher == "deduplicated" else fmt.activation_bytes
        sent = self.kernels.local_tokens * chosen * self.h
        if stack.dispatcher == "allgather":
            every = self.kernels.local_tokens * self.layouts.ep * self.h
            return 2 * self.network.gather(every * fmt.activation_bytes, self.groups.ep)
        copies = self._copies(chosen) if stack.dispatcher == "deduplicated" else None
        skew = 1 + self.c.imbalance if self.problem.workload.routing == "natural" else 1.0
        dispatch = self.network.all_to_all(sent * dispatch_bytes, self.groups.ep, copies)
        combine = self.network.all_to_all(sent * fmt.activation_bytes, self.groups.ep, copies)
        return np.where(self.layouts.ep > 1, (dispatch + combine) * skew, 0.0)

    def _copies(self, chosen: int) -> list[Array]:
        """Share of the `chosen` copies of a token that cross each dim when a domain receives it once.

        With D domains a token that picks k experts at random meets D(1 - (1 - 1/D)^k) of them; node-limited
        routing caps that at M (DeepSeek-V3 report §2.1.2).
        """
        members = self.groups.ep.members
        shares = [np.ones_like(members[0])]
        for d in range(1, len(members)):
            domains = np.prod(members[d:], axis=0)
            met = domains * (1 - (1 - 1 / domains) ** chosen)
            if self.problem.stack.node_limit is not None and self.problem.cluster.dims[d].scale == "out":
                met = np.minimum(met, self.problem.stack.node_limit)
            shares.append(np.minimum(met / np.minimum(chosen, domains * chosen), 1.0))
        return shares

    def _sharding(self, dense: Array, expert: Array) -> tuple[Array, Array, Array, Array]:
        """Traffic of these parameters over their data-parallel groups.

        (parameter gather, the part of it that cannot hide, gradient reduce-scatter with an all-reduce over replicas,
        all-reduce of whole gradients)
        """
        stuck = self.zero
        element, g = self.problem.gather_bytes, self.groups
        shards, gradient = g.dp_shard * g.cp, self.problem.gradient_bytes
        gather = self.network.gather(dense * element, shards)
        scatter = self.network.gather(dense * gradient, shards)
        scatter = scatter + self.network.reduce(dense * gradient / shards.degree, g.dp_replicate)
        whole = self.network.reduce(dense * gradient, shards * g.dp_replicate)
        if self.problem.architecture.is_moe:
            sparse = expert > 0
            over_experts = self.network.gather(expert * gradient, g.edp)
            replicas = np.where(self.layouts.dp_shard > 1, 1.0, 0.0)
            over_replicas = replicas * self.network.reduce(expert * gradient / g.edp.degree, g.dp_replicate)
            of_experts = np.where(sparse, self.network.gather(expert * element, g.edp), 0.0)
            gather, stuck = gather + of_experts, of_experts * (1 - self.c.expert_prefetch)
            scatter = scatter + np.where(sparse, over_experts + over_replicas, 0.0)
            whole = whole + np.where(sparse, 2 * over_experts, 0.0)
        return gather, stuck, scatter, whole
