"""Lists the catalogue, shipped entries and registered ones, and registers new versions.

*Shipped* entries come with the service, *registered* ones from tenants. The *kind* of an entry is
chips, clusters, architectures or stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from models.errors import UnknownName
from models.spec import catalogue
from models.spec.architecture import Architecture
from models.spec.hardware import Chip, Fabric
from models.spec.prices import list_prices
from models.spec.stack import Stack
from models.spec.switches import releases, switches_of
from service.errors import NameReserved, NameTaken, NotFound
from service.resolve.assumptions import chip_assumptions
from service.resolve.explicit_models import explicit_fields
from service.resolve.profiles import active_profile
from service.resolve.resolution import SHIPPED_NAMES, Resolver, pinned_name
from service.resolve.tpu_slices import is_slice_name
from service.runtime.idempotency import CreatedResource, SaveRows
from service.schemas.catalog import CatalogEntry, ChipEntry, ClusterEntry, Entry, Kind, OwnKind
from service.schemas.cluster import ClusterPreset
from service.schemas.list_query import ListQuery
from service.store import Rows, UseCase
from service.store.cursors import cut_page, read_cursor
from service.store.tables import RegisteredEntryRow

_SHARES_NAMES_WITH: dict[OwnKind, OwnKind] = {"chips": "clusters", "clusters": "chips"}
"""A preset names a chip or a cluster: no name may be of both."""

_SHIPPED_VALUES: dict[Kind, Any] = {
    "chips": catalogue.chips,
    "clusters": catalogue.fabrics,
    "architectures": catalogue.architectures,
    "stacks": catalogue.stacks,
}
_FIND_SHIPPED: dict[Kind, Callable[[str], Any]] = {
    "chips": catalogue.chip,
    "clusters": catalogue.fabric,
    "architectures": catalogue.architecture,
    "stacks": catalogue.stack,
}


class Catalog(UseCase):
    def names(self, kind: Kind) -> list[str]:
        """Returns the names of all entries of a kind, shipped and registered, without their
        aliases."""
        shipped = {_entry_id(value) for value in _SHIPPED_VALUES[kind]().values()}
        with self._store.reading() as rows:
            return sorted({*shipped, *rows.registered_entries.names(kind)})

    def page(self, kind: Kind, query: ListQuery) -> dict[str, Any]:
        """Returns a page of the entries of a kind, in the order of their names, with the latest
        version of each registered one."""
        place = f"catalog/{kind}"
        after = read_cursor(place, query.cursor) or ""
        shipped = _shipped_entries(kind)
        with self._store.reading() as rows:
            names = sorted({*shipped, *rows.registered_entries.names(kind)})
            following_names = [name for name in names if name > after]
            page, following = cut_page(place, following_names, query.limit, str)
            latest = rows.registered_entries.latest(
                kind, [name for name in page if name not in shipped]
            )
            registered = {row.name: row for row in latest}
            items = [
                _registered_entry(rows, registered[name]) if name in registered else shipped[name]
                for name in page
            ]
        return {"items": [item.model_dump(mode="json") for item in items], "next": following}

    def get(self, kind: Kind, name: str) -> dict[str, Any]:
        """Returns the entry with this name or alias: a registered one, or else a shipped one.
        Raises NotFound."""
        with self._store.reading() as rows:
            row = rows.registered_entries.named(kind, catalogue.normalized_name(name))
            if row is not None:
                return _registered_entry(rows, row).model_dump(mode="json")
        try:
            shipped = _entry_id(_FIND_SHIPPED[kind](name))
        except UnknownName:
            raise NotFound(f"entry among the {kind}", name) from None
        return _shipped_entries(kind)[shipped].model_dump(mode="json")

    def register(self, kind: OwnKind, entry: Entry) -> SaveRows:
        """Returns the function that stores a new name, or a new version of a registered one. The
        caller runs it in the transaction that also keeps the answer (service.runtime.idempotency).

        Raises NameReserved for names that ship or mean a TPU slice. The function that is returned
        raises NameTaken for a chip named like a cluster, or the reverse.
        """
        reserved = {*SHIPPED_NAMES[kind]()}
        # A preset names a chip or a cluster. Names of chips are among those of clusters already.
        if kind == "chips":
            reserved |= {*SHIPPED_NAMES["clusters"]()}
        if entry.name in map(catalogue.normalized_name, reserved) or is_slice_name(entry.name):
            raise NameReserved(kind, entry.name)
        with self._store.reading() as rows:
            content = _stored_content(Resolver(rows), entry)

        def save(rows: Rows) -> CreatedResource:
            """Stores the entry as the next version of its name. A lock makes registrations of one
            name take turns. Raises NameTaken."""
            other = _SHARES_NAMES_WITH.get(kind)  # a preset names a chip or a cluster
            rows.lock(f"catalog:{'presets' if other else kind}:{entry.name}")
            if other and rows.registered_entries.find(other, entry.name, version=None):
                raise NameTaken(other, entry.name)
            last = rows.registered_entries.find(kind, entry.name, version=None)
            version = last.version + 1 if last else 1
            row = RegisteredEntryRow(
                kind=kind,
                name=entry.name,
                version=version,
                created_at=datetime.now(UTC),
                entry=content,
            )
            rows.registered_entries.add(row)
            document = _registered_entry(rows, row).model_dump(mode="json")
            return CreatedResource(f"/v1/catalog/{kind}/{entry.name}@{version}", document)

        return save


def _stored_content(resolver: Resolver, entry: Entry) -> dict[str, Any]:
    """Returns an entry as it was posted, with the chip of a cluster pinned to its version. Raises
    Invalid if no chip, cluster or model can be built from it."""
    content = entry.model_dump(mode="json", exclude_unset=True, exclude={"name"})
    # What is built here is dropped: it only shows that it can be built.
    if isinstance(entry, ChipEntry):
        resolver.chip(entry.chip, "chip")
    elif isinstance(entry, ClusterEntry):
        chip, fabric = resolver.fabric(entry.cluster)
        if entry.cluster.num_chips is not None:
            entry.cluster.build(chip.value, fabric.value)
        content["cluster"]["chip"] = chip.pinned_form
    else:
        resolver.architecture(entry.model)
    return content


def _registered_entry(rows: Rows, row: RegisteredEntryRow) -> CatalogEntry:
    """Returns a registered entry as the catalogue shows it: as it was posted, and with the values
    that it resolves to."""
    return CatalogEntry.from_attributes(
        row,
        source="registered",
        pinned_name=pinned_name(row),
        aliases=[],
        given=row.entry,
        resolved=_resolved_values(Resolver(rows), row),
        assumptions=_entry_assumptions(rows, row),
    )


def _entry_assumptions(rows: Rows, row: RegisteredEntryRow) -> list[str]:
    """Returns the assumptions about the chip of a registered chip or cluster."""
    if row.kind == "architectures":
        return []
    chip, _, _ = Resolver(rows).cluster_parts(ClusterPreset(preset=pinned_name(row)))
    return [*chip_assumptions(chip.value, active_profile(rows))]


def _resolved_values(resolver: Resolver, row: RegisteredEntryRow) -> dict[str, Any]:
    """Returns the values that a registered entry resolves to, with defaults filled in."""
    name = pinned_name(row)
    if row.kind == "chips":
        return _describe(resolver.chip(name, "chip").value)
    if row.kind == "architectures":
        return _describe(resolver.architecture(name).value)
    chip, fabric, size = resolver.cluster_parts(ClusterPreset(preset=name))
    fixed = size.model_dump(mode="json", include={"num_chips", "usd_per_chip_hour"})
    return {"chip": chip.value.id, **_describe(fabric.value), **fixed}


def _shipped_entries(kind: Kind) -> dict[str, CatalogEntry]:
    """Returns the shipped entries of a kind by id, each with its aliases."""
    index: Mapping[str, Any] = _SHIPPED_VALUES[kind]()  # under its id and each alias
    names: dict[str, list[str]] = {}
    for name, value in index.items():
        names.setdefault(_entry_id(value), []).append(name)
    return {
        id_: _shipped_entry(kind, id_, aliases, index[aliases[0]]) for id_, aliases in names.items()
    }


def _shipped_entry(kind: Kind, id_: str, names: list[str], value: Any) -> CatalogEntry:
    """Returns a shipped entry as the catalogue shows it. `names` has all its names, the id among
    them."""
    resolved = _describe(value)
    if kind == "clusters":
        resolved = {"chip": catalogue.fabric_chip(id_), **resolved}
    if kind == "chips":
        resolved["list_prices"] = [asdict(price) for price in list_prices(id_)]
    if kind == "stacks":
        resolved["releases"] = dict(releases(id_))
        resolved["switches"] = [asdict(switch) for switch in switches_of(value)]
    return CatalogEntry(
        kind=kind,
        name=id_,
        source="shipped",
        version=None,
        pinned_name=None,
        created_at=None,
        aliases=[name for name in names if name != id_],
        given=None,
        resolved=resolved,
        assumptions=[],
    )


def _entry_id(value: Chip | Fabric | Architecture | Stack) -> str:
    return value.name if isinstance(value, Architecture) else value.id


def _describe(value: Chip | Fabric | Architecture | Stack) -> dict[str, Any]:
    """Returns the fields of a catalogue value without its names; for an architecture, its
    parameters and its model in explicit fields."""
    if isinstance(value, Architecture):
        return {
            "num_layers": value.num_layers,
            "parameters": asdict(value.parameters),
            "model": explicit_fields(value),
        }
    return {name: item for name, item in asdict(value).items() if name not in ("id", "aliases")}
