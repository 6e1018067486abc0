"""Request ids and logs. Each log line is a JSON object with the id of the request that it belongs
to."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from contextvars import ContextVar
from datetime import UTC, datetime

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.identifiers import new_id
from service.web.problems import internal_error_response

log = logging.getLogger(__name__)

_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
_ACCEPTED_REQUEST_ID = re.compile(r"[A-Za-z0-9._~-]{1,128}")
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({})))


class JsonFormatter(logging.Formatter):
    """Writes a record as a JSON object. `event` is the message; the fields that a call passes as
    `extra` follow."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            "request_id": _request_id.get(),
        }
        for key, value in vars(record).items():
            if key not in _STANDARD_ATTRIBUTES:
                line[key] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logs(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


class Telemetry:
    """The outermost middleware. It gives the request an id, logs its outcome, and answers an
    exception that nothing has caught with a 500 that shows no internals."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent_id = Headers(scope=scope).get("x-request-id", "")
        request_id = sent_id if _ACCEPTED_REQUEST_ID.fullmatch(sent_id) else new_id()
        scope.setdefault("state", {})["request_id"] = request_id
        token = _request_id.set(request_id)
        try:
            await self._run_logged(scope, receive, send, request_id)
        finally:
            _request_id.reset(token)

    async def _run_logged(
        self, scope: Scope, receive: Receive, send: Send, request_id: str
    ) -> None:
        began = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:  # noqa: BLE001  the one boundary: whatever reaches it is a defect
            log.exception("request failed")
            if status == 0:
                await internal_error_response(scope)(scope, receive, send_with_id)
        finally:
            duration_ms = round(1000 * (time.perf_counter() - began), 1)
            outcome = {
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "duration_ms": duration_ms,
            }
            log.info("request", extra=outcome)
