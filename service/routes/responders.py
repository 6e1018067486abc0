"""Responses to requests that create something, or compute long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from service.runtime.admission import AdmissionControl, Turn
from service.runtime.creation import Creation, Unanswered
from service.runtime.deadline import Wait
from service.runtime.idempotency import ANSWERED_BEFORE, CreatedResource, Prepared
from service.store.answer_text import AnswerText
from service.web.at_hand import keep_answered
from service.web.preferences import WHOLE, Form
from service.web.text_responses import immutable_text_response, text_response

T = TypeVar("T")


class CreationResponder:
    """Answers a POST that creates something, and creates it once per Idempotency-Key."""

    def __init__(self, request: Request, creation: Creation) -> None:
        self._request = request
        self._creation = creation

    def create(self, prepare: Callable[[], Prepared]) -> CreatedResource:
        return self._creation.create(prepare)

    def respond(self, prepare: Callable[[], Prepared], form: Form = WHOLE) -> Response:
        """Answers in a form of what was created. A retry may ask for another form of the same."""
        return self._response(self.create(prepare), form)

    async def answer_once(
        self,
        key: str,
        look_up: Callable[[], Prepared | Unanswered[T]],
        compute: Callable[[T, Turn], Prepared],
    ) -> CreatedResource:
        """The answer to the question of this key (`Creation.answer_once`)."""
        return await self._creation.answer_once(key, look_up, compute)

    async def respond_once(
        self,
        key: str,
        look_up: Callable[[], Prepared | Unanswered[T]],
        compute: Callable[[T, Turn], Prepared],
        form: Form,
    ) -> Response:
        """Answers the question of this key in a form of its answer."""
        return self._response(await self.answer_once(key, look_up, compute), form)

    async def respond_after(
        self, read: Callable[[], Awaitable[T]], prepare: Callable[[T], Prepared]
    ) -> Response:
        """Answers what is made of something that is read first, without a claim of the key, since
        that may take a while. A retry of what is already answered does not read."""
        if (earlier := await self._creation.earlier_answer()) is not None:
            return self._response(earlier, WHOLE)
        text = await read()
        return await run_in_threadpool(self.respond, lambda: prepare(text))

    async def respond_when_admitted(
        self,
        prepare: Callable[[Turn], Prepared],
        admission: AdmissionControl | None = None,
        form: Form = WHOLE,
    ) -> Response:
        """Answers what computes long, in a turn (`Creation.create_in_turn`)."""
        return self._response(await self._creation.create_in_turn(prepare, admission), form)

    def _response(self, created: CreatedResource, form: Form) -> Response:
        headers = {"Location": created.location}
        if created.replayed:
            headers["Idempotency-Replayed"] = "true"
        if created.text is None:
            return JSONResponse(created.document, created.status, headers)
        if created.status == ANSWERED_BEFORE:
            keep_answered(self._request, created.location, created.text)
        return text_response(self._request, created.text, form, created.status, headers)


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
        self, compute: Callable[[Turn], dict[str, Any]], form: Form = WHOLE
    ) -> Response:
        document = await self.computed(compute)
        return JSONResponse(form.of(document), headers=dict(form.headers))

    async def computed(self, compute: Callable[[Turn], T]) -> T:
        """Returns what `compute` returns in a turn of its own."""
        async with self.turn() as turn:
            return await run_in_threadpool(compute, turn)

    def turn(self) -> AbstractAsyncContextManager[Turn]:
        """A turn to compute, which comes once the admission of searches gives one."""
        return self._admission.admit(self._request.is_disconnected, self._tenant, self._wait)

    async def respond_kept(
        self, kept: Callable[[], AnswerText | None], make: Callable[[], AnswerText], etag: str
    ) -> Response:
        """Answers with a text that never changes: as it is kept, or else made in a turn."""
        text = await run_in_threadpool(kept)
        if text is None:
            text = await self.computed(lambda _: make())
        return immutable_text_response(self._request, text, etag=etag)
