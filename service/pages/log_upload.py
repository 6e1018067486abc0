"""/runs/logs: a training log as somebody uploads it, read and stored as a report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from service.pages.form_token import posted_form
from service.pages.question_form import choices, typed_cluster, without_empty
from service.pages.rendering import page
from service.pages.run_rows import run_name
from service.pages.runs import OUTCOMES
from service.pages.trouble import SHOWN_ERRORS, page_router, trouble_page
from service.routes.dependencies import CreationDep, Services, ServicesDep
from service.schemas.training_log import LaunchedLog, LogForm, LogSubmission

PATH = "/runs/logs"
_FIELDS = ("log", "recommendation_id", "script", "cluster", "chips", "model", "stack", "outcome",
           "source")  # fmt: skip
_FORM: TypeAdapter[LogSubmission | LaunchedLog] = TypeAdapter(LogForm)

router = page_router("report")


@router.get(PATH)
async def log_form(request: Request, services: ServicesDep) -> Response:
    """The form, filled in with the fields that the URL gives, such as a recommendation's id."""
    return page(request, "log.html", await _context(services, request.query_params))


@router.post(PATH)
async def upload_log(request: Request, services: ServicesDep, responder: CreationDep) -> Response:
    """Stores a report of the log, and shows it beside the facts that were read."""
    sent = await posted_form(request)
    try:
        body = log_body(sent)
        form = _FORM.validate_python(body)
        log = await services.report_logs.read(form, request.is_disconnected)
        received = json.dumps(body, ensure_ascii=False)
        created = await run_in_threadpool(
            responder.creation.create, lambda: services.report_logs.prepare(log, received)
        )
    except SHOWN_ERRORS as error:
        context = await _context(services, sent)
        return await trouble_page(request, error, "log.html", context, LogForm)
    answer = created.content
    context = {"answer": answer, "report": answer["report"], "name": run_name(answer["report"])}
    return page(request, "log_answer.html", context)


async def _context(services: Services, sent: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of the template: the form with what was sent, and the names it offers."""
    return {
        "form": {name: sent.get(name, "") for name in _FIELDS},
        "choices": await run_in_threadpool(choices, services.catalog),
        "outcomes": OUTCOMES,
        "trouble": None,
    }


def log_body(sent: Mapping[str, str]) -> dict[str, Any]:
    """Returns the form as the body of a request to the API. A log that was uploaded as a file is
    preferred to one that was pasted. Browsers send pasted lines with CRLF, which become LF."""
    text = sent.get("log_file") or sent.get("log", "")
    script = sent.get("script", "")
    return {
        "log": text.replace("\r\n", "\n"),
        **without_empty(
            cluster=typed_cluster(sent),
            launch={"arguments": script.replace("\r\n", "\n")} if script.strip() else None,
            **{
                name: sent.get(name, "").strip()
                for name in ("recommendation_id", "model", "stack", "outcome", "source")
            },
        ),
    }
