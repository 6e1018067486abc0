"""Mesh axes on the fabric: which links each axis of a layout crosses.

Devices are numbered from the inside of the cluster outwards (models.spec.device_order), and a
placement lays the axes over those numbers, innermost first. An axis of degree d whose neighbours
are s numbers apart spans s·d numbers. Within a domain of D devices it keeps gcd(s·d, D) / s of its
members together in the worst group: all of them when s·d divides D. This one rule covers nested
levels, domains that groups do not divide (groups of 16 on racks of 72) and the dims of a torus.
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
    """n communication groups: the devices that one axis, or a product of axes, joins."""

    members: Array
    """(dims, n): how many members each dim of the cluster joins."""
    stride: Array
    """(dims, n): how many groups share a link of a dim, where the dim is a ring."""
    whole: Array
    """(n,): whether no group straddles a domain."""
    degree: Array
    """(n,): the number of all members."""

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
        return Group(
            self.members.take(rows, axis=1),
            self.stride.take(rows, axis=1),
            self.whole.take(rows),
            self.degree.take(rows),
        )

    def split(self, ends: Array) -> list[Group]:
        """The groups in parts: those up to each of these ends, from the end before it."""
        columns = (
            np.split(of, ends[:-1], axis=-1)
            for of in (self.members, self.stride, self.whole, self.degree)
        )
        return [Group(*parts) for parts in zip(*columns, strict=True)]

    def crosses(self, dims: Array) -> Array:
        """Whether some members are joined by one of these dims (a mask)."""
        return np.any((self.members > 1) & dims[:, None], axis=0)

    def covers(self, device_orders: DeviceOrders) -> Array:
        """(n,): whether on every dim that joins several members they are all that the axes inside
        leave of it."""
        lengths = device_orders.lengths[:, None]
        return np.all((self.members == 1) | (self.members * self.stride == lengths), axis=0)

    def __mul__(self, other: Group) -> Group:
        """The groups of two axes together. On a dim that both use, the smaller stride counts."""
        stride = np.minimum(self.stride, other.stride)
        stride = np.where(
            self.members == 1, other.stride, np.where(other.members == 1, self.stride, stride)
        )
        return Group.of(self.members * other.members, stride, self.whole & other.whole)


@dataclass(frozen=True, slots=True)
class Groups(Columns):
    """The communication groups of n layouts on a cluster, by axis. Few groups of an axis are
    different, and so they lie in a table that the layouts share.

    `edp` is expert data parallelism. `sharding` joins dp_shard and cp, over which parameters are
    sharded; `replicas` joins those with dp_replicate: the devices that hold the same parameters
    where nothing is sharded.
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
        """These groups `count` times one after the other, each time with table entries of their
        own."""
        return Groups(*(_repeated(getattr(self, name), count) for name in self.__slots__))


def _repeated(axis: SharedRows[Group], count: int) -> SharedRows[Group]:
    entries = len(axis.table.whole)
    codes = np.add.outer(np.arange(count) * entries, axis.code).ravel()
    return SharedRows(axis.table.take(np.tile(np.arange(entries), count)), codes)


def groups(cluster: Cluster, layouts: Layouts, *, shared: bool = True) -> Groups:
    """The groups of every axis of every layout. Unless `shared`, every layout has table entries of
    its own."""
    if not shared:
        return groups_of_meshes(cluster, layouts, shared=False)
    first, code = distinct(
        *(getattr(layouts, name) for name in (*DEGREES, "placement", *TORUS_KNOBS))
    )
    return groups_of_meshes(cluster, layouts.take(first), shared=True).take(code)


