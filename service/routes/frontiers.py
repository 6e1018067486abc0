"""/v1/frontiers"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Response

from service.routes import examples
from service.routes.dependencies import ComputationDep, ServicesDep, require_scope
from service.schemas.frontier import FrontierAnswer, FrontierRequest
from service.web import responses
from service.web.json_body import JsonRoute

router = APIRouter(
    prefix="/v1/frontiers",
    tags=["frontiers"],
    route_class=JsonRoute,
    dependencies=[require_scope("recommend")],
)


@router.post(
    "", operation_id="drawFrontier", response_model=FrontierAnswer, responses=responses.POST
)
async def draw_frontier(
    body: Annotated[FrontierRequest, Body(openapi_examples=examples.FRONTIERS)],
    services: ServicesDep,
    computation: ComputationDep,
) -> Response:
    """Say where a pipeline is needed: the best step time without and with one at every point of a
    grid of bandwidths, domain sizes, chips or layers, each by a search of its own, and where the
    gap crosses the tolerance. Nothing is stored."""
    return await computation.respond(
        lambda turn: services.frontiers.draw(body, turn.bounded_checkpoint())
    )
