"""Lower bounds of step time, admissible for every layout on a mesh.

A step is over when its last stage is. Let x be F+B of a stage with all that a micro-batch exposes
there, μ the mean of x over the stages (the whole model's, over pp) and m the micro-batches. A stage
takes m·x, idles, and has work once a step; the last takes no less than any stage, nor than the mean
of all.

- Under afab a stage idles for pp·μ - x or more, so that m·x and the bubble are (m-1)·x + pp·μ: on
  average (m + pp-1)·μ.
- Under 1F1B all wait until the passes are done (models.cost.makespan.one_f_one_b). With m > pp that
  takes m·x + b + 2·a - k·x or more, b and a what the stages before and the k after one of x take
  together: of the heaviest, a - k·x is no less than -pp·(x - μ), so that it is (m + pp - 1)·μ + (m
  - 1 - pp)·(x - μ), which is less for any other stage.
- What else bounds a step depends on what each stage has, and on weight gradients W: what moving
  them saves is no more than they take. models.search.critical_path_bounds counts passes F+B of
  every part of the model, and how many are without W. 1f1b, zero_bubble with m <= pp: a micro-batch
  passes all stages, and the others' forwards, or their backwards, any one of them: Σx + (m - 1)·x/2
  or more; or the last one comes down from where it meets the first on its way up: Σx, and once more
  that of the last m - 1 stages. Under zero_bubble it is the same of F+I, after which the first
  stage has weight gradients left. zero_bubble with m > pp (models.cost.makespan.zero_bubble): a
  path goes down all stages and up to the second one, whose last forward before weight gradients
  goes down again; with one that is m-pp micro-batches later, which alternate on any one stage, it
  goes on down, and up to the first, and ends with its weight gradients: (m-pp)·x and 2·Σ(F+I), less
  F+I-W of the first stage. With stages alternating in turn, one of the m-pp on the first and the
  others on the mean one, that is (m-pp-1)·μ + 2·Σx, less 2·W of all stages but the first.
  interleaved (models.cost.makespan.interleaved): a stage's passes, and those of the first round of
  all before it: of the heaviest stage, and of three together in such shares that no part of the
  model has fewer than need be. With every group of g micro-batches more: g chunks with the head
  less g-1 and twice as many as stages follow of one's own; or what a stage takes that goes round,
  but for the groups that fill and drain the pipeline. Paths that wander from stage to stage only
  add to that. zero_bubble_v: with n = min(m, pp)-1 and k = min(max(m-pp, 0), pp-1) a stage idles
  for (pp-1)/4 of F+I of the mean of the others, or more, and for pp-1 - n/2 of that, less k of
  their W. Where m <= pp the second is a path of models.cost.makespan.zero_bubble_v, and the first
  no more than it. Else let d be pp-1 and e be d-k; as that counts, the second, (d, d, -2k), lies
  between (0, 2d, -2k) and (d+k-1, e+1, -2k), and the first, (d/2, d/2, 0), between (d+k-1, 1-k, 0)
  and (0, d, 0), which is between (0, d+e, -e) and (0, e+1, k-1). dualpipe: for F+I-W and the larger
  of F and I - F/(pp/2-1) of the others of its half, which is 3/2 - 1/(2pp-2) of their F+I, less W,
  or more. In neither a stage idles for less than nothing. With W a share of the whole model's
  passes, and no larger one of any part than the largest of any shard, the mean stage's passes have
  a bound whatever the parts take: that of the part of which a way has least.
- Of traffic t once a step, max(i·t, t - (1-i)·h·x) or more is exposed: i what overlap costs, h what
  of x can hide. That is convex, so the mean of it is no less than what the means of t and x give.
  The update is linear in what is updated. Where stages end together, x is M/n, with M all that the
  pipeline takes and n = m + (pp-1)/v, a third of it for what is gathered. M and what is exposed
  beside it grow with M, by 1 - (1-i)·h/n of it or more. With all of x for both, and a third more
  for gathers of ZeRO-2, whose reductions hide in every pass, that bounds every sharding; a mean
  pass where it is more bounds the schedules under which stages do not end together.
- With a partition, its heaviest stage may bound more than the mean: x - μ counts so many times, of
  which (1-i)·h may hide more traffic; and it may have less traffic and less to update than the
  mean. Where all wait until the passes are done, what comes then is no less than the mean stage's
  beside what M is more.
- F+B is taken with every all-to-all hidden as far as any schedule can. All grows with x, since m >=
  1 >= (1-i)·h.
- Traffic hides beside what is computed: more of that, or of what hides before, lets hide no more
  than it adds, so that x grows with compute and with every traffic. Of sends no less is exposed
  than all that may hide leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product

import numpy as np

from models.columns import Array, distinct, total
from models.cost.mesh_costs import MeshCosts, ShardCosts, Tables
from models.cost.overlap import (
    Exposure,
    context_sent,
    exposed_context,
    exposed_data,
    norm_seconds,
    overlaps,
    straggling,
    update_seconds,
    weighed,
)
from models.layouts.placement import closest_groups
from models.layouts.space import Policies, default_layouts
from models.search.least_costs import LeastCosts
from models.search.pipeline_bounds import Chains
from models.spec.layout import DUALPIPE, ONE_F_ONE_B, Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients


@dataclass(frozen=True)
class Variants:
    """The choices of sharding and memory policy that differ in time: a host's update is bounded
    like a device's.

    `keys`: ZeRO stage, reshard, recompute, activation offload, and, where it decides how many
    layers are recomputed, optimizer offload, all of a sharding in a row; `of`
    (shardings·policies,): which of them each is; `has_choice`: whether any may have a share of its
    layers recomputed.
    """

    keys: tuple[tuple[int, bool, int, bool, bool], ...]
    of: Array
    has_choice: bool

    @classmethod
    def of_policies(cls, policies: Policies) -> Variants:
        z, r = policies.shardings, policies.memory_policies
        on_host = policies.open & r.offload_optimizer
        memory_policies = zip(
            r.recompute.tolist(), r.offload_activations.tolist(), on_host.tolist(), strict=True
        )
        shardings = zip(z.zero_stage.tolist(), z.reshard.tolist(), strict=True)
        every = [
            (*sharding, *memory_policy)
            for sharding, memory_policy in product(shardings, memory_policies)
        ]
        keys = tuple(dict.fromkeys(every))
        return cls(keys, np.array([keys.index(key) for key in every]), bool(policies.open.any()))

    def any_of(self, wanted: Array) -> Array:
        """Of (shardings·policies, n), whether any of each key is wanted; (keys, n)."""
        return np.asarray(np.logical_or.reduceat(wanted[self._order], self._starts))

    def least_of(self, share: Array) -> Array:
        """Of shares (shardings·policies, n), the least of each key; (keys, n)."""
        if not self.has_choice:
            return np.ones((len(self.keys), share.shape[1]))
        return np.asarray(np.minimum.reduceat(share[self._order], self._starts))

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Of the keys: (shardings, policies)."""
        shardings = len({key[:2] for key in self.keys})
        return shardings, len(self.keys) // shardings

    def knobs(self, sharding: Array, memory_policy: Array) -> tuple[Array, Array, Array, Array]:
        """Of some shardings (z, 1) and savers (1, s): ZeRO stage and reshard (z, 1, 1), recompute
        and activation offload (s, 1)."""
        zero, reshard, recompute, offload, _ = (
            np.array(column) for column in zip(*self.keys, strict=True)
        )
        first = sharding[..., None] * self.shape[1]
        return zero[first], reshard[first], recompute[memory_policy.T], offload[memory_policy.T]

    @cached_property
    def _order(self) -> Array:
        return np.argsort(self.of, kind="stable")

    @cached_property
    def _starts(self) -> Array:
        return np.searchsorted(self.of[self._order], np.arange(len(self.keys)))


