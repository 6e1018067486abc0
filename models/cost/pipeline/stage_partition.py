"""The partitions of layouts: the layers and ends of the model that each stage of a pipeline has.

The *ends* are the embedding and the head. Under interleaving, a stage has one chunk of layers in
each *round*. Stages that have equal layers and ends are stored once, as one *distinct* stage, and a
*stretch* is a number of equal stages in a row.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from models.columns import Array, distinct
from models.compilation.compiled import compiled
from models.cost.pipeline.layer_split import (
    SHAPE,
    Layers,
    Shape,
    goes_in_rounds,
    is_v_shaped,
    layers_of,
    split_layers,
)
from models.cost.pipeline.round_paths import ChunkScratch, set_paths
from models.cost.rows import StageTables
from models.spec.layout import DUALPIPE, Layouts
from models.spec.problem import Problem


def distinct_partitions(problem: Problem, layouts: Layouts) -> tuple[StageTables, Array]:
    """Return the distinct partitions that layouts have, and for each layout the row of its
    partition, (layouts,)."""
    _, tables, partition_of_layout = split_over_stages(problem, layouts)
    return tables, partition_of_layout


def split_over_stages(problem: Problem, layouts: Layouts) -> tuple[Array, StageTables, Array]:
    """Return the first layer of each chunk of the distinct partitions that layouts have, (u, most
    chunks + 1); these u partitions; and for each layout the row of its partition, (layouts,)."""
    shapes, shape_of_layout = _distinct_shapes(layouts)
    return *partition(layers_of(problem), shapes), shape_of_layout


def layers_of_chunks(problem: Problem, layouts: Layouts) -> list[list[list[int]]]:
    """Return, for each layout and each of its chunks, the kind of every layer in the chunk, as
    timelines and launch commands need it. Chunks and layers are in the order of the model."""
    shapes, shape_of_layout = _distinct_shapes(layouts)
    layers = layers_of(problem)
    kinds = layers.kind.tolist()
    begin, _ = partition(layers, shapes)
    chunk_count = shapes.pp * shapes.virtual_stages

    def kinds_of_chunks(shape: int) -> list[list[int]]:
        bounds = begin[shape, : chunk_count[shape] + 1].tolist()
        return [kinds[first:end] for first, end in pairwise(bounds)]

    return [kinds_of_chunks(shape) for shape in shape_of_layout]


def _distinct_shapes(layouts: Layouts) -> tuple[Layouts, Array]:
    """Return one layout for each distinct split of layers that the layouts have, and for each
    layout the position of the one that splits layers alike, (layouts,)."""
    if len(layouts) == 1:
        return layouts, np.zeros(1, dtype=np.int64)
    # No other field of a layout has a say in the split of its layers.
    columns = [layouts.pp, layouts.virtual_stages, layouts.schedule, layouts.balanced]
    # Splits that layouts state (layers_per_chunk) are told apart by a number for each.
    if layouts.states_layers.any():
        columns.append(np.unique(layouts.layers_per_chunk, return_inverse=True)[1].ravel())
    first, shape_of_layout = distinct(*columns)
    return layouts.take(first), shape_of_layout


def partition(layers: Layers, shapes: Layouts) -> tuple[Array, StageTables]:
    """Return the first layer of each chunk of u layouts, (u, most chunks + 1), and the stages that
    these chunks make, a row of StageTables for each layout. Entries beyond the last chunk are the
    number of layers."""
    u = len(shapes)
    parts = len(layers.costs)
    chunks = int((shapes.pp * shapes.virtual_stages).max(initial=1))
    stages = int(shapes.pp.max(initial=1))
    rounds = int(shapes.virtual_stages.max(initial=1))
    records = np.empty(u, dtype=SHAPE)
    for name in ("pp", "virtual_stages", "schedule", "balanced"):
        records[name] = getattr(shapes, name)
    records["stated"] = shapes.states_layers
    begin = np.empty((u, chunks + 1), dtype=np.int64)
    scratch = ChunkScratch(
        held=np.empty((chunks, parts)),
        cost=np.empty(chunks),
        # The search for the costliest path walks the rounds twice (round_paths).
        best=np.empty((2 * rounds + 1, stages)),
        previous=np.empty((2 * rounds, stages), dtype=np.int64),
        paths=np.empty((2, rounds), dtype=np.int64),
    )
    tables = StageTables(
        distinct_count=np.zeros(u, dtype=np.int64),
        amounts=np.zeros((u, stages, parts)),
        first_alike=np.zeros((u, stages), dtype=np.int64),
        distinct=np.zeros((u, stages), dtype=np.int64),
        stretch_ends=np.zeros((u, stages), dtype=np.int64),
        stretch_end_count=np.zeros(u, dtype=np.int64),
        first=np.zeros((u, stages, parts)),
        last=np.zeros((u, stages, parts)),
        path_out=np.zeros((u, parts)),
        path_back=np.zeros((u, parts)),
        path_ahead=np.zeros((u, parts)),
        path_moves=np.zeros(u),
        path_last=np.zeros(u),
    )
    _partition_all(layers, records, shapes.stated_layers, begin, scratch, tables)
    return begin, tables


@compiled
def _partition_all(
    layers: Layers,
    shapes: Array,
    stated: Array,
    begin: Array,
    scratch: ChunkScratch,
    tables: StageTables,
) -> None:
    """Write the partition of each of u records of Shape into a row of `tables`, which must be all
    0, and the first layer of each of its chunks into `begin`. `stated` (u, chunks) has the layers
    of each chunk where the layout states them."""
    for i in range(len(shapes)):
        split_layers(layers, shapes[i], stated[i], begin[i])
        _set_chunks(layers, shapes[i], begin[i], scratch.held)
        _set_stages(shapes[i], scratch.held, tables, i)
        # Where kinds of layers alternate, a stage's rounds differ, and the longest path may move.
        if layers.take_turns and goes_in_rounds(shapes[i]):
            set_paths(layers, shapes[i], scratch, tables, i)


@compiled
def _set_chunks(layers: Layers, shape: Shape, begin: Array, held: Array) -> None:
    """Write into `held` (chunks, parts) the number of layers of each kind in each chunk, and a 1
    for the embedding in the first chunk and for the head in the last. Layers of multi-token
    prediction are in the last chunk and count as its last kind of layer."""
    chunks = shape.pp * shape.virtual_stages
    held[:chunks] = 0.0
    for chunk in range(chunks):
        for layer in range(begin[chunk], begin[chunk + 1]):
            held[chunk, layers.kind[layer]] += 1
    held[0, -2] = held[chunks - 1, -1] = 1.0
    held[chunks - 1, layers.kind[-1]] += layers.mtp_layers


@compiled
def _set_stages(shape: Shape, held: Array, tables: StageTables, i: int) -> None:
    """Write to row i of `tables` the distinct stages of a partition, in the order in which they
    first come; for each stage the number of the distinct stage that it equals; and the stages where
    a stretch of equal ones begins or ends. `held` (chunks, parts) has what each chunk holds."""
    pp, distinct = shape.pp, tables.distinct[i]
    for stage in range(pp):
        # The stage is written behind the distinct ones. It is overwritten by the next stage if it
        # equals one of them.
        count = tables.distinct_count[i]
        _set_stage(shape, held, stage, tables, i, count)
        for like in range(count + 1):
            if _are_alike(tables, i, like, count):
                distinct[stage] = like
                break
        if distinct[stage] == count:
            tables.first_alike[i, count] = stage
            tables.distinct_count[i] += 1
    for stage in range(pp):
        begins = stage == 0 or distinct[stage - 1] != distinct[stage]
        if begins or stage == pp - 1 or distinct[stage + 1] != distinct[stage]:
            tables.stretch_ends[i, tables.stretch_end_count[i]] = stage
            tables.stretch_end_count[i] += 1


@compiled
def _set_stage(
    shape: Shape, held: Array, stage: int, tables: StageTables, i: int, place: int
) -> None:
    """Write to row i of `tables`, at `place` among the distinct stages, how much of each part
    (layers of a kind, or an end of the model) a stage has, in all and in the first and last round.
    `held` (chunks, parts) has what each chunk holds. Two DualPipe stages share the work of their
    chunks, so that half of it counts for each."""
    chunks = shape.pp * shape.virtual_stages
    for part in range(held.shape[1]):
        amount = 0.0
        if is_v_shaped(shape):
            # The chunk on the way down, and the one on the way back up.
            amount = held[stage, part] + held[chunks - 1 - stage, part]
        else:
            for chunk in range(stage, chunks, shape.pp):
                amount += held[chunk, part]
        tables.amounts[i, place, part] = amount / 2 if shape.schedule == DUALPIPE else amount
        if goes_in_rounds(shape):
            tables.first[i, place, part] = held[stage, part]
            tables.last[i, place, part] = held[chunks - shape.pp + stage, part]


@compiled
def _are_alike(tables: StageTables, i: int, one: int, other: int) -> bool:
    """Say whether two distinct stages of row i of `tables`, at places `one` and `other`, hold equal
    amounts of every part, in all and in the first and last round."""
    for amounts in (tables.amounts[i], tables.first[i], tables.last[i]):
        for part in range(amounts.shape[1]):
            if amounts[one, part] != amounts[other, part]:
                return False
    return True
