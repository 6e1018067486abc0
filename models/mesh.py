"""Mesh axes on the fabric: which links each axis of a layout crosses.

Devices are numbered from the inside of the cluster outwards, and a placement lays the axes over those numbers,
innermost first. An axis of degree d whose neighbours are s numbers apart spans s·d; within a domain of D devices
it keeps gcd(s·d, D) / s of its members together in the worst group, exactly all of them when s·d divides D. That
one rule covers nested levels, ragged domains (groups of 16 on racks of 72) and the dims of a torus.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.array import Array
from models.hardware import Cluster
from models.layout import AXES, PLACEMENTS, Layouts

_POSITION = np.array([[order.index(axis) for axis in AXES] for order in PLACEMENTS])
_TP, _CP, _SHARD, _REPLICATE, _PP = range(5)


@dataclass(frozen=True, slots=True)
class Group:
    """The devices of one axis (or product of axes): `members[d]` of them are joined by dim d, for each of the n
    layouts; shape (dims, n). `stride[d]`: how many groups share a link of dim d, if it is a ring."""

    members: Array
    stride: Array

    @property
    def whole(self) -> Array:
        """No group straddles a domain: every count of members is a whole number."""
        return np.all(self.members == np.round(self.members), axis=0)

    @property
    def degree(self) -> Array:
        return np.prod(self.members, axis=0)

    def __mul__(self, other: Group) -> Group:
        return Group(self.members * other.members, np.minimum(self.stride, other.stride))


@dataclass(frozen=True, slots=True)
class Groups:
    """The communication groups of n layouts on a cluster."""

    tp: Group
    cp: Group
    dp_shard: Group
    dp_replicate: Group
    pp: Group
    ep: Group
    etp: Group
    edp: Group


def groups(cluster: Cluster, layouts: Layouts) -> Groups:
    """Every axis of every layout on the cluster's dims."""
    degrees = np.stack([layouts.tp, layouts.cp, layouts.dp_shard, layouts.dp_replicate, layouts.pp])
    position = _POSITION[layouts.placement].T
    strides = np.ones_like(degrees)
    for axis in range(len(AXES)):
        inner = position < position[axis]
        strides[axis] = np.prod(np.where(inner, degrees, 1), axis=0)
    domains = np.array([dim.domain for dim in cluster.dims] or [1], dtype=np.int64)
    dense = [_group(domains, strides[axis], degrees[axis]) for axis in range(len(AXES))]

    inside_pp = np.prod(np.where(position < position[_PP], degrees, 1), axis=0)
    stage = np.prod(degrees[:_PP], axis=0)
    expert = _ExpertNumbering(layouts.pp, inside_pp)
    etp = _group(domains, *expert.stride_and_degree(np.ones_like(stage), layouts.etp))
    ep = _group(domains, *expert.stride_and_degree(layouts.etp, layouts.ep))
    routed = layouts.etp * layouts.ep
    sharing = np.where(layouts.dp_shard > 1, stage // layouts.dp_replicate, stage)
    edp = _group(domains, *expert.stride_and_degree(routed, np.maximum(sharing // routed, 1)))
    return Groups(dense[_TP], dense[_CP], dense[_SHARD], dense[_REPLICATE], dense[_PP], ep, etp, edp)


def closest_groups(cluster: Cluster, layouts: Layouts) -> Groups:
    """Every axis as if it were the innermost one: on switched levels no placement joins more of its members.

    With stride s an axis keeps gcd(s·d, D)/s members in a domain; that is at most gcd(d, D), since gcd(s·d, D)
    divides s·gcd(d, D).
    """
    domains = np.array([dim.domain for dim in cluster.dims] or [1], dtype=np.int64)

    def closest(degree: Array) -> Group:
        return _group(domains, np.ones_like(degree), degree)

    stage = layouts.dp_replicate * layouts.dp_shard * layouts.cp * layouts.tp
    sharing = np.where(layouts.dp_shard > 1, stage // layouts.dp_replicate, stage)
    edp = np.maximum(sharing // (layouts.etp * layouts.ep), 1)
    axes = (layouts.tp, layouts.cp, layouts.dp_shard, layouts.dp_replicate, layouts.pp, layouts.ep, layouts.etp, edp)
    return Groups(*(closest(degree) for degree in axes))


@dataclass(frozen=True, slots=True)
class _ExpertNumbering:
    """Expert axes fold over the devices of one pipeline stage, innermost first: etp, ep, then expert data parallel.

    Those devices are numbered without the pipeline axis; crossing it multiplies the distance by pp.
    """

    pp: Array
    inside_pp: Array

    def stride_and_degree(self, stride: Array, degree: Array) -> tuple[Array, Array]:
        return stride * np.where(stride >= self.inside_pp, self.pp, 1), degree


def _group(domains: Array, stride: Array, degree: Array) -> Group:
    span = stride * degree
    together = np.maximum(np.gcd(span[None, :], domains[:, None]) // stride[None, :], 1)
    together[-1] = degree  # the last dim joins everything
    together = np.minimum(together, degree)
    inner = np.concatenate([np.ones_like(together[:1]), together[:-1]])
    below = np.concatenate([[1], domains[:-1]])[:, None]
    return Group(together / inner, np.maximum(stride[None, :] // below, 1))
