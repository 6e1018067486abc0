"""Clusters of the catalogue, meshes that lie on them anyhow, and the devices of their groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from models.columns import Array
from models.errors import Invalid
from models.layouts.factors import divisors
from models.layouts.groups import CP, DP_REPLICATE, DP_SHARD, EDP, EP, ETP, REPLICAS, SHARDING
from models.spec import catalogue
from models.spec.hardware import Cluster, Torus
from models.spec.layout import AXES, PLACEMENTS, TORUS_AXES, Layout, Layouts
from tests.oracles.random_problems import pick

FABRICS = {
    **{f"{chip.id}, data sheet": (chip, chip.fabric) for chip in catalogue.chips().values()},
    **{
        fabric.id: (catalogue.chip(catalogue.fabric_chip(fabric.id)), fabric)
        for fabric in catalogue.fabrics().values()
    },
}
"""Every fabric of the catalogue and the chip that it joins, those of data sheets among them."""
SIZES = (1, 2, 6, 8, 12, 16, 64, 96, 100, 288, 512, 1152)
"""Chips: more than a node, a rack or a slice, and numbers that none of them divides."""
JOINED = {SHARDING: (DP_SHARD, CP), REPLICAS: (DP_SHARD, CP, DP_REPLICATE)}
"""The axes of groups that join several."""
EXPERTS = (ETP, EP, EDP)
_SHAPES = ((2, 2, 2), (8, 2, 2), (4, 4, 8), (4, 12, 8), (2, 2), (4, 4), (2, 8), (16, 2))


def clusters(name: str) -> Iterator[Cluster]:
    """Those of a fabric, and on a torus those of slices of several shapes too."""
    chip, fabric = FABRICS[name]
    for size in SIZES:
        shapes: list[tuple[int, ...] | None] = [None]
        if fabric.torus:
            shapes += [one for one in _slices(fabric.torus) if size % prod(one) == 0]
        for shape in shapes:
            try:
                cluster = Cluster(chip=chip, fabric=fabric, num_chips=size, torus_shape=shape)
                _ = cluster.dims
            except Invalid:  # the fabric joins fewer chips, or only those of one slice
                continue
            yield cluster


def _slices(torus: Torus) -> list[tuple[int, ...]]:
    return [shape for shape in _SHAPES if len(shape) == torus.ndim and torus.is_slice(shape)]


def random_meshes(cluster: Cluster, rng: np.random.Generator, count: int) -> Layouts:
    """Meshes of all devices, in any placement and any filling of a torus."""
    return Layouts.of([_random_mesh(cluster, rng) for _ in range(count)])


def _random_mesh(cluster: Cluster, rng: np.random.Generator) -> Layout:
    tp, cp, dp_shard, dp_replicate, pp = _random_factors(rng, cluster.num_devices, 5)
    sharing = dp_shard * cp * tp * (dp_replicate if dp_shard == 1 else 1)
    ep, etp, _ = _random_factors(rng, sharing, 3)
    order, block = pick(rng, cluster.device_orders.fillings.tolist())
    return Layout(
        tp=tp,
        cp=cp,
        dp_shard=dp_shard,
        dp_replicate=dp_replicate,
        pp=pp,
        ep=ep,
        etp=etp,
        placement=pick(rng, PLACEMENTS),
        torus_axes=TORUS_AXES[order],
        torus_block=block,
    )


def _random_factors(rng: np.random.Generator, n: int, parts: int) -> Sequence[int]:
    """So many factors whose product is n, in any order."""
    factors = []
    for _ in range(parts - 1):
        factors.append(pick(rng, divisors(n)))
        n //= factors[-1]
    factors.append(n)
    return [factors[place] for place in rng.permutation(parts)]


def written_down(layout: Layout, group: int) -> Array:
    """The devices of every group of an axis, (groups, members).

    They stand in the order in which a filling of the cluster takes them. A placement lays the axes
    over that order, so that a reshaped array of their numbers has each axis of the mesh in one of
    its own.
    """
    outermost_first = layout.placement[::-1]
    degrees = [getattr(layout, axis) for axis in outermost_first]
    grid = np.arange(prod(degrees)).reshape(degrees)
    if group in EXPERTS:
        return _of_experts(layout, grid, group)
    axes = [outermost_first.index(AXES[one]) for one in JOINED.get(group, (group,))]
    last = np.moveaxis(grid, axes, range(-len(axes), 0))
    return last.reshape(-1, prod(degrees[axis] for axis in axes))


def _of_experts(layout: Layout, grid: Array, group: int) -> Array:
    """The devices of a pipeline stage in their order are cut into those that share experts, and
    these into expert data parallelism, ep and etp, which is innermost."""
    stages = np.moveaxis(grid, layout.placement[::-1].index("pp"), 0).reshape(layout.pp, -1)
    sharing = layout.dp_shard * layout.cp * layout.tp
    if layout.dp_shard == 1:
        sharing *= layout.dp_replicate
    mesh = stages.reshape(-1, sharing // (layout.ep * layout.etp), layout.ep, layout.etp)
    axis = 3 - EXPERTS.index(group)
    return np.moveaxis(mesh, axis, -1).reshape(-1, mesh.shape[axis])


def straddles_stages(layout: Layout, group: int) -> bool:
    """Whether devices of other pipeline stages lie between the members of a group of experts, and
    not between others."""
    inside_pp = prod(
        getattr(layout, axis) for axis in layout.placement[: layout.placement.index("pp")]
    )
    stride = {ETP: 1, EP: layout.etp, EDP: layout.ep * layout.etp}[group]
    span = stride * written_down(layout, group).shape[1]
    return layout.pp > 1 and inside_pp % span > 0 and stride % inside_pp > 0
