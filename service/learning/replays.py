"""What earlier questions would be answered under another version of the profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError

from models.calibration.calibrate import Observation
from models.columns import Array
from models.cost.memory_uncertainty import MemoryUncertainty
from models.cost.step import Predictions, predict
from models.errors import DomainError
from models.spec.constraints import Constraints
from models.spec.hardware import GIB
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.resolve.answered_layout import place_of
from service.resolve.observations import Observations, log_residuals
from service.resolve.profiles import profile_version
from service.resolve.resolution import Resolver
from service.schemas.layout import ConstraintFields, LayoutFields
from service.schemas.prediction import ProfileUsed
from service.schemas.question import Question
from service.schemas.summary import (
    ReplayAnswer,
    Replayed,
    ReplayedLayout,
    ReplayedReports,
    ReplayRequest,
)
from service.store import Rows, Store
from service.store.reports import ReportFilter
from service.store.tables import PredictionRow, RecommendationRow

_REPORTS = 10  # for each answer


@dataclass(frozen=True, slots=True)
class _Asked:
    """An earlier answer: its question with its constraints, and its predictions as documents and as
    layouts."""

    row: PredictionRow | RecommendationRow
    ranked: bool
    predictions: list[dict[str, Any]]
    problem: Problem
    layouts: Layouts
    constraints: Constraints

    @classmethod
    def of(cls, resolver: Resolver, row: PredictionRow | RecommendationRow) -> _Asked:
        document, ranked = row.document, isinstance(row, RecommendationRow)
        predictions = (
            [item["prediction"] for item in document["ranked"]] if ranked else document["layouts"]
        )
        asked = {name: document["request"][name] for name in Question.model_fields}
        if ranked:
            asked |= place_of(document)
        problem = resolver.problem(Question.model_validate(asked)).problem
        layouts = Layouts.of(
            [LayoutFields.model_validate(item["layout"]).build() for item in predictions]
        )
        constraints = ConstraintFields.model_validate(
            document["request"]["constraints"] if ranked else {}
        ).build()
        return cls(row, ranked, predictions, problem, layouts, constraints)


class Replays:
    def __init__(self, store: Store) -> None:
        self._store = store

    def replay(self, id_: str, version: int, request: ReplayRequest) -> dict[str, Any]:
        with self._store.reading() as rows:
            replayed, active = profile_version(rows, id_, version), profile_version(rows, id_, None)
            asked, unusable = _asked(rows, request)
            wanted = ReportFilter(
                profile_id=id_, measured=True, since=request.since, until=request.until
            )
            usable, _ = Observations(rows).of(rows.reports.newest(wanted, _REPORTS * request.limit))
        answers = list[Replayed]()
        for one in asked:
            try:
                answers.append(_replayed(one, replayed))
            except DomainError:
                unusable.append(_location(one.row))
        return ReplayAnswer(
            profile=ProfileUsed(id=replayed.id, version=replayed.version),
            active=ProfileUsed(id=active.id, version=active.version),
            answers=sorted(answers, key=_most_changed),
            unusable=unusable,
            reports=_reports([observation for _, observation in usable], active, replayed),
        ).model_dump(mode="json")


def _most_changed(answer: Replayed) -> tuple[bool, float]:
    ratios = [abs(np.log(one.replayed_step_time_s / one.step_time_s)) for one in answer.layouts]
    return not answer.another_first, -float(max(ratios))


def _asked(rows: Rows, request: ReplayRequest) -> tuple[list[_Asked], list[str]]:
    """What still means something to the models, and where the rest is."""
    resolver, asked, unusable = Resolver(rows), list[_Asked](), list[str]()
    span = request.limit, request.since, request.until
    newest: list[PredictionRow | RecommendationRow] = [*rows.answers.newest(PredictionRow, *span)]
    newest += rows.answers.newest(RecommendationRow, *span)
    for row in newest:
        try:
            asked.append(_Asked.of(resolver, row))
        except (DomainError, ValidationError):
            unusable.append(_location(row))
    return asked, unusable


def _location(row: PredictionRow | RecommendationRow) -> str:
    return f"/v1/{'predictions' if isinstance(row, PredictionRow) else 'recommendations'}/{row.id}"


def _replayed(asked: _Asked, profile: Profile) -> Replayed:
    row, ranked = asked.row, asked.ranked
    found = predict(asked.problem, asked.layouts, profile.coefficients(asked.problem.scopes))
    times, fits = found.step_time_s, found.fits()
    sure = _as_asked(asked, found, profile)
    return Replayed(
        kind="recommendation" if ranked else "prediction",
        id=row.id,
        location=_location(row),
        made_with=ProfileUsed(id=row.profile_id, version=row.profile_version),
        layouts=[
            ReplayedLayout(
                rank=i + 1,
                step_time_s=item["step_time_s"],
                replayed_step_time_s=float(times[i]),
                fits=item["fits"],
                replayed_fits=bool(fits[i]),
            )
            for i, item in enumerate(asked.predictions)
        ],
        another_first=ranked and bool(not sure[0] or (times[sure] < times[0]).any()),
    )


def _as_asked(asked: _Asked, found: Predictions, profile: Profile) -> Array:
    """Which layouts fit as surely as the question wants them to, with what it keeps free."""
    wanted, cluster = asked.constraints, asked.problem.cluster
    margin = MemoryUncertainty.of(asked.problem, profile, wanted.min_fit_probability)
    return margin.fits(
        found.memory,
        found.host_bytes,
        cluster,
        cluster.usable_bytes - wanted.memory_reserve_gib * GIB,
    )


def _reports(
    observations: Sequence[Observation], active: Profile, replayed: Profile
) -> ReplayedReports:
    def error(profile: Profile) -> float | None:
        if not observations:
            return None
        return float(np.median(np.abs(np.expm1(-log_residuals(observations, profile)))))

    return ReplayedReports(
        runs=len(observations), error_active=error(active), error_replayed=error(replayed)
    )
