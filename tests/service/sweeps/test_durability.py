"""Sweeps of real processes, which are killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from service.store import Store, database
from tests.paths import ROOT
from tests.service.asking import ON_BOTH
from tests.service.processes import serving
from tests.service.sweeps.progress import assert_whole, begun, finished_items
from tests.waiting import LONG_S, wait_for

pytestmark = pytest.mark.long


@ON_BOTH
def test_a_service_that_is_killed_loses_no_finished_item(database_url: str) -> None:
    store = Store(database.connect(database_url))
    with serving(database_url, sweep_lease_s=1) as service:
        id_ = begun(service, store, 4)
        service.kill()
    before = finished_items(store, id_)
    assert 4 <= len(before) < 24
    with serving(database_url, sweep_lease_s=1):
        wait_for(lambda: len(finished_items(store, id_)) == 24)
    after = finished_items(store, id_)
    assert {position: after[position] for position in before} == before
    assert_whole(store, id_)


def test_several_processes_share_a_sweep(database_url: str) -> None:
    store = Store(database.connect(database_url))
    with ExitStack() as stack:
        first, _ = (stack.enter_context(serving(database_url)) for _ in range(2))
        id_ = begun(first, store, 24)
    assert_whole(store, id_)


@contextmanager
def running(
    *command: str, folder: Path, where: Path = ROOT, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{command[-1].replace('/', '-')}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=where,
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def dask_commands() -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """A port, and what starts a scheduler there and a worker of it."""
    port = str(20000 + os.getpid() % 12000)  # below those that connections get
    scheduler = ("distributed.cli.dask_scheduler", "--no-dashboard", "--host", "127.0.0.1")
    scheduler += ("--port", port)
    worker = ("distributed.cli.dask_worker", "--no-dashboard", "--nthreads", "1")
    return port, scheduler, (*worker, f"tcp://127.0.0.1:{port}")


@pytest.mark.faults  # it stops processes for longer than a suite of every landing may
def test_dask_workers_without_the_code_pause_a_sweep_and_a_frozen_scheduler_holds_no_stop(
    database_url: str, tmp_path: Path
) -> None:
    store = Store(database.connect(database_url))
    port, scheduler, worker = dask_commands()
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "__init__.py").write_text("raise ImportError('no such release')")
    with ExitStack() as stack:
        enter = stack.enter_context
        frozen = enter(running(*scheduler, folder=tmp_path))
        enter(running(*worker, folder=tmp_path, where=tmp_path))
        service = enter(serving(database_url, dask_scheduler=f"tcp://127.0.0.1:{port}"))
        id_ = begun(service, store, 0)

        def waits_for() -> str:
            return str(service.request("GET", f"/v1/sweeps/{id_}").json()["waits_for"])

        wait_for(lambda: "no such release" in waits_for())
        time.sleep(10)
        assert finished_items(store, id_) == {}
        frozen.send_signal(signal.SIGSTOP)
        time.sleep(6)
        began = time.monotonic()
        service.stop()
        assert service.process.wait(timeout=LONG_S) == 0
        assert time.monotonic() - began < 10
        frozen.send_signal(signal.SIGCONT)


def test_dask_loses_workers_and_the_scheduler_but_no_item(
    database_url: str, tmp_path: Path
) -> None:
    store = Store(database.connect(database_url))
    port, scheduler, worker = dask_commands()
    variables = {"SHARDWRIGHT_DATABASE_URL": database_url}
    with ExitStack() as stack:
        enter = stack.enter_context
        first = enter(running(*scheduler, folder=tmp_path))
        workers = [enter(running(*worker, folder=tmp_path, **variables)) for _ in range(2)]
        service = enter(
            serving(database_url, dask_scheduler=f"tcp://127.0.0.1:{port}", sweep_lease_s=2)
        )
        id_ = begun(service, store, 3)
        workers[0].send_signal(signal.SIGKILL)
        count = len(finished_items(store, id_))
        wait_for(lambda: len(finished_items(store, id_)) > count)
        first.send_signal(signal.SIGKILL)
        first.wait()
        before = finished_items(store, id_)
        time.sleep(1)
        enter(running(*scheduler, folder=tmp_path))
        enter(running(*worker, folder=tmp_path, **variables))
        wait_for(lambda: len(finished_items(store, id_)) == 24)
    after = finished_items(store, id_)
    assert {position: after[position] for position in before} == before
    assert_whole(store, id_)
