"""Training logs as reports."""

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
from service.field_violations import of_refusal
from service.formats import logs
from service.formats.logs import megatron_arguments
from service.formats.logs.failure import after_the_last, out_of_memory
from service.identifiers import log_hash
from service.learning.report_ingestion import software_age, taken
from service.learning.reports import document_of, location
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
_SETTLED = ("model", "workload", "layout")
"""What a log may say itself."""
_LEFT = {"cluster": "cluster.num_chips"}
"""What may be left open of a part that has to be given."""
_EARLIEST = datetime(2015, 1, 1, tzinfo=UTC)
_ZONES_DIFFER = timedelta(days=1)
"""At most, of a clock that does not say its zone; and clocks differ."""
_FEW = 3  # steps
_ROUNDED = 0.05  # at most, of tokens that are worked out of rates and times
_COMPARED = {
    "pp", "tp", "cp", "ep", "etp", "micro_batch", "virtual_stages", "schedule", "recompute",
    "seq_len", "global_batch", "precision", "num_layers", "hidden_size",
}  # fmt: skip


class ReportLogs:
    def __init__(self, store: Store) -> None:
        self._store = store

    def take(self, submission: LogSubmission, received: str) -> SaveRows:
        reading = _read(submission, self._global_batch(submission))
        said = _said(submission, reading) if reading and reading.arguments else {}
        submission.require_one_subject(settled=_SETTLED if said else ())
        date = _date(submission, reading, datetime.now(UTC))
        dated = {} if date.at is None else {"measured_at": date.at}
        report = _submitted({**_report(submission, said, reading, date.at), **dated})
        with self._store.reading() as rows:
            subject = layout_of_report(rows, report)
            problem = Resolver(rows).resolve(subject.question).problem
        if said:
            _require_agreement(problem, subject, said, linked=submission.is_linked)
        if reading is not None:
            _require_framework(problem, reading.framework)
            _require_batch(subject, reading.global_batch)
            _require_tokens(problem, reading.device_tokens)
        (outcome,) = taken(self._store, [(report, received)])
        if isinstance(outcome, Invalid) and outcome.field.startswith("measured."):
            raise Invalid(
                "log",
                outcome.value,
                f"says {outcome.field.removeprefix('measured.')}, which {outcome.rule}",
            )
        if isinstance(outcome, Exception):
            raise outcome
        described = (
            None if reading is None else _reading(reading, said, report.outcome == "out_of_memory")
        )
        row = {
            **outcome,
            "log_hash": log_hash(submission.log, outcome["run_hash"], outcome["outcome"]),
        }
        beside = {
            "reading": described and described.model_dump(mode="json"),
            "measured_at_from": date.source,
            "notes": [
                *date.notes,
                *_doubts(reading),
                *_differences(problem, reading, linked=submission.is_linked),
            ],
        }
        return lambda rows: _save(rows, row, beside)

    def _global_batch(self, submission: LogSubmission) -> int | None:
        """Sequences of a step, where the request says or links to them."""
        if submission.workload is not None:
            return submission.workload.global_batch
        if not submission.is_linked:
            return None
        with self._store.reading() as rows:
            return layout_of_report(rows, submission).question.workload.global_batch


def _said(submission: LogSubmission, reading: logs.Reading) -> dict[str, Any]:
    """What the log says that it ran. Parameters of NeMo that say too little matter only where they
    are needed."""
    try:
        return dict(megatron_arguments.question(reading.arguments))
    except Invalid:
        described = all(getattr(submission, name) is not None for name in _SETTLED)
        if reading.framework != "nemo" or not (submission.is_linked or described):
            raise
        return {}


@dataclass(frozen=True, slots=True)
class _Date:
    """When it ran, and who says so; None is now, for nothing says when."""

    at: datetime | None
    source: DateSource
    notes: tuple[str, ...] = ()


