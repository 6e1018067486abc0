"""The database engine, SQLite or PostgreSQL by its URL, and the migrations of the schema."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, event, false, inspect, make_url, select, text
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError

from service.errors import Unavailable
from service.store.bounded_connection import BoundedConnection
from service.store.encoded_document import serialized
from service.store.sqlite_space import keep_track_of_free_pages
from service.store.tables import Table

_PLACES = [parent / "migrations" for parent in Path(__file__).parents[1:3]]
MIGRATIONS = next((folder for folder in _PLACES if folder.is_dir()), _PLACES[-1])
"""Folder of the migrations: in the package where it is installed, and beside it in a checkout."""
WAIT_S = 30.0
"""Seconds that a statement may take, and that one waits for a lock or a free connection."""
_LIBPQ_TIMEOUTS = {
    "connect_timeout": 5,
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
}
"""Timeouts of libpq, unless the URL sets others. By default it waits a quarter of an hour for a
host that is gone, and threads of the service wait with it."""
_SILENCE_S = 2.0
"""Seconds beyond the time limit of a statement for which the server is waited for. A server that
works reports the limit itself; only one that is frozen or cut off stays silent."""
_IDLE_IN_TRANSACTION_S = 600
"""Seconds after which PostgreSQL ends a transaction that does nothing. The transaction of a host
which is gone would otherwise hold its locks for two hours."""
_MIGRATION_S = 3600.0  # a migration may take long, and so may waiting for one of another process
_MIGRATION_LOCK_KEY = 7_406_128_835_112_009  # any number, the same in every process


def connect(url: str, wait_s: float = WAIT_S) -> Engine:
    """Returns an engine for this URL. No connection is opened before the first query. `wait_s` is
    how long a statement may take, and how long one waits for a lock or a free connection."""
    if url.startswith("sqlite"):
        return _sqlite_engine(url, wait_s)
    return _postgresql_engine(url, wait_s)


def _sqlite_engine(url: str, wait_s: float) -> Engine:
    """Returns an engine for SQLite, which waits `wait_s` seconds for a lock or a free
    connection."""
    engine = sqlalchemy.create_engine(
        url,
        connect_args={"timeout": wait_s},
        pool_timeout=wait_s,
        hide_parameters=True,  # errors are logged, and parameters are what callers sent
        json_serializer=serialized,
    )
    event.listen(engine, "connect", partial(_open_sqlite, wait_s))
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _postgresql_engine(url: str, wait_s: float) -> Engine:
    """Returns an engine for PostgreSQL, whose statements may take `wait_s` seconds. Options and
    timeouts in the URL override those that are set here."""
    url_options = make_url(url).query
    arguments: dict[str, Any] = {
        name: value for name, value in _LIBPQ_TIMEOUTS.items() if name not in url_options
    }
    timeouts = {
        "statement_timeout": wait_s,
        "idle_in_transaction_session_timeout": _IDLE_IN_TRANSACTION_S,
    }
    options = [f"-c {name}={round(1000 * seconds)}" for name, seconds in timeouts.items()]
    # Options of the URL come last, where they win.
    arguments["options"] = " ".join([*options, str(url_options.get("options", ""))])
    engine = sqlalchemy.create_engine(
        url,
        connect_args=arguments,
        json_serializer=serialized,
        hide_parameters=True,  # errors are logged, and parameters are what callers sent
        pool_pre_ping=True,
        pool_size=10,
        max_overflow=20,
        pool_timeout=wait_s,
        pool_recycle=1800,
    )
    # The server ends a statement after `wait_s` itself; one that is silent for longer is frozen.
    event.listen(engine, "do_connect", partial(_connect_bounded, wait_s + _SILENCE_S))
    return engine


def _connect_bounded(answer_s: float, _: Any, __: Any, cargs: Any, cparams: Any) -> Any:
    """Opens a connection that waits `answer_s` seconds at most for an answer of the server. The
    other arguments are those of SQLAlchemy's event."""
    connection = BoundedConnection.connect(*cargs, **cparams)
    connection.answer_s = answer_s
    return connection


def migrate(engine: Engine, revision: str = "head") -> None:
    """Brings the schema up to `revision`. If several processes start at once, one migrates while
    the others wait."""
    with engine.connect() as connection, migrating(connection):
        command.upgrade(alembic_config(connection), revision)


def downgrade(engine: Engine, revision: str) -> None:
    with engine.connect() as connection, migrating(connection):
        command.downgrade(alembic_config(connection), revision)


def at_head(connection: Connection) -> bool:
    return _applied(connection) == _heads()


@cache
def _heads() -> set[str]:
    """Returns the ids of the last migrations of this release, read once from the files of all
    migrations."""
    return {*ScriptDirectory(str(MIGRATIONS)).get_heads()}


def _applied(connection: Connection) -> set[str]:
    """Returns the id of the last migration that was applied; empty where there was none. Alembic's
    own reader would log two lines each time, and readiness is probed every few seconds."""
    if not inspect(connection).has_table("alembic_version"):
        return set()
    return {*connection.scalars(text("select version_num from alembic_version"))}


