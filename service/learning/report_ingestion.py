"""Reports as they come in: each resolved, those of one problem predicted together, and answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from models.errors import DomainError, Invalid
from models.layouts.rules import first_broken
from models.prediction.prediction import Prediction, predict_layouts
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.ask.predictions import require_all_legal
from service.errors import ServiceError
from service.formats.runs import age_years
from service.identifiers import run_hash
from service.learning.residual_attribution import ResidualAttribution
from service.resolve import measurements
from service.resolve.answer_basis import basis
from service.resolve.answered_layout import AnsweredLayout, layout_of_report
from service.resolve.assumptions import layout_assumptions, software_date_assumptions
from service.resolve.profiles import active_profile
from service.resolve.resolution import ResolvedQuestion, Resolver
from service.schemas.layout import LayoutFields
from service.schemas.prediction import PredictedLayout
from service.schemas.report import ReportAnswer, ReportSubmission
from service.schemas.stack import aged
from service.store import Rows, Store
from service.store.arrivals import RowValues

Refusal = DomainError | ServiceError
_CLOCKS_DIFFER = timedelta(days=1)
_SHARED = 2  # times the memory of a device: a run that failed may have had some of the host's too


@dataclass(frozen=True, slots=True)
class _Asked:
    """A submission and the question that it answers; `open_` is the layout as it was given, `key`
    tells questions apart."""

    submission: ReportSubmission
    received: str
    subject: AnsweredLayout
    open_: LayoutFields
    layout: Layout
    resolved: ResolvedQuestion
    key: str

    @property
    def problem(self) -> Problem:
        return self.resolved.problem


def taken(
    store: Store, submissions: Sequence[tuple[ReportSubmission, str]]
) -> list[RowValues | Refusal]:
    """What to store of each submission with its text as received, or why it is refused."""
    outcomes: dict[int, RowValues | Refusal] = {}
    with store.reading() as rows:
        intake = _Intake(rows, active_profile(rows))
        asked = intake.asked(submissions, outcomes)
    intake.answer(asked, outcomes)
    return [outcomes[i] for i in range(len(submissions))]


class _Intake:
    """Of one moment: the catalogue and the profile as they are now. Questions and layouts that come
    again are worked out once."""

    def __init__(self, rows: Rows, profile: Profile) -> None:
        self._rows, self._profile = rows, profile
        self._resolver = Resolver(rows)
        self._subjects: dict[
            tuple[str | None, str | None, int | None, str | None], AnsweredLayout
        ] = {}
        self._resolved: dict[str, ResolvedQuestion] = {}
        self._predicted: dict[tuple[str, Layout], Prediction] = {}
        self._gaps: dict[tuple[str, Layout], ResidualAttribution] = {}

    def asked(
        self,
        submissions: Sequence[tuple[ReportSubmission, str]],
        outcomes: dict[int, RowValues | Refusal],
    ) -> dict[int, _Asked]:
        """All that is read."""
        asked: dict[int, _Asked] = {}
        for i, (submission, received) in enumerate(submissions):
            with _refused(outcomes, i):
                asked[i] = self._ask(submission, received)
        return asked

    def answer(self, asked: dict[int, _Asked], outcomes: dict[int, RowValues | Refusal]) -> None:
        """All that is computed, outside of any transaction."""
        for i in self._illegal(asked):
            with _refused(outcomes, i):
                one = asked.pop(i)
                require_all_legal(
                    one.problem, {one.subject.field: one.layout}, {one.subject.field: one.open_}
                )
        self._predict(asked)
        for i, one in asked.items():
            with _refused(outcomes, i):
                outcomes[i] = self._row(one)

    def _ask(self, submission: ReportSubmission, received: str) -> _Asked:
        subject = _as_old_as_measured(
            submission, self._subject(submission), self._profile.software_year
        )
        key = subject.question.model_dump_json()
        if key not in self._resolved:
            self._resolved[key] = self._resolver.resolve(subject.question)
        resolved, open_ = self._resolved[key], subject.layout
        settled = open_.settled(resolved.problem)
        subject = replace(subject, layout=settled)
        return _Asked(submission, received, subject, open_, settled.build(), resolved, key)

    def _subject(self, submission: ReportSubmission) -> AnsweredLayout:
        key = (
            submission.prediction_id,
            submission.recommendation_id,
            submission.rank,
            submission.choice,
        )
        if key not in self._subjects or not any(key):
            self._subjects[key] = layout_of_report(self._rows, submission)
        return self._subjects[key]

    def _illegal(self, asked: Mapping[int, _Asked]) -> list[int]:
        found: list[int] = []
        for members in _by_question(asked):
            broken = first_broken(
                asked[members[0]].problem, Layouts.of([asked[i].layout for i in members])
            )
            found += [i for i, rule in zip(members, broken, strict=True) if rule >= 0]
        return found

    def _predict(self, asked: Mapping[int, _Asked]) -> None:
        """Every layout once."""
        for members in _by_question(asked):
            first = asked[members[0]]
            layouts = list(dict.fromkeys(asked[i].layout for i in members))
            predictions = predict_layouts(first.problem, layouts, self._profile)
            self._predicted |= {
                (first.key, x): p for x, p in zip(layouts, predictions, strict=True)
            }

    def _row(self, asked: _Asked) -> RowValues:
        submission, resolved = asked.submission, asked.resolved
        prediction = self._predicted[asked.key, asked.layout]
        _require_stage(submission, prediction.layout.pp)
        _require_room(submission, asked.problem)
        _require_past(submission)
        answer = self._answer(asked, prediction)
        answer.assumptions.extend(
            software_date_assumptions(submission, asked.subject.question.stack)
        )
        answer.assumptions.extend(
            layout_assumptions(
                asked.subject.field, asked.open_, asked.subject.layout, asked.problem
            )
        )
        document = answer.model_dump(mode="json")
        return {
            "measured_at": answer.measured_at,
            "source": answer.source,
            "outcome": answer.outcome,
            "chip": asked.problem.cluster.chip.id,
            "fabric": resolved.used.fabric.name,
            "stack": asked.problem.stack.id,
            "architecture": asked.problem.architecture.name,
            "profile_id": answer.profile.id,
            "profile_version": answer.profile.version,
            "prediction_id": answer.prediction_id,
            "recommendation_id": answer.recommendation_id,
            "choice": answer.choice,
            "step_time_s": answer.measured.step_time_s if answer.measured else None,
            "predicted_step_time_s": answer.prediction.step_time_s,
            "residual": answer.residual,
            "within_interval": answer.within_interval,
            "submission": asked.received,
            "document": document,
            "run_hash": run_hash(document["request"]),
        }

    def _answer(self, asked: _Asked, prediction: Prediction) -> ReportAnswer:
        submission, subject = asked.submission, asked.subject
        measured = None
        if submission.measured:
            measured = measurements.speed(
                asked.problem, submission.measured, prediction.step_time_s
            )
        step = measured.step_time_s if measured else None
        within, parts = measurements.within(step, prediction), None
        if submission.parts and step is not None:
            parts = measurements.parts(asked.problem, submission.parts, step, prediction)
        answer = ReportAnswer(
            outcome=submission.outcome,
            prediction_id=submission.prediction_id,
            recommendation_id=submission.recommendation_id,
            rank=subject.rank,
            choice=submission.choice,
            prediction=PredictedLayout.of(prediction),
            measured=measured,
            residual=measurements.log_ratio(step, prediction.step_time_s),
            within_interval=within,
            memory=(
                measurements.memory(submission.memory, prediction) if submission.memory else None
            ),
            failure=submission.failure,
            parts=parts,
            fit_verdict_agrees=_fit_verdict_agrees(submission.outcome, step, prediction),
            measured_at=submission.measured_at or datetime.now(UTC),
            source=submission.source,
            flag=self._flag(asked, prediction, step, within),
            **basis(subject.question, asked.resolved, self._profile),
        )
        answer.request["layout"] = subject.layout.model_dump(mode="json")
        return answer

    def _flag(
        self, asked: _Asked, prediction: Prediction, step_time_s: float | None, within: bool | None
    ) -> str | None:
        """What the prediction did not foresee."""
        if asked.submission.outcome == "out_of_memory" and prediction.fits:
            needed = f"{prediction.needed_gib:.1f} of {prediction.usable_gib:.1f} GiB"
            return (
                f"ran out of memory, {needed} expected: to fit had a probability of"
                f" {prediction.fit_probability:.0%}"
            )
        if step_time_s is None or within:
            return None
        return self._gap(asked, prediction, step_time_s)

    def _gap(self, asked: _Asked, prediction: Prediction, step_time_s: float) -> str:
        key = asked.key, asked.layout
        if key not in self._gaps:
            self._gaps[key] = ResidualAttribution(asked.problem, asked.layout, self._profile)
        return self._gaps[key].described(prediction, step_time_s, asked.submission.parts)


@contextmanager
def _refused(outcomes: dict[int, RowValues | Refusal], i: int) -> Iterator[None]:
    """What is wrong with a submission is its outcome, and no other's."""
    try:
        yield
    except (DomainError, ServiceError) as refusal:
        outcomes[i] = refusal


