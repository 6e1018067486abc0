"""/check: a launch (a script or command that starts a training) as somebody typed it, and whether
it is worth submitting."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from service.pages.check_answer import first_change, marked_lines, settings_read
from service.pages.form_token import posted_form
from service.pages.question_form import choices, typed_cluster, without_empty
from service.pages.rendering import page
from service.pages.trouble import SHOWN_ERRORS, page_router, trouble_page
from service.pages.words import VERDICTS
from service.routes.dependencies import ComputationDep, ServicesDep
from service.schemas.check import LaunchedCheckRequest

PATH = "/check"
_FIELDS = ("script", "cluster", "chips", "model", "stack")
EXAMPLE = files(__package__).joinpath("example.sh").read_text("utf-8")
_EXAMPLE_FORM = {"script": EXAMPLE, "cluster": "h100"}

router = page_router("recommend")


@router.get(PATH)
async def check_form(request: Request, services: ServicesDep) -> Response:
    """The form, empty or with an example."""
    sent = _EXAMPLE_FORM if "example" in request.query_params else {}
    names = await run_in_threadpool(choices, services.catalog)
    context = {"form": _context(sent), "choices": names, "trouble": None}
    return page(request, "check.html", context)


@router.post(PATH)
async def check(request: Request, services: ServicesDep, computation: ComputationDep) -> Response:
    """The verdict on what was sent. Nothing of it is stored."""
    sent = await posted_form(request)
    context: dict[str, Any] = {
        "form": _context(sent),
        "choices": await run_in_threadpool(choices, services.catalog),
        "trouble": None,
    }
    text = sent.get("script", "").replace("\r\n", "\n")
    try:
        body = LaunchedCheckRequest.model_validate(_body(sent, text))
        checked = await computation.computed(
            lambda turn: services.checks.check(body, turn.bounded_checkpoint())
        )
    except SHOWN_ERRORS as error:
        return await trouble_page(request, error, "check.html", context, LaunchedCheckRequest)
    name, meaning, tone = VERDICTS[checked["verdict"]]
    context |= {
        "check": checked,
        "verdict": name,
        "meaning": meaning,
        "tone": tone,
        "first_change": first_change(checked, text),
        "settings": settings_read(checked, text),
        "lines": marked_lines(checked, text),
    }
    return page(request, "check_answer.html", context)


def _context(sent: Mapping[str, str]) -> dict[str, str]:
    return {name: sent.get(name, "") for name in _FIELDS}


def _body(sent: Mapping[str, str], text: str) -> dict[str, Any]:
    """Returns the body of a request for a check. `sent` holds the fields of the form, and `text` is
    the launch script or command as typed. Empty fields are left out."""
    return without_empty(
        launch={"arguments": text},
        cluster=typed_cluster(sent),
        model=sent.get("model", "").strip(),
        stack=sent.get("stack", "").strip(),
    )
