"""Ids, logs and metrics of requests."""

from __future__ import annotations

import logging
import re
import time
from http import HTTPMethod

import structlog
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.identifiers import new_id
from service.metrics import REQUEST_SECONDS
from service.web.masking import names_of_query, without_keys
from service.web.problems import internal_error_response

log = logging.getLogger(__name__)

_ACCEPTED_REQUEST_ID = re.compile(r"[A-Za-z0-9._~-]{1,128}")
_METHODS = frozenset(HTTPMethod)
_NO_ROUTE = "none"


class Telemetry:
    """The outermost middleware. It gives the request an id, logs and times it, and answers an
    exception that nothing has caught with a 500 that shows no internals.

    Neither headers nor bodies are logged.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Gives the request an id, binds it to the log lines of the request, and runs the
        application."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id
        _mask_span(scope)
        structlog.contextvars.clear_contextvars()
        client = scope["client"][0] if scope.get("client") else None
        with structlog.contextvars.bound_contextvars(
            request_id=request_id, client=client, **_trace_ids(scope)
        ):
            await self._run_logged(scope, receive, send, request_id)

    async def _run_logged(
        self, scope: Scope, receive: Receive, send: Send, request_id: str
    ) -> None:
        """Runs the application with the id in the response's headers, then logs and times the
        request. An unexpected exception is logged and answered with 500."""
        began = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            """Sends a message on, notes the status, and adds the request's id to the headers."""
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:  # noqa: BLE001  the one boundary: whatever reaches it is a defect
            log.exception("request failed")
            if status == 0:  # no response was begun; one that was cannot be replaced
                await internal_error_response(scope)(scope, receive, send_with_id)
        finally:
            _record_request(scope, status, time.perf_counter() - began)


def _mask_span(scope: Scope) -> None:
    """Removes API keys and query values from the request's trace span, into which FastAPI has put
    the whole address."""
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attribute("url.path", without_keys(scope["path"]))
        if scope["query_string"]:
            span.set_attribute("url.query", names_of_query(scope["query_string"].decode("latin-1")))


def _record_request(scope: Scope, status: int, seconds: float) -> None:
    """Adds a finished request to the metrics and the log. `status` is 0 where no response was
    begun."""
    method = scope["method"] if scope["method"] in _METHODS else "other"
    # A label per address, or per invented method, would make series without end.
    route = getattr(scope.get("route"), "path_format", _NO_ROUTE)
    REQUEST_SECONDS.labels(method, route, str(status)).observe(seconds)
    outcome = {
        "method": scope["method"],
        "path": without_keys(scope["path"]),
        "status": status,
        "duration_ms": round(1000 * seconds, 1),
    }
    log.info("request", extra=outcome)


def _request_id(headers: Headers) -> str:
    """Returns the id that the client sent with the request, or a new one where it sent none that
    may be used."""
    sent_id = headers.get("x-request-id", "")
    return sent_id if _ACCEPTED_REQUEST_ID.fullmatch(sent_id) else new_id()


def _trace_ids(scope: Scope) -> dict[str, str]:
    """Returns the trace and span ids of the recorded span, or else of the caller's, which a
    `traceparent` header names (W3C Trace Context). Empty where there is neither."""
    span = trace.get_current_span().get_span_context()
    headers = Headers(scope=scope)
    if not span.is_valid and "traceparent" in headers:
        parent = TraceContextTextMapPropagator().extract(dict(headers))
        span = trace.get_current_span(parent).get_span_context()
    if not span.is_valid:
        return {}
    return {
        "trace_id": trace.format_trace_id(span.trace_id),
        "span_id": trace.format_span_id(span.span_id),
    }
