"""Meshes opened one after the other: each in every place on the fabric, under every policy."""

from __future__ import annotations

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.least_links import ANY_FILLING, UNPLACED
from models.cost.stages import reset
from models.cost.step import repeated_pieces, set_mesh
from models.layouts.groups import set_groups
from models.search.compiled_tables import CompiledTables, Found, Meshes, SearchCounts
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
    counts: Array,
    found: Found,
) -> int:
    """Write the layouts of meshes that fit and may be in the answer. Return how many meshes were
    opened.

    They are fewer than all after about `most_steps` steps, or where the buffers for layouts were
    full. The mesh after them then has to be looked at again.
    """
    reset(t.buffers)
    piece_bits, until = repeated_pieces(t.question.policies), counts[0].steps + most_steps
    for mesh in range(len(meshes.rows)):
        if counts[0].steps >= until:
            return mesh
        counts[0].steps += 1
        with_pipeline = 1 if meshes.rows[mesh].pp > 1 else 0
        if meshes.bound[mesh] > limits.longest[with_pipeline, meshes.points[mesh]]:
            counts[0].closing_bound = min(counts[0].closing_bound, meshes.bound[mesh])
            continue
        over_memory, dominated = counts[0].over_memory, counts[0].dominated
        evaluated = counts[0].evaluated
        if not open_mesh(
            t=t,
            meshes=meshes,
            mesh=mesh,
            piece_bits=piece_bits,
            limits=limits,
            counts=counts[0],
            found=found,
        ):
            counts[0].over_memory, counts[0].dominated = over_memory, dominated
            counts[0].evaluated = evaluated
            return mesh
    return len(meshes.rows)


@inlined
def open_mesh(
    t: CompiledTables,
    meshes: Meshes,
    mesh: int,
    piece_bits: int,
    limits: Limits,
    counts: SearchCounts,
    found: Found,
) -> bool:
    """Open one mesh. Return false where the buffers were full. Of places that put every
    axis on the same links, the first stands for all."""
    q = t.question
    c = t.coefficients[0]
    groups = t.buffers.groups
    links = t.scratch.links
    row, fillings = meshes.rows[mesh], t.places.fillings
    row.placement, row.filling = UNPLACED, ANY_FILLING
    set_mesh(q, row, c, piece_bits, t.least, t.buffers)
    if not give_policies(t, meshes, mesh, limits, counts):
        return True
    for filling in fillings:
        row.placement, row.filling = UNPLACED, filling
        points = meshes.points[mesh]
        if len(fillings) > 1 and not is_promising(
            t=t,
            meshes=meshes,
            mesh=mesh,
            points=points,
            piece_bits=piece_bits,
            limits=limits,
            counts=counts,
        ):
            continue
        different, first = 0, meshes.first_order[mesh]
        for order in t.places.orders[first : first + meshes.order_count[mesh]]:
            row.placement = order
            if t.places.is_torus and not closes_rings(q.order, row, groups):
                continue
            set_groups(q.order, row, groups)
            set_links(q.dims, groups, links[different])
            if is_among(links, different):
                continue
            different += 1
            points = meshes.points[mesh] + points_of_place(q.dims, row, groups)
            if not is_promising(
                t=t,
                meshes=meshes,
                mesh=mesh,
                points=points,
                piece_bits=piece_bits,
                limits=limits,
                counts=counts,
            ):
                continue
            set_decided(t, True)
            if not evaluate_policies(
                t=t,
                meshes=meshes,
                mesh=mesh,
                points=points,
                limits=limits,
                counts=counts,
                found=found,
            ):
                return False
    return True


@inlined
def is_promising(
    t: CompiledTables,
    meshes: Meshes,
    mesh: int,
    points: int,
    piece_bits: int,
    limits: Limits,
    counts: SearchCounts,
) -> bool:
    """Say whether a mesh in its place, or in its filling of a torus, may be in the answer."""
    set_mesh(t.question, meshes.rows[mesh], t.coefficients[0], piece_bits, t.least, t.buffers)
    set_decided(t, False)
    counts.steps += 1
    return has_promise(t, meshes, mesh, points, limits, counts)
