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
l_i ~ 1/f_i). The only stage of a pipeline of one holds the logits too, and with recompute the layer being worked on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, reduce

import numpy as np

from models.array import Array, total
from models.exposure import Exposure, overlaps
from models.hardware import GIB
from models.layout import DUALPIPE, ONE_F_ONE_B, ZERO_BUBBLE, ZERO_BUBBLE_V, Layouts
from models.mesh import closest_groups
from models.mesh_costs import MeshCosts, ShardCosts, Tables, collectives
from models.problem import Problem
from models.profile import Coefficients
from models.space import Policies, neutral

_BUBBLE_FREE = (ZERO_BUBBLE, ZERO_BUBBLE_V, DUALPIPE)  # their bubble is bounded by nothing here


class Bounds:
    """Bounds for n meshes, placed or as close as can be, under every choice of sharding and saver of some policies."""

    def __init__(self, costs: MeshCosts, policies: Policies) -> None:
        self.problem, self.costs, self.c, self.stack = costs.problem, costs, costs.c, costs.problem.stack
        self.policies = policies
        x = costs.layouts
        self.pp, self.m = x.pp, x.num_micro_batches(self.problem.workload.global_batch)
        node = min(8, self.problem.cluster.scale_up_domain)
        self.jitter = 1 + self.c.jitter * np.log2(np.maximum(x.num_devices / node, 1.0))

    # -- time ---------------------------------------------------------------------------------------------------

    def time(self, wanted: Array) -> tuple[Array, Array]:
        """(least step time, what each mean pass of idleness adds), both (shardings·savers, n); infinite where neither
        a row nor a column of `wanted` asks for them."""
        z, r = self.policies.shardings, self.policies.savers
        step = np.full(wanted.shape, np.inf)
        mean = np.zeros(wanted.shape)
        done: dict[tuple[int, bool, int, bool], tuple[Array, Array]] = {}
        for variant in np.flatnonzero(wanted.any(axis=1)):
            i, j = divmod(int(variant), len(r))
            key = int(z.zero_stage[i]), bool(z.reshard[i]), int(r.recompute[j]), bool(r.offload_activations[j])
            if key not in done:
                done[key] = self._step(*key)
            step[variant], mean[variant] = done[key]
        return step, mean

    def _step(self, zero: int, reshard: bool, recompute: int, offload: bool) -> tuple[Array, Array]:
        chosen = self._under(zero, reshard, recompute, offload)
        exposure = Exposure(chosen, self.costs)
        mean = exposure.whole_model() / self.pp
        sends, hops = exposure.sends()
        passes = self.m + self.least_idle + self._once(exposure)
        step = mean * passes + sends + hops + exposure.norm() + self.c.step_fixed_s
        return step * self.jitter, mean * self.jitter

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

    def _once(self, exposure: Exposure) -> Array:
        """Passes that traffic once a step and the update take, by their least ratio to F+B."""
        longest = [self._longest(exposure, i) for i in range(len(exposure.parts))]
        traffic = [(gather + reduced) / t for (gather, reduced), t in zip(exposure.data_once(), longest, strict=True)]
        ratio = reduce(np.minimum, traffic)
        if self.stack.overlap_data:
            ratio = ratio - (1 - self.c.interference) * np.minimum(ratio, self.c.data_overlap)
        owned = reduce(np.minimum, [exposure.owned(i) / t for i, t in enumerate(longest)])
        return np.asarray(ratio + np.minimum(exposure.update(owned, False), exposure.update(owned, True)))

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
        hidden = self.c.data_overlap * (1 - self.c.interference) if self.stack.overlap_data else 0.0
        sends, hops = exposure.sends()
        return np.asarray((mean * (self.m + self.least_idle - hidden) + sends + hops) * self.jitter)

    @cached_property
    def least_idle(self) -> Array:
        """Bubble in units of the mean pass."""
        free = np.isin(self.policies.schedules.schedule, _BUBBLE_FREE).any()
        return (self.pp - 1) * (0.0 if free else 1 / self.policies.schedules.virtual_stages.max())

    def idle(self, schedules: Layouts) -> Array:
        """(schedules, n): mean passes that each idles, at least."""
        free = np.isin(schedules.schedule, _BUBBLE_FREE)
        return np.where(free, 0.0, 1 / schedules.virtual_stages)[:, None] * (self.pp - 1)

    # -- memory -------------------------------------------------------------------------------------------------

    def memory(self) -> Array:
        """Least bytes on the fullest stage, (shardings·savers, n)."""
        z, r = self.policies.shardings, self.policies.savers
        result = np.empty((len(z) * len(r), len(self.pp)))
        held = {code: self._activations(code) for code in sorted({int(code) for code in r.recompute})}
        alone = np.where(self.pp == 1, self.costs.logits * self.c.logit_memory, 0.0)
        working = np.where(self.pp == 1, self._working, 0.0)
        for i in range(len(z)):
            states, rest = self._states(int(z.zero_stage[i]), bool(z.reshard[i]))
            for j in range(len(r)):
                code = int(r.recompute[j])
                activations = np.zeros_like(alone) if r.offload_activations[j] else held[code]
                allocated = rest + alone + activations + (working if code else 0.0)
                result[i * len(r) + j] = allocated if r.offload_optimizer[j] else allocated + states
        return np.asarray(result * (1 + self.c.fragmentation) + self.c.context_gib * GIB)

    @cached_property
    def _working(self) -> Array:
        return reduce(np.maximum, [part.kept[0] for part in self.costs.bytes]) * self.c.activation_memory

    def _activations(self, recompute: int) -> Array:
        """Of all layers for one micro-batch, over the stages, times the micro-batches in flight."""
        kept = total(count * self.costs.bytes[kind].kept[recompute] for kind, count in self._runs)
        return np.asarray(kept / self.pp * self.c.activation_memory * flying(self.pp, self.m))

    def _states(self, zero: int, reshard: bool) -> tuple[Array, Array]:
        """(optimizer states, parameters in use and gradients), mean over stages."""
        problem = self.problem
        dense, expert = self._parameters
        shards = dense / self.costs.dense_shards + expert / self.costs.expert_shards
        state = problem.workload.optimizer_state
        states = (state.master_bytes if zero == 3 else problem.master_bytes) + state.moment_bytes
        gradients = problem.gradient_bytes * (shards if zero >= 2 else dense + expert)
        in_use = 0.0 if zero == 3 and reshard else problem.parameter_bytes * (dense + expert)
        return states * (shards if zero >= 1 else dense + expert), gradients + in_use

    @cached_property
    def _parameters(self) -> tuple[Array, Array]:
        size = self.costs.bytes
        ends = size[self.costs.kinds :]
        dense = total(count * size[kind].dense for kind, count in self._runs) + total(end.dense for end in ends)
        expert = total(count * size[kind].expert for kind, count in self._runs) + total(end.expert for end in ends)
        return dense / self.pp, expert / self.pp

    @property
    def _runs(self) -> tuple[tuple[int, int], ...]:
        return self.problem.architecture.runs


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
        least = int(policies.savers.recompute.max())
        self.kept = total(n * size[k].kept[least] for k, n in runs) * c.activation_memory
        if policies.savers.offload_activations.any():
            self.kept = np.zeros_like(self.kept)

    def _passes(self) -> Array:
        """F+B of the whole model on each shard, for one micro-batch."""
        x, n = self.shards.shards, len(self.shards.shards)
        rows = replace(neutral(n), tp=x.tp, ep=x.ep, etp=x.etp, sequence_parallel=x.sequence_parallel)
        near = closest_groups(self.problem.cluster, rows)
        links = None
        if self.problem.workload.global_batch > 1:  # with one micro-batch, how much hides depends on the pipeline
            links = collectives(self.problem, near, self.c, floor=True)
        costs = MeshCosts(Tables(self.problem, self.c, self.shards, links), rows, np.arange(n), near)
        return Exposure(rows, costs).whole_model()

    def time(self, passes: Array, pp: Array, m: Array) -> Array:
        """Least step time with so long a pass."""
        n, problem = self.problem.cluster.num_devices, self.problem
        idle = 0.0
        if not np.isin(self.policies.schedules.schedule, _BUBBLE_FREE).any():
            idle = (pp - 1) / self.policies.schedules.virtual_stages.max()
        node = min(8, problem.cluster.scale_up_domain)
        jitter = 1 + self.c.jitter * np.log2(max(n / node, 1.0))
        norm = 2 * (self.c.collective_s + self.c.scaleout_hop_s * np.log2(n))
        return np.asarray((passes / pp * (m + idle) + norm + self.c.step_fixed_s) * jitter)

    def memory(self, shard: Array, cores: Layouts, m: Array) -> Array:
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
        held = held + self.kept[shard] / cores.pp * flying(cores.pp, m)
        return np.asarray(held * (1 + self.c.fragmentation) + self.c.context_gib * GIB)


def flying(pp: Array, m: Array) -> Array:
    """Micro-batches in flight, times the mean over stages: at least pp / Σ 1/f with f_i = min(pp - i, m) on stage i.

    No schedule has fewer in flight than 1F1B (models.pipeline.in_flight).
    """
    depth = np.minimum(pp, m)
    harmonic = _HARMONIC[np.minimum(depth, len(_HARMONIC) - 1)] + (pp - depth) / depth
    return np.asarray(pp / harmonic)


_HARMONIC = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, 4097))])
