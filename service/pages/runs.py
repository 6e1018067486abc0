"""/runs: reported runs, measured against predicted, by the filters in the URL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from service.pages.question_form import choices
from service.pages.rendering import page
from service.pages.run_rows import RunRow, level_rows
from service.pages.trouble import TOLD, PageRoute, trouble_of, trouble_page
from service.pages.url_query import sent_query
from service.routes.dependencies import ComputationDep, Services, ServicesDep, require_scope
from service.schemas.list_query import ListForm
from service.schemas.report_list import ReportFilterQuery, ReportQuery
from service.schemas.summary import DriftQuery, SummaryQuery
from service.store.versions import DEFAULT_PROFILE

PATH = "/runs"
_PAGE = 200  # runs: as many dots as a picture shows apart
_DRIFT_RUNS = 500  # the newest: each is predicted anew, and the page is to come within a second
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_SEVERAL = ("chip", "stack", "architecture", "outcome")
_IN_FORM = (*_SEVERAL, "since", "until")
OUTCOMES = ("ok", "out_of_memory", "crashed", "aborted")

router = APIRouter(
    include_in_schema=False, route_class=PageRoute, dependencies=[require_scope("report")]
)


@router.get(PATH)
async def runs(request: Request, services: ServicesDep, computation: ComputationDep) -> Response:
    """The form, and the runs that the URL selects."""
    sent = sent_query(ReportQuery, request.query_params)
    for name in ListForm.model_fields:  # a page has one form
        sent.pop(name, None)
    shown = await run_in_threadpool(_shown, services, sent)
    try:
        query = ReportQuery.model_validate({"limit": str(_PAGE), **_query(sent)})
        shown |= await run_in_threadpool(_found, services, query)
    except TOLD as error:
        trouble = await trouble_of(request, error, ReportQuery)
        return trouble_page(request, trouble, "runs.html", shown)
    shown |= await _drift(request, services, computation, query, shown["summary"])
    if (cursor := shown["next"]) is not None:
        shown["next_link"] = f"{PATH}?{urlencode({**sent, 'cursor': cursor}, doseq=True)}"
    shown["data"] = {
        "runs": [asdict(row) for row in shown["rows"]],
        "levels": [asdict(row) for row in shown["levels"]],
        "changes": shown["changes"],
    }
    return page(request, "runs.html", shown)


def _query(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the query of the API: the days of the form as the moments when they begin, and names
    with commas between as several values."""
    moments = {
        name: f"{sent[name]}T00:00:00Z"
        for name in ("since", "until")
        if _DAY.fullmatch(sent.get(name, ""))
    }
    names = {
        name: [one.strip() for one in ",".join(sent[name]).split(",")]
        for name in _SEVERAL
        if name in sent
    }
    return {**sent, **moments, **names}


def _shown(services: Services, sent: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "form": {
            name: ", ".join(sent.get(name, [])) if name in _SEVERAL else sent.get(name, "")
            for name in _IN_FORM
        },
        "labels": sent.get("label", [""]),
        "is_filtered": any(name in sent for name in (*_IN_FORM, "label")),
        "choices": choices(services.catalog),
        "outcomes": OUTCOMES,
        "trouble": None,
        "rows": [],
        "levels": [],
        "summary": None,
        "changes": [],
        "drift": None,
        "drift_trouble": None,
        "next_link": None,
        "data": None,
    }


def _found(services: Services, query: ReportQuery) -> dict[str, Any]:
    reports = services.reports.page(query)
    shown = {name: getattr(query, name) for name in ReportFilterQuery.model_fields}
    summary = services.report_summaries.summary(SummaryQuery.model_validate(shown))
    return {
        "rows": [RunRow.of(report) for report in reports["items"]],
        "next": reports["next"],
        "summary": summary,
        "levels": level_rows(summary),
    }


async def _drift(
    request: Request,
    services: Services,
    computation: ComputationDep,
    query: ReportQuery,
    summary: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the changes of level among the kinds of runs that are shown. A service that is busy
    answers without them."""
    asked = DriftQuery(since=query.since, until=query.until, limit=_DRIFT_RUNS)
    try:
        drift = await computation.computed(lambda _: services.drift.answer(DEFAULT_PROFILE, asked))
    except TOLD as error:
        return {"drift_trouble": await trouble_of(request, error)}
    changes = [
        {**change, "sentence": series["sentence"]}
        for series in drift["series"]
        if all(series[kind] in summary["by"][kind] for kind in ("chip", "stack", "family"))
        for change in series["changes"]
    ]
    return {"changes": changes, "drift": drift}
