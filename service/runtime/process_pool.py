"""Other processes, for what computes long and is in no hurry: requests beside it keep their own
core."""

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
_NICENESS = 5
_PROCESSES = 2  # a calibration, and a batch beside it
_LOOK_S = 1.0

P = ParamSpec("P")
T = TypeVar("T")


class ProcessPool:
    """Tasks read a store of their own that sees as much as the one given, and what they take and
    return is pickled. Processes start when they are first needed; what is small is done here, where
    it starts at once."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()

    def run(
        self,
        store: Store,
        size: int,
        task: Callable[Concatenate[Store, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """The task's answer; `size` counts the reports that it is about. A process that was killed
        is replaced once."""
        if size <= MAX_INLINE_REPORTS:
            return task(store, *args, **kwargs)
        whose = store.tenant, store.sees_all
        there: Callable[[], T] = partial(_in_store, self._url, whose, task, *args, **kwargs)
        pool = self._ready()
        try:
            return pool.submit(there).result()
        except BrokenProcessPool:
            self._drop(pool)
            return self._ready().submit(there).result()

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def _drop(self, broken: ProcessPoolExecutor) -> None:
        """Unless another thread has replaced it already."""
        with self._lock:
            if self._pool is broken:
                self._pool = None
        broken.shutdown(wait=False)

    def _ready(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(
                    _PROCESSES, get_context("spawn"), initializer=_begin, initargs=(os.getpid(),)
                )
            return self._pool


def _begin(parent: int) -> None:
    """Requests go first; and nobody works for a server that was killed."""
    os.nice(_NICENESS)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def _in_store(
    database_url: str,
    whose: tuple[str | None, bool],
    task: Callable[..., T],
    *args: object,
    **kwargs: object,
) -> T:
    tenant, sees_all = whose
    store = Store(database.connect(database_url), tenant, sees_all=sees_all)
    try:
        with threadpool_limits(
            1, user_api="blas"
        ):  # loaded with the task; requests keep their core
            return task(store, *args, **kwargs)
    finally:
        store.close()
