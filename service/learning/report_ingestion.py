"""Reports as they come in: each is resolved to a run, runs of one question are predicted together,
and each is set beside its prediction.

The *subject* of a report is what ran: a layout with the question that it answers. A *refusal* is
the error for which one report of several is not stored. A *problem* is a question with all its
names resolved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from models.errors import DomainError
from models.layouts.rules import first_broken
from models.prediction.prediction import Prediction, predict_layouts
from models.spec.identity import cached_by_identity
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.ask.predictions import require_all_legal
from service.errors import ServiceError
from service.formats.published import age_years
from service.identifiers import run_hash
from service.learning.launched_runs import described_run
from service.learning.report_limits import require_believable
from service.learning.residual_attribution import ResidualAttribution
from service.resolve import measurements
from service.resolve.answer_basis import basis
from service.resolve.answered_layout import AnsweredLayout, layout_of_report
from service.resolve.assumptions import layout_assumptions, software_date_assumptions
from service.resolve.known_predictions import is_legal, prediction_of, shown_prediction
from service.resolve.profiles import active_profile
from service.resolve.resolution import ResolvedQuestion, Resolver
from service.schemas.layout import LayoutFields
from service.schemas.measured_run import MeasuredMemory
from service.schemas.report import ReportAnswer, ReportForm, ReportSubmission
from service.schemas.reservation import ReservationAnswer
from service.schemas.run_subject import LINKS
from service.schemas.stack import with_age
from service.store import Rows, Store
from service.store.arrivals import RowValues

Refusal = DomainError | ServiceError

_ATTRIBUTIONS = 256  # that are kept
_LEAST_OF_EXPECTED_MEMORY = 0.1  # no layout is predicted so wrongly: the unit is another


@dataclass(frozen=True, slots=True)
class _ReportedRun:
    """A report, with the question and the layout that ran."""

    submission: ReportSubmission
    received: str
    """The submission's text as it was received."""
    subject: AnsweredLayout
    """The layout with every knob that the submission left open settled by the stack."""
    given_layout: LayoutFields
    """The layout as it was submitted."""
    layout: Layout
    resolved: ResolvedQuestion
    question_key: str
    """Equal for equal questions."""

    @property
    def problem(self) -> Problem:
        return self.resolved.problem


def ingest_reports(
    store: Store, submissions: Sequence[tuple[ReportForm, str]]
) -> list[RowValues | Refusal]:
    """Returns the row to store for each submission, or why it is refused. Each submission comes
    with its text as it was received."""
    outcomes: dict[int, RowValues | Refusal] = {}
    with store.reading() as rows:
        ingestion = _Ingestion(rows, active_profile(rows))
        runs = ingestion.resolve(submissions, outcomes)
    # Predicting takes too long for the transaction, which has ended here.
    ingestion.add_outcomes(runs, outcomes)
    return [outcomes[i] for i in range(len(submissions))]


