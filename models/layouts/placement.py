"""Mesh axes on the fabric: the links that each axis of a layout crosses.

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

from models.columns import Array, Columns, SharedRows, distinct
from models.spec.device_order import DeviceOrders, filling_code
from models.spec.hardware import Cluster
from models.spec.layout import AXES, DEGREES, PLACEMENTS, TORUS_KNOBS, Layouts

_ORDERS = np.array([[AXES.index(axis) for axis in order] for order in PLACEMENTS])
_TP, _CP, _SHARD, _REPLICATE, _PP = range(5)


@dataclass(frozen=True, slots=True)
class AxisGroups:
    """Holds n communication groups: the devices that one axis, or a product of axes, joins."""

    members: Array
    """The number of members that each dim of the cluster joins, (dims, n)."""
    stride: Array
    """The number of groups that share a link of a dim, where the dim is a ring, (dims, n)."""
    whole: Array
    """True where no group straddles a domain, (n,)."""

    def take(self, rows: Array) -> AxisGroups:
        return AxisGroups(
            self.members.take(rows, axis=1),
            self.stride.take(rows, axis=1),
            self.whole.take(rows),
        )

    def split(self, ends: Array) -> list[AxisGroups]:
        """Return the groups in parts: those up to each of these ends, from the end before it."""
        columns = (
            np.split(of, ends[:-1], axis=-1) for of in (self.members, self.stride, self.whole)
        )
        return [AxisGroups(*parts) for parts in zip(*columns, strict=True)]

    def crosses(self, dims: Array) -> Array:
        """Say of each group whether some members are joined by one of these dims (a mask), (n,)."""
        return np.any((self.members > 1) & dims[:, None], axis=0)

    def covers(self, device_orders: DeviceOrders) -> Array:
        """Say of each group whether it covers its dims, (n,): on every dim that joins several
        members, these are all devices that the axes inside leave of the dim."""
        lengths = device_orders.lengths[:, None]
        return np.all((self.members == 1) | (self.members * self.stride == lengths), axis=0)


@dataclass(frozen=True, slots=True)
class LayoutGroups(Columns):
    """Holds the communication groups of n layouts on a cluster, by axis; `edp` is expert data
    parallelism. Few groups of an axis differ, so the layouts share a table of them."""

    tp: SharedRows[AxisGroups]
    cp: SharedRows[AxisGroups]
    dp_shard: SharedRows[AxisGroups]
    dp_replicate: SharedRows[AxisGroups]
    pp: SharedRows[AxisGroups]
    ep: SharedRows[AxisGroups]
    etp: SharedRows[AxisGroups]
    edp: SharedRows[AxisGroups]


def groups(cluster: Cluster, layouts: Layouts) -> LayoutGroups:
    """Return the groups of every axis of every layout."""
    first, code = distinct(
        *(getattr(layouts, name) for name in (*DEGREES, "placement", *TORUS_KNOBS))
    )
    return groups_of_meshes(cluster, layouts.take(first)).take(code)


def groups_of_meshes(cluster: Cluster, meshes: Layouts) -> LayoutGroups:
    """Return the groups of every axis of every mesh, for meshes that all differ."""
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
    axes = [*zip(strides, degrees, strict=True), *expert]
    return _groups(cluster.device_orders, axes, filled)


def _expert_strides_and_degrees(x: Layouts) -> dict[str, tuple[Array, Array]]:
    """Return stride and degree of each expert axis. The axes fold over the devices of one pipeline
    stage, innermost first: etp, ep, then expert data parallelism. Strides count devices of a stage,
    without the pipeline's axis: an axis that lies outside the pipeline's has a stride pp times as
    large."""
    routed = x.etp * x.ep
    stage = x.dp_replicate * x.dp_shard * x.cp * x.tp
    replicas = np.maximum(_devices_sharing_experts(x, stage) // routed, 1)
    return {"ep": (x.etp, x.ep), "etp": (np.ones_like(x.etp), x.etp), "edp": (routed, replicas)}


def _strides(degrees: Sequence[Array], placement: Array) -> Array:
    """Return the distance between neighbours on each axis, (axes, n): the product of the degrees
    inside."""
    degree = np.stack(degrees)
    row = np.arange(len(placement))
    strides = np.empty_like(degree)
    inside = np.ones_like(placement)
    for axis in _ORDERS[placement].T:
        strides[axis, row] = inside
        inside = inside * degree[axis, row]
    return strides


def _devices_sharing_experts(x: Layouts, stage: Array) -> Array:
    """Return the number of devices of a stage over which an expert's parameters are sharded."""
    return np.where(x.dp_shard > 1, stage // x.dp_replicate, stage)


def _groups(
    device_orders: DeviceOrders,
    axes: Sequence[tuple[Array, Array]],
    filled: Array,
) -> LayoutGroups:
    """Return the groups of axes that are given in the order of the fields of Groups, each as its
    stride and its degree. `filled` (n,) is the filling of a torus."""
    firsts, within = zip(*(distinct(*axis, filled) for axis in axes), strict=True)
    columns = zip(*((*axis, filled) for axis in axes), strict=True)
    told = (
        np.concatenate([of[rows] for of, rows in zip(column, firsts, strict=True)])
        for column in columns
    )
    table = _group(device_orders, *told)
    counts = [len(rows) for rows in firsts]
    ends = np.cumsum(counts)
    codes = [start + code for start, code in zip((0, *ends), within, strict=False)]
    if filled.any():
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
    return LayoutGroups(*parts)


def _distinct_entries(table: AxisGroups, axis: Array) -> tuple[Array, Array]:
    """Return the positions of groups that differ, in order of their axes, and for each of all
    groups the one of those that it is like. Groups of an axis are alike where they join as many
    members by the same links, and both are whole or both are not. In different fillings of a torus
    they may be."""
    links = np.where(table.members > 1, table.stride, 1)
    columns = np.concatenate([axis[None], table.members, links, table.whole[None]])
    _, first, entry = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    return first, entry.ravel()


def _group(device_orders: DeviceOrders, stride: Array, degree: Array, filled: Array) -> AxisGroups:
    """Return the groups of axes with these strides and degrees, in these fillings of a torus."""
    if not filled.any():
        domains = device_orders.default_domains[:, None]
        members, stride_in_dim = _members_and_strides(domains, stride, degree)
        return AxisGroups(members, stride_in_dim, _is_whole(domains, stride, degree))
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
    return AxisGroups(of_dim[0], of_dim[1], whole)


def _is_whole(domains: Array, stride: Array, degree: Array) -> Array:
    """Say of each axis whether both it and what lies inside it cover whole domains, or divide them,
    (n,)."""
    spans = (stride[None, :], (stride * degree)[None, :])
    return np.all([(span % domains == 0) | (domains % span == 0) for span in spans], axis=(0, 1))


def _members_and_strides(domains: Array, stride: Array, degree: Array) -> tuple[Array, Array]:
    """Return two arrays (domains, n) for each of the nested domains: how many members it joins of
    those that the domain inside it keeps together, and how far apart these are, counted in domains
    inside it."""
    span = stride * degree
    together = np.maximum(np.gcd(span[None, :], domains) // stride[None, :], 1)
    together[-1] = degree  # The last domain joins everything.
    together = np.minimum(together, degree)
    inner = np.concatenate([np.ones_like(together[:1]), together[:-1]])
    below = np.concatenate([np.ones_like(domains[:1]), domains[:-1]])
    return together / inner, np.maximum(stride[None, :] // below, 1)
