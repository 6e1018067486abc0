"""How large a request body may be, and all that are held together, and how long one may take."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import BodyTooLarge, BodyTooSlow, TooMuchHeld
from service.web.problems import of_service_error

_SLOWEST = 1000  # bytes a second: whoever sends some now and then would otherwise never be done
_SMALL = 2**18  # bytes of a body that is read however many others are held
_PAUSE_S = 1.0  # after which a client whose body is refused has stopped sending it
_TIMES = 16  # the largest body: so much is held of all, and dropped of one that is refused


class BodyLimit:
    """Refuses a body by its Content-Length, or while it streams in, or no longer does; and where
    too much of others is held, since each stays in memory until its request is answered.

    A refused body is read and dropped for a while: a client that is still sending would otherwise
    see its connection break instead of the answer.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, wait_s: float) -> None:
        self.app, self.max_bytes, self.wait_s = app, max_bytes, wait_s
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, body = Headers(scope=scope), _Body(self, receive)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self.max_bytes:
            if "expect" not in headers:
                await body.drain()
            await of_service_error(scope, BodyTooLarge(self.max_bytes))(scope, receive, send)
            return
        try:
            await self.app(scope, body.receive, send)
        finally:
            self.held -= body.taken


class _Body:
    """What comes of one request."""

    def __init__(self, limit: BodyLimit, receive: Receive) -> None:
        self._limit, self._receive = limit, receive
        self._began, self._came, self._more = time.monotonic(), 0, True
        self.taken = 0

    async def receive(self) -> Message:
        if not self._more:
            return await self._receive()
        message = await self._next()
        size = len(message.get("body", b""))
        self.taken += size
        self._limit.held += size
        if self.taken > self._limit.max_bytes:
            await self._refused()
            raise BodyTooLarge(self._limit.max_bytes)
        if self.taken > _SMALL and self._limit.held > _TIMES * self._limit.max_bytes:
            await self._refused()
            raise TooMuchHeld
        return message

    async def _refused(self) -> None:
        self._limit.held -= self.taken
        self.taken = 0
        await self.drain()

    async def drain(self) -> None:
        most = self._came + _TIMES * self._limit.max_bytes
        with suppress(BodyTooSlow):
            while self._more and self._came < most:
                await self._next(_PAUSE_S)

    async def _next(self, most_s: float = math.inf) -> Message:
        left_s = self._began + self._limit.wait_s + self._came / _SLOWEST - time.monotonic()
        try:
            message = await asyncio.wait_for(
                self._receive(), min(left_s, self._limit.wait_s, most_s)
            )
        except TimeoutError:
            raise BodyTooSlow(self._limit.wait_s) from None
        self._came += len(message.get("body", b""))
        self._more = message.get("more_body", False)
        return message
