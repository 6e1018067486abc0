"""Reports of what runs measured, and the answers, which put it beside what was predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AwareDatetime,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from models.errors import Invalid
from models.spec.flops import AttentionCount
from service.formats.logs import Framework, Unit
from service.json_pointers import TAG_PREFIX
from service.schemas.cluster import Dtype, Tflops
from service.schemas.launch_form import LaunchForm
from service.schemas.launch_request import QuestionParts, request_tag
from service.schemas.limits import MAX_BATCH_REPORTS
from service.schemas.prediction import Basis, PredictedLayout
from service.schemas.reservation import ReservationAnswer
from service.schemas.run_subject import Choice, RunSubject
from service.schemas.wire import (
    Document,
    FieldNames,
    Instant,
    Label,
    Name,
    Several,
    TableFormat,
    TimeSpan,
    Wire,
)

Outcome = Literal["ok", "out_of_memory", "crashed", "aborted"]
"""The outcome says how a run ended. "aborted" means that somebody stopped it early, which says
nothing of its speed."""
DateSource = Literal["request", "log", "arrival"]
Seconds = Annotated[float, Field(ge=1e-6, le=1e7)]
Rate = Annotated[float, Field(ge=1e-6, le=1e15)]
Gib = Annotated[float, Field(ge=1e-6, le=1e6)]
_LABEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}"
_LabelName = Annotated[str, StringConstraints(pattern=rf"^{_LABEL_NAME}$")]
_LabelValue = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
_LabelFilter = Annotated[str, StringConstraints(pattern=rf"^{_LABEL_NAME}=.{{0,200}}$")]
Labels = Annotated[dict[_LabelName, _LabelValue], Field(max_length=16)]
"""Labels by which a caller finds a run, such as job_id, user and partition. The limit of 16 is more
than a scheduler says of a job; names are limited as labels of Kubernetes are."""


class _Part(Wire):
    """A part of a report that is an object, of which a bare number is told the shape."""

    EXAMPLE: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _object(cls, value: Any) -> Any:
        if isinstance(value, (str, bool, int, float, list)):
            raise ValueError(f"must be an object, such as {cls.EXAMPLE}")
        return value


class MeasuredMfu(_Part):
    """MFU in the convention of whoever measured it."""

    EXAMPLE: ClassVar[str] = '{"value": 0.41, "attention": "causal"}'

    value: Annotated[float, Field(gt=0, le=1.5)]
    """A fraction: 0.41, not 41."""
    attention: AttentionCount
    """Attention FLOPs over causal keys, the full sequence, or not counted."""
    peak_tflops: Tflops | None = None
    """The peak of one chip; without it the dense peak of `peak_dtype`."""
    peak_dtype: Dtype | None = None
    """Without it the format of the matrix multiplications."""

    @model_validator(mode="after")
    def _one_peak(self) -> Self:
        if self.peak_tflops is not None and self.peak_dtype is not None:
            raise ValueError("give peak_tflops or peak_dtype, not both")
        return self


class MeasuredTflops(_Part):
    """Model TFLOP/s of a chip, recompute not counted."""

    EXAMPLE: ClassVar[str] = '{"value": 400.0, "attention": "causal"}'

    value: Tflops
    attention: AttentionCount
    """Attention FLOPs over causal keys, the full sequence, or not counted."""


class Measured(_Part):
    """The speed, in exactly one of these ways."""

    EXAMPLE: ClassVar[str] = '{"step_time_s": 2.0}'

    step_time_s: Seconds | None = None
    tokens_per_s: Rate | None = None
    """The tokens per second of the whole cluster."""
    tokens_per_s_per_chip: Rate | None = None
    tflops_per_chip: MeasuredTflops | None = None
    mfu: MeasuredMfu | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of {', '.join(type(self).model_fields)}; got {given}"
            )
        return self


_EXAMPLES = {"tflops_per_chip": MeasuredTflops.EXAMPLE, "mfu": MeasuredMfu.EXAMPLE}
"""Examples of the ways to give a speed that are objects."""


class MeasuredMemory(_Part):
    """On the fullest device, or on that of `stage`."""

    EXAMPLE: ClassVar[str] = '{"reserved_gib": 61.5}'

    allocated_gib: Gib | None = None
    """The peak of what tensors take, as torch.cuda.max_memory_allocated has it. Without
    `reserved_gib` a calibration adds what the prediction of the run has the allocator hold beyond
    it (`fragmentation_gib`)."""
    reserved_gib: Gib | None = None
    """The peak of what the framework holds for them, as torch.cuda.max_memory_reserved has it."""
    stage: Annotated[int, Field(ge=0, le=10**6)] | None = None
    """The pipeline stage, from 0."""

    @model_validator(mode="after")
    def _at_least_one(self) -> Self:
        if self.allocated_gib is None and self.reserved_gib is None:
            raise ValueError("give allocated_gib or reserved_gib, or leave memory out")
        return self


class MeasuredParts(_Part):
    """The parts of a step that a profiler measured."""

    EXAMPLE: ClassVar[str] = '{"exposed_communication_s": 0.2}'

    exposed_communication_s: Seconds | None = None
    """The communication that no compute hides, for one step on the slowest stage."""
    expert_imbalance: Annotated[float, Field(ge=0, le=1000)] | None = None
    """Tokens of the busiest expert-parallel rank over the mean, less 1: 0.2 is a fifth more."""

    @model_validator(mode="after")
    def _at_least_one(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("give at least one part, or leave parts out")
        return self


class Failure(_Part):
    """The failure says where a run failed."""

    EXAMPLE: ClassVar[str] = '{"peak_gib": 79.1}'

    stage: Annotated[int, Field(ge=0, le=10**6)] | None = None
    """Pipeline stage, from 0."""
    peak_gib: Gib | None = None
    """The most that was seen on its device, before or when it failed."""


class MeasuredRun(Wire):
    """The run as it ended, with what was measured of it."""

    outcome: Outcome
    measured: Measured | None = None
    """With another outcome than ok: of the steps before it failed or was stopped, if there were
    any."""
    memory: MeasuredMemory | None = None
    failure: Failure | None = None
    parts: MeasuredParts | None = None
    labels: Labels = {}

    @model_validator(mode="before")
    @classmethod
    def _speed_in_measured(cls, value: Any) -> Any:
        """Says of a speed that stands beside `measured` where it goes."""
        if isinstance(value, Mapping):
            for name in Measured.model_fields:
                if name in value:
                    example = _EXAMPLES.get(name, "2.0")
                    rule = f'goes into measured, as in "measured": {{"{name}": {example}}}'
                    raise Invalid(name, value[name], rule)
        return value

    def require_consistent(self) -> None:
        """Raises Invalid where the figures do not go with each other."""
        if self.measured is None and self.outcome == "ok":
            raise Invalid("measured", None, "is required with outcome ok")
        if self.parts is not None and self.measured is None:
            raise Invalid("parts", None, "goes with measured")
        if self.failure is not None and self.outcome not in ("out_of_memory", "crashed"):
            raise Invalid("failure", None, "goes with outcome out_of_memory or crashed")
        self._require_allocated_within_reserved()

    def _require_allocated_within_reserved(self) -> None:
        """Raises Invalid where the allocated memory is larger than the reserved, which contains
        it."""
        memory = self.memory
        if memory is None or memory.allocated_gib is None or memory.reserved_gib is None:
            return
        if memory.allocated_gib > memory.reserved_gib:
            rule = f"must not exceed memory.reserved_gib = {memory.reserved_gib:g}"
            raise Invalid("memory.allocated_gib", memory.allocated_gib, rule)


class ReportSubmission(RunSubject, MeasuredRun):
    """Names an answer, or says itself what ran."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
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
    def _no_profile(self) -> Self:
        if self.profile is not None:
            rule = "must be left out: a report is held against the active version"
            raise Invalid("profile", None, rule)
        return self


