"""Lists and answers as tables. `list_tables.json` has the columns: for each name the path of its
value in an item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from fastapi import Request, Response

from models.package_data import read_json
from service.routes.list_pages import page_response
from service.schemas.list_query import ListForm, ListQuery
from service.web import responses
from service.web.tables import CSV, Table, asks_for_table, table_response

Query = TypeVar("Query", bound=ListQuery)
_MOST_ITEMS = 1000  # of a page
_COLUMNS = read_json(__package__, "list_tables.json")
TABLES = {name: Table(name, columns) for name, columns in _COLUMNS.items()}


def table_content(name: str) -> dict[str, Any]:
    """Returns the documentation of a response that may be this table, by its media type."""
    names = ", ".join(TABLES[name].columns)
    schema = {"type": "string", "description": f"A line of names, then one of every item: {names}"}
    return {CSV: {"schema": schema}}


def page_or_table(name: str) -> responses.Responses:
    """Returns the documentation of a list that is given as pages or as a table."""
    return responses.page_or(table_content(name))


def whole_or_table(name: str) -> responses.Responses:
    """Returns the documentation of a list that is given as a whole or as a table."""
    whole = responses.CONDITIONAL_GET
    return whole | {200: {"content": table_content(name)} | whole[200]}


def list_response(
    request: Request, query: Query, read_page: Callable[[Query], dict[str, Any]], name: str
) -> Response:
    """Returns a page of a list, in full or in brief, or the whole list as the table of this name.
    `read_page` reads the page that a query asks for."""
    if asks_for_table(request, query):
        return named_table_response(request, _all_items(query, read_page), name)
    document = shown_page(read_page(query), query, name)
    return page_response(request, document, query.fields)


def named_table_response(
    request: Request, items: Iterable[Mapping[str, Any]], name: str
) -> Response:
    """Returns the items as the table of this name, in CSV."""
    return table_response(request, TABLES[name].lines(items), name)


def shown_page(document: dict[str, Any], query: ListForm, name: str) -> dict[str, Any]:
    """Returns the page in the view that the query asks for. The brief view has the columns of the
    table of this name."""
    if query.view != "brief":
        return document
    return {**document, "items": [TABLES[name].row(item) for item in document["items"]]}


def _all_items(
    query: Query, read_page: Callable[[Query], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yields every item of a list, read page by page from the first."""
    cursor: str | None = None
    while True:
        page = read_page(query.model_copy(update={"limit": _MOST_ITEMS, "cursor": cursor}))
        yield from page["items"]
        cursor = page["next"]
        if cursor is None:
            return
