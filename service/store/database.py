"""The engine and the schema: SQLite or PostgreSQL by one URL."""

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
_BUSY_S = 30
_PATIENCE = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
}
"""Of libpq, unless the URL says otherwise: by itself it waits a quarter of an hour for a host that
is gone, and threads of the service with it."""
_MIGRATION_LOCK = 7_406_128_835_112_009  # any number, the same in every process


def connect(url: str) -> Engine:
    """An engine; nothing is opened before the first query."""
    if url.startswith("sqlite"):
        engine = sqlalchemy.create_engine(url, connect_args={"timeout": _BUSY_S})
        event.listen(engine, "connect", _open_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    patience = {name: value for name, value in _PATIENCE.items() if name not in make_url(url).query}
    return sqlalchemy.create_engine(
        url,
        connect_args=patience,
        pool_pre_ping=True,
        pool_size=10,
        max_overflow=20,
        pool_recycle=1800,
    )


def migrate(engine: Engine, revision: str = "head") -> None:
    """Bring the schema up to `revision`; of several processes that start at once, one does and the
    others wait."""
    with engine.connect() as connection, _alone(connection):
        command.upgrade(alembic_config(connection), revision)


def downgrade(engine: Engine, revision: str) -> None:
    with engine.connect() as connection, _alone(connection):
        command.downgrade(alembic_config(connection), revision)


def at_head(connection: Connection) -> bool:
    heads = ScriptDirectory.from_config(alembic_config(connection)).get_heads()
    return set(MigrationContext.configure(connection).get_current_heads()) == set(heads)


def first_lacking(connection: Connection) -> str | None:
    """The first table that is not there, or lacks a column that it should have: a migration may
    have been replaced under the id that it had. Asks for no row."""
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
def _alone(connection: Connection) -> Iterator[None]:
    """One transaction, alone with the schema: SQLite's begins as the only writer, PostgreSQL's
    takes a lock."""
    with writing(connection):
        if connection.dialect.name == "postgresql":
            connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        yield


@contextmanager
def writing(connection: Connection) -> Iterator[None]:
    connection.execution_options(writes=True)
    with connection.begin():
        yield


def _open_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = (
        None  # transactions begin where _begin_sqlite says, not where the driver guesses
    )
    _into_wal(connection)
    for pragma in ("foreign_keys = ON", "synchronous = NORMAL"):
        connection.execute(f"PRAGMA {pragma}")


def _into_wal(connection: Any) -> None:
    """The switch to a write-ahead log needs the file for itself, and does not wait for it like
    other statements do."""
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes the lock when it begins: SQLite lets no reader become one after another has
    written."""
    connection.exec_driver_sql(
        "BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN"
    )


class Unusable(Exception):
    """Says why."""


@contextmanager
def usable() -> Iterator[None]:
    """Raises Unusable for what the database refuses."""
    try:
        yield
    except CommandError as error:
        raise Unusable(
            f"{str(error).strip()}: the database may be of a newer release than this one."
        ) from None
    except Unavailable as error:
        raise Unusable(str(getattr(error.__cause__, "orig", None) or error).strip()) from None
    except SQLAlchemyError as error:
        raise Unusable(str(getattr(error, "orig", None) or error).strip()) from None
