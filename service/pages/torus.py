"""A layout on a torus: planes of chips, and which axis of the mesh each link serves.

A *slice* is one torus of the cluster, and a *dim* is one of its directions. A *filling* is an order
in which ranks are laid out on it. A *place* has the coordinates of a chip, one for each dim.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from models.spec.device_order import filling_code, orders_of
from models.spec.layout import TORUS_AXES

_RING = "ring"
_LINE = "line"
_MOST_CHIPS = 256  # in all planes: more of them are a pattern that nobody follows
_ALONG = ("across", "up", "deep")
"""Directions of a picture, in the order in which the dims of a torus take them."""

Axes = Sequence[tuple[str, int, int]]
"""Axes of the mesh from the inside out: name, stride and degree."""
Place = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """A link of a chip to the next one along a dim."""

    along: str
    """The direction in the picture."""
    axis: str
    """The outermost axis of the mesh in which both ends differ: its groups reach over the link."""
    closes: bool
    """It leads from the last chip of a line back to the first."""


@dataclass(frozen=True, slots=True)
class TorusChip:
    column: int
    row: int
    stage: int
    """The pipeline stage, counted from 0."""
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Plane:
    number: int
    chips: tuple[TorusChip, ...]
    alike: int
    """Other planes that look the same."""


@dataclass(frozen=True, slots=True)
class Torus:
    dims: tuple[str, ...]
    """Names, in the order of the directions of the picture."""
    lengths: tuple[int, ...]
    planes: tuple[Plane, ...]
    hidden: int
    """Planes of the slice that are neither drawn nor like one that is."""
    other_slices: int
    devices_of_place: int
    """Devices, each with a rank, in one chip of the picture: two with a TPU v7x."""
    spans: Mapping[str, tuple[str, ...]]
    """The dims along which the groups of each axis lie."""


def is_torus(links: Sequence[Mapping[str, Any]]) -> bool:
    return any(link["kind"] in (_RING, _LINE) for link in links)


def torus_of(
    layout: Mapping[str, Any], axes: Axes, links: Sequence[Mapping[str, Any]], num_devices: int
) -> Torus | None:
    """Returns the picture of the first slice of a cluster, which stands for the others. `axes` are
    those of the mesh, and `links` come innermost first. None where the links form no torus of up to
    three dims, or the layout fills only a part of a slice."""
    rings = [(index, link) for index, link in enumerate(links) if link["kind"] in (_RING, _LINE)]
    if not rings or len(rings) > len(_ALONG):
        return None
    lengths = tuple(_chips_along_dim(links, index) for index, _ in rings)
    places = _places(layout, links, [index for index, _ in rings])
    if num_devices < len(places):
        return None  # a part of a slice is not a whole torus
    ranks = dict[Place, int]()
    for rank, place in enumerate(places):  # the first rank stands for all devices of a chip
        ranks.setdefault(place, rank)
    wraps = [
        # In a ring of two the wraparound link joins the chips that are neighbours already.
        link["kind"] == _RING and length > 2
        for (_, link), length in zip(rings, lengths, strict=True)
    ]
    planes = _planes(lengths, ranks, axes, wraps)
    shown = planes[: max(_MOST_CHIPS // len(planes[0].chips), 1)]
    names = tuple(str(link["name"]) for _, link in rings)
    return Torus(
        dims=names,
        lengths=lengths,
        planes=tuple(shown),
        hidden=sum(1 + plane.alike for plane in planes[len(shown) :]),
        other_slices=num_devices // len(places) - 1,
        devices_of_place=len(places) // prod(lengths),
        spans=_dims_of_axes(names, axes, places, num_devices),
    )


def _chips_along_dim(links: Sequence[Mapping[str, Any]], index: int) -> int:
    """Returns the number of chips along the dim at an index of `links`, whose domains count all
    chips from the innermost link outwards."""
    inside = links[index - 1]["domain"] if index else 1
    return int(links[index]["domain"] // inside)


def _places(
    layout: Mapping[str, Any], links: Sequence[Mapping[str, Any]], dims: Sequence[int]
) -> list[Place]:
    """Returns the coordinates of each rank of a slice, by rank: layouts fill a torus in different
    orders. `dims` are the positions in `links` of the torus's dims."""
    domains = tuple(int(link["domain"]) for link in links)
    rings = tuple((links[dim]["name"], dim, links[dim]["kind"] == _RING) for dim in dims)
    orders = orders_of(domains, rings)
    filling = _filling_row(layout)
    ranks = np.arange(domains[max(dims)])
    coordinates = np.zeros((len(ranks), len(dims)), dtype=int)
    # Each step of a filling goes along one dim until it has placed `domain` ranks.
    inside = 1
    steps = zip(orders.dims[filling], orders.domains[filling], orders.strides[filling], strict=True)
    for dim, domain, stride in steps:
        if dim in dims:
            # Rank r is number r % domain of its domain. After every `inside` ranks the next one
            # lies `stride` chips further along this dim.
            coordinates[:, dims.index(dim)] += ranks % domain // inside * stride
        inside = domain
    return [tuple(place) for place in coordinates.tolist()]


