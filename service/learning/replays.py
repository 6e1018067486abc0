"""Replays show what earlier questions would be answered under another version of the profile, so
that a person can look before activating it. The layouts are those of the earlier answers; none is
searched anew. A *profile* has the coefficients of the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from models.columns import Array
from models.cost.fit import fits
from models.cost.memory_uncertainty import MemoryUncertainty
from models.cost.predictions import Predictions, predict
from models.errors import DomainError
from models.spec.constraints import Constraints
from models.spec.hardware import GIB
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.resolve.answered_layout import best_cluster_and_stack
from service.resolve.calibration_targets import log_residuals
from service.resolve.profiles import profile_version, reports_of
from service.resolve.recommended_layouts import RecommendedLayouts
from service.resolve.resolution import Resolver
from service.resolve.stored_runs import StoredRun, StoredRuns
from service.schemas.layout import ConstraintFields, LayoutFields
from service.schemas.prediction import ProfileUsed
from service.schemas.question import Question
from service.schemas.stored import read_stored
from service.schemas.summary import (
    ReplayAnswer,
    Replayed,
    ReplayedLayout,
    ReplayedReports,
    ReplayRequest,
)
from service.store import Rows, UseCase
from service.store.answers import Answer

_REPORTS_PER_ANSWER = 10  # reports that are read for each answer of the request's limit


@dataclass(frozen=True, slots=True)
class _StoredAnswer:
    """An earlier answer whose question can still be resolved.

    `predictions` are those of its layouts, as they were answered; for a recommendation, those of
    its ranked layouts.
    """

    answer: Answer
    predictions: list[dict[str, Any]]
    problem: Problem
    layouts: Layouts
    constraints: Constraints

    @classmethod
    def of(cls, resolver: Resolver, answer: Answer) -> _StoredAnswer:
        """Resolves the question of an answer again, with its layouts. Raises DomainError or
        ValidationError where the catalogue or the schema no longer knows them."""
        document = answer.document
        question = {name: document["request"][name] for name in Question.model_fields}
        if answer.kind == "recommendations":
            # Of several clusters or stacks to choose from, the layouts are for the best.
            question |= best_cluster_and_stack(document)
            predictions = RecommendedLayouts.of(document).ranked
            constraints = document["request"]["constraints"]
        else:
            predictions = document["layouts"]
            constraints = {}  # layouts that the caller states are not searched under any
        layouts = [read_stored(LayoutFields, item["layout"]).build() for item in predictions]
        return cls(
            answer=answer,
            predictions=predictions,
            problem=resolver.resolve(read_stored(Question, question)).problem,
            layouts=Layouts.of(layouts),
            constraints=read_stored(ConstraintFields, constraints).build(),
        )

    @property
    def is_recommendation(self) -> bool:
        return self.answer.kind == "recommendations"


class Replays(UseCase):
    def replay(self, id_: str, version: int, request: ReplayRequest) -> dict[str, Any]:
        """Predicts the newest answers again under a version of the profile, and compares its error
        on reports with the active version's. Answers whose question can no longer be resolved are
        listed apart."""
        with self._store.reading() as rows:
            replayed = profile_version(rows, id_, version=version)
            active = profile_version(rows, id_, version=None)  # None: the active one
            stored, unusable = _stored_answers(rows, request)
            report_filter = replace(
                reports_of(rows, id_), measured=True, since=request.since, until=request.until
            )
            reports = rows.reports.newest(report_filter, _REPORTS_PER_ANSWER * request.limit)
            runs, _ = StoredRuns(rows).read(reports)
        answers: list[Replayed] = []
        for answer in stored:
            try:
                answers.append(_replayed(answer, replayed))
            except DomainError:
                unusable.append(answer.answer.location)
        return ReplayAnswer(
            profile=ProfileUsed(id=replayed.id, version=replayed.version),
            active=ProfileUsed(id=active.id, version=active.version),
            answers=sorted(answers, key=_change_rank),
            unusable=unusable,
            reports=ReplayedReports(
                runs=len(runs),
                error_active=_median_error(runs, active),
                error_replayed=_median_error(runs, replayed),
            ),
        ).model_dump(mode="json")


def _change_rank(answer: Replayed) -> tuple[bool, float]:
    """Returns a sort key: answers that would recommend another layout come first, then those whose
    step times change most."""
    changes = [
        abs(np.log(layout.replayed_step_time_s / layout.step_time_s)) for layout in answer.layouts
    ]
    return not answer.another_first, -float(max(changes))


def _stored_answers(rows: Rows, request: ReplayRequest) -> tuple[list[_StoredAnswer], list[str]]:
    """Returns the newest answers, at most `request.limit` of each kind, and the locations of the
    answers whose question can no longer be resolved."""
    resolver = Resolver(rows)
    span = request.limit, request.since, request.until
    newest = [
        *rows.answers.newest("predictions", *span),
        *rows.answers.newest("recommendations", *span),
    ]
    stored: list[_StoredAnswer] = []
    unusable: list[str] = []
    for answer in newest:
        try:
            stored.append(_StoredAnswer.of(resolver, answer))
        except (DomainError, ValidationError):
            unusable.append(answer.location)
    return stored, unusable


def _replayed(answer: _StoredAnswer, profile: Profile) -> Replayed:
    """Predicts the layouts of an answer again under this version of the profile, and tells whether
    a recommendation would now put another of them first."""
    stored = answer.answer
    coefficients = profile.coefficients(answer.problem.scopes)
    predictions = predict(answer.problem, answer.layouts, coefficients)
    times = predictions.step_time_s
    fits = predictions.fits()
    fits_surely = _fits_surely(answer, predictions, profile)
    # A recommendation would change if its first layout no longer fits surely enough, or if another
    # layout that fits surely enough is faster.
    another_first = not fits_surely[0] or (times[fits_surely] < times[0]).any()
    return Replayed(
        kind="recommendation" if answer.is_recommendation else "prediction",
        id=stored.id,
        location=stored.location,
        made_with=ProfileUsed(id=stored.profile_id, version=stored.profile_version),
        layouts=[
            ReplayedLayout(
                rank=i + 1,
                step_time_s=item["step_time_s"],
                replayed_step_time_s=float(times[i]),
                fits=item["fits"],
                replayed_fits=bool(fits[i]),
            )
            for i, item in enumerate(answer.predictions)
        ],
        another_first=answer.is_recommendation and bool(another_first),
    )


def _fits_surely(answer: _StoredAnswer, predictions: Predictions, profile: Profile) -> Array:
    """Returns a mask of the layouts that fit with at least the probability that the question
    demands, while keeping free the memory that it reserves; shape (layouts,)."""
    constraints = answer.constraints
    cluster = answer.problem.cluster
    # The margin has the limits of memory, and how unsure its prediction is.
    uncertainty = MemoryUncertainty.of(answer.problem, profile, constraints.min_fit_probability)
    usable_bytes = cluster.usable_bytes - constraints.memory_reserve_gib * GIB
    margin = uncertainty.margin(cluster, usable_bytes)
    return fits(margin, predictions.memory_terms, predictions.host_bytes)


def _median_error(runs: Sequence[StoredRun], profile: Profile) -> float | None:
    """Returns the median of |predicted / measured - 1| of step times under this profile; None
    without runs."""
    if not runs:
        return None
    # A residual is log(measured / predicted), so that expm1 of its negative is predicted / measured
    # - 1.
    return float(np.median(np.abs(np.expm1(-log_residuals(runs, profile)))))