def _date(submission: LogSubmission, reading: logs.Reading | None, now: datetime) -> _Date:
    """As the request says it, else as the log does, unless that cannot be."""
    if submission.measured_at is not None:
        return _Date(submission.measured_at, "request")
    if reading is None or (printed := reading.stamp) is None:
        return _Date(None, "arrival")
    at = printed.replace(tzinfo=UTC) if printed.tzinfo is None else printed
    if _EARLIEST <= at <= now + _ZONES_DIFFER:
        return _Date(min(at, now), "log")
    why = "in the future" if at > now else f"before {_EARLIEST.year}"
    return _Date(
        None,
        "arrival",
        (f"the log dates its last step {printed:%Y-%m-%d %H:%M:%S}, which is {why}: ignored",),
    )


def _submitted(report: dict[str, Any]) -> ReportSubmission:
    """Raises Invalid for what the log says and no report may."""
    try:
        return ReportSubmission.model_validate(report)
    except ValidationError as error:
        fault = of_refusal(error, [], ReportSubmission, most=1)[0]
        raise Invalid("log", fault.value, f"says {fault.field}, which {fault.rule}") from None


def _read(submission: LogSubmission, global_batch: int | None) -> logs.Reading | None:
    """The steps, or None where the run failed before any."""
    try:
        return logs.read(submission.log, submission.framework, global_batch)
    except Invalid:
        if submission.outcome in (None, "ok") and not out_of_memory(submission.log):
            raise
        return None


def _outcome(submission: LogSubmission, reading: logs.Reading | None) -> Outcome:
    """As the log shows it, else as it is said."""
    shown = out_of_memory(submission.log) if reading is None else _ended(submission.log, reading)
    if not shown:
        return submission.outcome or "ok"
    if submission.outcome not in (None, "out_of_memory"):
        raise Invalid(
            "outcome", submission.outcome, "is not what the log shows: it ends out of memory"
        )
    return "out_of_memory"


def _ended(log: str, reading: logs.Reading) -> bool:
    """Whether the run ended for want of memory: a retry that trains again shows that the layout
    fits."""
    if not out_of_memory(log):
        return False
    try:
        logs.read(after_the_last(log), reading.framework)
    except Invalid:
        return True
    return False


def _report(
    submission: LogSubmission,
    said: Mapping[str, Any],
    reading: logs.Reading | None,
    at: datetime | None,
) -> dict[str, Any]:
    """The report that the log is, in the words of POST /v1/reports."""
    given = submission.model_dump(
        mode="json", exclude_unset=True, exclude={"log", "framework", "outcome"}
    )
    given["outcome"] = _outcome(submission, reading)
    if not submission.is_linked:
        given = {**{name: said[name] for name in _SETTLED if name in said}, **given}
        if "num_chips" in said and not {"num_chips", "torus_shape"} & given["cluster"].keys():
            given["cluster"]["num_chips"] = said["num_chips"]
        if reading is not None and said and "stack" in given:
            given["stack"] = _able(
                given["stack"], megatron_arguments.abilities(reading.arguments), at
            )
    if reading is None:
        return given
    measured: dict[str, Any] = {"measured": {reading.unit: reading.value}}
    if reading.memory_gib is not None:
        measured["memory"] = {f"{reading.memory_kind}_gib": reading.memory_gib}
    return {**given, **measured}


def _differences(problem: Problem, reading: logs.Reading | None, *, linked: bool) -> Iterator[str]:
    """What a log shows of its stack that is not so in the report."""
    shown = (
        megatron_arguments.abilities(reading.arguments)
        if linked and reading and reading.arguments
        else {}
    )
    for name, value in shown.items():
        predicted = getattr(problem.stack, name)
        if as_tuples(value) != predicted and name != "sequence_parallel":
            yield f"it ran with stack.{name} = {value} where what it is linked to has {predicted}"


def _doubts(reading: logs.Reading | None) -> list[str]:
    """Why the step time may not be what the run did."""
    return [] if reading is None else [*_changes_of_speed(reading), *_rests_on_few(reading)]


def _changes_of_speed(reading: logs.Reading) -> Iterator[str]:
    if len(reading.levels) > 1:
        levels = ", ".join(
            f"{level.value:.4g} from step {level.first_step}" for level in reading.levels
        )
        yield (
            f"the speed changed for good ({reading.unit}: {levels}), and the report has that of the"
            " middle step"
        )


