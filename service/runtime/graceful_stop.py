"""The end of this process: what can finish in time finishes, and nothing that cannot is stored.

Every commit passes a *gate* (service.store.commit_gate), which is closed at the end. A *lease* is
the hold that a running request has of its Idempotency-Key (service.runtime.leases).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

from service.errors import ServiceError, Stopping
from service.runtime.leases import Leases
from service.store.commit_gate import CommitGate

log = logging.getLogger(__name__)

_COMMIT_S = 2.0  # how long a commit that has begun is waited for
_ANSWER_S = 2.0  # how long what was committed may take to be answered
_EXIT_S = 1.0  # how long a process may take to exit by itself
LAST_S = _COMMIT_S + _ANSWER_S + 2 * _EXIT_S
"""Seconds beyond the time of grace after which the process has ended at the latest."""

_STOPPED = 0
_STUCK = 1
"""Exit statuses: everybody was answered, or that could not be done in time."""

Interrupt = Callable[[ServiceError, float], Awaitable[None]]
"""Ends all requests with an error, save for those that end by themselves in so many seconds."""


class GracefulStop:
    """Requests have `grace_s` seconds to finish from when the process is told to stop. Then no
    transaction commits any more. Idempotency-Keys are released, so that their requests may be tried
    again at once. At last, clients that still wait are answered. The order matters: a client that
    is told that nothing was stored must be able to rely on it."""

    def __init__(
        self,
        grace_s: float,
        gate: CommitGate,
        leases: Leases,
        interrupt: Interrupt,
        end_streams: Callable[[], None],
    ) -> None:
        self._grace_s = grace_s
        self._gate = gate
        self._leases = leases
        self._interrupt = interrupt
        self._end_streams = end_streams
        self._ending: asyncio.Task[None] | None = None

    def watch_signals(self) -> None:
        """Makes SIGTERM and SIGINT begin the stop. Must be called in the main thread, within the
        event loop, after the server has installed its own handler."""
        loop = asyncio.get_running_loop()
        stop_server = signal.getsignal(signal.SIGINT)  # the server's handler, of both signals
        was_told = False

        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal was_told
            loop.call_soon_threadsafe(self._begin)
            # The server raises the signal once more when it has stopped. SIGTERM would then kill
            # the process: it would look like a failure, and leave semaphores of its pools behind.
            # A second SIGINT makes the server hurry, which a second SIGTERM must not.
            if callable(stop_server) and not (was_told and number == signal.SIGTERM):
                stop_server(signal.SIGINT, frame)
            was_told = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)

    def _begin(self) -> None:
        """Begins to stop, once however many signals come. A timer ends the process even if the stop
        gets stuck."""
        if self._ending is None:
            _exit_after(self._grace_s + LAST_S, _STUCK)
            self._end_streams()
            self._ending = asyncio.create_task(self._end_after_grace())

    async def _end_after_grace(self) -> None:
        """Waits for the time that requests have to finish, and then ends those that still run."""
        await asyncio.sleep(self._grace_s)
        log.warning("time to finish is over: requests that still run are answered with 503")
        await self.end()

    async def end(self) -> None:
        """Prevents further commits, releases Idempotency-Keys, and answers requests that still run
        with an error. It is called when the time of grace is over, or when the server has stopped
        earlier; a second call does no harm."""
        thread = ThreadPoolExecutor(1)  # not one of the loop's, which may all be busy
        closed = asyncio.get_running_loop().run_in_executor(thread, self._close)
        await asyncio.wait({closed}, timeout=_COMMIT_S)
        thread.shutdown(wait=False)
        await self._interrupt(Stopping(), _ANSWER_S)  # those that committed may still answer
        # Without a signal, as in tests, the process goes on after the stop.
        if self._ending is not None:
            _exit_after(_EXIT_S, _STOPPED)

    def _close(self) -> None:
        """Waits for commits that are under way, prevents further ones, and releases the held
        Idempotency-Keys."""
        self._gate.close(_COMMIT_S)
        try:
            self._leases.release_all()
        except ServiceError as error:
            log.warning("keys are not released, and held a while", extra={"reason": str(error)})


def _exit_after(seconds: float, status: int) -> None:
    """Ends the process after `seconds` with this exit status, unless it has ended by then. The
    interpreter would wait for computing threads and pool processes that nobody needs any more."""
    timer = threading.Timer(seconds, os._exit, (status,))
    timer.daemon = True
    timer.start()
