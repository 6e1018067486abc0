"""Worker processes beside the one that answers requests. They start when they are first needed, and
are replaced when they die."""

from __future__ import annotations

import copyreg
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

from models import errors
from service.errors import Stopping, WorkerKilled

log = logging.getLogger(__name__)

NICENESS = 5  # so that requests go first

_CONTEXT = get_context("spawn")

P = ParamSpec("P")
T = TypeVar("T")


class Processes:
    """Runs functions in processes. Arguments, results and errors are pickled, and a process imports
    no more than what these need."""

    def __init__(self, processes: int, niceness: int = NICENESS) -> None:
        self._processes = processes
        self._niceness = niceness
        self._executor: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()
        self._lifeline: Connection | None = None
        """A pipe to the workers, which end when it is closed: by `close`, or by the system when
        this process ends."""
        self._is_closed = False

    def run(self, task: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns the result of the task. The task is pickled. If its process is killed, the task
        is tried once more in a new one. Raises WorkerKilled where that one is killed too."""
        try:
            return self._result_of(task, *args, **kwargs)
        except BrokenProcessPool:
            if not self._is_closed:
                log.warning("a worker was killed, and its task is tried once more")
        try:
            return self._result_of(task, *args, **kwargs)
        except BrokenProcessPool:
            raise WorkerKilled from None

    def close(self) -> None:
        """Ends the processes at once, whatever they compute."""
        with self._lock:
            self._is_closed = True
            executor = self._executor
            self._executor = None
            if self._lifeline is not None:
                self._lifeline.close()
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    def _result_of(self, task: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns the result of a task. If its process has died, drops the broken executor and
        raises BrokenProcessPool: the next task starts another executor."""
        executor = self._running_executor()
        try:
            return executor.submit(task, *args, **kwargs).result()
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
        """Returns the executor, and starts one where there is none. Raises Stopping once closed."""
        with self._lock:
            if self._is_closed:
                raise Stopping
            if self._executor is None:
                # Workers poll the far end, and end themselves once this process or `close` has
                # closed the near one.
                far_end, self._lifeline = _CONTEXT.Pipe(duplex=False)
                self._executor = ProcessPoolExecutor(
                    self._processes,
                    _CONTEXT,
                    initializer=_initialize_worker,
                    initargs=(far_end, self._niceness),
                )
            return self._executor


def _initialize_worker(lifeline: Connection, niceness: int) -> None:
    """Lowers the priority of a worker process, and ties its life to that of the server."""
    os.nice(niceness)
    threading.Thread(target=_exit_with_server, args=(lifeline,), daemon=True).start()


def _exit_with_server(lifeline: Connection) -> None:
    """Waits until the pool is closed or the server has ended, even if it was killed, and then ends
    this worker."""
    lifeline.poll(None)  # nothing is ever sent, so that this returns when the other end is closed
    os._exit(1)


def _pickled_form(error: errors.DomainError) -> tuple[Any, ...]:
    """Returns the pickled form of a DomainError. By default pickle would call the class with the
    message, but the class takes the values that the message is made of."""
    return type(error).__new__, (type(error), *error.args), vars(error)


for _kind in vars(errors).values():
    if isinstance(_kind, type) and issubclass(_kind, errors.DomainError):
        copyreg.pickle(_kind, _pickled_form)
