"""Runs as their training logs tell of them: what ran, how fast and when is read from the log, where
it says so.

A *reading* is the step time that the log shows, with its grounds. A run is *linked* where the
request names an earlier answer, which says what ran; else the request or the log describes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from models.errors import Invalid, UnknownName
from models.spec import catalogue
from models.spec.catalogue import as_tuples
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from service.field_violations import violations_of
from service.formats import logs
from service.formats.logs.contents import LogContents, LogTrouble
from service.formats.logs.lines import MAX_LINE_CHARACTERS
from service.formats.megatron import arguments as megatron_arguments
from service.learning.log_agreement import require_same_run
from service.learning.report_ingestion import software_age_years
from service.resolve.answered_layout import layout_of_report
from service.resolve.resolution import Resolver
from service.schemas.measured_run import MeasuredMemory, Outcome
from service.schemas.report import ReportSubmission
from service.schemas.stack import StackFields
from service.schemas.training_log import DateSource, LogSubmission
from service.store import Store

_LOGGED_PARTS = ("model", "workload", "layout")
"""The parts of a report that the arguments in a log may give."""
_EARLIEST_DATE = datetime(2015, 1, 1, tzinfo=UTC)
_MAX_ZONE_OFFSET = timedelta(days=1)
"""Time that a clock which does not say its zone may be ahead, the error of the clock included."""
_FEW_STEPS = 3


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """A run as its log describes it, together with the request beside the log."""

    report: ReportSubmission
    reading: logs.Reading | None
    """None where the run failed before its first step."""
    arguments: Mapping[str, str]
    """Arguments that the log prints, in Megatron's names."""
    question: Mapping[str, Any]
    """The parts of the question that the arguments give, in their wire form."""
    date_source: DateSource
    doubts: tuple[str, ...]
    """Sentences on what may be wrong about the date and the step time."""
    stack_differences: tuple[str, ...]
    """Notes on switches of the stack that differ between the log and the linked answer."""
    cut_lines: tuple[str, ...]
    """A note on lines that were too long to be read whole, if there are any."""

    @property
    def notes(self) -> list[str]:
        """Returns all notes on the log that the answer shows."""
        return [*self.doubts, *self.stack_differences, *self.cut_lines]


def read_logged_run(store: Store, submission: LogSubmission, contents: LogContents) -> LoggedRun:
    """Returns the run whose log has these contents, with notes on what is doubtful about it. Raises
    Invalid if the log is of another run than the request describes."""
    reading = contents.reading
    logged = _logged_question(submission, contents.arguments)
    logged_parts = [name for name in _LOGGED_PARTS if name in logged]
    # The request has to describe only what the log leaves open.
    submission.require_one_subject(logged_parts)
    date = _date_of_run(submission, reading, datetime.now(UTC))
    report = _report_of_log(submission, logged, contents, date.measured_at)
    with store.reading() as rows:
        subject = layout_of_report(rows, report)
        resolved = Resolver(rows).resolve(subject.question)
    problem = resolved.problem
    # Some logs print memory as a share of the device: only the resolved chip turns it into GiB.
    if reading is not None and reading.used_memory_share is not None:
        used_gib = reading.used_memory_share * problem.cluster.chip.usable_memory_gib
        reading = replace(reading, memory_gib=used_gib, memory_kind="reserved")
        report = report.model_copy(update={"memory": MeasuredMemory(reserved_gib=used_gib)})
    require_same_run(contents, subject, resolved, linked=submission.is_linked)
    return LoggedRun(
        report=report,
        reading=reading,
        arguments=contents.arguments,
        question=logged,
        date_source=date.source,
        doubts=(
            *date.notes,
            *_speed_change_notes(reading),
            *_few_steps_notes(reading),
            *_earlier_runs_notes(reading),
            *_out_of_memory_notes(contents),
            *_device_memory_notes(contents.reading, reading),
            *_no_steps_notes(reading, logged),
        ),
        stack_differences=tuple(
            _stack_differences(problem, contents.arguments, linked=submission.is_linked)
        ),
        cut_lines=tuple(_cut_line_notes(contents)),
    )


