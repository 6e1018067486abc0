"""Logs: each line is a JSON object, with what is bound to the request that it belongs to."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger


def _without_colours(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """The line without uvicorn's second message, which has the first one's words in colours."""
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
    """A line as JSON. json.dumps would make an encoder for each."""
    return _encoder.encode(line)


def json_formatter() -> logging.Formatter:
    """A formatter for the loggers of the standard library, which all modules and libraries use.
    `event` is the message; the fields that a call passes as `extra` stand beside it."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_DETAILS,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(serializer=_serialised),
        ],
    )


def configure_logs(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(json_formatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