class LaunchedReport(LaunchedRun, MeasuredRun):
    """Says by a launch what ran."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.require_consistent()
        return self


class ToldLog(Wire):
    log: Annotated[str, Field(min_length=1)]
    framework: Framework | None = None
    """Without it the log is recognised by its lines."""
    outcome: Outcome | None = None
    """The end of the run, where its log does not show it: a run that was killed, hung or was
    stopped writes no line about it. Out of memory is read from the log, and so is a crash before
    the first step where the log prints its arguments."""
    labels: Labels = {}


class LogSubmission(RunSubject, ToldLog):
    """A training log as it is. What ran is linked or described as in a report; of a Megatron log
    that prints its arguments, or a NeMo log its parameters (`PARAMETER cfg/…`), model, workload and
    layout may be left out, whether or not the run came to its first step. What both the request
    and the log say must agree."""


class LaunchedLog(LaunchedRun, ToldLog):
    """A training log as it is, with the launch that wrote it. What both say must agree."""


ReportForm = ReportSubmission | LaunchedReport
LogForm = Annotated[
    Annotated[LogSubmission, Tag(f"{TAG_PREFIX}plain")]
    | Annotated[LaunchedLog, Tag(f"{TAG_PREFIX}launched")],
    Discriminator(request_tag),
]


class ReportBatch(Wire):
    """Many reports at once. Each is taken or refused by itself."""

    # JSON texts, as they were written: service.learning.report_texts parses them one by one.
    reports: Annotated[list[Any], Field(min_length=1, max_length=MAX_BATCH_REPORTS)]
    """Each as it would be posted alone."""
    all_or_nothing: bool = False
    """Take none where one is refused."""


def _union_tag(value: object) -> str:
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

    given: Literal["step_time_s", "tokens_per_s", "tokens_per_s_per_chip", "tflops_per_chip", "mfu"]
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
    """A sentence about a run that was not as predicted. Beyond its interval: what was expected, how
    much of the gap the measured `parts` account for, and the term that most likely makes the rest.
    Out of memory where it was predicted to fit: what was expected."""
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


class UnreadLine(Document):
    line: int
    """From 1."""
    text: str
    """Shortened."""
    reason: str


class LogLevel(Document):
    """Steps that keep one speed."""

    first_step: int
    steps: int
    """The number of used steps at this level."""
    value: float
    """Their median."""


class LogReading(Document):
    """The reading is what was read off the log."""

    framework: Framework
    unit: Unit
    """The unit of what the log prints."""
    value: float
    """The median of the steps used; where the speed changed for good, of the level that the middle
    one has."""
    low: float
    """With `high` the central 80% of them."""
    high: float
    steps_found: int
    steps_used: int
    left_out: dict[str, int]
    """Why steps were not used, and how many: `ramp_up` are those that the log marks as of a batch
    that still grows, `other_batch` those of another batch than is asked for."""
    levels: list[LogLevel]
    """More than one where the speed changed for good, by 3% or more, with several steps on either
    side: six, and ten or a tenth of all. Send the lines of one level to report that."""
    restarts: int
    global_batch: int | None
    """Sequences of the steps used, where the log prints them: of a ramp-up those that the run is
    asked to have."""
    memory_gib: float | None
    memory_kind: Literal["reserved", "allocated"] | None
    unread: list[UnreadLine]
    """Lines that look like steps and could not be read; twenty at most."""
    from_arguments: list[str]
    """The fields of the run that were read from the arguments in the log."""
    out_of_memory: bool
    """The log ends with the run out of memory: the report is of the steps before that."""


class LogAnswer(Document):
    reading: LogReading | None
    """Null where the run failed before its first step."""
    measured_at_from: DateSource
    """The source of `measured_at`: the request, the date that the log prints beside the last step
    used, the last date with which another line begins (read as UTC where it names no zone), or the
    time when the log came."""
    notes: list[str]
    """A date of the log that was ignored, as it lies before 2015 or in the future; a step time that
    rests on fewer than three steps, or on less than half of those found; a speed that changed for
    good; what the arguments said of a run without a step; switches among its arguments that are not
    those of what it is linked to."""
    repeated: bool
    """True where the same bytes came before: `report` is then the one they made, nothing was
    stored, and the answer also has the header `Idempotency-Replayed`. Bytes whose report was
    withdrawn make a new one."""
    report: ReportAnswer


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


class ReportPage(Document):
    items: list[ReportAnswer]
    next: str | None
    """The cursor of the next page."""


class ReportFilterQuery(TimeSpan):
    """A query filters reports. A filter may be given several times, and a report then needs any one
    of its values. `chip`, `stack` and `architecture` also take the aliases of the catalogue."""

    chip: Several[Name] = []
    stack: Several[Name] = []
    architecture: Several[Name] = []
    family: Several[Name] = []
    """Families of models, such as `llama-3.1`, as the summary has them."""
    outcome: Several[Outcome] = []
    source: Several[Label] = []
    num_chips: Several[Annotated[int, Field(ge=1, le=10**6, strict=False)]] = []
    flagged: Annotated[bool, Field(strict=False)] | None = None
    """true: those with a `flag`, outside their interval."""
    within_interval: Annotated[bool, Field(strict=False)] | None = None
    profile_version: Annotated[int, Field(ge=1, le=2**31 - 1, strict=False)] | None = None
    """The version of the profile, be it the one that all share or the tenant's own."""
    created_since: Instant | None = None
    """When reports came, inclusive: a run that was measured before may be reported late. `since`
    and `until` are about when runs were measured."""
    label: Annotated[list[_LabelFilter], Field(max_length=16)] = []
    """`name=value`, as often as needed: reports that have all of these labels."""


class ReportQuery(ReportFilterQuery):
    """Newest first."""

    fields: FieldNames | None = None

    limit: Annotated[int, Field(ge=1, le=1000, strict=False)] = 100
    cursor: Annotated[str, Field(max_length=200)] | None = None
    format: TableFormat | None = None
    include_withdrawn: Annotated[bool, Field(strict=False)] = False