class _Ingestion:
    """Takes in reports under the catalogue and the profile of one moment. Equal questions and
    layouts are resolved and predicted once.

    Runs and outcomes are dictionaries by the position of their submission among all.
    """

    def __init__(self, rows: Rows, profile: Profile) -> None:
        self._rows = rows
        self._profile = profile
        self._resolver = Resolver(rows)
        self._subjects: dict[tuple[str | int | None, ...], AnsweredLayout] = {}
        """By the fields with which a report names the answer that it is linked to."""
        self._predictions: dict[tuple[str, Layout], Prediction] = {}
        """By `question_key` and layout."""

    def resolve(
        self,
        submissions: Sequence[tuple[ReportForm, str]],
        outcomes: dict[int, RowValues | Refusal],
    ) -> dict[int, _ReportedRun]:
        """Returns the runs by the position of their submission, and adds refusals to `outcomes`.
        All that is read from the store is read here."""
        runs: dict[int, _ReportedRun] = {}
        for i, (submission, received) in enumerate(submissions):
            with _refusal_as_outcome(outcomes, i):
                runs[i] = self._reported_run(submission, received)
        return runs

    def add_outcomes(
        self, runs: dict[int, _ReportedRun], outcomes: dict[int, RowValues | Refusal]
    ) -> None:
        """Predicts the runs, and adds the row or the refusal of each to `outcomes`. It reads
        nothing from the store, because it takes too long for a transaction. Runs with an illegal
        layout are removed from `runs`."""
        for i in self._illegal_positions(runs):
            run = runs.pop(i)
            field = run.subject.field
            # Called for the error that it raises, which names the rule.
            with _refusal_as_outcome(outcomes, i):
                require_all_legal(
                    run.problem,
                    {field: run.layout},
                    {field: run.given_layout},
                    run.subject.question.workload,
                )
        self._predict(runs)
        for i, run in runs.items():
            with _refusal_as_outcome(outcomes, i):
                outcomes[i] = self._row(run)

    def _reported_run(self, report: ReportForm, received: str) -> _ReportedRun:
        """Returns a report with its question resolved and its layout completed by the stack. Raises
        DomainError or ServiceError where what it names is unknown or contradicts itself."""
        submission, subject = self._submission_and_subject(report)
        subject = with_software_age(subject, submission, self._profile.software_year)
        resolved = self._resolver.resolve(subject.question)
        layout = subject.layout.with_stack_defaults(resolved.problem)
        return _ReportedRun(
            submission=submission,
            received=received,
            subject=replace(subject, layout=layout),
            given_layout=subject.layout,
            layout=layout.build(),
            resolved=resolved,
            question_key=subject.question.model_dump_json(),
        )

    def _submission_and_subject(
        self, report: ReportForm
    ) -> tuple[ReportSubmission, AnsweredLayout]:
        """Returns the report, with what its launch describes in place of the launch, and the
        question and layout of its run."""
        if isinstance(report, ReportSubmission):
            return report, self._subject(report)
        described = described_run(self._rows, report)
        submission = ReportSubmission.model_validate(described.members)
        subject = layout_of_report(self._rows, submission)
        return submission, replace(
            subject, field=described.field, reservations=described.reservations
        )

    def _subject(self, submission: ReportSubmission) -> AnsweredLayout:
        """Returns the question and layout of a run. Reports of a batch are often linked to one
        answer, whose question and layout are read once."""
        link = (*(getattr(submission, name) for name in LINKS), submission.rank, submission.choice)
        # A report without a link describes a run of its own, which is read each time.
        if link not in self._subjects or not any(link):
            self._subjects[link] = layout_of_report(self._rows, submission)
        return self._subjects[link]

    def _illegal_positions(self, runs: Mapping[int, _ReportedRun]) -> list[int]:
        """Returns the positions of the runs whose layout breaks a rule."""
        illegal: list[int] = []
        for positions in _positions_by_question(runs):
            problem = runs[positions[0]].problem
            if len(positions) == 1:  # `is_legal` remembers single layouts
                illegal += [i for i in positions if not is_legal(problem, runs[i].layout)]
                continue
            broken = first_broken(problem, Layouts.of([runs[i].layout for i in positions]))
            # The index of the first broken rule; -1 for a legal layout.
            illegal += [i for i, rule in zip(positions, broken, strict=True) if rule >= 0]
        return illegal

    def _predict(self, runs: Mapping[int, _ReportedRun]) -> None:
        """Predicts each different layout once, all layouts of a question together, and keeps the
        predictions."""
        for positions in _positions_by_question(runs):
            first = runs[positions[0]]
            layouts = list(dict.fromkeys(runs[i].layout for i in positions))
            if len(layouts) == 1:  # `prediction_of` remembers single layouts
                predictions = [prediction_of(first.problem, self._profile, layouts[0])]
            else:
                predictions = predict_layouts(first.problem, layouts, self._profile)
            for layout, prediction in zip(layouts, predictions, strict=True):
                self._predictions[first.question_key, layout] = prediction

    def _row(self, run: _ReportedRun) -> RowValues:
        """Returns the columns and the document of the report. Raises Invalid for measurements that
        this layout cannot have made."""
        submission = run.submission
        prediction = self._predictions[run.question_key, run.layout]
        require_believable(submission, run.problem, prediction.layout)
        answer = self._report_answer(run, prediction)
        document = answer.model_dump(mode="json")
        # Columns repeat what lists filter by or summaries add up, which is slow in the document.
        return {
            "measured_at": answer.measured_at,
            "source": answer.source,
            "outcome": answer.outcome,
            "chip": run.problem.cluster.chip.id,
            "fabric": run.resolved.used.fabric.name,
            "stack": run.problem.stack.id,
            "architecture": run.problem.architecture.name,
            "profile_id": answer.profile.id,
            "profile_version": answer.profile.version,
            "prediction_id": answer.prediction_id,
            "recommendation_id": answer.recommendation_id,
            "check_id": answer.check_id,
            "labels": submission.labels,
            "choice": answer.choice,
            "step_time_s": answer.measured.step_time_s if answer.measured else None,
            "predicted_step_time_s": answer.prediction.step_time_s,
            "residual": answer.residual,
            "within_interval": answer.within_interval,
            "submission": run.received,
            "document": document,
            "run_hash": run_hash(document["request"]),
        }

    def _report_answer(self, run: _ReportedRun, prediction: Prediction) -> ReportAnswer:
        """Returns the report as it is answered: what was measured beside the prediction, and what
        the prediction rests on."""
        submission = run.submission
        subject = run.subject
        speed = None
        step_time_s = None
        if submission.measured:
            speed = measurements.measured_speed(
                run.problem, submission.measured, prediction.step_time_s
            )
            step_time_s = speed.step_time_s
        parts = None
        if submission.parts and step_time_s is not None:
            parts = measurements.compare_parts(
                run.problem, submission.parts, step_time_s, prediction
            )
        memory = submission.memory and measurements.compare_memory(submission.memory, prediction)
        within_interval = measurements.is_within_interval(step_time_s, prediction)
        rests_on = basis(subject.question, run.resolved, self._profile)
        # Equal runs are found by the hash of this request (`run_hash`). Its layout has a value for
        # every knob, as when the first hashes were stored, though answers now show null for knobs
        # that mean nothing: equal runs would else have different hashes.
        rests_on["request"]["layout"] = LayoutFields.of(run.layout).model_dump(mode="json")
        rests_on["assumptions"] += [
            *software_date_assumptions(submission, subject.question.stack),
            *layout_assumptions(subject.field, run.given_layout, subject.layout, run.problem),
        ]
        return ReportAnswer.from_attributes(
            submission,
            rank=subject.rank,
            prediction=shown_prediction(run.problem, prediction),
            measured=speed,
            residual=measurements.log_ratio(step_time_s, prediction.step_time_s),
            within_interval=within_interval,
            memory=memory,
            parts=parts,
            fit_verdict_agrees=_fit_verdict_agrees(submission.outcome, step_time_s, prediction),
            measured_at=submission.measured_at or datetime.now(UTC),
            flag="; ".join(self._flags(run, prediction, step_time_s, within_interval)) or None,
            reservations=[*map(ReservationAnswer.model_validate, subject.reservations)],
            **rests_on,
        )

    def _flags(
        self,
        run: _ReportedRun,
        prediction: Prediction,
        step_time_s: float | None,
        within_interval: bool | None,
    ) -> Iterator[str]:
        """Yields sentences on what the prediction did not foresee: memory that ran out, far less
        memory than any step takes, and a step time outside the interval."""
        if run.submission.outcome == "out_of_memory" and prediction.fits:
            needed = f"{prediction.needed_gib:.1f} of {prediction.usable_gib:.1f} GiB"
            yield (
                f"ran out of memory, {needed} expected: to fit had a probability of"
                f" {prediction.fit_probability:.0%}"
            )
            return
        yield from _memory_flags(run.submission.memory, prediction)
        if step_time_s is not None and not within_interval:
            attribution = _attribution(run.problem, self._profile, run.layout)
            yield attribution.sentence(prediction, step_time_s, run.submission.parts)


