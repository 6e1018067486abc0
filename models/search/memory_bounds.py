"""Lower bounds of memory, admissible for every layout on a mesh, or on a core.

Stage i holds Σ_k n_ik·(p_k + f_i·a_k) bytes for its layers: n_ik of kind k, with p_k bytes of
parameters, gradients and states, and a_k of activations for each of f_i micro-batches in flight.
For any weights λ_i that sum to 1 the fullest stage has at least the weighted mean over stages.

- With λ_i ~ 1/(p_r + f_i·a_r), r the commonest kind, that is Σ_k n_k·min(p_k/p_r, a_k/a_r) / Σ_i
  1/(p_r + f_i·a_r) or more. The harmonic mean of sums is at least the sum of the harmonic means:
  1/Σ_i 1/(p_r + f_i·a_r) is at least (p_r + F·a_r)/pp, F = pp/Σ_i 1/f_i.
- f falls from stage to stage, so what the last stage alone has, the head, weighs 1/pp or more. What
  every stage has counts whole: a gathered layer, a layer's gradients being reduced, the layer
  worked on with recompute.
- Offloaded activations count as those of one layer, and λ_i = 1/pp.

The last stage by itself has the last layer, the head, and the logits or the layer worked on. (Where
its last of several chunks may have the head alone, some layer; split by threshold, a stage may have
no layer at all: then the last is taken to have none, and no stage to have one for sure.)

Where a share ρ of every stage's layers is recomputed, they hold Σ_k n_ik·(p_k + f_i·(a_k - ρ·(a_k -
b_k))), b_k what is kept of a recomputed one. Weighted as in the first way, by the a of those that
are not, that is at least (1-ρ)·A + ρ·B: A as above, and B with min(p_k/p_r, b_k/a_r) in place of
min(p_k/p_r, a_k/a_r); of a single stage B is all that it has. So ρ >= (A - C)/(A - B), C what is
left for layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from models.columns import Array, total
from models.cost.memory import LayerBytes
from models.cost.mesh_costs import MeshCosts, ShardCosts
from models.layouts.space import Policies
from models.spec.hardware import GIB
from models.spec.layout import DUALPIPE, Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients
from models.spec.recompute import NONE


@dataclass(frozen=True, slots=True)
class Memory:
    """Least bytes on the fullest stage; what its layers need at least, with what each more
    micro-batch in flight adds to that; and the least share of layers to recompute, where that is
    open, for them to fit. All of shape (shardings·policies, n)."""

    least: Array
    layers: Array
    each: Array
    share: Array

    def take(self, rows: Array) -> Memory:
        return Memory(*(getattr(self, name)[:, rows] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class _Worth:
    """Bytes that a stage has for each parameter, (dense, expert), and for being a stage."""

    dense: Array | float
    expert: Array | float
    fixed: Array | float

    def of(self, size: LayerBytes) -> Array:
        return np.asarray(size.dense * self.dense + size.expert * self.expert)


@dataclass(frozen=True, slots=True)
class _States:
    """Bytes of parameters, gradients and states, (shardings, places of the optimizer, 1, n): of a
    layer of each kind, what else counts towards the weighted mean of stages, and all of the last
    layer and the head."""

    layers: list[Array]
    mean: Array
    last: Array


@dataclass(frozen=True, slots=True)
class _Activations:
    """The same of a micro-batch's activations under s policies, (s, n); those of `layers` none if
    they are offloaded."""

    layers: list[Array] | None
    mean: Array
    last: Array


class MemoryBounds:
    """For n meshes under every choice of sharding and memory policy; `min_in_flight`: F of the
    schedule that keeps least; `capacity`: bytes that no layout may need more than."""

    def __init__(
        self,
        costs: MeshCosts,
        policies: Policies,
        min_in_flight: Array,
        capacity: Array | float,
    ) -> None:
        self.problem, self.costs, self.c, self.policies = costs.problem, costs, costs.c, policies
        self.min_in_flight = min_in_flight
        self.left = (capacity - self.c.context_gib * GIB) / (1 + self.c.fragmentation)
        self.pp = costs.layouts.pp
        z = policies.shardings
        self.zero, self.reshard = (
            column[:, None, None, None] for column in (z.zero_stage, z.reshard)
        )
        self.layers, self.ends = costs.bytes[: costs.kinds], costs.bytes[-2:]

    def memory(self) -> Memory:
        memory_policies, z, n = self.policies.memory_policies, len(self.zero), len(self.pp)
        found = np.empty((len(Memory.__slots__), z, len(memory_policies), n))
        hosts, host = np.unique(memory_policies.offload_optimizer, return_inverse=True)
        on_host = hosts[:, None, None]
        states = self._states(self._worth(on_host))
        for offload in np.unique(memory_policies.offload_activations).tolist():
            rows = np.flatnonzero(memory_policies.offload_activations == offload)
            recompute, again = np.unique(memory_policies.recompute[rows], return_inverse=True)
            activations, share = (
                self._activations(recompute, offload),
                np.ones((z, len(hosts), len(recompute), n)),
            )
            if len(has_choice := np.unique(again[self.policies.open[rows]])):
                share[:, :, has_choice] = self._share(states, activations, has_choice)
            for value, of in zip(found, (*self._together(states, activations), share), strict=True):
                value[:, rows] = np.broadcast_to(of, share.shape)[:, host[rows], again]
        found[:3] *= 1 + self.c.fragmentation
        found[:2] += self.c.context_gib * GIB
        return Memory(*found.reshape(len(found), z * len(memory_policies), n))

    def _share(self, states: _States, again: _Activations, policies: Array) -> Array:
        """Of the layers of every stage, how many have to be recomputed at least, under some of the
        policies."""
        every, some = self._kept(NONE), [layer[policies] for layer in again.layers or []]
        layers, each = _fullest(self._counts, states.layers, every, self.pp)
        nothing = layers + self.min_in_flight * each
        r = int(np.argmax(self._counts))
        piped = total(
            n * np.minimum(_times(p, states.layers[r]), b / every[r])
            for n, p, b in zip(self._counts, states.layers, some, strict=True)
        ) * (states.layers[r] + self.min_in_flight * every[r])
        alone = total(
            n * (p + self.min_in_flight * b)
            for n, p, b in zip(self._counts, states.layers, some, strict=True)
        )
        least = np.where(self.pp == 1, alone, piped) / self.pp
        needed = nothing - (self.left - states.mean - again.mean[policies])
        return np.asarray(np.clip(needed / np.maximum(nothing - least, 1.0), 0.0, 1.0))

    def _together(self, states: _States, activations: _Activations) -> tuple[Array, Array, Array]:
        layers, each = _fullest(self._counts, states.layers, activations.layers, self.pp)
        layers = layers + self.min_in_flight * each + states.mean + activations.mean
        return np.maximum(layers, states.last + activations.last), layers, each

    def _of_layers(self, worth: _Worth) -> list[Array]:
        """Of each kind, with the copies that its GEMMs read."""
        if not self.problem.operand_bytes:
            return [worth.of(size) for size in self.layers]
        operands = self.problem.operand_bytes * (self.zero < 3)
        return [worth.of(size) + operands * (size.dense + size.expert) for size in self.layers]

    def _states(self, worth: _Worth) -> _States:
        layers, (embedding, head) = self._of_layers(worth), map(worth.of, self.ends)
        tied = self.problem.architecture.tie_word_embeddings
        ends = head + np.where((self.pp == 1) | tied, embedding, 0.0)
        last = layers[self.problem.architecture.layer_runs[-1][0]]
        if self._may_end_without_layer:
            last = reduce(np.minimum, layers)
        last = last * (not self._may_be_empty)
        return _States(layers, ends / self.pp + worth.fixed, last + ends + worth.fixed)

    def _activations(self, recompute: Array, offload: bool) -> _Activations:
        """Under policies (s,)."""
        layers, none = self._kept(recompute[:, None]), self._kept(NONE)
        one = reduce(np.minimum, layers) * (not self._may_be_empty)
        working = reduce(
            np.maximum, [before - after for before, after in zip(none, layers, strict=True)]
        )
        if self.problem.stack.context == "allgather":
            working = working + self.costs.whole_keys * self.c.activation_memory
        losing = np.maximum(self._logits, working)
        if self.problem.stack.keeps_logits:
            losing = losing + self.costs.kept_logits
        mean = np.where(self.pp == 1, losing, working)
        if not offload:
            return _Activations(layers, mean, losing + one)
        largest = reduce(np.maximum, layers)
        mean = mean + np.where(self.pp == 1, np.minimum(2 * largest, self.min_in_flight * one), one)
        return _Activations(None, mean, losing + one)

    def _worth(self, on_host: Array) -> _Worth:
        problem, zero = self.problem, self.zero
        state = problem.workload.optimizer_state
        states = np.where(zero == 3, state.master_bytes, problem.master_bytes) + state.moment_bytes
        gathered = (zero == 3) & self.reshard
        reduced = (zero >= 2) & ((self.pp == 1) | gathered | (zero == 2))
        shared = problem.parameter_bytes * (
            (zero == 3) & (on_host | problem.stack.parameter_shards)
        )
        shared = shared + states * (~on_host & (zero >= 1))
        own = problem.parameter_bytes * ~gathered + states * (~on_host & (zero == 0))
        gradient = problem.gradient_bytes
        sharded, whole = shared + gradient * reduced, own + gradient * ~reduced
        at_once = gathered * problem.parameter_bytes * np.minimum(2 * self._unit, self._layer)
        return _Worth(
            whole + sharded / self.costs.dense_shards,
            whole + sharded / self.costs.expert_shards,
            reduced * problem.gradient_reduction_bytes * self._unit + at_once,
        )

    def _kept(self, recompute: Array | int) -> list[Array]:
        """Bytes of activations of a layer of each kind."""
        policy = np.searchsorted(self.costs.policies, recompute)
        return [
            self.costs.kept(i, policy) * self.c.activation_memory for i in range(self.costs.kinds)
        ]

    @cached_property
    def _unit(self) -> Array:
        return reduce(np.maximum, [size.unit for size in self.layers])

    @property
    def _may_be_empty(self) -> bool:
        """Whether a stage may have no layer: where they are split by threshold."""
        return self.problem.stack.splits_by_threshold

    @property
    def _may_end_without_layer(self) -> bool:
        """Whether the last of several chunks may have the head only: the last stage then has
        another layer than the last."""
        schedules = self.policies.schedules
        several = (schedules.virtual_stages > 1) | (schedules.schedule == DUALPIPE)
        return bool((schedules.balanced & several).any())

    @cached_property
    def _layer(self) -> Array:
        """Parameters that every stage has: those of a layer, or of all."""
        every = [size.dense + size.expert for size in self.costs.bytes]
        whole = (
            total(n * layer for n, layer in zip(self._counts, every, strict=False))
            + every[-1]
            + every[-2]
        )
        one = reduce(np.minimum, every[: self.costs.kinds]) * (not self._may_be_empty)
        return np.where(self.pp == 1, whole, one)

    @cached_property
    def _logits(self) -> Array:
        return self.costs.logits * self.c.logit_memory

    @property
    def _counts(self) -> tuple[int, ...]:
        return self.problem.architecture.trained_layers_per_kind


_MEMORY_POLICIES = ("recompute", "offload_activations", "offload_optimizer")


def _rows(policies: Layouts, *knobs: str) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(policies, knob).tolist() for knob in knobs), strict=True))


class CoreMemory:
    """For cores: whatever the split and the placement, under the best of every knob."""

    def __init__(
        self, problem: Problem, shards: ShardCosts, c: Coefficients, policies: Policies
    ) -> None:
        self.problem, self.c, self.policies, self.shards = problem, c, policies, shards
        self.layers = shards.bytes[: len(problem.architecture.kinds)]
        self.ends = shards.bytes[-2 if problem.architecture.tie_word_embeddings else -1 :]

    def memory(self, shard: Array, cores: Layouts, min_in_flight: Array) -> Array:
        """Least bytes on the fullest stage of cores on these shards."""
        worth = self._worth(cores)
        layers = [size.take(shard) for size in self.layers]
        parameters = [worth.of(size) for size in layers]
        memory_policies = sorted(
            {pair[:2] for pair in _rows(self.policies.memory_policies, *_MEMORY_POLICIES)}
        )
        needed = [
            self._needed(parameters, shard, cores.pp, min_in_flight, *pair)
            for pair in memory_policies
        ]
        held = (
            reduce(np.minimum, needed)
            + total(worth.of(size.take(shard)) for size in self.ends) / cores.pp
        )
        return np.asarray(held * (1 + self.c.fragmentation) + self.c.context_gib * GIB)

    def _worth(self, cores: Layouts) -> _Worth:
        problem, shardings = self.problem, self.policies.shardings
        replicas = cores.dp * cores.cp
        experts = np.maximum(replicas * cores.tp // (cores.ep * cores.etp), 1)
        most = int(shardings.zero_stage.max())
        states = 0.0
        if not self.policies.memory_policies.offload_optimizer.any():
            states = problem.master_bytes + problem.workload.optimizer_state.moment_bytes
        gradient = problem.gradient_bytes
        sharded = states * (most >= 1) + gradient * (most >= 2)
        whole = states * (most == 0) + gradient * (most < 2)
        if not ((shardings.zero_stage == 3) & shardings.reshard).any():
            whole = whole + problem.parameter_bytes
        return _Worth(whole + sharded / replicas, whole + sharded / experts, 0.0)

    def _needed(
        self,
        parameters: list[Array],
        shard: Array,
        pp: Array,
        min_in_flight: Array,
        recompute: int,
        offload: int,
    ) -> Array:
        policy = int(np.searchsorted(self.shards.policies, recompute))
        scale = self.c.activation_memory
        kept = [of_kind[policy].take(shard) * scale for of_kind in self.shards.kept]
        held, each = _fullest(
            self.problem.architecture.trained_layers_per_kind,
            parameters,
            None if offload else kept,
            pp,
        )
        held = held + min_in_flight * each
        if recompute:
            most = [
                (of_kind[0] - of_kind[policy]).take(shard) * scale for of_kind in self.shards.kept
            ]
            held = held + reduce(np.maximum, most)
        return held


def _fullest(
    counts: Sequence[int], parameters: list[Array], kept: list[Array] | None, pp: Array
) -> tuple[Array, Array]:
    """(bytes of the layers' parameters, bytes of their activations for each micro-batch in flight)
    that the fullest stage has at least. `parameters`, `kept`: of a layer of each kind, of which
    there are `counts`; none are kept if they are offloaded."""
    every = total(n * p for n, p in zip(counts, parameters, strict=True))
    if kept is None:
        return every / pp, np.zeros_like(every)
    activations = total(n * a for n, a in zip(counts, kept, strict=True))
    if len(counts) == 1:
        return every / pp, activations / pp
    r = int(np.argmax(counts))
    shares = [
        np.minimum(_times(p, parameters[r]), a / kept[r])
        for p, a in zip(parameters, kept, strict=True)
    ]
    layers = total(n * share for n, share in zip(counts, shares, strict=True))
    alone = pp == 1
    return np.where(alone, every, layers * parameters[r]) / pp, np.where(
        alone, activations, layers * kept[r]
    ) / pp


def _times(value: Array, of: Array) -> Array:
    """How many times another; of nothing any number of times."""
    return np.divide(value, of, out=np.full(np.broadcast(value, of).shape, np.inf), where=of > 0)
