"""/v1/explanations"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Response

from service.routes import examples
from service.routes.dependencies import ComputationDep, ServicesDep, require_scope
from service.schemas.explanation import ExplanationAnswer, ExplanationForm
from service.web import responses
from service.web.json_body import JsonRoute

router = APIRouter(
    prefix="/v1/explanations",
    tags=["explanations"],
    route_class=JsonRoute,
    dependencies=[require_scope("recommend")],
)


@router.post("", operation_id="explain", response_model=ExplanationAnswer, responses=responses.POST)
async def explain(
    body: Annotated[ExplanationForm, Body(openapi_examples=examples.EXPLANATIONS)],
    services: ServicesDep,
    computation: ComputationDep,
) -> Response:
    """Why was this run slow, or why did it die? A run as in a report, or its log: where the time
    goes, what makes the difference to what was predicted, what the log shows, and what to try,
    with what it would gain. Nothing is stored."""
    return await computation.respond(
        lambda turn: services.explanations.explain(body, turn.checkpoint)
    )
