"""Responses to requests that create something, or compute long.

A request that computes long waits for its *turn*: one of few slots, which a queue shares out
(service.runtime.admission).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from service.ask.timelines import Timelines
from service.runtime.admission import AdmissionControl, Turn
from service.runtime.creation import Creation, Unanswered
from service.runtime.deadline import Wait
from service.runtime.idempotency import ANSWERED_BEFORE, CreatedResource, Prepared
from service.schemas.timeline import TimelineQuery
from service.store.answers import AnswerKind
from service.web.cached_responses import cache_given_answer
from service.web.preferences import WHOLE, View
from service.web.text_responses import immutable_text_response, text_response

T = TypeVar("T")


class CreationResponder:
    """Answers a POST that creates something, and creates it once per Idempotency-Key."""

    def __init__(self, request: Request, creation: Creation) -> None:
        self._request = request
        self.creation = creation

    def respond(self, prepare: Callable[[], Prepared], view: View = WHOLE) -> Response:
        """Creates a resource, and returns the response with a view of it. A retry may ask for
        another view."""
        return self._response(self.creation.create(prepare), view)

    async def respond_once(
        self,
        key: str,
        look_up: Callable[[], Prepared | Unanswered[T]],
        compute: Callable[[T, Turn], Prepared],
        view: View,
    ) -> Response:
        """Returns the response with the answer to the question with this `key`, in the given
        view. `look_up` finds an earlier answer, or what `compute` needs to make one. Requests that
        ask the same at one time share one answer (`Creation.answer_once`)."""
        return self._response(await self.creation.answer_once(key, look_up, compute), view)

    async def respond_after(
        self, read: Callable[[], Awaitable[T]], prepare: Callable[[T], Prepared]
    ) -> Response:
        """Returns the response with the resource that `prepare` makes of what `read` returns.
        Reading may take a while, and the Idempotency-Key is claimed only afterwards: requests with
        the same key are not refused meanwhile. A retry gets its earlier answer without reading."""
        if (earlier := await self.creation.earlier_answer()) is not None:
            return self._response(earlier, WHOLE)  # the view: in full
        contents = await read()
        return await run_in_threadpool(self.respond, lambda: prepare(contents))

    async def respond_when_admitted(
        self,
        prepare: Callable[[Turn], Prepared],
        admission: AdmissionControl | None = None,
        view: View = WHOLE,
    ) -> Response:
        """Returns the response with a resource that takes long to compute, made in a turn of
        `admission`; without it, of that of searches (`Creation.create_in_turn`)."""
        return self._response(await self.creation.create_in_turn(prepare, admission), view)

    def _response(self, created: CreatedResource, view: View) -> Response:
        """Returns the response with a created resource, and says in a header whether it is an
        earlier answer. Keeps in memory the answer to a question that was asked before, since such
        questions tend to come again."""
        headers = {"Location": created.location}
        if created.replayed:
            headers["Idempotency-Replayed"] = "true"
        if created.text is None:
            return JSONResponse(created.document, created.status, headers)
        if created.status == ANSWERED_BEFORE:
            cache_given_answer(self._request, created.location, created.text)
        return text_response(self._request, created.text, view, created.status, headers)


class ComputationResponder:
    """Answers what computes long and stores nothing, once the admission of searches lets it in."""

    def __init__(
        self, request: Request, admission: AdmissionControl, tenant: str | None, wait: Wait | None
    ) -> None:
        self._request = request
        self._admission = admission
        self._tenant = tenant
        self._wait = wait

    async def respond(
        self, compute: Callable[[Turn], dict[str, Any]], view: View = WHOLE
    ) -> Response:
        """Computes a document in a turn, and returns the response with a view of it."""
        document = await self.computed(compute)
        return JSONResponse(view.shown(document), headers=dict(view.headers))

    async def computed(self, compute: Callable[[Turn], T]) -> T:
        """Returns the result of `compute`, called in a thread once the request's turn has come."""
        async with self.turn() as turn:
            return await run_in_threadpool(compute, turn)

    def turn(self) -> AbstractAsyncContextManager[Turn]:
        """Returns a context that holds a turn to compute, once the queue of searches grants one."""
        return self._admission.admit(self._request.is_disconnected, self._tenant, self._wait)

    async def respond_timeline(
        self, timelines: Timelines, kind: AnswerKind, id_: str, query: TimelineQuery
    ) -> Response:
        """Returns the response with the timeline of an answer: the one that is in memory, or else a
        new one, drawn in a turn."""
        text = await run_in_threadpool(timelines.kept, kind, id_, query)
        if text is None:
            text = await self.computed(lambda _: timelines.drawn(kind, id_, query))
        return immutable_text_response(self._request, text, etag=timelines.etag(kind, id_, query))
