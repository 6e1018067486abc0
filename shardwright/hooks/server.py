"""The policy server: the hooks that schedulers call over HTTP, in one small application.

    POST /kubernetes                            admission reviews
    POST /skypilot                              SkyPilot's admin policy
    POST /dstack/apply_policies/on_run_apply    dstack's plugin service, and its siblings
    GET  /livez

Whatever goes wrong, what came goes back unchanged: SkyPilot and dstack take an error for a refusal.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from shardwright.hooks import dstack, skypilot
from shardwright.hooks.finding import Finding
from shardwright.hooks.kubernetes.review import reviewed
from shardwright.hooks.policy import HookPolicy

_LOG = logging.getLogger(__name__)
_MOST_BYTES = 2**22  # etcd takes objects of 1.5 MB, which JSON within JSON makes longer


def policy_server(policy: HookPolicy) -> Starlette:
    """Returns the application that answers schedulers by the administrator's policy."""

    def answering(answer: Callable[[bytes, HookPolicy], Response]) -> Any:
        """Returns an endpoint that calls `answer` with the body of the request in a thread, and
        refuses bodies that are too long."""

        async def endpoint(request: Request) -> Response:
            if int(request.headers.get("content-length", 0)) > _MOST_BYTES:
                return PlainTextResponse("the request is too long", 413)
            return await run_in_threadpool(answer, await request.body(), policy)

        return endpoint

    dstack_path = "/dstack/apply_policies/on_{kind}_apply"
    return Starlette(
        routes=[
            Route("/kubernetes", answering(_kubernetes), methods=["POST"]),
            Route("/skypilot", answering(_skypilot), methods=["POST"]),
            Route(dstack_path, answering(_dstack), methods=["POST"]),
            Route("/livez", lambda _: PlainTextResponse("ok")),
        ]
    )


def _kubernetes(body: bytes, policy: HookPolicy) -> Response:
    """Returns the response to an admission review, or a 400 where it cannot be answered."""
    try:
        return JSONResponse(reviewed(json.loads(body), policy))
    except Exception:  # noqa: BLE001 - the API server passes a job whose review fails
        _LOG.exception("a review failed")
        return PlainTextResponse("this is no AdmissionReview of v1", 400)


def _skypilot(body: bytes, policy: HookPolicy) -> Response:
    """Returns the response to SkyPilot: the task, changed where the policy allows that, or a 400
    that refuses it."""
    request = json.loads(body)
    try:
        answer, finding = skypilot.policy_answer(request, policy)
    except Exception:  # noqa: BLE001 - a launch goes on whatever befalls its check
        _LOG.exception("a task was not checked")
        return JSONResponse(request)
    _tell("SkyPilot", finding, skypilot.MORE)
    if finding.is_refused:
        return PlainTextResponse(finding.line(skypilot.MORE), 400)
    return JSONResponse(answer)


def _dstack(body: bytes, policy: HookPolicy) -> Response:
    """Returns the response to dstack, with the specification as it came where the check fails."""
    request = json.loads(body)
    try:
        answer, finding = dstack.run_answer(request, policy)
    except Exception:  # noqa: BLE001 - a run goes on whatever befalls its check
        _LOG.exception("a run was not checked")
        return JSONResponse({"spec": request["spec"], "error": None})
    _tell("dstack", finding, dstack.MORE)
    return JSONResponse(answer)


def _tell(caller: str, finding: Finding, more: str) -> None:
    """Logs what the check found, because the callers show none of it."""
    if finding.sentences:
        _LOG.info("%s: %s", caller, finding.line(more))
