"""Stores answers, and lists them in brief, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.resolve.recommended_layouts import RecommendedLayouts
from service.runtime.idempotency import CreatedResource
from service.schemas.catalog import CatalogQuery
from service.schemas.layout import LayoutFields
from service.schemas.prediction import (
    AnswerSummary,
    PredictionAnswer,
    ProfileUsed,
    RecommendationResult,
)
from service.schemas.question import Question
from service.schemas.recommendation import RecommendationAnswer
from service.store import Rows, Store
from service.store.cursors import read_cursor, write_cursor
from service.store.tables import PredictionRow, RecommendationRow

_FIGURES = ("layout", "step_time_s", "mfu", "fit_probability")


def answer_brief(document: Mapping[str, Any]) -> dict[str, Any]:
    """What lists show of an answer: its question and, of a recommendation, the recommended
    layout."""
    request = {name: document["request"][name] for name in Question.model_fields}
    if "recommended" not in document:
        return {"request": request}
    result = {
        "chips_used": document["chips_used"],
        "exact": document["certificate"]["exact"],
    }
    prediction = RecommendedLayouts.of(document).named["recommended"]
    result |= {name: prediction[name] for name in _FIGURES}
    return {"request": request, "result": result}


def save_answer(
    rows: Rows,
    kind: type[PredictionRow | RecommendationRow],
    answer: PredictionAnswer | RecommendationAnswer,
) -> CreatedResource:
    """Stores an answer as it is sent, with what lists show of it."""
    document = answer.model_dump(mode="json")
    row = kind(
        id=answer.id,
        created_at=answer.created_at,
        profile_id=answer.profile.id,
        profile_version=answer.profile.version,
        brief=answer_brief(document),
        document=document,
    )
    rows.answers.add(row)
    return CreatedResource(_location(kind.__tablename__, answer.id), document)


def _location(table: str, id_: str) -> str:
    return f"/v1/{table}/{id_}"


def answer_page(
    store: Store, kind: type[PredictionRow | RecommendationRow], query: CatalogQuery
) -> dict[str, Any]:
    """A page of the answers of a kind, newest first, and the cursor of the next page."""
    table = kind.__tablename__
    before = None if query.cursor is None else read_cursor(table, query.cursor)
    with store.reading() as rows:
        # One more than asked for tells whether there is a next page.
        found = rows.answers.briefs(kind, query.limit + 1, before)
    page = found[: query.limit]
    following = write_cursor(table, page[-1].id) if len(found) > query.limit else None
    return {"items": [_page_item(table, row) for row in page], "next": following}


def _page_item(table: str, row: Any) -> dict[str, Any]:
    """One answer of a page. Its brief is empty if an earlier release of the service, still running
    beside this one, has written it."""
    item = AnswerSummary(
        id=row.id,
        created_at=row.created_at,
        location=_location(table, row.id),
        profile=ProfileUsed(id=row.profile_id, version=row.profile_version),
        request=row.brief.get("request", {}),
    ).model_dump(mode="json")
    if table == RecommendationRow.__tablename__:
        item["result"] = _recommendation_result(row.brief.get("result"))
    return item


def _recommendation_result(result: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if result is None:
        return None
    figures = {name: value for name, value in result.items() if name != "layout"}
    summary = LayoutFields.summary(result["layout"])
    return RecommendationResult(**figures, layout_summary=summary).model_dump(mode="json")
