"""Answers that are event streams."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse
from starlette.types import Receive, Scope, Send

from service.runtime.event_streams import EventStream
from service.web import responses

EVENTS: responses.Responses = responses.problem_responses(400) | {
    200: {
        "description": "Events",
        "content": {EventSourceResponse.media_type: {"schema": {"type": "string"}}},
    }
}
LastEventId = Annotated[
    str | None, Header(description="The id of the last event that came: those after it follow.")
]

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""These headers keep proxies from holding events back."""


class StreamResponse(EventSourceResponse):
    """Sends a stream until it ends or the client is gone, and closes it."""

    def __init__(self, stream: EventStream) -> None:
        super().__init__(stream.pieces(KEEPALIVE_COMMENT), headers=_HEADERS)
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream, and closes it however the response ends."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.close()
