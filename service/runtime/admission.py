"""Admission control: how many searches and calibrations run at a time, and how many wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from service.errors import ClientGone, QueueFull, TurnNeverCame
from service.runtime import malloc_trim

_CLIENT_POLL_S = 0.25  # how often to look whether the client of a request is still connected
_LONG_S = 1.0  # a computation that takes longer may have held hundreds of MiB

IsDisconnected = Callable[[], Awaitable[bool]]
"""Whether the client of a request has closed the connection, as starlette's requests know it."""


class ClientWatch:
    """Knows whether the client of a running request is still connected. The event loop looks after
    the connection; the thread that computes asks what it has seen."""

    def __init__(self, is_disconnected: IsDisconnected) -> None:
        self._is_disconnected = is_disconnected
        self._disconnected = threading.Event()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[ClientWatch]:
        """Watches the connection while the block runs."""
        watch = asyncio.create_task(self._watch())
        try:
            yield self
        finally:
            watch.cancel()

    def require_connected(self) -> None:
        """Raises ClientGone once the client has disconnected."""
        if self._disconnected.is_set():
            raise ClientGone

    async def _watch(self) -> None:
        while not await self._is_disconnected():
            await asyncio.sleep(_CLIENT_POLL_S)
        self._disconnected.set()


class AdmissionControl:
    """Lets `concurrency` requests compute at a time and `queue` more wait, first come first served.
    Any further request is refused at once, as is one that has waited for `wait_s` seconds.

    Requests wait on the event loop, so that they take no thread from other requests, and so that
    the counters need no lock.
    """

    def __init__(self, concurrency: int, queue: int, wait_s: float) -> None:
        self._concurrency = concurrency
        self._queue = queue
        self._wait_s = wait_s
        self._slots = asyncio.Semaphore(concurrency)
        self._admitted = 0
        """Requests that run or wait."""

    @asynccontextmanager
    async def admit(self, is_disconnected: IsDisconnected) -> AsyncIterator[ClientWatch]:
        """Holds a slot while the block runs, and gives it the watch over its client.

        Raises QueueFull, TurnNeverCame, or ClientGone where the client disconnects before its
        turn.
        """
        if self._admitted >= self._concurrency + self._queue:
            raise QueueFull(self._concurrency, self._queue)
        self._admitted += 1
        try:
            await self._acquire_slot(is_disconnected)
            began = time.monotonic()
            try:
                async with ClientWatch(is_disconnected).watching() as client:
                    yield client
            finally:
                self._slots.release()
                if time.monotonic() - began > _LONG_S:
                    asyncio.get_running_loop().run_in_executor(None, malloc_trim.trim)
        finally:
            self._admitted -= 1

    async def _acquire_slot(self, is_disconnected: IsDisconnected) -> None:
        turn = asyncio.create_task(self._slots.acquire())
        deadline = time.monotonic() + self._wait_s
        poll_s = min(_CLIENT_POLL_S, self._wait_s)
        try:
            while not (await asyncio.wait({turn}, timeout=poll_s))[0]:
                if await is_disconnected():
                    raise ClientGone
                if time.monotonic() >= deadline:
                    raise TurnNeverCame(self._wait_s)
        except BaseException:
            if not turn.cancel():  # the slot came in the very moment of giving up
                self._slots.release()
            raise
