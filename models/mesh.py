"""Mesh axes on the fabric: which links each axis of a layout crosses.

Devices are numbered from the inside of the cluster outwards, and a placement lays the axes over those numbers,
innermost first. An axis of degree d whose neighbours are s numbers apart spans s·d; within a domain of D devices
it keeps gcd(s·d, D) / s of its members together in the worst group, exactly all of them when s·d divides D. That
one rule covers nested levels, ragged domains (groups of 16 on racks of 72) and the dims of a torus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.array import Array, Shared, distinct, nothing_shared
from models.factors import divisors
from models.hardware import Cluster
from models.layout import AXES, DEGREES, PLACEMENTS, Layouts

_ORDERS = np.array([[AXES.index(axis) for axis in order] for order in PLACEMENTS])
_TP, _CP, _SHARD, _REPLICATE, _PP = range(5)


@dataclass(frozen=True, slots=True)
class Group:
    """The devices of one axis (or product of axes): `members[d]` of them are joined by dim d, for each of n groups;
    shape (dims, n). `stride[d]`: how many groups share a link of dim d, if it is a ring."""

    members: Array
    stride: Array

    def take(self, rows: Array) -> Group:
        return Group(self.members.take(rows, axis=1), self.stride.take(rows, axis=1))

    @property
    def whole(self) -> Array:
        """No group straddles a domain: every count of members is a whole number."""
        return np.all(self.members == np.round(self.members), axis=0)

    @property
    def degree(self) -> Array:
        return np.prod(self.members, axis=0)

    def crosses(self, dims: Array) -> Array:
        """Whether some members are joined by one of these dims (a mask)."""
        return np.any((self.members > 1) & dims[:, None], axis=0)

    def __mul__(self, other: Group) -> Group:
        """Of two axes together, as dense on a dim as the denser of those that use it."""
        stride = np.minimum(self.stride, other.stride)
        stride = np.where(self.members == 1, other.stride, np.where(other.members == 1, self.stride, stride))
        return Group(self.members * other.members, stride)


@dataclass(frozen=True, slots=True)
class Groups:
    """The communication groups of n layouts on a cluster, those of each axis in a table: few are different.

    `sharding` is dp_shard with cp, over which parameters are sharded; `replicas` that with dp_replicate, which hold
    the same parameters where nothing is sharded.
    """

    tp: Shared[Group]
    cp: Shared[Group]
    dp_shard: Shared[Group]
    dp_replicate: Shared[Group]
    pp: Shared[Group]
    ep: Shared[Group]
    etp: Shared[Group]
    edp: Shared[Group]
    sharding: Shared[Group]
    replicas: Shared[Group]

    def take(self, rows: Array) -> Groups:
        return Groups(*(getattr(self, name).take(rows) for name in self.__slots__))


def groups(cluster: Cluster, layouts: Layouts, *, shared: bool = True) -> Groups:
    """Every axis of every layout on the cluster's dims; unless `shared`, with a table entry for every layout."""
    if not shared:
        return groups_of_meshes(cluster, layouts, shared=False)
    first, code = distinct(*(getattr(layouts, name) for name in (*DEGREES, "placement")))
    return groups_of_meshes(cluster, layouts.take(first), shared=True).take(code)


def groups_of_meshes(cluster: Cluster, meshes: Layouts, *, shared: bool = True) -> Groups:
    """Those of meshes that all differ."""
    x = meshes
    degrees = (x.tp, x.cp, x.dp_shard, x.dp_replicate, x.pp)
    strides = _strides(degrees, x.placement)
    inside_pp = strides[_PP]
    expert = [(stride * np.where(stride >= inside_pp, x.pp, 1), degree) for stride, degree in _over_stage(x).values()]
    return _groups(cluster, [*zip(strides, degrees, strict=True), *expert], shared)


def closest_groups(cluster: Cluster, layouts: Layouts) -> Groups:
    """Every axis as if it were the innermost one, those of experts of a stage: on switched levels no placement joins
    more of its members.

    With stride s an axis keeps gcd(s·d, D)/s members in a domain; that is at most gcd(d, D), since gcd(s·d, D)
    divides s·gcd(d, D).
    """
    x = layouts
    near = np.ones_like(x.pp)
    dense = [(near, degree) for degree in (x.tp, x.cp, x.dp_shard, x.dp_replicate, x.pp)]
    expert = [(stride, degree, x.pp) for stride, degree in _over_stage(x).values()]
    return _groups(cluster, [*dense, *expert], shared=True)


