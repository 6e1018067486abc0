"""/v1/predictions"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from service.ask.answer_briefs import prediction_brief
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
from service.routes.list_tables import list_response, page_or_table
from service.schemas.brief import PredictionBrief, ViewQuery
from service.schemas.launch import LaunchAnswer
from service.schemas.launch_request import PredictionForm
from service.schemas.layout_query import LayoutQuery
from service.schemas.list_query import AnswerQuery, BriefPage
from service.schemas.prediction import AnswerPage, PredictionAnswer, PredictionRequest
from service.schemas.timeline import ChromeTrace, TimelineAnswer, TimelineQuery
from service.web import responses
from service.web.cached_responses import CachingRoute, cache_read_answer
from service.web.preferences import requested_view
from service.web.text_responses import immutable_text_response

_MAX_UNADMITTED_LAYOUTS = 100
"""A request for more layouts waits for admission, as searches do."""

router = resource_router("predictions", "recommend", CachingRoute)


@router.post(
    "",
    operation_id="createPrediction",
    status_code=201,
    response_model=PredictionAnswer | PredictionBrief,
    responses=responses.CREATE_WITH_VIEW,
    openapi_extra=responses.PREFER,
)
async def create_prediction(
    body: Annotated[PredictionForm, Body(openapi_examples=EXAMPLES["predictions"])],
    query: Annotated[ViewQuery, Query()],
    request: Request,
    services: ServicesDep,
    creation: CreationDep,
) -> Response:
    """Predict step time, MFU, tokens/s and memory, term by term, of the layouts you name or of a
    launch configuration as typed."""
    view = requested_view(request, query.view, prediction_brief)
    if not isinstance(body, PredictionRequest):  # a launch: reading it takes long, too
        return await creation.respond_when_admitted(
            lambda _: services.predictions.answer(body), view=view
        )
    # Fewer layouts are predicted at once, without a turn among the searches.
    if len(body.layouts or ()) > _MAX_UNADMITTED_LAYOUTS:
        return await creation.respond_once(
            question_key("predictions", body),
            lambda: services.predictions.look_up(body),
            lambda question, _: services.predictions.predict(question),
            view,
        )
    return await run_in_threadpool(
        creation.respond, lambda: services.predictions.answer(body), view
    )


@router.get(
    "",
    operation_id="listPredictions",
    response_model=AnswerPage | BriefPage,
    responses=page_or_table("predictions"),
)
def list_predictions(
    query: Annotated[AnswerQuery, Query()], request: Request, services: ServicesDep
) -> Response:
    """List predictions, newest first. Each has its question, and the address of its answer as
    `location`."""
    return list_response(request, query, services.predictions.page, "predictions")


@router.get(
    "/{id}",
    operation_id="getPrediction",
    response_model=PredictionAnswer | PredictionBrief,
    responses=responses.CONDITIONAL_GET_WITH_VIEW,
    openapi_extra=responses.IF_NONE_MATCH_OR_PREFER,
)
async def get_prediction(
    id_: ResourceId, query: Annotated[ViewQuery, Query()], request: Request, services: ServicesDep
) -> Response:
    """Show a prediction as it was answered, or in brief."""
    view = requested_view(request, query.view, prediction_brief)
    text = await run_in_threadpool(services.predictions.get, id_)
    cache_read_answer(request, text)
    return immutable_text_response(request, text, view)


@router.get(
    "/{id}/timeline",
    operation_id="getPredictionTimeline",
    response_model=TimelineAnswer | ChromeTrace,
    responses=responses.CONDITIONAL_GET,
    openapi_extra=responses.IF_NONE_MATCH,
)
async def get_prediction_timeline(
    id_: ResourceId,
    query: Annotated[TimelineQuery, Query()],
    services: ServicesDep,
    computation: ComputationDep,
) -> Response:
    """Show the operations of each pipeline stage with their times, as JSON or as a trace for
    chrome://tracing and Perfetto."""
    return await computation.respond_timeline(services.timelines, "predictions", id_, query)


@router.get(
    "/{id}/launch/{format}",
    operation_id="getPredictionLaunch",
    response_model=LaunchAnswer,
    responses=LAUNCH_RESPONSES,
    openapi_extra=responses.IF_NONE_MATCH,
)
def get_prediction_launch(
    id_: ResourceId,
    format_: FormatName,
    query: Annotated[LayoutQuery, Query()],
    request: Request,
    services: ServicesDep,
) -> Response:
    """Write the launch configuration of a layout in the words of a framework: as JSON, or by the
    Accept header as a shell script, YAML or Python."""
    return launch_response(request, services.launches.of_prediction(id_, format_, query))
