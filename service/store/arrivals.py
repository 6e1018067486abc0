"""Ids and times of arrival of what calibrations learn from (reports and benchmarks), made so that a
calibration misses nothing.

A calibration remembers an id up to which it has learnt everything. This holds only if no row with
an earlier id appears later. So a writer holds a shared lock from before it makes an id until its
rows are visible, and a calibration takes the same lock exclusively for a moment. A row that is not
visible after that moment has its id still to come, and gets a later one. On SQLite, transactions
that write wait for each other anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import text

from service.identifiers import new_id
from service.store.encoded_document import EncodedDocument
from service.store.queries import Queries
from service.store.quota import count_stored, size_of

_LOCK_KEY = 5_120_993_746_280_417  # any number, the same in every process

RowValues = dict[str, Any]
"""The columns of a row to be inserted, one of which is its `document`."""


class Arrivals(Queries):
    def stamped(self, rows: Iterable[RowValues]) -> list[RowValues]:
        """Returns the rows with id, time, tenant and size, to be inserted in this transaction.
        Holds off `wait_for_writers` until the transaction ends, since its new ids are not visible
        to readers before."""
        self._lock("pg_advisory_xact_lock_shared")
        tenant = self._tenant
        stamped = [{**row, **_stamp(row), "tenant": tenant} for row in rows]
        count_stored(self._session, tenant, sum(row["stored_bytes"] for row in stamped))
        return stamped

    def wait_for_writers(self) -> datetime:
        """Waits until every row that has an id is visible, and returns the time. Rows that become
        visible after this transaction have ids from after that time, so that who remembers the last
        id that it has read misses none."""
        self._lock("pg_advisory_xact_lock")
        return datetime.now(UTC)

    def _lock(self, function: str) -> None:
        """Takes the lock with a function of PostgreSQL, shared or exclusive. SQLite needs none."""
        if self._dialect == "postgresql":
            self._session.execute(text(f"select {function}(:key)"), {"key": _LOCK_KEY})


def _stamp(row: RowValues) -> RowValues:
    """Returns the columns that a row gets on arrival: id, time, size, and its document with id and
    time."""
    id_ = new_id()
    now = datetime.now(UTC)
    shown = now.isoformat().replace("+00:00", "Z")
    document = _with_members(row["document"], {"id": id_, "created_at": shown})
    size = size_of(row["submission"], row.get("question"), document)
    return {"id": id_, "created_at": now, "document": document, "stored_bytes": size}


def _with_members(
    document: dict[str, Any] | EncodedDocument, members: dict[str, Any]
) -> dict[str, Any] | EncodedDocument:
    """Returns a document with more members. An encoded document stays encoded."""
    if isinstance(document, EncodedDocument):
        return document.with_members(members)
    return {**document, **members}
