"""/v1/comparisons"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Response

from service.routes.dependencies import ComputationDep, ServicesDep, resource_router
from service.routes.examples import EXAMPLES
from service.schemas.comparison import ComparisonAnswer
from service.schemas.launch_request import ComparisonForm
from service.web import responses

router = resource_router("comparisons", "recommend")


@router.post("", operation_id="compare", response_model=ComparisonAnswer, responses=responses.POST)
async def compare(
    body: Annotated[ComparisonForm, Body(openapi_examples=EXAMPLES["comparisons"])],
    services: ServicesDep,
    computation: ComputationDep,
) -> Response:
    """Compare two layouts, each given, read from a launch configuration, or the best under some
    constraints: where the difference of their times comes from, term by term. Nothing is stored."""
    return await computation.respond(
        lambda turn: services.comparisons.compare(body, turn.bounded_checkpoint())
    )
