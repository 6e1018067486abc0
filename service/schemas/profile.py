"""Profiles, their versions and the calibrations that made them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, model_validator

from service.schemas.wire import Document, Page, TimeSpan, Wire

Origin = Literal["shipped", "calibrated"]


class VersionSummary(Document):
    version: int
    created_at: AwareDatetime
    origin: Origin
    made_by: str


class Policy(Wire):
    """When a calibration starts by itself, and who activates what it makes."""

    mode: Literal["manual", "automatic"] = "manual"
    """"manual": a person. "automatic": the calibration itself, where its error on runs that it did
    not see falls, of step times or of memory, and neither of them gets worse by more than `margin`,
    over all runs or those of a kind."""
    margin: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Most by which the median error of all runs, and of a chip's or a stack's, may grow: 0.01 is a
    point of percent."""
    min_tenants: Annotated[int, Field(ge=1, le=100)] = 2
    """Number of tenants that must have measured alike, on a chip with a stack, before a calibration
    that activates its own version learns from it. What comes without a key, as everything does
    where the service asks for none, counts by itself."""
    after_reports: Annotated[int, Field(ge=1, le=10**6)] | None = None
    """Calibrate without being asked once so many runs (that ended, or ran out of memory) were
    reported since the last version was made; null: only when asked."""
    own_after_reports: Annotated[int, Field(ge=1, le=10**6)] | None = 3
    """Make a tenant a version of its own, which predicts for nobody else, once it has reported so
    many new runs, and half as many as its last version rests on; null: only when the tenant asks.
    In the policy of a tenant's own profile `after_reports` counts in its place."""


class ProfileAnswer(Document):
    """A profile: the active version is the one that predictions use. Its ETag guards activation."""

    id: str
    """Id of the profile. That of a tenant's own is `own-` and digits, by which an answer names it
    for good; a path may call it `own` too."""
    tenant: str | None = None
    """Whose own it is, and predicts for nobody else; null: all share it."""
    active_version: int | None
    """Null of a tenant's own profile that is not in use: its predictions use the shared one."""
    policy: Policy
    versions: list[VersionSummary]


class ProfilePage(Document):
    items: list[ProfileAnswer]
    next: str | None


class TermAnswer(Document):
    """A part of a coefficient, on its unbounded scale: log of a positive number, log-odds of a
    fraction."""

    coefficient: str
    scope: str
    """"all", or what it applies to, as "generation:hopper"."""
    mean: float
    spread: float
    """Standard deviation."""
    runs: int
    """Number of runs that informed it."""
    source: str


class MovedAnswer(Document):
    coefficient: str
    scope: str
    before: float
    after: float
    shift_in_spreads: float
    spread_before: float
    spread_after: float


class StepTimeChange(Document):
    """A change of predicted step times, for one chip and stack, by a new version."""

    chip: str
    stack: str
    runs: int
    """Runs that are predicted again: the reports of the calibration and a few published ones."""
    step_time_change: float
    """Median of the predicted step time over what the version in use predicts, less 1: -0.04 is 4%
    faster."""


class Unidentified(Document):
    """A term that the reports say nothing about: it stays at its prior."""

    coefficient: str
    scope: str


class Unusable(Document):
    """A report that no longer means anything to the models, and why."""

    report: str
    reason: str


class ReportCounts(Document):
    """The reports, of successful runs and of runs out of memory, that a calibration was asked to
    learn from."""

    found: int
    used: int
    down_weighted: int
    """Outliers among the used ones."""
    left_out: int
    """Number of reports that are unusable."""
    waiting: int
    """Number of reports with which no other tenant's agree."""


class KindErrors(Document):
    """Errors on the runs of a chip or a stack: medians of |predicted / measured - 1|."""

    kind: str
    runs: int
    error_before: float
    error_after: float


class UnseenErrors(Document):
    """Step times as fits predict them that did not see the run: groups of model, chip and stack are
    left out together, or thirds of the time where groups are few. Before: by the version it is
    based on."""

    runs: int
    error_before: float
    error_after: float
    coverage: float
    """Share of the runs inside their 80% interval."""
    kinds: list[KindErrors]


class Window(Document):
    """The reports that a version rests on beyond the one it is based on."""

    first: AwareDatetime | None
    """When the earliest report was measured."""
    last: AwareDatetime | None
    reports: int
    benchmarks: int
    all_reports: int
    """With those that the version it is based on had learnt."""
    sources: int = 0
    """Number of tenants, or sources where no keys are asked for, that made the reports and
    benchmarks."""


class Promotion(Document):
    promoted: bool
    reason: str


class CalibrationAnswer(Document):
    based_on: int
    """The version whose coefficients, with what it knows of them together, were the prior. Of a
    tenant's own version, the one that all share."""
    window: Window
    promotion: Promotion
    unseen: UnseenErrors | None
    """Null where there are fewer than five measured step times."""
    unseen_memory: UnseenErrors | None = None
    """Errors on measured peaks of memory."""
    published: UnseenErrors | None
    """Errors on published runs, a few of each chip and stack: what the calibration does to
    everything else. Null where nothing of it could be promoted anyway."""
    reports: ReportCounts
    observations: int
    """Reports used, outliers among them."""
    waiting: int = 0
    """Reports that a calibration which activates its own version leaves out, because fewer tenants
    than the policy's `min_tenants` measured alike. Later calibrations look at them again."""
    changes: list[StepTimeChange] = []
    """Changes of predicted step times by chip and stack, the largest first. The list is empty for
    calibrations by earlier releases."""
    moved: list[MovedAnswer]
    unidentified: list[Unidentified]
    outliers: list[str]
    """Ids of reports that were down-weighted: more than four residual spreads from what the fit
    predicts. So are those whose `parts` contradict their speed: the parts are left out."""
    unusable: list[Unusable]
    """Reports that were left out, and why."""
    error_before: float | None
    """Median of |predicted / measured - 1| of step time, under the version it is based on; null
    without any."""
    error_after: float | None
    memory_error_before: float | None
    """Median error of reserved memory under the version it is based on. Runs that ran out of memory
    teach it too, and have no error."""
    memory_error_after: float | None

    @model_validator(mode="before")
    @classmethod
    def _with_report_counts(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Adds `reports`, the numbers of reports that were used, left out, waiting and found."""
        used, left_out = values["observations"], len(values["unusable"])
        waiting = values.get("waiting", 0)
        total = used + left_out + waiting
        counts = {"used": used, "left_out": left_out, "waiting": waiting, "found": total}
        return {**values, "reports": {**counts, "down_weighted": len(values["outliers"])}}


class ProfileVersionAnswer(VersionSummary):
    """Immutable."""

    id: str
    residual_spread: float
    """Standard deviation of log step time that the coefficients do not explain."""
    terms: list[TermAnswer]
    calibration: CalibrationAnswer | None
    """The calibration that made it, if reports did."""


class ListedVersion(VersionSummary):
    """A version without its coefficients, which are long."""

    active: bool
    calibration: CalibrationAnswer | None
    """The calibration that made it, if reports did."""


class VersionPage(Page):
    """Newest first."""

    items: list[ListedVersion]


class CalibrationRequest(TimeSpan):
    """The reports to learn from: those of the profile, all or of a time span."""

    activate: bool = False
    """Use the new version at once, under the rules of the policy "automatic"."""
    from_scratch: bool = False
    """Learn from every report anew, from the shipped version, and not on top of the active one. A
    tenant's own version is always learnt anew, on top of the active one that all share."""
