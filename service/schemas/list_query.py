"""Queries of lists: which page, and which form of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from service.schemas.wire import Name, Page, Several, TimeSpan, Wire

ViewName = Literal["full", "brief"]
TableFormat = Literal["json", "csv"]
"""Without it the Accept header decides. "csv": all of the list, a line each; `limit`, `cursor`,
`fields` and `view` do not go with it."""
FieldNames = Annotated[
    str, StringConstraints(max_length=1000, pattern=r"^[a-z][a-z0-9_]*(,[a-z][a-z0-9_]*)*$")
]
"""Names of members, with commas between them: items of the list then have these alone."""


class TableForm(Wire):
    format: TableFormat | None = None


class ListForm(TableForm):
    fields: FieldNames | None = None
    view: ViewName | None = None
    """"brief": each item is a flat object, which has the columns of the table (`format=csv`)."""


class ListQuery(ListForm):
    limit: Annotated[int, Field(ge=1, le=1000, strict=False)] = 100
    cursor: Annotated[str, Field(max_length=200)] | None = None


class AnswerQuery(TimeSpan, ListQuery):
    """Which answers. Filters may be given several times, and then any of their values will do. They
    also take the aliases of the catalogue. `since` and `until` are about when questions were
    answered."""

    model: Several[Name] = []
    chip: Several[Name] = []
    stack: Several[Name] = []


class BriefPage(Page):
    """A page of a list in brief (`view=brief`)."""

    items: list[dict[str, Any]]
    """Each has the columns of the list's table."""
