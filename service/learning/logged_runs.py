"""Runs as their training logs tell of them: what ran, how fast and when is read from the log, where
it says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
from service.formats.logs.contents import LogContents
from service.formats.logs.devices import PrintedDevice
from service.formats.logs.lines import MAX_LINE_CHARACTERS
from service.formats.megatron import arguments as megatron_arguments
from service.learning.report_ingestion import software_age_years
from service.resolve.answered_layout import AnsweredLayout, layout_of_report
from service.resolve.model_values import model_values
from service.resolve.resolution import Resolver
from service.schemas.report import DateSource, LogSubmission, Outcome, ReportSubmission
from service.schemas.stack import StackFields
from service.store import Store

_PRINTED_BY: dict[str, set[str]] = {
    "megatron": {"megatron", "megatron-deepspeed", "aa-scaling", "deepseek", "generic"},
    "nemo": {"megatron", "generic"},
    "torchtitan": {"torchtitan", "generic"},
    "maxtext": {"maxtext", "generic"},
}
"""The stacks whose runs print each kind of log."""
_LOGGED_PARTS = ("model", "workload", "layout")
"""The parts of a report that the arguments in a log may give."""
_OPEN_FIELDS = {"cluster": "cluster.num_chips"}
"""The field that may be left open to the log, of a part that has to be given."""
_EARLIEST_DATE = datetime(2015, 1, 1, tzinfo=UTC)
_MAX_ZONE_OFFSET = timedelta(days=1)
"""How far a clock that does not say its zone may be ahead, the error of the clock included."""
_FEW_STEPS = 3
_MAX_ROUNDING = 0.05  # of tokens that are worked out from rounded rates and times
_COMPARED_FIELDS = {
    "pp", "tp", "cp", "ep", "etp", "micro_batch", "virtual_stages", "schedule", "recompute",
    "sequence_parallel", "seq_len", "global_batch", "precision", "optimizer",
}  # fmt: skip
"""Of layout and workload. Of the model all that `model_values` has is compared."""


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """A run as its log and the request beside it tell of it."""

    report: ReportSubmission
    reading: logs.Reading | None
    """None where the run failed before its first step."""
    arguments: Mapping[str, str]
    """Those that the log prints, in Megatron's names."""
    question: Mapping[str, Any]
    """The parts of the question that the arguments give, in their wire form."""
    date_source: DateSource
    doubts: tuple[str, ...]
    """What may be wrong about the date and the step time."""
    stack_differences: tuple[str, ...]
    """Switches that the log shows otherwise than what it is linked to."""
    cut_lines: tuple[str, ...]
    """A note on lines that were too long to be read whole, if there are any."""

    @property
    def notes(self) -> list[str]:
        return [*self.doubts, *self.stack_differences, *self.cut_lines]


def read_logged_run(
    store: Store,
    submission: LogSubmission,
    contents: LogContents,
    otherwise: str = "prediction_id or recommendation_id",
) -> LoggedRun:
    """The run of a log that says this. Raises Invalid for a log that is of another run than the
    request says. `otherwise` names the members of the request that say what ran in place of a
    description."""
    reading = contents.reading
    logged = _logged_question(submission, contents.arguments)
    settled = [name for name in _LOGGED_PARTS if name in logged]
    submission.require_one_subject(settled, otherwise)
    date = _date_of_run(submission, reading, datetime.now(UTC))
    report = _report(submission, logged, contents, date.at)
    with store.reading() as rows:
        subject = layout_of_report(rows, report)
        problem = Resolver(rows).resolve(subject.question).problem
    _require_same_run(submission, contents, subject, problem)
    return LoggedRun(
        report=report,
        reading=reading,
        arguments=contents.arguments,
        question=logged,
        date_source=date.source,
        doubts=(
            *date.notes,
            *_step_time_doubts(reading),
            *_sources_without_steps(reading, logged),
        ),
        stack_differences=tuple(
            _stack_differences(problem, contents.arguments, linked=submission.is_linked)
        ),
        cut_lines=tuple(_cut_line_notes(contents)),
    )


def asked_global_batch(store: Store, submission: LogSubmission) -> int | None:
    """The sequences of a step, if the request gives or links to them."""
    if submission.workload is not None:
        return submission.workload.global_batch
    if not submission.is_linked:
        return None
    with store.reading() as rows:
        return layout_of_report(rows, submission).question.workload.global_batch


def _require_same_run(
    submission: LogSubmission, contents: LogContents, subject: AnsweredLayout, problem: Problem
) -> None:
    """Refuse a log that is of another run than the request says, or than it is linked to."""
    linked = submission.is_linked
    if contents.framework is not None:
        _require_framework(problem, contents.framework)
    _require_chip(problem, contents.devices, linked=linked)
    if contents.arguments:
        _require_agreement(problem, subject, contents.arguments, linked=linked)
    if contents.reading is not None:
        _require_batch(subject, contents.reading.global_batch)
        _require_tokens(problem, contents.reading.device_tokens)


