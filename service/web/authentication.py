"""Finds out who sends a request, by its API key, before any of its body is read."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api_keys import ANYONE, caller_of
from service.errors import ServiceError
from service.store import Store
from service.web.problems import service_error_response

GUARDED = "/v1"
"""The paths that need a key begin so. Health, documentation and the meaning of problems are for
everybody."""


class Authentication:
    """Middleware that puts the caller into `state` of the scope."""

    def __init__(self, app: ASGIApp, store: Store, required: bool) -> None:
        self.app, self.store, self.required = app, store, required

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["state"]["caller"] = ANYONE
            if self.required and scope["path"].startswith(GUARDED):
                authorization = Headers(scope=scope).getlist("authorization")
                try:
                    scope["state"]["caller"] = await run_in_threadpool(
                        caller_of, self.store, authorization
                    )
                except ServiceError as error:
                    await service_error_response(scope, error)(scope, receive, send)
                    return
        await self.app(scope, receive, send)
