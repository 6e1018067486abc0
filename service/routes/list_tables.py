"""The columns of lists and answers as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from fastapi import Request, Response

from service.routes.list_pages import page_response
from service.schemas.list_query import ListForm, ListQuery
from service.schemas.profile import Policy
from service.web import responses
from service.web.tables import CSV, Table, asks_for_table, table_response

Query = TypeVar("Query", bound=ListQuery)
_MOST_ITEMS = 1000  # of a page

_ANSWER = {"id": "id", "created_at": "created_at", "location": "location"}
_PROFILE = {"profile_id": "profile.id", "profile_version": "profile.version"}
_QUESTION = {
    "model": "request.model",
    "cluster": "request.cluster",
    "num_chips": "request.cluster.num_chips",
    "seq_len": "request.workload.seq_len",
    "global_batch": "request.workload.global_batch",
    "precision": "request.workload.precision",
    "stack": "request.stack",
}
PREDICTIONS = Table("predictions", {**_ANSWER, **_PROFILE, **_QUESTION})
RECOMMENDATIONS = Table(
    "recommendations",
    {
        **PREDICTIONS.columns,
        "chips_used": "result.chips_used",
        "layout": "result.layout_summary",
        "step_time_s": "result.step_time_s",
        "mfu_causal": "result.mfu.causal",
        "fit_probability": "result.fit_probability",
        "exact": "result.exact",
    },
)
CHECKS = Table("checks", {**PREDICTIONS.columns, "verdict": "verdict", "summary": "summary"})
_SAME = (
    "name", "chip", "num_chips", "chips_used", "stack", "meets", "meets_probability", "hours",
    "hours_low", "hours_high", "usd", "usd_low", "usd_high", "usd_used", "usd_per_chip_hour",
    "usd_per_million_tokens", "step_time_s", "step_time_low_s", "step_time_high_s",
    "tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "goodput", "checkpoint_every_s",
    "layout_summary", "grade", "exact", "missing", "refused",
)  # fmt: skip
_MFU = {f"mfu_causal{end}": f"mfu{end}.causal" for end in ("", "_low", "_high")}
CHOICES = Table("choices", {**{name: name for name in _SAME}, **_MFU})
_AXES = ("scale_up", "scale_out", "domain", "num_chips", "layers")
_OF_POINT = (
    "without_s", "with_s", "gap", "gap_low", "gap_high", "pipeline_needed", "exact", "refused",
    "chips_per_domain",
)  # fmt: skip
FRONTIER = Table(
    "frontier", {**{axis: f"at.{axis}" for axis in _AXES}, **{name: name for name in _OF_POINT}}
)
BENCHMARKS = Table(
    "benchmarks",
    {
        name: name
        for name in (
            "id", "created_at", "measured_at", "source", "kind", "operation", "chip", "num_chips",
            "median_abs_error", "unread", "withdrawn_at",
        )
    }
    | _PROFILE
    | {"offsets": "offsets"},
)  # fmt: skip
SWEEPS = Table(
    "sweeps",
    {name: name for name in ("id", "created_at", "location", "state", "total", "finished_at")}
    | _PROFILE
    | {"outcomes": "outcomes"},
)
CATALOG = Table(
    "catalog",
    {
        name: name
        for name in (
            "kind", "name", "source", "version", "pinned_name", "created_at", "aliases", "resolved",
        )
    },
)  # fmt: skip
EVIDENCE = Table(
    "evidence",
    {
        **{name: name for name in ("id", "family", "trust", "date", "distance", "outcome")},
        "title": "source.title",
        "where": "source.where",
        "organisation": "source.organisation",
        "model": "model.name",
        "chip": "cluster.chip",
        "num_chips": "cluster.num_chips",
        "stack": "stack.name",
        "seq_len": "workload.seq_len",
        "global_batch": "workload.global_batch",
        "precision": "workload.precision",
        "layout": "layout_summary",
        **{name: f"measured.{name}" for name in ("step_time_s", "tokens_per_s_per_chip")},
        "mfu_causal": "measured.mfu.causal",
        "memory_gib": "measured.memory_gib",
        "predicted_step_time_s": "predicted.step_time_s",
        "predicted_low_s": "predicted.step_time_low_s",
        "predicted_high_s": "predicted.step_time_high_s",
        "predicted_mfu_causal": "predicted.mfu.causal",
        "predicted_reserved_gib": "predicted.reserved_gib",
        "predicted_fits": "predicted.fits",
        **{name: name for name in ("residual", "within_interval", "fit_verdict_agrees")},
    },
)
PROFILES = Table(
    "profiles",
    {
        **{name: name for name in ("id", "tenant", "active_version")},
        **{name: f"policy.{name}" for name in Policy.model_fields},
    },
)
_UNSEEN = ("runs", "error_before", "error_after", "coverage")
VERSIONS = Table(
    "versions",
    {
        **{name: name for name in ("version", "created_at", "origin", "made_by", "active")},
        "based_on": "calibration.based_on",
        "reports_used": "calibration.reports.used",
        "reports_left_out": "calibration.reports.left_out",
        "reports_waiting": "calibration.reports.waiting",
        **{f"unseen_{name}": f"calibration.unseen.{name}" for name in _UNSEEN},
        **{f"unseen_memory_{name}": f"calibration.unseen_memory.{name}" for name in _UNSEEN},
        "promoted": "calibration.promotion.promoted",
        "reason": "calibration.promotion.reason",
    },
)
AUDIT = Table(
    "audit",
    {
        name: name
        for name in ("id", "created_at", "action", "subject", "tenant", "key_id", "details")
    },
)


def lines_of(table: Table) -> dict[str, Any]:
    """Returns the documentation of a response that may be this table."""
    names = ", ".join(table.columns)
    schema = {"type": "string", "description": f"A line of names, then one of every item: {names}"}
    return {CSV: {"schema": schema}}


def page_or(table: Table) -> responses.Responses:
    """Returns the documentation of a list that is given as pages or as a table."""
    return responses.page_or(lines_of(table))


def whole_or(table: Table) -> responses.Responses:
    """Returns the documentation of a list that is given as a whole or as a table."""
    whole = responses.CONDITIONAL_GET
    return whole | {200: {"content": lines_of(table)} | whole[200]}


def list_response(
    request: Request, query: Query, page: Callable[[Query], dict[str, Any]], table: Table
) -> Response:
    """Returns a page of a list, in full or in brief, or the whole list as a table. `page` reads one
    page for a query."""
    if asks_for_table(request, query):
        return table_response(request, table.lines(_all_items(query, page)), table.name)
    return page_response(request, shown_page(page(query), query, table), query.fields)


def shown_page(document: dict[str, Any], query: ListForm, table: Table) -> dict[str, Any]:
    """Returns the page in the view that the query asks for. The brief view has the columns of the
    table."""
    if query.view != "brief":
        return document
    return {**document, "items": [table.row(item) for item in document["items"]]}


def _all_items(query: Query, page: Callable[[Query], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields every item of a list, read page by page from the first."""
    cursor: str | None = None
    while True:
        page_of_items = page(query.model_copy(update={"limit": _MOST_ITEMS, "cursor": cursor}))
        yield from page_of_items["items"]
        cursor = page_of_items["next"]
        if cursor is None:
            return
