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
from typing import Any

import pytest

from service.store import Store, database
from tests.paths import ROOT
from tests.service.asking import ON_BOTH
from tests.service.processes import Service, serving
from tests.service.sweeps.conftest import SWEEP, wait_for

pytestmark = pytest.mark.long

_LONG_S = 120.0
LARGER = {
    **SWEEP,
    "workloads": [{"seq_len": 8192, "global_batch": 128 * factor} for factor in (1, 2, 4)],
}
"""24 items."""


def finished_items(store: Store, id_: str) -> dict[int, tuple[int | None, Any]]:
    """The event and the result of each item that is finished, by its position."""
    with store.reading() as rows:
        found = rows.sweeps.items(id_, None, 1000, -1)
    return {row.position: (row.event, row.result) for row in found if row.outcome is not None}


def assert_whole(store: Store, id_: str) -> None:
    """Every item has a result, and each was stored once."""
    found = finished_items(store, id_)
    assert sorted(found) == [*range(24)]
    assert sorted(event for event, _ in found.values()) == [*range(1, 25)]
    with store.reading() as rows:
        sweep = rows.sweeps.get(id_)
        assert (sweep.events, sweep.waiting) == (24, 0)
        assert rows.sweeps.outcomes([id_])[id_].keys() <= {"ok", "infeasible", "refused"}


def begun(service: Service, store: Store, items: int) -> str:
    """A sweep of which so many items are finished."""
    made = service.request("POST", "/v1/sweeps", json=LARGER)
    id_ = str(made.raise_for_status().json()["id"])
    wait_for(lambda: len(finished_items(store, id_)) >= items, _LONG_S)
    return id_


@ON_BOTH
def test_a_service_that_is_killed_loses_no_finished_item(database_url: str) -> None:
    store = Store(database.connect(database_url))
    with serving(database_url, sweep_lease_s=1) as service:
        id_ = begun(service, store, 4)
        service.kill()
    before = finished_items(store, id_)
    assert 4 <= len(before) < 24
    with serving(database_url, sweep_lease_s=1):
        wait_for(lambda: len(finished_items(store, id_)) == 24, _LONG_S)
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
def running(*command: str, folder: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{command[-1].replace('/', '-')}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_dask_loses_workers_and_the_scheduler_but_no_item(
    database_url: str, tmp_path: Path
) -> None:
    store = Store(database.connect(database_url))
    port = str(20000 + os.getpid() % 20000)
    scheduler = ("distributed.cli.dask_scheduler", "--no-dashboard", "--host", "127.0.0.1")
    scheduler += ("--port", port)
    worker = ("distributed.cli.dask_worker", "--no-dashboard", "--nthreads", "1")
    worker += (f"tcp://127.0.0.1:{port}",)
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
        wait_for(lambda: len(finished_items(store, id_)) > count, _LONG_S)
        first.send_signal(signal.SIGKILL)
        first.wait()
        before = finished_items(store, id_)
        time.sleep(1)
        enter(running(*scheduler, folder=tmp_path))
        enter(running(*worker, folder=tmp_path, **variables))
        wait_for(lambda: len(finished_items(store, id_)) == 24, _LONG_S)
    after = finished_items(store, id_)
    assert {position: after[position] for position in before} == before
    assert_whole(store, id_)
