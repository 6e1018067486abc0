"""Tells in microseconds whether anything was committed to a database, or whether a row is as it
was, so that values kept in memory can be used without a query."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from threading import Lock
from typing import Any

from sqlalchemy import Engine


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row as it was stored when it was read."""

    query: str
    """Finds the row again."""
    values: tuple[str, ...]
    """Parameters of the query."""
    content: tuple[Any, ...]
    """The columns of the row. Two reads of an unchanged row are equal."""


class ChangeCounter:
    """Counts what is committed to a SQLite database, by whichever process (PRAGMA data_version, of
    a connection that commits nothing itself). PostgreSQL has no such count."""

    def __init__(self, engine: Engine) -> None:
        is_sqlite = engine.dialect.name == "sqlite"
        self._file = engine.url.database if is_sqlite else None
        self._connection: sqlite3.Connection | None = None
        self._lock = Lock()

    def count(self) -> int | None:
        """Returns a number that changes with every commit; None where that is not known, as with
        PostgreSQL."""
        row = self._first_row("PRAGMA data_version", ())
        return None if row is None else int(row[0])

    def row(self, query: str, *values: str) -> StoredRow | None:
        """Returns the first row that a query finds now. None where there is no row, or the database
        is not SQLite or cannot be read now."""
        row = self._first_row(query, values)
        return None if row is None else StoredRow(query, values, row)

    def _first_row(self, query: str, values: tuple[str, ...]) -> tuple[Any, ...] | None:
        """Returns the first row of a query on a connection of its own. None where there is no row,
        the database is not a SQLite file, or it cannot be read now: callers then ask the database
        in the usual way."""
        if self._file is None:
            return None
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._connect(self._file)
                row: tuple[Any, ...] | None = self._connection.execute(query, values).fetchone()
            except sqlite3.Error:
                return None
        return row

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    @staticmethod
    def _connect(file: str) -> sqlite3.Connection:
        # The event loop asks, so no lock of the database is waited for. Threads ask too, one at a
        # time (`_lock`).
        return sqlite3.connect(file, timeout=0, isolation_level=None, check_same_thread=False)
