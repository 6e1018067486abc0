"""Event streams, and the tickets that open them from a browser."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from service.schemas.wire import Document, Wire


class StreamQuery(Wire):
    """A browser cannot send headers with an EventSource, so that it says these in the URL."""

    ticket: Annotated[str, Field(max_length=200)] | None = None
    """A ticket of `POST /v1/stream-tickets`, instead of a key."""
    last_event_id: Annotated[str, Field(max_length=100)] | None = None
    """The id of the last event that came, where the header of this name is not sent: those after it
    follow."""


class TicketRequest(Wire):
    stream: Annotated[str, Field(max_length=200, pattern=r"^/v1/[A-Za-z0-9._/-]+/events$")]
    """The path of an event stream, such as /v1/reports/events."""


class TicketAnswer(Document):
    url: str
    """The path of the stream with the ticket in it, for an EventSource."""
    ticket: str | None
    """Null where the service asks for no keys: the URL then opens the stream without one."""
    expires_at: AwareDatetime | None
    """Until then the stream has to be opened; it stays open beyond. To open it again takes another
    ticket."""