def _logged_question(submission: LogSubmission, arguments: Mapping[str, str]) -> Mapping[str, Any]:
    """The parts of the question that the log's arguments give, and `num_chips`. Arguments that say
    too little matter only where the request does not say it either."""
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
    """When a run was measured, and what says so. `at` is None where nothing does: it counts as
    measured when the report is stored."""

    at: datetime | None
    source: DateSource
    notes: tuple[str, ...] = ()


def _date_of_run(submission: LogSubmission, reading: logs.Reading | None, now: datetime) -> _Date:
    """The date that the request gives, or else that of the log, unless it is impossible."""
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
    """Raises the refusal of a log without a step to use, unless it is of a run that failed
    before."""
    refusal = contents.refusal
    if refusal is None:
        return
    has_failed = submission.outcome not in (None, "ok")
    if has_failed or contents.tells_out_of_memory or _crashed(submission, contents):
        return
    if contents.printed is not None or contents.tells_crash:
        refusal.rule += "; if the run failed before its first step, say so in outcome"
    refusal.rule += "".join(f"; {note}" for note in _cut_line_notes(contents))
    raise refusal


def _crashed(submission: LogSubmission, contents: LogContents) -> bool:
    """Whether a log without a step is of a run that crashed: it prints the run's arguments, and
    ends with a crash."""
    has_started = contents.reading is None and contents.printed is not None
    return submission.outcome is None and has_started and contents.tells_crash


def _outcome(submission: LogSubmission, contents: LogContents) -> Outcome:
    """How the run ended: as the log shows it, or else as the request says."""
    if contents.reading is None:
        shows_out_of_memory = contents.tells_out_of_memory
    else:
        shows_out_of_memory = contents.ends_out_of_memory
    if not shows_out_of_memory:
        return submission.outcome or ("crashed" if _crashed(submission, contents) else "ok")
    if submission.outcome not in (None, "out_of_memory"):
        raise Invalid(
            "outcome", submission.outcome, "is not what the log shows: it ends out of memory"
        )
    return "out_of_memory"


def _report(
    submission: LogSubmission,
    logged: Mapping[str, Any],
    contents: LogContents,
    at: datetime | None,
) -> ReportSubmission:
    """The log as a report. Raises Invalid for what the log says and no report may."""
    report = _report_json(submission, logged, contents, at)
    if at is not None:
        report["measured_at"] = at
    try:
        return ReportSubmission.model_validate(report)
    except ValidationError as error:
        fault = violations_of(error, [], ReportSubmission, limit=1)[0]
        raise Invalid("log", fault.value, f"says {fault.field}, which {fault.rule}") from None


def _report_json(
    submission: LogSubmission,
    logged: Mapping[str, Any],
    contents: LogContents,
    at: datetime | None,
) -> dict[str, Any]:
    """The members of the report, without its date. What the request says goes before what the log
    says."""
    report = submission.model_dump(
        mode="json", exclude_unset=True, exclude={"log", "framework", "outcome"}
    )
    report["outcome"] = _outcome(submission, contents)
    reading = contents.reading
    if not submission.is_linked:
        report = {**{name: logged[name] for name in _LOGGED_PARTS if name in logged}, **report}
        if "num_chips" in logged and not {"num_chips", "torus_shape"} & report["cluster"].keys():
            report["cluster"]["num_chips"] = logged["num_chips"]
        if logged and "stack" in report:
            switches = megatron_arguments.stack_fields(contents.arguments)
            report["stack"] = _stack_as_logged(report["stack"], switches, at)
    if reading is not None:
        report["measured"] = {reading.unit: reading.value}
        if reading.memory_gib is not None:
            report["memory"] = {f"{reading.memory_kind}_gib": reading.memory_gib}
    return report


def _stack_differences(
    problem: Problem, arguments: Mapping[str, str], *, linked: bool
) -> Iterator[str]:
    """Notes on switches of the stack that the log shows otherwise than what it is linked to."""
    if not linked:
        return
    for name, value in megatron_arguments.stack_fields(arguments).items():
        predicted = getattr(problem.stack, name)
        if as_tuples(value) != predicted and name != "sequence_parallel":
            yield f"it ran with stack.{name} = {value} where what it is linked to has {predicted}"


def _sources_without_steps(
    reading: logs.Reading | None, logged: Mapping[str, Any]
) -> Iterator[str]:
    """A note on what was read off a log that has no step, and so no `reading`."""
    if reading is None and logged:
        parts = ", ".join(sorted(logged))
        yield f"the log has no step to use; its arguments say what ran ({parts})"


def _cut_line_notes(contents: LogContents) -> Iterator[str]:
    if contents.cut_lines:
        lines = "1 line is" if contents.cut_lines == 1 else f"{contents.cut_lines} lines are"
        yield (
            f"{lines} longer than {MAX_LINE_CHARACTERS} characters, and the rest was not read: if"
            " it has steps, send the log with its line breaks"
        )


def _step_time_doubts(reading: logs.Reading | None) -> list[str]:
    """Notes on why the step time may not be that of the run."""
    if reading is None:
        return []
    return [*_speed_change_notes(reading), *_few_steps_notes(reading)]


