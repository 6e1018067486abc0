"""Predicts the layouts that a request names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.advice.implausible_values import implausible_values
from models.errors import Invalid
from models.layouts.mesh_rules import BATCH_FIELD, nearest_batches
from models.layouts.rule import Rule
from models.layouts.rules import RULES, first_broken
from models.prediction.prediction import predict_layouts
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.ask.answer_keys import Meaning
from service.ask.answer_pages import answer_page
from service.ask.kept_answers import KeptAnswers, KeyedQuestion
from service.ask.oom_history import RunsAlike, oom_warnings
from service.errors import Refused
from service.formats.settings.reservation import Reservation
from service.resolve.answer_basis import basis
from service.resolve.assumptions import empty_chunk_assumptions, layout_assumptions
from service.resolve.launch_jobs import AnswerLaunched, launch_block
from service.resolve.launched_question import LaunchedQuestion, launched_question
from service.resolve.resolution import ResolvedQuestion, Resolver
from service.runtime.creation import Unanswered
from service.runtime.idempotency import Prepared
from service.schemas.launch_form import LaunchRead
from service.schemas.launch_request import LaunchedPredictionRequest
from service.schemas.layout import LayoutFields
from service.schemas.list_query import AnswerQuery
from service.schemas.prediction import (
    OutOfMemoryRun,
    PredictedLayout,
    PredictionAnswer,
    PredictionRequest,
)
from service.schemas.question import PinnedQuestion
from service.schemas.reservation import ReservationAnswer
from service.schemas.workload import WorkloadFields
from service.store import Rows, Store
from service.store.answer_text import AnswerText

_Request = PredictionRequest | LaunchedPredictionRequest


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question with what it names, and its layouts as they were given, by where they stand."""

    question: PinnedQuestion
    resolved: ResolvedQuestion
    given: dict[str, LayoutFields]
    launched: LaunchedQuestion | None = None


_Question = KeyedQuestion[_Asked]


@dataclass(frozen=True, slots=True)
class _ResolvedRequest:
    """A request in the values that the models compute with; layouts by where they stand in it."""

    asked: PinnedQuestion
    question: ResolvedQuestion
    profile: Profile
    given: dict[str, LayoutFields]
    completed: dict[str, LayoutFields]
    """The given layouts with what they leave open as the stack has it."""
    layouts: dict[str, Layout]
    """The layouts of the request as values."""
    launch_read: LaunchRead | None = None
    reservations: tuple[Reservation, ...] = ()


class Predictions:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept = KeptAnswers(store, "predictions", _asked, _meaning)

    def look_up(self, request: _Request) -> Prepared | Unanswered[_Question]:
        return self._kept.look_up(request)

    def answer(self, request: _Request) -> Prepared:
        """The answer that was given before, or else a new one."""
        found = self.look_up(request)
        return self.predict(found.question) if isinstance(found, Unanswered) else found

    def predict(self, question: _Question) -> Prepared:
        """A new answer to a question that was looked up."""
        key = question.key
        resolved = _with_stack_defaults(question.resolved, key.profile)
        failed = key.out_of_memory.get(RunsAlike.of(resolved.question.problem), [])
        answer = _explain(resolved, _predict(resolved), failed)
        return self._kept.prepare(answer, key.digest)

    def get(self, id_: str) -> AnswerText:
        return self._kept.get(id_)

    def page(self, query: AnswerQuery) -> dict[str, Any]:
        return answer_page(self._store, "predictions", query)


def _asked(rows: Rows, request: _Request) -> _Asked:
    resolver = Resolver(rows)
    if isinstance(request, PredictionRequest):
        return _Asked(request, resolver.resolve(request), request.layouts_by_field())
    launched = launched_question(resolver, request.launch, request)
    layouts = {launched.layout_field: launched.layout}
    return _Asked(launched.question, launched.resolved, layouts, launched)


def _meaning(asked: _Asked) -> Meaning:
    return Meaning.of([asked.resolved])


def _with_stack_defaults(asked: _Asked, profile: Profile) -> _ResolvedRequest:
    """The request with its layouts completed. Raises Refused where one of them is not legal."""
    launched = asked.launched
    completed = {
        name: fields.with_stack_defaults(asked.resolved.problem)
        for name, fields in asked.given.items()
    }
    layouts = {name: fields.build() for name, fields in completed.items()}
    question = asked.resolved.for_layouts(layouts.values())
    settings = None if launched is None else launched.settings
    require_all_legal(question.problem, layouts, asked.given, asked.question.workload, settings)
    return _ResolvedRequest(
        asked=asked.question,
        question=question,
        profile=profile,
        given=asked.given,
        completed=completed,
        layouts=layouts,
        launch_read=None if launched is None else launched.read,
        reservations=() if launched is None else launched.reservations,
    )


