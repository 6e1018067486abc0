"""What depends on the mesh, its placement and the micro-batch only: kernel and collective times,
bytes per layer.

Few shards and few groups differ among many layouts, so their costs are tables that layouts look up;
:mod:`models.cost.combine` adds schedule, recompute, sharding and offload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial, reduce

import numpy as np

from models.columns import Array, Columns, take_at
from models.cost import memory
from models.cost.collectives import Cost, Network
from models.cost.compute import Compute, LayerTime, LayerTimes, routed_tokens, skew
from models.cost.shard import Shards
from models.layouts.placement import Group, Groups, groups
from models.spec.architecture import Layer, Moe
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients
from models.spec.recompute import NONE, Recomputed

Links = Callable[[], dict[str, Cost]]
"""Costs of collectives by name (collectives)."""


@dataclass(frozen=True, slots=True)
class Traffic(Columns):
    """Seconds of forward communication of one layer (or model end) for one micro-batch, nothing
    hidden.

    `gather` of parameters, of which `stuck` cannot hide; `scatter` of gradients with an all-reduce
    over replicas; `reduce` of whole gradients where nothing is sharded.
    """

    tensor: Array
    context: Array
    expert: Array
    gather: Array
    stuck: Array
    scatter: Array
    reduce: Array


@dataclass(frozen=True, slots=True)
class Repeats:
    """How much of forward's traffic in a layer each of some recompute policies brings once more,
    and whether it is all of the layer, (policies,)."""

    tensor: Array
    context: Array
    expert: Array
    whole: Array

    @classmethod
    def of(cls, policies: Sequence[Recomputed]) -> Repeats:
        return cls(
            *(
                np.array([float(getattr(policy, name)) for policy in policies])
                for name in cls.__slots__
            )
        )


@dataclass(frozen=True)
class ShardCosts:
    """Every layer kind, the embedding and the head, on each of some shards, worked out when asked
    for: no communication. `policies`: of recompute, in ascending order, the first of them none.
    `shared`: whether equal shards cost the same. `alike`: costs of the same shards with other
    software, whose kernels take as long."""

    problem: Problem
    shards: Shards
    c: Coefficients
    policies: Array
    shared: bool
    alike: ShardCosts | None = None

    @classmethod
    def of(
        cls,
        problem: Problem,
        shards: Shards,
        c: Coefficients,
        recompute: Array,
        *,
        shared: bool = True,
    ) -> ShardCosts:
        """Under the policies that occur in `recompute`, and none."""
        return cls(problem, shards, c, np.unique(np.append(recompute, NONE)), shared)

    def with_stack(self, problem: Problem, c: Coefficients) -> ShardCosts:
        """Those of a problem that differs in its stack; for scalar coefficients. Kernels are timed
        again only where they may take another time."""
        alike = self if c == self.c and _runs_same_kernels(problem, self.problem) else None
        return ShardCosts(problem, self.shards, c, self.policies, self.shared, alike)

    @cached_property
    def times(self) -> list[LayerTime]:
        if self.alike is not None:
            return self.alike.times
        return [*(layer.once for layer in self._layers), self._compute.embedding(), self._head.once]

    @property
    def weights(self) -> Array:
        """Of what each part takes without communication, its weight gradients are no larger share
        on any shard."""
        shares = (
            t.weight / np.maximum(t.forward + t.backward, np.finfo(float).tiny) for t in self.times
        )
        return np.array([float(share.max()) for share in shares])

    @cached_property
    def again(self) -> list[Array]:
        """Seconds that each policy adds to backward, (policies, n) of each part."""
        if self.alike is not None:
            return self.alike.again
        return [
            *(layer.again for layer in self._layers),
            np.zeros_like(self._head.again),
            self._head.again,
        ]

    @cached_property
    def repeated(self) -> list[Repeats]:
        """What the policies do to a layer of each kind."""
        return [Repeats.of(of_kind) for of_kind in self._repeated]

    @cached_property
    def kept(self) -> list[Array]:
        """Bytes of activations that a layer keeps under each policy, (policies, n) of each kind."""
        kinds = zip(self._kinds, self._repeated, strict=True)
        return [
            memory.kept_bytes(self.problem, layer, self.shards, of_kind) for layer, of_kind in kinds
        ]

    @cached_property
    def bytes(self) -> list[memory.LayerBytes]:
        zero, ends = (
            np.zeros(len(self.shards)),
            memory.end_parameters(self.problem.architecture, self.shards),
        )
        size = [memory.layer_bytes(self.problem, layer, self.shards) for layer in self._kinds]
        return [*size, *(memory.LayerBytes(dense, zero, dense) for dense in ends)]

    @cached_property
    def logits(self) -> Array:
        """Bytes of them on the last stage."""
        return memory.logit_bytes(self.problem, self.shards)

    @cached_property
    def kept_logits(self) -> Array:
        """Bytes of those of a micro-batch that a pipeline's last stage keeps."""
        return memory.kept_logit_bytes(self.problem, self.shards)

    @cached_property
    def routed(self) -> list[Array]:
        """Token copies of the experts of each kind."""
        zero = np.zeros(len(self.shards))
        return [
            routed_tokens(layer.moe, self.shards) if layer.moe else zero for layer in self._kinds
        ]

    @property
    def _kinds(self) -> Sequence[Layer]:
        return self.problem.architecture.kinds

    @cached_property
    def _repeated(self) -> list[list[Recomputed]]:
        return [
            [self.problem.recomputed(one, layer) for one in self.policies.tolist()]
            for layer in self._kinds
        ]

    @cached_property
    def _compute(self) -> Compute:
        return Compute(
            self.problem, self.shards, self.c, self.policies.tolist(), shared=self.shared
        )

    @cached_property
    def _layers(self) -> list[LayerTimes]:
        return [self._compute.layer(layer) for layer in self._kinds]

    @cached_property
    def _head(self) -> LayerTimes:
        return self._compute.head()


