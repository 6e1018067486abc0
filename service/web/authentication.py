"""Finds out who sends a request, by its API key, before any of its body is read."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from service.api_keys import ANYONE, caller_at_hand, caller_of
from service.errors import ServiceError
from service.store import Store
from service.web.problems import service_error_response

GUARDED = "/v1"
"""The paths that need a key begin so. Health, documentation and the meaning of problems are for
everybody."""


class Authentication:
    """Middleware that puts the caller into `state` of the scope. Paths that begin with one of
    `guarded` need a key."""

    def __init__(self, app: ASGIApp, store: Store, guarded: tuple[str, ...]) -> None:
        self.app, self.store, self.guarded = app, store, guarded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["state"]["caller"] = ANYONE
            if scope["path"].startswith(self.guarded):
                authorization = Headers(scope=scope).getlist("authorization")
                try:
                    caller = caller_at_hand(self.store, authorization)
                    if caller is None:
                        caller = await run_in_threadpool(caller_of, self.store, authorization)
                except ServiceError as error:
                    await service_error_response(scope, error)(scope, receive, send)
                    return
                scope["state"]["caller"] = caller
                bind_contextvars(tenant=caller.tenant, key_id=caller.key_id)  # of log lines
        await self.app(scope, receive, send)
