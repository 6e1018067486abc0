"""Requests to check a job before it is submitted, and the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import AwareDatetime, ConfigDict, Field, model_validator

from models.advice.layout_check import LayoutCheck
from models.advice.rule_cures import BrokenRule
from models.advice.single_changes import SingleChange
from models.cost.memory_uncertainty import percent
from models.errors import Invalid
from models.layouts.rule_sources import rule_source
from models.prediction.prediction import Prediction
from models.prediction.term_words import rounded
from models.spec.hardware import Cluster
from models.spec.stack import Stack
from service.formats.settings.reservation import Reservation
from service.schemas.allocation import AllocationFields
from service.schemas.comparison import SearchTime
from service.schemas.launch_form import LaunchForm, LaunchRead
from service.schemas.launch_request import PlainOrLaunched, QuestionParts
from service.schemas.layout import ConstraintFields, LayoutFields
from service.schemas.micro_batch import ConstraintForm, LayoutForm
from service.schemas.patience import Patience
from service.schemas.prediction import (
    AnswerSummary,
    ByConvention,
    Grounds,
    MemoryTerms,
    TimeTerms,
)
from service.schemas.question import PinnedQuestion, Question
from service.schemas.reservation import ReservationAnswer
from service.schemas.wire import Document, Page

CHECK_TIME_S = 0.5  # a submission waits for it; most searches need less

Verdict = Literal["go", "go_with_warnings", "will_not_fit", "illegal", "cannot_tell"]
"""The verdict says what to do with the job. "go": nothing speaks against it. "go_with_warnings": it
will run, and `warnings` say what to look at; a slow layout gets this verdict. "will_not_fit": its
predicted memory is more than there is, and it will most likely run out. "illegal": the framework
will refuse to start it. "cannot_tell": something that could change the answer was not understood,
or is not modelled; `reservations` say what, why it matters and how to say it."""


class CheckTerms(Patience):
    """The terms say what a job is compared with, whether it comes as fields or as a launch."""

    allocation: AllocationFields | None = None
    """Nodes that a scheduler holds for the job, which runs on every chip of them, or on
    `cluster.num_chips`. They go before what a launch says of nodes."""
    constraints: ConstraintForm = ConstraintFields()
    """Constraints bound the layouts that the job is compared with, and set how surely it has to
    fit."""
    time_limit_s: SearchTime = CHECK_TIME_S
    """The longest time to search for the best layout."""
    store: bool = False
    """Keep the answer, under an id that a report of the run may name. The same question within a
    day has the same id."""


# The terms stand first among the bases, so that pydantic reads them after the workload, which says
# how many sequences a micro-batch in tokens has.
class CheckRequest(CheckTerms, PinnedQuestion):
    layout: LayoutForm


class LaunchedCheckRequest(CheckTerms, QuestionParts):
    launch: LaunchForm

    @model_validator(mode="after")
    def _require_cluster_of_allocation(self) -> Self:
        """Raises Invalid for an allocation without a cluster."""
        if self.allocation is not None and self.cluster is None:
            raise Invalid("cluster", None, "is required beside allocation: it says which chips")
        return self


CheckForm = PlainOrLaunched[CheckRequest, LaunchedCheckRequest]


class BrokenRuleAnswer(Document):
    """A rule of the framework, the model or arithmetic that the layout breaks."""

    name: str
    """The name of the rule in the reference of rules."""
    kind: Literal["framework", "search"] = "framework"
    """"framework": the framework refuses the layout. "search": the framework takes it, and only the
    search of this service does not reach it."""
    field: str
    """The field of the request that breaks the rule."""
    setting: str | None
    """The framework's name for the setting; null where that is not known, or no single one is to
    blame."""
    value: Any
    rule: str
    source: str
    """The source of the rule: the framework, its release and the file that refuses the layout; or
    the arithmetic behind it, whatever the framework."""
    cure: str
    """Values that obey the rule."""

    @classmethod
    def of_batch(
        cls, broken: BrokenRule, question: Question, stack: Stack, setting: str | None = None
    ) -> BrokenRuleAnswer:
        """Returns the broken rule with the global batch as the field at fault, in sequences or
        tokens as it was given. `setting` is the framework's name for it."""
        workload = question.workload
        return cls(
            name=broken.rule.name,
            kind=broken.rule.kind,
            field=f"workload.{workload.batch_field}",
            setting=setting,
            value=getattr(workload, workload.batch_field),
            rule=broken.message,
            source=rule_source(broken.rule, stack),
            cure=broken.cure,
        )


class SettingChange(Document):
    """A setting of the framework; null where it is not set."""

    model_config = ConfigDict(populate_by_name=True)

    name: str
    before: Any = Field(alias="from")
    after: Any = Field(alias="to")


