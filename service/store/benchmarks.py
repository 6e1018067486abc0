"""Queries of micro-benchmarks: collectives and matrix products that were timed on their own. A
*withdrawn* one is kept but counts nowhere. Its *submission* is the text as it was received."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Select, insert, select
from sqlalchemy.orm import undefer

from service.store.arrivals import Arrivals, RowValues
from service.store.queries import Queries, newest_first, within_span
from service.store.tables import BenchmarkRow


class BenchmarkQueries(Queries):
    def add(self, benchmark: RowValues) -> RowValues:
        """Stores a benchmark, and returns its columns with the id and time that it got."""
        (stored,) = Arrivals(self._session).stamped([benchmark])
        self._session.execute(insert(BenchmarkRow), stored)
        return stored

    def get(self, id_: str) -> BenchmarkRow:
        """Returns the benchmark with its submission loaded."""
        with_submission = [undefer(BenchmarkRow.submission)]
        return self._row(BenchmarkRow, id_, "benchmark", options=with_submission)

    def get_for_update(self, id_: str) -> BenchmarkRow:
        """Returns the benchmark, locked: nobody else changes it before this transaction ends."""
        return self._row(BenchmarkRow, id_, "benchmark", with_for_update=True)

    def any_withdrawn(self, ids: Sequence[str]) -> bool:
        return self._any_withdrawn(BenchmarkRow, ids)

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
        return self._session.scalars(newest_first(query, BenchmarkRow.id, limit, before)).all()

    def last_ids(self, tenant: str, limit: int) -> list[str]:
        """Returns the ids of a tenant's newest benchmarks that are not withdrawn, newest first."""
        query = select(BenchmarkRow.id).where(
            BenchmarkRow.tenant == tenant, BenchmarkRow.withdrawn_at.is_(None)
        )
        return [*self._session.scalars(newest_first(query, BenchmarkRow.id, limit))]

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
    query = within_span(select(BenchmarkRow), BenchmarkRow.created_at, since, until)
    return query if include_withdrawn else query.where(BenchmarkRow.withdrawn_at.is_(None))
