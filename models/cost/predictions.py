"""Time and memory of many layouts of one problem.

Compiled functions read layouts as *rows* of numbers, and a problem as a *question*
(models.cost.facts). A *partition* is a split of the model's layers over pipeline stages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled
from models.cost.facts import ProblemRecords, coefficient_records
from models.cost.fit import NO_SPREAD, Margin, fits
from models.cost.least_links import NO_LINKS
from models.cost.memory_terms import MEMORY
from models.cost.pipeline.stage_partition import split_over_stages
from models.cost.problem_records import policy_numbers, question
from models.cost.rows import ROW, StageTables, fill_keys, rows_of, take_rows
from models.cost.stages import buffers_for
from models.cost.step import Costs, empty_costs, predict_rows
from models.cost.time_terms import TIME
from models.package_data import read_json
from models.spec.flops import AttentionCount, model_flops
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients

TERMS = read_json("models", "data/terms.json")
"""The meaning of each term of a step time and of memory, and the words for it in a sentence."""
TIME_TERMS: dict[str, str] = {name: term["meaning"] for name, term in TERMS["time"].items()}
MEMORY_TERMS: dict[str, str] = {name: term["meaning"] for name, term in TERMS["memory"].items()}
_BLOCK_LAYOUTS = 1 << 13
"""The number of layouts that are predicted together, in an order in which they have much in common.
Their costs stay in the processor's cache until they are put in their places: 262,144 layouts in
random order took 76 ms in blocks of this size and 109 ms without (docs/lab/search-speed.md)."""


def in_gib(term: str) -> str:
    """Return the name of a memory term when it is given in GiB."""
    return term.replace("_bytes", "_gib")


class LayoutRows(NamedTuple):
    """Holds layouts of a problem as compiled functions read them, with the partitions of their
    layers over stages."""

    question: ProblemRecords
    records: Array
    """Records of models.cost.rows.Row, (n,)."""
    policies: Array
    """The recompute policies that the records number."""
    tables: StageTables
    begin: Array
    """The layer at which each chunk of a partition begins, (partitions, most chunks + 1)."""

    @classmethod
    def of(cls, problem: Problem, layouts: Layouts) -> LayoutRows:
        """Return the rows of legal layouts, with the problem's records for the recompute policies
        that occur in them."""
        begin, tables, partition_numbers = split_over_stages(problem, layouts)
        policies = policy_numbers(layouts.recompute)
        records = rows_of(layouts, policies, partition_numbers)
        return cls(question(problem, policies), records, policies, tables, begin)

    def for_problem(self, problem: Problem) -> LayoutRows:
        """Return the same layouts and partitions with the records of another problem, which must
        split layers over stages alike."""
        return self._replace(question=question(problem, self.policies))

    def take(self, rows: Array | slice) -> LayoutRows:
        return self._replace(records=self.records[rows])

    def layers_per_chunk(self, row: int) -> tuple[int, ...]:
        """Return the number of layers of each pipeline chunk of the layout at position `row`, in
        the order of the model."""
        layout = self.records[row]
        chunks = int(layout["pp"]) * int(layout["virtual_stages"])
        begin = self.begin[layout["partition"], : chunks + 1].tolist()
        return tuple(end - start for start, end in pairwise(begin))


@dataclass(frozen=True)
class StepCosts:
    """Holds time and memory of n steps, each of a layout under some coefficients. Terms are arrays
    of shape (n,), on the stage that sets them.

    `time` has the keys of TIME_TERMS, in seconds, which sum to `step_time_s`. `memory` has the keys
    of MEMORY_TERMS. `allocated_bytes` is what tensors take, `reserved_bytes` what the framework
    holds for them and reports itself, and `needed_bytes` what the device must have.
    """

    coefficients: Array
    """Records of models.cost.facts.COEFFICIENTS, (n,), or (1,) where all steps have the same."""
    time_terms: Array
    """Seconds by term, (n, terms)."""
    memory_terms: Array
    """Bytes by term on the fullest stage, (n, terms)."""
    memory_stage: Array
    """The number of the fullest stage, (n,)."""
    host_bytes: Array
    """Bytes offloaded to the host by a device of the stage that offloads most, (n,)."""
    once_s: Array
    """Exposed seconds of data-parallel traffic that comes once a step, (n,)."""

    def __len__(self) -> int:
        return len(self.time_terms)

    @cached_property
    def time(self) -> dict[str, Array]:
        return dict(zip(TIME, self.time_terms.T, strict=True))

    @cached_property
    def memory(self) -> dict[str, Array]:
        return dict(zip(MEMORY, self.memory_terms.T, strict=True))

    @cached_property
    def step_time_s(self) -> Array:
        return sums_of(self.time_terms)

    @cached_property
    def needed_bytes(self) -> Array:
        return sums_of(self.memory_terms)

    @cached_property
    def reserved_bytes(self) -> Array:
        return self.needed_bytes - self.memory["context_bytes"]

    @cached_property
    def allocated_bytes(self) -> Array:
        return self.reserved_bytes - self.memory["fragmentation_bytes"]


@dataclass(frozen=True)
class Predictions(StepCosts):
    """Time and memory of n layouts of one problem."""

    problem: Problem
    layouts: Layouts
    rows: LayoutRows

    def take(self, positions: Array) -> Predictions:
        """Return the predictions at these positions, or where a mask is true. All predictions must
        share one record of coefficients, since `coefficients` is kept as it is."""
        return replace(
            self,
            time_terms=self.time_terms[positions],
            memory_terms=self.memory_terms[positions],
            memory_stage=self.memory_stage[positions],
            host_bytes=self.host_bytes[positions],
            once_s=self.once_s[positions],
            layouts=self.layouts.take(positions),
            rows=self.rows.take(positions),
        )

    def with_stack(self, problem: Problem, coefficients: Coefficients) -> Predictions:
        """Return predictions of the same layouts for a problem that differs from this one in its
        stack, such as in a setting of it. The stack must split layers over stages alike, since
        partitions are reused."""
        return predict(problem, self.layouts, coefficients, self.rows.for_problem(problem))

    def fits(self, reserve_bytes: float = 0.0) -> Array:
        """Return for each layout whether its predicted memory fits, (n,): on a device of which
        `reserve_bytes` stay free, and on its host."""
        cluster = self.problem.cluster
        margin = Margin(
            capacity=cluster.usable_bytes - reserve_bytes,
            usable=cluster.usable_bytes,
            host=cluster.host_bytes,
            deviations=0.0,  # No safety factor: the prediction itself has to fit.
            spread=NO_SPREAD,
        )
        return fits(margin, self.memory_terms, self.host_bytes)

    @cached_property
    def chips(self) -> Array:
        return self.layouts.num_devices / self.problem.cluster.chip.devices_per_chip

    @property
    def tokens_per_s(self) -> Array:
        return self.problem.workload.tokens / self.step_time_s

    def tflops_per_chip(self, count: AttentionCount) -> Array:
        """Return model TFLOP/s of each chip, (n,). `count` says which of attention's FLOPs count.
        Results are kept, by `count`."""
        if count not in self._tflops_per_chip:
            flops = model_flops(self.problem.architecture, self.problem.workload, count)
            self._tflops_per_chip[count] = flops / self.step_time_s / self.chips / 1e12
        return self._tflops_per_chip[count]

    @cached_property
    def _tflops_per_chip(self) -> dict[AttentionCount, Array]:
        return {}

    def mfu(self, count: AttentionCount) -> Array:
        """Return model FLOPs utilisation as a share of the chip's dense peak in the GEMM format,
        (n,). `count` says which of attention's FLOPs count."""
        chip = self.problem.cluster.chip
        peak = chip.peak_flops(self.problem.workload.number_format.gemm) / 1e12
        return self.tflops_per_chip(count) / peak