def _rests_on_few(reading: logs.Reading) -> Iterator[str]:
    if reading.steps_used >= _FEW and 2 * reading.steps_used >= reading.steps_found:
        return
    why = ", ".join(f"{count} {reason}" for reason, count in reading.left_out.items()) or "none"
    rests = (
        f"the step time rests on {reading.steps_used} of the {reading.steps_found} steps found"
        f" (left out: {why})"
    )
    yield f"{rests}: withdraw the report if that is not how the run went"


def _able(
    stack: str | Mapping[str, Any], shown: Mapping[str, Any], at: datetime | None
) -> str | Mapping[str, Any]:
    """The stack as the log shows it, where that is not what it does anyway, now and then; what the
    request says goes before."""
    given = {"name": stack} if isinstance(stack, str) else stack
    with suppress(UnknownName):  # which is refused when it is resolved
        usual = catalogue.stack(given["name"])
        years = 0.0 if at is None else software_age(at, shipped_profile().software_year)
        then = StackFields(name=usual.id, age_years=years).build(usual)
        usually = {name: {getattr(usual, name), getattr(then, name)} for name in shown}
        shown = {
            name: value for name, value in shown.items() if {as_tuples(value)} != usually[name]
        }
    able = {**shown, **given}
    return stack if able == given else able


def _require_agreement(
    problem: Problem, subject: AnsweredLayout, said: Mapping[str, Any], *, linked: bool
) -> None:
    """What the log says that it ran is what it is linked to, or what is said of it."""
    parts = {
        "layout": subject.layout,
        "workload": subject.question.workload,
        "model": problem.architecture,
    }
    compared = [
        (part, name, ran, getattr(fields, name))
        for part, fields in parts.items()
        for name, ran in said[part].items()
        if name in _COMPARED
    ]
    for part, name, ran, answered in [
        *compared,
        ("cluster", "chips", said["num_chips"], problem.cluster.num_devices),
    ]:
        if ran != answered:
            where = "what it is linked to" if linked else "the request"
            remedy = (
                f"report it with its own {part}"
                if linked
                else f"leave {_LEFT.get(part, part)} to the log"
            )
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
    if device_tokens is not None and abs(device_tokens / asked - 1) > _ROUNDED:
        rule = (
            f"has steps of {device_tokens:.0f} tokens a device, and the run that it should be of"
            f" has {asked:.0f}"
        )
        raise Invalid("log", None, rule)


def _reading(reading: logs.Reading, said: Mapping[str, Any], failed: bool) -> LogReading:
    apart = ("levels", "unread", "from_arguments", "out_of_memory")
    names = [name for name in LogReading.model_fields if name not in apart]
    return LogReading.model_validate(
        {
            **{name: getattr(reading, name) for name in names},
            "levels": [asdict(level) for level in reading.levels],
            "unread": [
                {"line": one.line, "text": one.text, "reason": one.reason} for one in reading.unread
            ],
            "from_arguments": sorted(said),
            "out_of_memory": failed,
        }
    )


def _save(rows: Rows, report: RowValues, beside: Mapping[str, Any]) -> CreatedResource:
    """Once: whoever sends a log again, of the same run, gets what the first sending got."""
    rows.lock(f"log:{report['log_hash']}")
    earlier = rows.reports.first_of_log(report["log_hash"])
    if earlier is not None:
        kept = {**beside, "repeated": True, "report": document_of(earlier)}
        if beside["measured_at_from"] == "request" and report["measured_at"] != earlier.measured_at:
            was = (
                f"the report is of {earlier.measured_at:%Y-%m-%d %H:%M:%S}, as it was first sent:"
                " withdraw it to send"
            )
            kept["notes"] = [*beside["notes"], f"{was} the log with another measured_at"]
        return CreatedResource(location(earlier.id), kept, replayed=True)
    (stored,) = rows.reports.add([report])
    return CreatedResource(
        location(stored["id"]), {**beside, "repeated": False, "report": stored["document"]}
    )
