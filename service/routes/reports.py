"""/v1/reports"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from service.learning.report_table import COLUMNS
from service.learning.report_texts import parse_batch
from service.routes import examples
from service.routes.dependencies import Id, Post, Received, Use, needs
from service.routes.pages import page
from service.schemas.report import (
    BatchAnswer,
    LogAnswer,
    LogSubmission,
    ReportAnswer,
    ReportBatch,
    Reported,
    ReportFilterQuery,
    ReportPage,
    ReportQuery,
    StoredReport,
)
from service.schemas.summary import ReportSummary
from service.web.etags import required_tags, tagged
from service.web.json_body import LARGE, JsonRoute

_LINES = {
    "type": "string",
    "description": f"A line of names, then one of every report: {', '.join(COLUMNS)}",
}
_CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {"schema": _LINES}}}}


class BatchRoute(JsonRoute):
    """Reports of a batch come as texts, to be read one by one."""

    parse = staticmethod(parse_batch)


router = APIRouter(
    prefix="/v1/reports", tags=["reports"], route_class=BatchRoute, dependencies=[needs("report")]
)


@router.post(
    "", operation_id="createReport", status_code=201, response_model=ReportAnswer | BatchAnswer
)
async def create_report(
    body: Annotated[Reported, Body(openapi_examples=examples.REPORTS)],
    received: Received,
    use: Use,
    post: Post,
) -> Response:
    """What a run measured, stored beside what the active profile predicts of it; or many such
    reports."""
    if isinstance(body, ReportBatch):
        return await post.created_in_turn(lambda _: use.report_batches.take(body), use.intake_slots)
    return await run_in_threadpool(post.created, lambda: use.reports.take(body, received))


@router.post("/logs", operation_id="createReportFromLog", status_code=201, response_model=LogAnswer)
async def create_report_from_log(
    body: Annotated[LogSubmission, Body(openapi_examples=examples.LOGS)],
    received: Received,
    use: Use,
    post: Post,
) -> Response:
    """A training log of Megatron-LM, NeMo, torchtitan or MaxText, read into a report. The same
    bytes make one report: sent again, they are answered with it."""
    if len(received) > LARGE:
        return await post.created_in_turn(
            lambda _: use.report_logs.take(body, received), use.intake_slots
        )
    return await run_in_threadpool(post.created, lambda: use.report_logs.take(body, received))


@router.get("", operation_id="listReports", response_model=ReportPage, responses=_CSV)
def list_reports(query: Annotated[ReportQuery, Query()], request: Request, use: Use) -> Response:
    """Newest first, in pages or all as CSV."""
    if query.format == "csv":
        headers = {"Content-Disposition": "attachment; filename=reports.csv"}
        return StreamingResponse(use.reports.lines(query), media_type="text/csv", headers=headers)
    return page(request, use.reports.page(query))


@router.get("/summary", operation_id="summariseReports", response_model=ReportSummary)
def summarise_reports(query: Annotated[ReportFilterQuery, Query()], use: Use) -> JSONResponse:
    """Residuals by chip, stack, model family, profile version, week, source and tenant."""
    return JSONResponse(use.report_summaries.summary(query))


@router.get("/{id}", operation_id="getReport", response_model=StoredReport)
def get_report(id_: Id, request: Request, use: Use) -> Response:
    """A report, and the submission as it was received."""
    return tagged(request, *use.reports.get(id_))


@router.delete("/{id}", operation_id="withdrawReport", response_model=ReportAnswer)
def withdraw_report(
    id_: Id,
    use: Use,
    if_match: Annotated[
        str | None, Header(description="The ETag of the report as you saw it, if it matters.")
    ] = None,
) -> Response:
    """Withdraw a report that should not count: it is kept as it was received, and from now on no
    calibration, drift, summary or prediction looks at it. Profile versions that learnt from it stay
    as they are; a calibration `from_scratch` makes one that did not."""
    document, etag = use.reports.withdraw(
        id_, ["*"] if if_match is None else required_tags(if_match)
    )
    return JSONResponse(document, headers={"ETag": etag})