def beside_pipeline(cluster: Cluster, meshes: Layouts, closest: Groups) -> dict[str, Group]:
    """Of the closest groups of these meshes, all that those of expert axes may be: of every entry of their tables the
    group with the pipeline's axis outside, then of every entry that with it inside."""
    found = {}
    for name, (stride, degree) in _over_stage(meshes).items():
        first, _ = distinct(getattr(closest, name).code)
        near, far = stride[first], stride[first] * meshes.pp[first]
        found[name] = _group(_domains(cluster), np.concatenate([near, far]), np.tile(np.maximum(degree[first], 1), 2))
    return found


def _over_stage(x: Layouts) -> dict[str, tuple[Array, Array]]:
    """Stride and degree of the expert axes. They fold over the devices of one pipeline stage, innermost first: etp, ep,
    then expert data parallel. Those are numbered without the pipeline's axis; crossing it multiplies the distance by
    pp."""
    routed = x.etp * x.ep
    stage = x.dp_replicate * x.dp_shard * x.cp * x.tp
    return {"ep": (x.etp, x.ep), "etp": (np.ones_like(x.etp), x.etp), "edp": (routed, _sharing(x, stage) // routed)}


def _strides(degrees: Sequence[Array], placement: Array) -> Array:
    """Numbers between neighbours on each axis, (axes, n): the product of the degrees inside it."""
    degree, order, row = np.stack(degrees), _ORDERS[placement].T, np.arange(len(placement))
    strides, inside = np.empty_like(degree), np.ones_like(placement)
    for axis in order:
        strides[axis, row] = inside
        inside = inside * degree[axis, row]
    return strides


def _sharing(x: Layouts, stage: Array) -> Array:
    """Devices of a stage over which an expert's parameters are sharded."""
    return np.where(x.dp_shard > 1, stage // x.dp_replicate, stage)


def _domains(cluster: Cluster) -> Array:
    return np.array([dim.domain for dim in cluster.dims] or [1], dtype=np.int64)


def _groups(cluster: Cluster, axes: Sequence[tuple[Array, ...]], shared: bool) -> Groups:
    """From stride, degree and what else tells groups apart, of each axis in the order of Groups."""
    domains = _domains(cluster)

    def alike(*columns: Array) -> tuple[Array, Array]:
        return distinct(*columns) if shared else nothing_shared(len(columns[0]))

    def axis(stride: Array, degree: Array, *apart: Array) -> Shared[Group]:
        degree = np.maximum(degree, 1)
        first, code = alike(stride, degree, *apart)
        return Shared(_group(domains, stride[first], degree[first]), code)

    def joined(a: Shared[Group], b: Shared[Group]) -> Shared[Group]:
        first, code = alike(a.code, b.code)
        return Shared(a.table.take(a.code[first]) * b.table.take(b.code[first]), code)

    single = [axis(*columns) for columns in axes]
    sharding = joined(single[_SHARD], single[_CP])
    every = [*single, sharding, joined(sharding, single[_REPLICATE])]
    return Groups(*every)


def every_stride(cluster: Cluster, degree: Array) -> tuple[Group, int]:
    """Groups of these degrees with every distance between neighbours that an axis may have, stride by stride; and how
    many strides there are."""
    n = cluster.num_devices
    strides = np.array(divisors(n))
    stride, degrees = (part.ravel() for part in np.meshgrid(strides, degree.astype(np.int64), indexing="ij"))
    return _group(_domains(cluster), np.where(stride * degrees <= n, stride, 1), degrees), len(strides)


def _group(domains: Array, stride: Array, degree: Array) -> Group:
    span = stride * degree
    together = np.maximum(np.gcd(span[None, :], domains[:, None]) // stride[None, :], 1)
    together[-1] = degree  # the last dim joins everything
    together = np.minimum(together, degree)
    inner = np.concatenate([np.ones_like(together[:1]), together[:-1]])
    below = np.concatenate([[1], domains[:-1]])[:, None]
    return Group(together / inner, np.maximum(stride[None, :] // below, 1))
