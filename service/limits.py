"""How large a request body may be."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import BodyTooLarge
from service.problems import of_service_error


class BodyLimit:
    """Refuses a body by its Content-Length, or while it streams in.

    A refused body is read and dropped for a while: a client that is still sending would otherwise see its
    connection break instead of the answer.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app, self.max_bytes, self.drained_bytes = app, max_bytes, 16 * max_bytes

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
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.max_bytes:
                if message.get("more_body"):
                    await self._drain(receive)
                raise BodyTooLarge(self.max_bytes)
            return message

        return counted

    async def _drain(self, receive: Receive) -> None:
        dropped = 0
        while dropped < self.drained_bytes:
            message = await receive()
            dropped += len(message.get("body", b""))
            if not message.get("more_body"):
                return
