"""Nodes that a scheduler already holds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from models.advice.allocation import Node
from service.schemas.wire import Degree, Document, Wire

Label = Annotated[str, Field(min_length=1, max_length=120)]


class NodeFields(Wire):
    name: Label
    chips: Degree
    """Held of it."""
    domain: Label | None = None
    """Its scale-up domain, such as a rack; without one the node is a domain."""
    leaf: Annotated[str, Field(max_length=120)] = ""
    """The switch that it hangs from: neighbours in rank are kept below one leaf. Traffic is priced
    by the levels of the cluster, which are alike everywhere; where leaves hold other numbers of
    chips, `assumptions` says so."""


class AllocationFields(Wire):
    nodes: Annotated[list[NodeFields], Field(min_length=1, max_length=20_000)]
    """Ranks count through them in this order, save that those of a leaf, and in it those of a
    domain, come together, and of a leaf the domain of most chips first."""

    def build(self) -> list[Node]:
        """Returns the nodes. A node without a scale-up domain is a domain by itself."""
        return [
            Node(name=node.name, chips=node.chips, domain=node.domain or node.name, leaf=node.leaf)
            for node in self.nodes
        ]

    @property
    def chips(self) -> int:
        return sum(node.chips for node in self.nodes)


class HostAnswer(Document):
    node: str
    domain: str
    group: int
    """Number of the group within its domain, from 0."""
    first_rank: int
    ranks: int
    """From the first on, one a device."""
    chips: int


class AllocationAnswer(Document):
    """The place of every rank. Ranks count as layouts do, from the innermost links outwards."""

    chips_per_group: int
    """Every domain in use hosts groups of so many chips."""
    hosts: list[HostAnswer]
    spares: dict[str, int]
    """Chips left over, by node."""
