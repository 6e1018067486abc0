"""Take in what was measured, beside what is predicted of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from models import catalogue
from models.errors import Invalid, UnknownName
from models.prediction import Prediction
from models.problem import Problem
from models.profile import Profile
from service import measurements
from service.assumptions import of_the_layout
from service.basis import basis
from service.creation import Created, Save
from service.cursors import read_cursor, write_cursor
from service.predictions import predict_legal
from service.profiles import active_profile
from service.resolution import SHIPPED, Resolved, Resolver, normal
from service.schemas.catalog import Kind
from service.schemas.prediction import PredictedLayout
from service.schemas.report import ReportAnswer, ReportQuery, ReportSubmission
from service.store import Rows, Store
from service.store.reports import ReportFilter
from service.subject import Subject, of_prediction, of_recommendation
from service.tables import ReportRow


class Reports:
    def __init__(self, store: Store) -> None:
        self._store = store

    def take(self, submission: ReportSubmission, received: str) -> Save:
        with self._store.reading() as rows:
            subject = _subject(rows, submission)
            resolved = Resolver(rows).problem(subject.question)
            profile = active_profile(rows)
        open_, layout = subject.layout, subject.layout.settled(resolved.problem)
        subject = replace(subject, layout=layout)
        prediction = predict_legal(resolved.problem, {subject.field: subject.layout.build()}, profile)[0]
        answer = _answer(submission, subject, resolved, profile, prediction)
        answer.assumptions.extend(of_the_layout(subject.field, open_, layout))
        return lambda rows: _save(rows, answer, resolved, received)

    def get(self, id_: str) -> dict[str, Any]:
        with self._store.reading() as rows:
            row = rows.reports.get(id_)
            return {**row.document, "submission": row.submission}

    def page(self, query: ReportQuery) -> dict[str, Any]:
        before = None if query.cursor is None else read_cursor("reports", query.cursor)
        with self._store.reading() as rows:
            wanted = ReportFilter(
                chip=_canonical(rows, "chip", query.chip),
                stack=_canonical(rows, "stack", query.stack),
                architecture=_canonical(rows, "architecture", query.architecture),
                outcome=query.outcome,
                profile_version=query.profile_version,
                since=query.since,
                until=query.until,
            )
            found = rows.reports.newest(wanted, query.limit + 1, before)
        page = found[: query.limit]
        following = write_cursor("reports", page[-1].id) if len(found) > query.limit else None
        return {"items": [row.document for row in page], "next": following}


_Column = Literal["chip", "stack", "architecture"]
_FIND: dict[_Column, tuple[Kind, Callable[[str], str]]] = {
    "chip": ("chips", lambda name: catalogue.chip(name).id),
    "stack": ("stacks", lambda name: catalogue.stack(name).id),
    "architecture": ("architectures", lambda name: catalogue.architecture(name).name),
}


def _canonical(rows: Rows, column: _Column, name: str | None) -> str | None:
    """What reports call a thing that goes by this name or alias; unregistered ones go by what reports said."""
    if name is None:
        return None
    kind, find = _FIND[column]
    try:
        return find(name)
    except UnknownName:
        own = {*rows.catalog.names(kind), *rows.reports.names(column)}
    for known in (name, normal(name)):
        if known in own:
            return known
    raise UnknownName(column, name, [*SHIPPED[kind](), *own])


def _subject(rows: Rows, submission: ReportSubmission) -> Subject:
    if submission.prediction_id is not None:
        return of_prediction(rows, submission.prediction_id, submission.rank)
    if submission.recommendation_id is not None:
        return of_recommendation(rows, submission.recommendation_id, submission.rank)
    if submission.layout is None:
        raise Invalid("layout", None, "is required")
    return Subject(submission.question(), submission.layout, "layout", None)


def _answer(
    submission: ReportSubmission, subject: Subject, resolved: Resolved, profile: Profile, prediction: Prediction
) -> ReportAnswer:
    problem = resolved.problem
    _check_stage(submission, prediction.layout.pp)
    _check_room(submission, problem)
    measured = measurements.speed(problem, submission.measured) if submission.measured else None
    step = measured.step_time_s if measured else None
    low, high = prediction.step_time_low_s, prediction.step_time_high_s
    answer = ReportAnswer(
        outcome=submission.outcome,
        prediction_id=submission.prediction_id,
        recommendation_id=submission.recommendation_id,
        rank=subject.rank,
        prediction=PredictedLayout.of(prediction),
        measured=measured,
        residual=measurements.log_ratio(step, prediction.step_time_s),
        within_interval=None if step is None else low <= step <= high,
        memory=measurements.memory(submission.memory, prediction) if submission.memory else None,
        failure=submission.failure,
        fit_verdict_agrees=_fit_verdict_agrees(submission.outcome, prediction),
        **basis(subject.question, resolved, profile),
    )
    answer.request["layout"] = subject.layout.model_dump(mode="json")
    return answer


def _check_stage(submission: ReportSubmission, pp: int) -> None:
    for field, part in (("failure", submission.failure), ("memory", submission.memory)):
        if part is not None and part.stage is not None and part.stage >= pp:
            raise Invalid(f"{field}.stage", part.stage, f"must be below pp = {pp}: stages are numbered from 0")


def _check_room(submission: ReportSubmission, problem: Problem) -> None:
    """A run that did fit took no more than the device has."""
    chip = problem.cluster.chip
    most = chip.memory_gb / chip.devices_per_chip
    for name in ("allocated_gib", "reserved_gib"):
        taken = getattr(submission.memory, name) if submission.memory else None
        if taken is not None and taken > most and submission.outcome == "ok":
            raise Invalid(f"memory.{name}", taken, f"must not exceed the {most:g} GB of a device of {chip.id}")


def _fit_verdict_agrees(outcome: str, prediction: Prediction) -> bool | None:
    return None if outcome == "crashed" else prediction.fits == (outcome == "ok")


def _save(rows: Rows, answer: ReportAnswer, resolved: Resolved, received: str) -> Created:
    document = answer.model_dump(mode="json")
    row = ReportRow(
        id=answer.id,
        created_at=answer.created_at,
        outcome=answer.outcome,
        chip=resolved.problem.cluster.chip.id,
        stack=resolved.problem.stack.id,
        architecture=resolved.problem.architecture.name,
        profile_id=answer.profile.id,
        profile_version=answer.profile.version,
        prediction_id=answer.prediction_id,
        recommendation_id=answer.recommendation_id,
        step_time_s=answer.measured.step_time_s if answer.measured else None,
        predicted_step_time_s=answer.prediction.step_time_s,
        residual=answer.residual,
        submission=received,
        document=document,
    )
    rows.reports.add(row)
    return Created(f"/v1/reports/{answer.id}", document)
