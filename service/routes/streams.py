"""Answers that are event streams."""

from __future__ import annotations

from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse
from starlette.types import Receive, Scope, Send

from service.runtime.event_streams import EventStream

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""So that no proxy holds events back."""


class StreamResponse(EventSourceResponse):
    """Sends a stream until it ends or the client is gone, and closes it."""

    def __init__(self, stream: EventStream) -> None:
        super().__init__(stream.pieces(KEEPALIVE_COMMENT), headers=_HEADERS)
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.close()
