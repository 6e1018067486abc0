"""Queries of the catalogue entries that users registered."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.store.quota import count_stored, size_of
from service.store.tables import TENANT, CatalogRow

_VERSIONED = re.compile(r"(.+?)(?:@([1-9]\d{0,8}))?", re.DOTALL)


class CatalogEntries:
    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, row: CatalogRow) -> None:
        """Store a version of an entry. It counts for the tenant that registered it, and for good:
        entries are never removed."""
        count_stored(self._session, self._session.info.get(TENANT), size_of(row.entry))
        self._session.add(row)

    def find(self, kind: str, name: str, version: int | None) -> CatalogRow | None:
        """Returns this version of an entry, or the latest if `version` is None."""
        query = select(CatalogRow).where(CatalogRow.kind == kind, CatalogRow.name == name)
        if version is not None:
            query = query.where(CatalogRow.version == version)
        return self._session.scalar(query.order_by(CatalogRow.version.desc()).limit(1))

    def named(self, kind: str, name: str) -> CatalogRow | None:
        """The entry of a name as requests write it: `name`, or `name@3` for its third version."""
        match = _VERSIONED.fullmatch(name)
        if match is None:
            return None
        plain, version = match.groups()
        return self.find(kind, plain, int(version) if version else None)

    def names(self, kind: str) -> Sequence[str]:
        return self._session.scalars(
            select(CatalogRow.name).where(CatalogRow.kind == kind).distinct()
        ).all()

    def latest(self, kind: str, names: Sequence[str]) -> Sequence[CatalogRow]:
        """The last version of each of these names."""
        last = (
            select(CatalogRow.name, func.max(CatalogRow.version).label("version"))
            .where(CatalogRow.kind == kind, CatalogRow.name.in_(names))
            .group_by(CatalogRow.name)
            .subquery()
        )
        same = (CatalogRow.name == last.c.name) & (CatalogRow.version == last.c.version)
        return self._session.scalars(
            select(CatalogRow).join(last, same).where(CatalogRow.kind == kind)
        ).all()