def slower_shardings(problem: Problem, shardings: Layouts, legal: Array) -> Array:
    """Which of some are no faster, by their bounds, than one that is legal (classes, shardings)
    wherever they are.

    ZeRO-1 gathers parameters and scatters gradients once a step, hidden as those of the others are,
    or nothing is said of them. ZeRO-2 and 3 do so once or more, and divide what is updated no
    further. Once a micro-batch, every layer beside its own passes, exposes no less than once a step
    beside one pass of the whole model: what n windows expose of n parts is no less than what all
    windows do of all parts, and of m times as much in m times as long m times as much; beside more
    than a pass, as in a pipeline, less is exposed once a step. What ZeRO-2 gathers once hides
    beside a forward, or a third of a pass, which the windows of bounds are longer by.
    """
    stage = shardings.zero_stage
    if problem.stack.all_reduces_gradients(1) or not problem.stack.overlap_zero1:
        return np.zeros(len(stage), dtype=bool)
    instead = np.any(legal[:, stage == 1], axis=1)
    return np.asarray((stage > 1) & np.all(~legal | instead[:, None], axis=0))


@dataclass(frozen=True, slots=True)
class Times:
    """Arrays of shape (keys, n): the least step time, infinite where it was not asked for; what
    each mean pass of idleness adds to it; what an update on the host takes longer than one on the
    device; and the row of idle passes that was taken (models.search.pipeline_bounds.Chains.row)."""

    step: Array
    pass_s: Array
    on_host: Array
    row: Array


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of every part of the model, (parts, keys, n): F+B, and once a step traffic and
    update; and of its weight gradients, (parts, n)."""

    both: Array
    once: Array
    weights: Array


class Bounds:
    """Bounds for n meshes, placed or as close as can be, under every choice of sharding and memory
    policy of some policies; `chain`: which of the chains each is."""

    def __init__(self, costs: MeshCosts, policies: Policies, chains: Chains, chain: Array) -> None:
        self.problem, self.costs, self.c, self.stack = (
            costs.problem,
            costs,
            costs.c,
            costs.problem.stack,
        )
        self.policies, self.chains, self.chain = policies, chains, chain
        x = costs.layouts
        self.pp, self.m = x.pp, x.num_micro_batches(self.problem.workload.global_batch)
        self.jitter = 1 + straggling(self.problem, self.c, x.num_devices)
        self.hideable = (
            self.c.data_overlap * (1 - self.c.interference) if self.stack.overlap_data else 0.0
        )

    def least(self, shardings: Layouts, legal: Array) -> Array:
        """Step time under the best of these shardings that are legal (shardings, n), without
        recompute and offload: they only add work, and what either lets hide is no more."""
        under = self._under(
            shardings.zero_stage[:, None], shardings.reshard[:, None], np.array(False)
        )
        exposure = Exposure(under, self.costs, policy=0)
        times = self._step(exposure, self._once(exposure))
        return np.asarray(np.where(legal, times.step, np.inf).min(axis=0) * self.jitter)

    def time(self, variants: Variants, wanted: Array, share: Array) -> tuple[Times, Parts]:
        """For every variant that some row of `wanted` (keys, n) asks for, with at least that share
        of its layers recomputed: every more only adds work."""
        pass_s, on_host = np.zeros((2, *wanted.shape))
        times = Times(
            np.full(wanted.shape, np.inf), pass_s, on_host, np.zeros(wanted.shape, dtype=np.int64)
        )
        both, work = np.zeros((2, self.costs.kinds + 2, *wanted.shape))
        parts = Parts(both, work, np.stack([weight * self.jitter for weight in self._weights]))
        if not wanted.any():
            return times, parts
        asked = np.any(wanted, axis=1).reshape(variants.shape)
        at = np.ix_(*(np.flatnonzero(np.any(asked, axis=axis)) for axis in (1, 0)))
        zero, reshard, recompute, offload = variants.knobs(*at)
        every = *variants.shape, -1
        least = share.reshape(every)[at]
        exposure = Exposure(
            self._under(zero, reshard, offload),
            self.costs,
            np.searchsorted(self.costs.policies, recompute),
            None if (least == 1).all() else least,
        )
        once = self._once(exposure)
        found = self._step(exposure, once)
        for name in ("step", "pass_s", "on_host"):
            getattr(times, name).reshape(every)[at] = getattr(found, name) * self.jitter
        times.row.reshape(every)[at] = found.row
        for i, (traffic, update) in enumerate(once):
            parts.both[i].reshape(every)[at] = exposure.parts[i].both * self.jitter
            parts.once[i].reshape(every)[at] = (traffic + update) * self.jitter
        return times, parts

    def _step(self, exposure: Exposure, once: list[tuple[Array, Array]]) -> Times:
        """But for jitter."""
        whole = exposure.whole_model()
        mean, row = (
            whole / self.pp,
            self.chains.row(weighed(exposure.amounts, self._weights), whole),
        )
        traffic, update = (
            weighed(exposure.amounts, work) / self.pp for work in zip(*once, strict=True)
        )
        window = mean * self.chains.window[row, self.chain]
        step = (
            mean * (self.m + self.chains.least_idle[row, self.chain])
            + exposure.hide_once(traffic, window)
            + update
        )
        step = step + exposure.least_sends() + exposure.hops()
        device, host = update_seconds(self.problem, self.c)
        on_host = update * np.maximum(host / device - 1, 0.0)  # where the device is the faster
        return Times(
            step + self._besides(exposure),
            mean * (1 - self.hideable / self.chains.alike[self.chain]),
            on_host,
            row,
        )

    @property
    def _weights(self) -> list[Array]:
        """Weight gradients of every part, which are no less than what moving them saves."""
        return [times.weight for times in self.costs.times]

    def _besides(self, exposure: Exposure) -> Array:
        """What a step takes whatever the policy."""
        return np.asarray(exposure.norm() + self.c.step_fixed_s + exposure.waits())

    def _under(self, zero: Array, reshard: Array, offload: Array) -> Layouts:
        """The meshes under a schedule that hides most."""
        hiding, one = overlaps(self.policies.schedules).any(), np.ones(1, dtype=np.int64)
        schedule = one * (DUALPIPE if hiding else ONE_F_ONE_B)
        return self.costs.layouts.with_columns(
            schedule=schedule,
            virtual_stages=one,
            zero_stage=zero,
            reshard=reshard,
            offload_activations=offload,
        )

    def _once(self, exposure: Exposure) -> list[tuple[Array, Array]]:
        """Seconds once a step of each part: (traffic, update)."""
        device, host = update_seconds(self.problem, self.c)
        return [
            (gather + reduced, exposure.owned(i) * np.minimum(device, host))
            for i, (gather, reduced) in enumerate(exposure.data_once())
        ]


class CoreBounds:
    """Bounds for trunks and cores, whatever the split, the placement and the policy.

    A pass takes its compute and the least of tensor-, expert- and context-parallel traffic that any
    placement leaves; once a step comes the least traffic and update of data parallelism, which
    exposes no less more often (slower_shardings). Shards are those of every body with its expert
    degrees in a row; `first`: where the row of each body begins. `dense`, `expert`: parameters of
    the whole model on each.
    """

    def __init__(
        self, problem: Problem, shards: ShardCosts, c: Coefficients, least: LeastCosts, first: Array
    ) -> None:
        self.problem, self.c, self.shards, self.least = problem, c, shards, least
        self.first = first
        self.passes = self._passes()
        amounts = problem.architecture.trained_part_counts
        self.weights = weighed(amounts, [times.weight for times in shards.times])
        self.dense, self.expert = (
            weighed(amounts, [getattr(size, name) for size in shards.bytes])
            for name in ("dense", "expert")
        )

    def _passes(self) -> Array:
        """F+B of the whole model on each shard, for one micro-batch: of what has no experts once
        for every body."""
        n, parts = len(self.shards.shards), len(self.problem.architecture.kinds) + 2
        sparse = [part for part in range(parts) if self.problem.architecture.part_has_experts(part)]
        if not sparse:
            return self._pass_of(range(parts), np.arange(n))
        dense = self._pass_of([part for part in range(parts) if part not in sparse], self.first)
        return np.repeat(dense, np.diff(self.first, append=n)) + self._pass_of(sparse, np.arange(n))

    def _pass_of(self, parts: Sequence[int], shard: Array) -> Array:
        x = self.shards.shards.take(shard)
        rows = default_layouts(len(x)).with_columns(
            tp=x.tp, ep=x.ep, etp=x.etp, sequence_parallel=x.sequence_parallel
        )
        near = closest_groups(self.problem.cluster, rows)
        links = None
        if (
            self.problem.workload.global_batch > 1
        ):  # with one micro-batch, how much hides depends on the pipeline
            links = partial(self.least.within_layers, near)
        costs = MeshCosts(Tables(self.problem, self.c, self.shards, links), rows, shard, near)
        return Exposure(rows, costs).pass_of(parts)

    def context(self, trunks: Layouts, body: Array) -> Array:
        """What context parallelism adds at least to a pass of the whole model on trunks, whatever
        the expert degrees: `body` of each."""
        if (trunks.cp == 1).all():
            return np.zeros(len(trunks))
        first, code = distinct(body, trunks.cp)
        x, body = trunks.take(first), body[first]
        rows = default_layouts(len(x)).with_columns(
            cp=x.cp, tp=x.tp, sequence_parallel=x.sequence_parallel
        )
        near = closest_groups(self.problem.cluster, rows)
        links = partial(self.least.context, near)
        costs, found = (
            MeshCosts(
                Tables(self.problem, self.c, self.shards, links), rows, self.first[body], near
            ),
            [],
        )
        for kind, (layer, times) in enumerate(
            zip(self.problem.architecture.kinds, self.shards.times, strict=False)
        ):
            most, least = (
                times.of_stretches(self.first, of).take(body) for of in (np.maximum, np.minimum)
            )
            beside = (
                most.attention_forward + most.idle_forward,
                most.attention_backward + most.idle_backward,
            )
            kernels = least.attention_forward, least.attention_backward
            sent = context_sent(self.problem, costs.context_traffic(layer))
            both, _ = exposed_context(costs, kind, sent, beside, kernels)
            found.append(self.problem.architecture.trained_layers_per_kind[kind] * total(both))
        return total(found)[code]

    def time(
        self,
        passes: Array,
        x: Layouts,
        idle: Array,
        window: Array,
        dense: Array,
        expert: Array | float = 0.0,
    ) -> Array:
        """Least step time of trunks or cores with so long a pass, so many idle ones, so many that
        hide what comes once a step, and so many parameters."""
        n, problem, c = self.problem.cluster.num_devices, self.problem, self.c
        m, mean, replicas = (
            x.num_micro_batches(problem.workload.global_batch),
            passes / x.pp,
            x.dp * x.cp,
        )
        of_experts = replicas * x.tp // (x.ep * x.etp)
        of_dense_s, of_expert_s = (
            table.take(np.searchsorted(self.least.degrees, count))
            for table, count in zip(self.least.once, (replicas, of_experts), strict=True)
        )
        traffic = (dense * of_dense_s + expert * of_expert_s) / x.pp
        update = (dense / replicas + expert / of_experts) / x.pp * min(update_seconds(problem, c))
        once = (
            exposed_data(problem, c, traffic, mean * window)
            + update
            + norm_seconds(c, n)
            + c.step_fixed_s
        )
        return np.asarray((mean * (m + idle) + once) * (1 + straggling(problem, c, n)))
