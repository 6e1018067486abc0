"""Faults at random moments. `make test-faults FAULT_TRIALS=200 FAULT_SEED=1`
tries many; the seed of each trial is printed, and is part of the name of its test."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import httpx
import psycopg
import pytest
from sqlalchemy import make_url, text

from service.settings import Settings
from service.store import Store, database
from tests import postgresql
from tests.databases import PostgresDatabases, SqliteFiles, own_server
from tests.service.asking import PREDICTION, REPORT, changed
from tests.service.faults.ledger import Ledger
from tests.service.processes import Service, serving, starting
from tests.service.sweeps.progress import assert_whole, begun, finished_items
from tests.waiting import wait_for

pytestmark = pytest.mark.faults

TRIALS = int(os.environ.get("FAULT_TRIALS", "1"))
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(random.random()))
FIRST_SEED = int(os.environ.get("FAULT_SEED", zlib.crc32(_RUN.encode()) % 10**6))
RECOVERY_S = float(os.environ.get("FAULT_RECOVERY_S", "5"))
"""CI, which does not have its machine for itself, allows more."""
PROFILE = "/v1/profiles/default"

trials = pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + TRIALS))
on_both = pytest.mark.parametrize("engine", ["sqlite", "postgresql"])


@pytest.fixture
def randomness(seed: int) -> random.Random:
    print(f"seed {seed}")
    return random.Random(seed)


class Databases(Protocol):
    def empty(self) -> str: ...

    def prepared(self) -> str: ...


@pytest.fixture(scope="module")
def server() -> Iterator[postgresql.Server]:
    """A PostgreSQL of these tests alone, which they may stop and freeze."""
    programs = postgresql.binaries()
    if programs is None:
        pytest.skip("NO POSTGRESQL that can be stopped and started")
    with own_server(programs) as running:
        yield running


@pytest.fixture(scope="module")
def server_databases(server: postgresql.Server) -> PostgresDatabases:
    return PostgresDatabases(server.url)


@pytest.fixture
def databases(engine: str, request: pytest.FixtureRequest) -> Databases:
    name = "server_databases" if engine == "postgresql" else "sqlite_files"
    found: Databases = request.getfixturevalue(name)
    return found


def pause(randomness: random.Random, most_s: float) -> None:
    time.sleep(randomness.uniform(0, most_s))


def require_recovery(service: Service) -> None:
    """It stores and is ready within RECOVERY_S of this moment."""
    ends = time.monotonic() + RECOVERY_S
    said = ""
    while time.monotonic() < ends:
        try:
            stored = service.request("POST", "/v1/predictions", json=PREDICTION, timeout=RECOVERY_S)
            ready = service.request("GET", "/readyz", timeout=RECOVERY_S)
        except httpx.TransportError as error:
            said = repr(error)
        else:
            if stored.is_success and ready.is_success:
                return
            said = stored.text + ready.text
        time.sleep(0.1)
    raise AssertionError(f"not back within {RECOVERY_S:g} s: {said}\n{service.errors()}")


def require_whole_versions(url: str) -> None:
    """Versions are numbered without a gap, and each is there with all that belongs to it."""
    engine = database.connect(url)
    with Store(engine).reading() as rows:
        numbers = [row.version for row in rows.profiles.versions("default")]
        assert numbers == [*range(1, len(numbers) + 1)]
        assert rows.profiles.get("default").active_version in numbers
        for number in numbers:
            assert rows.profiles.version("default", number).content["version"] == number
            assert rows.profiles.posterior("default", number) is not None
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            assert connection.execute(text("pragma integrity_check")).scalar() == "ok"
            assert connection.execute(text("pragma foreign_key_check")).all() == []
    engine.dispose()


@trials
@on_both
def test_killed_while_reports_come(databases: Databases, randomness: random.Random) -> None:
    url = databases.prepared()
    with serving(url) as first:
        ledger = Ledger(first, randomness)
        with serving(url) as second, ledger.reporting():
            pause(randomness, 3)
            first.kill()
            ledger.service = second
            time.sleep(1)
        ledger.require_each_once(url)
    require_whole_versions(url)


@trials
@on_both
def test_a_service_killed_while_it_calibrates_calibrates_once(
    databases: Databases, randomness: random.Random
) -> None:
    url = databases.prepared()
    with serving(url) as service:
        reports = [{**REPORT, "measured": {"step_time_s": 2 + i / 100}} for i in range(250)]
        assert service.request("POST", "/v1/reports", json={"reports": reports}).is_success
        calibration = subprocess.Popen(
            ["curl", "-s", "-X", "POST", "-H", "Idempotency-Key: once",
             f"{service.address}{PROFILE}/calibrations"],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        pause(randomness, 10)
        service.kill()
        calibration.wait()
    require_whole_versions(url)
    with serving(url) as service:
        ends = time.monotonic() + Settings().idempotency_lease_s
        while True:  # until the lease of the killed process is over
            key = {"Idempotency-Key": "once"}
            made = service.request("POST", f"{PROFILE}/calibrations", headers=key)
            if made.status_code != 409 or time.monotonic() > ends:
                break
            time.sleep(0.5)
        assert made.status_code == 201, made.text
        versions = service.request("GET", PROFILE).json()["versions"]
        assert [version["version"] for version in versions] == [1, 2]
    require_whole_versions(url)


@trials
@on_both
def test_a_service_killed_while_it_migrates_starts_again(
    databases: Databases, randomness: random.Random
) -> None:
    url = databases.empty()
    with starting(url) as service:
        pause(randomness, 6)
        service.kill()
    with serving(url):
        pass
    require_whole_versions(url)


@trials
def test_the_server_is_stopped_while_reports_come(
    server: postgresql.Server, server_databases: PostgresDatabases, randomness: random.Random
) -> None:
    url = server_databases.prepared()
    with serving(url) as service:
        ledger = Ledger(service, randomness)
        with ledger.reporting():
            pause(randomness, 3)
            server.stop(randomness.choice(["immediate", "fast"]))
            pause(randomness, 3)
            assert service.request("GET", "/livez", timeout=RECOVERY_S / 5).is_success
            server.start()
            require_recovery(service)
        ledger.require_each_once(url)


@trials
def test_connections_are_cut_while_reports_come(
    server_databases: PostgresDatabases, randomness: random.Random
) -> None:
    url = server_databases.prepared()
    with serving(url) as service:
        ledger = Ledger(service, randomness)
        with ledger.reporting():
            for _ in range(5):
                pause(randomness, 1)
                cut_connections(url)
            require_recovery(service)
        ledger.require_each_once(url)


def cut_connections(url: str) -> None:
    database_url = make_url(url).set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )


@trials
def test_the_server_is_frozen_while_reports_come(
    server: postgresql.Server, server_databases: PostgresDatabases, randomness: random.Random
) -> None:
    url = server_databases.prepared()
    with serving(url, database_wait_s=2) as service:
        ledger = Ledger(service, randomness)
        with ledger.reporting():
            pause(randomness, 2)
            server.freeze()
            try:
                began = time.monotonic()
                ready = service.request("GET", "/readyz", timeout=2 * RECOVERY_S)
                assert ready.status_code == 503
                assert ready.json()["database"] == "does not answer"
                refused = service.request("POST", "/v1/predictions", json=PREDICTION, timeout=120)
                assert refused.status_code == 503
                assert time.monotonic() - began < 4 * RECOVERY_S
                assert service.request("GET", "/livez", timeout=RECOVERY_S / 5).is_success
            finally:
                server.thaw()
            require_recovery(service)
        ledger.require_each_once(url)


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of so many MiB."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
        pytest.skip("needs to mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all the room that there is."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
    return filler


@dataclass
class SmallDatabase:
    """A database that has a small disk for itself."""

    url: str
    disk: Path
    server: postgresql.Server | None = None

    @contextmanager
    def full(self, service: Service) -> Iterator[None]:
        """There is no room while the block runs."""
        filler = fill(self.disk)
        require_no_room(service)
        yield
        filler.unlink()
        if self.server is not None and not self.server.is_running():
            self.server.start()


@pytest.fixture
def small_database(engine: str, sqlite_files: SqliteFiles) -> Iterator[SmallDatabase]:
    open_small = small_postgresql() if engine == "postgresql" else small_sqlite(sqlite_files)
    with open_small as found:
        yield found


@contextmanager
def small_sqlite(files: SqliteFiles) -> Iterator[SmallDatabase]:
    with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder), 256) as disk:
        shutil.copy(make_url(files.template).database or "", disk / "x.db")
        yield SmallDatabase(f"sqlite:///{disk / 'x.db'}", disk)


@contextmanager
def small_postgresql() -> Iterator[SmallDatabase]:
    programs = postgresql.binaries()
    if programs is None:
        pytest.skip("NO POSTGRESQL that can be stopped and started")
    folder = Path(tempfile.mkdtemp(prefix="shardwright-postgres-"))
    with small_disk(folder, 512) as disk:
        server = postgresql.Server(programs, disk)
        server.start()
        try:
            yield SmallDatabase(PostgresDatabases(server.url).prepared(), disk, server)
        finally:
            server.stop()
    folder.rmdir()


@trials
@on_both
def test_the_disk_is_full_while_reports_come(
    small_database: SmallDatabase, randomness: random.Random
) -> None:
    with serving(small_database.url) as service:
        ledger = Ledger(service, randomness)
        with ledger.reporting():
            pause(randomness, 2)
            with small_database.full(service):
                pass
            require_recovery(service)
        ledger.require_each_once(small_database.url)
    require_whole_versions(small_database.url)


@trials
@on_both
def test_the_disk_is_full_while_a_sweep_runs(
    small_database: SmallDatabase, randomness: random.Random
) -> None:
    """Its leases run out meanwhile, and it goes on by itself."""
    store = Store(database.connect(small_database.url))
    with serving(small_database.url, sweep_lease_s=1) as service:
        id_ = begun(service, store, randomness.randrange(1, 6))
        before = finished_items(store, id_)
        with small_database.full(service):
            pause(randomness, 5)
            still_full = datetime.now(UTC)
        wait_for(lambda: len(finished_items(store, id_)) == 24)
    after = finished_items(store, id_)
    assert {position: after[position] for position in before} == before
    assert_whole(store, id_)
    with store.reading() as rows:
        ended = rows.sweeps.get(id_).finished_at
    assert ended is not None
    assert ended > still_full
    store.close()


def require_no_room(service: Service) -> None:
    """Nothing can be stored, and readiness says so. What the database still has of its own room is
    used up first."""
    ends = time.monotonic() + 60
    for seq_len in range(2048, 10**6):
        question = changed(PREDICTION, "workload.seq_len", seq_len)
        refused = service.request("POST", "/v1/predictions", json=question)
        if refused.status_code == 503:
            break
        assert time.monotonic() < ends, refused.text
    assert service.request("GET", "/readyz").status_code == 503


@trials
@on_both
def test_a_worker_of_the_pool_is_killed(databases: Databases, randomness: random.Random) -> None:
    url = databases.prepared()
    with serving(url) as service:
        ledger = Ledger(service, randomness)
        with ledger.reporting():
            for _ in range(8):
                pause(randomness, 1)
                kill_workers(service)
        ledger.require_each_once(url)


def kill_workers(service: Service) -> None:
    """Kills what the process of the service has started."""
    for child in service.children():
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
