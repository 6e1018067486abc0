"""Gives the space of deleted rows back to the file system. PostgreSQL does so by itself; a file of
SQLite keeps its size unless it is told to shrink."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine

_INCREMENTAL = 2
_TRACK_FREE_PAGES = f"PRAGMA auto_vacuum = {_INCREMENTAL}"
_PAGES_AT_ONCE = 1000  # a page has 4 KiB: others wait for a few milliseconds


def keep_track_of_free_pages(connection: Any) -> None:
    """Lets a new database file shrink a few pages at a time. A file that has tables already is left
    alone: it needs `compact` for that, and the setting would write to it."""
    if connection.execute("PRAGMA page_count").fetchone() == (0,):
        connection.execute(_TRACK_FREE_PAGES)


def can_shrink(engine: Engine) -> bool:
    """Returns whether the database can give space back. A SQLite file of an earlier release cannot,
    because it keeps no track of its free pages until it is compacted."""
    if engine.dialect.name != "sqlite":
        return True
    connection = engine.raw_connection()
    try:
        return _read_pragma(connection, "auto_vacuum") == _INCREMENTAL
    finally:
        connection.close()


def give_back(engine: Engine) -> int:
    """Shrinks the file by its free pages, some at a time, so that others can write in between.
    Returns the number of bytes that this frees."""
    if engine.dialect.name != "sqlite":
        return 0
    connection = engine.raw_connection()
    try:
        pages = pages_at_first = _read_pragma(connection, "page_count")
        while _read_pragma(connection, "freelist_count"):
            pages_before = pages
            connection.cursor().execute(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})").fetchall()
            pages = _read_pragma(connection, "page_count")
            if pages >= pages_before:
                break  # a file that keeps no track of its free pages does not shrink
        # Until the write-ahead log is written back, the file itself keeps its size.
        connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return (pages_at_first - pages) * _read_pragma(connection, "page_size")
    finally:
        connection.close()


def compact(engine: Engine) -> None:
    """Writes the file anew without its free pages, and keeps track of free pages from now on.
    Nobody else may use the database meanwhile."""
    if engine.dialect.name == "sqlite":
        connection = engine.raw_connection()
        try:
            connection.cursor().execute(_TRACK_FREE_PAGES)
            connection.cursor().execute("VACUUM")
        finally:
            connection.close()


def _read_pragma(connection: Any, pragma: str) -> int:
    value: int = connection.cursor().execute(f"PRAGMA {pragma}").fetchone()[0]
    return value
