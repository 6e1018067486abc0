"""Training logs that are reported as they are, and what was read off them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.formats.logs import Framework, Unit
from service.schemas.label import Labels
from service.schemas.launch_request import PlainOrLaunched
from service.schemas.measured_run import Outcome
from service.schemas.report import LaunchedRun, ReportAnswer
from service.schemas.run_subject import RunSubject
from service.schemas.wire import Document, Wire

DateSource = Literal["request", "log", "arrival"]


class ToldLog(Wire):
    log: Annotated[str, Field(min_length=1)]
    framework: Framework | None = None
    """Without it the log is recognised by its lines."""
    outcome: Outcome | None = None
    """The outcome of the run, where its log does not show it: a run that was killed, hung or was
    stopped writes no line about it. Out of memory and a crash are read from the log; a
    crash before the first step only if the log prints the run's arguments."""
    labels: Labels = {}


class LogSubmission(RunSubject, ToldLog):
    """A training log as it is. What ran is linked or described as in a report; of a Megatron log
    that prints its arguments, or a NeMo log its parameters (`PARAMETER cfg/…`), model, workload and
    layout may be left out, whether or not the run came to its first step. What both the request
    and the log say must agree."""


class LaunchedLog(LaunchedRun, ToldLog):
    """A training log as it is, with the launch that wrote it. What both say must agree."""


LogForm = PlainOrLaunched[LogSubmission, LaunchedLog]


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
    """The number of used steps that keep this speed."""
    value: float
    """Their median."""


class LogReading(Document):
    """A reading of the log."""

    framework: Framework
    unit: Unit
    """The unit in which the log tells its speed."""
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
    """Names of the parts that the arguments in the log told."""
    out_of_memory: bool
    """The log ends with the run out of memory: the report is of the steps before that."""


class LogAnswer(Document):
    reading: LogReading | None
    """Null where the run failed before its first step."""
    measured_at_from: DateSource
    """The source of the date of the run: the request, the log (the date beside the last step used,
    or the last one that another line begins with, read as UTC where it names no zone), or the
    arrival of the log."""
    notes: list[str]
    """A date of the log that was ignored, as it lies before 2015 or in the future; a step time that
    rests on fewer than three steps, or on less than half of those found; a speed that changed for
    good; what the arguments said of a run without a step; switches among its arguments that are not
    those of what it is linked to; memory that other processes held, or that an evaluation ran out
    of, so that the run does not count as out of memory."""
    repeated: bool
    """The same bytes came before: `report` is the one they made then, and nothing was stored. The
    answer also has the header `Idempotency-Replayed`. Bytes whose report was withdrawn make a new
    one."""
    report: ReportAnswer
