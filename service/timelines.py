"""The layouts of an earlier answer as timelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from models.timeline import chrome_trace, timeline
from service.profiles import wanted_profile
from service.resolution import Resolver
from service.schemas.prediction import ProfileUsed
from service.schemas.question import ProfileWanted
from service.schemas.timeline import TimelineAnswer, TimelineQuery
from service.store import Rows, Store
from service.subject import Subject, of_prediction, of_recommendation


class Timelines:
    def __init__(self, store: Store) -> None:
        self._store = store

    def of_prediction(self, id_: str, query: TimelineQuery) -> dict[str, Any]:
        return self._draw(query, lambda rows: rows.answers.prediction(id_).document, of_prediction, id_)

    def of_recommendation(self, id_: str, query: TimelineQuery) -> dict[str, Any]:
        return self._draw(query, lambda rows: rows.answers.recommendation(id_).document, of_recommendation, id_)

    def _draw(
        self,
        query: TimelineQuery,
        document: Callable[[Rows], dict[str, Any]],
        subject: Callable[[Rows, str, int | None], Subject],
        id_: str,
    ) -> dict[str, Any]:
        with self._store.reading() as rows:
            used = document(rows)["profile"]
            profile = wanted_profile(rows, ProfileWanted.model_validate(used))
            asked = subject(rows, id_, query.rank)
            problem = Resolver(rows).problem(asked.question).problem
        found = timeline(problem, profile, asked.layout.build(), query.micro_batches)
        if query.format == "chrome":
            return chrome_trace(found)
        return TimelineAnswer.of(found, ProfileUsed.model_validate(used)).model_dump(mode="json")
