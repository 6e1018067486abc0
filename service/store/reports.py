"""Queries of the reports of what was measured.

A *measured* report has a step time; an *informative* one has a step time or ran out of memory.
Reports of one *run* have an equal question and layout, and so an equal `run_hash`. A tenant's *own*
version is one of its own profile (service.own_profile).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Select,
    String,
    bindparam,
    func,
    insert,
    literal_column,
    or_,
    select,
)
from sqlalchemy.orm import undefer

from service.identifiers import digest
from service.metrics import count_report
from service.own_profile import OWN, OWN_PREFIX, is_own
from service.store.arrivals import Arrivals, RowValues
from service.store.prepared import execute, first_row
from service.store.queries import Queries, newest_first, within_span
from service.store.quota import count_stored
from service.store.tables import SEEN, ReportLabelRow, ReportRow, Table

_MEASURED = ReportRow.step_time_s.is_not(None)
_INFORMATIVE = _MEASURED | (ReportRow.outcome == "out_of_memory")
_DID_FIT = (ReportRow.outcome == "ok") | (_MEASURED & (ReportRow.outcome != "out_of_memory"))
_EXACT = "profile_version", "tenant", "within_interval"
"""The fields of a filter that are columns, which are to have its value."""
_ANY_OF: dict[str, Any] = {
    "chip": ReportRow.chip,
    "stack": ReportRow.stack,
    "outcome": ReportRow.outcome,
    "source": ReportRow.source,
    "num_chips": ReportRow.document["request"]["cluster"]["num_chips"].as_integer(),
}
"""The columns, by field of a filter, that are to have any of the values in it."""
_FLAG = ReportRow.document["flag"].as_string()
_SEEN = bindparam("seen", type_=String())
"""The tenant whose reports a query sees; None where it sees all."""
# Narrowed to a tenant by themselves, as prepared statements have to be (service.store.prepared).
_FAILED_ALIKE = (
    select(ReportRow.id)
    .where(
        ReportRow.chip == bindparam("chip"),
        ReportRow.stack == bindparam("stack"),
        ReportRow.architecture == bindparam("architecture"),
        ReportRow.outcome == "out_of_memory",
        ReportRow.withdrawn_at.is_(None),
        or_(_SEEN.is_(None), ReportRow.tenant == _SEEN),
    )
    .limit(1)
)
_IN_SAME_WORDS = (
    select(ReportRow.id)
    .where(
        ReportRow.words_hash == bindparam("words_hash"),
        ReportRow.tenant.is_not_distinct_from(bindparam("tenant", type_=String())),
        ReportRow.withdrawn_at.is_(None),
    )
    .order_by(ReportRow.id)
    .limit(1)
)
_INSERT = insert(Table.metadata.tables[ReportRow.__tablename__])
_INSERT_LABELS = insert(Table.metadata.tables[ReportLabelRow.__tablename__])
_IDS_PER_QUERY = 10_000  # databases bind no more than 32,766 to 65,535 parameters
_ROWS_PER_FETCH = 1000  # few round trips, and little memory
_LONG_SUBMISSION = 64 * 2**10
"""Bytes of a submission beyond which it is dropped when its report is withdrawn: only training logs
are so long, and their tenant has no other way to make room. The report's document, which has its
figures and words, stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFilter:
    """The reports that a query is about. Withdrawn reports are left out unless they are asked
    for."""

    chip: Sequence[str] = ()
    """Keeps only reports with one of these; all if there are none. Other lists do likewise."""
    stack: Sequence[str] = ()
    architecture: Sequence[str] | None = None
    """None keeps all. An empty list keeps no report: a family of models may have no member."""
    outcome: Sequence[str] = ()
    source: Sequence[str] = ()
    num_chips: Sequence[int] = ()
    flagged: bool | None = None
    """True keeps only reports with a `flag`, which marks a measurement that does not fit its
    prediction, and those among `drifted`. False keeps only the others."""
    drifted: Collection[str] = ()
    """The ids of reports that are flagged for drift, where `flagged` is asked for."""
    within_interval: bool | None = None
    profile_id: str | None = None
    """Keeps only reports of runs that this profile predicted, or a tenant's own version in its
    place."""
    profile_version: int | None = None
    since: datetime | None = None
    """The earliest time of measurement, inclusive."""
    until: datetime | None = None
    """The latest time of measurement, exclusive."""
    received_since: datetime | None = None
    """The earliest time at which a report came, inclusive."""
    after_id: str | None = None
    from_id: str | None = None
    """The first id, inclusive."""
    tenant: str | None = None
    """Keeps only reports of this tenant."""
    labels: Sequence[tuple[str, str]] = ()
    """Keeps only reports that have all of these labels, each a name and a value."""
    measured: bool = False
    """Keeps only reports with a step time."""
    did_fit: bool = False
    """Keeps only reports of runs that fitted in memory: they ended well, or trained some steps
    before they failed for another reason."""
    include_withdrawn: bool = False

    def narrow(self, query: Select[Any]) -> Select[Any]:
        """Returns the query with a condition for each field of the filter that is set, except
        `drifted`, which only `flagged` uses."""
        for name in _EXACT:
            if (accepted := getattr(self, name)) is not None:
                query = query.where(getattr(ReportRow, name) == accepted)
        for name, column in _ANY_OF.items():
            if values := getattr(self, name):
                query = query.where(column.in_(values))
        if self.architecture is not None:
            query = query.where(ReportRow.architecture.in_(self.architecture))
        if self.flagged is not None:
            is_flagged = _FLAG.is_not(None) | ReportRow.id.in_([*self.drifted])
            query = query.where(is_flagged if self.flagged else ~is_flagged)
        if self.profile_id is not None:
            # A tenant's own version predicts in place of the shared profile, so its runs count too.
            is_own_version = ReportRow.profile_id.startswith(OWN_PREFIX)
            query = query.where(or_(ReportRow.profile_id == self.profile_id, is_own_version))
        query = within_span(query, ReportRow.measured_at, self.since, self.until)
        if self.received_since is not None:
            query = query.where(ReportRow.created_at >= self.received_since)
        if self.after_id is not None:
            query = query.where(ReportRow.id > self.after_id)
        if self.from_id is not None:
            query = query.where(ReportRow.id >= self.from_id)
        if not self.include_withdrawn:
            query = query.where(ReportRow.withdrawn_at.is_(None))
        for name, value in self.labels:
            query = query.where(ReportRow.id.in_(_labelled(name, value)))
        if self.did_fit:
            query = query.where(_DID_FIT)
        return query.where(_MEASURED) if self.measured else query


