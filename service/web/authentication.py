"""Finds out who sends a request, by its API key, its session or its ticket, before its body is
read.

A *session* is a cookie of a browser that has signed in with a key. A *ticket* stands in the URL of
one event stream, where browsers cannot send a key (service.sessions, service.stream_tickets).
"""

from __future__ import annotations

from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from service.api_keys import ANYONE, Caller, cached_caller, caller_of
from service.errors import ServiceError, Unauthenticated
from service.sessions import caller_of_session
from service.store import Store
from service.stream_tickets import caller_of_ticket
from service.web.problems import service_error_response

GUARDED = "/v1"
"""The paths that need a key begin so. Health, documentation and the meaning of problems are for
everybody."""
SESSION_COOKIE = "shardwright_session"
STREAM_SUFFIX = "/events"
"""The paths of event streams end so."""
SIGN_IN = "/login"
_SEE_OTHER = 303


class Authentication:
    """Middleware that puts the caller into `state` of the scope. Paths that begin with one of
    `guarded` need a key; those that begin with one of `pages` need a session, and send browsers
    without one to sign in."""

    def __init__(
        self, app: ASGIApp, store: Store, guarded: tuple[str, ...], pages: tuple[str, ...] = ()
    ) -> None:
        self.app = app
        self.store = store
        self.guarded = guarded
        self.pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Puts the caller into the scope's state, or answers with an error. A page without a
        session redirects to the form for signing in."""
        if scope["type"] == "http":
            try:
                scope["state"]["caller"] = await self._find_caller(scope)
            except ServiceError as error:
                is_page = scope["path"].startswith(self.pages)
                answer: ASGIApp = service_error_response(scope, error)
                if is_page and isinstance(error, Unauthenticated):
                    answer = _redirect_to_sign_in(scope)
                await answer(scope, receive, send)
                return
        await self.app(scope, receive, send)

    async def _find_caller(self, scope: Scope) -> Caller:
        """Returns the caller of a request, whose log lines name it from now on. Anyone may ask for
        paths that are not guarded, such as /livez. Raises Unauthenticated."""
        if scope["path"].startswith(self.pages):
            caller = await self._caller_of_session(scope)
        elif scope["path"].startswith(self.guarded):
            caller = await self._caller_of_key(scope)
        else:
            return ANYONE
        bind_contextvars(tenant=caller.tenant, key_id=caller.key_id)
        return caller

    async def _caller_of_key(self, scope: Scope) -> Caller:
        """Returns the caller of a request to a guarded path, by its ticket, its session or its key.
        Raises Unauthenticated where none of these is valid now."""
        authorization = Headers(scope=scope).getlist("authorization")
        if not authorization and scope["method"] == "GET" and (ticket := _ticket_in_url(scope)):
            return await run_in_threadpool(caller_of_ticket, self.store, ticket, scope["path"])
        # Pages read what they draw. A session may only read: other sites can make a browser send
        # its cookies.
        if not authorization and scope["method"] in ("GET", "HEAD") and _session_cookie(scope):
            return await self._caller_of_session(scope)
        caller = cached_caller(self.store, authorization)  # without a query to the database
        if caller is None:
            caller = await run_in_threadpool(caller_of, self.store, authorization)
        return caller

    async def _caller_of_session(self, scope: Scope) -> Caller:
        return await run_in_threadpool(caller_of_session, self.store, _session_cookie(scope))


def _ticket_in_url(scope: Scope) -> str:
    """Returns the ticket in the URL of an event stream; empty where there is none."""
    if not scope["path"].endswith(STREAM_SUFFIX):
        return ""
    return QueryParams(scope["query_string"]).get("ticket", "")


def _session_cookie(scope: Scope) -> str:
    cookies = cookie_parser(Headers(scope=scope).get("cookie", ""))
    return cookies.get(SESSION_COOKIE, "")


def _redirect_to_sign_in(scope: Scope) -> RedirectResponse:
    """Returns a redirect to the form for signing in, which leads back to the page."""
    query = scope["query_string"].decode("latin-1")
    page = f"{scope['path']}?{query}" if query else scope["path"]
    return RedirectResponse(f"{SIGN_IN}?next={quote(page, safe='')}", _SEE_OTHER)
