"""Policies of a mesh, one after the other: every sharding and memory policy, then every schedule.

What has been fixed gives a partial sum (models.search.partial_sums), and what cannot be in an
answer is left out as soon as that shows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.facts import CoefficientRecord, Question
from models.cost.least_links import LeastLinks
from models.cost.rows import Row, StageTables
from models.cost.shard import same_shard
from models.cost.step import (
    Room,
    expose_parts,
    fill_stages,
    same_regime,
    set_kept,
    set_mesh,
    step_memory,
    step_time,
    wanted_pieces,
)
from models.search.fit import Margin, fits
from models.search.least_passes import LeastPasses, least_seconds, seconds_of
from models.search.partial_sums import least_memory, least_step


class PolicyTables(NamedTuple):
    """The policies that meshes may have."""

    variants: Array
    """(v,) of Row: shardings with memory policies."""
    plain: Array
    """(v,): whether a variant is the first of its sharding, without recompute and offload."""
    open_layers: Array
    """(v,): whether it is open how many layers of a chunk a variant recomputes."""
    variant_points: Array
    """(v,): points of complexity."""
    schedules: Array
    """(s,) of Row."""
    balanced: Array
    """(s,): whether chunks need not have equal numbers of layers."""
    schedule_points: Array
    """(s,): points of complexity, in a pipeline."""
    legal: Array
    """(chains, s): which schedules a pipeline may have."""
    partition: Array
    """(chains, s): how it splits its layers then."""
    layers: Array
    """How many layers of a chunk may be recomputed where that is open, but for all; ascending."""
    all_layers: bool
    """Whether all of them may be."""
    hides_most: int
    """A schedule that hides no less than any that is offered."""


class Meshes(NamedTuple):
    """Meshes that are not placed yet."""

    rows: Array
    """(n,) of Row."""
    chain: Array
    """(n,): which pipeline each has."""
    legal: Array
    """(n, v): which variants it may have."""
    points: Array
    """(n,): points of complexity."""


def taken(meshes: Meshes, at: Array) -> Meshes:
    """Those at some positions."""
    return Meshes(*(values[at] for values in meshes))


class Layers(NamedTuple):
    """Numbers of layers that may be recomputed: how many there are, and the position of the least
    that fits; beyond them where none does."""

    legal: int
    least: int


class Found(NamedTuple):
    """Layouts but for their placement, each array of the same length."""

    mesh: Array
    variant: Array
    schedule: Array
    rows: Array
    seconds: Array
    """Of a step over the best links that a placement might give."""


class Count(NamedTuple):
    """How far an enumeration came, and what it left out, in layouts but for their placement."""

    meshes: int
    """How many are done; fewer than there are where there was no more room for what was found."""
    found: int
    over_memory: int
    dominated: int
    """That recompute more layers than have to be."""
    closing_bound: float
    """The least bound of what was left out."""


@compiled
def give_policies(
    q: Question,
    tables: StageTables,
    coefficients: Array,
    least: LeastLinks,
    passes: LeastPasses,
    policies: PolicyTables,
    meshes: Meshes,
    limits: Array,
    margin: Margin,
    room: Room,
    time: Array,
    memory: Array,
    settled: Array,
    found: Found,
) -> Count:
    """Writes the layouts of meshes that fit, and that may be in an answer: none takes longer than
    `limits` (2, points) say, of those without and with a pipeline, by points of complexity. Where
    the plain variant of a sharding fits under a schedule, or takes too long, that is `settled`
    (s,): the others only add work."""
    f, c, w, wanted = q.facts[0], coefficients[0], room.workspace, wanted_pieces(q.policies)
    count, over_memory, dominated, closing = 0, 0, 0, np.inf
    most = len(policies.variants) * len(policies.schedules)
    rows, known = meshes.rows, room.row[0]
    for mesh in range(len(rows)):
        if count + most > len(found.mesh):
            return Count(mesh, count, over_memory, dominated, closing)
        row, chain, piped = rows[mesh], meshes.chain[mesh], 1 if rows[mesh].pp > 1 else 0
        before = rows[max(mesh - 1, 0)]
        set_mesh(q, row, c, wanted, mesh == 0 or not same_shard(row, before), least, room)
        known.policy = -1  # nothing is exposed on this mesh yet
        for variant in range(len(policies.variants)):
            if not meshes.legal[mesh, variant]:
                continue
            if policies.plain[variant]:
                settled[:] = False
            elif all_settled(policies, chain, settled):
                continue
            points = meshes.points[mesh] + policies.variant_points[variant]
            seconds = bound_variant(
                q, passes, policies, meshes.chain[mesh], variant, row, c, margin, room
            )
            if seconds > limits[piped, points]:
                closing = min(closing, seconds)
                if policies.plain[variant] and seconds < np.inf:
                    settled[:] = True
                continue
            open_layers = policies.open_layers[variant]
            for schedule in range(len(policies.schedules)):
                if not policies.legal[chain, schedule] or settled[schedule]:
                    continue
                row.schedule = policies.schedules[schedule].schedule
                row.virtual_stages = policies.schedules[schedule].virtual_stages
                row.partition = policies.partition[chain, schedule]
                row.recompute_layers = fewest_layers(policies) if open_layers else 0
                expose(q, row, c, room)
                limit = limits[piped, points + piped * policies.schedule_points[schedule]]
                seconds = least_step(f, row, c, w, seconds_of(w, passes, chain, schedule))
                if seconds > limit:
                    closing = min(closing, seconds)
                    settled[schedule] = policies.plain[variant]
                    continue
                fill_stages(f, q.layers, row, tables, w, room.stages)
                step_time(f, row, c, tables, w, room.stages, room.scratch, time)
                seconds = time.sum()
                if seconds > limit:
                    closing = min(closing, seconds)
                    settled[schedule] = policies.plain[variant]
                    continue
                layers = recompute_until_it_fits(
                    q, tables, policies, row, variant, schedule, c, margin, room, memory
                )
                over_memory += layers.least
                if layers.least == layers.legal:
                    continue
                settled[schedule] = policies.plain[variant]
                dominated += layers.legal - layers.least - 1
                if row.recompute_layers != known.recompute_layers:
                    expose(q, row, c, room)
                    fill_stages(f, q.layers, row, tables, w, room.stages)
                    step_time(f, row, c, tables, w, room.stages, room.scratch, time)
                    seconds = time.sum()
                    if seconds > limit:
                        closing = min(closing, seconds)
                        continue
                found.mesh[count] = mesh
                found.variant[count] = variant
                found.schedule[count] = schedule
                found.rows[count] = row
                found.seconds[count] = seconds
                count += 1
    return Count(len(rows), count, over_memory, dominated, closing)


@inlined
def all_settled(policies: PolicyTables, chain: int, settled: Array) -> bool:
    """Whether that is so under every schedule that a pipeline may have."""
    for schedule in range(len(settled)):
        if policies.legal[chain, schedule] and not settled[schedule]:
            return False
    return True


@compiled
def bound_meshes(
    q: Question,
    coefficients: Array,
    least: LeastLinks,
    passes: LeastPasses,
    policies: PolicyTables,
    meshes: Meshes,
    margin: Margin,
    room: Room,
    seconds: Array,
) -> None:
    """Writes the least step time of meshes, (n,), under any variant that may fit; infinite where
    none may. Where the first memory policy of a sharding fits, which keeps everything on the
    device, no other takes less: they only add work."""
    c, wanted, rows = coefficients[0], wanted_pieces(q.policies), meshes.rows
    for mesh in range(len(rows)):
        row, before = rows[mesh], rows[max(mesh - 1, 0)]
        set_mesh(q, row, c, wanted, mesh == 0 or not same_shard(row, before), least, room)
        room.row[0].policy = -1  # nothing is exposed on this mesh yet
        seconds[mesh] = np.inf
        keeps_all = False
        for variant in range(len(policies.variants)):
            first = policies.plain[variant]
            if meshes.legal[mesh, variant] and (first or not keeps_all):
                bound = bound_variant(
                    q, passes, policies, meshes.chain[mesh], variant, row, c, margin, room
                )
                seconds[mesh] = min(seconds[mesh], bound)
                keeps_all = bound < np.inf if first else keeps_all


@inlined
def bound_variant(
    q: Question,
    passes: LeastPasses,
    policies: PolicyTables,
    chain: int,
    variant: int,
    row: Row,
    c: CoefficientRecord,
    margin: Margin,
    room: Room,
) -> float:
    """The least step time of a mesh under a variant and any schedule, with as few layers recomputed
    as may be where that is open; infinite where it does not fit."""
    f, w, flying = q.facts[0], room.workspace, passes.kept[chain]
    set_variant(row, policies.variants[variant])
    row.schedule, row.virtual_stages = policies.hides_most, 1
    row.recompute_layers = 0
    set_kept(f, q.policies, row, w)
    if least_memory(f, row, c, w, flying) > margin.capacity:
        return np.inf
    if policies.open_layers[variant]:
        low, high = 1, -(-f.num_layers // row.pp)
        while low < high:
            row.recompute_layers = (low + high) // 2
            set_kept(f, q.policies, row, w)
            if least_memory(f, row, c, w, flying) > margin.capacity:
                low = row.recompute_layers + 1
            else:
                high = row.recompute_layers
        row.recompute_layers = low
    expose(q, row, c, room)
    return least_step(f, row, c, w, least_seconds(w, passes, chain))


@inlined
def expose(q: Question, row: Row, c: CoefficientRecord, room: Room) -> None:
    """Works out how the parts of a layout run beside each other, unless they run as those of the
    one before."""
    if not same_regime(row, room.row[0]):
        expose_parts(q.facts[0], q.layers, q.policies, row, c, room.workspace)
        room.row[0] = row


@compiled
def recompute_until_it_fits(
    q: Question,
    tables: StageTables,
    policies: PolicyTables,
    row: Row,
    variant: int,
    schedule: int,
    c: CoefficientRecord,
    margin: Margin,
    room: Room,
    memory: Array,
) -> Layers:
    """Has the row recompute the fewest layers of a chunk with which it fits, where that is open:
    every layer more only adds work."""
    fewer, legal = 0, 1
    if policies.open_layers[variant]:
        chunk = q.facts[0].num_layers // (row.pp * row.virtual_stages)
        limit = 1 if policies.balanced[schedule] else chunk
        fewer = int(np.searchsorted(policies.layers, limit))
        legal = fewer + (1 if policies.all_layers else 0)
    low, high = 0, legal
    tried = legal - 1  # the most frugal first
    while low < high:
        row.recompute_layers = policies.layers[tried] if tried < fewer else 0
        if is_enough(q, tables, row, c, margin, room, memory):
            high = tried
        else:
            low = tried + 1
        tried = (low + high) // 2
    if low < legal:
        row.recompute_layers = policies.layers[low] if low < fewer else 0
    return Layers(legal, low)


@inlined
def is_enough(
    q: Question,
    tables: StageTables,
    row: Row,
    c: CoefficientRecord,
    margin: Margin,
    room: Room,
    memory: Array,
) -> bool:
    """Whether the memory that there is is enough for a layout."""
    f, w = q.facts[0], room.workspace
    set_kept(f, q.policies, row, w)
    fill_stages(f, q.layers, row, tables, w, room.stages)
    _, on_host = step_memory(f, row, c, tables, w, room.stages, memory)
    return fits(margin, memory, on_host)


@inlined
def fewest_layers(policies: PolicyTables) -> int:
    return policies.layers[0] if len(policies.layers) > 0 else 0


@inlined
def set_variant(row: Row, variant: Row) -> None:
    row.zero_stage = variant.zero_stage
    row.reshard = variant.reshard
    row.policy = variant.policy
    row.offload_activations = variant.offload_activations
    row.offload_optimizer = variant.offload_optimizer
