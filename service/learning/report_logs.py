"""Training logs as reports: what ran, how fast and when is read from the log, where it says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
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
from service.formats.logs import megatron_arguments
from service.formats.logs.failure import tells_out_of_memory, text_after_last_mark
from service.identifiers import log_hash
from service.learning.report_ingestion import ingest_reports, software_age_years
from service.learning.reports import current_document, report_location
from service.resolve.answered_layout import AnsweredLayout, layout_of_report
from service.resolve.resolution import Resolver
from service.runtime.idempotency import CreatedResource, SaveRows
from service.schemas.report import DateSource, LogReading, LogSubmission, Outcome, ReportSubmission
from service.schemas.stack import StackFields
from service.store import Rows, Store
from service.store.arrivals import RowValues

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
    "seq_len", "global_batch", "precision", "num_layers", "hidden_size",
}  # fmt: skip


class ReportLogs:
    def __init__(self, store: Store) -> None:
        self._store = store

    def prepare(self, submission: LogSubmission, received: str) -> SaveRows:
        reading = _read_steps(submission, self._global_batch(submission))
        logged = _logged_question(submission, reading) if reading and reading.arguments else {}
        submission.require_one_subject(settled=_LOGGED_PARTS if logged else ())
        date = _date_of_run(submission, reading, datetime.now(UTC))
        report = _report(submission, logged, reading, date.at)
        with self._store.reading() as rows:
            subject = layout_of_report(rows, report)
            problem = Resolver(rows).resolve(subject.question).problem
        if logged:
            _require_agreement(problem, subject, logged, linked=submission.is_linked)
        if reading is not None:
            _require_framework(problem, reading.framework)
            _require_batch(subject, reading.global_batch)
            _require_tokens(problem, reading.device_tokens)
        row = self._ingest(report, received)
        row["log_hash"] = log_hash(submission.log, row["run_hash"], row["outcome"])
        described = None
        if reading is not None:
            failed = report.outcome == "out_of_memory"
            described = _log_reading(reading, logged, failed).model_dump(mode="json")
        answer = {
            "reading": described,
            "measured_at_from": date.source,
            "notes": [
                *date.notes,
                *_step_time_doubts(reading),
                *_stack_differences(problem, reading, linked=submission.is_linked),
            ],
        }
        return lambda rows: _save(rows, row, answer)

    def _ingest(self, report: ReportSubmission, received: str) -> RowValues:
        """The row to store. A refused measurement is the fault of the log that it was read from."""
        (outcome,) = ingest_reports(self._store, [(report, received)])
        if isinstance(outcome, Invalid) and outcome.field.startswith("measured."):
            name = outcome.field.removeprefix("measured.")
            raise Invalid("log", outcome.value, f"says {name}, which {outcome.rule}")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _global_batch(self, submission: LogSubmission) -> int | None:
        """The sequences of a step, if the request gives or links to them."""
        if submission.workload is not None:
            return submission.workload.global_batch
        if not submission.is_linked:
            return None
        with self._store.reading() as rows:
            return layout_of_report(rows, submission).question.workload.global_batch


def _logged_question(submission: LogSubmission, reading: logs.Reading) -> dict[str, Any]:
    """The parts of the question that the log's arguments give, and `num_chips`.

    NeMo's parameters may say too little. This matters only where the request says nothing else.
    """
    try:
        return dict(megatron_arguments.question(reading.arguments))
    except Invalid:
        described = all(getattr(submission, name) is not None for name in _LOGGED_PARTS)
        if reading.framework != "nemo" or not (submission.is_linked or described):
            raise
        return {}


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


def _read_steps(submission: LogSubmission, global_batch: int | None) -> logs.Reading | None:
    """What the log says of its steps, or None where the run failed before the first."""
    try:
        return logs.read(submission.log, submission.framework, global_batch)
    except Invalid:
        if submission.outcome in (None, "ok") and not tells_out_of_memory(submission.log):
            raise
        return None


def _outcome(submission: LogSubmission, reading: logs.Reading | None) -> Outcome:
    """How the run ended: as the log shows it, or else as the request says."""
    log = submission.log
    if reading is None:
        shows_out_of_memory = tells_out_of_memory(log)
    else:
        shows_out_of_memory = _ends_out_of_memory(log, reading)
    if not shows_out_of_memory:
        return submission.outcome or "ok"
    if submission.outcome not in (None, "out_of_memory"):
        raise Invalid(
            "outcome", submission.outcome, "is not what the log shows: it ends out of memory"
        )
    return "out_of_memory"


def _ends_out_of_memory(log: str, reading: logs.Reading) -> bool:
    """Whether the run ended because it ran out of memory. A retry that trains again shows that the
    layout does fit."""
    if not tells_out_of_memory(log):
        return False
    try:
        logs.read(text_after_last_mark(log), reading.framework)
    except Invalid:
        return True
    return False


def _report(
    submission: LogSubmission,
    logged: Mapping[str, Any],
    reading: logs.Reading | None,
    at: datetime | None,
) -> ReportSubmission:
    """The log as a report. Raises Invalid for what the log says and no report may."""
    report = _report_json(submission, logged, reading, at)
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
    reading: logs.Reading | None,
    at: datetime | None,
) -> dict[str, Any]:
    """The members of the report, without its date. What the request says goes before what the log
    says."""
    report = submission.model_dump(
        mode="json", exclude_unset=True, exclude={"log", "framework", "outcome"}
    )
    report["outcome"] = _outcome(submission, reading)
    if not submission.is_linked:
        report = {**{name: logged[name] for name in _LOGGED_PARTS if name in logged}, **report}
        if "num_chips" in logged and not {"num_chips", "torus_shape"} & report["cluster"].keys():
            report["cluster"]["num_chips"] = logged["num_chips"]
        if reading is not None and logged and "stack" in report:
            switches = megatron_arguments.stack_fields(reading.arguments)
            report["stack"] = _stack_as_logged(report["stack"], switches, at)
    if reading is not None:
        report["measured"] = {reading.unit: reading.value}
        if reading.memory_gib is not None:
            report["memory"] = {f"{reading.memory_kind}_gib": reading.memory_gib}
    return report


def _stack_differences(
    problem: Problem, reading: logs.Reading | None, *, linked: bool
) -> Iterator[str]:
    """Notes on switches of the stack that the log shows otherwise than what it is linked to."""
    if not linked or reading is None or not reading.arguments:
        return
    for name, value in megatron_arguments.stack_fields(reading.arguments).items():
        predicted = getattr(problem.stack, name)
        if as_tuples(value) != predicted and name != "sequence_parallel":
            yield f"it ran with stack.{name} = {value} where what it is linked to has {predicted}"


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
    problem: Problem, subject: AnsweredLayout, logged: Mapping[str, Any], *, linked: bool
) -> None:
    """Refuse a log that says something else than what it is linked to, or than the request."""
    parts = {
        "layout": subject.layout,
        "workload": subject.question.workload,
        "model": problem.architecture,
    }
    compared = [
        (part, name, ran, getattr(fields, name))
        for part, fields in parts.items()
        for name, ran in logged[part].items()
        if name in _COMPARED_FIELDS
    ]
    compared.append(("cluster", "chips", logged["num_chips"], problem.cluster.num_devices))
    for part, name, ran, answered in compared:
        if ran == answered:
            continue
        if linked:
            where = "what it is linked to"
            remedy = f"report it with its own {part}"
        else:
            where = "the request"
            remedy = f"leave {_OPEN_FIELDS.get(part, part)} to the log"
        raise Invalid("log", None, f"ran {name} = {ran} where {where} has {answered}: {remedy}")


def _require_framework(problem: Problem, framework: str) -> None:
    if problem.stack.calibrated_as not in _PRINTED_BY[framework]:
        rule = f"is of {framework}, and the run that it should be of has stack {problem.stack.id}"
        raise Invalid("log", None, rule)


def _require_batch(subject: AnsweredLayout, global_batch: int | None) -> None:
    asked = subject.question.workload.global_batch
    if global_batch not in (None, asked):
        rule = (
            f"has steps of {global_batch} sequences, and the run that it should be of has"
            f" global_batch = {asked}"
        )
        raise Invalid("log", None, rule)


def _require_tokens(problem: Problem, device_tokens: float | None) -> None:
    asked = problem.workload.tokens / problem.cluster.num_devices
    if device_tokens is not None and abs(device_tokens / asked - 1) > _MAX_ROUNDING:
        rule = (
            f"has steps of {device_tokens:.0f} tokens a device, and the run that it should be of"
            f" has {asked:.0f}"
        )
        raise Invalid("log", None, rule)


def _log_reading(reading: logs.Reading, logged: Mapping[str, Any], failed: bool) -> LogReading:
    return LogReading.model_validate(
        {
            "framework": reading.framework,
            "unit": reading.unit,
            "value": reading.value,
            "low": reading.low,
            "high": reading.high,
            "steps_found": reading.steps_found,
            "steps_used": reading.steps_used,
            "left_out": reading.left_out,
            "levels": [asdict(regime) for regime in reading.regimes],
            "restarts": reading.restarts,
            "global_batch": reading.global_batch,
            "memory_gib": reading.memory_gib,
            "memory_kind": reading.memory_kind,
            "unread": [
                {"line": one.line, "text": one.text, "reason": one.reason} for one in reading.unread
            ],
            "from_arguments": sorted(logged),
            "out_of_memory": failed,
        }
    )


def _save(rows: Rows, report: RowValues, answer: Mapping[str, Any]) -> CreatedResource:
    """Store the report once. Whoever sends the log of the same run again gets what the first
    sending got."""
    rows.lock(f"log:{report['log_hash']}")
    earlier = rows.reports.first_of_log(report["log_hash"])
    if earlier is None:
        (stored,) = rows.reports.add([report])
        created = {**answer, "repeated": False, "report": stored["document"]}
        return CreatedResource(report_location(stored["id"]), created)
    repeated = {**answer, "repeated": True, "report": current_document(earlier)}
    if answer["measured_at_from"] == "request" and report["measured_at"] != earlier.measured_at:
        note = (
            f"the report is of {earlier.measured_at:%Y-%m-%d %H:%M:%S}, as it was first sent:"
            " withdraw it to send the log with another measured_at"
        )
        repeated["notes"] = [*answer["notes"], note]
    return CreatedResource(report_location(earlier.id), repeated, replayed=True)