def _filling_row(layout: Mapping[str, Any]) -> int:
    """Returns the row of DeviceOrders (models.spec.device_order) that has the order in which a
    layout's ranks fill a torus."""
    order = TORUS_AXES.index(tuple(layout["torus_axes"] or TORUS_AXES[0]))
    return int(filling_code(np.array(order), np.array(layout["torus_block"] or 1)))


def _planes(
    lengths: Sequence[int], ranks: Mapping[Place, int], axes: Axes, wraps: Sequence[bool]
) -> list[Plane]:
    """Returns the planes of a slice. Of planes that look alike only the first is returned, with the
    number of the others. `lengths` are the chips along each dim, `ranks` maps coordinates to ranks,
    and `wraps` says which dims have a wraparound link."""
    chips_by_plane = defaultdict[int, list[TorusChip]](list)
    pp_axes = [(stride, degree) for name, stride, degree in axes if name == "pp"]
    pp_stride, pp_degree = pp_axes[0] if pp_axes else (1, 1)  # (1, 1): every rank is on stage 0
    for place in sorted(ranks):
        column, row, plane = (*place, 0, 0)[: len(_ALONG)]  # a torus may have fewer dims
        stage = ranks[place] // pp_stride % pp_degree  # the rank's coordinate on the pp axis
        links = tuple(_links(place, lengths, ranks, axes, wraps))
        chips_by_plane[plane].append(TorusChip(column, row, stage, links))
    planes_alike = defaultdict[tuple[TorusChip, ...], list[int]](list)
    for plane, chips in chips_by_plane.items():
        planes_alike[tuple(chips)].append(plane)
    return [Plane(alike[0], chips, len(alike) - 1) for chips, alike in planes_alike.items()]


def _links(
    place: Place,
    lengths: Sequence[int],
    ranks: Mapping[Place, int],
    axes: Axes,
    wraps: Sequence[bool],
) -> Iterator[Link]:
    """Yields the links from a chip to the next one along each dim, with the mesh axis that each
    serves. `place` has the coordinates of the chip."""
    for dim, length in enumerate(lengths):
        following = list(place)
        following[dim] = (place[dim] + 1) % length
        wraps_around = following[dim] == 0
        if length > 1 and (wraps[dim] or not wraps_around):
            axis = _outermost_difference(axes, ranks[place], ranks[tuple(following)])
            # Planes are drawn apart, and a link to another plane as a short line at its chip, which
            # looks the same for a wraparound link.
            yield Link(_ALONG[dim], axis, wraps_around and _ALONG[dim] != "deep")


def _outermost_difference(axes: Axes, rank: int, neighbour: int) -> str:
    """Returns the outermost mesh axis on which the coordinates of two ranks differ, whose groups
    thus use the link between them; empty where none differs."""
    differing = [
        name
        for name, stride, degree in axes
        if rank // stride % degree != neighbour // stride % degree
    ]
    return differing[-1] if differing else ""  # `axes` are from the inside out


def _dims_of_axes(
    names: Sequence[str], axes: Axes, places: Sequence[Place], num_devices: int
) -> dict[str, tuple[str, ...]]:
    """Returns for each mesh axis the dims along which its first group lies. A group that leaves the
    slice also spans the network between slices."""
    spans = {}
    for axis, stride, degree in axes:
        # The first group has rank 0 and every `stride`-th rank after it.
        members = [rank * stride for rank in range(degree) if rank * stride < num_devices]
        inside = [places[rank] for rank in members if rank < len(places)]
        dims = [
            name
            for dim, name in enumerate(names)
            if len({coordinates[dim] for coordinates in inside}) > 1
        ]
        if len(inside) < len(members):
            dims.append("the network between slices")
        spans[axis] = tuple(dims)
    return spans
