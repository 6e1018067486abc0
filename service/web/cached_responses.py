"""Responses from memory: answers that the same caller has read before, or has asked for with the
same bytes while nothing was committed to the database since. A *view* is the form in which an
answer is shown, whole or brief (service.web.preferences)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from fastapi import Request, Response

import service
from service.metrics import count_lookup
from service.store.answer_text import AnswerText
from service.store.memory import Memory
from service.web.json_body import JsonRequest, JsonRoute
from service.web.preferences import View
from service.web.text_responses import immutable_text_response, text_response

_UNCACHED_HEADERS = ("prefer", "idempotency-key")  # with them the answer is not the usual one
_WHOLE = View(headers={"Vary": "Prefer"})


@dataclass(frozen=True, slots=True)
class _CacheSlot:
    """The key under which the answer to a request is kept in memory, and the number of commits when
    the request came."""

    memory: Memory
    key: Hashable
    commits: int | None


class CachingRoute(JsonRoute):
    """A route that looks for a cached response before it parses anything. The caller is part of the
    cache's key, so that nobody gets what was given to another."""

    def cached_response(self, request: JsonRequest, body: bytes) -> Response | None:
        """Returns the response that is cached for this request; None where none is, or where the
        request has a query, a preference or an Idempotency-Key. Where none is cached, notes in the
        request's state under which key the answer is to be cached."""
        # A query or these headers change the answer, and are not in the cache's key.
        is_plain = not any(name in request.headers for name in _UNCACHED_HEADERS)
        if request.scope["query_string"] or not is_plain:
            return None
        memory: Memory = request.app.state.memory
        key = service.__version__, request.scope["path"], request.state.caller, body
        cached = memory.unchanged(key)
        if cached is None:
            # With the number of commits so far: a later one would make the answer stale.
            request.state.cache_slot = _CacheSlot(memory, key, memory.changes.count())
            return None
        # A GET is cached as the text alone, and a POST as the location and text of its answer.
        if request.method == "GET":
            return immutable_text_response(request, cached, _WHOLE)
        count_lookup("answers", is_hit=True)
        location, text = cached
        return text_response(request, text, _WHOLE, headers={"Location": location})


def cache_read_answer(request: Request, text: AnswerText) -> None:
    """Caches the answer to this GET for good: what it shows never changes. Does nothing where
    `CachingRoute` has found that the answer may not come from memory, and noted no slot."""
    slot: _CacheSlot | None = getattr(request.state, "cache_slot", None)
    if slot is not None:
        slot.memory.keep_unchanging(slot.key, text, text.size)


def cache_given_answer(request: Request, location: str, text: AnswerText) -> None:
    """Caches the stored answer to this POST, and its location, until the next commit to the
    database. Does nothing where `CachingRoute` has noted no slot in memory for the answer."""
    slot: _CacheSlot | None = getattr(request.state, "cache_slot", None)
    if slot is not None:
        slot.memory.keep_until_change(slot.key, slot.commits, (location, text), text.size)