def predict(
    problem: Problem, layouts: Layouts, coefficients: Coefficients, rows: LayoutRows | None = None
) -> Predictions:
    """Return time and memory of every layout. Layouts must be legal (models.layouts.rules), which
    is not tested: numbers of illegal ones mean nothing.

    Coefficients are scalars, or arrays of shape (n,) to predict each layout under its own. A caller
    that has the LayoutRows of these layouts may pass them as `rows`.
    """
    rows = rows or LayoutRows.of(problem, layouts)
    costs = step_costs(rows, coefficient_records(coefficients))
    return Predictions(**vars(costs), problem=problem, layouts=layouts, rows=rows)


def step_costs(rows: LayoutRows, coefficients: Array) -> StepCosts:
    """Return time and memory of n layouts under one record of coefficients, or one for each layout.
    Under one, layouts are sorted so that neighbours share work (`fill_keys`), predicted block by
    block, and put back in their own order."""
    records = rows.records
    costs = empty_costs(len(records))
    buffers = buffers_for(rows.question, rows.tables)

    def predict_block(records: Array, costs: Costs) -> None:
        predict_rows(
            question=rows.question,
            tables=rows.tables,
            rows=records,
            coefficients=coefficients,
            least=NO_LINKS,  # All layouts have placements: no bounds over placements are read.
            buffers=buffers,
            costs=costs,
        )

    # Nothing can be shared by a single layout, or under coefficients of each layout's own.
    if len(records) == 1 or len(coefficients) > 1:
        predict_block(records, costs)
        return StepCosts(coefficients, *costs)
    keys = np.empty(len(records), dtype=np.int64)
    fill_keys(records, keys)
    order = np.argsort(keys)
    for start in range(0, len(order), _BLOCK_LAYOUTS):
        positions = order[start : start + _BLOCK_LAYOUTS]
        block = np.empty(len(positions), dtype=ROW)
        take_rows(records, positions, block)
        block_costs = empty_costs(len(positions))
        predict_block(block, block_costs)
        _put(block_costs, positions, costs)
    return StepCosts(coefficients, *costs)


def sums_of(terms: Array) -> Array:
    """Return the sum of each row of `terms` (n, terms), (n,), added from the first to the last as
    the search does. np.sum adds in another order, and so rounds differently."""
    sums = np.empty(len(terms))
    _sum_terms(terms, sums)
    return sums


@compiled
def _sum_terms(terms: Array, sums: Array) -> None:
    """Write the sum of each row of `terms` (n, terms) to `sums` (n,)."""
    for i in range(len(terms)):
        sums[i] = 0.0
        for term in range(terms.shape[1]):
            sums[i] += terms[i, term]


@compiled
def _put(block: Costs, positions: Array, costs: Costs) -> None:
    """Write the k rows of `block` to the rows of `costs` at these positions (k,)."""
    for i in range(len(positions)):
        position = positions[i]
        for term in range(len(TIME)):
            costs.time[position, term] = block.time[i, term]
        for term in range(len(MEMORY)):
            costs.memory[position, term] = block.memory[i, term]
        costs.fullest[position] = block.fullest[i]
        costs.host[position] = block.host[i]
        costs.once[position] = block.once[i]


def step_costs_under_each(rows: LayoutRows, coefficients: Array) -> StepCosts:
    """Return time and memory of n layouts under each of m records of coefficients, (n · m,). Entry
    i · m + j is of layout i under record j. The records are such as random draws, whose times show
    how uncertain a prediction is."""
    n, m = len(rows.records), len(coefficients)
    layout, record = np.divmod(np.arange(n * m), m)
    return step_costs(rows.take(layout), coefficients[record])
