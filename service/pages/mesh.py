"""The mesh of a layout on the machines: which chip of which node has which part of the model. A
*node* of the picture is a scale-up domain. A *group* is the chips that differ only along one axis
of the mesh, such as those of one tensor-parallel group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from service.pages.glossary import LAYOUT
from service.pages.torus import Torus, torus_of

_MOST_ROWS = 12  # more of them are no longer seen at a glance
_MOST_CHIPS_OF_ONE_ROW = 24  # three boxes of eight lie beside each other on a wide screen
_COLUMNS = 8  # of chips in a node: two rows of NVL72's trays, or a whole box of eight


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    words: str
    degree: int
    stride: int
    """The distance in ranks from one member of a group to the next."""
    reach: int
    """The number of consecutive ranks that a group spans, those of other groups included."""
    within_domain: bool


@dataclass(frozen=True, slots=True)
class ChipDrawn:
    rank: int
    stage: int
    tp_rank: int


@dataclass(frozen=True, slots=True)
class NodeDrawn:
    number: int
    """From 0."""
    chips: tuple[ChipDrawn, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """Nodes whose chips have the same pipeline stages."""

    stages: tuple[int, ...]
    nodes: tuple[NodeDrawn, ...]
    hidden: int
    """The number of such nodes that are not drawn."""


@dataclass(frozen=True, slots=True)
class Mesh:
    axes: tuple[Axis, ...]
    domain: int
    """Devices of a node: of a domain whose links are fast."""
    num_devices: int
    columns: int
    rows: tuple[Row, ...]
    hidden_rows: int
    torus: Torus | None = None

    @property
    def num_stages(self) -> int:
        return next((axis.degree for axis in self.axes if axis.name == "pp"), 1)


def mesh_of(
    layout: Mapping[str, Any],
    num_devices: int,
    domain: int | None,
    links: Sequence[Mapping[str, Any]] = (),
) -> Mesh:
    """Returns the picture of a layout's mesh, axes placed innermost first. `domain` is the number
    of chips in a scale-up domain, each drawn as a node. Where it is None there are no nodes, but a
    torus if `links` form one."""
    axes = tuple(_axes(layout, domain or num_devices))
    if domain is None:  # on a torus, or without scale-up links
        strides = [(axis.name, axis.stride, axis.degree) for axis in axes]
        torus = torus_of(layout, strides, links, num_devices)
        return Mesh(
            axes=axes,
            domain=num_devices,
            num_devices=num_devices,
            columns=1,
            rows=(),
            hidden_rows=0,
            torus=torus,
        )
    nodes = [
        NodeDrawn(first // domain, tuple(_chips(axes, first, min(first + domain, num_devices))))
        for first in range(0, num_devices, domain)
    ]
    rows = _rows_of_nodes(nodes, domain)
    return Mesh(
        axes=axes,
        domain=domain,
        num_devices=num_devices,
        columns=min(domain, _COLUMNS),
        rows=tuple(rows[:_MOST_ROWS]),
        hidden_rows=max(len(rows) - _MOST_ROWS, 0),
    )


def _axes(layout: Mapping[str, Any], domain: int) -> Iterator[Axis]:
    """Yields the mesh axes of degree above 1, innermost first, with the distance in ranks between
    neighbours of a group. `domain` is the number of chips in a scale-up domain."""
    stride = 1
    for name in layout["placement"]:
        degree = layout[name]
        reach = stride * degree
        if degree > 1:
            # Groups stay inside a domain where their reach divides it: none straddles two.
            inside = reach <= domain and domain % reach == 0
            yield Axis(name, LAYOUT[name].label, degree, stride, reach, inside)
        stride = reach


def _chips(axes: tuple[Axis, ...], first: int, end: int) -> Iterator[ChipDrawn]:
    """Yields the chips of ranks `first` to `end` - 1 with their pipeline stage and tensor-parallel
    rank."""
    by_name = {axis.name: axis for axis in axes}

    def coordinate(name: str, rank: int) -> int:
        """Returns the coordinate of a rank on an axis; 0 on an axis of degree 1."""
        axis = by_name.get(name)
        # Ranks count the innermost axis first, as digits of a number with mixed bases.
        return 0 if axis is None else rank // axis.stride % axis.degree

    for rank in range(first, end):
        yield ChipDrawn(rank, coordinate("pp", rank), coordinate("tp", rank))


def _rows_of_nodes(nodes: list[NodeDrawn], domain: int) -> list[Row]:
    """Returns a row for consecutive nodes with the same pipeline stages. A row shows one of its
    nodes and counts the others. If all nodes have the same stages, the only row shows several."""
    groups = [
        (stages, list(group))
        for stages, group in groupby(nodes, lambda node: tuple({chip.stage for chip in node.chips}))
    ]
    shown = 1 if len(groups) > 1 else max(_MOST_CHIPS_OF_ONE_ROW // domain, 1)
    return [
        Row(tuple(sorted(stages)), tuple(nodes_alike[:shown]), max(len(nodes_alike) - shown, 0))
        for stages, nodes_alike in groups
    ]
