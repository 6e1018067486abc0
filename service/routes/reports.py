"""/v1/reports"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Body, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.sse import format_sse_event
from starlette.concurrency import run_in_threadpool
from starlette.convertors import StringConvertor, register_url_convertor

from service.learning.report_table import COLUMNS
from service.learning.report_texts import parse_batch
from service.routes.dependencies import (
    CreationDep,
    RawBody,
    ResourceId,
    SeenTags,
    ServicesDep,
    resource_router,
)
from service.routes.examples import EXAMPLES
from service.routes.list_pages import page_response
from service.routes.streams import EVENTS, LastEventId, StreamResponse
from service.schemas.list_query import BriefPage
from service.schemas.report import BatchAnswer, ReportAnswer, ReportBatch, Reported, StoredReport
from service.schemas.report_list import ReportPage, ReportQuery
from service.schemas.stream import StreamQuery
from service.schemas.summary import ReportSummary, SummaryQuery
from service.schemas.training_log import LogAnswer, LogForm
from service.web import responses
from service.web.etags import conditional_response, tagged_response
from service.web.json_body import JsonRoute
from service.web.tables import CSV, asks_for_table, table_response


class _ReportId(StringConvertor):
    """The last part of a path under /v1/reports, unless it names another address there. Without
    this rule a wrong method on such an address would be answered as a request for a report; it is
    answered with 405."""

    regex = "(?!(?:logs|summary|events)$)[^/]+"


register_url_convertor("report_id", _ReportId())

_IF_MATCH = responses.if_match(
    "The ETag of the report as you saw it, if it matters.", required=False
)
_LINES = {
    "type": "string",
    "description": f"A line of names, then one of every report: {', '.join(COLUMNS)}",
}
_PAGE_OR_CSV = responses.page_or({CSV: {"schema": _LINES}})


class BatchRoute(JsonRoute):
    """A route that takes the reports of a batch as texts, to be read one by one."""

    parse = staticmethod(parse_batch)


router = resource_router("reports", "report", BatchRoute)


@router.post(
    "",
    operation_id="createReport",
    status_code=201,
    response_model=ReportAnswer | BatchAnswer,
    responses=responses.CREATE,
)
async def create_report(
    body: Annotated[Reported, Body(openapi_examples=EXAMPLES["reports"])],
    raw_body: RawBody,
    services: ServicesDep,
    creation: CreationDep,
) -> Response:
    """Store what a run measured beside what the active profile predicts of it, for one report or
    many."""
    if isinstance(body, ReportBatch):
        return await creation.respond_when_admitted(
            lambda turn: services.report_batches.prepare(body, turn.checkpoint),
            services.report_admission,
        )
    return await run_in_threadpool(
        creation.respond, lambda: services.reports.prepare(body, raw_body)
    )


@router.post(
    "/logs",
    operation_id="createReportFromLog",
    status_code=201,
    response_model=LogAnswer,
    responses=responses.CREATE,
)
async def create_report_from_log(
    body: Annotated[LogForm, Body(openapi_examples=EXAMPLES["logs"])],
    raw_body: RawBody,
    request: Request,
    services: ServicesDep,
    creation: CreationDep,
) -> Response:
    """Read a training log of Megatron-LM, NeMo, torchtitan or MaxText into a report. The same bytes
    make one report: sent again, they are answered with it."""
    return await creation.respond_after(
        lambda: services.report_logs.read(body, request.is_disconnected),
        lambda log: services.report_logs.prepare(log, raw_body),
    )


@router.get(
    "", operation_id="listReports", response_model=ReportPage | BriefPage, responses=_PAGE_OR_CSV
)
def list_reports(
    query: Annotated[ReportQuery, Query()], request: Request, services: ServicesDep
) -> Response:
    """List reports, newest first, in pages, in full or in brief, or all as CSV."""
    if asks_for_table(request, query):
        return table_response(request, services.reports.csv_lines(query), "reports")
    return page_response(request, services.reports.page(query), query.fields)


@router.get("/summary", operation_id="summariseReports", response_model=ReportSummary)
def summarise_reports(
    query: Annotated[SummaryQuery, Query()], services: ServicesDep
) -> JSONResponse:
    """Summarise residuals by chip, stack, model family, profile version, week, source and tenant,
    and by several of them together over time (`by`, `bucket`)."""
    return JSONResponse(services.report_summaries.summary(query))


@router.get(
    "/events",
    operation_id="watchReports",
    response_class=Response,  # FastAPI would take EventSourceResponse for a generator of events
    responses=EVENTS,
)
async def watch_reports(
    query: Annotated[StreamQuery, Query()], services: ServicesDep, last_event_id: LastEventId = None
) -> Response:
    """Send an event `report` with each report as it comes. The id of an event is that of its
    report: a client that was cut off sends the last one as Last-Event-ID, or as a query parameter,
    and gets the reports that came after it. Without one the stream begins with the next report."""
    place = await run_in_threadpool(
        services.reports.event_place, last_event_id or query.last_event_id
    )
    return StreamResponse(
        services.event_streams.open(
            services.store.tenant,
            services.report_feed,
            services.report_feed.topic(services.store),
            place,
        )
    )


def encode_event(id_: str, document: dict[str, Any]) -> bytes:
    """Returns a report as the bytes of a server-sent event."""
    return format_sse_event(event="report", id=id_, data_str=json.dumps(document))


@router.get(
    "/{id:report_id}",
    operation_id="getReport",
    response_model=StoredReport,
    responses=responses.CONDITIONAL_GET,
    openapi_extra=responses.IF_NONE_MATCH,
)
def get_report(id_: ResourceId, request: Request, services: ServicesDep) -> Response:
    """Show a report, and the submission as it was received."""
    return conditional_response(request, *services.reports.get(id_))


@router.delete(
    "/{id:report_id}",
    operation_id="withdrawReport",
    response_model=ReportAnswer,
    responses=responses.IF_MATCH,
    openapi_extra=_IF_MATCH,
)
def withdraw_report(id_: ResourceId, services: ServicesDep, seen: SeenTags) -> Response:
    """Withdraw a report that should not count: it is kept as it was received, and from now on no
    calibration, drift, summary or prediction looks at it. Profile versions that learnt from it stay
    as they are; a calibration `from_scratch` makes one that did not."""
    # Without an If-Match header it is withdrawn whatever its ETag is.
    return tagged_response(*services.reports.withdraw(id_, seen or ["*"]))
