"""The catalogue: what ships with the service, and what its users register."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, StringConstraints

from service.schemas.architecture import OwnModel
from service.schemas.cluster import ChipFields, ClusterFields
from service.schemas.wire import Document, Page, Wire

Kind = Literal["chips", "clusters", "architectures", "stacks"]
OwnKind = Literal["chips", "clusters", "architectures"]
OwnName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,63}$")]
"""In lower case, so that one thing has one name."""


class ChipEntry(Wire):
    name: OwnName
    chip: ChipFields


class ClusterEntry(Wire):
    name: OwnName
    cluster: ClusterFields


class ArchitectureEntry(Wire):
    name: OwnName
    model: OwnModel


Entry = ChipEntry | ClusterEntry | ArchitectureEntry


class CatalogEntry(Document):
    kind: Kind
    name: str
    source: Literal["shipped", "registered"]
    version: int | None
    """The version of a registered entry, from 1. Shipped entries have none."""
    pinned_name: str | None
    """`name@version` of a registered entry: asks for this version wherever a name may stand; `name`
    for the latest."""
    created_at: AwareDatetime | None
    aliases: list[str]
    given: dict[str, Any] | None
    """A registered entry as it was posted, with the versions of what it names."""
    resolved: dict[str, Any]
    """The entry with every default filled in, as the service uses it."""
    assumptions: list[str]
    """Assumptions the service makes because it knows less of a registered entry than of a shipped
    one."""


class CatalogPage(Page):
    items: list[CatalogEntry]
