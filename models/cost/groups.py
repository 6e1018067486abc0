"""The links that each axis of a layout crosses.

Devices are numbered from the inside of the cluster outwards (models.spec.device_order), and a
placement lays the axes over those numbers, innermost first. An axis of degree d whose neighbours
are s numbers apart spans s·d numbers. Within a domain of D devices it keeps gcd(s·d, D) / s of its
members together in the worst group: all of them when s·d divides D. This one rule covers nested
levels, domains that groups do not divide (groups of 16 on racks of 72) and the dims of a torus.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled
from models.cost.facts import DeviceOrder
from models.cost.rows import Row
from models.spec.layout import AXES, PLACEMENTS

TP, CP, DP_SHARD, DP_REPLICATE, PP, EP, ETP, EDP, SHARDING, REPLICAS = range(10)
"""Numbers of groups. The first five are the axes of a mesh. EP, ETP and EDP are the axes of
experts, EDP their data parallelism. SHARDING joins dp_shard and cp; REPLICAS joins these and
dp_replicate."""
GROUPS = 10
ORDERS = np.array([[AXES.index(axis) for axis in order] for order in PLACEMENTS])
"""The group of each axis of a placement, innermost first, (placements, axes)."""


class Groups(NamedTuple):
    """Holds the communication groups of a layout."""

    degree: Array
    """The number of all members of a group, (GROUPS,)."""
    members: Array
    """The number of members that each dim of the cluster joins, (GROUPS, dims)."""
    stride: Array
    """The number of groups that share a link of a dim, where the dim is a ring, (GROUPS, dims)."""


def groups_for(order: DeviceOrder) -> Groups:
    """Return arrays that hold the groups of a layout."""
    dims = len(order.default_domains)
    return Groups(
        np.ones(GROUPS, np.int64),
        np.ones((GROUPS, dims)),
        np.ones((GROUPS, dims), np.int64),
    )


@compiled
def set_groups(order: DeviceOrder, row: Row, g: Groups) -> None:
    """Write the groups of every axis."""
    g.degree[TP] = row.tp
    g.degree[CP] = row.cp
    g.degree[DP_SHARD] = row.dp_shard
    g.degree[DP_REPLICATE] = row.dp_replicate
    g.degree[PP] = row.pp
    inside, inside_pp = 1, 1
    for axis in ORDERS[row.placement]:
        set_group(order, row.filling, inside, g.degree[axis], g, axis)
        if axis == PP:
            inside_pp = inside
        inside *= g.degree[axis]
    routed = row.etp * row.ep
    replicas = max(devices_sharing_experts(row) // routed, 1)
    set_expert_group(
        order=order, row=row, inside_pp=inside_pp, stride=row.etp, degree=row.ep, g=g, axis=EP
    )
    set_expert_group(
        order=order, row=row, inside_pp=inside_pp, stride=1, degree=row.etp, g=g, axis=ETP
    )
    set_expert_group(
        order=order, row=row, inside_pp=inside_pp, stride=routed, degree=replicas, g=g, axis=EDP
    )
    join(g, DP_SHARD, CP, SHARDING)
    join(g, SHARDING, DP_REPLICATE, REPLICAS)


@compiled
def set_expert_group(
    order: DeviceOrder, row: Row, inside_pp: int, stride: int, degree: int, g: Groups, axis: int
) -> None:
    """Write the groups of an axis of experts. These axes fold over the devices of one pipeline
    stage, innermost first: etp, ep, then expert data parallelism. Strides count devices of a stage,
    without the pipeline's axis: an axis that lies outside the pipeline's has a stride pp times as
    large."""
    set_group(
        order, row.filling, stride * row.pp if stride >= inside_pp else stride, degree, g, axis
    )


@compiled
def devices_sharing_experts(row: Row) -> int:
    """Return the number of devices of a stage over which an expert's parameters are sharded."""
    shared = row.dp_shard * row.cp * row.tp
    return shared if row.dp_shard > 1 else shared * row.dp_replicate


@compiled
def set_group(
    order: DeviceOrder, filling: int, stride: int, degree: int, g: Groups, axis: int
) -> None:
    """Write the groups of an axis of this degree whose neighbours are `stride` numbers apart."""
    g.degree[axis] = degree
    g.members[axis] = 1.0
    g.stride[axis] = 1
    if degree == 1:
        return
    domains = order.default_domains if filling == 0 else order.domains[filling]
    inside = 1
    below = 1
    last = len(domains) - 1
    # By the rule above, each domain keeps `together` members; its dim joins groups of `inside`,
    # which the domain inside it keeps already.
    for step in range(len(domains)):
        together = degree
        if step < last:
            together = min(max(math.gcd(stride * degree, domains[step]) // stride, 1), degree)
        joined, apart = together / inside, max(stride // below, 1)
        if filling == 0:
            g.members[axis, step] = joined
            g.stride[axis, step] = apart
        elif joined > 1:
            dim = order.dims[filling, step]
            if g.members[axis, dim] == 1:
                g.stride[axis, dim] = apart * order.strides[filling, step]
            g.members[axis, dim] *= joined
        inside, below = together, domains[step]


@compiled
def join(g: Groups, one: int, other: int, joined: int) -> None:
    """Write the groups of two axes together. On a dim that both use, the smaller stride counts."""
    g.degree[joined] = g.degree[one] * g.degree[other]
    for dim in range(g.members.shape[1]):
        a, b = g.members[one, dim], g.members[other, dim]
        g.members[joined, dim] = a * b
        if a == 1:
            g.stride[joined, dim] = g.stride[other, dim]
        elif b == 1:
            g.stride[joined, dim] = g.stride[one, dim]
        else:
            g.stride[joined, dim] = min(g.stride[one, dim], g.stride[other, dim])
