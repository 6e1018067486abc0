"""/v1/comparisons"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Response

from service.routes import examples
from service.routes.dependencies import InTurn, Use, needs
from service.schemas.comparison import ComparisonAnswer, ComparisonRequest
from service.web.json_body import JsonRoute

router = APIRouter(
    prefix="/v1/comparisons",
    tags=["comparisons"],
    route_class=JsonRoute,
    dependencies=[needs("recommend")],
)


@router.post("", operation_id="compare", response_model=ComparisonAnswer)
async def compare(
    body: Annotated[ComparisonRequest, Body(openapi_examples=examples.COMPARISONS)],
    use: Use,
    turn: InTurn,
) -> Response:
    """Why not this one? Two layouts side by side, each given or the best under some constraints:
    where the difference of their times comes from, term by term. Nothing is stored."""
    return await turn.computed(lambda client: use.comparisons.compare(body, client.require))
