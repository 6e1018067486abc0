"""What is large is done in another process, with the same answers, and survives the death of that
process."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from service.errors import WorkerKilled
from service.runtime.process_pool import MAX_INLINE_REPORTS, ProcessPool
from service.runtime.processes import Processes
from service.store import Store
from tests.service.asking import PREDICTION, REPORT, changed


def process_of(store: Store) -> int:
    with store.reading() as rows:
        assert rows.profiles.find("default") is not None
    return os.getpid()


def test_large_tasks_go_to_a_process(client) -> None:
    pool: ProcessPool = client.app.state.services.process_pool
    store: Store = client.app.state.services.store
    assert pool.run(store, MAX_INLINE_REPORTS, process_of) == os.getpid()
    there = pool.run(store, MAX_INLINE_REPORTS + 1, process_of)
    assert there != os.getpid()
    assert pool.run(store, MAX_INLINE_REPORTS + 1, process_of) == there


def test_a_process_is_replaced_when_it_dies() -> None:
    processes = Processes(1)
    first = processes.run(os.getpid)
    with pytest.raises(WorkerKilled):
        processes.run(signal.raise_signal, signal.SIGKILL)
    assert processes.run(os.getpid) not in (first, os.getpid())
    processes.close()


@pytest.mark.long
def test_a_large_batch_and_its_calibration_are_those_of_small_ones(client) -> None:
    predicted = client.post("/v1/predictions", json=PREDICTION).json()["layouts"][0]["step_time_s"]
    reports: list[Any] = [
        changed(REPORT, "measured.step_time_s", predicted * (1.1 + i / 5000))
        for i in range(MAX_INLINE_REPORTS)
    ]
    reports += [{"outcome": "ok"}, REPORT]
    large = client.post("/v1/reports", json={"reports": reports}).json()
    assert (large["accepted"], large["refused"]) == (MAX_INLINE_REPORTS + 1, 1)
    small = client.post("/v1/reports", json={"reports": reports[-3:]}).json()
    for there, here in zip(large["items"][-3:], small["items"], strict=True):
        assert there["residual"] == here["residual"]
        assert [error["rule"] for error in there["errors"]] == [
            error["rule"] for error in here["errors"]
        ]
    made = client.post("/v1/profiles/default/calibrations").json()["calibration"]
    assert made["observations"] == MAX_INLINE_REPORTS + 3
    assert made["unseen"]["error_after"] < made["unseen"]["error_before"]
