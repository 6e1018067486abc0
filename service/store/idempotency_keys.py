"""Idempotency keys. One request claims a key, and its answer is kept with the key. A *token* tells
the claim of a request from others. A claim has a *lease*, which runs out unless it is renewed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import CursorResult, Update, delete, false, func, update
from sqlalchemy.dialects import postgresql, sqlite

from service.errors import StillRunning
from service.store.prepared import first_row
from service.store.queries import Queries
from service.store.tables import IdempotencyRow, Table

_KEYS = Table.metadata.tables[IdempotencyRow.__tablename__]
_CLAIM = {
    "sqlite": sqlite.insert(_KEYS).on_conflict_do_nothing().returning(_KEYS.c.key),
    "postgresql": postgresql.insert(_KEYS).on_conflict_do_nothing().returning(_KEYS.c.key),
}
_READ = "fingerprint", "token", "leased_until", "status", "location"
"""The columns that decide whether a key is free."""


class IdempotencyKeys(Queries):
    def find(self, key: str) -> IdempotencyRow | None:
        """Returns the key as it is now, even if this transaction has read it before; None where
        there is none."""
        return self._session.get(IdempotencyRow, key, populate_existing=True)

    def purge(self, before: datetime, now: datetime) -> None:
        """Deletes keys that were claimed before `before`, but for those whose request still
        runs."""
        # Without a status the request is not answered yet. Without a lease the comparison is NULL,
        # and the key counts as not held.
        is_held = IdempotencyRow.status.is_(None) & (IdempotencyRow.leased_until > now)
        old = (IdempotencyRow.claimed_at < before) & ~func.coalesce(is_held, false())
        self._session.execute(delete(IdempotencyRow).where(old))

    def claim(self, row: IdempotencyRow) -> bool:
        """Inserts a request's claim to a key unless the key has one. Returns whether it did. The
        primary key lets one of several simultaneous requests win, and only that one computes."""
        values = {column.key: getattr(row, column.key) for column in _KEYS.columns}
        insert = _CLAIM[self._dialect]
        return first_row(self._session, insert, values) is not None

    def renew(self, tokens: Sequence[str], until: datetime) -> None:
        """Extends the leases of these claims until `until`, unless they are answered."""
        held = IdempotencyRow.token.in_(tokens) & IdempotencyRow.status.is_(None)
        self._session.execute(update(IdempotencyRow).where(held).values(leased_until=until))

    def take_over(self, row: IdempotencyRow, token: str, now: datetime, until: datetime) -> bool:
        """Claims a key whose earlier claim has expired, or whose answer is gone. Returns whether it
        did. It does not if the key has changed since it was read in `row`: PostgreSQL evaluates the
        condition again after it waited for another transaction."""
        as_read = [
            getattr(IdempotencyRow, name).is_not_distinct_from(getattr(row, name)) for name in _READ
        ]
        claim = {"token": token, "claimed_at": now, "leased_until": until}
        unanswered = {"status": None, "location": None, "document": None}
        statement = update(IdempotencyRow).where(IdempotencyRow.key == row.key, *as_read)
        return self._change(statement.values(**claim, **unanswered))

    def finish(
        self, key: str, token: str, status: int, location: str, document: dict[str, Any] | None
    ) -> None:
        """Stores the answer with the key. Raises StillRunning if another request has taken the key
        over."""
        mine = IdempotencyRow.key == key, IdempotencyRow.token == token
        answer = {"status": status, "location": location, "document": document}
        if not self._change(update(IdempotencyRow).where(*mine).values(**answer)):
            raise StillRunning

    def release(self, tokens: Sequence[str]) -> None:
        """Deletes the claims of requests that failed or will never be answered, so that others can
        claim the keys. Answered claims stay: a request that lost the database while it committed
        counts as failed, although its answer is stored."""
        unanswered = IdempotencyRow.token.in_(tokens) & IdempotencyRow.status.is_(None)
        self._session.execute(delete(IdempotencyRow).where(unanswered))

    def _change(self, statement: Update) -> bool:
        """Runs the statement, and returns whether it has changed a row."""
        # The session need not learn of the change, as every `find` reads the row anew.
        options = {"synchronize_session": False}
        result = self._session.execute(statement, execution_options=options)
        return isinstance(result, CursorResult) and result.rowcount == 1
