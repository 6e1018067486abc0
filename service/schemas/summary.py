"""Wire schemas of what reports say of a profile: residuals by kind of run, drift, and replays."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import AwareDatetime, Field, StringConstraints, model_validator

from models.errors import Invalid
from service.schemas.prediction import ProfileUsed
from service.schemas.report_list import ReportFilterQuery
from service.schemas.wire import Document, TimeSpan


class ResidualStatistics(Document):
    """Residuals are natural log(measured / predicted) of step times, as predicted when the report
    came."""

    reports: int
    measured: int
    """The number of reports with a step time."""
    out_of_memory: int
    crashed: int
    aborted: int
    residual_median: float | None
    residual_low: float | None
    """With `residual_high` the central 80%."""
    residual_high: float | None
    median_abs_error: float | None
    """Median of |predicted / measured - 1|."""
    within_interval: float | None
    """The share inside the predicted 80% interval."""


Grouping = Literal["chip", "stack", "family", "profile_version", "week", "source", "tenant"]
_Keys = Annotated[str, StringConstraints(max_length=100, pattern=r"^[a-z_]+(,[a-z_]+)*$")]
Bucket = Literal["hour", "day", "week", "month"]


class SummaryQuery(ReportFilterQuery):
    """The query selects reports and says how to group them."""

    by: _Keys | None = None
    """The keys to group by together, with commas between: `by=chip,stack` has a group for each chip
    with each stack. chip, stack, family, profile_version, week, source or tenant."""
    bucket: Bucket | None = None
    """Groups are also by the hour, day, ISO week or month (UTC) in which runs were measured."""

    @property
    def keys(self) -> list[str]:
        return [] if self.by is None else self.by.split(",")

    @model_validator(mode="after")
    def _require_known_keys(self) -> Self:
        """Raises Invalid for a key by which reports cannot be grouped."""
        for name in self.keys:
            if name not in get_args(Grouping):
                known = ", ".join(get_args(Grouping))
                raise Invalid("by", name, f"is nothing to group by; known: {known}")
        return self


class ReportGroup(ResidualStatistics):
    key: dict[str, str]
    """By what is grouped by: the value of this group. `bucket` is the beginning of its time."""


class ReportSummary(Document):
    overall: ResidualStatistics
    by: dict[str, dict[str, ResidualStatistics]]
    """By chip, stack, model family, profile version, ISO week of measurement, source and tenant (""
    where there is none)."""
    groups: list[ReportGroup] = []
    """The groups of the keys and the bucket that the query names (`by`, `bucket`), sorted by time
    and then by key."""


class ChangeAnswer(Document):
    since: AwareDatetime
    """When the first run after the change was measured."""
    last_before: AwareDatetime
    """When the last run before it was."""
    slower: float
    """The step time after over the one before, less 1, beyond what differs in the questions, by
    their predictions and by their own usual residuals: 0.06 is 6% slower."""
    p_value: float
    report_ids: list[str] = []
    """The ids of the runs after the change, until the next one: marks for a dashboard. Lists of
    reports have a `flag` for them."""


class DriftSeries(Document):
    """Runs of one kind over time, beside what one profile version predicts of them."""

    chip: str
    fabric: str
    stack: str
    family: str
    runs: int
    first: AwareDatetime
    last: AwareDatetime
    residual_median: float
    changes: list[ChangeAnswer]
    """By Pettitt's test, the first change first; empty where the level held."""
    sentence: str


class DriftAnswer(Document):
    profile: ProfileUsed
    series: list[DriftSeries]
    """The series, the largest last change first."""
    runs: int
    left_out: int
    """Reports that no longer mean anything to the models."""
    more: bool
    """There are older reports, beyond `limit`."""


class DriftQuery(TimeSpan):
    """The query selects reports, and the version to compare them with."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1, strict=False)] | None = None
    """Without it the active one."""
    limit: Annotated[int, Field(ge=1, le=20_000, strict=False)] = 5000
    """The newest so many."""


class ReplayRequest(TimeSpan):
    """The request selects earlier answers and reports by when they were made."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    """The newest so many of each kind of answer, and ten times as many reports."""


class ReplayedLayout(Document):
    rank: int
    """In the stored answer, from 1."""
    step_time_s: float
    replayed_step_time_s: float
    fits: bool
    replayed_fits: bool


class Replayed(Document):
    """A stored prediction or recommendation under the version."""

    kind: Literal["prediction", "recommendation"]
    id: str
    location: str
    made_with: ProfileUsed
    layouts: list[ReplayedLayout]
    """In the order of the stored answer; of a recommendation those that it ranked. Nothing is
    searched anew."""
    another_first: bool
    """True for a recommendation of which another ranked layout would lead, or of which the first
    would not fit as the question's constraints ask."""


class ReplayedReports(Document):
    runs: int
    error_active: float | None
    """Median of |predicted / measured - 1| under the active version."""
    error_replayed: float | None
    """Under the version replayed."""


class ReplayAnswer(Document):
    profile: ProfileUsed
    active: ProfileUsed
    answers: list[Replayed]
    """The replayed answers, the largest change first."""
    unusable: list[str]
    """Locations of answers that no longer mean anything to the models."""
    reports: ReplayedReports
