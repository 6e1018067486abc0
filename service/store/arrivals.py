"""What calibrations learn from gets its id and its time as it is written, so that none is missed.

A writer holds the lock from before it makes an id until its rows can be seen, as any number of
writers may at once; who is about to learn takes it alone for a moment. What cannot be seen after
that moment gets an id of a later one, however long it took to compute or to write. SQLite has one
writer at a time, and whoever takes the lock is it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from service.identifiers import new_id
from service.store.tables import TENANT

_LOCK = 5_120_993_746_280_417  # any number, the same in every process

Columns = dict[str, Any]
"""Of a row with a document that shows its id and when it was made."""


class Arrivals:
    def __init__(self, session: Session) -> None:
        self._session = session

    def stamped(self, rows: Iterable[Columns]) -> list[Columns]:
        """As they are to be stored, in this transaction."""
        self._lock("pg_advisory_xact_lock_shared")
        tenant = self._session.info.get(TENANT)
        return [{**row, **_stamp(row["document"]), "tenant": tenant} for row in rows]

    def settled(self) -> datetime:
        """The moment, now, by which every row that has its id can be seen, once this transaction
        writes and ends."""
        self._lock("pg_advisory_xact_lock")
        return datetime.now(UTC)

    def _lock(self, how: str) -> None:
        if self._session.get_bind().dialect.name == "postgresql":
            self._session.execute(text(f"select {how}(:key)"), {"key": _LOCK})


def _stamp(document: dict[str, Any]) -> Columns:
    id_, now = new_id(), datetime.now(UTC)
    shown = now.isoformat().replace("+00:00", "Z")
    return {"id": id_, "created_at": now, "document": {**document, "id": id_, "created_at": shown}}
