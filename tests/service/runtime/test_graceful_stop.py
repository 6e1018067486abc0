"""A process that is told to stop does what it can in time, and says of the rest that it did not."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.errors import Stopping
from service.runtime.graceful_stop import LAST_S
from service.store import Store, database
from service.store.reports import ReportFilter
from tests.service.asking import ON_BOTH, REPORT, assert_problem, changed
from tests.service.processes import Service, serving
from tests.service.sweeps.conftest import wait_for
from tests.service.sweeps.progress import begun

SLOW_TO_EXIT_S = 5.0  # on a machine with much else to do

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


def stopped_during(
    service: Service, path: str, body: dict[str, Any], after_s: float, **headers: str
) -> tuple[httpx.Response, float]:
    """The answer to a request beside which the service is told to stop, and the seconds from then
    until its process has ended."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(service.request, "POST", path, json=body, headers=headers)
        time.sleep(after_s)
        began = time.monotonic()
        service.stop()
        service.process.wait(60)
        return asked.result(), time.monotonic() - began


@ON_BOTH
@pytest.mark.long
def test_a_batch_that_takes_too_long_is_told_so_and_nothing_of_it_is_stored(
    database_url: str,
) -> None:
    batch = {"reports": different_reports(9000)}
    key = {"Idempotency-Key": "a-batch"}
    with serving(database_url, stop_grace_s=2) as service:
        answer, ended_s = stopped_during(service, "/v1/reports", batch, 3, **key)
    assert_problem(answer, "stopping")
    assert int(answer.headers["retry-after"]) > 0
    assert 2 <= ended_s < 2 + LAST_S + SLOW_TO_EXIT_S
    time.sleep(2)
    assert count_reports(database_url) == 0
    few = {"reports": batch["reports"][:2]}
    with serving(database_url) as service:  # the key is free at once
        again = service.request("POST", "/v1/reports", json=few, headers=key)
        assert again.status_code == 201, again.text
    assert count_reports(database_url) == 2


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_a_search_that_takes_too_long_is_told_so(database_url: str, workers: int) -> None:
    with serving(database_url, stop_grace_s=1, workers=workers) as service:
        answer, ended_s = stopped_during(service, "/v1/recommendations", LONG_SEARCH, 1)
    assert_problem(answer, "stopping")
    assert ended_s < 1 + LAST_S + SLOW_TO_EXIT_S
    assert service.process.returncode == 0


@pytest.mark.long
def test_what_can_finish_in_time_is_answered(database_url: str) -> None:
    batch = {"reports": different_reports(300)}
    with serving(database_url, stop_grace_s=60) as service:
        answer, ended_s = stopped_during(service, "/v1/reports", batch, 0.5)
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
        assert service.process.wait(60) == 0
        assert time.monotonic() - began < SLOW_TO_EXIT_S


@pytest.mark.long
def test_being_told_twice_is_no_reason_to_hurry(database_url: str) -> None:
    batch = {"reports": different_reports(300)}
    with serving(database_url, stop_grace_s=60) as service, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(service.request, "POST", "/v1/reports", json=batch)
        time.sleep(0.5)
        service.stop()
        time.sleep(0.2)
        service.stop()
        assert service.process.wait(60) == 0
        assert asked.result().status_code == 201


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_during_a_sweep_leaves_no_semaphores_behind(database_url: str, workers: int) -> None:
    store = Store(database.connect(database_url))
    with serving(database_url, workers=workers) as service:
        begun(service, store, 1)
        tracker = resource_tracker(service.process.pid)
        service.stop()
        assert service.process.wait(60) == 0
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
            may_commit.wait(10)

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(write)
        closing.wait(10)
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
