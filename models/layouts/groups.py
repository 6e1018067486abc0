"""The links that each axis of a layout crosses.

Devices are numbered from the inside of the cluster outwards (models.spec.device_order), and a
placement lays the axes over those numbers, innermost first. An axis of degree d whose neighbours
are s numbers apart spans s·d numbers. Within a domain of D devices it keeps gcd(s·d, D) / s of its
members together, even in the worst of its groups: all of them when s·d divides D. This one rule
covers nested levels, domains that groups do not divide (groups of 16 on racks of 72) and the dims
of a torus.

A *dim* is one level of the cluster's links, or one dimension of a torus. A *filling* is the order
in which the devices of a torus are numbered; 0 is the default, and the only one on other fabrics.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled
from models.spec.device_order import DeviceOrders
from models.spec.layout import AXES, PLACEMENTS

TP, CP, DP_SHARD, DP_REPLICATE, PP, EP, ETP, EDP, SHARDING, REPLICAS = range(10)
"""Numbers of groups. The first five are the axes of a mesh. EP, ETP and EDP are the axes of
experts, EDP their data parallelism. SHARDING joins dp_shard and cp; REPLICAS joins these and
dp_replicate."""
AXIS_GROUPS = 8
"""The number of groups that are those of one axis. Their numbers are the first."""
GROUPS = 10
ORDERS = np.array([[AXES.index(axis) for axis in order] for order in PLACEMENTS])
"""The group of each axis of a placement, innermost first, (placements, axes)."""


class MeshRow(Protocol):
    """A record of a mesh on the fabric."""

    pp: int
    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int
    ep: int
    etp: int
    placement: int
    filling: int
    """The filling of a torus (models.spec.device_order.filling_code)."""


class DeviceOrder(NamedTuple):
    """Holds the order of a cluster's devices (models.spec.device_order.DeviceOrders)."""

    default_domains: Array
    domains: Array
    dims: Array
    strides: Array


def device_order(orders: DeviceOrders) -> DeviceOrder:
    """Return the order of a cluster's devices in the form that compiled functions read."""
    return DeviceOrder(orders.default_domains, orders.domains, orders.dims, orders.strides)


class Groups(NamedTuple):
    """Holds communication groups, one a row: those of a layout, by number (TP to REPLICAS), or
    others."""

    degree: Array
    """The number of all members of a group, (GROUPS,)."""
    distance: Array
    """The distance of neighbours, as a difference of the numbers of devices, (GROUPS,). Groups of
    several axes have none."""
    members: Array
    """The number of members that each dim of the cluster joins, (GROUPS, dims)."""
    stride: Array
    """The number of groups that share a link of a dim, where the dim is a ring, (GROUPS, dims). It
    is the distance between a group's neighbours along that ring."""


def groups_for(order: DeviceOrder, count: int = GROUPS) -> Groups:
    """Return arrays that hold `count` groups, by default those of one layout."""
    dims = len(order.default_domains)
    return Groups(
        degree=np.ones(count, np.int64),
        distance=np.ones(count, np.int64),
        members=np.ones((count, dims)),
        stride=np.ones((count, dims), np.int64),
    )


@compiled
def set_groups(order: DeviceOrder, row: MeshRow, groups: Groups) -> None:
    """Write to `groups` the communication groups of a mesh: those of every axis, of SHARDING (the
    ranks over which ZeRO shards: dp_shard · cp) and of REPLICAS (these times dp_replicate: all
    ranks that reduce the same gradients)."""
    set_axes(row, groups.degree, groups.distance)
    for axis in range(AXIS_GROUPS):
        set_group(order, row.filling, groups.distance[axis], groups.degree[axis], groups, axis)
    set_product_group(groups, DP_SHARD, CP, SHARDING)
    set_product_group(groups, SHARDING, DP_REPLICATE, REPLICAS)