def requested_global_batch(store: Store, submission: LogSubmission) -> int | None:
    """Returns the sequences of a step that the request gives, or that the answer it is linked to
    has; None where neither says it."""
    if submission.workload is not None:
        return submission.workload.global_batch
    if not submission.is_linked:
        return None
    with store.reading() as rows:
        return layout_of_report(rows, submission).question.workload.global_batch


def _logged_question(submission: LogSubmission, arguments: Mapping[str, str]) -> Mapping[str, Any]:
    """Returns the parts of the question that the log's arguments give, and `num_chips`. Raises
    Invalid where arguments say too little, but only for parts that the request leaves to the
    log."""
    if not arguments:
        return {}
    settled = [
        name
        for name in _LOGGED_PARTS
        if submission.is_linked or getattr(submission, name) is not None
    ]
    return megatron_arguments.question(arguments, settled)


@dataclass(frozen=True, slots=True)
class _Date:
    """When a run was measured, and what says so. `measured_at` is None where nothing does: it
    counts as measured when the report is stored."""

    measured_at: datetime | None
    source: DateSource
    notes: tuple[str, ...] = ()


def _date_of_run(submission: LogSubmission, reading: logs.Reading | None, now: datetime) -> _Date:
    """Returns the date that the request gives, or else the one that the log prints. An impossible
    date is ignored with a note. A date without a zone counts as UTC, and may therefore lie some
    hours in the future: it is then replaced by `now`."""
    if submission.measured_at is not None:
        return _Date(submission.measured_at, "request")
    printed = None if reading is None else reading.timestamp
    if printed is None:
        return _Date(None, "arrival")
    at = printed.replace(tzinfo=UTC) if printed.tzinfo is None else printed
    if _EARLIEST_DATE <= at <= now + _MAX_ZONE_OFFSET:
        return _Date(min(at, now), "log")
    why = "in the future" if at > now else f"before {_EARLIEST_DATE.year}"
    note = f"the log dates its last step {printed:%Y-%m-%d %H:%M:%S}, which is {why}: ignored"
    return _Date(None, "arrival", (note,))


def require_run(submission: LogSubmission, contents: LogContents) -> None:
    """Raises the refusal of a log that has no usable step, with hints added to it. A run that
    failed before its first step is not refused."""
    refusal = contents.refusal
    if refusal is None:  # the log has steps
        return
    has_failed = submission.outcome not in (None, "ok")
    ran_out = contents.ends_out_of_memory or contents.trouble.out_of_memory_cause == "host"
    if has_failed or ran_out or _crashed(submission, contents):
        return
    # A log with the arguments of a run, or with a crash, may be of a run that failed early.
    if contents.printed is not None or contents.trouble.ends_in_crash:
        refusal.rule += "; if the run failed before its first step, say so in outcome"
    refusal.rule += "".join(f"; {note}" for note in _cut_line_notes(contents))
    raise refusal


def _crashed(submission: LogSubmission, contents: LogContents) -> bool:
    """Returns whether a log is of a run that crashed: it ends with a crash, behind steps or else
    behind the run's arguments. An outcome that the request states is not doubted here."""
    has_started = contents.reading is not None or contents.printed is not None
    return submission.outcome is None and has_started and contents.trouble.ends_in_crash


def _outcome_of_run(submission: LogSubmission, contents: LogContents) -> Outcome:
    """Returns the outcome that the log shows, or else the one that the request states. Raises
    Invalid where the two contradict each other."""
    cause = contents.trouble.out_of_memory_cause
    stated = submission.outcome
    if cause == "host" and stated in ("ok", "out_of_memory"):
        rule = (
            "is not what the log shows: it ends as the memory of a host was full, and the memory of"
            " a device is another: send crashed, or leave it out"
        )
        raise Invalid("outcome", stated, rule)
    # The outcome "out_of_memory" would leave the layout out of later answers, though it is not to
    # blame: the request does not decide.
    if cause is not None:
        return "crashed" if stated in (None, "out_of_memory") else stated
    if not contents.ends_out_of_memory:
        return stated or ("crashed" if _crashed(submission, contents) else "ok")
    if stated not in (None, "out_of_memory"):
        rule = "is not what the log shows: it ends out of memory"
        raise Invalid("outcome", stated, rule)
    return "out_of_memory"


