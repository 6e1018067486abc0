"""/v1/explanations"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Request, Response
from starlette.concurrency import run_in_threadpool

from service.routes.dependencies import ComputationDep, ServicesDep, resource_router
from service.routes.examples import EXAMPLES
from service.schemas.explanation import ExplanationAnswer, ExplanationForm
from service.web import responses

router = resource_router("explanations", "recommend")


@router.post("", operation_id="explain", response_model=ExplanationAnswer, responses=responses.POST)
async def explain(
    body: Annotated[ExplanationForm, Body(openapi_examples=EXAMPLES["explanations"])],
    request: Request,
    services: ServicesDep,
    computation: ComputationDep,
) -> Response:
    """Explain why a run was slow or died, by its report or its log: where the time goes, what makes
    the difference to the prediction, what the log shows, and what to try, with what it would gain.
    Nothing is stored."""
    submission = await run_in_threadpool(services.explanations.log_submission, body)
    contents = None
    if submission is not None:
        contents = await services.log_texts.contents(submission, request.is_disconnected)
    return await computation.respond(
        lambda turn: services.explanations.explain(body, contents, turn.bounded_checkpoint())
    )
