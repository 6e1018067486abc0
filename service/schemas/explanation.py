"""Requests to explain a run that was slow or died, and the answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from models.errors import Invalid
from service.formats.logs import Framework, Unit
from service.formats.logs.symptoms import SymptomKind
from service.schemas.check import BrokenRuleAnswer, WarningAnswer
from service.schemas.comparison import SearchTime
from service.schemas.launch_form import LaunchForm, LaunchRead
from service.schemas.launch_request import PlainOrLaunched, QuestionParts
from service.schemas.layout import LayoutFields
from service.schemas.measured_run import Failure, Measured, MeasuredMemory, MeasuredParts, Outcome
from service.schemas.patience import Patience
from service.schemas.prediction import ByConvention, Grounds
from service.schemas.question import ProfileWanted
from service.schemas.reservation import ReservationAnswer
from service.schemas.run_subject import RunSubject
from service.schemas.training_log import LogLevel
from service.schemas.wire import Document, Instant


class ToldRun(Patience):
    """A run as far as it is known: its log, or what was measured of it."""

    log: Annotated[str, Field(min_length=1)] | None = None
    """A training log as it is, as for /v1/reports/logs. Model, workload and layout may be left out
    where it prints its arguments."""
    framework: Framework | None = None
    """Without it a log is recognised by its lines."""
    outcome: Outcome | None = None
    """The end of the run, where its log does not show it, or there is no log. Without it, ok."""
    measured: Measured | None = None
    """The speed, where there is no log."""
    memory: MeasuredMemory | None = None
    failure: Failure | None = None
    parts: MeasuredParts | None = None
    time_limit_s: SearchTime = 5.0
    """Most seconds to search for the best layout."""

    @model_validator(mode="after")
    def _require_log_or_figures(self) -> Self:
        """Raises Invalid where figures stand beside a log, from which they are read, or a run that
        did not fail has neither."""
        if self.log is not None:
            for name in ("measured", "memory"):
                if getattr(self, name) is not None:
                    raise Invalid(name, None, "is read from the log: leave it out")
            return self
        if self.framework is not None:
            raise Invalid("framework", self.framework, "goes with log")
        if self.measured is None and self.outcome in (None, "ok"):
            rule = "is required without a log, unless outcome says that the run failed"
            raise Invalid("measured", None, rule)
        return self


class ExplanationRequest(RunSubject, ToldRun):
    """A run by the id of its answer, or by its question and layout, as in a report."""

    profile: ProfileWanted | None = None
    """The version to predict with; without it the active one."""

    @model_validator(mode="after")
    def _require_log_or_subject(self) -> Self:
        """Raises Invalid where neither a log, an answer nor a description says what ran."""
        if self.log is None:  # a log may say what ran
            self.require_one_subject()
        return self


class LaunchedExplanationRequest(QuestionParts, ToldRun):
    """A run by the launch configuration that started it."""

    launch: LaunchForm
    measured_at: Instant | None = None
    """When it ran; without it, now, or what a training log says."""


ExplanationForm = PlainOrLaunched[ExplanationRequest, LaunchedExplanationRequest]


class TimeShare(Document):
    """One term of the predicted step."""

    term: str
    seconds: float
    share: float
    """Share of the predicted step."""
    meaning: str


class MemoryShare(Document):
    """One term of the predicted memory on the fullest stage."""

    term: str
    gib: float
    share: float
    """Share of the memory that is needed."""
    meaning: str


class SpeedExplained(Document):
    """Measurements of the run beside what was predicted of it."""

    measured_step_time_s: float | None
    """Null where it came to no step."""
    measured_mfu: ByConvention | None
    predicted_step_time_s: float
    predicted_low_s: float
    """With `predicted_high_s` a central 80% interval."""
    predicted_high_s: float
    predicted_mfu: ByConvention
    slower_by: float | None
    """Measured over predicted step time, less 1; negative where the run was faster."""
    within_interval: bool | None
    summary: str


class SwitchSuspect(Document):
    """A switch of the software that would explain a part of the gap, if it was not set as the
    prediction takes it but as the framework has it when it is told nothing."""

    switch: str
    """The switch in the framework's words."""
    assumed: Any
    """The value that the prediction takes, as `field` of the stack has it."""
    otherwise: Any
    field: str
    step_time_s: float
    """Predicted with the other value."""


