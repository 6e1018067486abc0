"""Meshes opened one after the other: each in every place on the fabric, under every policy.

A place is an order of the axes on the fabric (a placement) with a *filling*, the order in which
devices of a torus are numbered. Fewer *points* of complexity are simpler. `longest` has the most
seconds that a layout of so many points may take and still be in an answer.
"""

from __future__ import annotations

from models.compilation.compiled import compiled, inlined
from models.cost.least_links import ANY_FILLING, UNPLACED
from models.cost.stages import reset
from models.cost.step import set_mesh
from models.layouts.groups import set_groups
from models.search.compiled_tables import CompiledTables, Meshes, Progress
from models.search.mesh_policies import evaluate_policies, is_promising, set_decided, time_policies
from models.search.placements import closes_rings, is_among, points_of_place, set_links


@compiled
def open_meshes(tables: CompiledTables, meshes: Meshes, most_steps: int, progress: Progress) -> int:
    """Search meshes in every placement and under every policy. Write the layouts that fit and may
    be in the answer to `progress`, and tighten its limits by them.

    Return how many meshes were done. They are fewer than all after about `most_steps` steps (meshes
    and places looked at), or where the buffers of found layouts were full. Empty the buffers then,
    and pass the other meshes again, from the mesh in which they became full.
    """
    reset(tables.buffers)
    counts = progress.counts[0]
    last_step = counts.steps + most_steps
    for mesh in range(len(meshes.rows)):
        if counts.steps >= last_step:
            return mesh
        counts.steps += 1
        with_pipeline = 1 if meshes.rows[mesh].pp > 1 else 0
        if meshes.bound[mesh] > progress.limits.longest[with_pipeline, meshes.points[mesh]]:
            counts.closing_bound = min(counts.closing_bound, meshes.bound[mesh])
            continue
        over_memory, dominated = counts.over_memory, counts.dominated
        evaluated = counts.evaluated
        if not open_mesh(tables, meshes, mesh, progress):
            # The caller searches this mesh again, which counts its layouts anew.
            counts.over_memory, counts.dominated = over_memory, dominated
            counts.evaluated = evaluated
            return mesh
    return len(meshes.rows)


@inlined
def open_mesh(tables: CompiledTables, meshes: Meshes, mesh: int, progress: Progress) -> bool:
    """Search one mesh in every placement and under every policy, and write the layouts that may be
    in the answer to `progress`. Return false where the buffers of found layouts were full.
    Placements that put every axis on the same links cost the same, so only the first of them is
    searched."""
    question = tables.question
    groups = tables.buffers.groups
    links = tables.scratch.links
    fillings = tables.places.fillings
    row = meshes.rows[mesh]
    row.placement, row.filling = UNPLACED, ANY_FILLING
    set_mesh(question, row, tables.coefficients[0], tables.least, tables.buffers)
    if not time_policies(tables, meshes, mesh, progress):
        return True
    first = meshes.first_order[mesh]
    orders = tables.places.orders[first : first + meshes.order_count[mesh]]
    for filling in fillings:
        row.placement, row.filling = UNPLACED, filling
        points = meshes.points[mesh]
        # With a single filling, time_policies has looked at this bound already.
        if len(fillings) > 1 and not is_promising(tables, meshes, mesh, points, progress):
            continue
        different = 0  # placements whose links differ from those of all before
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
            if not is_promising(tables, meshes, mesh, points, progress):
                continue
            # From here on times are those of this placement, and lower bounds no more.
            set_decided(tables, True)
            if not evaluate_policies(tables, meshes, mesh, points, progress):
                return False
    return True
