"""A training step: time and memory of a layout, put together.

Three results are reused while the next layout has the same input: those of the *shard* (micro-batch
and the degrees that cut a layer), of the *mesh* (all degrees and their placement), and of the
*regime* (recompute, offload and ZeRO).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.collectives import links_of
from models.cost.facts import CoefficientRecord, ProblemRecords
from models.cost.least_links import LeastLinks, least_links
from models.cost.memory_terms import MEMORY, write_memory_terms
from models.cost.overlap import overlaps_micro_batches
from models.cost.parts import set_shard
from models.cost.pipeline.bubble import moves_weight_gradients
from models.cost.rows import Row, StageTables
from models.cost.shard import same_shard, shard_of
from models.cost.stages import Buffers, expose_parts, fill_stages, reset
from models.cost.time_terms import TIME, write_time_terms
from models.cost.traffic import set_traffic


@compiled
def set_mesh(
    question: ProblemRecords,
    row: Row,
    coefficients: CoefficientRecord,
    least: LeastLinks,
    buffers: Buffers,
) -> None:
    """Fill the workspace with what a layout's mesh decides: kernel times, sizes and traffic of all
    parts. Kernel times and sizes depend on the shard alone (micro-batch, cp, tp, ep, etp) and stay
    where the previous layout had the same one. Where the placement is not decided (below 0), each
    collective gets the least cost that it has in any placement."""
    facts = question.facts[0]
    workspace = buffers.workspace
    shard = shard_of(facts, row)
    if not same_shard(row, buffers.shard[0]):
        set_shard(question, row, shard, coefficients, workspace)
        buffers.shard[0] = row
    if row.placement < 0:
        links = least_links(facts, row, least, workspace.dispatch)
    else:
        links = links_of(
            f=facts,
            layers=question.layers,
            dims=question.dims,
            order=question.order,
            row=row,
            c=coefficients,
            g=buffers.groups,
            dispatch=workspace.dispatch,
        )
    set_traffic(question, row, shard, coefficients, links, workspace)
    workspace.mesh[0].undecided = row.placement < 0
    # No policy: the exposed seconds in `buffers` are those of the mesh before, so that they must
    # not be reused.
    buffers.row[0].policy = -1


class Costs(NamedTuple):
    """Holds the time and the memory of n layouts."""

    time: Array
    """Seconds of a step by term, (n, terms)."""
    memory: Array
    """Bytes by term on the fullest stage, (n, terms)."""
    fullest: Array
    """The number of the fullest stage, (n,)."""
    host: Array
    """Bytes on the host, (n,)."""
    once: Array
    """Seconds of data-parallel traffic exposed once a step, (n,)."""


def empty_costs(n: int) -> Costs:
    """Return arrays for the costs of n layouts, not filled yet."""
    return Costs(
        time=np.empty((n, len(TIME))),
        memory=np.empty((n, len(MEMORY))),
        fullest=np.empty(n, dtype=np.int64),
        host=np.empty(n),
        once=np.empty(n),
    )


@compiled
def predict_rows(
    question: ProblemRecords,
    tables: StageTables,
    rows: Array,
    coefficients: Array,
    least: LeastLinks,
    buffers: Buffers,
    costs: Costs,
) -> None:
    """Write the time and memory of n layouts to `costs`, under one record of coefficients or one
    for each layout. Under one, what depends on the shard, mesh or policies alone is reused where
    the previous layout has the same. Sorted rows (models.cost.rows.fill_keys) are therefore
    faster."""
    # Under coefficients of its own, no layout can reuse a result of the previous one.
    own_coefficients = len(coefficients) > 1
    reset(buffers)
    before = buffers.shard[0]
    for i in range(len(rows)):
        row = rows[i]
        c = coefficients[i if own_coefficients else 0]
        if own_coefficients:
            reset(buffers)
        new_mesh = buffers.shard[0].micro_batch == 0  # `reset` leaves a 0 here
        new_mesh = new_mesh or not (same_shard(row, before) and same_mesh(row, before))
        if new_mesh:
            set_mesh(question, row, c, least, buffers)
        if new_mesh or not same_regime(row, before):
            expose_parts(question, row, c, buffers.workspace)
        fill_stages(question, row, tables, buffers.workspace, buffers.stages)
        costs.once[i] = write_time_terms(question, row, c, tables, buffers, costs.time[i])
        costs.fullest[i], costs.host[i] = write_memory_terms(
            question, row, c, tables, buffers, costs.memory[i]
        )
        before = row


@inlined
def same_mesh(one: Row, other: Row) -> bool:
    """Say whether two layouts have equal pp and data-parallel degrees and equal placements. With
    equal shards they then have one mesh, whose costs are reused."""
    return (
        one.pp == other.pp
        and one.dp_shard == other.dp_shard
        and one.dp_replicate == other.dp_replicate
        and one.placement == other.placement
        and one.filling == other.filling
    )


@inlined
def same_regime(one: Row, other: Row) -> bool:
    """Say whether two layouts on one mesh have equal recompute, offloading and ZeRO, and schedules
    that overlap traffic alike. The exposed seconds of their parts are then equal."""
    # Virtual stages shorten a chunk, of which `recompute_layers` are then a larger share.
    return (
        one.policy == other.policy
        and one.recompute_layers == other.recompute_layers
        and one.offload_activations == other.offload_activations
        and one.zero_stage == other.zero_stage
        and one.reshard == other.reshard
        and (one.recompute_layers == 0 or one.virtual_stages == other.virtual_stages)
        and overlaps_micro_batches(one) == overlaps_micro_batches(other)
        and moves_weight_gradients(one.schedule) == moves_weight_gradients(other.schedule)
    )
