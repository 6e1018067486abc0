"""The compiled bubble and micro-batches in flight against those over arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from models.columns import Array
from models.cost import pipeline as by_arrays
from models.cost.makespan import Chunks, Rounds
from models.cost.overlap import weighed
from models.cost.stage_partition import Order, Stages, Steady, partition
from models.kernel import pipeline
from models.spec.layout import DUALPIPE, INTERLEAVED, SCHEDULES, ZERO_BUBBLE_V
from tests.models.kernel.tables_of_arrays import tables_of_arrays

PIPELINES = 200
"""Of every model, each with a partition, seconds and micro-batches of its own."""


@dataclass(frozen=True)
class Pipelines:
    """Random ones under one schedule, of one random model."""

    schedule: int
    pp: Array
    virtual_stages: Array
    micro_batches: Array
    stages: Stages
    part_counts: Array
    """(parts,)"""
    forward: Array
    """Seconds of each part, (parts, pipelines); as are the next two."""
    backward: Array
    weight: Array

    @classmethod
    def of_a_model(cls, schedule: int, seed: int) -> Pipelines:
        """Partitions of a random model, whose parts take about what they are taken to cost, or
        anything."""
        rng = np.random.default_rng([schedule, seed])
        runs = _random_runs(rng)
        kinds = 1 + max(kind for kind, _ in runs)
        layers = sum(count for _, count in runs)
        virtual_stages = _virtual_stages(schedule, rng)
        pp = _stages(schedule, layers // virtual_stages, rng)
        costs = rng.uniform(0.5, 3.0, kinds)
        stages = partition(
            runs,
            costs,
            rng.uniform(0.0, 4.0),
            pp,
            virtual_stages,
            rng.random(PIPELINES) < 0.5,
            np.full(PIPELINES, schedule == DUALPIPE),
            np.full(PIPELINES, schedule == ZERO_BUBBLE_V),
            bool(by_arrays.holds_equal_micro_batches(np.array(schedule))),
        )
        last, beside_head = runs[-1][0], int(rng.integers(0, 2))
        counts = np.zeros(kinds + 2)
        for kind, count in (*runs, (last, beside_head), (kinds, 1), (kinds + 1, 1)):
            counts[kind] += count
        shape = kinds + 2, PIPELINES
        near = np.append(costs, [0.1, 2.0])[:, None] * rng.uniform(0.8, 1.25, shape)
        forward = near if rng.random() < 0.5 else rng.uniform(0.0, 3.0, shape)
        stages = stages.beside_head(last, beside_head)
        return cls.with_times(schedule, pp, virtual_stages, stages, counts, forward, rng)

    @classmethod
    def of_any_stages(cls, schedule: int, seed: int) -> Pipelines:
        """Stretches of up to 4 kinds of stages that have anything."""
        rng = np.random.default_rng([schedule, seed])
        pp = _stages(schedule, np.full(PIPELINES, 24), rng)
        place, most, parts = np.arange(pp.max()), 4, 3
        stretch = (place > rng.integers(0, pp, (3, PIPELINES))[:, :, None]).sum(axis=0)
        kind = np.take_along_axis(rng.integers(0, most, (PIPELINES, most)), stretch, axis=1)
        rounds = rng.uniform(0.0, 1.0, (2, parts, most, PIPELINES))
        rest = rng.uniform(0.0, 1.0, (parts, most, PIPELINES)) * rng.integers(0, 3, PIPELINES)
        nowhere = np.zeros(PIPELINES)
        stages = Stages(
            amounts=rounds.sum(axis=0) + rest,
            index=np.repeat(np.arange(most)[:, None], PIPELINES, axis=1),
            order=Order.of(kind, pp),
            rounds=rounds,
            steady=Steady(np.zeros((3, parts, PIPELINES)), nowhere, nowhere),
            code=np.arange(PIPELINES),
        )
        forward = rng.uniform(0.0, 3.0, (parts, PIPELINES))
        counts = np.full(parts, 100.0)
        virtual_stages = _virtual_stages(schedule, rng)
        return cls.with_times(schedule, pp, virtual_stages, stages, counts, forward, rng)

    @classmethod
    def with_times(
        cls,
        schedule: int,
        pp: Array,
        virtual_stages: Array,
        stages: Stages,
        part_counts: Array,
        forward: Array,
        rng: np.random.Generator,
    ) -> Pipelines:
        """Of parts with these seconds of forward, for few micro-batches and for many."""
        few = rng.integers(1, 3 * pp + 1)
        micro_batches = np.where(rng.random(PIPELINES) < 0.5, few, rng.integers(1, 601, PIPELINES))
        if schedule == INTERLEAVED:
            micro_batches = np.maximum(micro_batches, pp)
        backward = forward * 2 if rng.random() < 0.5 else rng.uniform(0.0, 3.0, forward.shape)
        return cls(
            schedule=schedule,
            pp=pp,
            virtual_stages=virtual_stages,
            micro_batches=micro_batches,
            stages=stages,
            part_counts=part_counts,
            forward=forward,
            backward=backward,
            weight=backward * rng.uniform(0.0, 1.0, forward.shape),
        )

    def by_arrays(self) -> Array:
        """Idle seconds of each stage that differs, (s, pipelines)."""
        forward, backward, weight = self.of_stages
        times = by_arrays.StageTimes(
            forward=forward,
            backward=backward,
            weight=weight,
            total_forward=self.part_counts @ self.forward,
            total=self.part_counts @ self.both,
            total_weight=self.part_counts @ self.weight,
            order=self.stages.order,
            partition=self.stages.code,
            rounds=self._rounds(),
        )
        shape = self.pp, self.virtual_stages, self.micro_batches
        return by_arrays.bubble(np.full(PIPELINES, self.schedule), *shape, times)

    def _rounds(self) -> Rounds | None:
        """As models.cost.combine makes them."""
        if self.schedule != INTERLEAVED:
            return None
        first, last = self.stages.of_rounds(np.arange(PIPELINES))
        group = by_arrays.micro_batch_group(self.pp, self.micro_batches)
        chunk = self.part_counts[:, None] / (self.pp * self.virtual_stages)
        out, back, down = self.stages.steady.with_groups(self.stages.code, group, chunk)
        forward, backward = (
            Chunks(whole, weighed(first, list(of)), weighed(last, list(of)))
            for whole, of in zip(self.of_stages, (self.forward, self.backward), strict=False)
        )
        return Rounds(
            forward=forward,
            backward=backward,
            steady=(out * self.forward + back * self.backward).sum(axis=0),
            ahead=(down * self.both).sum(axis=0),
            last=self.stages.steady.last,
        )

    @property
    def both(self) -> Array:
        return self.forward + self.backward

    @property
    def of_stages(self) -> list[Array]:
        """Forward, backward and weight gradients of each stage that differs, (s, pipelines)."""
        parts = (self.forward, self.backward, self.weight)
        return [weighed(self.stages.amounts, list(of)) for of in parts]

    def times(self, i: int) -> pipeline.StageTimes:
        """Of one of the pipelines."""
        forward, backward, weight = (np.ascontiguousarray(of[:, i]) for of in self.of_stages)
        return pipeline.StageTimes(
            forward=forward,
            backward=backward,
            weight=weight,
            all_forward=float(self.part_counts @ self.forward[:, i]),
            all_both=float(self.part_counts @ self.both[:, i]),
            all_weight=float(self.part_counts @ self.weight[:, i]),
            part_counts=self.part_counts,
            part_forward=np.ascontiguousarray(self.forward[:, i]),
            part_both=np.ascontiguousarray(self.both[:, i]),
        )


def _random_runs(rng: np.random.Generator) -> list[tuple[int, int]]:
    """Of 1 to 3 kinds of layers that follow each other, or take turns."""
    kinds = int(rng.integers(1, 4))
    if rng.random() < 0.5:
        return [(kind, int(rng.integers(2, 30))) for kind in range(kinds)]
    turns = [(kind, int(rng.integers(1, 4))) for kind in range(kinds)]
    return turns * int(rng.integers(4, 16))


def _virtual_stages(schedule: int, rng: np.random.Generator) -> Array:
    """As many as the schedule may have."""
    if schedule == INTERLEAVED:
        return rng.integers(2, 5, PIPELINES)
    return np.full(PIPELINES, 2 if schedule == ZERO_BUBBLE_V else 1)


def _stages(schedule: int, most: Array, rng: np.random.Generator) -> Array:
    """As many as the schedule may have, 24 at most."""
    pp = rng.integers(1, np.minimum(24, most) + 1)
    if schedule == DUALPIPE:
        return np.maximum(pp // 2 * 2, 2)
    return np.maximum(pp, 2) if schedule == INTERLEAVED else pp


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", [Pipelines.of_a_model, Pipelines.of_any_stages])
@pytest.mark.parametrize("schedule", range(len(SCHEDULES)))
def test_stages_are_idle_as_long_as_by_arrays(
    schedule: int, kind: Callable[[int, int], Pipelines], seed: int
) -> None:
    of = kind(schedule, seed)
    expected = of.by_arrays()
    tables = tables_of_arrays(of.stages)
    scratch = pipeline.scratch_for(tables)
    idle = np.empty(len(expected))
    for i in range(PIPELINES):
        pp, v, m = int(of.pp[i]), int(of.virtual_stages[i]), int(of.micro_batches[i])
        times, count = of.times(i), tables.different[i]
        pipeline.bubble(schedule, pp, v, m, i, tables, times, idle, scratch)
        length = (m * (times.forward + times.backward) + expected[:, i]).max()
        assert idle[:count] == pytest.approx(expected[:count, i], rel=0, abs=1e-9 * length)


@pytest.mark.parametrize("schedule", range(len(SCHEDULES)))
def test_stages_hold_as_many_micro_batches_as_by_arrays(schedule: int) -> None:
    rng = np.random.default_rng(schedule)
    pp, v, m = rng.integers(1, 65, 500), rng.integers(1, 9, 500), rng.integers(1, 601, 500)
    stage = rng.integers(0, pp)
    expected = by_arrays.in_flight(np.full(500, schedule), stage, pp, v, m)
    rows = zip(stage.tolist(), pp.tolist(), v.tolist(), m.tolist(), strict=True)
    assert [pipeline.in_flight(schedule, *row) for row in rows] == pytest.approx(expected.tolist())


@pytest.mark.parametrize("schedule", range(len(SCHEDULES)))
def test_schedules_have_the_properties_that_they_have_by_arrays(schedule: int) -> None:
    one = np.array([schedule])
    assert pipeline.ends_together(schedule) == by_arrays.ends_together(one)[0]
    equal = by_arrays.holds_equal_micro_batches(one)[0]
    assert pipeline.holds_equal_micro_batches(schedule) == equal
    moves = by_arrays.moves_weight_gradients(one)
    assert pipeline.moves_weight_gradients(schedule) == moves
    assert pipeline.passes_alike(8, 2, 20) == by_arrays.passes_alike(*map(np.array, (8, 2, 20)))