def groups_of_meshes(cluster: Cluster, meshes: Layouts, *, shared: bool = True) -> Groups:
    """What :func:`groups` gives for meshes that all differ."""
    x = meshes
    degrees = (x.tp, x.cp, x.dp_shard, x.dp_replicate, x.pp)
    strides = _strides(degrees, x.placement)
    inside_pp = strides[_PP]
    expert = [
        (stride * np.where(stride >= inside_pp, x.pp, 1), degree)
        for stride, degree in _expert_strides_and_degrees(x).values()
    ]
    filled = (
        filling_code(x.torus_axes, x.torus_block)
        if cluster.device_orders.has_choice
        else np.zeros_like(x.pp)
    )
    axes = [(*axis, filled) for axis in (*zip(strides, degrees, strict=True), *expert)]
    return _groups(cluster.device_orders, axes, filled, shared=shared)


def closest_groups(cluster: Cluster, layouts: Layouts) -> Groups:
    """The groups of every axis as if it were the innermost one, and those of the expert axes as if
    their stage were. On switched levels no placement keeps more of their members together.

    With stride s an axis keeps gcd(s·d, D)/s members in a domain of D devices. That is at most
    gcd(d, D), since gcd(s·d, D) divides s·gcd(d, D).
    """
    x = layouts
    near = np.ones_like(x.pp)
    dense = [(near, degree, near) for degree in (x.tp, x.cp, x.dp_shard, x.dp_replicate, x.pp)]
    expert = [(stride, degree, x.pp) for stride, degree in _expert_strides_and_degrees(x).values()]
    return _groups(cluster.device_orders, [*dense, *expert], np.zeros_like(x.pp))


def innermost_group(cluster: Cluster, degrees: Array) -> Group:
    """The groups of innermost axes of these degrees."""
    return _group(cluster.device_orders, np.ones_like(degrees), degrees)


