"""A process that is told to stop does what it can in time, and says of the rest that it did not."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from service.errors import Stopping
from service.runtime.graceful_stop import LAST_S
from service.store import Store, database
from service.store.reports import ReportFilter
from service.store.tables import IdempotencyRow
from tests.service.asking import ON_BOTH, REPORT, assert_problem, changed
from tests.service.processes import Service, serving
from tests.service.sweeps.progress import begun
from tests.waiting import LONG_S, wait_for

SLOW_TO_EXIT_S = 15.0  # on a machine with much else to do; a time of grace would be longer

LONG_SEARCH = {
    "model": {
        "num_layers": 96,
        "hidden_size": 6144,
        "intermediate_size": 16384,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "vocab_size": 32768,
        "moe": {"num_experts": 240, "experts_per_token": 2, "moe_intermediate_size": 16384},
    },
    "cluster": {"preset": "h100", "num_chips": 60_480},
    "workload": {"seq_len": 4096, "global_batch": 60_480},
    "stack": "generic",
    "top": 100,
    "tolerance": 1,
    "time_limit_s": 60,
}


def different_reports(count: int) -> list[dict[str, Any]]:
    """Reports of as many questions, which no cache makes quick."""
    return [changed(REPORT, "workload.seq_len", 2048 + i) for i in range(count)]


def count_reports(url: str) -> int:
    engine = database.connect(url)
    try:
        with Store(engine).reading() as rows:
            return rows.reports.count(ReportFilter())
    finally:
        engine.dispose()


KEY = {"Idempotency-Key": "a-key"}


@contextmanager
def begun_request(
    service: Service, url: str, path: str, body: dict[str, Any]
) -> Iterator[Future[httpx.Response]]:
    """A request that the service has begun: it claims the key before it computes."""
    engine = database.connect(url)

    def is_claimed() -> bool:
        with engine.connect() as connection:
            return bool(connection.execute(select(IdempotencyRow.key)).all())

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(service.request, "POST", path, json=body, headers=KEY)
        wait_for(is_claimed)
        engine.dispose()
        yield asked


def stopped_during(
    service: Service, url: str, path: str, body: dict[str, Any]
) -> tuple[httpx.Response, float]:
    """The answer to a request beside which the service is told to stop, and the seconds from then
    until its process has ended."""
    with begun_request(service, url, path, body) as asked:
        began = time.monotonic()
        service.stop()
        service.process.wait(LONG_S)
        return asked.result(), time.monotonic() - began


@ON_BOTH
@pytest.mark.long
def test_a_batch_that_takes_too_long_is_told_so_and_nothing_of_it_is_stored(
    database_url: str,
) -> None:
    batch = {"reports": different_reports(9000)}
    with serving(database_url, stop_grace_s=2) as service:
        answer, ended_s = stopped_during(service, database_url, "/v1/reports", batch)
    assert_problem(answer, "stopping")
    assert int(answer.headers["retry-after"]) > 0
    assert 2 <= ended_s < 2 + LAST_S + SLOW_TO_EXIT_S
    time.sleep(2)
    assert count_reports(database_url) == 0
    few = {"reports": batch["reports"][:2]}
    with serving(database_url) as service:  # the key is free at once
        again = service.request("POST", "/v1/reports", json=few, headers=KEY)
        assert again.status_code == 201, again.text
    assert count_reports(database_url) == 2


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_a_search_that_takes_too_long_is_told_so(database_url: str, workers: int) -> None:
    with serving(database_url, stop_grace_s=1, workers=workers) as service:
        answer, ended_s = stopped_during(service, database_url, "/v1/recommendations", LONG_SEARCH)
    assert_problem(answer, "stopping")
    assert ended_s < 1 + LAST_S + SLOW_TO_EXIT_S
    assert service.process.returncode == 0


@pytest.mark.long
def test_what_can_finish_in_time_is_answered(database_url: str) -> None:
    batch = {"reports": different_reports(300)}
    with serving(database_url, stop_grace_s=60) as service:
        answer, ended_s = stopped_during(service, database_url, "/v1/reports", batch)
    assert answer.status_code == 201
    assert answer.json()["accepted"] == 300
    assert ended_s < 60
    assert count_reports(database_url) == 300


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_has_nothing_to_do_ends_at_once(database_url: str, number: int) -> None:
    with serving(database_url) as service:
        began = time.monotonic()
        service.stop(number)
        assert service.process.wait(LONG_S) == 0
        assert time.monotonic() - began < SLOW_TO_EXIT_S


@pytest.mark.long
def test_being_told_twice_is_no_reason_to_hurry(database_url: str) -> None:
    batch = {"reports": different_reports(300)}
    with (
        serving(database_url, stop_grace_s=60) as service,
        begun_request(service, database_url, "/v1/reports", batch) as asked,
    ):
        service.stop()
        time.sleep(0.2)
        service.stop()
        assert service.process.wait(LONG_S) == 0
        assert asked.result().status_code == 201


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_during_a_sweep_leaves_no_semaphores_behind(database_url: str, workers: int) -> None:
    store = Store(database.connect(database_url))
    with serving(database_url, workers=workers) as service:
        begun(service, store, 1)
        tracker = resource_tracker(service.process.pid)
        service.stop()
        assert service.process.wait(LONG_S) == 0
        wait_for(lambda: not Path(f"/proc/{tracker}").exists())
        assert "leaked" not in service.errors()


def resource_tracker(pid: int) -> int:
    """The process that a process of Python, or one that it has started, has for its semaphores."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    children = [child for thread in threads for child in thread.read_text().split()]
    (tracker,) = (
        int(child)
        for child in children
        if "resource_tracker" in Path(f"/proc/{child}/cmdline").read_text()
    )
    return tracker


@ON_BOTH
def test_nothing_is_committed_once_the_gate_is_closed(database_url: str) -> None:
    engine = database.connect(database_url)
    store = Store(engine)
    may_commit, closing = threading.Event(), threading.Event()

    def write() -> None:
        with store.of("tenant", sees_all=False).writing() as rows:
            rows.lock("x")
            closing.set()
            may_commit.wait(LONG_S)

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(write)
        assert closing.wait(LONG_S)
        store.gate.close(within_s=1)
        may_commit.set()
        with pytest.raises(Stopping):
            late.result()
    engine.dispose()


def test_the_gate_waits_for_a_commit_that_has_begun(database_url: str) -> None:
    engine = database.connect(database_url)
    gate = Store(engine).gate
    engine.dispose()
    closed_after: list[bool] = []
    done = False
    with ThreadPoolExecutor(1) as pool:
        with gate.passing():
            closing = pool.submit(gate.close, 10)
            time.sleep(0.05)
            closed_after.append(closing.done())
            done = True
        closing.result()
    assert (closed_after, done) == ([False], True)
