"""How large a request body may be, and how long it may take."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import BodyTooLarge, BodyTooSlow
from service.problems import of_service_error

_SLOWEST = 1000  # bytes a second: whoever sends some now and then would otherwise never be done


class BodyLimit:
    """Refuses a body by its Content-Length, or while it streams in, or no longer does.

    A refused body is read and dropped for a while: a client that is still sending would otherwise see its
    connection break instead of the answer.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, wait_s: float) -> None:
        self.app, self.max_bytes, self.drained_bytes, self.wait_s = app, max_bytes, 16 * max_bytes, wait_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self.max_bytes:
            if "expect" not in headers:
                await self._drain(receive)
            await of_service_error(scope, BodyTooLarge(self.max_bytes))(scope, receive, send)
            return
        await self.app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        taken, more, began = 0, True, time.monotonic()

        async def counted() -> Message:
            nonlocal taken, more
            message = await (self._next(receive, began, taken) if more else receive())
            more = message.get("more_body", False)
            taken += len(message.get("body", b""))
            if taken > self.max_bytes:
                if message.get("more_body"):
                    await self._drain(receive)
                raise BodyTooLarge(self.max_bytes)
            return message

        return counted

    async def _next(self, receive: Receive, began: float, taken: int) -> Message:
        left_s = began + self.wait_s + taken / _SLOWEST - time.monotonic()
        try:
            return await asyncio.wait_for(receive(), min(left_s, self.wait_s))
        except TimeoutError:
            raise BodyTooSlow(self.wait_s) from None

    async def _drain(self, receive: Receive) -> None:
        dropped, more, began = 0, True, time.monotonic()
        with suppress(BodyTooSlow):
            while more and dropped < self.drained_bytes:
                message = await self._next(receive, began, dropped)
                dropped += len(message.get("body", b""))
                more = message.get("more_body", False)
