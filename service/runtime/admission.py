"""How many searches and calibrations run at a time, and who waits for a turn."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from service.errors import ClientGone, QueueFull, TurnNeverCame
from service.runtime import malloc_trim

_LOOK_S = 0.25  # how often a waiting request looks whether its client is still there
_LONG_S = 1.0  # what takes longer may have held hundreds of MiB

Gone = Callable[[], Awaitable[bool]]


class Listening:
    """Whether the client of a running request still listens, looked up beside the work and asked
    from within it."""

    def __init__(self, gone: Gone) -> None:
        self._gone, self._left = gone, threading.Event()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Listening]:
        watch = asyncio.create_task(self._watch())
        try:
            yield self
        finally:
            watch.cancel()

    def require(self) -> None:
        """Raise ClientGone if nobody listens any more."""
        if self._left.is_set():
            raise ClientGone

    async def _watch(self) -> None:
        while not await self._gone():
            await asyncio.sleep(_LOOK_S)
        self._left.set()


class HeavySlots:
    """At most `concurrency` at once and `queue` waiting in the order they came; the next one is
    refused at once.

    Waiting happens on the event loop, so it takes no thread from other requests and needs no lock.
    """

    def __init__(self, concurrency: int, queue: int, wait_s: float) -> None:
        self._concurrency, self._queue, self._wait_s = concurrency, queue, wait_s
        self._free = asyncio.Semaphore(concurrency)
        self._admitted = 0

    @asynccontextmanager
    async def one(self, gone: Gone) -> AsyncIterator[Listening]:
        """A slot for the block, and its client, which is watched; a request whose client is `gone`
        leaves the queue."""
        if self._admitted >= self._concurrency + self._queue:
            raise QueueFull(self._concurrency, self._queue)
        self._admitted += 1
        try:
            await self._turn(gone)
            began = time.monotonic()
            try:
                async with Listening(gone).watched() as client:
                    yield client
            finally:
                self._free.release()
                if time.monotonic() - began > _LONG_S:
                    asyncio.get_running_loop().run_in_executor(None, malloc_trim.trim)
        finally:
            self._admitted -= 1

    async def _turn(self, gone: Gone) -> None:
        turn, ends = asyncio.create_task(self._free.acquire()), time.monotonic() + self._wait_s
        try:
            while not (await asyncio.wait({turn}, timeout=min(_LOOK_S, self._wait_s)))[0]:
                if await gone():
                    raise ClientGone
                if time.monotonic() >= ends:
                    raise TurnNeverCame(self._wait_s)
        except BaseException:
            if not turn.cancel():  # it came in the very moment of giving up
                self._free.release()
            raise
