"""Reports of what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Select, func, insert, literal_column, select
from sqlalchemy.orm import Session, undefer

from service.errors import NotFound
from service.store.arrivals import Arrivals, Columns
from service.store.tables import TENANT, ReportRow

_MEASURED = ReportRow.step_time_s.is_not(None)
_TELLING = _MEASURED | (ReportRow.outcome == "out_of_memory")
_ENDED = (ReportRow.outcome == "ok") | (_MEASURED & (ReportRow.outcome != "out_of_memory"))
_TOGETHER = 10_000  # identifiers in one query: databases bind no more than 32,766 to 65,535
_AT_A_TIME = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFilter:
    """`since`, inclusive, and `until`, exclusive, are of measurement, `received_since` is of when a
    report came; `measured`: only those with a step time; `ended`: only those that ran well, or some
    steps before they failed for another reason than memory. Those that were withdrawn are left out
    unless they are asked for."""

    chip: str | None = None
    stack: str | None = None
    architecture: str | None = None
    outcome: str | None = None
    profile_id: str | None = None
    profile_version: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    received_since: datetime | None = None
    after_id: str | None = None
    measured: bool = False
    ended: bool = False
    include_withdrawn: bool = False

    def narrow(self, query: Select[Any]) -> Select[Any]:
        for name in ("chip", "stack", "architecture", "outcome", "profile_id", "profile_version"):
            if (wanted := getattr(self, name)) is not None:
                query = query.where(getattr(ReportRow, name) == wanted)
        if self.since is not None:
            query = query.where(ReportRow.measured_at >= self.since)
        if self.until is not None:
            query = query.where(ReportRow.measured_at < self.until)
        if self.received_since is not None:
            query = query.where(ReportRow.created_at >= self.received_since)
        if self.after_id is not None:
            query = query.where(ReportRow.id > self.after_id)
        if not self.include_withdrawn:
            query = query.where(ReportRow.withdrawn_at.is_(None))
        if self.ended:
            query = query.where(_ENDED)
        return query.where(_MEASURED) if self.measured else query


@dataclass(frozen=True, slots=True)
class Told:
    """What a report says in short."""

    outcome: str
    chip: str
    stack: str
    architecture: str
    profile_id: str
    profile_version: int
    measured_at: datetime
    source: str | None
    tenant: str | None
    residual: float | None
    within_interval: bool | None


@dataclass(frozen=True, slots=True)
class Last:
    """The last report of a run, and its first, which stays the same."""

    id: str
    measured_at: datetime
    first_id: str


class Reports:
    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, reports: Iterable[Columns]) -> list[Columns]:
        """As they are stored."""
        stored = Arrivals(self._session).stamped(reports)
        self._session.execute(insert(ReportRow), stored)
        return stored

    def count(self, wanted: ReportFilter) -> int:
        return self._session.scalars(wanted.narrow(select(func.count(ReportRow.id)))).one()

    def get(self, id_: str) -> ReportRow:
        """With its submission."""
        return self._found(id_, options=[undefer(ReportRow.submission)])

    def held(self, id_: str) -> ReportRow:
        """Nobody else changes it before this transaction ends."""
        return self._found(id_, with_for_update=True)

    def of_log(self, log_hash: str) -> ReportRow | None:
        """The first of whoever writes here that still counts."""
        mine = ReportRow.tenant.is_not_distinct_from(self._session.info.get(TENANT))
        query = select(ReportRow).where(
            ReportRow.log_hash == log_hash, ReportRow.withdrawn_at.is_(None), mine
        )
        return self._session.scalars(query.order_by(ReportRow.id).limit(1)).first()

    def _found(self, id_: str, **how: Any) -> ReportRow:
        row = self._session.get(ReportRow, id_, **how)
        if row is None:
            raise NotFound("report", id_)
        return row

    def among(self, ids: Sequence[str]) -> set[str]:
        """Those of some ids that there are."""
        parts = (ids[start : start + _TOGETHER] for start in range(0, len(ids), _TOGETHER))
        return {
            id_
            for part in parts
            for id_ in self._session.scalars(select(ReportRow.id).where(ReportRow.id.in_(part)))
        }

    def newest(
        self, wanted: ReportFilter, limit: int, before: str | None = None
    ) -> Sequence[ReportRow]:
        """Newest first, from the one after `before` on; ids sort by time."""
        query = wanted.narrow(select(ReportRow))
        if before is not None:
            query = query.where(ReportRow.id < before)
        return self._session.scalars(query.order_by(ReportRow.id.desc()).limit(limit)).all()

    def last_of_each_run(self, wanted: ReportFilter, limit: int) -> list[Last]:
        """Of all reports of the same run the one that was measured last, the latest of them
        first."""
        latest, run = (ReportRow.measured_at.desc(), ReportRow.id.desc()), ReportRow.run_hash
        place = func.row_number().over(partition_by=run, order_by=latest).label("place")
        first = func.min(ReportRow.id).over(partition_by=run).label("first_id")
        ran = wanted.narrow(select(ReportRow.id, ReportRow.measured_at, first, place)).subquery()
        query = select(ran.c.id, ran.c.measured_at, ran.c.first_id).where(ran.c.place == 1)
        query = query.order_by(ran.c.measured_at.desc(), ran.c.id.desc()).limit(limit)
        return [Last(*row) for row in self._session.execute(query)]

    def named(self, ids: Sequence[str]) -> Sequence[ReportRow]:
        """Those of a few ids that there are."""
        return (
            self._session.scalars(select(ReportRow).where(ReportRow.id.in_(ids))).all()
            if ids
            else []
        )

    def told(self, wanted: ReportFilter) -> Iterator[Told]:
        """Read as they are asked for, some at a time."""
        query = wanted.narrow(select(*(getattr(ReportRow, f.name) for f in fields(Told))))
        for row in self._session.execute(query, execution_options={"yield_per": _AT_A_TIME}):
            yield Told(*row)

    def last_of_each_source(
        self, wanted: ReportFilter, each: int, sources: int
    ) -> Sequence[ReportRow]:
        """The newest of every tenant or source (a tenant's are one), of so many that reported
        last."""
        source = func.coalesce(ReportRow.tenant, ReportRow.source, literal_column("''"))
        grouped: Any = select(source, func.max(ReportRow.id)).group_by(source)
        latest = wanted.narrow(grouped).order_by(func.max(ReportRow.id).desc()).limit(sources)
        names = [name for name, _ in self._session.execute(latest)]
        query = wanted.narrow(select(ReportRow))
        return [
            row
            for name in names
            for row in self._session.scalars(
                query.where(source == name).order_by(ReportRow.id.desc()).limit(each)
            )
        ]

    def names(self, column: Literal["chip", "stack", "architecture"]) -> Sequence[str]:
        """What reports have been about."""
        return self._session.scalars(select(getattr(ReportRow, column)).distinct()).all()

    def telling(self, wanted: ReportFilter) -> Sequence[ReportRow]:
        """Those that say something of time or memory, oldest first: a crash before the first step
        says nothing of either."""
        query = wanted.narrow(select(ReportRow).where(_TELLING))
        return self._session.scalars(query.order_by(ReportRow.id)).all()

    def count_telling(self, wanted: ReportFilter) -> int:
        return self._session.scalars(
            wanted.narrow(select(func.count(ReportRow.id)).where(_TELLING))
        ).one()
