"""Chains: pipelines of so many stages and micro-batches, and what each schedule makes of them whatever the mesh.

What a step takes at least, and what a stage holds, follows from how layers fall on stages (models.pipeline); few chains
differ among the many meshes of a search. :mod:`models.bounds` and :mod:`models.memory_bounds` say what for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from models.array import Array, distinct, picked, ragged, total
from models.combine import partitions
from models.layout import DUALPIPE, ONE_F_ONE_B, ZERO_BUBBLE, ZERO_BUBBLE_V, Layouts
from models.partition import Stages
from models.pipeline import in_flight
from models.problem import Problem

_AT_ONCE = 1 << 20  # stages of chains under schedules


@dataclass(frozen=True)
class Chains:
    """Chains of `pp` stages with `micro_batches` (chains,), under those of some `schedules` (as layouts that differ in
    nothing else) that are `legal` (chains, schedules). Figures of both have that shape, of chains alone (chains,).
    `weights`: the largest share of a pass that is weight gradients."""

    problem: Problem
    schedules: Layouts
    pp: Array
    micro_batches: Array
    legal: Array
    weights: float

    @cached_property
    def _passes(self) -> tuple[Array, Array]:
        idle, times = passes(self.schedules, self.pp, self.micro_batches, self.weights)
        return idle.T, times.T

    @cached_property
    def idle(self) -> Array:
        """Mean passes that a stage idles, at least."""
        return np.where(self.legal, self._passes[0], np.inf)

    @cached_property
    def least_idle(self) -> Array:
        return np.asarray(self.idle.min(axis=1))

    @cached_property
    def flying(self) -> Array:
        """Micro-batches in flight: the harmonic mean over stages."""
        return flying(self.schedules, self.pp, self.micro_batches, self.legal)

    @cached_property
    def least_flying(self) -> Array:
        return np.asarray(self.flying.min(axis=1))

    @cached_property
    def flying_first(self) -> Array:
        """Micro-batches in flight on the first stage, which has most."""
        x, m = self.schedules, self.micro_batches[:, None]
        return np.where(self.legal, in_flight(x.schedule, np.zeros(1), self.pp[:, None], x.virtual_stages, m), 0.0)

    @cached_property
    def most_flying(self) -> Array:
        return np.asarray(self.flying_first.max(axis=1))

    @cached_property
    def _partitions(self) -> tuple[Stages, Array]:
        """Different stages, and which of them each chain has under each schedule."""
        code = np.zeros(self.legal.shape, dtype=np.int64)
        chain, schedule = np.nonzero(self.legal)
        found = partitions(self.problem, self.schedules.take(schedule).having(pp=self.pp[chain]))
        code[chain, schedule] = found.code
        return found.table, code

    def stages(self, chain: Array, schedule: Array) -> Stages:
        table, code = self._partitions
        return table.take(code[chain, schedule])

    @cached_property
    def longest(self) -> Array:
        """Most layers on any stage."""
        table, code = self._partitions
        layers = table.amounts[: len(self.problem.architecture.kinds)].sum(axis=0).max(axis=0)
        return np.asarray(np.where(self.legal, layers[code], 0.0).max(axis=1))

    @cached_property
    def _excess(self) -> Array:
        """What the heaviest stage has beyond the mean of the stages, (parts, chains, schedules)."""
        table, code = self._partitions
        weights, head = self.problem.forward_flops
        heaviest = np.tensordot([*weights, 0.0, head], table.amounts, axes=1).argmax(axis=0)
        most = np.take_along_axis(table.amounts, heaviest[None, None], axis=1)[:, 0]
        whole = np.array([*self.problem.architecture.layers_trained, 1.0, 1.0])
        return np.asarray(most[:, code] - (whole[:, None] / self.pp)[:, :, None])

    def beyond(
        self, chain: Array, schedule: Array, both: Array, once: Array, hides: Array | float, sends: Array
    ) -> Array:
        """Seconds that a step takes at least beyond what the mean of the stages bounds, by its heaviest stage; of parts
        with `both` passes and work `once` a step, (parts, n), a pass of which `hides` a share. It may hide all `sends`
        that the mean does not."""
        excess = picked(self._excess, chain, schedule)
        longer = (picked(self._passes[1], chain, schedule) - hides) * np.maximum(total(excess * both), 0.0)
        return np.maximum(longer + np.minimum(total(excess * once), 0.0) - sends, 0.0)


def passes(schedules: Layouts, pp: Array, m: Array, weights: float) -> tuple[Array, Array]:
    """(schedules, n) each: mean passes that every schedule idles at least, and how many times a step takes longer by
    what a pass of one stage takes beyond the mean. `weights`: weight gradients' largest share of a pass.
    models.bounds has the proofs."""
    v, w, others = schedules.virtual_stages[:, None], weights, 1 - weights
    few = pp + pp * np.maximum(m - 1, 0) / np.maximum(2 * pp - m + 1, 1)  # passes in all of no more than pp
    of_mean, of_heaviest = (pp + m - 1) * others + w, (pp - m + 1) * others + (pp - 1) * w
    last = m * (of_mean + of_heaviest) / (m + of_heaviest)
    zero = np.where(m > pp, (pp - 1) * (others - w), np.maximum(few * others, last) - m)
    beside_zero = np.where(m > pp, m - pp - others + w, 0)
    begun, late = (np.minimum(m, pp) - 1) / 2, np.maximum(m - pp, 0)
    zero_v = np.maximum((pp - 1) / 4 * others, (pp - 1 - begun) * others - late * w)
    dual = np.maximum((1 + (pp - 2) / (2 * np.maximum(pp - 1, 1))) * others - w, 0.0)
    of_schedule = {
        ONE_F_ONE_B: (np.where(m > pp, pp - 1, few - m), np.where(m > pp, m - 1 - pp, 0)),
        ZERO_BUBBLE: (np.maximum(zero, 0.0), np.where(zero > 0, beside_zero, m)),
        ZERO_BUBBLE_V: (zero_v, m - zero_v / np.maximum(pp - 1, 1)),
        DUALPIPE: ((pp / 2 - 1) * dual, m - dual),
    }
    idle, times = np.broadcast_arrays((pp - 1) / v, m - 1 / v)
    for code, (least, longer) in of_schedule.items():
        mine = (schedules.schedule == code)[:, None]
        idle, times = np.where(mine, least, idle), np.where(mine, longer, times)
    return idle, times


def flying(schedules: Layouts, pp: Array, m: Array, legal: Array) -> Array:
    """F of those schedules on chains of pp stages and m micro-batches that are legal, (chains, schedules): pp / Σ_i
    1/f_i; infinite of the others."""
    chain, schedule = np.nonzero(legal)
    _, kind = distinct(schedules.schedule, schedules.virtual_stages)
    first, code = distinct(chain, kind[schedule])
    chain, unlike, mean = chain[first], schedules.take(schedule[first]), np.empty(len(first))
    for some in np.array_split(np.arange(len(first)), 1 + int(pp[chain].sum()) // _AT_ONCE):
        stages = pp[chain[some]]
        of, stage = ragged(np.zeros_like(stages), stages)
        own, x = chain[some[of]], unlike.take(some[of])
        held = in_flight(x.schedule, stage, pp[own], x.virtual_stages, m[own])
        mean[some] = stages / np.add.reduceat(1 / held, np.cumsum(stages) - stages)
    found = np.full(legal.shape, np.inf)
    found[legal] = mean[code]
    return found
