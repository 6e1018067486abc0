"""The places that a mesh may have on the fabric.

A place is an order of the axes on the fabric (a placement) with a *filling*: the order of a torus'
dims in which its devices are numbered, and the side of the blocks in which they are.
"""

from __future__ import annotations

from typing import NamedTuple

from models.columns import Array
from models.compilation.compiled import inlined
from models.cost.collectives import crosses_domains
from models.cost.rows import Row
from models.layouts.complexity import POINTS
from models.layouts.groups import (
    CP,
    DP_REPLICATE,
    DP_SHARD,
    EDP,
    EP,
    ETP,
    PP,
    TP,
    DeviceOrder,
    Groups,
    is_whole,
    set_axes,
)
from models.spec.layout import DEFAULT_PLACEMENT, TORUS_BLOCKS

_EXPERT_ACROSS = POINTS["expert_across_domains"]
_TENSOR_ACROSS = POINTS["tensor_across_domains"]
_PLACEMENT = POINTS["placement"]
_TORUS_BLOCK = POINTS["torus_block"]
_BLOCKS = len(TORUS_BLOCKS)


class Places(NamedTuple):
    """Holds the places that meshes may have."""

    orders: Array
    """Numbers of placements: one list for each set of active axes, one list after the other."""
    fillings: Array
    """Numbers of the fillings of a torus."""
    is_torus: bool


@inlined
def points_of_place(dims: Array, row: Row, groups: Groups) -> int:
    """Return the points of complexity that a mesh gets for its placement: axes across scale-up
    domains, another order of axes than the default, and blocks of a torus
    (models.layouts.complexity)."""
    points = 0
    if row.ep > 1 and crosses_domains(dims, groups, EP):
        points += _EXPERT_ACROSS
    if row.tp > 1 and crosses_domains(dims, groups, TP):
        points += _TENSOR_ACROSS
    if row.placement != DEFAULT_PLACEMENT:
        points += _PLACEMENT
    # The remainder is the position in TORUS_BLOCKS, which begin with 1 (`filling_code`).
    if row.filling % _BLOCKS > 0:
        points += _TORUS_BLOCK
    return points


@inlined
def set_links(dims: Array, groups: Groups, links: Array) -> None:
    """Write the links that every axis uses to `links` (8 axes · dims · 2,): for each axis and dim
    of the cluster, the number of members joined there and their distance (stride) on a ring.
    Placements with equal links cost the same."""
    position = 0
    for axis in (TP, CP, DP_SHARD, DP_REPLICATE, PP, EP, ETP, EDP):
        for dim in range(len(dims)):
            members = groups.members[axis, dim]
            # The stride matters where the axis shares the links of a ring.
            stride = groups.stride[axis, dim] if dims[dim].ring and members > 1 else 1
            links[position], links[position + 1] = members, stride
            position += 2


@inlined
def is_among(links: Array, last: int) -> bool:
    """Say whether row `last` of `links` equals one of the rows before it. Placements of a mesh with
    equal links cost the same, so only the first of them is evaluated."""
    width = links.shape[1]
    for row in range(last):
        column = 0
        while column < width and links[row, column] == links[last, column]:
            column += 1
        if column == width:
            return True
    return False


@inlined
def closes_rings(order: DeviceOrder, row: Row, groups: Groups) -> bool:
    """Say whether every axis covers whole lines of a torus or divides one, so that its rings close.
    Only such placements are legal (models.layouts.placement_rules.fits_torus). The degrees of the
    axes, and the distances in ranks between neighbours on them, are written into `groups`."""
    set_axes(row, groups.degree, groups.distance)
    # the devices that are joined after each step of this order of devices
    domains = order.domains[row.filling]
    for axis in (TP, CP, DP_SHARD, DP_REPLICATE, PP, EP):
        if not is_whole(domains, groups.distance[axis], groups.degree[axis]):
            return False
    return True
