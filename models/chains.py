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
from models.few import Ways
from models.layout import DUALPIPE, ONE_F_ONE_B, ZERO_BUBBLE, ZERO_BUBBLE_V, Layouts
from models.partition import Stages
from models.pipeline import ends_together, in_flight
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
        number, ways = self._few
        few = number > 0
        m = np.broadcast_to(self.micro_batches[:, None], few.shape)[few]
        idle, times = idle.T.copy(), times.T.copy()
        idle[few], times[few] = np.maximum(ways.mean_passes - m, 0.0), 0.0
        return idle, times

    @cached_property
    def _few(self) -> tuple[Array, Ways]:
        """Those with few micro-batches (models.few): the number of each plus one, or 0, (chains, schedules)."""
        x = self.schedules
        passed = (x.schedule == ONE_F_ONE_B) | (x.schedule == ZERO_BUBBLE)
        few = self.legal & passed & ((self.pp > 1) & (self.micro_batches <= self.pp))[:, None]
        number, (chain, schedule) = np.zeros(few.shape, dtype=np.int64), np.nonzero(few)
        number[few] = 1 + np.arange(len(chain))
        pp, m, moved = self.pp[chain], self.micro_batches[chain], x.schedule[schedule] == ZERO_BUBBLE
        table, code = self._partitions
        some, of = distinct(code[few])
        some = code[few][some]
        return number, Ways.of(table.take(some), self._heaviest[some], of, pp, m, moved, self.weights)

    @cached_property
    def _ways_beyond(self) -> Array:
        """With few micro-batches, what each way takes beyond what `idle` counts, (ways, parts, 1 + them); the first has
        none."""
        number, ways = self._few
        m = np.broadcast_to(self.micro_batches[:, None], number.shape)
        counted = (m + self._passes[0])[number > 0]
        beyond = ways.longer_than(counted)
        return np.concatenate([np.zeros((*beyond.shape[:2], 1)), beyond], axis=2)

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
    def _whole(self) -> Array:
        """Of every part, what the model has."""
        return np.array([*self.problem.architecture.layers_trained, 1.0, 1.0])

    @cached_property
    def _heaviest(self) -> Array:
        """Which of its stages has most, of every partition."""
        weights, head = self.problem.forward_flops
        return np.tensordot([*weights, 0.0, head], self._partitions[0].amounts, axes=1).argmax(axis=0)

    @cached_property
    def _excess(self) -> Array:
        """What the heaviest stage has beyond the mean of the stages, (parts, chains, schedules)."""
        table, code = self._partitions
        most = np.take_along_axis(table.amounts, self._heaviest[None, None], axis=1)[:, 0]
        return np.asarray(most[:, code] - (self._whole[:, None] / self.pp)[:, :, None])

    def beyond(
        self, chain: Array, schedule: Array, both: Array, once: Array, hides: Array | float, sends: Array
    ) -> Array:
        """Seconds that a step takes at least beyond what the mean of the stages bounds, by how layers are split; of
        parts with `both` passes and work `once` a step, (parts, n), a pass of which `hides` a share. A stage that does
        not wait for the others to do that may hide all `sends` that the mean does not."""
        excess, times = picked(self._excess, chain, schedule), picked(self._passes[1], chain, schedule)
        own = np.maximum(total(excess * both), 0.0)
        apart = (times - hides) * own + np.minimum(total(excess * once), 0.0) - sends
        found = np.where(ends_together(self.schedules.schedule)[schedule], times * own, np.maximum(apart, 0.0))
        few = picked(self._few[0], chain, schedule)
        if few.any():
            for way in self._ways_beyond:
                found = np.maximum(found, total(way.take(few, axis=1) * both))
        return found


def passes(schedules: Layouts, pp: Array, m: Array, weights: float) -> tuple[Array, Array]:
    """(schedules, n) each: mean passes that every schedule idles at least, and how many times a step takes longer by
    what a pass of one stage takes beyond the mean, however layers are split. `weights`: weight gradients' largest share
    of a pass. models.bounds has the proofs."""
    v, w, others = schedules.virtual_stages[:, None], weights, 1 - weights
    zero = np.where(m > pp, (pp - 1) * (others - w), 0.0)
    begun, late = (np.minimum(m, pp) - 1) / 2, np.maximum(m - pp, 0)
    zero_v = np.maximum((pp - 1) / 4 * others, (pp - 1 - begun) * others - late * w)
    dual = np.maximum((1 + (pp - 2) / (2 * np.maximum(pp - 1, 1))) * others - w, 0.0)
    of_schedule = {
        ONE_F_ONE_B: (np.where(m > pp, pp - 1, 0), np.where(m > pp, m - 1 - pp, m)),
        ZERO_BUBBLE: (np.maximum(zero, 0.0), np.where(zero > 0, m - pp - others + w, m)),
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
