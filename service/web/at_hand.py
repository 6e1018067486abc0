"""Answers that are at hand: what the same caller has read before, and what it asked in the same
words since when nothing was committed to the database."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from fastapi import Request, Response

import service
from service.metrics import count_lookup
from service.store.answer_text import AnswerText
from service.store.memory import Memory
from service.web.json_body import JsonRequest, JsonRoute
from service.web.preferences import Form
from service.web.text_responses import immutable_text_response, text_response

_ASKS_FOR_MORE = ("prefer", "idempotency-key")
_WHOLE = Form(headers={"Vary": "Prefer"})


@dataclass(frozen=True, slots=True)
class _Place:
    """The key under which the answer to a request is kept in memory, and the count of changes when
    the request came."""

    memory: Memory
    key: Hashable
    since: int | None


class AtHandRoute(JsonRoute):
    """A route that sends answers which are at hand before it parses anything. They were given to
    the same caller, so that it may have them."""

    def response_at_hand(self, request: JsonRequest, body: bytes) -> Response | None:
        """Returns the answer that is kept in memory for this request; None where none is kept, or
        where the request has a query, a preference or an Idempotency-Key. Where none is kept, notes
        in the request's state where the answer is to be kept."""
        asks_for_more = any(name in request.headers for name in _ASKS_FOR_MORE)
        if request.scope["query_string"] or asks_for_more:
            return None
        memory: Memory = request.app.state.memory
        key = service.__version__, request.scope["path"], request.state.caller, body
        if request.method == "GET":
            kept: AnswerText | None = memory.at_hand(key)
            if kept is not None:
                return immutable_text_response(request, kept, _WHOLE)
        elif (answer := memory.at_hand(key)) is not None:
            count_lookup("answers", is_hit=True)
            location, text = answer
            return text_response(request, text, _WHOLE, headers={"Location": location})
        request.state.place = _Place(memory, key, memory.changes.count())
        return None


def keep_read(request: Request, text: AnswerText) -> None:
    """Keeps the answer to this GET in memory for good: what it shows never changes."""
    place: _Place | None = getattr(request.state, "place", None)
    if place is not None:
        place.memory.put_at_hand_unchanging(place.key, text, text.size)


def keep_answered(request: Request, location: str, text: AnswerText) -> None:
    """Keeps the stored answer to this POST, and its location, in memory until something is
    committed to the database."""
    place: _Place | None = getattr(request.state, "place", None)
    if place is not None:
        place.memory.put_at_hand(place.key, place.since, (location, text), text.size)
