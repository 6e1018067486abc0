"""A training step: the terms of time and memory of any layout, put together.

The work is done in two passes, both element-wise over arrays: :mod:`models.mesh_costs` for the distinct meshes among
the layouts, :mod:`models.combine` for the layouts themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from models.array import Array, Shared, total
from models.combine import MEMORY_TERMS, TIME_TERMS, Combiner, in_gib, layers_of_chunks, partitions
from models.flops import AttentionCount, model_flops
from models.layout import Layouts
from models.mesh_costs import MeshCosts, is_drawn
from models.partition import Stages
from models.problem import Problem
from models.profile import Coefficients

__all__ = ["MEMORY_TERMS", "TIME_TERMS", "Predictions", "in_gib", "predict"]

_BLOCK = 1 << 13


@dataclass(frozen=True)
class Predictions:
    """Time and memory of n layouts, each worked out when asked for; terms are arrays of shape (n,), on the stage that
    sets them.

    `time` keys are those of TIME_TERMS, in seconds, and sum to `step_time_s`; `memory` keys those of MEMORY_TERMS.
    `allocated_bytes` is what tensors take, `reserved_bytes` what the framework holds for them, as it reports it itself,
    `needed_bytes` what the device must have; `host_bytes` what is offloaded, for a device of the stage with most.
    """

    problem: Problem
    layouts: Layouts
    meshes: MeshCosts

    def take(self, rows: Array) -> Predictions:
        """Those at `rows`; not for coefficients drawn for each layout."""
        return Predictions(self.problem, self.layouts.take(rows), self.meshes.take(rows))

    @property
    def time(self) -> dict[str, Array]:
        return self._terms[0]

    @property
    def memory(self) -> dict[str, Array]:
        return self._terms[1]

    @property
    def memory_stage(self) -> Array:
        return self._terms[2]

    @cached_property
    def _terms(self) -> tuple[dict[str, Array], dict[str, Array], Array, Array]:
        """Time, memory and the fullest stage; and what is on the host."""
        parts = [(combiner.time(), *combiner.memory(), combiner.host()) for combiner in self._blocks]
        times, memories, stages, hosts = zip(*parts, strict=True)
        return _end_to_end(times), _end_to_end(memories), np.concatenate(stages), np.concatenate(hosts)

    @cached_property
    def _stages(self) -> Shared[Stages]:
        return partitions(self.problem, self.layouts)

    @cached_property
    def layers_per_chunk(self) -> list[tuple[int, ...]]:
        return [tuple(map(len, chunks)) for chunks in layers_of_chunks(self.problem, self.layouts)]

    @property
    def _blocks(self) -> Iterator[Combiner]:
        """Blocks small enough for their arrays to stay in cache."""
        layouts, meshes, stages = self.layouts, self.meshes, self._stages
        if len(layouts) <= _BLOCK or is_drawn(meshes.c):
            yield Combiner(layouts, meshes, stages.table.take(stages.code))
            return
        for start in range(0, len(layouts), _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, len(layouts)))
            yield Combiner(layouts.take(rows), meshes.take(rows), stages.table.take(stages.code[rows]))

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

    @property
    def host_bytes(self) -> Array:
        return self._terms[3]

    def fits(self, reserve_bytes: float = 0.0) -> Array:
        cluster = self.problem.cluster
        return (self.needed_bytes <= cluster.usable_bytes - reserve_bytes) & (self.host_bytes <= cluster.host_bytes)

    @property
    def chips(self) -> Array:
        return self.layouts.num_devices / self.problem.cluster.chip.devices_per_chip

    @property
    def tokens_per_s(self) -> Array:
        return self.problem.workload.tokens / self.step_time_s

    def tflops_per_chip(self, count: AttentionCount) -> Array:
        flops = model_flops(self.problem.architecture, self.problem.workload, count)
        return flops / self.step_time_s / self.chips / 1e12

    def mfu(self, count: AttentionCount, dtype: str | None = None) -> Array:
        """Model FLOPs over the chip's dense peak, by default the peak of the GEMM format."""
        chip = self.problem.cluster.chip
        peak = chip.peak_flops(dtype or self.problem.workload.number_format.gemm) / 1e12
        return self.tflops_per_chip(count) / peak


def predict(problem: Problem, layouts: Layouts, c: Coefficients) -> Predictions:
    """Time and memory of every layout. Layouts are taken as legal (models.rules); illegal ones give numbers, not sense.

    Coefficients are scalars, or arrays of shape (n,) to predict each layout under its own.
    """
    return Predictions(problem, layouts, MeshCosts.of(problem, layouts, c))


def _end_to_end(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