class GapExplained(Document):
    """The likeliest cause of the difference between the measured and the predicted step."""

    gap_s: float
    term: str | None
    """Null where no term is at all likely to make up so much, or where the measured parts explain
    it."""
    excess_s: float | None
    """By how much the term probably differs from its prediction."""
    probability: float | None
    """Probability that it is this term which makes the difference, rather than another or none."""
    undescribed_probability: float | None
    """Probability that no term of a prediction describes what makes it: another job than was said,
    an error of the measurement."""
    summary: str
    look_at: str | None
    """The place to look first, for a run that was slower."""
    switches: list[SwitchSuspect]
    """At most three, the one that comes nearest to the measured step first."""


ObservationCode = Literal[
    "speed_changed",
    "unsteady",
    "slow_steps",
    "warm_up",
    "ramp_up",
    "not_finite",
    "clock_ahead",
    "restarted",
    "few_steps",
    "unread_lines",
    "cut_lines",
    "memory_near_limit",
    "memory_to_spare",
    "memory_unexpected",
    "other_processes",
    "fragmentation",
    "allocated",
    SymptomKind,
    "other_switches",
]


class Observation(Document):
    """One thing that the log itself shows, whatever was predicted."""

    code: ObservationCode
    message: str
    cost: float | None = None
    """The share of the run's time that it costs, where the log says how much."""


class LogExplained(Document):
    """Facts that were read off the log."""

    framework: Framework | None
    unit: Unit | None
    """Unit of `value`, `low` and `high`."""
    value: float | None
    """The median of the steps used; null where there was none."""
    low: float | None
    """With `high` the central 80% of them."""
    high: float | None
    steps_found: int
    steps_used: int
    levels: list[LogLevel]
    """Levels of speed of a run whose speed changed for good."""
    observations: list[Observation]


FailureKind = Literal[
    "broken_rule", "out_of_memory", "unlikely_out_of_memory", "memory_likely", "not_of_the_layout"
]
"""Why a run died. "broken_rule": its framework refuses the layout. "out_of_memory": the log or the
request says so. "unlikely_out_of_memory": the same, though the layout was predicted to fit.
"memory_likely": nothing says so, but the layout does not surely fit. "not_of_the_layout": it is
legal and fits."""


class FailureExplained(Document):
    kind: FailureKind
    summary: str
    error_line: str | None
    """The last line of the log that says why a process failed, shortened."""
    broken_rules: list[BrokenRuleAnswer]
    needed_gib: float | None
    """GiB that the device of the fullest stage needs; null for a layout that is not legal."""
    needed_low_gib: float | None
    """With `needed_high_gib` a central 80% interval."""
    needed_high_gib: float | None
    usable_gib: float | None
    stage: int | None
    """The fullest pipeline stage, from 0."""
    fit_probability: float | None
    """Before the run showed that it does not."""
    memory: list[MemoryShare]
    """The largest first."""


class RemedyAnswer(Document):
    """One thing to try."""

    change: str
    """In words."""
    kind: Literal["layout", "switch", "search"]
    """One knob of the layout, one switch of the software, or the best layout of a search."""
    knob: str | None
    """Knob of the layout, or the field of the stack that the switch sets."""
    layout: LayoutFields
    """With the change."""
    step_time_s: float
    """Predicted with the change."""
    gain: float | None
    """Predicted step time before over after, less 1: 0.1 is a tenth more steps an hour. Negative
    where the change costs time; null where nothing is predicted of the layout that ran."""
    saved_s: float | None
    """Seconds of a step that are saved, as it was measured where it was: in proportion to the
    predicted gain."""
    fits: bool
    """With a probability of 90% or more."""
    fit_probability: float
    """Given what the run showed of its memory."""
    needed_gib: float
    caveat: str | None
    """Other effects of the change."""


class ExplanationAnswer(Grounds):
    first_fix: str
    """The first thing to do, in a sentence or two."""
    outcome: Outcome
    layout: LayoutFields
    """The layout as it ran, with what was left open as the stack has it."""
    speed: SpeedExplained | None
    """Null where the layout is not legal: nothing is predicted of it."""
    where_the_time_goes: list[TimeShare]
    """Shares of the predicted step, the largest first."""
    gap: GapExplained | None
    """The gap, where the measured step lies outside the predicted interval."""
    failure: FailureExplained | None
    """The failure of a run that died."""
    log: LogExplained | None
    what_to_try: list[RemedyAnswer]
    """In order of gain. Of a run that died, what makes it run, the cheapest first."""
    search_exact: bool
    """The search came to its end within `time_limit_s`."""
    warnings: list[WarningAnswer]
    """Facts of the layout that a reviewer would raise."""
    launch_read: LaunchRead | None = None
    """The reading of the launch, where there is one."""
    reservations: list[ReservationAnswer] = []
    """Settings of the launch that could change the answer and were not understood: all else here
    is given as if they were not there. The first, of `launch_read.unread_count`."""
