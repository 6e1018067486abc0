"""Whose key a request carries, before anything of it is read."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api_keys import ANYONE, caller_of
from service.errors import ServiceError
from service.store import Store
from service.web.problems import of_service_error

GUARDED = "/v1"
"""Health, documentation and the meaning of problems are for everybody."""


class Authentication:
    def __init__(self, app: ASGIApp, store: Store, required: bool) -> None:
        self.app, self.store, self.required = app, store, required

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["state"]["caller"] = ANYONE
            if self.required and scope["path"].startswith(GUARDED):
                given = Headers(scope=scope).getlist("authorization")
                try:
                    scope["state"]["caller"] = await run_in_threadpool(caller_of, self.store, given)
                except ServiceError as error:
                    await of_service_error(scope, error)(scope, receive, send)
                    return
        await self.app(scope, receive, send)
