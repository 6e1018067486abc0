"""Answers as tables of comma-separated values (RFC 4180)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from models.errors import Invalid
from service.web.accept import preferred_media_type
from service.web.etags import content_response

CSV = "text/csv"
_MOST_TAGGED = 4 * 2**20
"""Characters of a table that are held to make its ETag, some 20,000 lines. A longer one is sent
line by line, without an ETag."""


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of a table: for each name the path of its value in an item, such as
    "time.compute_s"."""

    name: str
    columns: Mapping[str, str]

    def row(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the item's value in each column; null where it has none."""
        return {name: _value_at(item, path) for name, path in self.columns.items()}

    def lines(self, items: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Yields the table as CSV, line by line: the names of the columns, then a line for every
        item."""
        yield csv_line(self.columns)
        for item in items:
            yield csv_line(self.row(item).values())


class TableQuery(Protocol):
    """A query that may ask for a table."""

    @property
    def format(self) -> str | None: ...

    @property
    def model_fields_set(self) -> set[str]: ...


def asks_for_table(request: Request, query: TableQuery) -> bool:
    """Returns whether `format`, or else the Accept header, asks for a table. Raises Invalid where
    the query also asks for a part of it, because a table is whole."""
    if query.format is None:
        offered = ("application/json", CSV)
        if preferred_media_type(request.headers.get("accept"), offered) != CSV:
            return False
    elif query.format != "csv":
        return False
    if parts := {"limit", "cursor", "fields", "view"} & query.model_fields_set:
        rule = "does not go with a table (format = csv), which is whole"
        raise Invalid(min(parts), None, rule)  # the first in the alphabet stands for all
    return True


def table_response(request: Request, lines: Iterator[str], name: str) -> Response:
    """Returns the table as a file `name`.csv. A short table has its digest as ETag. A long one is
    streamed while it is made, before a digest is known, and has none."""
    first_lines = list[str]()
    size = 0
    disposition = f"attachment; filename={name}.csv"
    for line in lines:
        first_lines.append(line)
        size += len(line)
        if size > _MOST_TAGGED:  # too much to hold: the rest is streamed as it is made
            headers = {"Content-Disposition": disposition, "Vary": "Accept"}
            content = chain(first_lines, lines)
            return StreamingResponse(content, media_type=CSV, headers=headers)
    answer = content_response(request, "".join(first_lines).encode(), CSV)
    answer.headers["Content-Disposition"] = disposition
    return answer


def csv_line(values: Iterable[Any]) -> str:
    """Returns a line of CSV, with its line ending."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow([_as_cell(value) for value in values])
    return out.getvalue()


def _value_at(item: Mapping[str, Any], path: str) -> Any:
    """Returns the value at a path, such as "time.compute_s"; None where the item has none."""
    value: Any = item
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _as_cell(value: Any) -> Any:
    """Returns the value as a cell has it: JSON for lists and objects. A text that a spreadsheet
    would run as a formula gets an apostrophe in front."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value
