"""Reports of runs, and the answers, which put what was measured beside what was predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, Discriminator, Field, Tag, model_validator

from models.errors import Invalid
from service.json_pointers import TAG_PREFIX
from service.schemas.launch_form import LaunchForm
from service.schemas.launch_request import QuestionParts, request_tag
from service.schemas.limits import MAX_BATCH_REPORTS
from service.schemas.measured_run import Failure, MeasuredRun, Outcome, SpeedForm
from service.schemas.prediction import Basis, PredictedLayout
from service.schemas.reservation import ReservationAnswer
from service.schemas.run_subject import Choice, RunSubject
from service.schemas.wire import Document, Instant, Label, Wire


class ReportSubmission(RunSubject, MeasuredRun):
    """Names an answer, or says itself what ran."""

    @model_validator(mode="after")
    def _require_consistency(self) -> Self:
        """Raises Invalid unless the run is described in one way, with figures that suit its
        outcome."""
        self.require_one_subject()
        self.require_consistent()
        return self


class LaunchedRun(QuestionParts):
    """The run is described by the launch configuration that started it."""

    launch: LaunchForm
    measured_at: Instant | None = None
    """When it ran; without it, now, or what a training log says."""
    source: Label | None = None
    """The team, cluster or tool that measured. One source counts for a limited number of runs,
    however many it sends."""

    @model_validator(mode="after")
    def _refuse_profile(self) -> Self:
        """Raises Invalid where a profile is given."""
        if self.profile is not None:
            rule = "must be left out: a report is held against the active version"
            raise Invalid("profile", None, rule)
        return self


class LaunchedReport(LaunchedRun, MeasuredRun):
    """Says by a launch what ran."""

    @model_validator(mode="after")
    def _require_consistency(self) -> Self:
        self.require_consistent()
        return self


ReportForm = ReportSubmission | LaunchedReport


class ReportBatch(Wire):
    """Many reports at once. Each is taken or refused by itself."""

    # JSON texts, as they were written: service.learning.report_texts parses them one by one.
    reports: Annotated[list[Any], Field(min_length=1, max_length=MAX_BATCH_REPORTS)]
    """Each as it would be posted alone."""
    all_or_nothing: bool = False
    """Take none where one is refused."""


def _union_tag(value: object) -> str:
    """Returns the tag of the form of what is reported: a batch, or one run with or without a
    launch."""
    many = isinstance(value, ReportBatch) or (isinstance(value, Mapping) and "reports" in value)
    return f"{TAG_PREFIX}batch" if many else request_tag(value)


Reported = Annotated[
    Annotated[ReportSubmission, Tag(f"{TAG_PREFIX}plain")]
    | Annotated[LaunchedReport, Tag(f"{TAG_PREFIX}launched")]
    | Annotated[ReportBatch, Tag(f"{TAG_PREFIX}batch")],
    Discriminator(_union_tag),
]


class MeasuredSpeed(Document):
    """The measurement in all its forms, whichever was given."""

    given: SpeedForm
    conversion: str
    """The formula by which `step_time_s` follows from what was given."""
    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_chip: float
    mfu: dict[str, float]
    """By convention, of the peak in `conventions`."""


class MemoryComparison(Document):
    allocated_gib: float | None
    reserved_gib: float | None
    stage: int | None
    allocated_residual: float | None
    """Natural log(measured / predicted): above 0 the run took more than predicted. Null for a stage
    other than the one that is predicted to be the fullest: it is compared with nothing, and nothing
    is learnt from it."""
    reserved_residual: float | None
    """The residual of the reserved memory: the log of measured over predicted."""


class PartsComparison(Document):
    exposed_communication_s: float | None
    predicted_exposed_communication_s: float
    expert_imbalance: float | None


class ReportAnswer(Basis):
    outcome: Outcome
    prediction_id: str | None
    recommendation_id: str | None
    check_id: str | None = None
    rank: int | None
    """The rank of the layout that ran among those ranked; null where it is not one of them."""
    choice: Choice | Literal["surer"] | None
    """The choice as the report said it; "surer" is in old recommendations only."""
    prediction: PredictedLayout
    """Made when the report came, with the profile that was active then."""
    measured: MeasuredSpeed | None
    residual: float | None
    """Natural log(measured / predicted) of the step time: 0.1 is a run 10% slower than predicted,
    -0.1 10% faster."""
    within_interval: bool | None
    """The measured step time lies in the predicted 80% interval."""
    memory: MemoryComparison | None
    failure: Failure | None
    fit_verdict_agrees: bool | None
    """True where the predicted `fits` is right about this run; null for a crash and for a run that
    was stopped. `memory` compares the figures."""
    parts: PartsComparison | None
    measured_at: AwareDatetime
    source: str | None
    labels: dict[str, str] = {}
    flag: str | None
    """For a run beyond its interval: what was expected, how much of the gap the measured `parts`
    account for, and the term that most likely makes the rest. For one that ran out of memory where
    it was predicted to fit: what was expected. For one after a change that drift tells: which way
    such runs changed, and since when. Drift is looked for when a report is read; the answer that
    takes a report, and events, tell it as it came."""
    same_as: str | None = None
    """The id of the first report that came in the same words and is not withdrawn. Both count:
    withdraw this one if it is of the same run. Null in a batch, and for a log, which makes one
    report only."""
    reservations: list[ReservationAnswer] = []
    """Settings of the launch that the prediction was made of, where some were not understood: the
    report is kept, and nothing is learnt from it."""
    withdrawn_at: AwareDatetime | None = None
    """Since when it no longer counts: it is kept, and nothing is learnt from it."""


class StoredReport(ReportAnswer):
    submission: str
    """The body as it was received; empty where the report was withdrawn and its training log is
    long."""


class ItemError(Document):
    field: str
    pointer: str | None
    """Inside the request."""
    value: Any
    rule: str


class BatchItem(Document):
    """One report of a batch: what was made of it, or why it was refused."""

    index: int
    id: str | None = None
    location: str | None = None
    residual: float | None = None
    within_interval: bool | None = None
    flag: str | None = None
    errors: list[ItemError] = []


class BatchAnswer(Document):
    accepted: int
    refused: int
    items: list[BatchItem]
    """In the order of the request."""
