"""Request ids and logs: one JSON object a line, each line with the id of the request it belongs
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
from service.web.problems import internal

log = logging.getLogger(__name__)

_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
_ACCEPTED = re.compile(r"[A-Za-z0-9._~-]{1,128}")
_STANDARD = frozenset(vars(logging.makeLogRecord({})))


class JsonFormatter(logging.Formatter):
    """`event` is the message; what a call passes as `extra` follows."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            "request_id": _request_id.get(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logs(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


class Telemetry:
    """Outermost: names the request, logs its outcome, and turns what nobody caught into a 500
    without internals."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ACCEPTED.fullmatch(given) else new_id()
        scope.setdefault("state", {})["request_id"] = request_id
        token = _request_id.set(request_id)
        try:
            await self._logged(scope, receive, send, request_id)
        finally:
            _request_id.reset(token)

    async def _logged(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        began, status = time.perf_counter(), 0

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        try:
            await self.app(scope, receive, named)
        except Exception:  # noqa: BLE001  the one boundary: whatever reaches it is a defect
            log.exception("request failed")
            if status == 0:
                await internal(scope)(scope, receive, named)
        finally:
            duration_ms = round(1000 * (time.perf_counter() - began), 1)
            outcome = {
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "duration_ms": duration_ms,
            }
            log.info("request", extra=outcome)
