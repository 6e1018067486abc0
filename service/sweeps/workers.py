"""The workers that compute the items of sweeps: processes of this machine, or a Dask cluster. A
*sweep* is many questions that are asked as one job, and an *item* is one of them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from service.runtime.process_pool import ProcessPool
from service.store import Store
from service.sweeps.answering import ItemAnswer, answer_item

_NICENESS = 15  # so that a busy machine leaves sweeps little while others ask


class WorkersGone(Exception):
    """The workers cannot be reached now, or cannot compute whatever they are asked. The message
    says why."""


class Workers(Protocol):
    def slots(self) -> int:
        """Returns how many items the workers may have at once. Raises WorkersGone."""

    def submit(self, store: Store, question: dict[str, Any]) -> Future[ItemAnswer]:
        """Starts to answer a question, with the rows that the store sees, and returns a future. The
        future raises WorkersGone where the worker cannot compute any item, and another exception
        where the worker is lost."""

    def close(self) -> None: ...


class LocalWorkers:
    """Processes of this machine, which start when there is something to compute."""

    def __init__(self, database_url: str, processes: int, database_wait_s: float) -> None:
        self._pool = ProcessPool(database_url, processes, database_wait_s, _NICENESS)
        # One item more than processes, so that a process finds the next one when it is done.
        self._slots = processes + 1
        self._threads = ThreadPoolExecutor(self._slots, "wait for an item")

    def slots(self) -> int:
        return self._slots

    def submit(self, store: Store, question: dict[str, Any]) -> Future[ItemAnswer]:
        return self._threads.submit(self._pool.run_in_process, store, answer_item, question)

    def close(self) -> None:
        self._pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
