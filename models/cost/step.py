"""A training step: the terms of time and memory of any layout, put together.

The work is done in two passes, both element-wise over arrays: :mod:`models.cost.mesh_costs` for the
distinct meshes among the layouts, :mod:`models.cost.combine` for the layouts themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from models.columns import Array, SharedRows, total
from models.cost.combine import (
    MEMORY_TERMS,
    TIME_TERMS,
    Combiner,
    in_gib,
    layers_of_chunks,
    partitions,
)
from models.cost.mesh_costs import MeshCosts, is_drawn
from models.cost.stage_partition import Stages
from models.spec.flops import AttentionCount, model_flops
from models.spec.layout import SCHEDULES, Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients

__all__ = ["MEMORY_TERMS", "TIME_TERMS", "Predictions", "in_gib", "predict"]

_BLOCK = 1 << 13


@dataclass(frozen=True)
class Predictions:
    """Time and memory of n layouts, each worked out when asked for; terms are arrays of shape (n,),
    on the stage that sets them.

    `time` keys are those of TIME_TERMS, in seconds, and sum to `step_time_s`; `memory` keys those
    of MEMORY_TERMS. `allocated_bytes` is what tensors take, `reserved_bytes` what the framework
    holds for them, as it reports it itself, `needed_bytes` what the device must have; `host_bytes`
    what is offloaded, for a device of the stage with most.
    """

    meshes: MeshCosts
    stages: SharedRows[Stages]

    def take(self, rows: Array) -> Predictions:
        """Those at `rows`; not for coefficients drawn for each layout."""
        return Predictions(self.meshes.take(rows), self.stages.take(rows))

    def with_stack(self, problem: Problem, c: Coefficients) -> Predictions:
        """The same layouts for a problem that differs in its stack, and splits layers over stages
        as this one does; for scalar coefficients."""
        return Predictions(self.meshes.with_stack(problem, c), self.stages)

    @property
    def problem(self) -> Problem:
        return self.meshes.problem

    @property
    def layouts(self) -> Layouts:
        return self.meshes.layouts

    @cached_property
    def time(self) -> dict[str, Array]:
        return self._terms[0] if self._whole is None else self._whole.time()

    @property
    def memory(self) -> dict[str, Array]:
        return self._held[0]

    @property
    def memory_stage(self) -> Array:
        return self._held[1]

    @cached_property
    def host_bytes(self) -> Array:
        return self._terms[2] if self._whole is None else self._whole.host()

    @cached_property
    def _held(self) -> tuple[dict[str, Array], Array]:
        """Memory and the fullest stage."""
        return self._terms[1] if self._whole is None else self._whole.memory()

    @cached_property
    def _whole(self) -> Combiner | None:
        """All of them, where they are few enough for their arrays to stay in cache."""
        meshes, stages = self.meshes, self.stages
        if len(self.layouts) > _BLOCK and not is_drawn(meshes.c):
            return None
        return Combiner(meshes.layouts, meshes, stages.table.take(stages.code))

    @cached_property
    def _terms(self) -> tuple[dict[str, Array], tuple[dict[str, Array], Array], Array]:
        """Time, memory with the fullest stage, and what is on the host, of one block after the
        other."""
        order, place = (
            np.argsort(self._work, kind="stable"),
            np.empty(len(self.layouts), dtype=np.int64),
        )
        place[order] = np.arange(len(order))
        found = [(block.time(), *block.memory(), block.host()) for block in self._blocks(order)]
        times, memories, stages, hosts = zip(*found, strict=True)
        held = _by_name(memories, place), _joined(stages, place)
        return _by_name(times, place), held, _joined(hosts, place)

    @cached_property
    def layers_per_chunk(self) -> list[tuple[int, ...]]:
        return [tuple(map(len, chunks)) for chunks in layers_of_chunks(self.problem, self.layouts)]

    def _blocks(self, order: Array) -> Iterator[Combiner]:
        """Blocks small enough for that, of layouts in this order."""
        meshes, stages = self.meshes, self.stages
        for start in range(0, len(order), _BLOCK):
            rows = order[start : start + _BLOCK]
            some = meshes.take(rows)
            yield Combiner(some.layouts, some, stages.table.take(stages.code[rows]))

    @property
    def _work(self) -> Array:
        """What decides how much there is to do for a layout, as a number: blocks of layouts that
        ask for like work take less."""
        x, stages = self.layouts, self.stages
        work = stages.per_row(stages.table.different)
        for knob, most in (
            (x.schedule, len(SCHEDULES)),
            (x.zero_stage, 4),
            (x.offload_activations, 2),
        ):
            work = work * most + knob
        return work.astype(np.int16)  # which sort in linear time

    @cached_property
    def step_time_s(self) -> Array:
        return total(self.time.values())

    @cached_property
    def needed_bytes(self) -> Array:
        return total(self.memory.values())

    @property
    def reserved_bytes(self) -> Array:
        return self.needed_bytes - self.memory["context_bytes"]

    @property
    def allocated_bytes(self) -> Array:
        return self.reserved_bytes - self.memory["fragmentation_bytes"]

    def fits(self, reserve_bytes: float = 0.0) -> Array:
        """Whether the predicted memory of each layout is within what its device, less the reserve,
        and its host have; shape (n,)."""
        cluster = self.problem.cluster
        return (self.needed_bytes <= cluster.usable_bytes - reserve_bytes) & (
            self.host_bytes <= cluster.host_bytes
        )

    @property
    def chips(self) -> Array:
        return self.layouts.num_devices / self.problem.cluster.chip.devices_per_chip

    @property
    def tokens_per_s(self) -> Array:
        return self.problem.workload.tokens / self.step_time_s

    def tflops_per_chip(self, count: AttentionCount) -> Array:
        if count not in self._tflops_per_chip:
            flops = model_flops(self.problem.architecture, self.problem.workload, count)
            self._tflops_per_chip[count] = flops / self.step_time_s / self.chips / 1e12
        return self._tflops_per_chip[count]

    @cached_property
    def _tflops_per_chip(self) -> dict[AttentionCount, Array]:
        return {}

    def mfu(self, count: AttentionCount, dtype: str | None = None) -> Array:
        """Model FLOPs over the chip's dense peak, by default the peak of the GEMM format."""
        chip = self.problem.cluster.chip
        peak = chip.peak_flops(dtype or self.problem.workload.number_format.gemm) / 1e12
        return self.tflops_per_chip(count) / peak


def predict(
    problem: Problem, layouts: Layouts, c: Coefficients, stages: SharedRows[Stages] | None = None
) -> Predictions:
    """Time and memory of every layout. Layouts are taken as legal (models.layouts.rules); illegal
    ones give numbers, not sense.

    Coefficients are scalars, or arrays of shape (n,) to predict each layout under its own.
    `stages`: of the layouts, where they are known.
    """
    return Predictions(MeshCosts.of(problem, layouts, c), stages or partitions(problem, layouts))


def _by_name(parts: Sequence[dict[str, Array]], place: Array) -> dict[str, Array]:
    return {name: _joined([part[name] for part in parts], place) for name in parts[0]}


def _joined(parts: Sequence[Array], place: Array) -> Array:
    """The values of blocks, one after the other, from which each row takes that at its place."""
    return np.concatenate(parts).take(place)