@compiled
def set_axes(row: MeshRow, degree: Array, distance: Array) -> None:
    """Write the degree of every axis (axes,), and the distance between neighbours on it (axes,), as
    a difference of device numbers. The distance is the product of the degrees of the axes that the
    placement puts inside."""
    degree[TP] = row.tp
    degree[CP] = row.cp
    degree[DP_SHARD] = row.dp_shard
    degree[DP_REPLICATE] = row.dp_replicate
    degree[PP] = row.pp
    inside = 1
    for axis in ORDERS[row.placement]:
        distance[axis] = inside
        inside *= degree[axis]
    # The axes of experts fold over the devices of one pipeline stage, innermost first: etp, ep,
    # then expert data parallelism. Their distances count devices of a stage, without the pipeline's
    # axis. An axis that lies outside the pipeline's has a distance pp times as large.
    expert_devices = row.etp * row.ep
    degree[ETP] = row.etp
    distance[ETP] = 1
    degree[EP] = row.ep
    distance[EP] = row.etp
    # A mesh whose experts need more devices than share them is illegal, but has groups too.
    degree[EDP] = max(devices_sharing_experts(row) // expert_devices, 1)
    distance[EDP] = expert_devices
    for axis in (EP, ETP, EDP):
        if distance[axis] >= distance[PP]:
            distance[axis] *= row.pp


@compiled
def devices_sharing_experts(row: MeshRow) -> int:
    """Return the number of devices of a stage that the axes of experts (etp, ep and expert data
    parallelism) cover together. Sharded layouts place experts within one replica; only plain data
    parallelism (dp_shard 1) places them over the replicas too."""
    shared = row.dp_shard * row.cp * row.tp
    return shared if row.dp_shard > 1 else shared * row.dp_replicate


@compiled
def set_group(
    order: DeviceOrder, filling: int, distance: int, degree: int, groups: Groups, axis: int
) -> None:
    """Write to row `axis` of `groups` an axis of this degree whose neighbours are `distance` device
    numbers apart: how many members each dim of the cluster joins, and how many groups share a link
    of a ring. `filling` is the number of a torus' filling."""
    groups.degree[axis] = degree
    groups.distance[axis] = distance
    groups.members[axis] = 1.0
    groups.stride[axis] = 1
    if degree == 1:
        return
    domains = order.default_domains if filling == 0 else order.domains[filling]
    inside = 1
    below = 1
    last = len(domains) - 1  # The last domain joins everything.
    # By the rule of this module's docstring, a domain keeps `together` of the members together. It
    # consists of smaller domains, of `below` devices, which keep `inside` members together: its own
    # links join `together / inside` of these. Members `distance` apart are `distance / below`
    # smaller domains apart.
    for level in range(len(domains)):
        together = degree
        if level < last:
            together = min(max(math.gcd(distance * degree, domains[level]) // distance, 1), degree)
        joined, apart = together / inside, max(distance // below, 1)
        # By default each domain is joined by a dim of its own. Other fillings may go along a dim
        # several times, in blocks, and find it in `order.dims`.
        if filling == 0:
            groups.members[axis, level] = joined
            groups.stride[axis, level] = apart
        elif joined > 1:
            dim = order.dims[filling, level]
            # Of several levels along one dim, the innermost sets the stride.
            if groups.members[axis, dim] == 1:
                groups.stride[axis, dim] = apart * order.strides[filling, level]
            groups.members[axis, dim] *= joined
        inside, below = together, domains[level]


@compiled
def is_whole(domains: Array, distance: int, degree: int) -> bool:
    """Say whether no group of an axis straddles the border of a domain. That holds where the span
    of the axes inside it (`distance`), and the span with the axis itself, are each a multiple or a
    divisor of every domain's size."""
    for span in (distance, distance * degree):
        for domain in domains:
            if span % domain != 0 and domain % span != 0:
                return False
    return True


@compiled
def set_product_group(groups: Groups, first: int, second: int, product: int) -> None:
    """Write to row `product` of `groups` the group that the axes `first` and `second` span
    together. On a dim that both use, neighbours are as near as on the nearer axis: the smaller
    stride counts."""
    groups.degree[product] = groups.degree[first] * groups.degree[second]
    for dim in range(groups.members.shape[1]):
        first_members, second_members = groups.members[first, dim], groups.members[second, dim]
        groups.members[product, dim] = first_members * second_members
        if first_members == 1:
            groups.stride[product, dim] = groups.stride[second, dim]
        elif second_members == 1:
            groups.stride[product, dim] = groups.stride[first, dim]
        else:
            groups.stride[product, dim] = min(groups.stride[first, dim], groups.stride[second, dim])