@dataclass(frozen=True, slots=True)
class SummarizedReport:
    """The columns of a report that summaries need, without its document."""

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
class MeasuredReport:
    """The columns of a report that tell which series of comparable runs its step time belongs to.
    Changes within a series are drift (service.learning.drift)."""

    id: str
    measured_at: datetime
    tenant: str | None
    source: str | None
    chip: str
    fabric: str
    stack: str
    architecture: str
    run_hash: str


@dataclass(frozen=True, slots=True)
class LastReport:
    """The last report of a run. `first_id` is the id of the run's first report, which stays the
    same when another comes."""

    id: str
    measured_at: datetime
    first_id: str


class ReportQueries(Queries):
    def add(self, reports: Iterable[RowValues]) -> list[RowValues]:
        """Stores reports with their labels and counts them in the metrics. Returns their columns
        with the ids and times that they got."""
        stored = Arrivals(self._session).stamped(reports)
        labels = [label for report in stored for label in _pop_label_rows(report)]
        for report in stored:
            report["words_hash"] = _words_hash(report)
        execute(self._session, _INSERT, stored)
        if labels:
            execute(self._session, _INSERT_LABELS, labels)
        for report in stored:
            # No metric may tell of single tenants, so all of their own profiles count as one.
            profile = OWN if is_own(report["profile_id"]) else report["profile_id"]
            count_report(report["outcome"], profile, report["residual"])
        return stored

    def count(self, filter_: ReportFilter) -> int:
        return self._session.scalars(filter_.narrow(select(func.count(ReportRow.id)))).one()

    def get(self, id_: str) -> ReportRow:
        """Returns the report with its submission loaded."""
        return self._row(ReportRow, id_, "report", options=[undefer(ReportRow.submission)])

    def get_for_update(self, id_: str) -> ReportRow:
        """Returns the report, locked: nobody else changes it before this transaction ends."""
        return self._row(ReportRow, id_, "report", with_for_update=True)

    def withdraw(self, report: ReportRow, at: datetime) -> None:
        """Marks a report as withdrawn. A long submission, such as a training log, is dropped, which
        gives its bytes back to the tenant's quota: nothing else of a report can be deleted."""
        report.withdrawn_at = at
        size = len(report.submission.encode())
        if size > _LONG_SUBMISSION:
            # Reports of an earlier release were counted with 0 bytes.
            freed = min(size, report.stored_bytes)
            report.submission = ""
            report.stored_bytes -= freed
            count_stored(self._session, report.tenant, -freed)

    def first_of_log(self, log_hash: str) -> ReportRow | None:
        """Returns the tenant's first report, not withdrawn, of the training log with this hash: a
        log that is sent again makes no second report. None where there is none."""
        query = select(ReportRow).where(ReportRow.log_hash == log_hash, *self._are_own_and_valid())
        return self._session.scalars(query.order_by(ReportRow.id).limit(1)).first()

    def first_in_same_words(self, report: RowValues) -> str | None:
        """Returns the id of the tenant's first report, not withdrawn, with equal outcome, run and
        submission, which a new report names as `same_as`. None where there is none."""
        values = {"words_hash": _words_hash(report), "tenant": self._tenant}
        row = first_row(self._session, _IN_SAME_WORDS, values)
        return None if row is None else row.id

    def _are_own_and_valid(self) -> list[ColumnElement[bool]]:
        """Returns the conditions for reports of the session's tenant that are not withdrawn."""
        mine = ReportRow.tenant.is_not_distinct_from(self._tenant)
        return [ReportRow.withdrawn_at.is_(None), mine]

    def existing_ids(self, ids: Sequence[str]) -> set[str]:
        """Returns the ids among these that belong to reports which the session sees. A tenant is
        shown a calibration without the ids of others' reports."""
        existing: set[str] = set()
        for start in range(0, len(ids), _IDS_PER_QUERY):
            is_asked_for = ReportRow.id.in_(ids[start : start + _IDS_PER_QUERY])
            existing.update(self._session.scalars(select(ReportRow.id).where(is_asked_for)))
        return existing

    def newest(
        self, filter_: ReportFilter, limit: int, before: str | None = None
    ) -> Sequence[ReportRow]:
        """Returns the newest reports, newest first, starting after the id `before`. Ids sort by the
        time of arrival."""
        query = newest_first(filter_.narrow(select(ReportRow)), ReportRow.id, limit, before)
        return self._session.scalars(query).all()

    def newest_ids(self, filter_: ReportFilter, limit: int) -> Sequence[str]:
        """Returns the ids of the newest reports, newest first."""
        query = newest_first(filter_.narrow(select(ReportRow.id)), ReportRow.id, limit)
        return self._session.scalars(query).all()

    def newest_measured(self, filter_: ReportFilter, limit: int) -> list[MeasuredReport]:
        """Returns the newest reports with a step time, newest first, without their documents."""
        columns = [getattr(ReportRow, field.name) for field in fields(MeasuredReport)]
        query = replace(filter_, measured=True).narrow(select(*columns))
        rows = self._session.execute(newest_first(query, ReportRow.id, limit))
        return [MeasuredReport(*row) for row in rows]

    def oldest(self, filter_: ReportFilter, limit: int) -> Sequence[ReportRow]:
        query = filter_.narrow(select(ReportRow))
        return self._session.scalars(query.order_by(ReportRow.id).limit(limit)).all()

    def last_id(self) -> str:
        """Returns the id of the newest report; empty where there is none."""
        return self._session.scalars(select(func.max(ReportRow.id))).one() or ""

    def last_of_each_run(self, filter_: ReportFilter, limit: int) -> list[LastReport]:
        """Returns, for each run, the report that was measured last; the latest of these first.
        Reports of equal question and layout are of one run, which the id of its first report names
        for callers that keep results by run."""
        run = ReportRow.run_hash
        latest = ReportRow.measured_at.desc(), ReportRow.id.desc()
        # 1 is the place of the report that was measured last.
        place = func.row_number().over(partition_by=run, order_by=latest).label("place")
        first = func.min(ReportRow.id).over(partition_by=run).label("first_id")
        columns = ReportRow.id, ReportRow.measured_at, first, place
        report = filter_.narrow(select(*columns)).subquery().c
        query = select(report.id, report.measured_at, report.first_id).where(report.place == 1)
        query = query.order_by(report.measured_at.desc(), report.id.desc()).limit(limit)
        return [LastReport(*row) for row in self._session.execute(query)]

    def any_out_of_memory(self, chip: str, stack: str, architecture: str) -> bool:
        """Returns whether a run of this model, chip and stack was reported out of memory, among
        reports that the session sees. Where none was, callers spare the longer queries for them."""
        names = {"chip": chip, "stack": stack, "architecture": architecture}
        # A prepared statement is not narrowed to the tenant by the session, so it gets the tenant.
        values = {**names, "seen": self._session.info.get(SEEN)}
        return first_row(self._session, _FAILED_ALIKE, values) is not None

    def by_ids(self, ids: Sequence[str]) -> Sequence[ReportRow]:
        """Returns the reports with these ids, at most _IDS_PER_QUERY, the limit of one
        query, in any order. Unknown ids are ignored."""
        if not ids:
            return []
        return self._session.scalars(select(ReportRow).where(ReportRow.id.in_(ids))).all()

    def for_summaries(self, filter_: ReportFilter) -> Iterator[SummarizedReport]:
        """Yields all reports that the filter selects, without their documents. They are fetched as
        the iterator advances, which needs little memory for very many."""
        columns = [getattr(ReportRow, field.name) for field in fields(SummarizedReport)]
        query = filter_.narrow(select(*columns))
        for row in self._session.execute(query, execution_options={"yield_per": _ROWS_PER_FETCH}):
            yield SummarizedReport(*row)

    def last_of_each_source(
        self, filter_: ReportFilter, per_source: int, max_sources: int
    ) -> Sequence[ReportRow]:
        """Returns the newest `per_source` reports of each of the `max_sources` sources that
        reported last, so that no source outweighs others when profiles are compared on them. All
        reports of a tenant are one source."""
        # Reports that name neither are one source, ''.
        source = func.coalesce(ReportRow.tenant, ReportRow.source, literal_column("''"))
        # The sources whose newest ids are the latest; ids sort by time.
        grouped: Any = select(source, func.max(ReportRow.id)).group_by(source)
        latest = filter_.narrow(grouped).order_by(func.max(ReportRow.id).desc()).limit(max_sources)
        names = [name for name, _ in self._session.execute(latest)]
        query = filter_.narrow(select(ReportRow))
        return [
            row
            for name in names
            for row in self._session.scalars(
                newest_first(query.where(source == name), ReportRow.id, per_source)
            )
        ]

    def names(self, column: Literal["chip", "stack", "architecture"]) -> Sequence[str]:
        """Returns the distinct names in this column."""
        return self._session.scalars(select(getattr(ReportRow, column)).distinct()).all()

    def informative(self, filter_: ReportFilter) -> Sequence[ReportRow]:
        """Returns the reports that tell of time or memory, oldest first: with a step time, or out
        of memory. A crash before the first step tells of neither."""
        query = filter_.narrow(select(ReportRow).where(_INFORMATIVE))
        return self._session.scalars(query.order_by(ReportRow.id)).all()

    def last_informative_ids(self, filter_: ReportFilter, limit: int) -> list[str]:
        """Returns the ids of the newest reports that tell of time or memory, newest first."""
        query = filter_.narrow(select(ReportRow.id).where(_INFORMATIVE))
        return [*self._session.scalars(newest_first(query, ReportRow.id, limit))]

    def any_withdrawn(self, ids: Sequence[str]) -> bool:
        return self._any_withdrawn(ReportRow, ids)

    def count_informative(self, filter_: ReportFilter) -> int:
        """Returns the number of reports that tell of time or memory (`informative`). A shared
        profile is calibrated automatically after every so many."""
        return self._session.scalars(
            filter_.narrow(select(func.count(ReportRow.id)).where(_INFORMATIVE))
        ).one()


def _labelled(name: str, value: str) -> Select[Any]:
    """Returns the query of the ids of reports that have a label with this value."""
    label = ReportLabelRow
    return select(label.report_id).where(label.name == name, label.value == value)


def _pop_label_rows(report: RowValues) -> list[RowValues]:
    """Removes the labels from a report's columns, and returns them as rows of their own table."""
    labels = report.pop("labels", {})
    return [
        {"report_id": report["id"], "name": name, "value": value} for name, value in labels.items()
    ]


def _words_hash(report: RowValues) -> str:
    """Returns the hash by which reports in the same words are found."""
    return digest(*(report[name] for name in ("outcome", "run_hash", "submission")))
