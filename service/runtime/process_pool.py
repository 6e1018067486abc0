"""Worker processes for what computes long and is in no hurry, so that requests keep a core of their
own."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Concatenate, ParamSpec, TypeVar

from threadpoolctl import threadpool_limits

from service.errors import Stopping, WorkerKilled
from service.store import Store, database

log = logging.getLogger(__name__)

MAX_INLINE_REPORTS = 200
"""A task about no more reports than this runs in the calling thread, where it starts at once."""

_NICENESS = 5  # so that requests go first
_PROCESSES = 2  # a calibration, and a batch of reports beside it

_CONTEXT = get_context("spawn")

P = ParamSpec("P")
T = TypeVar("T")


class ProcessPool:
    """Runs tasks in worker processes, which start when they are first needed.

    Each task reads a store of its own, which sees as much as the one given. Its arguments and its
    result are pickled.
    """

    def __init__(
        self,
        database_url: str,
        processes: int = _PROCESSES,
        database_wait_s: float = database.WAIT_S,
        niceness: int = _NICENESS,
    ) -> None:
        self._database = database_url, database_wait_s
        self._processes = processes
        self._niceness = niceness
        self._executor: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()
        self._lifeline: Connection | None = None
        """Workers end when it is closed, which the end of this process does too."""
        self._is_closed = False

    def run(
        self,
        store: Store,
        size: int,
        task: Callable[Concatenate[Store, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """The result of the task; `size` is the number of reports that it is about, and few are
        computed in the calling thread."""
        if size <= MAX_INLINE_REPORTS:
            return task(store, *args, **kwargs)
        return self.run_in_process(store, task, *args, **kwargs)

    def run_in_process(
        self,
        store: Store,
        task: Callable[Concatenate[Store, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """The result of the task. If a worker was killed the task is tried once more, with new
        workers. Raises WorkerKilled where that one is killed too."""
        visibility = store.tenant, store.sees_all
        job: Callable[[], T] = partial(
            _run_with_own_store, self._database, visibility, task, *args, **kwargs
        )
        try:
            return self._result_of(job)
        except BrokenProcessPool:
            if not self._is_closed:
                log.warning("a worker was killed, and its task is tried once more")
        try:
            return self._result_of(job)
        except BrokenProcessPool:
            raise WorkerKilled from None

    def close(self) -> None:
        """Ends the workers, whatever they compute."""
        with self._lock:
            self._is_closed = True
            executor = self._executor
            self._executor = None
            if self._lifeline is not None:
                self._lifeline.close()
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    def _result_of(self, job: Callable[[], T]) -> T:
        executor = self._running_executor()
        try:
            return executor.submit(job).result()
        except BrokenProcessPool:
            self._discard(executor)
            raise

    def _discard(self, broken: ProcessPoolExecutor) -> None:
        """Drops a broken executor, unless another thread has replaced it already."""
        with self._lock:
            if self._executor is broken:
                self._executor = None
        broken.shutdown(wait=False)

    def _running_executor(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._is_closed:
                raise Stopping
            if self._executor is None:
                far_end, self._lifeline = _CONTEXT.Pipe(duplex=False)
                self._executor = ProcessPoolExecutor(
                    self._processes,
                    _CONTEXT,
                    initializer=_initialize_worker,
                    initargs=(far_end, self._niceness),
                )
            return self._executor


def _initialize_worker(lifeline: Connection, niceness: int) -> None:
    os.nice(niceness)
    threading.Thread(target=_exit_with_server, args=(lifeline,), daemon=True).start()


def _exit_with_server(lifeline: Connection) -> None:
    """Ends this worker once the pool is closed or the server has ended, even if it was killed."""
    lifeline.poll(None)  # nothing is ever sent, so that this returns when the other end is closed
    os._exit(1)


def _run_with_own_store(
    database_place: tuple[str, float],
    visibility: tuple[str | None, bool],
    task: Callable[..., T],
    *args: object,
    **kwargs: object,
) -> T:
    tenant, sees_all = visibility
    store = Store(database.connect(*database_place), tenant, sees_all=sees_all)
    try:
        # The limit is set here, once the task has loaded the library that it is for.
        with threadpool_limits(1, user_api="blas"):
            return task(store, *args, **kwargs)
    finally:
        store.close()