_BESIDE_KERNELS = (
    "context",
    "dispatcher",
    "gradient_bytes",
    "keeps_logits",
    "keeps_operands",
    "loss_chunks",
    "overlap_data",
    "overlap_expert",
    "overlap_pipeline",
    "overlap_tensor",
)
"""Fields of a stack that decide traffic, memory and what runs beside what, but no kernel of forward
or backward."""


def _runs_same_kernels(one: Problem, other: Problem) -> bool:
    fields = {name: getattr(other.stack, name) for name in _BESIDE_KERNELS}
    return replace(one.stack, **fields) == other.stack


@dataclass(frozen=True)
class Tables:
    """What many meshes look up: costs of shards, and of every collective over the groups of its
    axis, worked out when asked for.

    Without `links` communication costs nothing.
    """

    problem: Problem
    c: Coefficients
    shards: ShardCosts
    links: Links | None

    @cached_property
    def collectives(self) -> dict[str, Cost] | None:
        return None if self.links is None else self.links()


@dataclass(frozen=True)
class MeshCosts:
    """Costs of n meshes, looked up when asked for; arrays of shape (n,), lists over layer kinds,
    embedding, head."""

    tables: Tables
    layouts: Layouts
    shard: Array
    groups: Groups

    @classmethod
    def of(cls, problem: Problem, layouts: Layouts, c: Coefficients) -> MeshCosts:
        shared = not is_drawn(c)
        shards = Shards.of(layouts, problem.workload.seq_len, shared=shared)
        costs = ShardCosts.of(problem, shards.table, c, layouts.recompute, shared=shared)
        placed = groups(problem.cluster, layouts, shared=shared)
        tables = Tables(problem, c, costs, partial(collectives, problem, placed, c))
        return cls(tables, layouts, shards.code, placed)

    def with_stack(self, problem: Problem, c: Coefficients) -> MeshCosts:
        """Those of a problem that differs in its stack; for scalar coefficients."""
        costs = self.tables.shards.with_stack(problem, c)
        tables = Tables(problem, c, costs, partial(collectives, problem, self.groups, c))
        return MeshCosts(tables, self.layouts, self.shard, self.groups)

    def take(self, rows: Array) -> MeshCosts:
        """Those at `rows`, with the traffic if it is worked out; not for coefficients drawn for
        each layout."""
        taken = MeshCosts(
            self.tables, self.layouts.take(rows), self.shard.take(rows), self.groups.take(rows)
        )
        if "traffic" in self.__dict__:
            taken.__dict__["traffic"] = [part.take(rows) for part in self.traffic]
        return taken

    @property
    def problem(self) -> Problem:
        return self.tables.problem

    @property
    def c(self) -> Coefficients:
        return self.tables.c

    def _of_shard(self, values: Array) -> Array:
        return values.take(self.shard)

    @property
    def kinds(self) -> int:
        """Layer kinds; the embedding and the head come after them."""
        return len(self.problem.architecture.kinds)

    @cached_property
    def times(self) -> list[LayerTime]:
        return [time.take(self.shard) for time in self.tables.shards.times]

    @property
    def policies(self) -> Array:
        """Of recompute; the first of them none."""
        return self.tables.shards.policies

    def again(self, part: int, policy: Array | int) -> Array:
        """Seconds that recompute adds to backward of a part of the model; `policy` (n,): which of
        `policies`."""
        return _under(self.tables.shards.again[part], policy, self.shard)

    def kept(self, kind: int, policy: Array | int = 0) -> Array:
        """Bytes of activations that a layer keeps."""
        return _under(self.tables.shards.kept[kind], policy, self.shard)

    @cached_property
    def bytes(self) -> list[memory.LayerBytes]:
        return [size.take(self.shard) for size in self.tables.shards.bytes]

    @cached_property
    def logits(self) -> Array:
        return self._of_shard(self.tables.shards.logits)

    @cached_property
    def kept_logits(self) -> Array:
        """Of all micro-batches, until a step ends."""
        x = self.layouts
        kept = x.num_micro_batches(self.problem.workload.global_batch) * self._of_shard(
            self.tables.shards.kept_logits
        )
        return np.where(x.pp > 1, kept, 0.0)

    @cached_property
    def whole_keys(self) -> Array:
        """Bytes of a layer's keys and values of whole sequences, where context parallelism gathers
        them, and of their gradients before those are scattered."""
        x, workload = self.layouts, self.problem.workload
        attentions = [layer.attention for layer in self.problem.architecture.kinds]
        largest = reduce(
            np.maximum, [attention.kv_dim * attention.kv_share(x.tp) for attention in attentions]
        )
        both = 2 * largest * workload.number_format.activation_bytes
        return np.where(x.cp > 1, x.micro_batch * workload.seq_len * both, 0.0)

    @cached_property
    def dense_shards(self) -> Array:
        g = self.groups.sharding
        return g.per_row(g.table.degree)

    def copies(self, part: int) -> tuple[Array, Array]:
        """Seconds of the copies beside collectives of what is sharded of a part: a gather's, and a
        reduction's."""
        size, rate = self.bytes[part], self.problem.cluster.memory_bytes_s * self.c.memory
        sharded = (
            (self.dense_shards > 1) * size.dense + (self.expert_shards > 1) * size.expert
        ) / rate
        gathered, reduced = self.problem.shard_copy_bytes
        return gathered * sharded, reduced * sharded

    @cached_property
    def expert_shards(self) -> Array:
        g = self.groups.edp
        return g.per_row(g.table.degree)

    @cached_property
    def tensor_across_domains(self) -> Array:
        g = self.groups.tp
        return g.per_row(g.table.crosses(self.problem.cluster.scale_out_mask))

    @cached_property
    def send(self) -> Array:
        """A micro-batch's activations, to the next stage."""
        if self.tables.collectives is None:
            return np.zeros(len(self.layouts))
        return self._at("send").time(self._local_tokens * self._token_bytes) + self.c.send_s

    @cached_property
    def layer_traffic(self) -> list[tuple[Array, Array, Array]]:
        """(tensor, context, expert) of Traffic, of every layer kind."""
        if "traffic" in self.__dict__:
            return [(part.tensor, part.context, part.expert) for part in self.traffic[: self.kinds]]
        if self.tables.collectives is None:
            return [(np.zeros(len(self.layouts)),) * 3] * self.kinds
        kinds = enumerate(self.problem.architecture.kinds)
        return [
            (self._tensor(i, layer), self.context_traffic(layer), self._expert(layer))
            for i, layer in kinds
        ]

    @cached_property
    def traffic(self) -> list[Traffic]:
        """Of every layer kind, the embedding and the head."""
        zero = np.zeros(len(self.layouts))
        every = [*self.layer_traffic, (zero,) * 3, (zero,) * 3]
        return [Traffic(*within, *self._sharding(part)) for part, within in enumerate(every)]

    def _at(self, name: str) -> Cost:
        """A collective's cost for every mesh."""
        axis = {"tp_reduce": "tp", "send": "pp"}.get(name, name.partition(":")[0])
        return (self.tables.collectives or {})[name].take(getattr(self.groups, axis).code)

    @cached_property
    def _tokens(self) -> Array:
        return self._of_shard(self.tables.shards.shards.tokens)

    @cached_property
    def _local_tokens(self) -> Array:
        return self._of_shard(self.tables.shards.shards.local_tokens)

    @property
    def _element(self) -> float:
        return self.problem.workload.number_format.activation_bytes

    @property
    def _token_bytes(self) -> float:
        return self.problem.architecture.hidden_size * self._element

    @cached_property
    def _block(self) -> Array:
        """Tensor-parallel traffic of one block: with sequence parallelism a gather before and a
        scatter after it, else all-reduces (Megatron-LM §3, arXiv 1909.08053, and Korthikanti et al.
        §4.2.1)."""
        x, gather, reduce = self.layouts, self._at("tp"), self._at("tp_reduce")
        latency = np.where(x.sequence_parallel, 2 * gather.latency_s, reduce.latency_s)
        return self._tokens * (2 * self._token_bytes) * gather.byte_s + latency

    def _tensor(self, kind: int, layer: Layer) -> Array:
        """A sparse block without a shared expert needs none: its tokens stay sharded and travel by
        all-to-all, but those of the etp group are gathered for the experts' slices, and scattered
        back."""
        traffic = _blocks(layer) * self._block
        if layer.moe:
            routed = self._of_shard(self.tables.shards.routed[kind])
            traffic = traffic + 2 * self._at("etp").time(routed * self._token_bytes)
        return traffic

    def stalls(self, kind: int) -> Array:
        """Host seconds of the tensor-parallel collectives of a layer's forward, beside pipeline
        sends."""
        x = self.layouts
        hops = (x.tp - 1) * np.where(x.sequence_parallel, 2, 1)
        return np.where(
            x.pp > 1, _blocks(self.problem.architecture.kinds[kind]) * hops * self.c.stall_s, 0.0
        )

    def context_traffic(self, layer: Layer) -> Array:
        """Keys and values of the whole sequence pass every device (ring or gather), or heads for
        tokens."""
        attention, x, seq_len = layer.attention, self.layouts, self.problem.workload.seq_len
        keys = attention.kv_dim * attention.kv_share(x.tp)
        if self.problem.stack.context == "ulysses":
            heads = attention.num_heads * (attention.head_dim + attention.v_head_dim) / x.tp
            keys = np.maximum(
                keys, x.cp * attention.kv_dim / attention.num_kv_heads
            )  # repeated: every rank needs one
            return self._at("cp").time(self._tokens * (heads + keys) * self._element)
        reach = min(attention.window or seq_len, seq_len)
        share = np.minimum(reach / (seq_len / x.cp), x.cp)
        return self._at("cp").time(self._tokens * share * keys * self._element)

    def _expert(self, layer: Layer) -> Array:
        """Dispatch and combine."""
        if layer.moe is None:
            return np.zeros(len(self.layouts))
        if self.problem.stack.dispatcher == "allgather":
            every = self._local_tokens * self.layouts.ep
            return 2 * self._at("ep").time(every * self._token_bytes)
        return self._dispatch(layer.moe)

    def _dispatch(self, moe: Moe) -> Array:
        fmt = self.problem.workload.number_format
        out = (
            fmt.gemm_bytes
            if self.problem.stack.dispatcher == "deduplicated"
            else fmt.activation_bytes
        )
        cost = self._at(dispatch_name(moe))
        sent = self._local_tokens * moe.experts_per_token * self.problem.architecture.hidden_size
        both = sent * (out + fmt.activation_bytes) * cost.byte_s + 2 * cost.latency_s
        return np.asarray(both * skew(self.problem, self.c, moe, self.layouts.ep))

    @cached_property
    def _replicated_experts(self) -> Array:
        """An all-reduce of experts' gradients over replicas is needed only beside sharding."""
        return np.where(self.layouts.dp_shard > 1, 1.0, 0.0)

    @cached_property
    def _collectives(self) -> tuple[Cost, Cost, Cost, Cost]:
        return self._at("sharding"), self._at("dp_replicate"), self._at("replicas"), self._at("edp")

    def _sharding(self, part: int) -> tuple[Array, Array, Array, Array]:
        """Traffic of the parameters of a layer kind or an end over their data-parallel groups:
        gather, stuck, scatter and reduce of Traffic."""
        if self.tables.collectives is None:
            return (np.zeros(len(self.layouts)),) * 4
        sharding, replicate, replicas, edp = self._collectives
        element, gradient = self.problem.gather_bytes, self.problem.gradient_bytes
        dense, expert = self.bytes[part].dense, self.bytes[part].expert
        gather = sharding.time(dense * element)
        scatter = sharding.time(dense * gradient) + replicate.time(
            dense * gradient / self.dense_shards
        )
        whole = replicas.time(dense * gradient)
        stuck = np.zeros_like(gather)
        if self.problem.architecture.part_has_experts(part):
            over_experts = edp.time(expert * gradient)
            over_replicas = self._replicated_experts * replicate.time(
                expert * gradient / self.expert_shards
            )
            of_experts = edp.time(expert * element)
            gather, stuck = gather + of_experts, of_experts * (1 - self.c.expert_prefetch)
            scatter = scatter + over_experts + over_replicas
            whole = whole + 2 * over_experts
        return gather, stuck, scatter, whole


