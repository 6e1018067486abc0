"""Predictions and recommendations as they were answered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from service.errors import NotFound
from service.store.tables import PredictionRow, RecommendationRow

Answer = TypeVar("Answer", PredictionRow, RecommendationRow)


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

    def newest(
        self, kind: type[Answer], limit: int, since: datetime | None, until: datetime | None
    ) -> Sequence[Answer]:
        query = select(kind).order_by(kind.id.desc()).limit(limit)
        if since is not None:
            query = query.where(kind.created_at >= since)
        if until is not None:
            query = query.where(kind.created_at < until)
        return self._session.scalars(query).all()

    def briefs(
        self, kind: type[PredictionRow | RecommendationRow], limit: int, before: str | None
    ) -> Sequence[Row[Any]]:
        """What lists show of answers, newest first, starting after the id `before`. Ids sort by
        time."""
        columns = kind.id, kind.created_at, kind.profile_id, kind.profile_version, kind.brief
        query = select(*columns).order_by(kind.id.desc()).limit(limit)
        if before is not None:
            query = query.where(kind.id < before)
        return self._session.execute(query).all()
