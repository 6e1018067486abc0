"""Layouts in their places on the fabric, one after the other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.collectives import crosses_domains
from models.cost.facts import CoefficientRecord, DeviceOrder, Question
from models.cost.groups import (
    CP,
    DP_REPLICATE,
    DP_SHARD,
    EDP,
    EP,
    ETP,
    ORDERS,
    PP,
    TP,
    Groups,
    set_groups,
)
from models.cost.least_links import LeastLinks
from models.cost.rows import Row, StageTables
from models.cost.step import Room, fill_stages, set_mesh, step_time, wanted_pieces
from models.search.least_passes import LeastPasses, least_seconds, seconds_of
from models.search.mesh_policies import expose
from models.search.partial_sums import least_step


class Unplaced(NamedTuple):
    """Meshes (m,) whose layouts (n,) are written one mesh after the other."""

    start: Array
    """(m + 1,): where the layouts of each mesh begin."""
    chain: Array
    """(m,): which pipeline each has."""
    fewest_points: Array
    """(m,): points of complexity of the simplest policy of any of its layouts."""
    rows: Array
    """(n,) of Row."""
    schedule: Array
    """(n,): which of the schedules each has."""
    points: Array
    """(n,): points of complexity of its policy."""
    seconds: Array
    """(n,): of a step over the best links that a placement might give it."""


class Places(NamedTuple):
    """The places of meshes (m,), arrays of shape (p,)."""

    start: Array
    """(m,): where those of each mesh begin,"""
    end: Array
    """(m,): and where they end."""
    placement: Array
    filling: Array
    points: Array
    """Points of complexity of the mesh in its place."""


class Ways(NamedTuple):
    """Ways to lay the axes of meshes over the fabric (n,), those of a mesh one after the other."""

    mesh: Array
    placement: Array


class Kept(NamedTuple):
    """Room for those ways that differ (n,): their positions, and whether experts and tensor
    parallelism are across scale-up domains."""

    way: Array
    experts_across: Array
    tensor_across: Array


class Placed(NamedTuple):
    """Room for layouts in their places: the layout, the place, and seconds of a step."""

    layout: Array
    place: Array
    seconds: Array


class Count(NamedTuple):
    """How many were found and how many evaluated, and the least bound of what was left out."""

    found: int
    evaluated: int
    closing_bound: float


@compiled
def distinct_ways(
    q: Question, is_torus: bool, meshes: Array, ways: Ways, g: Groups, links: Array, kept: Kept
) -> int:
    """Writes the legal ways of meshes (m,) of Row, and returns how many there are. Of those that
    put every axis on the same links the first stands for all. `links` has room for the most ways
    that a mesh has."""
    count = first = 0
    for i in range(len(ways.mesh)):
        if i > 0 and ways.mesh[i] != ways.mesh[i - 1]:
            first = count
        row = meshes[ways.mesh[i]]
        row.placement = ways.placement[i]
        if is_torus and not closes_rings(q.order, row):
            continue
        set_groups(q.order, row, g)
        set_links(q.dims, g, links[count - first])
        if not is_among(links, count - first):
            kept.way[count] = i
            kept.experts_across[count] = crosses_domains(q.dims, g, EP)
            kept.tensor_across[count] = crosses_domains(q.dims, g, TP)
            count += 1
    return count


@inlined
def set_links(dims: Array, g: Groups, links: Array) -> None:
    """Writes the links of every axis: members, and on rings how far apart they are."""
    at = 0
    for axis in (TP, CP, DP_SHARD, DP_REPLICATE, PP, EP, ETP, EDP):
        for dim in range(len(dims)):
            members = g.members[axis, dim]
            links[at] = members
            links[at + 1] = g.stride[axis, dim] if dims[dim].ring and members > 1 else 1
            at += 2


@inlined
def is_among(links: Array, last: int) -> bool:
    """Whether the last row is among those before it."""
    for i in range(last):
        same = True
        for at in range(links.shape[1]):
            if links[i, at] != links[last, at]:
                same = False
                break
        if same:
            return True
    return False


@inlined
def closes_rings(order: DeviceOrder, row: Row) -> bool:
    """Whether every axis covers whole lines of a torus or divides one
    (models.layouts.rules.fits_torus)."""
    domains = order.domains[row.filling]
    inside = inside_pp = 1
    for axis in ORDERS[row.placement]:
        if axis == PP:
            inside_pp = inside
        inside *= degree_of(row, axis)
        if not is_whole(domains, inside):
            return False
    stride = row.etp * row.pp if row.etp >= inside_pp else row.etp
    return is_whole(domains, stride) and is_whole(domains, stride * row.ep)


@inlined
def degree_of(row: Row, axis: int) -> int:
    if axis == TP:
        return row.tp
    if axis == CP:
        return row.cp
    if axis == DP_SHARD:
        return row.dp_shard
    return row.dp_replicate if axis == DP_REPLICATE else row.pp


@inlined
def is_whole(domains: Array, span: int) -> bool:
    """Whether a span of devices covers whole domains, or divides them."""
    for domain in domains:
        if span % domain != 0 and domain % span != 0:
            return False
    return True


@compiled
def place(
    q: Question,
    tables: StageTables,
    coefficients: Array,
    no_links: LeastLinks,
    passes: LeastPasses,
    plain: Array,
    unplaced: Unplaced,
    places: Places,
    limits: Array,
    room: Room,
    time: Array,
    placed: Placed,
) -> Count:
    """Writes the layouts in their places that take no longer than `limits` (2, points) say, of
    those without and with a pipeline, by points of complexity. `plain` (1,) of Row has the policy
    that takes least."""
    f, c, w, wanted = q.facts[0], coefficients[0], room.workspace, wanted_pieces(q.policies)
    count, evaluated, closing = 0, 0, np.inf
    for mesh in range(len(unplaced.chain)):
        first, end = unplaced.start[mesh], unplaced.start[mesh + 1]
        rows, chain = unplaced.rows[first:end], unplaced.chain[mesh]
        piped = 1 if rows[0].pp > 1 else 0
        for at in range(places.start[mesh], places.end[mesh]):
            set_place(rows, places.placement[at], places.filling[at])
            set_mesh(q, rows[0], c, wanted, at == places.start[mesh], no_links, room)
            loosest = limits[piped, places.points[at] + unplaced.fewest_points[mesh]]
            least = np.inf
            for i in range(len(rows)):
                row, schedule = rows[i], unplaced.schedule[first + i]
                if i == 0 or not same_sharding(row, rows[i - 1]):
                    least = bound_sharding(q, passes, chain, row, plain[0], c, room)
                    closing = min(closing, least if least > loosest else np.inf)
                if least > loosest:
                    continue
                limit = limits[piped, places.points[at] + unplaced.points[first + i]]
                seconds = unplaced.seconds[first + i]
                if seconds <= limit:
                    expose(q, row, c, room)
                    seconds = least_step(f, row, c, w, seconds_of(w, passes, chain, schedule))
                if seconds <= limit:
                    fill_stages(f, q.layers, row, tables, w, room.stages)
                    step_time(f, row, c, tables, w, room.stages, room.scratch, time)
                    seconds = time.sum()
                    evaluated += 1
                if seconds > limit:
                    closing = min(closing, seconds)
                    continue
                placed.layout[count] = first + i
                placed.place[count] = at
                placed.seconds[count] = seconds
                count += 1
    return Count(count, evaluated, closing)


@inlined
def set_place(rows: Array, placement: int, filling: int) -> None:
    for i in range(len(rows)):
        row = rows[i]
        row.placement, row.filling = placement, filling


@inlined
def same_sharding(one: Row, other: Row) -> bool:
    return one.zero_stage == other.zero_stage and one.reshard == other.reshard


@inlined
def bound_sharding(
    q: Question,
    passes: LeastPasses,
    chain: int,
    row: Row,
    plain: Row,
    c: CoefficientRecord,
    room: Room,
) -> float:
    """The least step time of a mesh in its place with the sharding of a row."""
    w = room.workspace
    set_sharding(plain, row)
    w.mesh[0].undecided = True
    room.row[0].policy = -1  # nothing is exposed on this mesh yet
    expose(q, plain, c, room)
    seconds = least_step(q.facts[0], plain, c, w, least_seconds(w, passes, chain))
    w.mesh[0].undecided = False
    room.row[0].policy = -1
    return seconds


@inlined
def set_sharding(row: Row, of: Row) -> None:
    row.pp, row.dp_replicate, row.dp_shard = of.pp, of.dp_replicate, of.dp_shard
    row.cp, row.tp, row.ep, row.etp = of.cp, of.tp, of.ep, of.etp
    row.micro_batch, row.sequence_parallel = of.micro_batch, of.sequence_parallel
    row.zero_stage, row.reshard = of.zero_stage, of.reshard
