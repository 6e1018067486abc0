"""Why a database cannot be used just now, in words that may be shown to callers."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError, TimeoutError

SILENT = "does not answer"

_OF_SQLITE = {
    "SQLITE_FULL": "has no room left",
    "SQLITE_IOERR": "cannot be read or written",
    "SQLITE_READONLY": "cannot be written",
    "SQLITE_CANTOPEN": "cannot be opened",
    "SQLITE_BUSY": "is busy with what others write",
}
"""Reasons by the beginning of the name of an error code (https://www.sqlite.org/rescode.html)."""

_OF_POSTGRESQL = {
    "25006": "cannot be written",
    "53100": "has no room left",
    "53": "lacks memory or connections",
    "57014": "takes too long",
    "57P": "is starting or stopping",
    "58": "cannot be read or written",
}
"""Reasons by the beginning of an SQLSTATE (Appendix A of PostgreSQL's manual), the longest
first."""


def reason_of(error: SQLAlchemyError) -> str | None:
    """Returns why the database cannot be used, in words that follow "database", such as "has no
    room left". None where the error is a defect, which trying again does not cure."""
    if isinstance(error, TimeoutError):
        return "has no connection free"
    if not isinstance(error, DBAPIError):
        return None
    reason = _reason_of_code(error.orig)
    if reason is not None:
        return reason
    # An OperationalError without a known code is mostly that of a lost connection.
    is_lost = error.connection_invalidated or isinstance(error, OperationalError)
    return SILENT if is_lost else None


def _reason_of_code(error: BaseException | None) -> str | None:
    """Returns the reason for an error code of SQLite or PostgreSQL; None where the code means
    something else. Codes are matched by their beginning."""
    if isinstance(error, sqlite3.Error):
        code, reasons = getattr(error, "sqlite_errorname", ""), _OF_SQLITE
    else:
        code, reasons = getattr(error, "sqlstate", None) or "", _OF_POSTGRESQL
    return next((reason for start, reason in reasons.items() if code.startswith(start)), None)
