"""Predicts the layouts that a request names, or the one that is read from its *launch*: a script,
command line or file that starts a training. A *knob* is one choice of a layout, such as tp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from models.advice.implausible_values import implausible_values
from models.errors import Invalid
from models.layouts.mesh_rules import BATCH_FIELD, nearest_batches
from models.layouts.rules import RULES, first_broken
from models.prediction.prediction import predict_layouts
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.ask.answer_keys import Meaning
from service.ask.kept_answers import KeptAnswers, KeyedQuestion
from service.ask.oom_history import RunKind, oom_warnings
from service.errors import Refused
from service.resolve.answer_basis import basis
from service.resolve.assumptions import empty_chunk_assumptions, layout_assumptions
from service.resolve.launch_jobs import AnswerLaunched, launch_block
from service.resolve.launched_question import LaunchedQuestion, launched_question
from service.resolve.resolution import ResolvedQuestion, Resolver
from service.runtime.creation import Unanswered
from service.runtime.idempotency import Prepared
from service.schemas.launch_request import LaunchedPredictionRequest
from service.schemas.layout import LayoutFields
from service.schemas.prediction import (
    OutOfMemoryRun,
    PredictedLayout,
    PredictionAnswer,
    PredictionRequest,
)
from service.schemas.question import PinnedQuestion
from service.schemas.reservation import ReservationAnswer
from service.schemas.workload import WorkloadFields
from service.store import Rows

_Request = PredictionRequest | LaunchedPredictionRequest


@dataclass(frozen=True, slots=True)
class _LayoutsQuestion:
    """A question about layouts, with the names in it resolved. Layouts are keyed by the field of
    the request that has them."""

    pinned: PinnedQuestion
    """The question as it was asked, which may name a version of the profile."""
    resolved: ResolvedQuestion
    given_layouts: dict[str, LayoutFields]
    launched: LaunchedQuestion | None = None
    """The launch configuration from which question and layout were read, if the request has one."""


@dataclass(frozen=True, slots=True)
class _LegalRequest:
    """A question whose layouts are complete and legal."""

    question: _LayoutsQuestion
    resolved: ResolvedQuestion
    """The question with the stack's limits of a search lifted, because given layouts may exceed
    them."""
    profile: Profile
    completed_layouts: dict[str, LayoutFields]
    """The given layouts, with the defaults of the stack for what they leave open."""
    layouts: dict[str, Layout]
    """The completed layouts as values."""


class Predictions(KeptAnswers[_Request, _LayoutsQuestion]):
    kind = "predictions"

    def resolve(self, rows: Rows, request: _Request) -> _LayoutsQuestion:
        """Resolves the names of a request, and reads its launch if it has one."""
        resolver = Resolver(rows)
        if isinstance(request, PredictionRequest):
            return _LayoutsQuestion(request, resolver.resolve(request), request.layouts_by_field())
        launched = launched_question(resolver, request.launch, request)
        layouts = {launched.layout_field: launched.layout}
        return _LayoutsQuestion(launched.question, launched.resolved, layouts, launched)

    def meaning(self, resolved: _LayoutsQuestion) -> Meaning:
        return Meaning.of([resolved.resolved])

    def answer(self, request: _Request) -> Prepared:
        """Returns the stored answer to an equal question, or else a new one."""
        earlier = self.look_up(request)
        return self.predict(earlier.question) if isinstance(earlier, Unanswered) else earlier

    def predict(self, question: KeyedQuestion[_LayoutsQuestion]) -> Prepared:
        """Predicts the layouts of a question that `look_up` has not found answered. Returns the
        function that stores the answer."""
        key = question.key
        legal = _legal_request(question.resolved, key.profile)
        failed = key.out_of_memory.get(RunKind.of(legal.resolved.problem), [])
        answer = _prediction_answer(legal, _predict(legal), failed)
        return self._prepare(answer, key.digest)


def _legal_request(question: _LayoutsQuestion, profile: Profile) -> _LegalRequest:
    """Returns the question with its layouts completed by the stack's defaults. Raises Refused if
    one of them is not legal."""
    completed = {
        field: layout.with_stack_defaults(question.resolved.problem)
        for field, layout in question.given_layouts.items()
    }
    layouts = {field: layout.build() for field, layout in completed.items()}
    # Given layouts may exceed the limits that the stack sets to a search.
    resolved = question.resolved.for_layouts(layouts.values())
    require_all_legal(
        resolved.problem,
        layouts,
        question.given_layouts,
        question.pinned.workload,
        None if question.launched is None else question.launched.settings,
    )
    return _LegalRequest(question, resolved, profile, completed, layouts)


def _predict(request: _LegalRequest) -> dict[str, PredictedLayout]:
    """Returns the predictions by the field of the request that has the layout."""
    problem = request.resolved.problem
    predictions = predict_layouts(problem, [*request.layouts.values()], request.profile)
    answers = [PredictedLayout.of(prediction, problem.cluster) for prediction in predictions]
    return dict(zip(request.layouts, answers, strict=True))


def _prediction_answer(
    request: _LegalRequest, predicted: dict[str, PredictedLayout], failed: list[OutOfMemoryRun]
) -> PredictionAnswer:
    """Returns the answer: the predictions with warnings and assumptions. `failed` are the reported
    runs of this model, chip and stack that ran out of memory."""
    problem = request.resolved.problem
    pinned = request.question.pinned
    launched = request.question.launched
    fastest_s = min(prediction.step_time_s for prediction in predicted.values())
    # The first layout is the one that `launch`, `switches` and `learned` of the answer are about.
    first = next(iter(request.layouts.values()))
    grounds = basis(pinned, request.resolved, request.profile, first)
    for field, completed in request.completed_layouts.items():
        given = request.question.given_layouts[field]
        grounds["assumptions"] += layout_assumptions(field, given, completed, problem)
        grounds["assumptions"] += empty_chunk_assumptions(field, predicted[field])
    grounds["request"]["layouts"] = [
        completed.model_dump(mode="json") for completed in request.completed_layouts.values()
    ]
    return PredictionAnswer(
        layouts=[*predicted.values()],
        out_of_memory=failed,
        warnings=[
            *(() if launched is None else launched.read.warnings),
            *implausible_values(problem, fastest_s),
            *oom_warnings(predicted, failed),
        ],
        launch=launch_block(
            problem, first, pinned, AnswerLaunched(kind="prediction", id=grounds["id"], rank=1)
        ),
        launch_read=None if launched is None else launched.read,
        reservations=ReservationAnswer.first_of(() if launched is None else launched.reservations),
        **grounds,
    )


def require_all_legal(
    problem: Problem,
    layouts: Mapping[str, Layout],
    given: Mapping[str, LayoutFields],
    workload: WorkloadFields,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Raises Refused with an error for every layout that breaks a rule.

    `layouts` and `given` are by the field of the request that has the layout. `given` has the
    layout before defaults were filled in: an error about a knob that was left out shows no value.
    `settings` has the launch's setting for each knob, which the error then names; None where the
    request has the fields of a layout.
    """
    if not layouts:
        return
    errors = list[Invalid]()
    broken = first_broken(problem, Layouts.of(layouts.values()))
    for (name, layout), index in zip(layouts.items(), broken, strict=True):
        if index < 0:  # the layout breaks no rule
            continue
        rule = RULES[index]
        message = f"{rule.name}: {rule.message(problem, layout)}"
        # The global batch is a field of the workload; all other blame is on a knob of the layout.
        if rule.blamed_field(problem, layout) == BATCH_FIELD:
            errors.append(_batch_error(layout, name, workload, message, settings))
        else:
            knob = rule.blamed_knob(problem, layout)
            errors.append(_knob_error(knob, name, given[name], message, settings or {}))
    if errors:
        raise Refused(errors)


