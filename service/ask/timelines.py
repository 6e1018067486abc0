"""Draws the layouts of earlier answers as timelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from models.layouts.rules import lifted, require_legal
from models.prediction.timeline import chrome_trace, timeline
from service.resolve.answered_layout import (
    StoredLayout,
    layout_of_prediction,
    layout_of_recommendation,
)
from service.resolve.profiles import requested_profile
from service.resolve.resolution import Resolver
from service.schemas.question import ProfileWanted
from service.schemas.timeline import RecommendationTimelineQuery, TimelineAnswer, TimelineQuery
from service.store import Rows, Store


class Timelines:
    def __init__(self, store: Store) -> None:
        self._store = store

    def of_prediction(self, id_: str, query: TimelineQuery) -> dict[str, Any]:
        return self._draw(query, lambda rows: layout_of_prediction(rows, id_, query.rank))

    def of_recommendation(self, id_: str, query: RecommendationTimelineQuery) -> dict[str, Any]:
        return self._draw(
            query, lambda rows: layout_of_recommendation(rows, id_, query.rank, query.choice)
        )

    def _draw(
        self, query: TimelineQuery, find_layout: Callable[[Rows], StoredLayout]
    ) -> dict[str, Any]:
        with self._store.reading() as rows:
            answered = find_layout(rows)
            profile = requested_profile(rows, ProfileWanted(**answered.profile.model_dump()))
            problem = Resolver(rows).resolve(answered.question).problem
        layout = answered.layout.build()
        problem = lifted(problem, layout)
        require_legal(problem, layout)  # an answer may be older than a rule
        drawn = timeline(problem, profile, layout, query.micro_batches)
        if query.format == "chrome":
            return chrome_trace(drawn)
        return TimelineAnswer.of(drawn, answered.profile).model_dump(mode="json")
