"""Idempotency keys. One request claims a key, and its answer is kept with the key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import CursorResult, delete, false, func, update
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

    def purge(self, before: datetime, now: datetime) -> None:
        """Delete keys that were claimed before `before`. Those that are held stay."""
        is_held = IdempotencyRow.status.is_(None) & (IdempotencyRow.leased_until > now)
        old = (IdempotencyRow.claimed_at < before) & ~func.coalesce(is_held, false())
        self._session.execute(delete(IdempotencyRow).where(old))

    def claim(self, row: IdempotencyRow) -> None:
        """Insert a claim. Of requests that claim at the same moment, the primary key lets one win
        and the others raise StillRunning."""
        self._session.add(row)
        try:
            self._session.flush()
        except IntegrityError:
            raise StillRunning from None

    def renew(self, tokens: Sequence[str], until: datetime) -> None:
        """Extend the leases of these claims."""
        held = IdempotencyRow.token.in_(tokens) & IdempotencyRow.status.is_(None)
        self._session.execute(update(IdempotencyRow).where(held).values(leased_until=until))

    def take_over(self, key: str, token: str, by: str, now: datetime, until: datetime) -> None:
        """Claim a key whose claim is over, or whose answer is gone."""
        claim = {"token": by, "claimed_at": now, "leased_until": until}
        unanswered = {"status": None, "location": None, "document": None}
        self._execute_on_claim(self._update(key, token).values(**claim, **unanswered))

    def finish(
        self, key: str, token: str, status: int, location: str, document: dict[str, Any] | None
    ) -> None:
        self._execute_on_claim(
            self._update(key, token).values(status=status, location=location, document=document)
        )

    def release(self, tokens: Sequence[str]) -> None:
        """Delete claims, unless they are answered: a request that lost the database while it
        committed does not know that it did commit."""
        unanswered = IdempotencyRow.token.in_(tokens) & IdempotencyRow.status.is_(None)
        self._session.execute(delete(IdempotencyRow).where(unanswered))

    def _update(self, key: str, token: str) -> Any:
        return update(IdempotencyRow).where(
            IdempotencyRow.key == key, IdempotencyRow.token == token
        )

    def _execute_on_claim(self, statement: UpdateBase) -> None:
        """Raises StillRunning where another process has taken the claim over."""
        result = self._session.execute(statement)
        if not isinstance(result, CursorResult) or result.rowcount != 1:
            raise StillRunning
