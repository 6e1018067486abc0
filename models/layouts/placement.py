"""The communication groups of many layouts: tables of models.layouts.groups.

Members of a group are joined by links of the cluster's dims: its levels of links, or the dimensions
of a torus. A *filling* is the order in which the devices of a torus are numbered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.columns import Array, Columns, SharedRows, distinct
from models.compilation.compiled import compiled
from models.layouts.groups import (
    AXIS_GROUPS,
    DeviceOrder,
    Groups,
    MeshRow,
    device_order,
    groups_for,
    is_whole,
    set_axes,
    set_group,
)
from models.spec.device_order import DeviceOrders, filling_code
from models.spec.hardware import Cluster
from models.spec.layout import DEGREES, TORUS_KNOBS, Layouts

_MESH = np.dtype([(name, "i8") for name in MeshRow.__annotations__])


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
        """Return the groups at these positions."""
        return AxisGroups(
            self.members.take(rows, axis=1), self.stride.take(rows, axis=1), self.whole.take(rows)
        )

    def crosses(self, dims: Array) -> Array:
        """Return for each group whether it has several members on one of these dims of the cluster,
        (n,). `dims` is a mask, (dims,)."""
        return np.any((self.members > 1) & dims[:, None], axis=0)

    def covers(self, device_orders: DeviceOrders) -> Array:
        """Return for each group whether it covers its dims, (n,): on every dim where it has several
        members, members times stride (the distance between them) is the length of the dim."""
        lengths = device_orders.lengths[:, None]
        return np.all((self.members == 1) | (self.members * self.stride == lengths), axis=0)


@dataclass(frozen=True, slots=True)
class LayoutGroups(Columns):
    """Holds the communication groups of n layouts on a cluster, by axis, in the order of their
    numbers; `edp` is expert data parallelism. Few groups of an axis differ, so the layouts share a
    table of them."""

    tp: SharedRows[AxisGroups]
    cp: SharedRows[AxisGroups]
    dp_shard: SharedRows[AxisGroups]
    dp_replicate: SharedRows[AxisGroups]
    pp: SharedRows[AxisGroups]
    ep: SharedRows[AxisGroups]
    etp: SharedRows[AxisGroups]
    edp: SharedRows[AxisGroups]


def groups(cluster: Cluster, layouts: Layouts) -> LayoutGroups:
    """Return the communication groups of every axis of n layouts. Those of layouts with equal
    degrees and placements are worked out once."""
    mesh_columns = [getattr(layouts, name) for name in (*DEGREES, "placement", *TORUS_KNOBS)]
    # One layout of each distinct mesh, and the number of its mesh for each layout.
    mesh_rows, mesh_of_layout = distinct(*mesh_columns)
    return groups_of_meshes(cluster, layouts.take(mesh_rows)).take(mesh_of_layout)


def groups_of_meshes(cluster: Cluster, meshes: Layouts) -> LayoutGroups:
    """Return the communication groups of every axis of n meshes. Use `groups` where meshes repeat:
    this function works out every row."""
    orders = cluster.device_orders
    rows = np.zeros(len(meshes), dtype=_MESH)
    for name in (*DEGREES, "placement"):
        rows[name] = getattr(meshes, name)
    if orders.has_choice:
        rows["filling"] = filling_code(meshes.torus_axes, meshes.torus_block)
    degrees, distances = np.empty((2, len(rows), AXIS_GROUPS), dtype=np.int64)
    _fill_axes(rows, degrees, distances)
    order = device_order(orders)
    return LayoutGroups(
        *(
            _shared_groups(order, distance, degree, rows["filling"])
            for distance, degree in zip(distances.T, degrees.T, strict=True)
        )
    )


@compiled
def _fill_axes(rows: Array, degree: Array, distance: Array) -> None:
    for i in range(len(rows)):
        set_axes(rows[i], degree[i], distance[i])


def _shared_groups(
    order: DeviceOrder, distance: Array, degree: Array, filling: Array
) -> SharedRows[AxisGroups]:
    """Return the communication groups of one axis of n meshes, of which few differ, as a table that
    the meshes share. The axis has, in each mesh, a `distance` between neighbours, a `degree` and
    the number of the torus' `filling` (0 on other fabrics), all (n,)."""
    first, entry = distinct(distance, degree, filling)
    table = _table(order, distance[first], degree[first], filling[first])
    if filling.any():  # Different fillings may give equal groups, which then are one entry.
        first, merged = _distinct_entries(table)
        table, entry = table.take(first), merged.take(entry)
    return SharedRows(table, entry)


def _distinct_entries(table: AxisGroups) -> tuple[Array, Array]:
    """Return the positions of the distinct groups of a table, and for each group the number of the
    distinct one that it equals. Groups are equal where they have as many members on each dim, the
    same stride on the dims where they have several, and the same `whole`."""
    links = np.where(table.members > 1, table.stride, 1)
    columns = np.concatenate([table.members, links, table.whole[None]])
    _, first, entry = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    return first, entry.ravel()


def _table(order: DeviceOrder, distance: Array, degree: Array, filling: Array) -> AxisGroups:
    """Return n communication groups, each of an axis with this distance between neighbours, degree
    and filling of a torus; all (n,)."""
    groups = groups_for(order, len(degree))
    whole = np.empty(len(degree), dtype=bool)
    _fill_table(order, distance, degree, filling, groups, whole)
    return AxisGroups(groups.members.T, groups.stride.T, whole)


@compiled
def _fill_table(
    order: DeviceOrder, distance: Array, degree: Array, filling: Array, groups: Groups, whole: Array
) -> None:
    """Write n groups, each of one axis, to `groups`, and to `whole` (n,) whether the group
    straddles no border of a domain. `distance`, `degree` and `filling` (n,) describe the axes."""
    for i in range(len(degree)):
        set_group(order, filling[i], distance[i], degree[i], groups, i)
        whole[i] = is_whole(order.domains[filling[i]], distance[i], degree[i])
