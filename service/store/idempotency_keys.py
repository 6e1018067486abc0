"""Idempotency keys. One request claims a key, and its answer is kept with the key."""

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
        """Delete keys that were claimed before `before`. Those without an answer stay, unless they
        were claimed before `unanswered` too."""
        is_answered = IdempotencyRow.status.is_not(None)
        claimed_at = IdempotencyRow.claimed_at
        old = (claimed_at < before) & (is_answered | (claimed_at < unanswered))
        self._session.execute(delete(IdempotencyRow).where(old))

    def claim(self, row: IdempotencyRow) -> None:
        """Insert a claim. Of requests that claim at the same moment, the primary key lets one win
        and the others raise StillRunning."""
        self._session.add(row)
        try:
            self._session.flush()
        except IntegrityError:
            raise StillRunning from None

    def take_over(self, key: str, token: str, by: str, now: datetime) -> None:
        self._execute_on_claim(self._update(key, token).values(token=by, claimed_at=now))

    def finish(
        self, key: str, token: str, status: int, location: str, document: dict[str, Any]
    ) -> None:
        self._execute_on_claim(
            self._update(key, token).values(status=status, location=location, document=document)
        )

    def release(self, key: str, token: str) -> None:
        """Delete a claim, unless it is answered: a request that lost the database while it
        committed does not know that it did commit."""
        unanswered_claim = (
            IdempotencyRow.key == key,
            IdempotencyRow.token == token,
            IdempotencyRow.status.is_(None),
        )
        self._session.execute(delete(IdempotencyRow).where(*unanswered_claim))

    def _update(self, key: str, token: str) -> Any:
        return update(IdempotencyRow).where(
            IdempotencyRow.key == key, IdempotencyRow.token == token
        )

    def _execute_on_claim(self, statement: UpdateBase) -> None:
        """Raises StillRunning where another process has taken the claim over."""
        result = self._session.execute(statement)
        if not isinstance(result, CursorResult) or result.rowcount != 1:
            raise StillRunning
