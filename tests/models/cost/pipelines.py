"""Small models on pipelines, of which every part may take any time: in closed form, and operation
by operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from models.columns import Array
from models.cost.pipeline.bubble import StageTimes, bubble, scratch_for
from models.cost.pipeline.layer_split import Layers, layers_of
from models.cost.pipeline.schedules import run_schedule
from models.cost.pipeline.stage_partition import partition
from models.cost.rows import StageTables, rows_of
from models.spec.layout import Layout, Layouts
from models.spec.recompute import NONE

Runs = Sequence[tuple[int, int]]
"""Of layers of one kind that follow each other: the kind, and how many."""
COSTS = [1.0, 2.5]
"""FLOPs of a layer of either kind, where a model has no others."""
Seconds = tuple[float, float, float]
"""Forward, input gradients, weight gradients."""


def model(
    runs: Runs,
    head: float,
    costs: Sequence[float] = COSTS,
    *,
    mtp_layers: int = 0,
    encoder: float = 0.0,
    by_threshold: bool = False,
) -> Layers:
    """The layers of a model with these runs, where a layer of each kind costs so many FLOPs."""
    problem: Any = SimpleNamespace(
        architecture=SimpleNamespace(layer_runs=tuple(runs), mtp_layers=mtp_layers),
        forward_flops=(tuple(costs), float(head)),
        encoder_flops=float(encoder),
        stack=SimpleNamespace(splits_by_threshold=by_threshold),
    )
    return layers_of(problem)


@dataclass(frozen=True)
class Pipeline:
    """A layout of a model, and the seconds of its parts: of a layer of each kind, of the embedding
    and of the head, (parts,)."""

    layout: Layout
    layers: Layers
    forward: Array
    to_input: Array
    weight: Array

    @classmethod
    def of_stages(cls, layout: Layout, stages: Sequence[Seconds], kinds: Sequence[int]) -> Pipeline:
        """Of stages that are of one kind or another, and take the seconds of that kind. All chunks
        of a stage take as long; where chunks from both ends face each other, `kinds` are those of
        the stages that the first half of the chunks is on."""
        v = layout.virtual_stages
        if layout.schedule in ("zero_bubble_v", "dualpipe"):
            of_chunks = [*kinds, *kinds[::-1]]
        else:
            of_chunks = [*kinds] * v
        forward, to_input, weight = np.array([*stages, (0, 0, 0), (0, 0, 0)], dtype=float).T / v
        layers = model([(kind, 1) for kind in of_chunks], 0.0, forward[:-2].tolist())
        return cls(layout, layers, forward, to_input, weight)

    def length(self, micro_batches: int) -> float:
        """Seconds until the last stage has done its passes, in closed form."""
        return float((micro_batches * self.work + self.idle(micro_batches)).max())

    def idle(self, micro_batches: int) -> Array:
        """Seconds that each stage is idle, in closed form, (pp,)."""
        idle = np.full(len(self.tables.distinct[0]), np.nan)
        [row] = rows_of(Layouts.of([self.layout]), np.array([NONE]), np.zeros(1, dtype=np.int64))
        scratch = scratch_for(self.tables)
        bubble(row, micro_batches, self.tables, self._times, idle, scratch)
        return idle[self._kind]

    @property
    def work(self) -> Array:
        """Seconds of both passes of a micro-batch on each stage, (pp,)."""
        return (self._times.forward + self._times.backward)[self._kind]

    @property
    def _kind(self) -> Array:
        return self.tables.distinct[0, : self.layout.pp]

    @property
    def tables(self) -> StageTables:
        return self._partition[1]

    @cached_property
    def _partition(self) -> tuple[Array, StageTables]:
        return partition(self.layers, Layouts.of([self.layout]))

    @cached_property
    def _times(self) -> StageTimes:
        amounts = self.tables.amounts[0]
        backward = self.to_input + self.weight
        counts = self.held.sum(axis=0)
        return StageTimes(
            forward=amounts @ self.forward,
            backward=amounts @ backward,
            weight=amounts @ self.weight,
            all_forward=float(counts @ self.forward),
            all_both=float(counts @ (self.forward + backward)),
            all_weight=float(counts @ self.weight),
            part_counts=counts,
            part_forward=self.forward,
            part_both=self.forward + backward,
        )

    @cached_property
    def held(self) -> Array:
        """What parts each chunk has, (chunks, parts): layers of each kind as they follow each
        other, the embedding in the first and the head in the last."""
        begin = self._partition[0][0]
        held = np.zeros((len(begin) - 1, len(self.forward)))
        for chunk in range(len(held)):
            np.add.at(held[chunk], self.layers.kind[begin[chunk] : begin[chunk + 1]], 1)
        held[-1, self.layers.kind[-1]] += self.layers.mtp_layers
        held[0, -2] = held[-1, -1] = 1
        return held

    @property
    def chunks(self) -> dict[str, Array]:
        """Seconds of "F", "B" and "W" on each chunk."""
        seconds = {"F": self.forward, "B": self.to_input + self.weight, "W": self.weight}
        return {kind: self.held @ of_parts for kind, of_parts in seconds.items()}

    def run(self, micro_batches: int) -> float:
        """Seconds that the published order of the schedule takes, operation by operation."""
        spans = run_schedule(self.layout, micro_batches, self.chunks)
        return max(end for _, end in spans.values())
