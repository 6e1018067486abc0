"""/v1/predictions"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from service.routes import examples
from service.routes.dependencies import Id, Post, Use, needs
from service.routes.pages import page
from service.schemas.catalog import CatalogQuery
from service.schemas.prediction import AnswerPage, PredictionAnswer, PredictionRequest
from service.schemas.timeline import ChromeTrace, TimelineAnswer, TimelineQuery
from service.web.etags import immutable
from service.web.json_body import JsonRoute

_FEW = 100
"""Layouts that are predicted at once; more wait for a turn."""

router = APIRouter(
    prefix="/v1/predictions",
    tags=["predictions"],
    route_class=JsonRoute,
    dependencies=[needs("recommend")],
)


@router.post("", operation_id="createPrediction", status_code=201, response_model=PredictionAnswer)
async def create_prediction(
    body: Annotated[PredictionRequest, Body(openapi_examples=examples.PREDICTIONS)],
    use: Use,
    post: Post,
) -> Response:
    """Step time, MFU, tokens/s and memory of the layouts you name, term by term."""
    if len(body.layouts or ()) > _FEW:
        return await post.created_in_turn(lambda _: use.predictions.predict(body))
    return await run_in_threadpool(post.created, lambda: use.predictions.predict(body))


@router.get("", operation_id="listPredictions", response_model=AnswerPage)
def list_predictions(
    query: Annotated[CatalogQuery, Query()], request: Request, use: Use
) -> JSONResponse:
    """Newest first, each with its question; the answer lies at `location`."""
    return page(request, use.predictions.page(query))


@router.get("/{id}", operation_id="getPrediction", response_model=PredictionAnswer)
def get_prediction(id_: Id, request: Request, use: Use) -> Response:
    """A prediction as it was answered."""
    return immutable(request, use.predictions.get(id_))


@router.get(
    "/{id}/timeline",
    operation_id="getPredictionTimeline",
    response_model=TimelineAnswer | ChromeTrace,
)
def get_prediction_timeline(
    id_: Id, query: Annotated[TimelineQuery, Query()], use: Use
) -> Response:
    """What each pipeline stage does when, operation by operation; or a trace for chrome://tracing
    and Perfetto."""
    return JSONResponse(use.timelines.of_prediction(id_, query))
