"""/v1/checks"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Response

from service.routes import examples
from service.routes.dependencies import ComputationDep, ServicesDep, require_scope
from service.schemas.check import CheckAnswer, CheckForm
from service.web import responses
from service.web.json_body import JsonRoute

router = APIRouter(
    prefix="/v1/checks",
    tags=["checks"],
    route_class=JsonRoute,
    dependencies=[require_scope("recommend")],
)


@router.post("", operation_id="check", response_model=CheckAnswer, responses=responses.POST)
async def check(
    body: Annotated[CheckForm, Body(openapi_examples=examples.CHECKS)],
    services: ServicesDep,
    computation: ComputationDep,
) -> Response:
    """Is this job worth submitting? A layout, or a launch configuration as typed: which rules it
    breaks, whether it fits, how fast it is, what would be faster, and what to change first. Nothing
    is stored."""
    return await computation.respond(lambda turn: services.checks.check(body, turn.checkpoint))
