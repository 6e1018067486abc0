"""Lower bounds of step time and memory, admissible for every layout on a mesh.

Time. Let x be F+B of the slowest stage with all that a micro-batch exposes there, μ the mean of that over the stages
(the whole model's, over pp) and m the micro-batches. A step takes m·x, the bubble, and what happens once:

- x >= μ, and a pipeline without zero-bubble schedules idles for (pp·μ - x)/v or more. So m·x and the bubble take at
  least (m + (pp-1)/v)·μ: their sum grows with x, m - 1/v > 0, and x >= μ. Zero-bubble schedules: m·μ.
- Traffic t once a step hides behind the slowest stage's own compute: t - (1-i)·min(t, h·x) or more is exposed, i what
  overlap costs and h what of a window can hide. Every part of the model (a layer, an end) has at least ρ seconds of
  such traffic for each second of F+B, so the slowest stage has t >= ρ·x. What is exposed grows with t, so it is at
  least (ρ - (1-i)·min(ρ, h))·x. The optimizer's update, again with a least ratio to F+B, is bounded alike.
- F+B is taken with every all-to-all hidden as far as any schedule can; ratios against F+B with none of it hidden.

Memory. Bytes on the fullest stage are at least the mean over stages. For activations, stage i with l_i layers and
f_i micro-batches in flight holds f_i·l_i, and max f_i·l_i >= L / Σ 1/f_i for any partition of L layers (equality when
l_i ~ 1/f_i); offloaded, they are at most two layers' worth on a stage that has as much. Every stage holds the layer
being worked on, with recompute, or being reduced; one stage holds the logits, and the only one of a pipeline of one
holds all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from models.array import Array, total
from models.exposure import Exposure, overlaps
from models.hardware import GIB
from models.layout import DUALPIPE, ONE_F_ONE_B, ZERO_BUBBLE, ZERO_BUBBLE_V, Layouts
from models.mesh import closest_groups
from models.mesh_costs import MeshCosts, ShardCosts, Tables, least_collectives
from models.pipeline import in_flight
from models.problem import Problem
from models.profile import Coefficients
from models.space import Policies, neutral

_BUBBLE_FREE = (ZERO_BUBBLE, ZERO_BUBBLE_V, DUALPIPE)  # their bubble is bounded by nothing here


@dataclass(frozen=True, slots=True)
class Variants:
    """The choices of sharding and saver that differ in time: a host's update is bounded like a device's.

    `keys`: ZeRO stage, reshard, recompute, activation offload; `of` (shardings·savers,): which of them each is.
    """

    keys: tuple[tuple[int, bool, int, bool], ...]
    of: Array

    @classmethod
    def of_policies(cls, policies: Policies) -> Variants:
        z, r = policies.shardings, policies.savers
        every = [
            (int(z.zero_stage[i]), bool(z.reshard[i]), int(r.recompute[j]), bool(r.offload_activations[j]))
            for i in range(len(z))
            for j in range(len(r))
        ]
        keys = tuple(dict.fromkeys(every))
        return cls(keys, np.array([keys.index(key) for key in every]))

    def any_of(self, wanted: Array) -> Array:
        """Of (shardings·savers, n), whether any of each key is wanted; (keys, n)."""
        result = np.zeros((len(self.keys), wanted.shape[1]), dtype=bool)
        np.logical_or.at(result, self.of, wanted)
        return result


@dataclass(frozen=True, slots=True)
class Times:
    """Arrays of shape (keys, n): the least step time, infinite where it was not asked for; what each mean pass of
    idleness adds to it; of its data-parallel traffic, all seconds, and how many at most hide or are counted as
    exposed."""

    step: Array
    pass_s: Array
    traffic: Array
    covered: Array

    def take(self, rows: Array) -> Times:
        return Times(*(getattr(self, name)[:, rows] for name in self.__slots__))

    @classmethod
    def joined(cls, parts: Sequence[Times]) -> Times:
        return cls(*(np.concatenate([getattr(part, name) for part in parts], axis=1) for name in cls.__slots__))


class Bounds:
    """Bounds for n meshes, placed or as close as can be, under every choice of sharding and saver of some policies;
    `least_idle`: mean passes that any of their schedules idles; `flying`: least micro-batches in flight, times the mean
    over stages (see :func:`flying`)."""

    def __init__(self, costs: MeshCosts, policies: Policies, least_idle: Array, flying: Array) -> None:
        self.problem, self.costs, self.c, self.stack = costs.problem, costs, costs.c, costs.problem.stack
        self.policies, self.least_idle, self.flying = policies, least_idle, flying
        x = costs.layouts
        self.pp, self.m = x.pp, x.num_micro_batches(self.problem.workload.global_batch)
        node = min(8, self.problem.cluster.scale_up_domain)
        self.jitter = 1 + self.c.jitter * np.log2(np.maximum(x.num_devices / node, 1.0))
        self.hideable = self.c.data_overlap * (1 - self.c.interference) if self.stack.overlap_data else 0.0

    # -- time ---------------------------------------------------------------------------------------------------

    def time(self, variants: Variants, wanted: Array) -> Times:
        """For every variant that some row of `wanted` (keys, n) asks for."""
        times = Times(np.full(wanted.shape, np.inf), *(np.zeros(wanted.shape) for _ in range(3)))
        for i in np.flatnonzero(wanted.any(axis=1)):
            found = self._step(*variants.keys[i])
            for name, value in zip(Times.__slots__, found, strict=True):
                getattr(times, name)[i] = value * self.jitter
        return times

    def _step(self, zero: int, reshard: bool, recompute: int, offload: bool) -> tuple[Array, Array, Array, Array]:
        exposure = Exposure(self._under(zero, reshard, recompute, offload), self.costs)
        mean = exposure.whole_model() / self.pp
        sends, hops = exposure.sends()
        ratio, update = self._once(exposure)
        exposed = ratio
        if self.stack.overlap_data:
            exposed = ratio - (1 - self.c.interference) * np.minimum(ratio, self.c.data_overlap)
        passes = self.m + self.least_idle
        step = mean * (passes + exposed + update) + sends + hops + exposure.norm() + self.c.step_fixed_s
        every = exposure.data_every_time()
        if every is None:
            return step, mean, mean * ratio, mean * (exposed + self.hideable)
        traffic, window, counted = (passes / self.pp * value for value in every)
        return step, mean, traffic, self.hideable * window + counted

    def _under(self, zero: int, reshard: bool, recompute: int, offload: bool) -> Layouts:
        """The meshes under a schedule that hides most."""
        x, schedules = self.costs.layouts, self.policies.schedules
        hiding = DUALPIPE if overlaps(schedules).any() else ONE_F_ONE_B

        def every(value: int) -> Array:
            return np.full(len(x), value)

        return replace(
            x,
            schedule=every(hiding),
            zero_stage=every(zero),
            reshard=every(reshard),
            recompute=every(recompute),
            offload_activations=every(offload),
        )

    def _once(self, exposure: Exposure) -> tuple[Array, Array]:
        """Passes that traffic once a step and the update take, by their least ratio to F+B."""
        longest = [self._longest(exposure, i) for i in range(len(exposure.parts))]
        traffic = [(gather + reduced) / t for (gather, reduced), t in zip(exposure.data_once(), longest, strict=True)]
        owned = reduce(np.minimum, [exposure.owned(i) / t for i, t in enumerate(longest)])
        return reduce(np.minimum, traffic), np.minimum(exposure.update(owned, False), exposure.update(owned, True))

    def _longest(self, exposure: Exposure, part: int) -> Array:
        """F+B of a part with nothing of its all-to-all hidden."""
        both = exposure.parts[part].both
        if self.stack.overlap_expert and "expert_s" in exposure.parts[part].terms:
            both = both + 3 * self.costs.traffic[part].expert * self.c.expert_overlap
        return both

    def apart(self) -> Array:
        """What of the least step time tensor-parallel, context-parallel and expert traffic and sends take: a placement
        adds to the time of the closest at least what it adds here.

        Traffic once a step may hide behind what it adds, hence one overlap less of its passes.
        """
        exposure = Exposure(self._under(0, True, 0, False), self.costs)
        mean = exposure.layer_communication() / self.pp
        sends, hops = exposure.sends()
        return np.asarray((mean * (self.m + self.least_idle - self.hideable) + sends + hops) * self.jitter)

    def farther(self, variants: Variants, near: Times, growth: Array) -> Array:
        """(keys, n): what growing traffic adds to times. `growth` (3, n) of it at ZeRO 0, once a step, and with every
        micro-batch. Of t seconds no more hide than did at most, and of each more at least what overlap costs."""
        kind = np.array([0 if zero == 0 else 1 if zero == 1 else 2 for zero, *_ in variants.keys])
        costs = self.c.interference if self.stack.overlap_data else 1.0
        more = (growth - 1)[kind] * near.traffic
        return np.maximum(costs * more, near.traffic + more - near.covered)

    # -- memory -------------------------------------------------------------------------------------------------

    def memory(self) -> Array:
        """Least bytes on the fullest stage, (shardings·savers, n)."""
        z, r = self.policies.shardings, self.policies.savers
        result = np.empty((len(z) * len(r), len(self.pp)))
        recompute = sorted({int(code) for code in r.recompute})
        held = {(code, 0): self._activations(code) * self.flying for code in recompute}
        held |= {(code, 1): np.minimum(2 * self._working, held[code, 0]) for code in recompute}
        held = {key: value + self._working if key[0] else value for key, value in held.items()}
        logits = self.costs.logits * self.c.logit_memory
        alone = np.where(self.pp == 1, logits, 0.0)
        last = {code: logits + self._working if code else logits for code in recompute}
        for i in range(len(z)):
            key = int(z.zero_stage[i]), bool(z.reshard[i])
            states, rest = self._states(*key, *self._mean_parameters, self._gathered_anywhere)
            states_last, rest_last = self._states(*key, *self._last_parameters, sum(self._last_parameters))
            rest = rest + alone
            for j in range(len(r)):
                code, off = int(r.recompute[j]), int(r.offload_activations[j])
                on_device = not r.offload_optimizer[j]
                mean, least = rest + states * on_device, rest_last + states_last * on_device
                result[i * len(r) + j] = np.maximum(mean + held[code, off], least + last[code])
        return result * (1 + self.c.fragmentation) + self.c.context_gib * GIB

    @cached_property
    def _working(self) -> Array:
        return reduce(np.maximum, [part.kept[0] for part in self.costs.bytes]) * self.c.activation_memory

    @cached_property
    def _unit(self) -> Array:
        return reduce(np.maximum, [part.unit for part in self.costs.bytes[: self.costs.kinds]])

    def _activations(self, recompute: int) -> Array:
        """Of all layers for one micro-batch, over the stages."""
        kept = total(count * self.costs.bytes[kind].kept[recompute] for kind, count in self._runs)
        return np.asarray(kept / self.pp * self.c.activation_memory)

    def each_flying(self) -> Array:
        """Bytes for each more micro-batch in flight, (shardings·savers, n); offloaded activations are none."""
        r = self.policies.savers
        size = [self._activations(code) * (1 + self.c.fragmentation) for code in range(3)]
        rows = [size[code] * (not off) for code, off in zip(r.recompute, r.offload_activations, strict=True)]
        return np.tile(np.stack(rows), (len(self.policies.shardings), 1))

    def _states(
        self, zero: int, reshard: bool, dense: Array, expert: Array, gathered: Array
    ) -> tuple[Array, Array]:
        """(optimizer states, parameters in use and gradients) of so many parameters; FSDP gathers of no fewer."""
        problem = self.problem
        shards = dense / self.costs.dense_shards + expert / self.costs.expert_shards
        state = problem.workload.optimizer_state
        states = (state.master_bytes if zero == 3 else problem.master_bytes) + state.moment_bytes
        rest = problem.gradient_bytes * (shards if zero >= 2 else dense + expert)
        in_use = dense + expert
        if zero == 3 and reshard:
            in_use = np.minimum(2 * self._unit, gathered)
        if zero == 2 or (zero == 3 and reshard):  # and a layer's gradients, being reduced
            in_use = in_use + self._unit
        return states * (shards if zero >= 1 else dense + expert), rest + problem.parameter_bytes * in_use

    @cached_property
    def _mean_parameters(self) -> tuple[Array, Array]:
        """Dense and expert ones, mean over stages."""
        size = self.costs.bytes
        ends = size[self.costs.kinds :]
        dense = total(count * size[kind].dense for kind, count in self._runs) + total(end.dense for end in ends)
        expert = total(count * size[kind].expert for kind, count in self._runs) + total(end.expert for end in ends)
        return dense / self.pp, expert / self.pp

    @cached_property
    def _last_parameters(self) -> tuple[Array, Array]:
        """Of the last layer and the head, which one stage has."""
        last, head = self.costs.bytes[self._runs[-1][0]], self.costs.bytes[-1]
        return last.dense + head.dense, last.expert + head.expert

    @cached_property
    def _gathered_anywhere(self) -> Array:
        """Parameters that every stage has."""
        least = reduce(np.minimum, [part.dense + part.expert for part in self.costs.bytes[: self.costs.kinds]])
        return np.where(self.pp == 1, sum(self._mean_parameters), least)

    @property
    def _runs(self) -> tuple[tuple[int, int], ...]:
        return self.problem.architecture.runs


def idle(schedules: Layouts, pp: Array) -> Array:
    """(schedules, n): mean passes that each idles, at least."""
    free = np.isin(schedules.schedule, _BUBBLE_FREE)
    return np.where(free, 0.0, 1 / schedules.virtual_stages)[:, None] * (pp - 1)


def growth(near: MeshCosts, far: MeshCosts) -> Array:
    """How many times the data-parallel traffic of the near meshes the far ones have at least, (3, n): at ZeRO 0, once a
    step, and with every micro-batch."""
    result = []
    for closer, farther in zip(near.data_rates(), far.data_rates(), strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = [np.where(a > 0, b / a, np.inf) for a, b in zip(closer, farther, strict=True)]
        least = reduce(np.minimum, ratios)
        result.append(np.where(np.isfinite(least), np.maximum(least, 1.0), 1.0))
    return np.stack(result)


class CoreBounds:
    """Bounds for trunks and cores, whatever the split, the placement and the policy.

    A pass takes its compute and the least of tensor-parallel and all-to-all traffic that any placement leaves; nothing
    of data parallelism. Memory takes the best of every knob.
    """

    def __init__(self, problem: Problem, shards: ShardCosts, c: Coefficients, policies: Policies) -> None:
        self.problem, self.c, self.policies, self.shards = problem, c, policies, shards
        self.passes = self._passes()
        runs, kinds, size = problem.architecture.runs, len(problem.architecture.kinds), shards.bytes
        self.dense = total(n * size[k].dense for k, n in runs) + total(end.dense for end in size[kinds:])
        self.expert = total(n * size[k].expert for k, n in runs) + total(end.expert for end in size[kinds:])
        self.kept = [total(n * size[k].kept[r] for k, n in runs) * c.activation_memory for r in range(3)]
        self.working = reduce(np.maximum, [part.kept[0] for part in size]) * c.activation_memory

    def _passes(self) -> Array:
        """F+B of the whole model on each shard, for one micro-batch."""
        x, n = self.shards.shards, len(self.shards.shards)
        rows = replace(neutral(n), tp=x.tp, ep=x.ep, etp=x.etp, sequence_parallel=x.sequence_parallel)
        near = closest_groups(self.problem.cluster, rows)
        links = None
        if self.problem.workload.global_batch > 1:  # with one micro-batch, how much hides depends on the pipeline
            links = least_collectives(self.problem, near, self.c)
        costs = MeshCosts(Tables(self.problem, self.c, self.shards, links), rows, np.arange(n), near)
        return Exposure(rows, costs).whole_model()

    def time(self, passes: Array, pp: Array, m: Array, idle: Array) -> Array:
        """Least step time with so long a pass and so many idle ones."""
        n, problem = self.problem.cluster.num_devices, self.problem
        node = min(8, problem.cluster.scale_up_domain)
        jitter = 1 + self.c.jitter * np.log2(max(n / node, 1.0))
        norm = 2 * (self.c.collective_s + self.c.scaleout_hop_s * np.log2(n))
        return np.asarray((passes / pp * (m + idle) + norm + self.c.step_fixed_s) * jitter)

    def memory(self, shard: Array, cores: Layouts, flying: Array) -> Array:
        """Least bytes on the fullest stage of cores on these shards."""
        problem, z = self.problem, self.policies.shardings
        dense, expert = self.dense[shard] / cores.pp, self.expert[shard] / cores.pp
        replicas = cores.dp * cores.cp
        shards = dense / replicas + expert / np.maximum(replicas * cores.tp // (cores.ep * cores.etp), 1)
        most = int(z.zero_stage.max())
        dropped = ((z.zero_stage == 3) & z.reshard).any()
        states = 0.0
        if not self.policies.savers.offload_optimizer.any():
            states = problem.master_bytes + problem.workload.optimizer_state.moment_bytes
        held = states * (shards if most >= 1 else dense + expert)
        held = held + problem.gradient_bytes * (shards if most >= 2 else dense + expert)
        if not dropped:
            held = held + problem.parameter_bytes * (dense + expert)
        held = held + self._activations(shard, flying / cores.pp)
        return np.asarray(held * (1 + self.c.fragmentation) + self.c.context_gib * GIB)


    def _activations(self, shard: Array, share: Array) -> Array:
        """The least of any saver, with what share of the model's activations a stage holds."""
        savers, working = self.policies.savers, self.working[shard]
        pairs = {(int(r), bool(a)) for r, a in zip(savers.recompute, savers.offload_activations, strict=True)}
        found = []
        for recompute, offload in sorted(pairs):
            held = self.kept[recompute][shard] * share
            held = np.minimum(2 * working, held) if offload else held
            found.append(held + working if recompute else held)
        return reduce(np.minimum, found)


def flying(schedules: Layouts, pp: Array, m: Array) -> Array:
    """(schedules, n): micro-batches in flight, times the mean over stages, that a schedule has at least.

    With f_i of them on stage i the fullest stage holds at least pp / Σ 1/f_i of the mean, whatever the partition.
    """
    stage = np.arange(int(pp.max()))[:, None, None]
    with np.errstate(divide="ignore"):
        held = in_flight(
            schedules.schedule[:, None], np.minimum(stage, pp - 1), pp, schedules.virtual_stages[:, None], m
        )
    return np.asarray(pp / np.where(stage < pp, 1 / held, 0.0).sum(axis=0))
