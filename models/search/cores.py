"""Trunks, and the cores that they become when crossed with the degrees of experts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.rows import Row
from models.cost.step import forget, set_kept, set_mesh, wanted_pieces
from models.search.compiled_tables import CompiledTables
from models.search.limits import Limits
from models.search.mesh_policies import bound_schedules, set_variant
from models.search.partial_sums import least_memory

_TOGETHER = 1 << 16  # pairs of a trunk and of degrees that are looked at in one call


class Crossing(NamedTuple):
    """Trunks, and the pairs of degrees that experts may have."""

    rows: Array
    """(trunks,) of Row: with data parallelism undivided;"""
    chain: Array
    """(trunks,): which pipeline each has;"""
    points: Array
    """(trunks,): points of complexity;"""
    splits: Array
    """(trunks,): and in how many ways its data parallelism divides."""
    ep: Array
    """(pairs,)."""
    etp: Array
    pair_points: Array
    """(pairs,)."""
    devices: int
    keeps_tensor: bool
    """Whether experts are cut as all else is."""
    row: Array
    """(1,) of Row: where a core is worked on."""


class Cores(NamedTuple):
    """Cores, arrays of the same length."""

    trunk: Array
    """The numbers of the trunk and of the pair that each is of."""
    pair: Array
    bound: Array
    """The least seconds of a step, or bytes of memory, of any layout."""
    points: Array
    """Points of complexity."""


def cross_all(
    t: CompiledTables,
    x: Crossing,
    trunks: Array,
    limits: Limits,
    tally: Array,
    *,
    of_memory: bool = False,
) -> Cores:
    """The cores that some trunks make with all pairs, and that are within the limits by their
    bound: of time, or of memory."""
    trunks = np.sort(trunks)  # in the order in which shards repeat
    numbers, count = np.empty((3, 0), dtype=np.int32), len(trunks) * len(x.ep)
    parts = [Cores(numbers[0], numbers[1], np.empty(0), numbers[2])]
    for begin in range(0, count, _TOGETHER):
        trunk, pair, points = np.empty((3, min(count - begin, _TOGETHER)), dtype=np.int32)
        cores = Cores(trunk, pair, np.empty(len(trunk)), points)
        found = cross(t, x, trunks, begin, of_memory, limits, tally, cores)
        parts.append(Cores(*(values[:found].copy() for values in cores)))
    return Cores(*map(np.concatenate, zip(*parts, strict=True)))


@compiled
def bound_rows(t: CompiledTables, rows: Array, chain: Array, seconds: Array, memory: Array) -> None:
    """Writes the least step time and memory of n rows of these chains, whatever is not decided yet,
    each (n,)."""
    forget(t.room)
    q, c, w = t.question, t.coefficients[0], t.room.workspace
    wanted = wanted_pieces(q.policies)
    for i in range(len(rows)):
        set_mesh(q, rows[i], c, wanted, t.least, t.room)
        w.mesh[0].undecided = True
        seconds[i] = bound_schedules(t, chain[i], rows[i])
        memory[i] = least_memory(q.facts[0], rows[i], c, w, t.passes.kept[chain[i]])


@compiled
def cross(
    t: CompiledTables,
    x: Crossing,
    trunks: Array,
    begin: int,
    of_memory: bool,
    limits: Limits,
    tally: Array,
    cores: Cores,
) -> int:
    """Writes the cores that may be in the answer, bounded in time or in memory, of as many as there
    is room for of all that some trunks make with the pairs, the first pair with each trunk first;
    returns how many."""
    forget(t.room)
    wanted, count = wanted_pieces(t.question.policies), 0
    for at in range(begin, min(begin + len(cores.bound), len(trunks) * len(x.ep))):
        trunk, pair = trunks[at % len(trunks)], at // len(trunks)
        if not set_core(x, trunk, pair):
            continue
        tally[0].cores += x.splits[trunk]
        row, chain = x.row[0], x.chain[trunk]
        set_mesh(t.question, row, t.coefficients[0], wanted, t.least, t.room)
        bound = least_bytes(t, chain, row) if of_memory else bound_schedules(t, chain, row)
        points = x.points[trunk] + x.pair_points[pair]
        if bound > limits.longest[1 if row.pp > 1 else 0, points]:
            tally[0].closing_bound = min(tally[0].closing_bound, bound)
            continue
        cores.trunk[count] = trunk
        cores.pair[count] = pair
        cores.bound[count] = bound
        cores.points[count] = points
        count += 1
    return count


@inlined
def set_core(x: Crossing, trunk: int, pair: int) -> bool:
    """Writes a core, if its experts fold over the stages."""
    row = x.rows[trunk]
    if (x.devices // row.pp) % (x.ep[pair] * x.etp[pair]) != 0:
        return False
    if x.keeps_tensor and row.tp != x.etp[pair]:
        return False
    x.row[0] = row
    x.row[0].ep = x.ep[pair]
    x.row[0].etp = x.etp[pair]
    return True


@inlined
def least_bytes(t: CompiledTables, chain: int, row: Row) -> float:
    """What the most frugal variant of a core needs at least."""
    f, w, least = t.question.facts[0], t.room.workspace, np.inf
    for variant in range(len(t.policies.variants)):
        set_variant(t.policies, row, variant)
        set_kept(f, t.question.policies, row, w)
        least = min(least, least_memory(f, row, t.coefficients[0], w, t.passes.kept[chain]))
    return least
