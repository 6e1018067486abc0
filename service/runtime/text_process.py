"""A process of its own for large texts. Decoding JSON or searching a log holds Python's lock for as
long as it takes, and the process that answers could do nothing else meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

from anyio.to_thread import run_sync

from service.runtime import malloc_trim
from service.runtime.admission import AdmissionControl, IsDisconnected
from service.runtime.processes import Processes

MAX_INLINE_CHARACTERS = 2**16
"""A text of no more is read in the calling thread: patterns take some 30 ms for so many."""

P = ParamSpec("P")
T = TypeVar("T")


class TextProcess:
    """Reads large texts one at a time, the tenants taking turns. The process imports the readers
    of texts and nothing that predicts, so that it takes some 50 MiB, and it starts with the first
    large text."""

    def __init__(self, admission: AdmissionControl) -> None:
        self._admission = admission
        self._process = Processes(1)

    async def read(
        self,
        is_disconnected: IsDisconnected,
        tenant: str | None,
        reader: Callable[Concatenate[str, P], T],
        text: str,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Returns the result of a reader on a text. Short texts are read in a thread, others as
        `run` does."""
        if len(text) <= MAX_INLINE_CHARACTERS:
            return await run_sync(partial(reader, text, *args, **kwargs))
        return await self.run(is_disconnected, tenant, reader, text, *args, **kwargs)

    async def run(
        self,
        is_disconnected: IsDisconnected,
        tenant: str | None,
        task: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Returns the result of the task, run in the process for large texts once it is the
        tenant's turn. Raises QueueFull, TurnNeverCame, ClientGone or WorkerKilled, and whatever the
        task raises."""
        job = partial(task, *args, **kwargs)
        async with self._admission.admit(is_disconnected, tenant):
            return await run_sync(self._process.run, _run_and_trim, job)

    def close(self) -> None:
        self._process.close()


def _run_and_trim(job: Callable[[], T]) -> T:
    """Returns the result of a job, and gives the memory that it freed back to the system."""
    try:
        return job()
    finally:
        malloc_trim.trim()
