"""Take in what was measured, beside what is predicted of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from models.errors import Invalid, UnknownName
from models.spec import catalogue
from service.errors import PreconditionFailed
from service.learning.report_ingestion import taken
from service.learning.report_table import COLUMNS, cells, csv_line
from service.resolve.resolution import SHIPPED_NAMES, normalized_name
from service.runtime.idempotency import CreatedResource, SaveRows
from service.schemas.catalog import Kind
from service.schemas.report import ReportFilterQuery, ReportQuery, ReportSubmission
from service.store import Rows, Store
from service.store.arrivals import RowValues
from service.store.cursors import read_cursor, write_cursor
from service.store.reports import ReportFilter
from service.store.tables import ReportRow

_PAGE = 500


class Reports:
    def __init__(self, store: Store) -> None:
        self._store = store

    def take(self, submission: ReportSubmission, received: str) -> SaveRows:
        (outcome,) = taken(self._store, [(submission, received)])
        if isinstance(outcome, Exception):
            raise outcome
        return lambda rows: _save(rows, outcome)

    def get(self, id_: str) -> tuple[dict[str, Any], str]:
        """The report and its ETag."""
        with self._store.reading() as rows:
            row = rows.reports.get(id_)
            return {**document_of(row), "submission": row.submission}, etag(row)

    def withdraw(self, id_: str, seen: Sequence[str]) -> tuple[dict[str, Any], str]:
        """For good. Whoever withdraws it again wants what is so already, whatever state was
        `seen`."""
        with self._store.writing() as rows:
            row = rows.reports.get_for_update(id_)
            if row.withdrawn_at is None:
                if not {"*", etag(row)} & {*seen}:
                    raise PreconditionFailed(etag(row))
                row.withdrawn_at = datetime.now(UTC)
        return document_of(row), etag(row)

    def page(self, query: ReportQuery) -> dict[str, Any]:
        before = None if query.cursor is None else read_cursor("reports", query.cursor)
        with self._store.reading() as rows:
            found = rows.reports.newest(_listed(rows, query), query.limit + 1, before)
        page = found[: query.limit]
        following = write_cursor("reports", page[-1].id) if len(found) > query.limit else None
        return {"items": [document_of(row) for row in page], "next": following}

    def lines(self, query: ReportQuery) -> Iterator[str]:
        """CSV (RFC 4180) of every report, newest first."""
        with self._store.reading() as rows:
            wanted = _listed(rows, query)
        return self._lines(wanted)

    def _lines(self, wanted: ReportFilter) -> Iterator[str]:
        yield csv_line(COLUMNS)
        before: str | None = None
        while True:
            with self._store.reading() as rows:
                found = rows.reports.newest(wanted, _PAGE, before)
            for row in found:
                yield csv_line(cells(row))
            if len(found) < _PAGE:
                return
            before = found[-1].id


def etag(row: ReportRow) -> str:
    """A report changes once at most."""
    return f'"reports/{row.id}{"-withdrawn" if row.withdrawn_at else ""}"'


def document_of(row: ReportRow) -> dict[str, Any]:
    """As it is now."""
    at = row.withdrawn_at
    return {**row.document, "withdrawn_at": at and at.isoformat().replace("+00:00", "Z")}


def _listed(rows: Rows, query: ReportQuery) -> ReportFilter:
    return replace(wanted_of(rows, query), include_withdrawn=query.include_withdrawn)


def wanted_of(rows: Rows, query: ReportFilterQuery) -> ReportFilter:
    return ReportFilter(
        chip=_canonical(rows, "chip", query.chip),
        stack=_canonical(rows, "stack", query.stack),
        architecture=_canonical(rows, "architecture", query.architecture),
        outcome=query.outcome,
        profile_version=query.profile_version,
        since=query.since,
        until=query.until,
    )


_Column = Literal["chip", "stack", "architecture"]
_FIND: dict[_Column, tuple[Kind, Callable[[str], str]]] = {
    "chip": ("chips", lambda name: catalogue.chip(name).id),
    "stack": ("stacks", lambda name: catalogue.stack(name).id),
    "architecture": ("architectures", lambda name: catalogue.architecture(name).name),
}


def _canonical(rows: Rows, column: _Column, name: str | None) -> str | None:
    """What reports call a thing that goes by this name or alias; unregistered ones go by what
    reports said."""
    if name is None:
        return None
    kind, find = _FIND[column]
    try:
        return find(name)
    except UnknownName:
        own = {*rows.catalog.names(kind), *rows.reports.names(column)}
    for known in (name, normalized_name(name)):
        if known in own:
            return known
    if {bare := name.partition("@")[0], normalized_name(bare)} & own:
        raise Invalid(
            column,
            name,
            "takes a name without its version: reports are listed for all versions together",
        )
    raise UnknownName(column, name, [*SHIPPED_NAMES[kind](), *own])


def _save(rows: Rows, report: RowValues) -> CreatedResource:
    (stored,) = rows.reports.add([report])
    return CreatedResource(location(stored["id"]), stored["document"])


def location(id_: str) -> str:
    return f"/v1/reports/{id_}"