def _report_of_log(
    submission: LogSubmission,
    logged: Mapping[str, Any],
    contents: LogContents,
    measured_at: datetime | None,
) -> ReportSubmission:
    """Returns the log as a report. `logged` has the parts of the question that its arguments give.
    Raises Invalid for a value in the log that a report must not have."""
    report = _report_fields(submission, logged, contents, measured_at)
    if measured_at is not None:
        report["measured_at"] = measured_at
    try:
        return ReportSubmission.model_validate(report)
    except ValidationError as error:
        # []: fields are named from the report itself. The first fault is enough to refuse the log.
        fault = violations_of(error, [], ReportSubmission, limit=1)[0]
        raise Invalid("log", fault.value, f"says {fault.field}, which {fault.rule}") from None


def _report_fields(
    submission: LogSubmission,
    logged: Mapping[str, Any],
    contents: LogContents,
    measured_at: datetime | None,
) -> dict[str, Any]:
    """Returns the fields of the report as JSON has them, without its date. A field that both the
    request and the log give is taken from the request, because a person stated it."""
    # The outcome is added below, and a report has no field for the other two.
    report = submission.model_dump(
        mode="json", exclude_unset=True, exclude={"log", "framework", "outcome"}
    )
    report["outcome"] = _outcome_of_run(submission, contents)
    reading = contents.reading
    if not submission.is_linked:  # a linked run is described by the answer that it names
        report = {**{name: logged[name] for name in _LOGGED_PARTS if name in logged}, **report}
        if "num_chips" in logged and not {"num_chips", "torus_shape"} & report["cluster"].keys():
            report["cluster"]["num_chips"] = logged["num_chips"]
        if logged and "stack" in report:
            switches = megatron_arguments.stack_fields(contents.arguments)
            report["stack"] = _stack_with_logged_switches(report["stack"], switches, measured_at)
    if reading is not None:
        report["measured"] = {reading.unit: reading.value}  # such as {"step_time_s": 2.0}
        if reading.memory_gib is not None:
            report["memory"] = {f"{reading.memory_kind}_gib": reading.memory_gib}
    return report


def _stack_differences(
    problem: Problem, arguments: Mapping[str, str], *, linked: bool
) -> Iterator[str]:
    """Yields notes on switches of the stack whose values in the log differ from those of the answer
    that the run is linked to."""
    if not linked:  # the stack then has the log's switches, but for those requested
        return
    for name, value in megatron_arguments.stack_fields(arguments).items():
        predicted = getattr(problem.stack, name)
        # Sequence parallelism is a field of the layout too, where it is compared.
        if as_tuples(value) != predicted and name != "sequence_parallel":
            yield f"it ran with stack.{name} = {value} where what it is linked to has {predicted}"


def _no_steps_notes(reading: logs.Reading | None, logged: Mapping[str, Any]) -> Iterator[str]:
    """Yields a note on the parts of the question that a log without a usable step still gives."""
    if reading is None and logged:
        parts = ", ".join(sorted(logged))
        yield f"the log has no step to use; its arguments say what ran ({parts})"


def _cut_line_notes(contents: LogContents) -> Iterator[str]:
    """Yields a note on lines that were too long to be read whole, if there are any."""
    if contents.cut_lines:
        lines = "1 line is" if contents.cut_lines == 1 else f"{contents.cut_lines} lines are"
        yield (
            f"{lines} longer than {MAX_LINE_CHARACTERS} characters, and the rest was not read: if"
            " it has steps, send the log with its line breaks"
        )


def _out_of_memory_notes(contents: LogContents) -> Iterator[str]:
    """Yields a note if memory ran out for a reason that says nothing of the layout."""
    words = out_of_memory_words(contents.trouble)
    if words is not None:
        yield f"{words}. It does not count as out of memory, so that no layout is left out for it"


