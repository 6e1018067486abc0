"""Worker processes for what computes long and is in no hurry, so that requests keep a core of their
own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

from threadpoolctl import threadpool_limits

from service.runtime.processes import NICENESS, Processes
from service.store import Store, database

MAX_INLINE_REPORTS = 200
"""A task about no more reports than this runs in the calling thread, where it starts at once."""

_PROCESSES = 2  # a calibration, and a batch of reports beside it

P = ParamSpec("P")
T = TypeVar("T")


class ProcessPool:
    """Runs tasks in worker processes, which start when they are first needed.

    Each task gets a store with a connection of its own, which sees the rows of the same tenants as
    the store given. Its arguments and its result are pickled.
    """

    def __init__(
        self,
        database_url: str,
        processes: int = _PROCESSES,
        database_wait_s: float = database.WAIT_S,
        niceness: int = NICENESS,
    ) -> None:
        self._database = database_url, database_wait_s
        self._workers = Processes(processes, niceness)

    def run(
        self,
        store: Store,
        size: int,
        task: Callable[Concatenate[Store, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Returns the result of the task. `size` is the number of reports that it reads; few are
        handled in the calling thread, since a process would cost more."""
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
        """Returns the result of the task, run in a worker process with a store that sees the rows
        of the same tenants. Raises WorkerKilled where its process was killed twice."""
        visibility = store.tenant, store.sees_all
        job: Callable[[], T] = partial(
            _run_with_own_store, self._database, visibility, task, *args, **kwargs
        )
        return self._workers.run(job)

    def close(self) -> None:
        """Ends the workers, whatever they compute."""
        self._workers.close()


def _run_with_own_store(
    database_place: tuple[str, float],
    visibility: tuple[str | None, bool],
    task: Callable[..., T],
    *args: object,
    **kwargs: object,
) -> T:
    """Returns the result of a task, run in a worker process with its own connection to the
    database. `database_place` is the URL and the seconds to wait for it; `visibility` is the
    tenant, and whether the rows of all tenants are seen."""
    tenant, sees_all = visibility
    store = Store(database.connect(*database_place), tenant, sees_all=sees_all)
    try:
        # BLAS gets one thread, so that requests keep a core. The limit works only on libraries that
        # are loaded, and unpickling the task has loaded them.
        with threadpool_limits(1, user_api="blas"):
            return task(store, *args, **kwargs)
    finally:
        store.close()