def _under(values: Array, policy: Array | int, shard: Array) -> Array:
    return values[policy].take(shard) if isinstance(policy, int) else take_at(values, policy, shard)


def _blocks(layer: Layer) -> int:
    """Of a layer, those that are cut over tensor-parallel ranks."""
    return 2 if layer.dense and not layer.parallel else 1


def collectives(problem: Problem, g: Groups, c: Coefficients) -> dict[str, Cost]:
    """Costs by name: an axis of the groups, with what is not its usual collective. Those of one
    kind are worked out together, unless every group has coefficients of its own."""
    network = Network(problem.cluster.dims, c)
    joined = {"sharding": ("sharding", network.gather), "replicas": ("replicas", network.reduce)}
    alike: dict[Callable[[Group], Cost], dict[str, Group]] = {}
    for name, (axis, cost) in (of_axes(problem, network) | joined).items():
        alike.setdefault(cost, {})[name] = getattr(g, axis).table
    if is_drawn(c):
        return {
            name: cost(table) for cost, tables in alike.items() for name, table in tables.items()
        }
    return {
        name: found for cost, tables in alike.items() for name, found in _together(cost, tables)
    }


def _together(
    cost: Callable[[Group], Cost], tables: dict[str, Group]
) -> Iterator[tuple[str, Cost]]:
    every, start = cost(Group.concatenate([*tables.values()])), 0
    for name, table in tables.items():
        end = start + len(table.whole)
        yield name, Cost(every.byte_s[start:end], every.latency_s[start:end])
        start = end


