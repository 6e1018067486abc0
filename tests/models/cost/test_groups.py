"""Which devices are the groups of an axis, written down one by one and counted.

Devices stand in the order in which a filling of the cluster takes them. A placement lays the axes
over that order, so that a reshaped array of their numbers has an axis of the mesh in each of its
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import lcm, prod

import numpy as np
import pytest

from models.columns import Array
from models.cost.facts import device_order
from models.cost.groups import (
    CP,
    DP_REPLICATE,
    DP_SHARD,
    EDP,
    EP,
    ETP,
    GROUPS,
    REPLICAS,
    SHARDING,
    Groups,
    groups_for,
    set_groups,
)
from models.cost.rows import rows_of
from models.spec.hardware import Cluster
from models.spec.layout import AXES, Layout, Layouts
from models.spec.recompute import NONE
from tests.models.cost.random_meshes import FABRICS, clusters, random_meshes
from tests.oracles.random_problems import random_problem

MESHES = 6
"""On every cluster."""
MADE_UP = 40
"""Clusters of a seed."""
_MOST_DEVICES = 1152
_JOINED = {SHARDING: (DP_SHARD, CP), REPLICAS: (DP_SHARD, CP, DP_REPLICATE)}
_EXPERTS = (ETP, EP, EDP)


# -- the groups themselves


def groups_of(cluster: Cluster, layout: Layout) -> Groups:
    (row,) = rows_of(Layouts.of([layout]), np.array([NONE]), np.zeros(1))
    order = device_order(cluster.device_orders)
    groups = groups_for(order)
    set_groups(order, row, groups)
    return groups


def written_down(layout: Layout, group: int) -> Array:
    """The devices of every group, (groups, members)."""
    outermost_first = layout.placement[::-1]
    degrees = [getattr(layout, axis) for axis in outermost_first]
    grid = np.arange(prod(degrees)).reshape(degrees)
    if group in _EXPERTS:
        return _written_down_of_experts(layout, grid, group)
    axes = [outermost_first.index(AXES[one]) for one in _JOINED.get(group, (group,))]
    last = np.moveaxis(grid, axes, range(-len(axes), 0))
    return last.reshape(-1, prod(degrees[axis] for axis in axes))


def _written_down_of_experts(layout: Layout, grid: Array, group: int) -> Array:
    """The devices of a pipeline stage in their order are cut into those that share experts, and
    these into expert data parallelism, ep and etp, which is innermost."""
    stages = np.moveaxis(grid, layout.placement[::-1].index("pp"), 0).reshape(layout.pp, -1)
    sharing = layout.dp_shard * layout.cp * layout.tp
    if layout.dp_shard == 1:
        sharing *= layout.dp_replicate
    mesh = stages.reshape(-1, sharing // (layout.ep * layout.etp), layout.ep, layout.etp)
    axis = 3 - _EXPERTS.index(group)
    return np.moveaxis(mesh, axis, -1).reshape(-1, mesh.shape[axis])


def smallest_piece(members: Array, domain: int) -> int:
    """The fewest members of a group that are together in a domain of so many devices, of all groups
    and domains that have any."""
    group = np.arange(len(members))[:, None]
    _, count = np.unique(group * 2**32 + members // domain, return_counts=True)
    return int(count.min())


def straddles_stages(layout: Layout, group: int) -> bool:
    """Whether devices of other pipeline stages lie between the members of a group of experts, and
    not between others."""
    inside_pp = prod(
        getattr(layout, axis) for axis in layout.placement[: layout.placement.index("pp")]
    )
    stride = {ETP: 1, EP: layout.etp, EDP: layout.ep * layout.etp}[group]
    span = stride * written_down(layout, group).shape[1]
    return layout.pp > 1 and inside_pp % span > 0 and stride % inside_pp > 0


# -- switches


def some_clusters(name: str) -> Iterator[Cluster]:
    return (one for one in clusters(name) if 1 < one.num_devices <= _MOST_DEVICES)


def made_up_clusters(rng: np.random.Generator, *, torus: bool) -> Iterator[Cluster]:
    for _ in range(MADE_UP):
        cluster = random_problem(rng, [n for n in range(2, 193) if n % 6 in (0, 2, 4)]).cluster
        if cluster.is_torus == torus:
            yield cluster


def require_pieces(some: Iterable[Cluster], rng: np.random.Generator) -> int:
    """That no group has fewer members in a domain than is said of the worst, and some group has as
    many, where the cluster has enough groups for every way to lie on domains. Returns how often it
    had."""
    found = 0
    for cluster in some:
        for layout in random_meshes(cluster, rng, MESHES):
            groups = groups_of(cluster, layout)
            for group in range(GROUPS):
                if group in _EXPERTS and straddles_stages(layout, group):
                    continue
                members = written_down(layout, group)
                assert groups.degree[group] == members.shape[1]
                found += _require_pieces(cluster, layout, group, members, groups.members[group])
    return found


def _require_pieces(
    cluster: Cluster, layout: Layout, group: int, members: Array, joined: Array
) -> int:
    found = 0
    span = int(np.ptp(members[0])) // max(members.shape[1] - 1, 1) * members.shape[1]
    for dim, together in zip(cluster.dims, np.cumprod(joined), strict=True):
        piece = smallest_piece(members, dim.domain)
        told = f"group {group} of {layout} in domains of {dim.domain}"
        assert together <= piece + 1e-9, told
        in_steps = group not in _JOINED and (np.diff(members) == span // members.shape[1]).all()
        if in_steps and cluster.num_devices % lcm(max(span, 1), dim.domain) == 0:
            assert together == pytest.approx(piece), told
            found += 1
    return found


@pytest.mark.parametrize("name", [name for name, (_, fabric) in FABRICS.items()])
def test_as_many_members_are_together_as_are_counted(name: str) -> None:
    rng = np.random.default_rng(len(name))
    some = (cluster for cluster in some_clusters(name) if not cluster.is_torus)
    require_pieces(some, rng)


@pytest.mark.parametrize("seed", range(3))
def test_so_they_are_in_domains_that_do_not_divide_each_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert require_pieces(made_up_clusters(rng, torus=False), rng) > 500
