"""Lists answers, a page at a time. The *listed fields* of an answer are the few that lists show,
stored beside its text as its `brief`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from models.errors import UnknownName
from models.spec import catalogue
from service.schemas.layout import LayoutFields
from service.schemas.list_query import AnswerQuery
from service.schemas.prediction import (
    AnswerSummary,
    PredictionAnswer,
    ProfileUsed,
    RecommendationResult,
)
from service.schemas.question import Question
from service.schemas.recommendation import RecommendationAnswer
from service.schemas.stored import read_stored
from service.store import Store
from service.store.answers import AnswerFilter, AnswerKind
from service.store.cursors import cut_page, read_cursor

_ENTRIES = {"model": "architecture", "chip": "chip", "stack": "stack"}
"""The entry of an answer's `catalogue` that has the name, by the name of the filter."""
_CATALOGUES: dict[str, Callable[[str], str]] = {
    "model": lambda name: catalogue.architecture(name).name,
    "chip": lambda name: catalogue.chip(name).id,
    "stack": lambda name: catalogue.stack(name).id,
}
"""Functions that return the name of a shipped entry from that name or an alias."""


def listed_fields(answer: PredictionAnswer | RecommendationAnswer) -> dict[str, Any]:
    """Returns the fields of an answer that lists show: its question and, for a recommendation, the
    recommended layout."""
    request = {name: answer.request[name] for name in Question.model_fields}
    question = {"request": request, "names": names_used(answer.catalogue.model_dump())}
    if isinstance(answer, PredictionAnswer):
        return question
    recommended = answer.layouts[answer.recommended].prediction
    result = {
        "chips_used": answer.chips_used,
        "exact": answer.certificate.exact,
        "layout": recommended.layout.model_dump(mode="json"),
        "step_time_s": recommended.step_time_s,
        "mfu": recommended.mfu.model_dump(mode="json"),
        "fit_probability": recommended.fit_probability,
    }
    return {**question, "result": result}


def names_used(catalogue_used: Mapping[str, Any]) -> dict[str, str]:
    """Returns the catalogue's names of the model, chip and stack of an answer, by which lists are
    filtered. `catalogue_used` is the answer's `catalogue`."""
    return {name: catalogue_used[entry]["name"] for name, entry in _ENTRIES.items()}


def answer_page(store: Store, kind: AnswerKind, query: AnswerQuery) -> dict[str, Any]:
    """Returns a page of the answers of a kind, newest first, and the cursor of the next page."""
    before = read_cursor(kind, query.cursor)
    with store.reading() as rows:
        # One more than the page has, which tells whether another page follows.
        rows_found = rows.answers.briefs(kind, query.limit + 1, before, _answer_filter(query))
    page, following = cut_page(kind, rows_found, query.limit, lambda row: row.id)
    return {"items": [_page_item(kind, row) for row in page], "next": following}


def _answer_filter(query: AnswerQuery) -> AnswerFilter:
    """Returns the filter for a list of answers, with the names that stored answers use."""
    names = {
        name: [_name_in_answers(find, given) for given in getattr(query, name)]
        for name, find in _CATALOGUES.items()
    }
    return AnswerFilter(names=names, since=query.since, until=query.until)


def _name_in_answers(find_shipped: Callable[[str], str], given: str) -> str:
    """Returns the name that stored answers use for the catalogue entry with this name or alias.
    Entries that callers added have no alias: their name is returned as it was given."""
    try:
        return find_shipped(given)
    except UnknownName:
        return given


def _page_item(kind: AnswerKind, row: Any) -> dict[str, Any]:
    """Returns an answer as lists show it. `brief` is empty if an earlier release of the service,
    still running beside this one, has stored it."""
    item = AnswerSummary(
        id=row.id,
        created_at=row.created_at,
        location=f"/v1/{kind}/{row.id}",
        profile=ProfileUsed(id=row.profile_id, version=row.profile_version),
        request=row.brief.get("request", {}),
    ).model_dump(mode="json")
    if kind == "recommendations":
        item["result"] = _recommendation_result(row.brief.get("result"))
    if kind == "checks":
        item |= {name: row.brief[name] for name in ("verdict", "summary")}
    return item


def _recommendation_result(result: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns the result of a recommendation as lists show it, with the layout in words; None where
    none is stored."""
    if result is None:
        return None
    shown = {**result, "layout_summary": LayoutFields.summary(result["layout"])}
    return read_stored(RecommendationResult, shown).model_dump(mode="json")
