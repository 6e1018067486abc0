"""Reports of what was measured: stored beside a prediction, listed, and withdrawn.

A *flag* is a sentence on what is odd about a run: it lies outside its prediction interval, or comes
after *drift*, a lasting change of how long such runs take.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from models.errors import Invalid, UnknownName
from models.spec import catalogue
from service.errors import BadHeader
from service.learning.drift_flags import DriftFlags, Flags, with_drift
from service.learning.model_families import family_of
from service.learning.report_ingestion import ingest_reports
from service.learning.report_table import COLUMNS, report_brief, table_cells
from service.learning.withdrawals import (
    current_document,
    end_own_version,
    may_withdraw,
    report_etag,
    withdrawal_etag,
    without_drift_digest,
)
from service.nearest_names import unknown_name
from service.resolve.resolution import SHIPPED_NAMES
from service.runtime.idempotency import CreatedResource, SaveRows
from service.schemas.catalog import Kind
from service.schemas.report import ReportForm
from service.schemas.report_list import ReportFilterQuery, ReportQuery
from service.store import Rows, Store, UseCase
from service.store.arrivals import RowValues
from service.store.cursors import cut_page, read_cursor
from service.store.reports import ReportFilter
from service.store.tables import ReportRow
from service.web.tables import csv_line

_ROWS_PER_QUERY = 500
_REPORT_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Reports(UseCase):
    def __init__(self, store: Store, drift_flags: DriftFlags) -> None:
        super().__init__(store)
        self._drift_flags = drift_flags

    def prepare(self, submission: ReportForm, received: str) -> SaveRows:
        """Returns the function that stores a report, or raises the error for which it is refused.
        `received` is the text of the request."""
        (outcome,) = ingest_reports(self._store, [(submission, received)])
        if isinstance(outcome, Exception):
            raise outcome
        return lambda rows: _save(rows, outcome)

    def get(self, id_: str) -> tuple[dict[str, Any], str]:
        """Returns the report with its submission, and its ETag."""
        with self._store.reading() as rows:
            row = rows.reports.get(id_)
            flags = self._drift_flags.flags(rows)
        document = {**_flagged_document(row, flags), "submission": row.submission}
        return document, report_etag(row, flags.get(id_))

    def withdraw(self, id_: str, etags: Sequence[str]) -> tuple[dict[str, Any], str]:
        """Withdraws a report for good, if its ETag is among `etags`. Returns it with its new ETag.
        A report that is withdrawn already stays unchanged, whatever `etags` are."""
        with self._store.writing() as rows:
            row = rows.reports.get_for_update(id_)
            # A flag of drift may come and go while the client decides, so its digest in the ETag is
            # not compared.
            if may_withdraw(row, [*map(without_drift_digest, etags)]):
                rows.reports.withdraw(row, datetime.now(UTC))
                rows.audit.add("report.withdrawn", id_, of_tenant=row.tenant)
                end_own_version(rows, row)
        return current_document(row), withdrawal_etag(row)

    def page(self, query: ReportQuery) -> dict[str, Any]:
        """Returns a page of reports, newest first, and the cursor of the next page."""
        before = read_cursor("reports", query.cursor)
        with self._store.reading() as rows:
            flags = self._drift_flags.flags(rows)
            selection = _list_filter(rows, query, flags)
            # One more than the page has shows whether the list goes on.
            reports = rows.reports.newest(selection, query.limit + 1, before)
        page, following = cut_page("reports", reports, query.limit, lambda row: row.id)
        documents = [(row, _flagged_document(row, flags)) for row in page]
        if query.view == "brief":
            items = [report_brief(row, document) for row, document in documents]
        else:
            items = [document for _, document in documents]
        return {"items": items, "next": following}

    def event_place(self, last_event_id: str | None) -> str:
        """Returns the id of the report after which a stream of reports goes on: the last event that
        the listener got, or else the newest report. Raises BadHeader for a malformed id."""
        if last_event_id is None:
            with self._store.reading() as rows:
                return rows.reports.last_id()
        if not _REPORT_ID.fullmatch(last_event_id):
            raise BadHeader("Last-Event-ID", "must be the id of an event of this stream")
        return last_event_id

    def csv_lines(self, query: ReportQuery) -> Iterator[str]:
        """Returns the lines of a CSV table (RFC 4180) of all reports that the query selects, newest
        first. An unknown name raises at once, before the first line is asked for."""
        with self._store.reading() as rows:
            flags = self._drift_flags.flags(rows)
            selection = _list_filter(rows, query, flags)
        return self._csv_lines(selection, flags)

    def _csv_lines(self, selection: ReportFilter, flags: Flags) -> Iterator[str]:
        """Yields the header and the lines, read from the database _ROWS_PER_QUERY at a time."""
        yield csv_line(COLUMNS)
        before: str | None = None
        while True:
            with self._store.reading() as rows:
                reports = rows.reports.newest(selection, _ROWS_PER_QUERY, before)
            for row in reports:
                yield csv_line(table_cells(row, _flagged_document(row, flags)))
            if len(reports) < _ROWS_PER_QUERY:
                return
            before = reports[-1].id


def _flagged_document(row: ReportRow, flags: Flags) -> dict[str, Any]:
    """Returns the report as it is now, with the flag of drift added to its own."""
    document = current_document(row)
    return {**document, "flag": with_drift(document.get("flag"), flags.get(row.id))}


def _list_filter(rows: Rows, query: ReportQuery, flags: Flags) -> ReportFilter:
    """Returns the filter for a list of reports, which may include withdrawn ones."""
    selection = report_filter(rows, query, flags)
    return replace(selection, include_withdrawn=query.include_withdrawn)


def report_filter(rows: Rows, query: ReportFilterQuery, flags: Flags) -> ReportFilter:
    """Returns the filter for the reports that a query asks for. `flags` are the flags of drift: a
    report that has one counts as flagged."""
    return ReportFilter(
        chip=[_stored_name(rows, "chip", name) for name in query.chip],
        stack=[_stored_name(rows, "stack", name) for name in query.stack],
        architecture=_architectures(rows, query),
        outcome=query.outcome,
        source=query.source,
        num_chips=query.num_chips,
        flagged=query.flagged,
        drifted=flags.keys(),
        within_interval=query.within_interval,
        profile_version=query.profile_version,
        received_since=query.created_since,
        since=query.since,
        until=query.until,
        labels=tuple(map(_name_and_value, query.label)),
    )


def _architectures(rows: Rows, query: ReportFilterQuery) -> list[str] | None:
    """Returns the architectures that a query asks for by name, by family, or by both together; None
    where it takes all."""
    if not query.architecture and not query.family:
        return None
    named = [_stored_name(rows, "architecture", name) for name in query.architecture]
    if not query.family:
        return named
    stored = rows.reports.names("architecture")
    of_families = [name for name in stored if family_of(name) in query.family]
    return [name for name in of_families if not named or name in named]


def _name_and_value(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


_Column = Literal["chip", "stack", "architecture"]
_CATALOGUES: dict[_Column, tuple[Kind, Callable[[str], str]]] = {
    "chip": ("chips", lambda name: catalogue.chip(name).id),
    "stack": ("stacks", lambda name: catalogue.stack(name).id),
    "architecture": ("architectures", lambda name: catalogue.architecture(name).name),
}
"""For each column, the kind of catalogue entry that it names, and how to find a shipped one."""


def _stored_name(rows: Rows, column: _Column, name: str) -> str:
    """Returns the name under which reports store an entry that has this name or alias: its id where
    it ships with the service, else its name in the catalogue or in earlier reports.

    Raises Invalid for a name with a version, and UnknownName for one that nothing has.
    """
    kind, find_shipped = _CATALOGUES[column]
    try:
        return find_shipped(name)
    except UnknownName:
        # Earlier reports may name an entry that the catalogue has no longer.
        not_shipped = {*rows.registered_entries.names(kind), *rows.reports.names(column)}
    for spelling in (name, catalogue.normalized_name(name)):
        if spelling in not_shipped:
            return spelling
    without_version = name.partition("@")[0]
    if {without_version, catalogue.normalized_name(without_version)} & not_shipped:
        rule = "takes a name without its version: reports are listed for all versions together"
        raise Invalid(column, name, rule)
    raise unknown_name(column, name, [*SHIPPED_NAMES[kind](), *not_shipped])


def _save(rows: Rows, report: RowValues) -> CreatedResource:
    """Stores the report. Its document gets the id of the first report that came in the same words;
    both count, because two runs may well have measured the same."""
    same_as = rows.reports.first_in_same_words(report)
    report = {**report, "document": {**report["document"], "same_as": same_as}}
    (stored,) = rows.reports.add([report])
    return CreatedResource(report_location(stored["id"]), stored["document"])


def report_location(id_: str) -> str:
    return f"/v1/reports/{id_}"