def _speed_change_notes(reading: logs.Reading) -> Iterator[str]:
    if len(reading.regimes) > 1:
        levels = ", ".join(
            f"{regime.value:.4g} from step {regime.first_step}" for regime in reading.regimes
        )
        yield (
            f"the speed changed for good ({reading.unit}: {levels}), and the report has that of the"
            " middle step"
        )


def _few_steps_notes(reading: logs.Reading) -> Iterator[str]:
    if reading.steps_used >= _FEW_STEPS and 2 * reading.steps_used >= reading.steps_found:
        return
    why = ", ".join(f"{count} {reason}" for reason, count in reading.left_out.items()) or "none"
    rests = (
        f"the step time rests on {reading.steps_used} of the {reading.steps_found} steps found"
        f" (left out: {why})"
    )
    yield f"{rests}: withdraw the report if that is not how the run went"


def _stack_as_logged(
    stack: str | Mapping[str, Any], switches: Mapping[str, Any], at: datetime | None
) -> str | Mapping[str, Any]:
    """The stack of the request with the switches that the log shows, where the request does not set
    them and they are not those that the stack has anyway, today and at the date of the run."""
    given = {"name": stack} if isinstance(stack, str) else stack
    with suppress(UnknownName):  # an unknown stack is refused when it is resolved
        today = catalogue.stack(given["name"])
        years = 0.0 if at is None else software_age_years(at, shipped_profile().software_year)
        then = StackFields(name=today.id, age_years=years).build(today)
        switches = {
            name: value
            for name, value in switches.items()
            if {as_tuples(value)} != {getattr(today, name), getattr(then, name)}
        }
    with_switches = {**switches, **given}
    return stack if with_switches == given else with_switches


def _require_agreement(
    problem: Problem, subject: AnsweredLayout, arguments: Mapping[str, str], *, linked: bool
) -> None:
    """Refuse a log that says something else than what it is linked to, or than the request."""
    for part, name, ran, answered in _compared_values(problem, subject, arguments):
        if ran == answered:
            continue
        if linked:
            where = "what it is linked to"
            remedy = f"report it with its own {part}"
        else:
            where = "the request"
            remedy = f"leave {_OPEN_FIELDS.get(part, part)} to the log"
        raise Invalid("log", ran, f"ran {name} = {ran} where {where} has {answered}: {remedy}")


def _compared_values(
    problem: Problem, subject: AnsweredLayout, arguments: Mapping[str, str]
) -> Iterator[tuple[str, str, object, object]]:
    """A part of the question, the name of a value, and the value in the log and in the answer, for
    each value that both have."""
    stated = megatron_arguments.stated_values(arguments)
    of_model = model_values(problem.architecture)
    logged_model = {**stated["model"], **stated["model"].get("moe", {})}
    yield from (
        ("model", name, logged_model[name], value)
        for name, value in of_model.items()
        if name in logged_model
    )
    layout = subject.layout.with_stack_defaults(problem).build()
    for part, fields in (("layout", layout), ("workload", subject.question.workload)):
        for name, ran in stated[part].items():
            if name in _COMPARED_FIELDS:
                yield part, name, ran, getattr(fields, name)
    degrees = stated["layout"]
    if "zero_stage" in degrees:
        ranks = degrees["dp_shard"] * degrees["dp_replicate"]
        if ranks > 1:
            yield "layout", "zero_stage", degrees["zero_stage"], layout.zero_stage
        chips = ranks * degrees["tp"] * degrees["pp"] * degrees["cp"]
        yield "cluster", "chips", chips, problem.cluster.num_devices


def _require_chip(problem: Problem, devices: Sequence[PrintedDevice], *, linked: bool) -> None:
    """Refuse a log that names accelerators, and none that is the cluster's. A chip that is not of
    the catalogue may print any name."""
    shipped = {chip.id for chip in catalogue.chips().values()}
    chip = problem.cluster.chip.id
    if chip not in shipped or not devices:
        return
    if any(chip in device.matching(shipped) for device in devices):
        return
    where = "what it is linked to" if linked else "the request"
    rule = (
        f"ran on {devices[0].name} where {where} has cluster.chip = {chip}: name the chip that the"
        " run had"
    )
    raise Invalid("log", devices[0].name, rule)


def _require_framework(problem: Problem, framework: str) -> None:
    if problem.stack.calibrated_as not in _PRINTED_BY[framework]:
        rule = f"is of {framework}, and the run that it should be of has stack {problem.stack.id}"
        raise Invalid("log", framework, rule)


def _require_batch(subject: AnsweredLayout, global_batch: int | None) -> None:
    asked = subject.question.workload.global_batch
    if global_batch not in (None, asked):
        rule = (
            f"has steps of {global_batch} sequences, and the run that it should be of has"
            f" global_batch = {asked}"
        )
        raise Invalid("log", global_batch, rule)


def _require_tokens(problem: Problem, device_tokens: float | None) -> None:
    asked = problem.workload.tokens / problem.cluster.num_devices
    if device_tokens is not None and abs(device_tokens / asked - 1) > _MAX_ROUNDING:
        rule = (
            f"has steps of {device_tokens:.0f} tokens a device, and the run that it should be of"
            f" has {asked:.0f}"
        )
        raise Invalid("log", round(device_tokens), rule)