class ChangeAnswer(Document):
    """One change to the layout or to a switch of the software, and what is predicted with it. Where
    no single one does as well, all that the best layout has otherwise, as the knob "layout"."""

    model_config = ConfigDict(populate_by_name=True)

    words: str
    """The change in a line, with what follows from it."""
    knob: str
    """The field of the layout that changes, or the field of the stack that a switch sets."""
    before: Any = Field(alias="from")
    """An object where several fields of a layout make one choice."""
    after: Any = Field(alias="to")
    settings: list[SettingChange]
    """The change in the framework's own words, with every setting that follows from it: a launch
    with just these settings changed has this step time and this fit. Empty where the words are not
    known."""
    step_time_s: float
    gain_s: float | None
    """By how much a step becomes shorter; negative where it becomes longer, null where the given
    layout is illegal."""
    gain: float | None
    """Step time before over step time after, less 1: 0.1 is a tenth more steps an hour."""
    fit_probability: float

    @classmethod
    def of(
        cls,
        change: SingleChange,
        words: str,
        settings: list[SettingChange],
        min_fit_probability: float,
    ) -> Self:
        """Returns the change with its `words` and its settings in the framework's names. Where it
        may not fit with the probability asked for, the words say so."""
        probability = change.outcome.fit_probability
        if probability < min_fit_probability:
            words += f"; it then fits with a probability of {percent(probability)} only"
        return cls(
            words=words,
            knob=change.knob,
            before=_value_of_knob(change, change.before),
            after=_value_of_knob(change, change.after),
            settings=settings,
            step_time_s=change.outcome.step_time_s,
            gain_s=change.saved_s,
            gain=change.gain,
            fit_probability=probability,
        )


def _value_of_knob(change: SingleChange, value: Any) -> Any:
    """Returns the value of a knob. If several fields of a layout make up the knob, or the whole
    layout changes, it is an object, such as {"balanced": true, "layers_per_chunk": [12, 10]}."""
    names = change.fields
    is_object = change.is_whole or len(names) > 1
    return dict(zip(names, value, strict=True)) if is_object else value


class FitAnswer(Document):
    """The answer says whether the layout fits in memory. GiB are on the fullest stage."""

    probability: float
    needed_gib: float
    needed_low_gib: float
    """With `needed_high_gib` a central 80% interval."""
    needed_high_gib: float
    usable_gib: float
    """Less what `constraints.memory_reserve_gib` leaves free."""
    over_gib: float
    """By how much the needed memory exceeds the usable; 0 where it does not."""
    stage: int
    """The fullest pipeline stage, from 0."""
    largest_term: str
    """The largest of the terms that `memory_gib` adds up."""
    largest_gib: float
    enough: list[ChangeAnswer]
    """Single changes of different knobs, each of which makes a layout fit that does not surely fit:
    `first_change` where it is one of them, then the one with the shortest step first."""

    @classmethod
    def of(cls, check: LayoutCheck, prediction: Prediction, enough: list[ChangeAnswer]) -> Self:
        """Returns whether the layout fits. `prediction` is that of the layout, and `enough` the
        single changes that make it fit."""
        usable_gib = prediction.usable_gib - check.reserve_gib
        largest = max(prediction.memory_gib, key=lambda name: prediction.memory_gib[name])
        return cls.from_attributes(
            prediction,
            probability=prediction.fit_probability,
            usable_gib=usable_gib,
            over_gib=max(prediction.needed_gib - usable_gib, 0.0),
            stage=prediction.memory_stage,
            largest_term=largest,
            largest_gib=prediction.memory_gib[largest],
            enough=enough,
        )


class CheckedPrediction(Document):
    step_time_s: float
    step_time_low_s: float
    """With `step_time_high_s` a central 80% interval."""
    step_time_high_s: float
    mfu: ByConvention
    mfu_low: ByConvention
    """At `step_time_high_s`."""
    mfu_high: ByConvention
    tokens_per_s: float
    tokens_per_s_low: float
    """At `step_time_high_s`."""
    tokens_per_s_high: float
    tokens_per_s_per_chip: float
    num_micro_batches: int
    time: TimeTerms
    memory_gib: MemoryTerms


class BestAnswer(Document):
    """The fastest layout on the same chips and with the same switches that fits surely, as the
    constraints ask, and that the framework has words for where a launch is checked. It is the
    checked layout itself where none is faster."""

    layout: LayoutFields
    summary: str
    step_time_s: float
    step_time_low_s: float
    """With `step_time_high_s` a central 80% interval."""
    step_time_high_s: float
    mfu: ByConvention
    fit_probability: float
    gain_s: float | None
    """By how much its step is shorter; negative where the checked layout is faster and less sure to
    fit, null where that is illegal."""
    gain: float | None
    """Checked step time over best step time, less 1."""
    gain_probability: float | None
    """At least how likely it is that the gain is real and not an error of the predictions."""
    exact: bool
    """The search came to its end within `time_limit_s`; otherwise a better one may exist."""

    @classmethod
    def of(cls, check: LayoutCheck, best: Prediction, cluster: Cluster) -> Self:
        """Returns the best layout beside the checked one. The gain is None where nothing is
        predicted of the checked one."""
        checked = check.prediction
        return cls.from_attributes(
            best,
            layout=LayoutFields.shown(best.layout, on_torus=cluster.is_torus),
            summary=best.layout.summary(),
            gain_s=None if checked is None else checked.step_time_s - best.step_time_s,
            gain=check.gain,
            gain_probability=check.gain_probability,
            exact=check.best_is_exact,
        )


