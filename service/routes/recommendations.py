"""/v1/recommendations"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from service.ask.answer_briefs import recommendation_brief
from service.ask.answer_keys import question_key
from service.routes.dependencies import (
    ComputationDep,
    CreationDep,
    ResourceId,
    ServicesDep,
    resource_router,
)
from service.routes.examples import EXAMPLES
from service.routes.launches import RESPONSES as LAUNCH_RESPONSES
from service.routes.launches import FormatName, launch_response
from service.routes.list_tables import (
    list_response,
    named_table_response,
    page_or_table,
    whole_or_table,
)
from service.schemas.brief import RecommendationBrief, ViewQuery
from service.schemas.launch import LaunchAnswer
from service.schemas.layout_query import RecommendedLayoutQuery
from service.schemas.list_query import AnswerQuery, BriefPage, TableForm
from service.schemas.objective import ChoiceList
from service.schemas.prediction import RecommendationPage
from service.schemas.recommendation import RecommendationAnswer, RecommendationRequest
from service.schemas.timeline import ChromeTrace, RecommendationTimelineQuery, TimelineAnswer
from service.web import responses
from service.web.cached_responses import CachingRoute, cache_read_answer
from service.web.etags import immutable_response
from service.web.preferences import requested_view
from service.web.tables import asks_for_table
from service.web.text_responses import immutable_text_response

router = resource_router("recommendations", "recommend", CachingRoute)


@router.post(
    "",
    operation_id="createRecommendation",
    status_code=201,
    response_model=RecommendationAnswer | RecommendationBrief,
    responses=responses.CREATE_WITH_VIEW,
    openapi_extra=responses.PREFER,
)
async def create_recommendation(
    body: Annotated[RecommendationRequest, Body(openapi_examples=EXAMPLES["recommendations"])],
    query: Annotated[ViewQuery, Query()],
    request: Request,
    services: ServicesDep,
    creation: CreationDep,
) -> Response:
    """Recommend the fastest layout that fits with a probability of 0.9, or as the request asks, and
    the simplest one within the tolerance, with reasons, and the proof that the search missed none.

    Where nothing is as sure to fit the answer is a problem of type /problems/infeasible that names
    the nearest failing constraint, the layout that is surest to fit, and what would help.
    """
    return await creation.respond_once(
        question_key("recommendations", body),
        lambda: services.recommendations.look_up(body),
        lambda question, turn: services.recommendations.recommend(
            body, question, turn.bounded_checkpoint()
        ),
        requested_view(request, query.view, recommendation_brief),
    )


@router.get(
    "",
    operation_id="listRecommendations",
    response_model=RecommendationPage | BriefPage,
    responses=page_or_table("recommendations"),
)
def list_recommendations(
    query: Annotated[AnswerQuery, Query()], request: Request, services: ServicesDep
) -> Response:
    """List recommendations, newest first. Each has its question, its recommended layout in brief,
    and the address of its answer as `location`."""
    return list_response(request, query, services.recommendations.page, "recommendations")


@router.get(
    "/{id}",
    operation_id="getRecommendation",
    response_model=RecommendationAnswer | RecommendationBrief,
    responses=responses.CONDITIONAL_GET_WITH_VIEW,
    openapi_extra=responses.IF_NONE_MATCH_OR_PREFER,
)
async def get_recommendation(
    id_: ResourceId, query: Annotated[ViewQuery, Query()], request: Request, services: ServicesDep
) -> Response:
    """Show a recommendation as it was answered, or in brief."""
    view = requested_view(request, query.view, recommendation_brief)
    text = await run_in_threadpool(services.recommendations.get, id_)
    cache_read_answer(request, text)
    return immutable_text_response(request, text, view)


@router.get(
    "/{id}/choices",
    operation_id="getRecommendationChoices",
    response_model=ChoiceList,
    responses=whole_or_table("choices"),
    openapi_extra=responses.IF_NONE_MATCH,
)
def get_recommendation_choices(
    id_: ResourceId, query: Annotated[TableForm, Query()], request: Request, services: ServicesDep
) -> Response:
    """List the places that a recommendation compared, the best first, also as a table. The list is
    empty where it was asked about one place and has no objective."""
    choices = services.recommendations.get(id_).document["choices"]
    if asks_for_table(request, query):
        return named_table_response(request, choices, "choices")
    return immutable_response(request, {"items": choices})


@router.get(
    "/{id}/timeline",
    operation_id="getRecommendationTimeline",
    response_model=TimelineAnswer | ChromeTrace,
    responses=responses.CONDITIONAL_GET,
    openapi_extra=responses.IF_NONE_MATCH,
)
async def get_recommendation_timeline(
    id_: ResourceId,
    query: Annotated[RecommendationTimelineQuery, Query()],
    services: ServicesDep,
    computation: ComputationDep,
) -> Response:
    """Show the operations of each pipeline stage with their times, as JSON or as a trace for
    chrome://tracing and Perfetto."""
    return await computation.respond_timeline(services.timelines, "recommendations", id_, query)


@router.get(
    "/{id}/launch/{format}",
    operation_id="getRecommendationLaunch",
    response_model=LaunchAnswer,
    responses=LAUNCH_RESPONSES,
    openapi_extra=responses.IF_NONE_MATCH,
)
def get_recommendation_launch(
    id_: ResourceId,
    format_: FormatName,
    query: Annotated[RecommendedLayoutQuery, Query()],
    request: Request,
    services: ServicesDep,
) -> Response:
    """Write the launch configuration of a layout in the words of a framework: as JSON, or by the
    Accept header as a shell script, YAML or Python."""
    return launch_response(request, services.launches.of_recommendation(id_, format_, query))
