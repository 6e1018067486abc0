"""/v1/predictions"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from service.routes import examples
from service.routes.dependencies import CreationDep, ResourceId, ServicesDep, require_scope
from service.routes.pages import page_response
from service.schemas.catalog import CatalogQuery
from service.schemas.prediction import AnswerPage, PredictionAnswer, PredictionRequest
from service.schemas.timeline import ChromeTrace, TimelineAnswer, TimelineQuery
from service.web import responses
from service.web.etags import immutable_response
from service.web.json_body import JsonRoute

_MAX_UNADMITTED_LAYOUTS = 100
"""A request for more layouts waits for admission, as searches do."""

router = APIRouter(
    prefix="/v1/predictions",
    tags=["predictions"],
    route_class=JsonRoute,
    dependencies=[require_scope("recommend")],
)


@router.post(
    "",
    operation_id="createPrediction",
    status_code=201,
    response_model=PredictionAnswer,
    responses=responses.CREATE,
)
async def create_prediction(
    body: Annotated[PredictionRequest, Body(openapi_examples=examples.PREDICTIONS)],
    services: ServicesDep,
    creation: CreationDep,
) -> Response:
    """Step time, MFU, tokens/s and memory of the layouts you name, term by term."""
    if len(body.layouts or ()) > _MAX_UNADMITTED_LAYOUTS:
        return await creation.respond_when_admitted(lambda _: services.predictions.predict(body))
    return await run_in_threadpool(creation.respond, lambda: services.predictions.predict(body))


@router.get("", operation_id="listPredictions", response_model=AnswerPage, responses=responses.PAGE)
def list_predictions(
    query: Annotated[CatalogQuery, Query()], request: Request, services: ServicesDep
) -> JSONResponse:
    """Newest first, each with its question; the answer lies at `location`."""
    return page_response(request, services.predictions.page(query))


@router.get(
    "/{id}",
    operation_id="getPrediction",
    response_model=PredictionAnswer,
    responses=responses.CONDITIONAL_GET,
    openapi_extra=responses.IF_NONE_MATCH,
)
def get_prediction(id_: ResourceId, request: Request, services: ServicesDep) -> Response:
    """A prediction as it was answered."""
    return immutable_response(request, services.predictions.get(id_))


@router.get(
    "/{id}/timeline",
    operation_id="getPredictionTimeline",
    response_model=TimelineAnswer | ChromeTrace,
)
def get_prediction_timeline(
    id_: ResourceId, query: Annotated[TimelineQuery, Query()], services: ServicesDep
) -> Response:
    """What each pipeline stage does when, operation by operation; or a trace for chrome://tracing
    and Perfetto."""
    return JSONResponse(services.timelines.of_prediction(id_, query))
