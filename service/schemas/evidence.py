"""Published runs in the project's own form, and those nearest to a question."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from models.errors import Invalid
from models.prediction.nearest_runs import RunTraits
from models.spec import catalogue
from models.spec.workload import Precision
from service.formats.published import age_years
from service.schemas.architecture import DescribedModel
from service.schemas.cluster import ClusterForm, ClusterPreset
from service.schemas.layout import LayoutFields
from service.schemas.list_query import ListQuery
from service.schemas.prediction import ByConvention, ProfileUsed
from service.schemas.question import Question
from service.schemas.run_subject import Id
from service.schemas.stack import StackFields
from service.schemas.wire import Degree, Document, Label, Name, Wire
from service.schemas.workload import WorkloadFields

Outcome = Literal["ok", "out_of_memory"]


class Source(Wire):
    """The source is where a run was published."""

    title: str
    where: str
    """Repository and commit, or paper and table."""
    organisation: str | None = None
    """The organisation that ran it."""


class PublishedRun(Wire):
    """A run that its source describes; what that left open is `assumed`, by name of the field."""

    id: str
    source: Source
    family: Label
    """The publication that it is of, with others like it."""
    trust: Literal["A", "B", "C", "D"]
    """A: a table of whoever ran it, B: text of a paper, C: through somebody's notes, D: a
    practitioner."""
    date: Label | None = None
    """The date of the software: that of its release, where the source names one with a date, else
    the day the run was published."""
    outcome: Outcome
    model: DescribedModel
    cluster: ClusterForm
    workload: WorkloadFields
    stack: StackFields
    layout: LayoutFields
    assumed: list[Label] = []
    step_time_s: float | None = None
    converted: bool = False
    """The source prints FLOP/s or MFU only; the step time follows by its own way of counting."""
    memory_gib: float | None = None
    parameters: float
    active_parameters: float

    @property
    def chip(self) -> str:
        """Returns the id of the run's chip in the catalogue."""
        if isinstance(self.cluster, ClusterPreset):
            return catalogue.fabric_chip(self.cluster.preset)
        return str(self.cluster.chip)

    @property
    def is_sparse(self) -> bool:
        return self.active_parameters < self.parameters

    def traits(self) -> RunTraits:
        """Returns the features by which runs are compared with a question: hardware, software, size
        and degrees."""
        layout = self.layout
        workload = self.workload
        cluster = self.cluster
        return RunTraits(
            chip=self.chip,
            generation=catalogue.chip(self.chip).generation,
            stack=catalogue.stack(self.stack.name).calibrated_as,
            sparse=self.is_sparse,
            precision=workload.precision,
            parameters=self.parameters,
            active_parameters=self.active_parameters,
            num_chips=cluster.num_chips,
            seq_len=workload.seq_len,
            tokens_per_step=workload.seq_len * workload.global_batch,
            tp=layout.tp,
            pp=layout.pp,
            cp=layout.cp,
            ep=layout.ep,
        )

    def question(self, software_year: float) -> Question:
        """Returns the question that the run answers. `software_year` is the date of the newest
        software, from which the age of the run's own follows."""
        # Software without a date counts as the newest.
        age = age_years(self.date, software_year) if self.date else 0.0
        stack = self.stack.model_copy(update={"age_years": age})
        stack.model_fields_set.add("age_years")  # only fields that are set count as given
        return Question(model=self.model, cluster=self.cluster, workload=self.workload, stack=stack)


_SELECTING = {"exact", "text", "family", "outcome", *ListQuery.model_fields}
"""The fields of a query that select runs or their form, whatever these are to be like."""