def of_axes(problem: Problem, network: Network) -> dict[str, tuple[str, Callable[[Group], Cost]]]:
    """Collectives over one axis: by name, the axis and the cost."""
    costs: dict[str, tuple[str, Callable[[Group], Cost]]] = {
        "tp": ("tp", network.gather),
        "tp_reduce": ("tp", network.reduce),
        "etp": ("etp", network.gather),
        "cp": ("cp", network.all_to_all if problem.stack.context == "ulysses" else network.gather),
        "send": ("pp", network.send),
        "dp_replicate": ("dp_replicate", network.reduce),
        "edp": ("edp", network.gather),
    }
    if problem.stack.dispatcher == "allgather":
        return costs | {"ep": ("ep", network.gather)}
    routed = {
        dispatch_name(layer.moe): layer.moe for layer in problem.architecture.kinds if layer.moe
    }

    def dispatch(moe: Moe) -> Callable[[Group], Cost]:
        return lambda group: network.all_to_all(group, _copies(problem, group, moe))

    return costs | {name: ("ep", dispatch(moe)) for name, moe in routed.items()}


def dispatch_name(moe: Moe) -> str:
    """What the collective of a kind of experts is called."""
    return f"ep:{moe.experts_per_token}:{moe.groups_per_token}:{moe.num_groups}"


def _copies(problem: Problem, group: Group, moe: Moe) -> list[Array] | None:
    """Share of the copies of a token that cross each dim when a domain receives it once; the dims
    of a torus are none.

    Of D domains within reach of its groups a token that picks k experts at random meets D(1 - (1 -
    1/D)^k); node-limited routing caps that at M (DeepSeek-V3 report §2.1.2).
    """
    if problem.stack.dispatcher != "deduplicated":
        return None
    members, limit, shares = group.members, problem.stack.node_limit, list[Array]()
    chosen = moe.experts_per_token
    for d, dim in enumerate(problem.cluster.dims):
        if d == 0 or dim.kind == "ring":
            shares.append(np.ones_like(members[0]))
            continue
        domains = moe.domains_in_reach(np.prod(members[d:], axis=0))
        met = domains * (1 - (1 - 1 / domains) ** chosen)
        if limit is not None and dim.scale == "out":
            met = np.minimum(met, limit)
        shares.append(np.minimum(met / chosen, 1.0))
    return shares


def is_drawn(c: Coefficients) -> bool:
    """Whether each layout comes with coefficients of its own, so that equal layouts do not cost the
    same."""
    return any(np.ndim(getattr(c, f.name)) for f in fields(c))
