"""Logs: each line is a JSON object, with what is bound to the request that it belongs to."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger


def _without_colours(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Returns the log line without uvicorn's second message, which repeats the first in colours."""
    event.pop("color_message", None)
    return event


_DETAILS: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.ExtraAdder(),
    _without_colours,
    structlog.processors.TimeStamper(fmt="iso", key="time"),
    structlog.processors.format_exc_info,
]


_encoder = json.JSONEncoder(default=str)


def _serialised(line: dict[str, Any], **_: Any) -> str:
    """Returns a log line as JSON. `json.dumps` would make an encoder for each line."""
    return _encoder.encode(line)


def json_formatter() -> logging.Formatter:
    """Returns a formatter that writes each record of the standard library's loggers as a JSON
    object. `event` is the message, beside the fields that a call passes as `extra`."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_DETAILS,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(serializer=_serialised),
        ],
    )


class RepeatFilter(logging.Filter):
    """Lets each kind of warning of some loggers through once a minute, with the number of equal
    ones that were held back. What clients do to connections would otherwise fill the log."""

    _EACH_S = 60.0
    _LOGGERS = ("asyncio", "uvicorn.error", "service.web.idle_connections")
    _KEPT = 100  # kinds of lines that are remembered; with one more, all are forgotten

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}
        """When a line of this kind was logged, and how many were held back since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a record is logged. A warning of a chosen logger passes once in _EACH_S,
        with the number of equal ones held back as `held_back`."""
        if record.name not in self._LOGGERS or record.levelno < logging.WARNING:
            return True
        kind = record.name, str(record.msg)
        now = time.monotonic()
        logged, held_back = self._seen.get(kind, (-self._EACH_S, 0))
        if now - logged < self._EACH_S:
            self._seen[kind] = logged, held_back + 1
            return False
        # Messages without end must not fill the memory; a line too many does no harm.
        if len(self._seen) >= self._KEPT:
            self._seen.clear()
        self._seen[kind] = now, 0
        if held_back:
            record.__dict__["held_back"] = held_back
        return True


def configure_logs(level: str) -> None:
    """Makes all loggers write JSON lines to standard error, from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RepeatFilter())
    handler.setFormatter(json_formatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
