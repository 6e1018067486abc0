"""Meshes opened one after the other: each in every place on the fabric, under every policy."""

from __future__ import annotations

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.least_links import ANY_FILLING, UNPLACED
from models.cost.stages import reset
from models.cost.step import set_mesh
from models.layouts.groups import set_groups
from models.search.compiled_tables import CompiledTables, Found, Meshes, SearchCounts
from models.search.limits import Limits
from models.search.mesh_policies import (
    evaluate_policies,
    is_promising,
    price_policies,
    set_decided,
)
from models.search.placements import closes_rings, is_among, points_of_place, set_links


@compiled
def open_meshes(
    tables: CompiledTables,
    meshes: Meshes,
    limits: Limits,
    most_steps: int,
    counts: Array,
    found: Found,
) -> int:
    """Search meshes in every placement and under every policy. Write the layouts that fit and may
    be in the answer to `found`, tighten the limits by them, and update `counts`.

    Return how many meshes were done. They are fewer than all after about `most_steps` steps, or
    where `found` was full; the mesh after them then has to be searched again.
    """
    reset(tables.buffers)
    last_step = counts[0].steps + most_steps
    for mesh in range(len(meshes.rows)):
        if counts[0].steps >= last_step:
            return mesh
        counts[0].steps += 1
        with_pipeline = 1 if meshes.rows[mesh].pp > 1 else 0
        if meshes.bound[mesh] > limits.longest[with_pipeline, meshes.points[mesh]]:
            counts[0].closing_bound = min(counts[0].closing_bound, meshes.bound[mesh])
            continue
        over_memory, dominated = counts[0].over_memory, counts[0].dominated
        evaluated = counts[0].evaluated
        if not open_mesh(tables, meshes, mesh, limits, counts[0], found):
            # The caller opens this mesh once more, which counts its layouts anew.
            counts[0].over_memory = over_memory
            counts[0].dominated = dominated
            counts[0].evaluated = evaluated
            return mesh
    return len(meshes.rows)


@inlined
def open_mesh(
    tables: CompiledTables,
    meshes: Meshes,
    mesh: int,
    limits: Limits,
    counts: SearchCounts,
    found: Found,
) -> bool:
    """Search one mesh in every placement and under every policy, and write the layouts that may be
    in the answer to `found`. Return false where `found` was full. Placements that put every axis on
    the same links cost the same, so only the first of them is searched."""
    question = tables.question
    groups = tables.buffers.groups
    links = tables.scratch.links
    fillings = tables.places.fillings
    row = meshes.rows[mesh]
    row.placement, row.filling = UNPLACED, ANY_FILLING
    set_mesh(question, row, tables.coefficients[0], tables.least, tables.buffers)
    if not price_policies(tables, meshes, mesh, limits, counts):
        return True
    first = meshes.first_order[mesh]
    orders = tables.places.orders[first : first + meshes.order_count[mesh]]
    for filling in fillings:
        row.placement, row.filling = UNPLACED, filling
        points = meshes.points[mesh]
        # The bound of a single filling is that of any, which has been looked at already.
        if len(fillings) > 1 and not is_promising(tables, meshes, mesh, points, limits, counts):
            continue
        different = 0
        for order in orders:
            row.placement = order
            if tables.places.is_torus and not closes_rings(question.order, row, groups):
                continue
            set_groups(question.order, row, groups)
            set_links(question.dims, groups, links[different])
            if is_among(links, different):
                continue
            different += 1
            points = meshes.points[mesh] + points_of_place(question.dims, row, groups)
            if not is_promising(tables, meshes, mesh, points, limits, counts):
                continue
            set_decided(tables, True)
            if not evaluate_policies(tables, meshes, mesh, points, limits, counts, found):
                return False
    return True
