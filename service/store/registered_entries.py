"""Queries of the catalogue entries that users registered."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import func, select

from service.store.queries import Queries
from service.store.quota import count_stored, size_of
from service.store.tables import RegisteredEntryRow

_VERSIONED = re.compile(r"(.+?)(?:@([1-9]\d{0,8}))?", re.DOTALL)


class RegisteredEntries(Queries):
    def add(self, row: RegisteredEntryRow) -> None:
        """Stores a version of an entry. It counts toward the quota of the tenant that registered it
        for good, because entries are never removed."""
        count_stored(self._session, self._tenant, size_of(row.entry))
        self._session.add(row)

    def find(self, kind: str, name: str, version: int | None) -> RegisteredEntryRow | None:
        """Returns this version of an entry, or the latest if `version` is None."""
        query = select(RegisteredEntryRow).where(
            RegisteredEntryRow.kind == kind, RegisteredEntryRow.name == name
        )
        if version is not None:
            query = query.where(RegisteredEntryRow.version == version)
        return self._session.scalar(query.order_by(RegisteredEntryRow.version.desc()).limit(1))

    def named(self, kind: str, name: str) -> RegisteredEntryRow | None:
        """Returns the entry of a kind, such as "clusters", with a name as requests write it: `name`
        for the last version, or `name@3` for the third; None where there is none."""
        match = _VERSIONED.fullmatch(name)
        if match is None:
            return None
        plain, version = match.groups()
        return self.find(kind, plain, int(version) if version else None)

    def names(self, kind: str) -> Sequence[str]:
        return self._session.scalars(
            select(RegisteredEntryRow.name).where(RegisteredEntryRow.kind == kind).distinct()
        ).all()

    def latest(self, kind: str, names: Sequence[str]) -> Sequence[RegisteredEntryRow]:
        """Returns the last version of the entry with each of these names. Unknown names are left
        out."""
        last = (
            select(RegisteredEntryRow.name, func.max(RegisteredEntryRow.version).label("version"))
            .where(RegisteredEntryRow.kind == kind, RegisteredEntryRow.name.in_(names))
            .group_by(RegisteredEntryRow.name)
            .subquery()
        )
        same = (RegisteredEntryRow.name == last.c.name) & (
            RegisteredEntryRow.version == last.c.version
        )
        # Another kind may have an entry of the same name and version.
        return self._session.scalars(
            select(RegisteredEntryRow).join(last, same).where(RegisteredEntryRow.kind == kind)
        ).all()
