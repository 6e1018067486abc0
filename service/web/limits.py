"""Limits of request bodies: how large each may be and how fast it must come, and how much of all
bodies is held in memory at a time."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import BodyTooLarge, BodyTooSlow, TooMuchHeld
from service.web.problems import service_error_response

_MIN_BYTES_PER_S = 1000
"""A body that comes more slowly is refused. No option of uvicorn does this: a client that sends a
byte now and then would hold its connection and its memory forever. Heads that do not come are the
business of `service.web.idle_connections`."""

_SMALL_BYTES = 2**18  # a body is read up to here however much of other bodies is held
_DRAIN_PAUSE_S = 1.0  # a client that sends nothing for so long has stopped sending a refused body
_MAX_BODIES_HELD = 16
"""Multiple of the largest body: so much is held of all bodies together, and so much is read and
dropped of one that is refused."""


class BodyLimit:
    """Middleware that refuses a body for one of three reasons: it is too large, by its
    Content-Length or while it is read; it comes too slowly; or all bodies together would take too
    much memory, since each stays in memory until its request is answered.

    A refused body is read and dropped for a while. A client that is still sending would otherwise
    see its connection break instead of the answer.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, wait_s: float) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.wait_s = wait_s
        self.held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on with a body that is counted as it arrives. Refuses at once a body
        that its Content-Length shows to be too large."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        body = _Body(self, receive)
        length = headers.get("content-length", "")
        # 20 digits are beyond any limit, and Python refuses to convert thousands of them.
        if length.isdecimal() and int(length[:20]) > self.max_bytes:
            if "expect" not in headers:  # a client that expects a 100 has not begun to send
                await body.drain()
            error = BodyTooLarge(self.max_bytes)
            await service_error_response(scope, error)(scope, receive, send)
            return
        try:
            await self.app(scope, body.receive, send)
        finally:  # the request is over, and its body no longer in memory
            self.held_bytes -= body.held_bytes


class _Body:
    """The body of one request, as it is received."""

    def __init__(self, limit: BodyLimit, receive: Receive) -> None:
        self._limit = limit
        self._receive = receive
        self._began = time.monotonic()
        self._received_bytes = 0
        self._more_body = True
        self.held_bytes = 0
        """The bytes that count toward the memory of all bodies; 0 once the body is refused."""

    async def receive(self) -> Message:
        """Returns the next ASGI message of the request. Raises BodyTooLarge, BodyTooSlow, or
        TooMuchHeld where all bodies together hold more memory than they may."""
        if not self._more_body:  # behind the body comes only the end of the connection
            return await self._receive()
        message = await self._next_message()
        size = len(message.get("body", b""))
        self.held_bytes += size
        self._limit.held_bytes += size
        max_bytes = self._limit.max_bytes
        if self.held_bytes > max_bytes:
            await self._release_and_drain()
            raise BodyTooLarge(max_bytes)
        # A small body is let in whatever the others hold, so that large ones cannot shut it out.
        too_much_held = self._limit.held_bytes > _MAX_BODIES_HELD * max_bytes
        if self.held_bytes > _SMALL_BYTES and too_much_held:
            await self._release_and_drain()
            raise TooMuchHeld
        return message

    async def _release_and_drain(self) -> None:
        """Stops counting this body towards the memory of all bodies, and drops the rest of it."""
        self._limit.held_bytes -= self.held_bytes
        self.held_bytes = 0
        await self.drain()

    async def drain(self) -> None:
        """Reads and drops the rest of the body, so that the client gets to read its answer. Ends
        when the client pauses, or has sent as much again as all bodies together may hold."""
        stop_at = self._received_bytes + _MAX_BODIES_HELD * self._limit.max_bytes
        with suppress(BodyTooSlow):
            while self._more_body and self._received_bytes < stop_at:
                await self._next_message(_DRAIN_PAUSE_S)

    async def _next_message(self, timeout_s: float = math.inf) -> Message:
        """Returns the next message of the body. Raises BodyTooSlow where it takes longer than
        `timeout_s`, than the limit's `wait_s`, or than the minimum rate allows for the bytes
        received."""
        wait_s = self._limit.wait_s
        # The whole body may be `wait_s` late, compared with one that comes at the least rate.
        allowed_until = self._began + wait_s + self._received_bytes / _MIN_BYTES_PER_S
        left_s = allowed_until - time.monotonic()
        try:
            async with asyncio.timeout(min(left_s, wait_s, timeout_s)):
                message = await self._receive()
        except TimeoutError:
            raise BodyTooSlow(wait_s) from None
        self._received_bytes += len(message.get("body", b""))
        self._more_body = message.get("more_body", False)
        return message
