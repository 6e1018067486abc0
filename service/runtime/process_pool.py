"""Worker processes for what computes long and is in no hurry, so that requests keep a core of their
own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import Concatenate, ParamSpec, TypeVar

from threadpoolctl import threadpool_limits

from service.store import Store, database

MAX_INLINE_REPORTS = 200
"""A task about no more reports than this runs in the calling thread, where it starts at once."""

_NICENESS = 5  # so that requests go first
_PROCESSES = 2  # a calibration, and a batch of reports beside it
_PARENT_POLL_S = 1.0

P = ParamSpec("P")
T = TypeVar("T")


class ProcessPool:
    """Runs tasks in worker processes, which start when they are first needed.

    Each task reads a store of its own, which sees as much as the one given. Its arguments and its
    result are pickled.
    """

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._executor: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()

    def run(
        self,
        store: Store,
        size: int,
        task: Callable[Concatenate[Store, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """The result of the task; `size` is the number of reports that it is about. If a worker was
        killed the task is tried once more, with new workers."""
        if size <= MAX_INLINE_REPORTS:
            return task(store, *args, **kwargs)
        visibility = store.tenant, store.sees_all
        job: Callable[[], T] = partial(
            _run_with_own_store, self._url, visibility, task, *args, **kwargs
        )
        executor = self._running_executor()
        try:
            return executor.submit(job).result()
        except BrokenProcessPool:
            self._discard(executor)
            return self._running_executor().submit(job).result()

    def close(self) -> None:
        with self._lock:
            executor = self._executor
            self._executor = None
        if executor is not None:
            executor.shutdown(cancel_futures=True)

    def _discard(self, broken: ProcessPoolExecutor) -> None:
        """Drops a broken executor, unless another thread has replaced it already."""
        with self._lock:
            if self._executor is broken:
                self._executor = None
        broken.shutdown(wait=False)

    def _running_executor(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ProcessPoolExecutor(
                    _PROCESSES,
                    get_context("spawn"),
                    initializer=_initialize_worker,
                    initargs=(os.getpid(),),
                )
            return self._executor


def _initialize_worker(parent: int) -> None:
    os.nice(_NICENESS)
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    """Ends this worker once the server has ended, so that none works for a server that was
    killed."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)


def _run_with_own_store(
    database_url: str,
    visibility: tuple[str | None, bool],
    task: Callable[..., T],
    *args: object,
    **kwargs: object,
) -> T:
    tenant, sees_all = visibility
    store = Store(database.connect(database_url), tenant, sees_all=sees_all)
    try:
        # The limit is set here, once the task has loaded the library that it is for.
        with threadpool_limits(1, user_api="blas"):
            return task(store, *args, **kwargs)
    finally:
        store.close()
