"""/frontier: where a pipeline is needed, as a picture that fills in while its points are found. A
*point* is a cluster and a model at one combination of the values of both axes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool

from service.pages.evidence_rows import EvidenceRow
from service.pages.examples import EXAMPLES
from service.pages.frontier_answer import title
from service.pages.frontier_form import AXES, FrontierForm
from service.pages.frontier_pins import pins
from service.pages.published_runs import fastest_by_chip
from service.pages.question_form import choices
from service.pages.rendering import page
from service.pages.trouble import SHOWN_ERRORS, page_router, trouble_of, trouble_page
from service.routes.dependencies import ComputationDep, Services, ServicesDep
from service.routes.responders import ComputationResponder
from service.schemas.frontier import FrontierRequest

PATH = "/frontier"
EVENTS_PATH = f"{PATH}/events"
_WHOLE = "whole"
"""Asks for the page with the finished answer, for browsers without scripts."""
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""So that no proxy holds points back."""

router = page_router("recommend")


@router.get(PATH)
async def frontier(
    request: Request, services: ServicesDep, computation: ComputationDep
) -> Response:
    """The form, and the picture of the question in the URL. A script fills the picture in from
    events. For browsers without scripts, `_WHOLE` in the URL asks for the finished answer."""
    form = FrontierForm.of(request.query_params)
    context: dict[str, Any] = {
        "form": form.shown,
        "choices": await run_in_threadpool(choices, services.catalog),
        "axes": AXES,
        "examples": EXAMPLES["frontier"],
        "trouble": None,
        "data": None,
        "answer": None,
        "title": None,
    }
    if form.question.is_empty:
        return page(request, "frontier.html", context)
    try:
        body = FrontierRequest.model_validate(form.body())
        if _WHOLE in request.query_params:
            context["answer"] = await computation.computed(
                lambda turn: services.frontiers.draw(body, turn.bounded_checkpoint())
            )
    except SHOWN_ERRORS as error:
        return await trouble_page(request, error, "frontier.html", context, FrontierRequest)
    grid = body.grid.axes()
    if context["answer"] is not None:
        context["title"] = title(context["answer"], grid, body.tolerance)
    context["published"] = await run_in_threadpool(_published_runs, services, body)
    query = urlencode(dict(request.query_params))
    context["whole_link"] = f"{PATH}?{query}&{_WHOLE}=1"
    context["data"] = {
        "answer": context["answer"],
        "events": f"{EVENTS_PATH}?{query}",
        "grid": grid,
        "axes": [{"name": name, "label": AXES[name].label} for name in form.axes],
        "tolerance": body.tolerance,
        "pins": pins(context["published"]),
    }
    return page(request, "frontier.html", context)


def _published_runs(services: Services, body: FrontierRequest) -> list[EvidenceRow]:
    """Returns the published runs of the model. The list is empty for a model that the request
    describes instead of naming it, and for one that cannot be found."""
    try:
        return fastest_by_chip(services, body.model) if isinstance(body.model, str) else []
    except SHOWN_ERRORS:
        return []  # the search itself tells the error


@router.get(EVENTS_PATH)
async def frontier_events(
    request: Request, services: ServicesDep, computation: ComputationDep
) -> Response:
    """Server-sent events: `points` as they are found, then `answer` and `title`, or `trouble`."""
    return StreamingResponse(
        _events(request, services, computation),
        media_type=EventSourceResponse.media_type,
        headers=_HEADERS,
    )


async def _events(
    request: Request, services: Services, computation: ComputationResponder
) -> AsyncIterator[bytes]:
    """Yields server-sent events: each point of the frontier once it is found, the whole answer, and
    its title. An error ends the stream with an event that tells it."""
    try:
        body = FrontierRequest.model_validate(FrontierForm.of(request.query_params).body())
        # Whoever leaves the page gives the turn back: the search ends at its next checkpoint.
        async with computation.turn() as turn:
            parts = services.frontiers.draw_in_parts(body, turn.bounded_checkpoint())
            # None marks the end, because StopIteration cannot be raised out of a thread's future.
            while (part := await run_in_threadpool(next, parts, None)) is not None:
                yield _event(part.kind, part.document)
                if part.kind == "answer":
                    words = title(part.document, body.grid.axes(), body.tolerance)
                    yield _event("title", {"title": words})
    except SHOWN_ERRORS as error:
        trouble = await trouble_of(request, error, FrontierRequest)
        yield _event("trouble", {"title": trouble.title, "sentences": trouble.sentences})


def _event(kind: str, document: dict[str, Any]) -> bytes:
    return format_sse_event(event=kind, data_str=json.dumps(document))
