"""Statements that are made once and executed for every request, since making a statement takes
longer than executing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import CursorResult, Executable, Row
from sqlalchemy.orm import Session

_NOTHING: Mapping[str, Any] = {}


def execute(
    session: Session,
    statement: Executable,
    values: Mapping[str, Any] | Sequence[Mapping[str, Any]] = _NOTHING,
) -> CursorResult[*tuple[Any, ...]]:
    """Executes a statement on the session's connection, with the values of one row or of many.

    The store narrows queries of the session itself to its tenant, but not those that are executed
    here. The statement must name the tenant, or read only what all tenants share.
    """
    session.flush()  # as the session does before its own queries
    return session.connection().execute(statement, values)


def first_row(
    session: Session, query: Executable, values: Mapping[str, Any] = _NOTHING
) -> Row[*tuple[Any, ...]] | None:
    """Returns the first row that the query finds through `execute`; None where there is none."""
    return execute(session, query, values).first()
