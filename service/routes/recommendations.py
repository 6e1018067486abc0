"""/v1/recommendations"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import JSONResponse

from service.routes import examples
from service.routes.dependencies import Id, Post, Use, needs
from service.routes.pages import page
from service.schemas.catalog import CatalogQuery
from service.schemas.prediction import RecommendationPage
from service.schemas.recommendation import RecommendationAnswer, RecommendationRequest
from service.schemas.timeline import ChromeTrace, RecommendationTimelineQuery, TimelineAnswer
from service.web.etags import immutable
from service.web.json_body import JsonRoute

router = APIRouter(
    prefix="/v1/recommendations",
    tags=["recommendations"],
    route_class=JsonRoute,
    dependencies=[needs("recommend")],
)


@router.post(
    "", operation_id="createRecommendation", status_code=201, response_model=RecommendationAnswer
)
async def create_recommendation(
    body: Annotated[RecommendationRequest, Body(openapi_examples=examples.RECOMMENDATIONS)],
    use: Use,
    post: Post,
) -> Response:
    """The fastest layout and the simplest one within the tolerance, why, and the proof that the
    search missed none.

    Where nothing fits the answer is a problem of type /problems/infeasible that names the nearest
    failing constraint.
    """
    return await post.created_in_turn(
        lambda client: use.recommendations.recommend(body, client.require)
    )


@router.get("", operation_id="listRecommendations", response_model=RecommendationPage)
def list_recommendations(
    query: Annotated[CatalogQuery, Query()], request: Request, use: Use
) -> JSONResponse:
    """Newest first, each with its question and its fastest layout in brief; the answer lies at
    `location`."""
    return page(request, use.recommendations.page(query))


@router.get("/{id}", operation_id="getRecommendation", response_model=RecommendationAnswer)
def get_recommendation(id_: Id, request: Request, use: Use) -> Response:
    """A recommendation as it was answered."""
    return immutable(request, use.recommendations.get(id_))


@router.get(
    "/{id}/timeline",
    operation_id="getRecommendationTimeline",
    response_model=TimelineAnswer | ChromeTrace,
)
def get_recommendation_timeline(
    id_: Id, query: Annotated[RecommendationTimelineQuery, Query()], use: Use
) -> Response:
    """What each pipeline stage does when, operation by operation; or a trace for chrome://tracing
    and Perfetto."""
    return JSONResponse(use.timelines.of_recommendation(id_, query))
