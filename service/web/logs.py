"""Logs: each line is a JSON object, with what is bound to the request that it belongs to."""

from __future__ import annotations

import logging
import sys

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


def json_formatter() -> logging.Formatter:
    """A formatter for the loggers of the standard library, which all modules and libraries use.
    `event` is the message; the fields that a call passes as `extra` stand beside it."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_DETAILS,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(default=str),
        ],
    )


def configure_logs(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(json_formatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
