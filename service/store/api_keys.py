"""API keys. An operator makes and revokes them, and every request that brings one looks it up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.errors import NotFound
from service.store.tables import ApiKeyRow


class ApiKeys:
    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, row: ApiKeyRow) -> None:
        self._session.add(row)

    def find(self, id_: str) -> ApiKeyRow | None:
        return self._session.get(ApiKeyRow, id_)

    def all(self) -> Sequence[ApiKeyRow]:
        """All keys, revoked ones too, oldest first."""
        return self._session.scalars(
            select(ApiKeyRow).order_by(ApiKeyRow.created_at, ApiKeyRow.id)
        ).all()

    def get(self, id_: str) -> ApiKeyRow:
        row = self.find(id_)
        if row is None:
            raise NotFound("key", id_)
        return row

    def revoke(self, id_: str, now: datetime) -> None:
        row = self.get(id_)
        row.revoked_at = row.revoked_at or now

    def set_used(self, id_: str, now: datetime) -> None:
        self._session.execute(update(ApiKeyRow).where(ApiKeyRow.id == id_).values(last_used_at=now))
