"""Answers that are kept, in brief, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.schemas.catalog import CatalogQuery
from service.schemas.layout import LayoutFields
from service.schemas.prediction import AnswerSummary, ProfileUsed, RecommendationResult
from service.schemas.question import Question
from service.store import Store
from service.store.cursors import read_cursor, write_cursor
from service.store.tables import PredictionRow, RecommendationRow

_OF_THE_FASTEST = ("layout", "step_time_s", "mfu", "fit_probability")


def brief(document: Mapping[str, Any]) -> dict[str, Any]:
    """What lists show of an answer: the question and, of a recommendation, what came of it."""
    asked = {"request": {name: document["request"][name] for name in Question.model_fields}}
    if "fastest" not in document:
        return asked
    best = document["fastest"]["prediction"]
    of_all = {"chips_used": document["chips_used"], "exact": document["certificate"]["exact"]}
    if faster := document.get("faster_on_fewer"):
        of_all["faster_on"] = faster["num_chips"]
    return {**asked, "result": {**of_all, **{name: best[name] for name in _OF_THE_FASTEST}}}


def answer_page(
    store: Store, kind: type[PredictionRow | RecommendationRow], query: CatalogQuery
) -> dict[str, Any]:
    before = None if query.cursor is None else read_cursor(kind.__tablename__, query.cursor)
    with store.reading() as rows:
        found = rows.answers.briefs(kind, query.limit + 1, before)
    page = found[: query.limit]
    following = write_cursor(kind.__tablename__, page[-1].id) if len(found) > query.limit else None
    return {"items": [_item(kind.__tablename__, row) for row in page], "next": following}


def _item(kind: str, row: Any) -> dict[str, Any]:
    """`brief` is empty where an earlier release wrote beside this one."""
    shown = AnswerSummary(
        id=row.id,
        created_at=row.created_at,
        location=f"/v1/{kind}/{row.id}",
        profile=ProfileUsed(id=row.profile_id, version=row.profile_version),
        request=row.brief.get("request", {}),
    ).model_dump(mode="json")
    return (
        shown
        if kind == PredictionRow.__tablename__
        else {**shown, "result": _result(row.brief.get("result"))}
    )


def _result(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    figures = {name: value for name, value in found.items() if name != "layout"}
    summary = LayoutFields.summary(found["layout"])
    return RecommendationResult(**figures, layout_summary=summary).model_dump(mode="json")
