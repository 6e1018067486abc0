from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from service.store import Store, database
from service.sweeps.answering import ItemAnswer
from service.sweeps.runner import SweepRunner
from service.sweeps.workers import WorkersGone

SWEEP: dict[str, Any] = {
    "models": ["llama-3.1-8b", "llama-3.1-70b"],
    "clusters": [{"preset": "h100", "num_chips": 8}, {"preset": "b200", "num_chips": 16}],
    "workloads": [{"seq_len": 8192, "global_batch": 128}],
    "stacks": ["torchtitan", "maxtext"],
}
"""Eight items."""
REFUSED = ItemAnswer("refused", {"type": "/problems/invalid", "detail": "for a test"})


class Answers:
    """Workers that answer in the thread that asks, with what a test says."""

    def __init__(self, answer: Callable[[dict[str, Any]], ItemAnswer], slots: int = 1) -> None:
        self._answer, self._slots = answer, slots

    def slots(self) -> int:
        return self._slots

    def submit(self, store: Store, question: dict[str, Any]) -> Future[ItemAnswer]:
        future: Future[ItemAnswer] = Future()
        try:
            future.set_result(self._answer(question))
        except (ConnectionError, MemoryError, WorkersGone) as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass


class Held(Answers):
    """Workers that never come to an end."""

    def submit(self, store: Store, question: dict[str, Any]) -> Future[ItemAnswer]:
        return Future()


Run = Callable[..., SweepRunner]


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    engine = database.connect(database_url)
    yield Store(engine)
    engine.dispose()


@pytest.fixture
def run(store: Store) -> Iterator[Run]:
    """Starts runners, which end with the test."""
    runners: list[SweepRunner] = []

    def start(workers: Answers, lease_s: float = 10.0) -> SweepRunner:
        runners.append(SweepRunner(store, workers, lease_s, lambda: True))
        runners[-1].start()
        return runners[-1]

    yield start
    for runner in runners:
        runner.stop()
