"""The queries of all tables share this base, which looks rows up in one session."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Select, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.errors import NotFound
from service.store.tables import TENANT

R = TypeVar("R")
Q = TypeVar("Q", bound="Select[*tuple[Any, ...]]")


class Queries:
    """Queries of rows, of one kind or of all, within the transaction of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def _tenant(self) -> str | None:
        """Returns the tenant to which rows that this session adds belong."""
        tenant: str | None = self._session.info.get(TENANT)
        return tenant

    @property
    def _dialect(self) -> str:
        """Returns "sqlite" or "postgresql"."""
        return self._session.get_bind().dialect.name

    def _row(self, table: type[R], key: Any, called: str, **options: Any) -> R:
        """Returns the row of a table with this primary key, read with these options of SQLAlchemy.
        Raises NotFound where there is none. The error names the kind of row by `called`, such as
        "report"."""
        row = self._session.get(table, key, **options)
        if row is None:
            raise NotFound(called, key)
        return row

    def _any_withdrawn(self, table: Any, ids: Sequence[str]) -> bool:
        """Returns whether a row of a table with one of these ids is withdrawn: a profile that was
        learnt from it is then outdated. The ids must fit one query."""
        withdrawn = select(table.id).where(table.id.in_(ids), table.withdrawn_at.is_not(None))
        return self._session.scalars(withdrawn.limit(1)).first() is not None


def newest_first(
    query: Q, id_: InstrumentedAttribute[str], limit: int, before: str | None = None
) -> Q:
    """Returns the query cut down to its newest rows, newest first, starting after the id `before`.
    `id_` is the column of ids, which sort by time of creation."""
    if before is not None:
        query = query.where(id_ < before)
    return query.order_by(id_.desc()).limit(limit)


def within_span(
    query: Q,
    time: InstrumentedAttribute[datetime],
    since: datetime | None,
    until: datetime | None,
) -> Q:
    """Returns the query narrowed to rows whose `time` is from `since` (inclusive) until `until`
    (exclusive). An end that is None is open."""
    if since is not None:
        query = query.where(time >= since)
    return query if until is None else query.where(time < until)