def out_of_memory_words(trouble: LogTrouble) -> str | None:
    """Returns a sentence, without its full stop, on why memory ran out though the layout is not to
    blame, and what to do. None where it may be to blame, or where no memory ran out."""
    cause = trouble.out_of_memory_cause
    if cause == "evaluation":
        return (
            "an evaluation ran out of memory, after steps of training that fitted: give it a"
            " smaller batch, and do not keep the outputs of all its batches on the device"
        )
    if cause == "host":
        return (
            "the memory of a host was full, not that of a device: look at the workers of the data"
            " loader, at what is offloaded, and at the memory that the job asks its scheduler for"
        )
    message = trouble.allocator
    if cause is None or message is None:  # other processes are known by its figures
        return None
    return (
        f"memory ran out because other processes held {message.others_gib:.1f} of"
        f" {message.capacity_gib:.1f} GiB of the device, which says nothing of the layout: end what"
        " is left of earlier runs, and start one rank a device"
    )


def _device_memory_notes(
    printed: logs.Reading | None, reading: logs.Reading | None
) -> Iterator[str]:
    """Yields a note on memory that was computed from a printed share of the device. `printed` is
    the reading of the log alone, and `reading` has the memory in GiB."""
    if printed is not None and reading is not None and printed.used_memory_share is not None:
        yield (
            f"the log prints that {printed.used_memory_share:.1%} of the device's memory were in"
            " use,"
            f" which makes {reading.memory_gib:.1f} GiB, the runtime's own included"
        )


def _speed_change_notes(reading: logs.Reading | None) -> Iterator[str]:
    """Yields a note if the speed changed for good, since the report has a single one."""
    if reading is not None and len(reading.regimes) > 1:
        levels = ", ".join(
            f"{regime.value:.4g} from step {regime.first_step}" for regime in reading.regimes
        )
        yield (
            f"the speed changed for good ({reading.unit}: {levels}), and the report has that of the"
            " middle step"
        )


def _few_steps_notes(reading: logs.Reading | None) -> Iterator[str]:
    """Yields a note if the step time rests on few steps, or on less than half of those found. Steps
    that several ranks print count once."""
    if reading is None:
        return
    different_steps = reading.steps_found - reading.left_out.get("repeated", 0)
    if reading.steps_used >= _FEW_STEPS and 2 * reading.steps_used >= different_steps:
        return
    why = ", ".join(f"{count} {reason}" for reason, count in reading.left_out.items()) or "none"
    rests = (
        f"the step time rests on {reading.steps_used} of the {reading.steps_found} steps found"
        f" (left out: {why})"
    )
    yield f"{rests}: withdraw the report if that is not how the run went"


def _earlier_runs_notes(reading: logs.Reading | None) -> Iterator[str]:
    """Yields a note if the log has other runs before the one that was read."""
    if reading is not None and reading.earlier_runs:
        yield (
            f"the log has {reading.earlier_runs + 1} runs, one after the other, and the report is"
            " of the last: send the others by themselves"
        )


def _stack_with_logged_switches(
    stack: str | Mapping[str, Any], switches: Mapping[str, Any], at: datetime | None
) -> str | Mapping[str, Any]:
    """Returns the stack of the request with the switches that the log shows. A switch that the
    request sets keeps the value of the request. A switch is left out where the stack has that value
    anyway, both today and at the date of the run `at`: without such repetitions, runs of the plain
    stack have equal questions, and are predicted together."""
    request_fields = {"name": stack} if isinstance(stack, str) else stack
    with suppress(UnknownName):  # an unknown stack is refused when it is resolved
        today = catalogue.stack(request_fields["name"])
        years = 0.0 if at is None else software_age_years(at, shipped_profile().software_year)
        then = StackFields(name=today.id, age_years=years).build(today)
        switches = {
            name: value
            for name, value in switches.items()
            if not as_tuples(value) == getattr(today, name) == getattr(then, name)
        }
    with_switches = {**switches, **request_fields}
    return stack if with_switches == request_fields else with_switches
