"""/evidence: published runs, searched by the filters in the URL, which are those of the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from service.pages.evidence_rows import EvidenceRow
from service.pages.examples import EXAMPLES
from service.pages.question_form import choices
from service.pages.rendering import page
from service.pages.trouble import SHOWN_ERRORS, page_router, trouble_page
from service.pages.url_query import sent_query
from service.routes.dependencies import ComputationDep, Services, ServicesDep
from service.schemas.evidence import EvidenceQuery

PATH = "/evidence"
_PAGE = 25  # runs: more of them are a table that nobody scrolls through
_FORM_FIELDS = ("text", "model", "cluster", "num_chips", "stack", "precision", "family", "outcome")

router = page_router("recommend")


@router.get(PATH)
async def evidence(
    request: Request, services: ServicesDep, computation: ComputationDep
) -> Response:
    """The form, and a page of the runs that the URL selects."""
    sent = sent_query(EvidenceQuery, request.query_params)
    context = await run_in_threadpool(_context, services, sent)
    try:
        query = EvidenceQuery.model_validate({"limit": str(_PAGE), **sent})
        answer = await computation.computed(
            lambda _: services.evidence.nearest(query, services.store)
        )
    except SHOWN_ERRORS as error:
        return await trouble_page(request, error, "evidence.html", context, EvidenceQuery)
    context |= {
        "rows": [EvidenceRow.of(run) for run in answer["items"]],
        "found": answer,
        "next_link": _link(PATH, {**sent, "cursor": answer["next"]}) if answer["next"] else None,
        "api_link": _link("/v1/evidence", {"limit": str(_PAGE), **sent}),
    }
    return page(request, "evidence.html", context)


def _context(services: Services, sent: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of the Evidence template before anything is searched. `sent` holds the
    query of the URL. `kept` has those of its filters that the form does not show, which hidden
    inputs send on."""
    in_form = {name: sent.get(name, "") for name in _FORM_FIELDS}
    return {
        # The form begins with exact runs only, though the API shows others too by default.
        "form": {**in_form, "exact": sent.get("exact", "true")},
        "kept": {
            name: value
            for name, value in sent.items()
            if name not in (*_FORM_FIELDS, "exact", "cursor")
        },
        "choices": choices(services.catalog),
        "families": services.evidence.families(),
        "examples": EXAMPLES["evidence"],
        "trouble": None,
        "rows": [],
        "found": None,
    }


def _link(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path
