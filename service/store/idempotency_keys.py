"""Idempotency keys: claimed by one request, answered once."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CursorResult, delete, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import UpdateBase

from service.errors import StillRunning
from service.store.tables import IdempotencyRow


class IdempotencyKeys:
    def __init__(self, session: Session) -> None:
        self._session = session

    def find(self, key: str) -> IdempotencyRow | None:
        return self._session.get(IdempotencyRow, key)

    def purge(self, before: datetime, unanswered: datetime) -> None:
        """Answers to claims from before the one, and claims from before the other too that nothing
        has answered."""
        answered, claimed = IdempotencyRow.status.is_not(None), IdempotencyRow.claimed_at
        old = (claimed < before) & (answered | (claimed < unanswered))
        self._session.execute(delete(IdempotencyRow).where(old))

    def claim(self, row: IdempotencyRow) -> None:
        """The primary key decides between requests that claim at the same moment."""
        self._session.add(row)
        try:
            self._session.flush()
        except IntegrityError:
            raise StillRunning from None

    def take_over(self, key: str, token: str, by: str, now: datetime) -> None:
        self._require_claim(self._held(key, token).values(token=by, claimed_at=now))

    def finish(
        self, key: str, token: str, status: int, location: str, document: dict[str, Any]
    ) -> None:
        self._require_claim(
            self._held(key, token).values(status=status, location=location, document=document)
        )

    def release(self, key: str, token: str) -> None:
        """Unless it is answered: whoever lost the database as it committed does not know that it
        did."""
        mine = (
            IdempotencyRow.key == key,
            IdempotencyRow.token == token,
            IdempotencyRow.status.is_(None),
        )
        self._session.execute(delete(IdempotencyRow).where(*mine))

    def _held(self, key: str, token: str) -> Any:
        return update(IdempotencyRow).where(
            IdempotencyRow.key == key, IdempotencyRow.token == token
        )

    def _require_claim(self, statement: UpdateBase) -> None:
        result = self._session.execute(statement)
        if not isinstance(result, CursorResult) or result.rowcount != 1:
            raise StillRunning
