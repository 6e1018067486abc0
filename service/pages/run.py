"""/runs/{id}: one reported run: what was measured and predicted, why they differ, and what its log
says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from models.errors import Invalid
from service.pages.rendering import page
from service.pages.run_rows import run_name
from service.pages.trouble import SHOWN_ERRORS, page_router, trouble_of
from service.routes.dependencies import (
    ComputationDep,
    ResourceId,
    Services,
    ServicesDep,
    require_caller_scope,
)
from service.schemas.explanation import (
    ExplanationForm,
    ExplanationRequest,
    LaunchedExplanationRequest,
)
from service.schemas.layout import LayoutFields

_SEARCH_S = 1.0  # for a better layout: who opens a run is to see the page at once
_FORM: TypeAdapter[ExplanationRequest | LaunchedExplanationRequest] = TypeAdapter(ExplanationForm)

router = page_router("report")


@router.get("/runs/{id}")
async def run(
    id_: ResourceId, request: Request, services: ServicesDep, computation: ComputationDep
) -> Response:
    """The report, and its explanation, which may be refused while the report is not."""
    report, _ = await run_in_threadpool(services.reports.get, id_)
    context: dict[str, Any] = {
        "report": report,
        "name": run_name(report),
        "layout": LayoutFields.summary(report["prediction"]["layout"]),
        "explanation": None,
        "trouble": None,
    }
    try:
        # An explanation searches for better layouts, which the key must be allowed to ask for.
        require_caller_scope(request, "recommend")
        context["explanation"] = await _explanation(request, services, computation, report)
    except SHOWN_ERRORS as error:
        context["trouble"] = await trouble_of(request, error, ExplanationForm)
    return page(request, "run.html", context)


async def _explanation(
    request: Request, services: Services, computation: ComputationDep, report: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the API's explanation of a report. Its log, where it has one, is read in the process
    for large texts."""
    body = _FORM.validate_python(explanation_body(report))
    submission = await run_in_threadpool(services.explanations.log_submission, body)
    contents = None
    if submission is not None:
        contents = await services.log_texts.contents(submission, request.is_disconnected)
    return await computation.computed(
        lambda turn: services.explanations.explain(body, contents, turn.bounded_checkpoint())
    )


def explanation_body(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the body of a request to explain a report, by the profile version that predicted it.
    Raises Invalid where what was submitted is no longer stored."""
    if not report["submission"]:
        raise Invalid("submission", None, "is not kept of a withdrawn report with a long log")
    # The submission is the request of the report, from which an explanation needs some members.
    submission = json.loads(report["submission"])
    form = LaunchedExplanationRequest if "launch" in submission else ExplanationRequest
    members = {name: value for name, value in submission.items() if name in form.model_fields}
    return {**members, "profile": report["profile"], "time_limit_s": _SEARCH_S}
