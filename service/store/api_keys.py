"""API keys. An operator makes and revokes them, and every request that brings one looks it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import bindparam, select, update
from sqlalchemy.dialects import sqlite

from service.store.prepared import first_row
from service.store.queries import Queries
from service.store.tables import ApiKeyRow


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """A key as it is stored: the facts that decide whether a request is let in, and as whom."""

    id: str
    tenant: str
    scopes: Sequence[str]
    secret_hash: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


_COLUMNS = [getattr(ApiKeyRow, field.name) for field in fields(PresentedKey)]
_PRESENTED = select(*_COLUMNS).where(ApiKeyRow.id == bindparam("id"))
PRESENTED_IN_SQLITE = str(_PRESENTED.compile(dialect=sqlite.dialect()))
"""The query of `ApiKeys.presented`, for ChangeCounter.row."""


class ApiKeys(Queries):
    def add(self, row: ApiKeyRow) -> None:
        self._session.add(row)

    def presented(self, id_: str) -> PresentedKey | None:
        """Returns the key with the id that a request presents; None where there is none."""
        row = first_row(self._session, _PRESENTED, {"id": id_})
        return None if row is None else PresentedKey(**row._mapping)

    def all(self) -> Sequence[ApiKeyRow]:
        """Returns all keys, revoked ones too, oldest first."""
        return self._session.scalars(
            select(ApiKeyRow).order_by(ApiKeyRow.created_at, ApiKeyRow.id)
        ).all()

    def tenants(self) -> Sequence[str]:
        """Returns every tenant that was ever given a key: those whose own profiles may be due for a
        calibration."""
        return self._session.scalars(
            select(ApiKeyRow.tenant).distinct().order_by(ApiKeyRow.tenant)
        ).all()

    def get(self, id_: str) -> ApiKeyRow:
        return self._row(ApiKeyRow, id_, "key")

    def revoke(self, id_: str, now: datetime) -> None:
        """Revokes a key from now on. A key that is revoked already keeps its time. Raises
        NotFound."""
        row = self.get(id_)
        row.revoked_at = row.revoked_at or now

    def set_used(self, id_: str, now: datetime) -> None:
        self._session.execute(update(ApiKeyRow).where(ApiKeyRow.id == id_).values(last_used_at=now))