class EvidenceQuery(ListQuery):
    """A query describes runs to look for, by an earlier answer or by any of the other fields.
    Fields that are left out do not count towards the distance."""

    recommendation_id: Id | None = None
    prediction_id: Id | None = None
    rank: Annotated[int, Field(ge=1, le=1000, strict=False)] | None = None
    """The rank of a layout in the answer; without it the first is taken."""
    model: Name | None = None
    cluster: Name | None = None
    """A name of /v1/catalog/clusters or /v1/catalog/chips."""
    num_chips: Annotated[Degree, Field(strict=False)] | None = None
    seq_len: Annotated[int, Field(ge=1, le=2**31, strict=False)] | None = None
    global_batch: Annotated[int, Field(ge=1, le=2**31, strict=False)] | None = None
    """Sequences; needs `seq_len`."""
    precision: Precision | None = None
    stack: Name | None = None
    exact: Annotated[bool, Field(strict=False)] = False
    """Only runs that differ in nothing that is stated."""
    text: Annotated[str, StringConstraints(max_length=200)] | None = None
    """Words that all occur in the run's source, model, chip, stack or family."""
    family: Label | None = None
    """The publication that the runs are of."""
    outcome: Outcome | None = None
    limit: Annotated[int, Field(ge=1, le=50, strict=False)] = 10

    @model_validator(mode="after")
    def _require_one_subject(self) -> Self:
        """Raises Invalid where several answers are named, an answer is named beside other fields,
        or a field lacks the one that it needs."""
        linked = [
            name
            for name in ("recommendation_id", "prediction_id")
            if getattr(self, name) is not None
        ]
        # Filters, such as `exact`, describe no run. A rank goes with a link.
        described_fields = self.model_fields_set - _SELECTING - {"rank"}
        described = [name for name in described_fields if name not in linked]
        if len(linked) > 1:
            rule = "give it or recommendation_id, not both"
            raise Invalid("prediction_id", self.prediction_id, rule)
        if linked and described:
            # The first by name: the fields come from a set, which has no order.
            raise Invalid(min(described), None, f"is already fixed by {linked[0]}")
        if not linked and self.rank is not None:
            raise Invalid("rank", self.rank, "needs prediction_id or recommendation_id")
        if self.global_batch is not None and self.seq_len is None:
            rule = "is required with global_batch: together they are the tokens of a step"
            raise Invalid("seq_len", None, rule)
        return self


class Difference(Document):
    asked: str | int | float | bool
    run: str | int | float | bool


class MeasuredRun(Document):
    step_time_s: float | None
    """Null where the run did not fit."""
    tokens_per_s_per_chip: float | None
    mfu: ByConvention | None
    converted: bool
    """From FLOP/s or MFU as the source counts them: it prints no time."""
    memory_gib: float | None
    """The peak, where the source prints it."""


class PredictedRun(Document):
    """The profile named in the answer predicts the layout of the run. The shipped profile was
    fitted to the published runs, so these errors are smaller than those of a new run."""

    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    mfu: ByConvention
    reserved_gib: float
    fits: bool


class EvidenceAnswer(Document):
    id: str
    source: dict[str, str]
    family: str
    trust: str
    date: str | None
    distance: float
    """From the question: 0 is alike in everything that counts."""
    differs: dict[str, Difference]
    """The differences that make the distance, by field."""
    model: dict[str, Any]
    cluster: dict[str, Any]
    workload: dict[str, Any]
    stack: dict[str, Any]
    layout: LayoutFields
    layout_summary: str
    """In one line."""
    assumed: list[str]
    """Fields that the source leaves open, settled by the stack's habits."""
    outcome: Outcome
    measured: MeasuredRun
    predicted: PredictedRun
    residual: float | None
    """Natural log(measured / predicted) of the step time, as in reports."""
    within_interval: bool | None
    fit_verdict_agrees: bool


class EvidenceList(Document):
    """The nearest first, and of those equally near the newest."""

    items: list[EvidenceAnswer]
    profile: ProfileUsed
    found: int
    """The number of runs that the query selects."""
    runs: int
    """The number of all published runs."""
    next: str | None
    """The cursor of the next page."""


class EvidenceShown(Document):
    """A published run near the fastest layout; GET /v1/evidence has more of it, and more of
    them."""

    id: str
    title: str
    where: str
    date: str | None
    distance: float
    differs: dict[str, Difference]
    layout: LayoutFields
    measured_step_time_s: float
    predicted_step_time_s: float
    predicted_step_time_low_s: float
    """With `predicted_step_time_high_s` a central 80% interval."""
    predicted_step_time_high_s: float
    residual: float
    """Natural log(measured / predicted)."""

    @classmethod
    def of(cls, answer: EvidenceAnswer) -> Self:
        """Returns a published run in brief."""
        return cls.from_attributes(
            answer,
            title=answer.source["title"],
            where=answer.source["where"],
            measured_step_time_s=answer.measured.step_time_s,
            predicted_step_time_s=answer.predicted.step_time_s,
            predicted_step_time_low_s=answer.predicted.step_time_low_s,
            predicted_step_time_high_s=answer.predicted.step_time_high_s,
        )