def software_age(at: datetime, software_year: float) -> float:
    """Years, to the month."""
    return round(age_years(f"{at:%Y-%m}", software_year), 2)


def _as_old_as_measured(
    submission: ReportSubmission, subject: AnsweredLayout, software_year: float
) -> AnsweredLayout:
    """What a report is linked to has its software already; to the month, so that runs of one
    question stay together."""
    if submission.is_linked or submission.measured_at is None:
        return subject
    years = software_age(submission.measured_at, software_year)
    question = subject.question
    return replace(
        subject, question=question.model_copy(update={"stack": aged(question.stack, years)})
    )


def _by_question(asked: Mapping[int, _Asked]) -> list[list[int]]:
    together: dict[str, list[int]] = {}
    for i, one in asked.items():
        together.setdefault(one.key, []).append(i)
    return [*together.values()]


def _require_stage(submission: ReportSubmission, pp: int) -> None:
    for field, part in (("failure", submission.failure), ("memory", submission.memory)):
        if part is not None and part.stage is not None and part.stage >= pp:
            raise Invalid(
                f"{field}.stage", part.stage, f"must be below pp = {pp}: stages are numbered from 0"
            )


def _require_room(submission: ReportSubmission, problem: Problem) -> None:
    """A run that did fit took no more than the device has; one that did not had no absurd
    amount."""
    chip = problem.cluster.chip
    most = chip.memory_gb / chip.devices_per_chip
    for name in ("allocated_gib", "reserved_gib"):
        taken = getattr(submission.memory, name) if submission.memory else None
        if taken is not None and taken > most and submission.outcome in ("ok", "aborted"):
            raise Invalid(
                f"memory.{name}", taken, f"must not exceed the {most:g} GB of a device of {chip.id}"
            )
    had = submission.failure.peak_gib if submission.failure else None
    if had is not None and had > _SHARED * most:
        rule = (
            f"must not exceed {_SHARED} times the {most:g} GB of a device of {chip.id}; check the"
            " unit"
        )
        raise Invalid("failure.peak_gib", had, rule)


def _require_past(submission: ReportSubmission) -> None:
    if (
        submission.measured_at is not None
        and submission.measured_at > datetime.now(UTC) + _CLOCKS_DIFFER
    ):
        raise Invalid("measured_at", submission.measured_at.isoformat(), "lies in the future")


def _fit_verdict_agrees(
    outcome: str, step_time_s: float | None, prediction: Prediction
) -> bool | None:
    """Nothing shows whether a run would have fitted that failed for other reasons, or was stopped,
    before a step was measured."""
    if outcome in ("crashed", "aborted") and step_time_s is None:
        return None
    return prediction.fits == (outcome != "out_of_memory")
