"""Queries of micro-benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Select, insert, select
from sqlalchemy.orm import Session, undefer

from service.errors import NotFound
from service.store.arrivals import Arrivals, RowValues
from service.store.tables import BenchmarkRow


class BenchmarkQueries:
    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, benchmark: RowValues) -> RowValues:
        """Stores a benchmark, and returns its columns with the id and time that it got."""
        (stored,) = Arrivals(self._session).stamped([benchmark])
        self._session.execute(insert(BenchmarkRow), stored)
        return stored

    def get(self, id_: str) -> BenchmarkRow:
        """Returns the benchmark with its submission loaded."""
        row = self._session.get(BenchmarkRow, id_, options=[undefer(BenchmarkRow.submission)])
        if row is None:
            raise NotFound("benchmark", id_)
        return row

    def get_for_update(self, id_: str) -> BenchmarkRow:
        """Returns the benchmark, locked: nobody else changes it before this transaction ends."""
        row = self._session.get(BenchmarkRow, id_, with_for_update=True)
        if row is None:
            raise NotFound("benchmark", id_)
        return row

    def any_withdrawn(self, ids: Sequence[str]) -> bool:
        """Returns whether a benchmark with one of these ids is withdrawn. The ids must fit one
        query."""
        withdrawn = select(BenchmarkRow.id).where(
            BenchmarkRow.id.in_(ids), BenchmarkRow.withdrawn_at.is_not(None)
        )
        return self._session.scalars(withdrawn.limit(1)).first() is not None

    def newest(
        self,
        limit: int,
        before: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        include_withdrawn: bool = False,
    ) -> Sequence[BenchmarkRow]:
        """Returns the newest benchmarks, newest first: those with ids before `before`, made from
        `since` (inclusive) until `until` (exclusive)."""
        query = _made_between(since, until, include_withdrawn=include_withdrawn)
        if before is not None:
            query = query.where(BenchmarkRow.id < before)
        return self._session.scalars(query.order_by(BenchmarkRow.id.desc()).limit(limit)).all()

    def last_ids(self, tenant: str, limit: int) -> list[str]:
        """Returns the ids of the newest benchmarks of a tenant, newest first."""
        query = select(BenchmarkRow.id).where(
            BenchmarkRow.tenant == tenant, BenchmarkRow.withdrawn_at.is_(None)
        )
        return [*self._session.scalars(query.order_by(BenchmarkRow.id.desc()).limit(limit))]

    def created_between(
        self, since: datetime | None, until: datetime | None, after_id: str | None
    ) -> Sequence[BenchmarkRow]:
        """Returns the benchmarks made from `since` (inclusive) until `until` (exclusive), with ids
        after `after_id`; oldest first."""
        query = _made_between(since, until)
        if after_id is not None:
            query = query.where(BenchmarkRow.id > after_id)
        return self._session.scalars(query.order_by(BenchmarkRow.id)).all()


def _made_between(
    since: datetime | None, until: datetime | None, *, include_withdrawn: bool = False
) -> Select[BenchmarkRow]:
    """Returns the query of benchmarks made from `since` (inclusive) until `until` (exclusive)."""
    query = select(BenchmarkRow)
    if not include_withdrawn:
        query = query.where(BenchmarkRow.withdrawn_at.is_(None))
    if since is not None:
        query = query.where(BenchmarkRow.created_at >= since)
    if until is not None:
        query = query.where(BenchmarkRow.created_at < until)
    return query