_OTHER_CULPRIT = {"ep": "etp", "schedule": "virtual_stages"}
"""The knob to blame for a broken rule about another one, where that one was left open."""


def _knob_error(
    knob: str | None, name: str, given: LayoutFields, message: str, settings: Mapping[str, str]
) -> Invalid:
    """Returns the error for a rule that a layout breaks. `knob` is to blame; it is None where no
    single knob is. `name` is the field of the layout, and `given` the layout before defaults were
    filled in."""
    # A knob that was left open cannot be wrong: blame the related one that the request gives.
    related = _OTHER_CULPRIT.get(knob or "")
    if knob not in given.knobs_given and related in given.knobs_given:
        knob = related
    # A launch has the framework's setting for a knob, any other request the field of the layout.
    field = f"{name}.{settings.get(knob, given.field_of(knob))}" if knob else name
    value = getattr(given, given.field_of(knob)) if knob in given.knobs_given else None
    return Invalid(field, value, message)


def _batch_error(
    layout: Layout,
    name: str,
    workload: WorkloadFields,
    message: str,
    settings: Mapping[str, str] | None,
) -> Invalid:
    """Returns the error for a global batch that the layout cannot divide. If the request gives the
    batch in tokens, the error has the nearest batches in tokens. `name` is the field of the
    layout."""
    if settings is not None:  # in a launch, the framework's setting is to blame
        setting = settings.get("global_batch")
        return Invalid(f"{name}.{setting}" if setting else name, workload.global_batch, message)
    if workload.global_batch_tokens is not None:
        near = nearest_batches(workload.global_batch, layout)
        tokens = " and ".join(str(batch * workload.seq_len) for batch in near)
        message += f" sequences: {tokens} tokens"  # it ends with these batches in sequences
    field = f"workload.{workload.batch_field}"
    return Invalid(field, getattr(workload, workload.batch_field), message)
