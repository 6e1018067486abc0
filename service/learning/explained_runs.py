"""Runs to be explained: what ran, what it measured and what its log says. A request may describe a
run in several forms, and all of them become an ExplainedRun here.

The *subject* of a request is what ran: a question with its layout, given by fields, by an earlier
answer, by a launch, or by the arguments in a log. *Members* are fields of a request.
"""

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
from service.formats.logs.contents import LogContents, LogTrouble
from service.formats.settings.reservation import Reservation
from service.learning.logged_runs import LoggedRun, read_logged_run
from service.learning.report_ingestion import with_software_age
from service.resolve import measurements
from service.resolve.answered_layout import layout_of_report
from service.resolve.launched_question import LaunchedQuestion, launched_question
from service.resolve.profiles import requested_profile
from service.resolve.resolution import ResolvedQuestion, Resolver
from service.schemas.explanation import ExplanationRequest, LaunchedExplanationRequest
from service.schemas.launch_form import LaunchRead
from service.schemas.layout import LayoutFields
from service.schemas.question import Question
from service.schemas.report import ReportSubmission
from service.schemas.run_subject import RunSubject
from service.schemas.training_log import LogSubmission
from service.store import Store

Request = ExplanationRequest | LaunchedExplanationRequest
_FIGURES = ("measured", "memory", "failure", "parts")
_BESIDE_LOG = ("failure", "parts")
"""Members that a request with a log may have besides."""


@dataclass(frozen=True, slots=True)
class ExplainedRun:
    """A run to be explained, with the question and the layout that it ran."""

    report: ReportSubmission
    """The run as a report of it would be."""
    question: Question
    resolved: ResolvedQuestion
    profile: Profile
    layout_field: str
    """The field of the request that has the layout, which errors and notes name."""
    given_layout: LayoutFields
    completed_layout: LayoutFields
    """The given layout, with the defaults of the stack for what it leaves open."""
    trouble: LogTrouble | None
    """None where there is no log."""
    logged: LoggedRun | None
    launch: LaunchRead | None
    reservations: tuple[Reservation, ...] = ()

    @property
    def problem(self) -> Problem:
        return self.resolved.problem

    @property
    def layout(self) -> Layout:
        return self.completed_layout.build()

    def memory_shown(self, prediction: Prediction | None) -> MemoryShown:
        """Returns what the run showed of its memory: it ran out, it fitted, or neither is known.
        Where its peak was measured, the result has the ratio of that to the predicted peak."""
        if self.report.outcome == "out_of_memory":
            return MemoryShown("ran_out")
        if self.report.measured is None:
            return MemoryShown("not_known")
        if self.report.memory is None or prediction is None:
            return MemoryShown("fitted")
        compared = measurements.compare_memory(self.report.memory, prediction)
        # Reserved memory is what may run out, so it counts before allocated memory.
        residual = compared.reserved_residual
        if residual is None:
            residual = compared.allocated_residual
        return MemoryShown("fitted", None if residual is None else math.exp(residual))

    @property
    def has_died(self) -> bool:
        """Returns whether the run ended before its time: it ran out of memory, crashed, or measured
        nothing."""
        return self.report.outcome in ("out_of_memory", "crashed") or self.report.measured is None


def log_submission(store: Store, request: Request) -> LogSubmission | None:
    """Returns the log of a request in the form of a log that is reported; None where the request
    has no log. Raises Invalid or Refused where a launch beside it cannot be read."""
    if request.log is None:
        return None
    return _log_submission(request, _subject_members(request, _launched_subject(store, request)))


def read_run(store: Store, request: Request, contents: LogContents | None) -> ExplainedRun:
    """Returns the run that a request tells of. `contents` is what its log says; None where there is
    no log. Raises Invalid or Refused for what cannot be read, and for a log of another run."""
    launched = _launched_subject(store, request)
    members = _subject_members(request, launched)
    logged = None if contents is None else _logged_run(store, request, members, contents)
    if logged is not None:
        report = logged.report
    else:  # without a log, the request itself has what was measured
        figures = _fields_given(request, _FIGURES)
        outcome = request.outcome or "ok"
        report = ReportSubmission.model_validate({**members, **figures, "outcome": outcome})
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
        layout_field=launched.layout_field if launched else subject.field,
        given_layout=subject.layout,
        completed_layout=subject.layout.with_stack_defaults(resolved.problem),
        trouble=None if contents is None else contents.trouble,
        logged=logged,
        launch=launched.read if launched else None,
        reservations=launched.reservations if launched else (),
    )


def _launched_subject(store: Store, request: Request) -> LaunchedQuestion | None:
    """Returns the question and layout that the request's launch describes; None where the request
    has no launch."""
    if not isinstance(request, LaunchedExplanationRequest):
        return None
    # The request also has the parts of the question that its launch leaves open.
    with store.reading() as rows:
        return launched_question(Resolver(rows), request.launch, request)


def _subject_members(request: Request, launched: LaunchedQuestion | None) -> dict[str, Any]:
    """Returns the description of what ran, as fields of a report: from the launch where there is
    one, else from the request."""
    if launched is None:
        return _fields_given(request, RunSubject.model_fields)
    question = launched.question
    members = {name: getattr(question, name) for name in Question.model_fields}
    return {**members, "layout": launched.layout, **_fields_given(request, ["measured_at"])}


def _log_submission(request: Request, members: dict[str, Any]) -> LogSubmission:
    """Returns the request's log in the form in which logs are reported, so that both are read
    alike. `members` describe what ran, in the fields of a report."""
    members_of_run = _fields_given(request, ["log", "framework", "outcome"])
    return LogSubmission.model_validate({**members, **members_of_run})


def _logged_run(
    store: Store, request: Request, members: dict[str, Any], contents: LogContents
) -> LoggedRun:
    """Returns the run as its log tells of it, with the failure and the parts of a step that the
    request adds."""
    submission = _log_submission(request, members)
    logged = read_logged_run(store, submission, contents)
    report = logged.report.model_copy(update=_fields_given(request, _BESIDE_LOG))
    return replace(logged, report=report)


def _fields_given(request: Request, names: Iterable[str]) -> dict[str, Any]:
    """Returns those of the named fields that the request gives, without those given as null."""
    return {
        name: getattr(request, name)
        for name in names
        if name in request.model_fields_set and getattr(request, name) is not None
    }