class WarningAnswer(Document):
    code: str
    """To program against."""
    message: str
    numbers: Mapping[str, float]


class CheckAnswer(Grounds):
    id: str | None = None
    """The id of a check that was to be stored; null for others."""
    created_at: AwareDatetime | None = None
    location: str | None = None
    verdict: Verdict
    """"go": nothing speaks against it. "go_with_warnings": it will run, and `warnings` say what to
    look at; a slow layout is one of these. "will_not_fit": its predicted memory is more than there
    is. "illegal": the framework will refuse to start it. "cannot_tell": `reservations` name what
    was not understood, or is not modelled, and how to say it; the job may be any of the others."""
    summary: str
    """The verdict in a sentence."""
    legal: bool
    broken_rules: list[BrokenRuleAnswer]
    """The rules that the layout breaks, and of a launch whatever else the framework stops at
    (`framework_stops`): the first of them, where there are many."""
    broken_rule_count: int
    """The number of broken rules, of which `broken_rules` has the first."""
    layout: LayoutFields | None
    """The layout as it was checked, with what was left open as the stack has it. Null where the
    framework stops at a setting that decides the layout, so that there is none."""
    prediction: CheckedPrediction | None
    """With `fits`: null where the layout breaks a rule, or there is none."""
    fits: FitAnswer | None
    best: BestAnswer | None
    """Null where no such layout was found, which the warning `no_best` explains."""
    first_change: ChangeAnswer | None
    """The change to make first. It is the single change that makes the layout legal and fit at
    least cost; or, where no single one does or only far slower, everything in which the best layout
    differs. For a layout that fits it is the single change that gains most, and null where none
    gains 1%. A name that the framework does not have is first spelt rightly. It is null where the
    verdict is "cannot_tell": no change is advised for a job that is not understood."""
    warnings: list[WarningAnswer]
    launch_read: LaunchRead | None = None
    """The reading of a launch; null for a check of fields."""
    reservations: list[ReservationAnswer] = []
    """Settings of the launch that could change the answer and were not understood: all else here
    is given as if they were not there. The first, of `launch_read.unread_count`."""


class CheckSummary(AnswerSummary):
    verdict: Verdict
    summary: str


class CheckPage(Page):
    items: list[CheckSummary]


def verdict_of(
    check: LayoutCheck, *, is_refused: bool, reservations: Sequence[Reservation], has_warnings: bool
) -> Verdict:
    """Returns the verdict on a job. `reservations` are settings that were not understood, and
    `is_refused` says that the framework refuses the job whatever they mean."""
    if is_refused:
        return "illegal"
    if reservations or check.prediction is None:
        return "cannot_tell"
    if not check.fits:
        return "will_not_fit"
    return "go_with_warnings" if has_warnings else "go"


def summary_of(
    check: LayoutCheck, broken: Sequence[BrokenRuleAnswer], reservations: Sequence[Reservation]
) -> str:
    """Returns the verdict in a sentence, with the reason: broken rules first, then settings that
    were not understood, then memory and speed."""
    if broken:
        names = dict.fromkeys(rule.name for rule in broken)
        return f"it is not legal: {', '.join(names)}"
    if reservations:
        first = ReservationAnswer.of(reservations[0])
        text = f"it cannot be told: {first.setting} is not understood; {first.reason}; {first.cure}"
        num_others = len(reservations) - 1
        return f"{text} ({num_others} more in `reservations`)" if num_others else text
    prediction = check.prediction
    if prediction is None:
        return "it cannot be told: nothing is predicted of this layout"
    usable_gib = prediction.usable_gib - check.reserve_gib
    memory = f"{prediction.needed_gib:.1f} of {usable_gib:.1f} GiB"
    surety = f"it fits with a probability of {percent(prediction.fit_probability)}"
    if check.reserve_gib:
        memory += f" beside the {check.reserve_gib:g} GiB to leave free"
        if prediction.fits and not check.fits:
            surety = "it fits, but does not leave that much"
    speed = f"{rounded(prediction.step_time_s)} s a step, {prediction.mfu['causal']:.0%} MFU"
    text = f"{speed}, {memory}: {surety}"
    if check.gain is not None and check.gain > 0:
        text += f"; the best layout on these chips makes {check.gain:.1%} more steps an hour"
    return text
