"""/runs: reported runs, measured against predicted, by the filters in the URL. *Drift* is a lasting
change of measured over predicted step time of one kind of runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import urlencode

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from service.pages.question_form import choices
from service.pages.rendering import page
from service.pages.run_rows import RunRow, group_rows
from service.pages.trouble import SHOWN_ERRORS, page_router, trouble_of, trouble_page
from service.pages.url_query import sent_query
from service.routes.dependencies import ComputationDep, Services, ServicesDep
from service.schemas.list_query import ListForm
from service.schemas.report_list import ReportFilterQuery, ReportQuery
from service.schemas.summary import DriftQuery, SummaryQuery
from service.store.versions import DEFAULT_PROFILE

PATH = "/runs"
_PAGE = 200  # runs: as many dots as a picture shows apart
_DRIFT_RUNS = 500  # the newest: each is predicted anew, and the page is to come within a second
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_LIST_FIELDS = ("chip", "stack", "architecture", "outcome")
_FORM_FIELDS = (*_LIST_FIELDS, "since", "until")
OUTCOMES = ("ok", "out_of_memory", "crashed", "aborted")

router = page_router("report")


@router.get(PATH)
async def runs(request: Request, services: ServicesDep, computation: ComputationDep) -> Response:
    """The form, and the runs that the URL selects."""
    sent = sent_query(ReportQuery, request.query_params)
    for name in ListForm.model_fields:  # such as format=csv: a page is always HTML, with all fields
        sent.pop(name, None)
    context = await run_in_threadpool(_context, services, sent)
    try:
        query = ReportQuery.model_validate({"limit": str(_PAGE), **_api_query(sent)})
        context |= await run_in_threadpool(_selected_runs, services, query)
    except SHOWN_ERRORS as error:
        return await trouble_page(request, error, "runs.html", context, ReportQuery)
    context |= await _drift_context(request, services, computation, query, context["summary"])
    if (cursor := context["next"]) is not None:
        context["next_link"] = f"{PATH}?{urlencode({**sent, 'cursor': cursor}, doseq=True)}"
    context["data"] = {
        "runs": [asdict(row) for row in context["rows"]],
        "groups": [asdict(row) for row in context["groups"]],
        "changes": context["changes"],
    }
    return page(request, "runs.html", context)


def _api_query(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the query as the API has it. A day of the form becomes its first moment in UTC, and
    names with commas between become a list."""
    moments = {
        name: f"{sent[name]}T00:00:00Z"
        for name in ("since", "until")
        if _DAY.fullmatch(sent.get(name, ""))
    }
    names = {
        # The URL may have the field several times, each with several names.
        name: [name_typed.strip() for name_typed in ",".join(sent[name]).split(",")]
        for name in _LIST_FIELDS
        if name in sent
    }
    return {**sent, **moments, **names}


def _context(services: Services, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the template before any run is selected: the form with the query `sent`
    in the URL, and empty values for what a selection fills in."""
    return {
        "form": {
            name: ", ".join(sent.get(name, [])) if name in _LIST_FIELDS else sent.get(name, "")
            for name in _FORM_FIELDS
        },
        "labels": sent.get("label", [""]),  # an input for each; one empty to type in if none
        "is_filtered": any(name in sent for name in (*_FORM_FIELDS, "label")),
        "choices": choices(services.catalog),
        "outcomes": OUTCOMES,
        "trouble": None,
        "rows": [],
        "groups": [],
        "summary": None,
        "changes": [],
        "drift": None,
        "drift_trouble": None,
        "next_link": None,
        "data": None,
    }


def _selected_runs(services: Services, query: ReportQuery) -> dict[str, Any]:
    """Returns the fields of the template that show one page of the selected runs, and the summary
    of all of them. `groups` are the rows of groups of runs, such as those on one chip."""
    reports = services.reports.page(query)
    context = {name: getattr(query, name) for name in ReportFilterQuery.model_fields}
    summary = services.report_summaries.summary(SummaryQuery.model_validate(context))
    return {
        "rows": [RunRow.of(report) for report in reports["items"]],
        "next": reports["next"],
        "summary": summary,
        "groups": group_rows(summary),
    }


async def _drift_context(
    request: Request,
    services: Services,
    computation: ComputationDep,
    query: ReportQuery,
    summary: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the template's fields on drift: `drift` is the answer of the API, and `changes` has
    the lasting changes of those kinds of runs whose chip, stack and family of models are on the
    page. Where the analysis cannot run, the only field says why."""
    drift_query = DriftQuery(since=query.since, until=query.until, limit=_DRIFT_RUNS)
    try:
        drift = await computation.computed(
            lambda _: services.drift.answer(DEFAULT_PROFILE, drift_query)
        )
    except SHOWN_ERRORS as error:
        return {"drift_trouble": await trouble_of(request, error)}
    # Each series of drift is about the runs of one kind.
    changes = [
        {**change, "sentence": series["sentence"]}
        for series in drift["series"]
        if all(series[kind] in summary["by"][kind] for kind in ("chip", "stack", "family"))
        for change in series["changes"]
    ]
    return {"changes": changes, "drift": drift}
