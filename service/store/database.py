"""The database engine, SQLite or PostgreSQL by its URL, and the migrations of the schema."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, event, false, make_url, select, text
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError

from service.errors import Unavailable
from service.store.tables import Table

MIGRATIONS = Path(__file__).parents[2] / "migrations"
_SQLITE_WAIT_S = 30
_LIBPQ_TIMEOUTS = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
}
"""Timeouts of libpq, unless the URL sets others. By default it waits a quarter of an hour for a
host that is gone, and threads of the service wait with it."""
_MIGRATION_LOCK_KEY = 7_406_128_835_112_009  # any number, the same in every process


def connect(url: str) -> Engine:
    """An engine for this URL. No connection is opened before the first query."""
    if url.startswith("sqlite"):
        engine = sqlalchemy.create_engine(url, connect_args={"timeout": _SQLITE_WAIT_S})
        event.listen(engine, "connect", _open_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    timeouts = {
        name: value for name, value in _LIBPQ_TIMEOUTS.items() if name not in make_url(url).query
    }
    return sqlalchemy.create_engine(
        url,
        connect_args=timeouts,
        pool_pre_ping=True,
        pool_size=10,
        max_overflow=20,
        pool_recycle=1800,
    )


def migrate(engine: Engine, revision: str = "head") -> None:
    """Bring the schema up to `revision`. Of several processes that start at once, one migrates
    while the others wait."""
    with engine.connect() as connection, _migration_lock(connection):
        command.upgrade(alembic_config(connection), revision)


def downgrade(engine: Engine, revision: str) -> None:
    with engine.connect() as connection, _migration_lock(connection):
        command.downgrade(alembic_config(connection), revision)


def at_head(connection: Connection) -> bool:
    heads = ScriptDirectory.from_config(alembic_config(connection)).get_heads()
    return set(MigrationContext.configure(connection).get_current_heads()) == set(heads)


def first_incomplete_table(connection: Connection) -> str | None:
    """The name of the first table that is missing or misses a column, or None. This happens where a
    migration was replaced under the id that it had. No row is read."""
    for table in Table.metadata.sorted_tables:
        try:
            with connection.begin_nested():
                connection.execute(select(table).where(false()))
        except (OperationalError, ProgrammingError):
            if connection.invalidated:
                raise
            return table.name
    return None


def alembic_config(connection: Connection) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


@contextmanager
def _migration_lock(connection: Connection) -> Iterator[None]:
    """A transaction that no other migration runs beside: on SQLite it is the only writer, on
    PostgreSQL it takes a lock."""
    with writing(connection):
        if connection.dialect.name == "postgresql":
            connection.execute(
                text("select pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK_KEY}
            )
        yield


@contextmanager
def writing(connection: Connection) -> Iterator[None]:
    connection.execution_options(writes=True)
    with connection.begin():
        yield


def _open_sqlite(connection: Any, _: Any) -> None:
    # transactions begin where _begin_sqlite says, not where the driver guesses
    connection.isolation_level = None
    _enable_wal(connection)
    for pragma in ("foreign_keys = ON", "synchronous = NORMAL"):
        connection.execute(f"PRAGMA {pragma}")


def _enable_wal(connection: Any) -> None:
    """Switch to a write-ahead log. The switch needs the file for itself, but does not wait for it
    as other statements do, so it is tried again."""
    until = time.monotonic() + _SQLITE_WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def _begin_sqlite(connection: Connection) -> None:
    """Begin a transaction. A writer takes its lock at once, because SQLite lets no reader become a
    writer after another has written."""
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


class DatabaseUnusable(Exception):
    """The database cannot be used. The message says why."""


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turns errors of the database within the block into DatabaseUnusable."""
    try:
        yield
    except CommandError as error:
        raise DatabaseUnusable(
            f"{str(error).strip()}: the database may be of a newer release than this one."
        ) from None
    except Unavailable as error:
        raise DatabaseUnusable(
            str(getattr(error.__cause__, "orig", None) or error).strip()
        ) from None
    except SQLAlchemyError as error:
        raise DatabaseUnusable(str(getattr(error, "orig", None) or error).strip()) from None
