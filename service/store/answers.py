"""Predictions and recommendations as they were answered."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.errors import NotFound
from service.tables import PredictionRow, RecommendationRow


class Answers:
    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, row: PredictionRow | RecommendationRow) -> None:
        self._session.add(row)

    def prediction(self, id_: str) -> PredictionRow:
        row = self._session.get(PredictionRow, id_)
        if row is None:
            raise NotFound("prediction", id_)
        return row

    def recommendation(self, id_: str) -> RecommendationRow:
        row = self._session.get(RecommendationRow, id_)
        if row is None:
            raise NotFound("recommendation", id_)
        return row