def expert_groups_beside_pipeline(
    cluster: Cluster, meshes: Layouts, closest: Groups, filled: Array
) -> dict[str, Group]:
    """All groups that the expert axes of these meshes may have, by axis.

    They come in the order of the entries in the tables of `closest`, the closest groups of the
    meshes: in the first filling of a torus those with the pipeline's axis outside the stage, then
    those with it inside, then in the next filling. `filled` holds the fillings as rows of (order,
    block).
    """
    found = {}
    fillings = np.repeat(filling_code(*filled.T), 2)
    for name, (stride, degree) in _expert_strides_and_degrees(meshes).items():
        first, _ = distinct(getattr(closest, name).code)
        pipeline_outside = stride[first]
        pipeline_inside = pipeline_outside * meshes.pp[first]
        both = np.concatenate([pipeline_outside, pipeline_inside])
        found[name] = _group(
            cluster.device_orders,
            np.tile(both, len(fillings) // 2),
            np.tile(degree[first], len(fillings)),
            np.repeat(fillings, len(first)),
        )
    return found


def _expert_strides_and_degrees(x: Layouts) -> dict[str, tuple[Array, Array]]:
    """Stride and degree of each expert axis. The axes fold over the devices of one pipeline stage,
    innermost first: etp, ep, then expert data parallelism. A stage is numbered here without the
    pipeline's axis: where an axis crosses that, its stride is pp times as large."""
    routed = x.etp * x.ep
    stage = x.dp_replicate * x.dp_shard * x.cp * x.tp
    replicas = np.maximum(_devices_sharing_experts(x, stage) // routed, 1)
    return {"ep": (x.etp, x.ep), "etp": (np.ones_like(x.etp), x.etp), "edp": (routed, replicas)}


def _strides(degrees: Sequence[Array], placement: Array) -> Array:
    """How far apart neighbours on each axis are, (axes, n): the product of the degrees inside."""
    degree = np.stack(degrees)
    row = np.arange(len(placement))
    strides = np.empty_like(degree)
    inside = np.ones_like(placement)
    for axis in _ORDERS[placement].T:
        strides[axis, row] = inside
        inside = inside * degree[axis, row]
    return strides


def _devices_sharing_experts(x: Layouts, stage: Array) -> Array:
    """How many devices of a stage an expert's parameters are sharded over."""
    return np.where(x.dp_shard > 1, stage // x.dp_replicate, stage)


def _groups(
    device_orders: DeviceOrders,
    axes: Sequence[tuple[Array, Array, Array]],
    filled: Array,
    *,
    shared: bool = True,
) -> Groups:
    """The groups of axes that are given in the order of the fields of Groups, each as its stride,
    its degree and whatever else tells its groups apart. `filled` (n,) is the filling of a torus."""

    def alike(*columns: Array) -> tuple[Array, Array]:
        return distinct(*columns) if shared else all_distinct(len(columns[0]))

    firsts, within = zip(*(alike(*axis) for axis in axes), strict=True)
    columns = zip(*((stride, degree, filled) for stride, degree, _ in axes), strict=True)
    told = (
        np.concatenate([of[rows] for of, rows in zip(column, firsts, strict=True)])
        for column in columns
    )
    table = _group(device_orders, *told)
    counts = [len(rows) for rows in firsts]
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
    """The positions of groups that differ, in order of their axes, and for each of all groups which
    of those it is. Groups of an axis are alike where they join their members by the same links and
    are whole or not: in different fillings of a torus they may be."""
    links = np.where(table.members > 1, table.stride, 1)
    columns = np.concatenate([axis[None], table.members, links, table.whole[None]])
    _, first, entry = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    return first, entry.ravel()


def groups_of_every_stride(cluster: Cluster, degree: Array, filled: Array) -> tuple[Group, int]:
    """The groups of these degrees with every stride that an axis may have, in each of these
    fillings of a torus, and how many there are of each degree. Those of one filling and stride
    stand in a row, in the order of the degrees."""
    n = cluster.num_devices
    fillings = filling_code(*filled.T)
    filled, stride, degrees = (
        part.ravel()
        for part in np.meshgrid(
            fillings, np.array(divisors(n)), degree.astype(np.int64), indexing="ij"
        )
    )
    groups = _group(
        cluster.device_orders, np.where(stride * degrees <= n, stride, 1), degrees, filled
    )
    return groups, len(filled) // len(degree)


def _group(
    device_orders: DeviceOrders, stride: Array, degree: Array, filled: Array | None = None
) -> Group:
    """The groups of axes with these strides and degrees, in these fillings of a torus."""
    if filled is None or not filled.any():
        domains = device_orders.default_domains[:, None]
        members, stride_in_dim = _members_and_strides(domains, stride, degree)
        return Group.of(members, stride_in_dim, _is_whole(domains, stride, degree))
    domains = device_orders.domains[filled].T
    whole = _is_whole(domains, stride, degree)
    members, stride = _members_and_strides(domains, stride, degree)
    dims = device_orders.dims[filled].T
    steps = device_orders.strides[filled].T
    row = np.arange(len(filled))
    of_dim = np.ones((2, len(device_orders.lengths), len(row)))
    for dim, joined, apart in zip(dims[::-1], members[::-1], (steps * stride)[::-1], strict=True):
        of_dim[0, dim, row] *= joined
        of_dim[1, dim, row] = np.where(joined > 1, apart, of_dim[1, dim, row])
    return Group.of(of_dim[0], of_dim[1], whole)


def _is_whole(domains: Array, stride: Array, degree: Array) -> Array:
    """(n,): whether both an axis and what lies inside it cover whole domains, or divide them."""
    spans = (stride[None, :], (stride * degree)[None, :])
    return np.all([(span % domains == 0) | (domains % span == 0) for span in spans], axis=(0, 1))


def _members_and_strides(domains: Array, stride: Array, degree: Array) -> tuple[Array, Array]:
    """For each of the nested domains: how many members it joins of those that the domain inside it
    keeps together, and how far apart these are, counted in domains inside it; (domains, n)."""
    span = stride * degree
    together = np.maximum(np.gcd(span[None, :], domains) // stride[None, :], 1)
    together[-1] = degree  # the last joins everything
    together = np.minimum(together, degree)
    inner = np.concatenate([np.ones_like(together[:1]), together[:-1]])
    below = np.concatenate([np.ones_like(domains[:1]), domains[:-1]])
    return together / inner, np.maximum(stride[None, :] // below, 1)
