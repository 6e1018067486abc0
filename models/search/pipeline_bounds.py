"""Chains: pipelines of so many stages and micro-batches, and what each schedule makes of them
whatever the mesh.

What a step takes at least, and what a stage holds, follows from how layers fall on stages
(models.cost.pipeline); few chains differ among the many meshes of a search.
:mod:`models.search.bounds` and :mod:`models.search.memory_bounds` say what for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from models.columns import Array, SharedRows, distinct, expand_ranges, first_match, take_at, total
from models.cost.combine import partitions
from models.cost.pipeline import (
    FORWARD,
    ends_together,
    in_flight,
    moves_weight_gradients,
    passes_alike,
)
from models.cost.stage_partition import Stages
from models.layouts.space import SCHEDULE_KNOBS
from models.search.critical_path_bounds import Ways, has_ways
from models.spec.layout import ONE_F_ONE_B, Layouts
from models.spec.problem import Problem

_ROWS = 33  # of weight gradients in a pass, for which a chain's idle passes are known
_AT_ONCE = 1 << 20  # stages of chains under schedules


@dataclass(frozen=True)
class Chains:
    """Chains of `pp` stages with `micro_batches` (chains,), under those of some `schedules` (as
    layouts that differ in nothing else) that are `legal` (chains, schedules). Figures of both have
    that shape, of chains alone (chains,). `weights` (parts,): the largest share of a pass of each
    part that is weight gradients."""

    problem: Problem
    schedules: Layouts
    pp: Array
    micro_batches: Array
    legal: Array
    weights: Array

    @cached_property
    def _shares(self) -> Array:
        """Of weight gradients in a pass of the whole model, for which `idle` is known, each no less
        than the last."""
        most = float(self.weights.max()) if moves_weight_gradients(self.schedules.schedule) else 0.0
        return np.linspace(0.0, most, _ROWS if most else 1)

    def row(self, weights: Array, both: Array) -> Array:
        """Where `idle` is for chains in which weight gradients of so many seconds are part of so
        long passes."""
        last = len(self._shares) - 1
        if not last:
            return np.zeros(np.broadcast_shapes(weights.shape, both.shape), dtype=np.int64)
        return np.minimum(np.ceil(weights / both * (last / self._shares[-1])), last).astype(
            np.int64
        )

    @cached_property
    def _passes(self) -> tuple[Array, Array]:
        idle, times = passes(self.schedules, self.pp, self.micro_batches)
        some = self._number >= 0
        m = np.broadcast_to(self.micro_batches[:, None], some.shape)[some]
        idle, times = np.tile(idle.T, (len(self._shares), 1, 1)), times.T.copy()
        idle[:, some], times[some] = (
            np.maximum(self._ways.mean_passes(self._shares, self.weights) - m, 0.0),
            0.0,
        )
        return np.where(self.legal, idle, np.inf), times

    @cached_property
    def _number(self) -> Array:
        """Of those that have ways (models.search.critical_path_bounds), from 0 on; -1 of others,
        (chains, schedules)."""
        pp, m = self.pp[:, None], self.micro_batches[:, None]
        some = self.legal & has_ways(self.schedules.schedule, pp, m)
        number = np.full(some.shape, -1)
        number[some] = np.arange(int(some.sum()))
        return number

    @cached_property
    def _ways(self) -> Ways:
        table, code = self._partitions
        chain, schedule = np.nonzero(self._number >= 0)
        own = code[chain, schedule]
        first, of = distinct(own)
        some = own[first]
        chains = self.pp[chain], self.micro_batches[chain]
        return Ways.of(
            self.schedules.schedule[schedule], table.take(some), self._costs, of, *chains
        )

    @property
    def idle(self) -> Array:
        """Mean passes that a stage idles, at least, (rows, chains, schedules): see `row`."""
        return self._passes[0]

    @cached_property
    def least_idle(self) -> Array:
        """Under any schedule, (rows, chains)."""
        return np.asarray(self.idle.min(axis=2))

    @cached_property
    def alike(self) -> Array:
        """Of how many passes a step is about as long under the schedule with the fewest, (chains,):
        what each of them takes longer hides more of what comes once a step, no more than that."""
        chunks = np.where(ends_together(self.schedules.schedule), self.schedules.virtual_stages, 1)
        every = passes_alike(self.pp[:, None], chunks, self.micro_batches[:, None])
        return np.asarray(np.where(self.legal, every, np.inf).min(axis=1))

    @cached_property
    def window(self) -> Array:
        """How many mean passes hide, at most, what comes once a step, where a pipeline takes as
        long as `least_idle` says, (rows, chains)."""
        passes = (1 + FORWARD) * (self.micro_batches + self.least_idle) / self.alike
        return np.where(self.pp > 1, np.maximum(passes, 1.0), 1.0)

    @cached_property
    def in_flight_by_schedule(self) -> Array:
        """Micro-batches in flight: the harmonic mean over stages."""
        return in_flight_by_schedule(self.schedules, self.pp, self.micro_batches, self.legal)

    @cached_property
    def least_in_flight(self) -> Array:
        return np.asarray(self.in_flight_by_schedule.min(axis=1))

    @cached_property
    def _partitions(self) -> tuple[Stages, Array]:
        """Different stages, and which of them each chain has under each schedule."""
        code = np.zeros(self.legal.shape, dtype=np.int64)
        chain, schedule = np.nonzero(self.legal)
        found = partitions(
            self.problem, self.schedules.take(schedule).with_columns(pp=self.pp[chain])
        )
        code[chain, schedule] = found.code
        return found.table, code

    def stages(self, chain: Array, schedule: Array) -> Stages:
        table, code = self._partitions
        return table.take(code[chain, schedule])

    def shared(self, layouts: Layouts) -> SharedRows[Stages]:
        """Of layouts on some of these chains, under these schedules."""
        table, code = self._partitions
        m = layouts.num_micro_batches(self.problem.workload.global_batch)
        chain = first_match((self.pp, self.micro_batches), (layouts.pp, m))
        knobs = ([getattr(of, name) for name in SCHEDULE_KNOBS] for of in (self.schedules, layouts))
        return SharedRows(table, code[chain, first_match(*knobs)])

    @cached_property
    def _whole(self) -> Array:
        """Of every part, what the model has."""
        return np.array(self.problem.architecture.trained_part_counts)

    @cached_property
    def _costs(self) -> Array:
        """What every part costs, about."""
        weights, head = self.problem.forward_flops
        return np.array([*weights, 0.0, head])

    @cached_property
    def _excess(self) -> Array:
        """What the heaviest stage has beyond the mean of the stages, (parts, chains, schedules)."""
        table, code = self._partitions
        heaviest = np.tensordot(self._costs, table.amounts, axes=1).argmax(axis=0)
        most = np.take_along_axis(table.amounts, heaviest[None, None], axis=1)[:, 0]
        return np.asarray(most[:, code] - (self._whole[:, None] / self.pp)[:, :, None])

    def beyond(
        self,
        chain: Array,
        schedule: Array,
        row: Array,
        both: Array,
        weights: Array,
        once: Array,
        hides: Array | float,
    ) -> Array:
        """Seconds that a step takes at least beyond what `idle` in its row bounds, by how layers
        are split; of parts with `both` passes, weight gradients and work `once` a step, (parts, n),
        a pass of which `hides` a share."""
        excess, times = (
            take_at(self._excess, chain, schedule),
            take_at(self._passes[1], chain, schedule),
        )
        own = np.maximum(total(excess * both), 0.0)
        apart = np.minimum(total(excess * once), 0.0) - hides * own
        together = ends_together(self.schedules.schedule)[schedule]
        apart = np.where(together, 0.0, apart)
        found = np.maximum(times * own + apart, 0.0)
        if len(some := np.flatnonzero(take_at(self._number, chain, schedule) >= 0)):
            longest = self._by_ways(
                chain[some], schedule[some], row[some], both[:, some], weights[:, some]
            )
            found[some] = np.maximum(found[some], longest + apart[some])
        return np.asarray(np.where(together, found * (1 - hides / self.alike[chain]), found))

    def _by_ways(
        self, chain: Array, schedule: Array, row: Array, both: Array, weights: Array
    ) -> Array:
        """What the longest way takes beyond what `idle` counts."""
        counted = self.micro_batches[chain] + self.idle[row, chain, schedule]
        mean = total(self._whole[:, None] * both) / self.pp[chain]
        return (
            self._ways.seconds(take_at(self._number, chain, schedule), both, weights)
            - counted * mean
        )


def passes(schedules: Layouts, pp: Array, m: Array) -> tuple[Array, Array]:
    """(schedules, n) each, of schedules without ways of their own
    (models.search.critical_path_bounds): mean passes that every schedule idles at least, and how
    many times a step takes longer by what a pass of one stage takes beyond the mean, however layers
    are split. models.search.bounds has the proofs."""
    one_way = (schedules.schedule == ONE_F_ONE_B)[:, None]
    idle, times = np.broadcast_arrays(pp - 1.0, m - 1.0)
    many = m > pp
    return np.where(one_way & ~many, 0.0, idle), np.where(
        one_way, np.where(many, m - 1 - pp, m), times
    )


def in_flight_by_schedule(schedules: Layouts, pp: Array, m: Array, legal: Array) -> Array:
    """F of those schedules on chains of pp stages and m micro-batches that are legal, (chains,
    schedules): pp / Σ_i 1/f_i; infinite of the others."""
    chain, schedule = np.nonzero(legal)
    _, kind = distinct(schedules.schedule, schedules.virtual_stages)
    first, code = distinct(chain, kind[schedule])
    chain, unlike, mean = chain[first], schedules.take(schedule[first]), np.empty(len(first))
    for some in np.array_split(np.arange(len(first)), 1 + int(pp[chain].sum()) // _AT_ONCE):
        stages = pp[chain[some]]
        of, stage = expand_ranges(np.zeros_like(stages), stages)
        own, x = chain[some[of]], unlike.take(some[of])
        held = in_flight(x.schedule, stage, pp[own], x.virtual_stages, m[own])
        mean[some] = stages / np.add.reduceat(1 / held, np.cumsum(stages) - stages)
    found = np.full(legal.shape, np.inf)
    found[legal] = mean[code]
    return found
