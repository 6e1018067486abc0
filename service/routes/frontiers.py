"""/v1/frontiers"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query, Request, Response
from fastapi.responses import JSONResponse

from service.routes.dependencies import ComputationDep, ServicesDep, resource_router
from service.routes.examples import EXAMPLES
from service.routes.list_tables import named_table_response, table_content
from service.schemas.frontier import FrontierAnswer, FrontierRequest
from service.schemas.list_query import TableForm
from service.web import responses
from service.web.tables import asks_for_table

router = resource_router("frontiers", "recommend")


@router.post(
    "",
    operation_id="drawFrontier",
    response_model=FrontierAnswer,
    responses=responses.POST | {200: {"content": table_content("frontier")}},
)
async def draw_frontier(
    body: Annotated[FrontierRequest, Body(openapi_examples=EXAMPLES["frontiers"])],
    query: Annotated[TableForm, Query()],
    request: Request,
    services: ServicesDep,
    computation: ComputationDep,
) -> Response:
    """Say where a pipeline is needed: the best step time without and with one at every point of a
    grid of bandwidths, domain sizes, chips or layers, each by a search of its own, and where the
    gap crosses the tolerance; also as a table of the points. Nothing is stored."""
    as_table = asks_for_table(request, query)
    frontier = await computation.computed(
        lambda turn: services.frontiers.draw(body, turn.bounded_checkpoint())
    )
    if as_table:
        return named_table_response(request, frontier["points"], "frontier")
    return JSONResponse(frontier)
