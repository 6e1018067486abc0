"""/v1/reports"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import JSONResponse

from service.etags import immutable
from service.json_body import JsonRoute
from service.routes import examples
from service.routes.dependencies import Id, Post, Received, Use
from service.routes.pages import page
from service.schemas.report import ReportAnswer, ReportPage, ReportQuery, ReportSubmission, StoredReport

router = APIRouter(prefix="/v1/reports", tags=["reports"], route_class=JsonRoute)


@router.post("", operation_id="createReport", status_code=201, response_model=ReportAnswer)
def create_report(
    body: Annotated[ReportSubmission, Body(openapi_examples=examples.REPORTS)], received: Received, use: Use, post: Post
) -> Response:
    """What a run measured, stored beside what the active profile predicts of it."""
    return post.created(lambda: use.reports.take(body, received))


@router.get("", operation_id="listReports", response_model=ReportPage)
def list_reports(query: Annotated[ReportQuery, Query()], request: Request, use: Use) -> JSONResponse:
    """Newest first."""
    return page(request, use.reports.page(query))


@router.get("/{id}", operation_id="getReport", response_model=StoredReport)
def get_report(id_: Id, request: Request, use: Use) -> Response:
    """A report, and the submission as it was received."""
    return immutable(request, use.reports.get(id_))