def _predict(resolved: _ResolvedRequest) -> dict[str, PredictedLayout]:
    layouts = [*resolved.layouts.values()]
    predictions = predict_layouts(resolved.question.problem, layouts, resolved.profile)
    cluster = resolved.question.problem.cluster
    answers = [PredictedLayout.of(prediction, cluster) for prediction in predictions]
    return dict(zip(resolved.layouts, answers, strict=True))


def _explain(
    resolved: _ResolvedRequest,
    predicted: dict[str, PredictedLayout],
    failed: list[OutOfMemoryRun],
) -> PredictionAnswer:
    """The answer document: the predictions with warnings and assumptions. `failed` are the runs of
    the same model, chip and stack that ran out of memory."""
    problem = resolved.question.problem
    fastest_s = min(prediction.step_time_s for prediction in predicted.values())
    first = next(iter(resolved.layouts.values()))
    grounds = basis(resolved.asked, resolved.question, resolved.profile, first)
    for name, completed in resolved.completed.items():
        given = resolved.given[name]
        grounds["assumptions"] += layout_assumptions(name, given, completed, problem)
        grounds["assumptions"] += empty_chunk_assumptions(name, predicted[name])
    grounds["request"]["layouts"] = [
        completed.model_dump(mode="json") for completed in resolved.completed.values()
    ]
    return PredictionAnswer(
        layouts=[*predicted.values()],
        out_of_memory=failed,
        warnings=[
            *(() if resolved.launch_read is None else resolved.launch_read.warnings),
            *implausible_values(problem, fastest_s),
            *oom_warnings(predicted, failed),
        ],
        launch=launch_block(
            problem,
            first,
            resolved.asked,
            AnswerLaunched(kind="prediction", id=grounds["id"], rank=1),
        ),
        launch_read=resolved.launch_read,
        reservations=ReservationAnswer.first_of(resolved.reservations),
        **grounds,
    )


def require_all_legal(
    problem: Problem,
    layouts: Mapping[str, Layout],
    given: Mapping[str, LayoutFields],
    workload: WorkloadFields,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Raise Refused with an error for every layout that breaks a rule.

    Layouts are named by where they stand in the request; `given` has them as they are there, so
    that an error about a knob that was left out shows no value for it, and so has `workload`.
    `settings` are the names of knobs in the words of the request, where these are not its fields.
    """
    if not layouts:
        return
    broken = first_broken(problem, Layouts.of(layouts.values()))
    errors = [
        _broken_rule(problem, layout, name, given[name], RULES[index], settings or {})
        if RULES[index].blamed_field(problem, layout) != BATCH_FIELD
        else _undivided_batch(problem, layout, name, workload, RULES[index], settings)
        for (name, layout), index in zip(layouts.items(), broken, strict=True)
        if index >= 0
    ]
    if errors:
        raise Refused(errors)


_OTHER_CULPRIT = {"ep": "etp", "schedule": "virtual_stages"}
"""The knob to blame for a broken rule about another one, where that one was left open."""


def _broken_rule(
    problem: Problem,
    layout: Layout,
    name: str,
    given: LayoutFields,
    rule: Rule,
    settings: Mapping[str, str],
) -> Invalid:
    knob = rule.blamed_knob(problem, layout)
    other = _OTHER_CULPRIT.get(knob or "")
    if knob not in given.given and other in given.given:
        knob = other
    field = f"{name}.{settings.get(knob, given.field_of(knob))}" if knob else name
    value = getattr(given, given.field_of(knob)) if knob in given.given else None
    return Invalid(field, value, f"{rule.name}: {rule.message(problem, layout)}")


def _undivided_batch(
    problem: Problem,
    layout: Layout,
    name: str,
    workload: WorkloadFields,
    rule: Rule,
    settings: Mapping[str, str] | None,
) -> Invalid:
    """The error for a batch that the layout does not divide, in tokens where it was given so."""
    message = f"{rule.name}: {rule.message(problem, layout)}"
    if settings is not None:
        setting = settings.get("global_batch")
        return Invalid(f"{name}.{setting}" if setting else name, workload.global_batch, message)
    if workload.global_batch_tokens is not None:
        near = nearest_batches(workload.global_batch, layout)
        tokens = " and ".join(str(batch * workload.seq_len) for batch in near)
        message += f" sequences: {tokens} tokens"
    field = f"workload.{workload.batch_field}"
    return Invalid(field, getattr(workload, workload.batch_field), message)
