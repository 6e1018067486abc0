"""Find the layouts to launch."""

from __future__ import annotations

from time import monotonic
from typing import Any

from models.hardware import Cluster
from models.recommendation import Recommendation, recommend
from models.thresholds import thresholds
from service.basis import basis
from service.creation import Created, Save
from service.profiles import wanted_profile
from service.resolution import Resolver
from service.schemas.recommendation import (
    CandidateAnswer,
    CertificateAnswer,
    FewerChipsAnswer,
    PipeliningAnswer,
    RecommendationAnswer,
    RecommendationRequest,
    ThresholdAnswer,
)
from service.store import Rows, Store
from service.tables import RecommendationRow

_THRESHOLDS_S = 3.0  # for all of them


class Recommendations:
    def __init__(self, store: Store) -> None:
        self._store = store

    def recommend(self, request: RecommendationRequest) -> Save:
        with self._store.reading() as rows:
            resolved = Resolver(rows).problem(request)
            profile = wanted_profile(rows, request.profile)
        constraints = request.constraints.build()
        ends = monotonic() + request.time_limit_s
        found = recommend(
            resolved.problem,
            profile,
            constraints,
            tolerance=request.tolerance,
            top=request.top,
            go_on=lambda: monotonic() < ends,
        )
        found_thresholds = None
        if "thresholds" in request.include:
            until = min(ends, monotonic() + _THRESHOLDS_S)
            asked = thresholds(found.problem, profile, constraints, request.tolerance, lambda: monotonic() < until)
            found_thresholds = [ThresholdAnswer.of(one) for one in asked]
        answer = RecommendationAnswer(
            **_found(found, found.problem.cluster),
            **basis(request, resolved.answered(found.problem), profile),
        )
        answer.pipelining.thresholds = found_thresholds
        answer.request.update(
            include=request.include,
            constraints=request.constraints.model_dump(mode="json", exclude_none=True),
            tolerance=request.tolerance,
            top=request.top,
            time_limit_s=request.time_limit_s,
        )
        return lambda rows: _save(rows, answer)

    def get(self, id_: str) -> dict[str, Any]:
        with self._store.reading() as rows:
            return rows.answers.recommendation(id_).document


def _found(found: Recommendation, cluster: Cluster) -> dict[str, Any]:
    price = cluster.chip.usd_per_chip_hour
    usd_per_hour = None if price is None else price * found.chips_used
    return {
        "fastest": CandidateAnswer.of(found.fastest, usd_per_hour),
        "simplest": CandidateAnswer.of(found.simplest, usd_per_hour),
        "ranked": [CandidateAnswer.of(candidate, usd_per_hour) for candidate in found.ranked],
        "front": [CandidateAnswer.of(candidate, usd_per_hour) for candidate in found.front],
        "reasons": list(found.reasons),
        "chips_used": found.chips_used,
        "fewer_chips": FewerChipsAnswer.of(found.fewer_chips) if found.fewer_chips else None,
        "pipelining": PipeliningAnswer.of(found.pipelining, usd_per_hour),
        "certificate": CertificateAnswer.of(found.certificate),
    }


def _save(rows: Rows, answer: RecommendationAnswer) -> Created:
    document = answer.model_dump(mode="json")
    row = RecommendationRow(
        id=answer.id,
        created_at=answer.created_at,
        profile_id=answer.profile.id,
        profile_version=answer.profile.version,
        document=document,
    )
    rows.answers.add(row)
    return Created(f"/v1/recommendations/{answer.id}", document)
