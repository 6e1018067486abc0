"""Lists of reports, and their filters."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.schemas.label import LabelFilter
from service.schemas.list_query import ListQuery
from service.schemas.measured_run import Outcome
from service.schemas.report import ReportAnswer
from service.schemas.wire import Instant, Label, Name, Page, Several, TimeSpan


class ReportPage(Page):
    items: list[ReportAnswer]


class ReportFilterQuery(TimeSpan):
    """Which reports. Filters may be given several times, and then any of their values will do.
    `chip`, `stack` and `architecture` also take the aliases of the catalogue."""

    chip: Several[Name] = []
    stack: Several[Name] = []
    architecture: Several[Name] = []
    family: Several[Name] = []
    """Families of models, such as `llama-3.1`, as the summary has them."""
    outcome: Several[Outcome] = []
    source: Several[Label] = []
    num_chips: Several[Annotated[int, Field(ge=1, le=10**6, strict=False)]] = []
    flagged: Annotated[bool, Field(strict=False)] | None = None
    """true: those with a `flag`, be it for their interval, their memory or a change of level."""
    within_interval: Annotated[bool, Field(strict=False)] | None = None
    profile_version: Annotated[int, Field(ge=1, le=2**31 - 1, strict=False)] | None = None
    """The version of the profile that all share, or of the tenant's own."""
    created_since: Instant | None = None
    """When reports came, inclusive: a run that was measured before may be reported late. `since`
    and `until` are about when runs were measured."""
    label: Annotated[list[LabelFilter], Field(max_length=16)] = []
    """`name=value`, as often as needed: reports that have all of these labels."""


class ReportQuery(ReportFilterQuery, ListQuery):
    """Newest first."""

    include_withdrawn: Annotated[bool, Field(strict=False)] = False
