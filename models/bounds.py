"""Lower bounds of step time and memory, admissible for every policy on a mesh.

Two levels: the best over all policies (one number a mesh), and per *variant*, a choice of sharding, recompute and
offload without schedule and partition.

Why they hold. A step takes at least m·max(F+B) over stages, and max >= mean, the mean being the whole model's F+B
over pp; a pipeline without zero-bubble schedules also idles for at least (pp-1)·mean/v (substitute max >= mean in
the closed forms of models.pipeline: their slope in max is m - 1/v > 0). F+B is least with every all-to-all and
tensor-parallel transfer hidden as far as the stack can. Recompute adds at least its own time minus what it hides:
of x seconds added to a window that hides traffic at most data_overlap·x come back. Bytes on the fullest stage are
at least the mean over stages. For activations, stage i with l_i layers and f_i micro-batches in flight holds
f_i·l_i, and max f_i·l_i >= L / Σ 1/f_i for any partition of L layers (equality when l_i ~ 1/f_i).
The only stage of a pipeline of one holds the logits too, and with recompute the layer being worked on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.array import Array, total
from models.hardware import GIB
from models.layout import DUALPIPE, FULL, SCHEDULES, SELECTIVE, ZERO_BUBBLE, ZERO_BUBBLE_V, Layouts
from models.mesh_costs import KindCosts, MeshCosts
from models.problem import Problem
from models.profile import Coefficients

_BUBBLE_FREE = (ZERO_BUBBLE, ZERO_BUBBLE_V, DUALPIPE)  # their bubble is bounded by nothing here
_VARIANT_FIELDS = ("zero_stage", "reshard", "recompute", "offload_activations", "offload_optimizer")


@dataclass(frozen=True, slots=True)
class Variants:
    """Distinct (zero_stage, reshard, recompute, offloads) of some policies; `of_policy` maps each policy to its row."""

    rows: Array
    of_policy: Array

    @classmethod
    def of(cls, policies: Layouts) -> Variants:
        table = np.stack([getattr(policies, name).astype(np.int64) for name in _VARIANT_FIELDS], axis=1)
        rows, of_policy = np.unique(table, axis=0, return_inverse=True)
        return cls(rows, of_policy.ravel())

    def __len__(self) -> int:
        return len(self.rows)


class Bounds:
    """Bounds for m meshes."""

    def __init__(self, problem: Problem, costs: MeshCosts, c: Coefficients) -> None:
        self.problem, self.costs, self.c, self.stack = problem, costs, c, problem.stack
        x = costs.layouts
        self.pp, self.m = x.pp, x.num_micro_batches(problem.workload.global_batch)
        self.runs = [(costs.kinds[kind], count) for kind, count in problem.architecture.runs]
        node = min(8, problem.cluster.scale_up_domain)
        self.jitter = 1 + c.jitter * np.log2(np.maximum(x.num_devices / node, 1.0))

    def least_time(self) -> Array:
        return np.asarray((self._mean_pass() * (self.m + self._idle()) + self.c.step_fixed_s) * self.jitter)

    def least_memory(self) -> Array:
        zero = max(self.stack.zero_stages)
        inputs = 0.0 if "activations" in self.stack.offload else self._kept(FULL)
        return self._reserved(zero, 3 in self.stack.zero_stages, "optimizer" in self.stack.offload, inputs)

    def per_variant(self, variants: Variants) -> tuple[Array, Array, Array]:
        """(time, memory, idle), each of shape (m, variants).

        `idle` is one mean pass: what a policy adds to `time` for each micro-batch more its pipeline idles than the
        least of any schedule (see `extra_idle`).
        """
        base = self._mean_pass()
        kept = [self._kept(policy) * self._flying() for policy in range(3)]
        single = self.pp == 1  # the only stage has the head, and whatever layer is worked on
        working = np.max([k.bytes.kept[0] for k in self.costs.kinds], axis=0) * self.c.activation_memory
        alone = np.where(single, self.costs.logits * self.c.logit_memory, 0.0)
        alone_again = alone + np.where(single, working, 0.0)
        again = [0.0, self._again(SELECTIVE), self._again(FULL)]
        data = {(z, r): self._data(z, r) for z, r in {(row[0], bool(row[1])) for row in variants.rows}}
        time, memory, idle = [], [], []
        for zero, reshard, recompute, offload_activations, offload_optimizer in variants.rows:
            each, once = data[zero, bool(reshard)]
            mean = base + np.maximum(again[recompute] * (1 - self.c.data_overlap), again[recompute] - each) + each
            time.append((mean * (self.m + self._idle()) + once + self.c.step_fixed_s) * self.jitter)
            idle.append(mean * self.jitter)
            activations = (0.0 if offload_activations else kept[recompute]) + (alone_again if recompute else alone)
            memory.append(self._reserved(zero, zero == 3 and bool(reshard), bool(offload_optimizer), activations))
        return np.stack(time, axis=1), np.stack(memory, axis=1), np.stack(idle, axis=1)

    def extra_idle(self, rows: Array, schedule: Array, virtual_stages: Array) -> Array:
        """Mean passes that these policies idle beyond the least of any schedule, on the meshes at `rows`."""
        at_least = np.where(np.isin(schedule, _BUBBLE_FREE), 0.0, (self.pp[rows] - 1) / virtual_stages)
        least = self._idle()
        return np.maximum(at_least - least[rows], 0.0)

    def _mean_pass(self) -> Array:
        """Least F+B of a stage on average, for one micro-batch."""
        hidden = 1 - self.c.expert_overlap if self.stack.overlap_expert else 1.0
        exposed = np.ones(len(self.pp))
        if self.stack.overlap_tensor:
            exposed = np.where(self.costs.layouts.sequence_parallel, 1 - self.c.tensor_overlap, 1.0)

        def layer(k: KindCosts) -> Array:
            return k.time.forward + k.time.backward + 2 * exposed * k.tensor + 2 * hidden * k.expert

        ends = total(e.time.forward + e.time.backward for e in (self.costs.embedding, self.costs.head))
        return (total(count * layer(k) for k, count in self.runs) + ends) / self.pp

    def _again(self, recompute: int) -> Array:
        name = "full" if recompute == FULL else "selective"
        return total(count * getattr(k.time, name) for k, count in self.runs) / self.pp

    def _idle(self) -> Array:
        """Bubble in units of the mean pass."""
        if {SCHEDULES[code] for code in _BUBBLE_FREE} & set(self.stack.schedules):
            return np.zeros(len(self.pp))
        return (self.pp - 1) / self.stack.max_virtual_stages

    def _data(self, zero: int, reshard: bool) -> tuple[Array, Array]:
        """(per micro-batch and stage, per step) exposed data-parallel traffic; the latter without pipeline only."""
        parts = [(k, count) for k, count in self.runs] + [(self.costs.embedding, 1), (self.costs.head, 1)]
        once = zero < 2
        each = np.zeros(len(self.pp))
        if not once:
            for k, count in parts:
                forward = k.gather if zero == 3 else 0.0
                backward = k.scatter + (k.gather if zero == 3 and reshard else 0.0)
                each = each + count * (
                    self._exposed(forward, k.time.forward) + self._exposed(backward, k.time.backward)
                )
            if not reshard:
                each = np.where(self.pp > 1, 0.0, each)  # kept gathered: once a step
        if not once or not self.stack.overlap_data:
            return each / self.pp, np.zeros(len(self.pp))
        gathered = total(count * k.gather for k, count in parts) if zero == 1 else 0.0
        scattered = total(count * (k.reduce if zero == 0 else k.scatter) for k, count in parts)
        both = self._mean_pass() * self.pp * 3  # no window is longer: a pass with full recompute and all traffic
        exposed = self._exposed(gathered, both) + self._exposed(scattered, both)
        return each, np.where(self.pp == 1, exposed, 0.0)

    def _exposed(self, traffic: Array | float, window: Array) -> Array:
        if not self.stack.overlap_data:
            return traffic + np.zeros_like(window)
        hidden = np.minimum(traffic, self.c.data_overlap * window)
        return traffic - hidden + self.c.interference * hidden

    def _kept(self, recompute: int) -> Array:
        """Activations of all layers for one micro-batch, over the stages."""
        return total(count * k.bytes.kept[recompute] for k, count in self.runs) / self.pp * self.c.activation_memory

    def _flying(self) -> Array:
        """Times the mean over stages: at least pp / Σ 1/f with f_i = min(pp - i, m) in flight on stage i.

        No schedule has fewer in flight than 1F1B (models.pipeline.in_flight).
        """
        depth = np.minimum(self.pp, self.m)
        harmonic = _HARMONIC[np.minimum(depth, len(_HARMONIC) - 1)] + (self.pp - depth) / depth
        return self.pp / harmonic

    def _reserved(self, zero: int, dropped: bool, offload_optimizer: bool, activations: Array | float) -> Array:
        x, problem, costs = self.costs.layouts, self.problem, self.costs
        ends = (costs.embedding.bytes, costs.head.bytes)
        dense = (total(n * k.bytes.dense for k, n in self.runs) + total(e.dense for e in ends)) / x.pp
        expert = (total(n * k.bytes.expert for k, n in self.runs) + total(e.expert for e in ends)) / x.pp
        shards = dense / costs.dense_shards + expert / costs.expert_shards
        states = (problem.master_bytes + problem.workload.optimizer_state.moment_bytes) * (
            shards if zero >= 1 else dense + expert
        )
        in_use = 0.0 if dropped else problem.parameter_bytes * (dense + expert)
        gradients = problem.gradient_bytes * (shards if zero >= 2 else dense + expert)
        allocated = (0.0 if offload_optimizer else states) + in_use + gradients + activations
        return np.asarray(allocated * (1 + self.c.fragmentation) + self.c.context_gib * GIB)


_HARMONIC = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, 4097))])
