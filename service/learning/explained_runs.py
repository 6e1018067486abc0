"""Runs to be explained: what ran, what it measured and what its log says, from any form in which a
run is told of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from models.advice.remedies import MemoryShown
from models.prediction.prediction import Prediction
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.formats.logs.failure import tells_crash, text_after_last_crash
from service.formats.settings.reservation import Reservation
from service.learning.logged_runs import LoggedRun, has_steps, read_logged_run
from service.learning.report_ingestion import with_software_age
from service.resolve import measurements
from service.resolve.answered_layout import layout_of_report
from service.resolve.launched_question import LaunchedQuestion, launched_question
from service.resolve.profiles import requested_profile
from service.resolve.resolution import ResolvedQuestion, Resolver
from service.schemas.explanation import WHAT_RAN, ExplanationRequest, LaunchedExplanationRequest
from service.schemas.launch_form import LaunchRead
from service.schemas.layout import LayoutFields
from service.schemas.question import Question
from service.schemas.report import LogSubmission, ReportSubmission, RunSubject
from service.store import Store

Request = ExplanationRequest | LaunchedExplanationRequest
_FIGURES = ("measured", "memory", "failure", "parts")
_BESIDE_LOG = ("failure", "parts")
"""What a request with a log may say besides."""


@dataclass(frozen=True, slots=True)
class ExplainedRun:
    """A run, and the question and layout that it is of."""

    report: ReportSubmission
    """The run as a report of it would be."""
    question: Question
    resolved: ResolvedQuestion
    profile: Profile
    place: str
    """Where the layout stands in the request."""
    given: LayoutFields
    settled: LayoutFields
    """The layout with what it leaves open as the stack has it."""
    log: str | None
    logged: LoggedRun | None
    launch: LaunchRead | None
    reservations: tuple[Reservation, ...] = ()

    @property
    def problem(self) -> Problem:
        return self.resolved.problem

    @property
    def layout(self) -> Layout:
        return self.settled.build()

    def memory_shown(self, prediction: Prediction | None) -> MemoryShown:
        """What the run showed of its memory, its layout having this prediction."""
        if self.report.outcome == "out_of_memory":
            return MemoryShown("ran_out")
        if self.report.measured is None:
            return MemoryShown("not_known")
        if self.report.memory is None or prediction is None:
            return MemoryShown("fitted")
        compared = measurements.compare_memory(self.report.memory, prediction)
        residual = compared.reserved_residual
        if residual is None:
            residual = compared.allocated_residual
        return MemoryShown("fitted", None if residual is None else math.exp(residual))

    @property
    def has_died(self) -> bool:
        return self.report.outcome in ("out_of_memory", "crashed") or self.report.measured is None


def read_run(store: Store, request: Request) -> ExplainedRun:
    """The run that a request tells of. Raises Invalid or Refused for what cannot be read, and for a
    log that is of another run."""
    launched = None
    if isinstance(request, LaunchedExplanationRequest):
        with store.reading() as rows:
            launched = launched_question(Resolver(rows), request.launch, request)
    members = _subject_members(request, launched)
    logged = _logged_run(store, request, members)
    report = logged.report if logged else _report(request, members)
    with store.reading() as rows:
        profile = requested_profile(rows, request.profile)
        subject = layout_of_report(rows, report)
        subject = with_software_age(subject, report, profile.software_year)
        resolved = Resolver(rows).resolve(subject.question)
    return ExplainedRun(
        report=report,
        question=subject.question,
        resolved=resolved,
        profile=profile,
        place=launched.layout_field if launched else subject.field,
        given=subject.layout,
        settled=subject.layout.with_stack_defaults(resolved.problem),
        log=request.log,
        logged=logged,
        launch=launched.read if launched else None,
        reservations=launched.reservations if launched else (),
    )


def _subject_members(request: Request, launched: LaunchedQuestion | None) -> dict[str, Any]:
    """What ran, as the members of a report have it."""
    if launched is None:
        return _given(request, RunSubject.model_fields)
    question = launched.question
    members = {name: getattr(question, name) for name in Question.model_fields}
    return {**members, "layout": launched.layout, **_given(request, ["measured_at"])}


def _logged_run(store: Store, request: Request, members: dict[str, Any]) -> LoggedRun | None:
    if request.log is None:
        return None
    told = _given(request, ["log", "framework", "outcome"])
    submission = LogSubmission.model_validate({**members, **told})
    logged = read_logged_run(store, submission, otherwise=WHAT_RAN)
    report = logged.report.model_copy(update=_given(request, _BESIDE_LOG))
    if request.outcome is None and report.outcome == "ok" and _ends_in_crash(request.log):
        report = report.model_copy(update={"outcome": "crashed"})
    return replace(logged, report=report)


def _ends_in_crash(log: str) -> bool:
    """Whether the last words of a process that failed are followed by no step."""
    return tells_crash(log) and not has_steps(text_after_last_crash(log))


def _report(request: Request, members: dict[str, Any]) -> ReportSubmission:
    outcome = request.outcome or "ok"
    told = _given(request, _FIGURES)
    return ReportSubmission.model_validate({**members, **told, "outcome": outcome})


def _given(request: Request, names: Iterable[str]) -> dict[str, Any]:
    """The members of the request that were given, of some."""
    return {
        name: getattr(request, name)
        for name in names
        if name in request.model_fields_set and getattr(request, name) is not None
    }