def _memory_flags(memory: MeasuredMemory | None, prediction: Prediction) -> Iterator[str]:
    """Yields a sentence if the measured memory is so small that it may be a share of the
    device's."""
    if memory is None:
        return
    compared = measurements.compare_memory(memory, prediction)
    for name, residual in (
        ("reserved", compared.reserved_residual),
        ("allocated", compared.allocated_residual),
    ):
        if residual is not None and residual < math.log(_LEAST_OF_EXPECTED_MEMORY):
            gib = getattr(memory, f"{name}_gib")
            expected_gib = getattr(prediction, f"{name}_gib")
            yield (
                f"measured {gib:g} GiB {name}, {expected_gib:.1f} expected: check the unit, which"
                " is not a share of the device's memory"
            )


@cached_by_identity(_ATTRIBUTIONS, objects=2)
def _attribution(problem: Problem, profile: Profile, layout: Layout) -> ResidualAttribution:
    """Returns the explanation that all residuals of a layout share. It is kept in memory, because
    it takes as long as the rest of answering a report."""
    return ResidualAttribution(problem, layout, profile)


@contextmanager
def _refusal_as_outcome(outcomes: dict[int, RowValues | Refusal], i: int) -> Iterator[None]:
    """Catches a refusal within the block and makes it the outcome of submission `i`."""
    try:
        yield
    except (DomainError, ServiceError) as refusal:
        outcomes[i] = refusal


def software_age_years(at: datetime, software_year: float) -> float:
    """Returns the years by which the software of a run is older than the newest that the profile
    describes. The date counts to the month, which lets runs of one month share a question."""
    return round(age_years(f"{at:%Y-%m}", software_year), 2)


def with_software_age(
    subject: AnsweredLayout, submission: ReportSubmission, software_year: float
) -> AnsweredLayout:
    """Returns the question and layout with a stack as old as the measurement, since older software
    is slower. A run that is linked to an answer keeps the software of the answer, and one without a
    date has today's."""
    if submission.is_linked or submission.measured_at is None:
        return subject
    years = software_age_years(submission.measured_at, software_year)
    stack = with_age(subject.question.stack, years)
    return replace(subject, question=subject.question.model_copy(update={"stack": stack}))


def _positions_by_question(runs: Mapping[int, _ReportedRun]) -> list[list[int]]:
    """Returns the positions of the runs, in one list for each question."""
    by_key: dict[str, list[int]] = {}
    for i, run in runs.items():
        by_key.setdefault(run.question_key, []).append(i)
    return [*by_key.values()]


def _fit_verdict_agrees(
    outcome: str, step_time_s: float | None, prediction: Prediction
) -> bool | None:
    """Returns whether the run shows the prediction's `fits` to be right. None for a run that
    crashed or was stopped before a step was measured: it shows nothing of memory."""
    if outcome in ("crashed", "aborted") and step_time_s is None:
        return None
    return prediction.fits == (outcome != "out_of_memory")
