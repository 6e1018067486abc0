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
    """Execute a statement on the connection of a session, with the values of one row or of many.

    A query is not narrowed to the session's tenant there (service.store), so it must name the
    tenant, or read only what all tenants share.
    """
    session.flush()  # as before the session's own queries
    return session.connection().execute(statement, values)


def first_row(
    session: Session, query: Executable, values: Mapping[str, Any] = _NOTHING
) -> Row[*tuple[Any, ...]] | None:
    """Returns the first row that such a query finds, or None."""
    return execute(session, query, values).first()
