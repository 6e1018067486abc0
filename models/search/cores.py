"""Cores: trunks (pp, tp, cp and micro-batch) crossed with the degrees of experts.

A *trunk* is a layout of which only these and sequence parallelism are decided, and a *core* one of
which ep and etp are decided too. All layouts that *grow* from either, by deciding the rest, take no
less than its bound (models.layouts.space has all levels).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.rows import Row
from models.cost.stages import reset
from models.cost.step import set_mesh
from models.search.compiled_tables import CompiledTables
from models.search.limits import Limits
from models.search.mesh_policies import bound_memory, bound_schedules, set_variant

# Crossings, pairs of a trunk and expert degrees, that are looked at in one call. This limits the
# buffers for their cores, most of which are dropped.
_CROSSINGS_PER_CALL = 1 << 16


class CoreCrossing(NamedTuple):
    """Holds trunks, and the pairs of degrees that experts may have."""

    rows: Array
    """Records of Row with data parallelism not yet divided into shards and replicas, (trunks,)."""
    chain: Array
    """The number of a trunk's chain (pp with a number of micro-batches), (trunks,)."""
    points: Array
    """Points of complexity of a trunk, (trunks,)."""
    placed_meshes: Array
    """The number of meshes in all placements that grow from a trunk with one pair of expert
    degrees, (trunks,)."""
    ep: Array
    """The expert-parallel degree of a pair, (pairs,)."""
    etp: Array
    """The degree of tensor parallelism within experts of a pair, (pairs,)."""
    pair_points: Array
    """Points of complexity of a pair, (pairs,)."""
    devices: int
    etp_is_tp: bool
    """True where the stack shards experts over tensor parallelism like the rest of the model, so
    that etp must be tp."""
    row: Array
    """A record of Row in which a core is worked on, (1,)."""


class Cores(NamedTuple):
    """Holds cores, in arrays of one length."""

    trunk: Array
    """The number of the trunk of a core."""
    pair: Array
    """The number of the pair of expert degrees of a core."""
    bound: Array
    """The least seconds of a step, or bytes of memory, of any layout that grows from a core."""
    points: Array
    """Points of complexity of a core."""


def cross_all(
    tables: CompiledTables,
    crossing: CoreCrossing,
    trunks: Array,
    limits: Limits,
    counts: Array,
    *,
    of_memory: bool = False,
) -> Cores:
    """Return the cores made of the trunks at these positions and every pair of expert degrees (ep,
    etp), if their bound is within `limits`, the most that a layout in the answer may take. The
    bound is of seconds, or of bytes if `of_memory`. `counts`, a record of SearchCounts (1,), is
    updated."""
    # In ascending order, neighbours have one shard (tp, cp and micro-batch), whose kernel times are
    # then worked out once.
    trunks = np.sort(trunks)
    count = len(trunks) * len(crossing.ep)
    blocks = [_empty_cores(0)]  # so that there is one to join where there are no trunks
    for begin in range(0, count, _CROSSINGS_PER_CALL):
        cores = _empty_cores(min(count - begin, _CROSSINGS_PER_CALL))
        crossed = cross_block(
            tables=tables,
            crossing=crossing,
            trunks=trunks,
            begin=begin,
            of_memory=of_memory,
            limits=limits,
            counts=counts,
            cores=cores,
        )
        blocks.append(Cores(*(values[:crossed].copy() for values in cores)))
    return Cores(*map(np.concatenate, zip(*blocks, strict=True)))


def _empty_cores(count: int) -> Cores:
    """Return buffers with room for `count` cores."""
    trunk, pair, points = np.empty((3, count), dtype=np.int32)
    return Cores(trunk, pair, np.empty(count), points)


@compiled
def bound_rows(
    tables: CompiledTables, rows: Array, chain: Array, seconds: Array, memory: Array
) -> None:
    """Write lower bounds for all layouts that grow from each of n rows: the `seconds` of a step and
    the bytes of `memory`, each (n,). `chain` (n,) has the number of each row's chain (pp with a
    number of micro-batches)."""
    reset(tables.buffers)
    for i in range(len(rows)):
        set_mesh(tables.question, rows[i], tables.coefficients[0], tables.least, tables.buffers)
        # Placement and policy are open, which makes every time a lower bound.
        tables.buffers.workspace.mesh[0].undecided = True
        seconds[i] = bound_schedules(tables, chain[i], rows[i])
        memory[i] = bound_memory(tables, chain[i], rows[i])


@compiled
def cross_block(
    tables: CompiledTables,
    crossing: CoreCrossing,
    trunks: Array,
    begin: int,
    of_memory: bool,
    limits: Limits,
    counts: Array,
    cores: Cores,
) -> int:
    """Cross one block of trunks with pairs of expert degrees, write the cores whose bound is within
    the limits to `cores`, and return the number of these. Crossings are numbered pair by pair: all
    trunks with the first pair, then all with the second. The block starts at number `begin` and is
    as long as the buffers in `cores`. Bounds are of seconds, or of bytes if `of_memory`."""
    reset(tables.buffers)
    count = 0
    for number in range(begin, min(begin + len(cores.bound), len(trunks) * len(crossing.ep))):
        trunk, pair = trunks[number % len(trunks)], number // len(trunks)
        if not set_core(crossing, trunk, pair):
            continue
        # The certificate needs the number of placed meshes that grow from legal crossings.
        counts[0].placed_meshes += crossing.placed_meshes[trunk]
        row, chain = crossing.row[0], crossing.chain[trunk]
        set_mesh(tables.question, row, tables.coefficients[0], tables.least, tables.buffers)
        bound = (
            least_bytes(tables, chain, row) if of_memory else bound_schedules(tables, chain, row)
        )
        points = crossing.points[trunk] + crossing.pair_points[pair]
        # No layout from this core is fast and simple enough for the answer.
        if bound > limits.longest[1 if row.pp > 1 else 0, points]:
            counts[0].closing_bound = min(counts[0].closing_bound, bound)
            continue
        cores.trunk[count] = trunk
        cores.pair[count] = pair
        cores.bound[count] = bound
        cores.points[count] = points
        count += 1
    return count


@inlined
def set_core(crossing: CoreCrossing, trunk: int, pair: int) -> bool:
    """Write a trunk (pp, tp, cp and micro-batch) with a pair of expert degrees to `crossing.row`.
    Return false, and write nothing, where ep · etp does not divide the devices of a stage, or where
    etp differs from tp and must not."""
    row = crossing.rows[trunk]
    # Experts fold over the devices of one pipeline stage.
    if (crossing.devices // row.pp) % (crossing.ep[pair] * crossing.etp[pair]) != 0:
        return False
    if crossing.etp_is_tp and row.tp != crossing.etp[pair]:
        return False
    crossing.row[0] = row
    crossing.row[0].ep = crossing.ep[pair]
    crossing.row[0].etp = crossing.etp[pair]
    return True


@inlined
def least_bytes(tables: CompiledTables, chain: int, row: Row) -> float:
    """Return a lower bound of the bytes of all layouts that grow from a row whose data parallelism
    is not divided yet: the least over all variants (sharding with memory policy), which are written
    into the row. The search for the layout that needs least memory opens cores in its order.
    `chain` is the number of the row's chain (pp with a number of micro-batches)."""
    least = np.inf
    for variant in range(len(tables.policies.variants)):
        set_variant(tables.policies, row, variant)
        least = min(least, bound_memory(tables, chain, row))
    return least