def revision(connection: Connection) -> str:
    """Returns the last migration that was applied, or an empty text where there was none."""
    return max(_applied(connection), default="")


def first_incomplete_table(connection: Connection) -> str | None:
    """Returns the name of the first table that is missing or lacks a column; None where all are
    complete. A table lacks something if a migration was replaced under the id that it had."""
    for table in Table.metadata.sorted_tables:
        try:
            # A savepoint: after an error PostgreSQL runs nothing more in the transaction.
            with connection.begin_nested():
                connection.execute(select(table).where(false()))
        except (OperationalError, ProgrammingError):
            if connection.invalidated:  # the database is gone, which tells nothing of the table
                raise
            return table.name
    return None


def alembic_config(connection: Connection) -> Config:
    """Returns Alembic's settings for these migrations, which it runs on this open connection."""
    config = Config(attributes={"connection": connection})
    # configparser, which reads the option, takes a single % for a reference.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


@contextmanager
def migrating(connection: Connection) -> Iterator[None]:
    """Opens a transaction for a migration, which may take long. Other migrations wait for it."""
    migration = _migrating_sqlite if connection.dialect.name == "sqlite" else _migrating_postgresql
    with migration(connection):
        yield


@contextmanager
def _migrating_sqlite(connection: Connection) -> Iterator[None]:
    """Opens a transaction for a migration of SQLite. SQLite alters many a table by copying it and
    dropping the original, so references between tables are checked only at the end. Raises
    DatabaseUnusable if one is broken."""
    driver: Any = connection.connection.dbapi_connection
    # Another process may be migrating, which may take as long.
    usual_wait_ms = driver.execute("PRAGMA busy_timeout").fetchone()[0]
    driver.execute(f"PRAGMA busy_timeout = {round(1000 * _MIGRATION_S)}")
    driver.execute("PRAGMA foreign_keys = OFF")
    try:
        with writing(connection):
            yield
            if broken := connection.exec_driver_sql("PRAGMA foreign_key_check").first():
                raise DatabaseUnusable(f"a row of {broken[0]} would refer to no row of {broken[2]}")
    finally:
        driver.execute("PRAGMA foreign_keys = ON")
        driver.execute(f"PRAGMA busy_timeout = {usual_wait_ms}")


@contextmanager
def _migrating_postgresql(connection: Connection) -> Iterator[None]:
    """Opens a transaction for a migration of PostgreSQL, with a long timeout and a lock of its
    own."""
    driver: Any = connection.connection.dbapi_connection  # a BoundedConnection
    usual_answer_s = driver.answer_s  # the seconds that it waits for an answer of the server
    driver.answer_s = _MIGRATION_S
    try:
        with writing(connection):
            connection.execute(text(f"set local statement_timeout = {round(1000 * _MIGRATION_S)}"))
            connection.execute(
                text("select pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK_KEY}
            )
            yield
    finally:
        driver.answer_s = usual_answer_s


@contextmanager
def writing(connection: Connection) -> Iterator[None]:
    """Opens a transaction that writes, which on SQLite takes the lock of writers at once."""
    connection.execution_options(writes=True)
    with connection.begin():
        yield


def _open_sqlite(wait_s: float, connection: Any, _: Any) -> None:
    """Sets up a new connection to SQLite. `_` is an argument of SQLAlchemy's event."""
    # transactions begin where _begin_sqlite says, not where the driver guesses
    connection.isolation_level = None
    keep_track_of_free_pages(connection)  # before anything is written
    _enable_wal(connection, wait_s)
    # FULL: what was acknowledged is still there after the power went
    for pragma in ("foreign_keys = ON", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _enable_wal(connection: Any, wait_s: float) -> None:
    """Switches to a write-ahead log. This needs the file for itself and fails at once if another
    process uses it, so it is tried again for `wait_s` seconds."""
    until = time.monotonic() + wait_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorname.startswith("SQLITE_BUSY")  # or ..._BUSY_RECOVERY
            if not is_busy or time.monotonic() > until:
                raise
            time.sleep(0.02)


def _begin_sqlite(connection: Connection) -> None:
    """Begins a transaction. One that writes takes its lock at once, because SQLite lets no reader
    become a writer after another has written."""
    if connection.get_execution_options().get("writes"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        # Past SQLAlchemy, to save time: it would translate errors, and BEGIN, which touches no file
        # yet, raises none.
        driver: Any = connection.connection.dbapi_connection
        driver.execute("BEGIN")


class DatabaseUnusable(Exception):
    """The database cannot be used. The message says why."""


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turns errors of the database within the block into DatabaseUnusable."""
    try:
        yield
    except CommandError as error:  # of Alembic, such as a revision that this release does not have
        raise DatabaseUnusable(
            f"{str(error).strip()}: the database may be of a newer release than this one."
        ) from None
    except Unavailable as error:
        # The driver's own words (`orig`) say more to an operator than those shown to callers.
        raise DatabaseUnusable(
            str(getattr(error.__cause__, "orig", None) or error).strip()
        ) from None
    except SQLAlchemyError as error:
        raise DatabaseUnusable(str(getattr(error, "orig", None) or error).strip()) from None
