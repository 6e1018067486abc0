"""Mesh axes on the fabric: which links each axis of a layout crosses.

Devices are numbered from the inside of the cluster outwards, along the dims of a torus in any
order, and a placement lays the axes over those numbers, innermost first. An axis of degree d whose
neighbours are s numbers apart spans s·d; within a domain of D devices it keeps gcd(s·d, D) / s of
its members together in the worst group, exactly all of them when s·d divides D. That one rule
covers nested levels, ragged domains (groups of 16 on racks of 72) and the dims of a torus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.columns import Array, Columns, SharedRows, all_distinct, distinct
from models.layouts.factors import divisors
from models.spec.device_order import DeviceOrders, filling_code
from models.spec.hardware import Cluster
from models.spec.layout import AXES, DEGREES, PLACEMENTS, TORUS_KNOBS, Layouts

_ORDERS = np.array([[AXES.index(axis) for axis in order] for order in PLACEMENTS])
_TP, _CP, _SHARD, _REPLICATE, _PP = range(5)


@dataclass(frozen=True, slots=True)
class Group:
    """The devices of one axis (or product of axes): `members[d]` of them are joined by dim d, for
    each of n groups; shape (dims, n). `stride[d]`: how many groups share a link of dim d, if it is
    a ring. `whole` (n,): no group straddles a domain. `degree` (n,): all members."""

    members: Array
    stride: Array
    whole: Array
    degree: Array

    @classmethod
    def of(cls, members: Array, stride: Array, whole: Array) -> Group:
        return cls(members, stride, whole, np.prod(members, axis=0))

    @classmethod
    def concatenate(cls, parts: Sequence[Group]) -> Group:
        columns = zip(
            *((part.members, part.stride, part.whole, part.degree) for part in parts), strict=True
        )
        return cls(*(np.concatenate(column, axis=-1) for column in columns))

    def take(self, rows: Array) -> Group:
        members, stride = self.members.take(rows, axis=1), self.stride.take(rows, axis=1)
        return Group(members, stride, self.whole.take(rows), self.degree.take(rows))

    def split(self, ends: Array) -> list[Group]:
        """The groups up to each of these ends, from the end before it."""
        columns = (
            np.split(of, ends[:-1], axis=-1)
            for of in (self.members, self.stride, self.whole, self.degree)
        )
        return [Group(*parts) for parts in zip(*columns, strict=True)]

    def crosses(self, dims: Array) -> Array:
        """Whether some members are joined by one of these dims (a mask)."""
        return np.any((self.members > 1) & dims[:, None], axis=0)

    def covers(self, device_orders: DeviceOrders) -> Array:
        """Whether members are all those on every dim that joins several, within what the axes
        inside leave."""
        lengths = device_orders.lengths[:, None]
        return np.all((self.members == 1) | (self.members * self.stride == lengths), axis=0)

    def __mul__(self, other: Group) -> Group:
        """Of two axes together, as dense on a dim as the denser of those that use it."""
        stride = np.minimum(self.stride, other.stride)
        stride = np.where(
            self.members == 1, other.stride, np.where(other.members == 1, self.stride, stride)
        )
        return Group.of(self.members * other.members, stride, self.whole & other.whole)


@dataclass(frozen=True, slots=True)
class Groups(Columns):
    """The communication groups of n layouts on a cluster, those of each axis in a table: few are
    different.

    `sharding` is dp_shard with cp, over which parameters are sharded; `replicas` that with
    dp_replicate, which hold the same parameters where nothing is sharded.
    """

    tp: SharedRows[Group]
    cp: SharedRows[Group]
    dp_shard: SharedRows[Group]
    dp_replicate: SharedRows[Group]
    pp: SharedRows[Group]
    ep: SharedRows[Group]
    etp: SharedRows[Group]
    edp: SharedRows[Group]
    sharding: SharedRows[Group]
    replicas: SharedRows[Group]

    def times(self, count: int) -> Groups:
        """So often one after the other, each time with entries of their own."""
        return Groups(*(_times(getattr(self, name), count) for name in self.__slots__))


def _times(axis: SharedRows[Group], count: int) -> SharedRows[Group]:
    entries = len(axis.table.whole)
    codes = np.add.outer(np.arange(count) * entries, axis.code).ravel()
    return SharedRows(axis.table.take(np.tile(np.arange(entries), count)), codes)


def groups(cluster: Cluster, layouts: Layouts, *, shared: bool = True) -> Groups:
    """Every axis of every layout on the cluster's dims; unless `shared`, with a table entry for
    every layout."""
    if not shared:
        return groups_of_meshes(cluster, layouts, shared=False)
    first, code = distinct(
        *(getattr(layouts, name) for name in (*DEGREES, "placement", *TORUS_KNOBS))
    )
    return groups_of_meshes(cluster, layouts.take(first), shared=True).take(code)


def groups_of_meshes(cluster: Cluster, meshes: Layouts, *, shared: bool = True) -> Groups:
    """Those of meshes that all differ."""
    x = meshes
    degrees = (x.tp, x.cp, x.dp_shard, x.dp_replicate, x.pp)
    strides = _strides(degrees, x.placement)
    inside_pp = strides[_PP]
    expert = [
        (stride * np.where(stride >= inside_pp, x.pp, 1), degree)
        for stride, degree in _over_stage(x).values()
    ]
    filled = (
        filling_code(x.torus_axes, x.torus_block)
        if cluster.device_orders.has_choice
        else np.zeros_like(x.pp)
    )
    axes = [(*axis, filled) for axis in (*zip(strides, degrees, strict=True), *expert)]
    return _groups(cluster.device_orders, axes, filled, shared=shared)


def closest_groups(cluster: Cluster, layouts: Layouts) -> Groups:
    """Every axis as if it were the innermost one, those of experts of a stage: on switched levels
    no placement joins more of its members.

    With stride s an axis keeps gcd(s·d, D)/s members in a domain; that is at most gcd(d, D), since
    gcd(s·d, D) divides s·gcd(d, D).
    """
    x = layouts
    near = np.ones_like(x.pp)
    dense = [(near, degree, near) for degree in (x.tp, x.cp, x.dp_shard, x.dp_replicate, x.pp)]
    expert = [(stride, degree, x.pp) for stride, degree in _over_stage(x).values()]
    return _groups(cluster.device_orders, [*dense, *expert], np.zeros_like(x.pp))


def innermost_group(cluster: Cluster, degrees: Array) -> Group:
    """Innermost axes of these degrees."""
    return _group(cluster.device_orders, np.ones_like(degrees), degrees)


def expert_groups_beside_pipeline(
    cluster: Cluster, meshes: Layouts, closest: Groups, filled: Array
) -> dict[str, Group]:
    """Of the closest groups of these meshes, all that those of expert axes may be: of every entry
    of their tables the group with the pipeline's axis outside, then of every entry that with it
    inside, in each of these fillings of a torus."""
    found, device_orders = {}, cluster.device_orders
    fillings = np.repeat(filling_code(*filled.T), 2)
    for name, (stride, degree) in _over_stage(meshes).items():
        first, _ = distinct(getattr(closest, name).code)
        near, far = stride[first], stride[first] * meshes.pp[first]
        strides = np.tile(np.concatenate([near, far]), len(fillings) // 2)
        degrees = np.tile(degree[first], len(fillings))
        found[name] = _group(device_orders, strides, degrees, np.repeat(fillings, len(first)))
    return found


def _over_stage(x: Layouts) -> dict[str, tuple[Array, Array]]:
    """Stride and degree of the expert axes. They fold over the devices of one pipeline stage,
    innermost first: etp, ep, then expert data parallel. Those are numbered without the pipeline's
    axis; crossing it multiplies the distance by pp."""
    routed = x.etp * x.ep
    stage = x.dp_replicate * x.dp_shard * x.cp * x.tp
    replicas = np.maximum(_sharing(x, stage) // routed, 1)
    return {"ep": (x.etp, x.ep), "etp": (np.ones_like(x.etp), x.etp), "edp": (routed, replicas)}


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


def _groups(
    device_orders: DeviceOrders,
    axes: Sequence[tuple[Array, Array, Array]],
    filled: Array,
    *,
    shared: bool = True,
) -> Groups:
    """From stride, degree and what else tells groups apart, of each axis in the order of Groups;
    `filled`: the filling of a torus."""

    def alike(*columns: Array) -> tuple[Array, Array]:
        return distinct(*columns) if shared else all_distinct(len(columns[0]))

    firsts, within = zip(*(alike(*axis) for axis in axes), strict=True)
    columns = zip(*((stride, degree, filled) for stride, degree, _ in axes), strict=True)
    told = (
        np.concatenate([of[rows] for of, rows in zip(column, firsts, strict=True)])
        for column in columns
    )
    table, counts = _group(device_orders, *told), [len(rows) for rows in firsts]
    ends = np.cumsum(counts)
    codes = [start + code for start, code in zip((0, *ends), within, strict=False)]
    if shared and filled.any():
        axis = np.repeat(np.arange(len(axes)), counts)
        first, entry = _distinct_entries(table, axis)
        table, ends = (
            table.take(first),
            np.searchsorted(axis[first], np.arange(len(axes)), side="right"),
        )
        codes = [entry.take(code) for code in codes]
    parts = (
        SharedRows(part, code - start)
        for part, code, start in zip(table.split(ends), codes, (0, *ends), strict=False)
    )
    of_axis = dict(zip(Groups.__slots__, parts, strict=False))

    def joined(a: SharedRows[Group], b: SharedRows[Group]) -> SharedRows[Group]:
        first, code = alike(a.code, b.code)
        return SharedRows(a.table.take(a.code[first]) * b.table.take(b.code[first]), code)

    def column(found: Groups, name: str) -> SharedRows[Group]:
        if name == "sharding":
            return joined(found.dp_shard, found.cp)
        if name == "replicas":
            return joined(found.sharding, found.dp_replicate)
        return of_axis[name]

    return Groups.lazy(column)


def _distinct_entries(table: Group, axis: Array) -> tuple[Array, Array]:
    """Of groups, by the axis of each, one for all of an axis that join their members by the same
    links, and are whole or not: fillings of a torus may come to that. In order of the axes, and
    which of them each is."""
    links = np.where(table.members > 1, table.stride, 1)
    columns = np.concatenate([axis[None], table.members, links, table.whole[None]])
    _, first, entry = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    return first, entry.ravel()


def groups_of_every_stride(cluster: Cluster, degree: Array, filled: Array) -> tuple[Group, int]:
    """Groups of these degrees with every distance between neighbours that an axis may have, in each
    of these fillings of a torus, the degrees of each in a row; and how many there are of each
    degree."""
    n, device_orders = cluster.num_devices, cluster.device_orders
    fillings = filling_code(*filled.T)
    filled, stride, degrees = (
        part.ravel()
        for part in np.meshgrid(
            fillings, np.array(divisors(n)), degree.astype(np.int64), indexing="ij"
        )
    )
    groups = _group(device_orders, np.where(stride * degrees <= n, stride, 1), degrees, filled)
    return groups, len(filled) // len(degree)


def _group(
    device_orders: DeviceOrders, stride: Array, degree: Array, filled: Array | None = None
) -> Group:
    if filled is None or not filled.any():
        domains = device_orders.usual[:, None]
        return Group.of(*_places(domains, stride, degree), _is_whole(domains, stride, degree))
    domains = device_orders.domains[filled].T
    whole = _is_whole(domains, stride, degree)
    members, stride = _places(domains, stride, degree)
    dims, steps, row = (
        device_orders.dims[filled].T,
        device_orders.steps[filled].T,
        np.arange(len(filled)),
    )
    of_dim = np.ones((2, len(device_orders.lengths), len(row)))
    for dim, joined, apart in zip(dims[::-1], members[::-1], (steps * stride)[::-1], strict=True):
        of_dim[0, dim, row] *= joined
        of_dim[1, dim, row] = np.where(joined > 1, apart, of_dim[1, dim, row])
    return Group.of(of_dim[0], of_dim[1], whole)


def _is_whole(domains: Array, stride: Array, degree: Array) -> Array:
    """Whether both the axis and what lies inside it cover whole domains, or divide them."""
    spans = (stride[None, :], (stride * degree)[None, :])
    return np.all([(span % domains == 0) | (domains % span == 0) for span in spans], axis=(0, 1))


def _places(domains: Array, stride: Array, degree: Array) -> tuple[Array, Array]:
    """How many members each place joins, from the inside out, and how far apart they are there."""
    span = stride * degree
    together = np.maximum(np.gcd(span[None, :], domains) // stride[None, :], 1)
    together[-1] = degree  # the last joins everything
    together = np.minimum(together, degree)
    inner = np.concatenate([np.ones_like(together[:1]), together[:-1]])
    below = np.concatenate([np.ones_like(domains[:1]), domains[:-1]])
    return together / inner, np.maximum(stride[None, :] // below, 1)
