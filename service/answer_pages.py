"""Answers that are kept, in short, a page at a time."""

from __future__ import annotations

from typing import Any

from service.cursors import read_cursor, write_cursor
from service.schemas.catalog import CatalogQuery
from service.schemas.prediction import AnswerPage, AnswerSummary, ProfileUsed
from service.schemas.question import Question
from service.store import Store
from service.tables import PredictionRow, RecommendationRow


def answer_page(store: Store, kind: type[PredictionRow | RecommendationRow], query: CatalogQuery) -> dict[str, Any]:
    before = None if query.cursor is None else read_cursor(kind.__tablename__, query.cursor)
    with store.reading() as rows:
        found = rows.answers.asked(kind, query.limit + 1, before)
    page = found[: query.limit]
    following = write_cursor(kind.__tablename__, page[-1].id) if len(found) > query.limit else None
    items = [
        AnswerSummary(
            id=row.id,
            created_at=row.created_at,
            location=f"/v1/{kind.__tablename__}/{row.id}",
            profile=ProfileUsed(id=row.profile_id, version=row.profile_version),
            request={name: row.request[name] for name in Question.model_fields},
        )
        for row in page
    ]
    return AnswerPage(items=items, next=following).model_dump(mode="json")
