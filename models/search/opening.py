"""Meshes opened one after the other: each in every place on the fabric, under every policy."""

from __future__ import annotations

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.groups import set_groups
from models.cost.least_links import ANY_FILLING, UNPLACED
from models.cost.step import forget, set_mesh, wanted_pieces
from models.search.compiled_tables import CompiledTables, Found, Meshes, Tally
from models.search.limits import Limits
from models.search.mesh_policies import (
    evaluate_policies,
    give_policies,
    has_promise,
    set_decided,
)
from models.search.placements import closes_rings, is_among, points_of_place, set_links


@compiled
def open_meshes(
    t: CompiledTables,
    meshes: Meshes,
    limits: Limits,
    most_steps: int,
    tally: Array,
    found: Found,
) -> int:
    """Write the layouts of meshes that fit and may be in the answer. Return how many meshes were
    opened.

    They are fewer than all after about `most_steps` steps, or where there was no more room for
    layouts. The mesh after them then has to be looked at again.
    """
    forget(t.room)
    wanted, until = wanted_pieces(t.question.policies), tally[0].steps + most_steps
    for mesh in range(len(meshes.rows)):
        if tally[0].steps >= until:
            return mesh
        tally[0].steps += 1
        piped = 1 if meshes.rows[mesh].pp > 1 else 0
        if meshes.bound[mesh] > limits.longest[piped, meshes.points[mesh]]:
            tally[0].closing_bound = min(tally[0].closing_bound, meshes.bound[mesh])
            continue
        over_memory, dominated = tally[0].over_memory, tally[0].dominated
        evaluated = tally[0].evaluated
        if not open_mesh(t, meshes, mesh, wanted, limits, tally[0], found):
            tally[0].over_memory, tally[0].dominated = over_memory, dominated
            tally[0].evaluated = evaluated
            return mesh
    return len(meshes.rows)


@inlined
def open_mesh(
    t: CompiledTables,
    meshes: Meshes,
    mesh: int,
    wanted: int,
    limits: Limits,
    tally: Tally,
    found: Found,
) -> bool:
    """Open one mesh. Return false where there was no room for a layout. Of places that put every
    axis on the same links, the first stands for all."""
    q, c, groups, links = t.question, t.coefficients[0], t.room.groups, t.scratch.links
    row, fillings = meshes.rows[mesh], t.places.fillings
    row.placement, row.filling = UNPLACED, ANY_FILLING
    set_mesh(q, row, c, wanted, t.least, t.room)
    if not give_policies(t, meshes, mesh, limits, tally):
        return True
    for filling in fillings:
        row.placement, row.filling = UNPLACED, filling
        points = meshes.points[mesh]
        if len(fillings) > 1 and not is_promising(t, meshes, mesh, points, wanted, limits, tally):
            continue
        different, first = 0, meshes.first_order[mesh]
        for order in t.places.orders[first : first + meshes.order_count[mesh]]:
            row.placement = order
            if t.places.is_torus and not closes_rings(q.order, row):
                continue
            set_groups(q.order, row, groups)
            set_links(q.dims, groups, links[different])
            if is_among(links, different):
                continue
            different += 1
            points = meshes.points[mesh] + points_of_place(q.dims, row, groups)
            if not is_promising(t, meshes, mesh, points, wanted, limits, tally):
                continue
            set_decided(t, True)
            if not evaluate_policies(t, meshes, mesh, points, limits, tally, found):
                return False
    return True


@inlined
def is_promising(
    t: CompiledTables,
    meshes: Meshes,
    mesh: int,
    points: int,
    wanted: int,
    limits: Limits,
    tally: Tally,
) -> bool:
    """Say whether a mesh in its place, or in its filling of a torus, may be in the answer."""
    set_mesh(t.question, meshes.rows[mesh], t.coefficients[0], wanted, t.least, t.room)
    set_decided(t, False)
    tally.steps += 1
    return has_promise(t, meshes, mesh, points, limits, tally)
