"""Rows that are written only to see whether the database stores anything."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete

from service.identifiers import earliest_id, new_id
from service.store.queries import Queries
from service.store.tables import WriteCheckRow

_FILLER_BYTES = 2**16
"""The size of a large answer. A few bytes might find room on a disk that has no other room."""

_LEFT_BEHIND = timedelta(hours=1)  # a row so old is that of a process that has crashed


class WriteChecks(Queries):
    def add(self) -> str:
        """Stores a row of random bytes, which no database can compress, and returns its id. The row
        is as large as an answer, since a full disk may still have room for a few bytes."""
        row = WriteCheckRow(id=new_id(), filler=os.urandom(_FILLER_BYTES))
        self._session.add(row)
        self._session.flush()
        return row.id

    def remove(self, id_: str) -> None:
        """Deletes this row, and rows that a crashed process has left behind."""
        left_behind = earliest_id(datetime.now(UTC) - _LEFT_BEHIND)
        old = (WriteCheckRow.id == id_) | (WriteCheckRow.id < left_behind)
        self._session.execute(delete(WriteCheckRow).where(old))
