"""A layout of an earlier answer, with the question that it answered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from models.errors import Invalid
from service.schemas.layout import LayoutFields
from service.schemas.prediction import ProfileUsed
from service.schemas.question import Question
from service.schemas.report import Ran
from service.store import Rows


@dataclass(frozen=True, slots=True)
class AnsweredLayout:
    """What ran: `field` is where the submission names the layout, `rank` which one of what it is
    linked to."""

    question: Question
    layout: LayoutFields
    field: str
    rank: int | None


@dataclass(frozen=True, slots=True)
class StoredLayout(AnsweredLayout):
    """A layout of an answer, and what that was predicted with."""

    profile: ProfileUsed


def layout_of_prediction(rows: Rows, id_: str, rank: int | None) -> StoredLayout:
    document = rows.answers.prediction(id_).document
    layouts = [item["layout"] for item in document["layouts"]]
    if len(layouts) > 1 and rank is None:
        raise Invalid("rank", None, f"is required: the prediction is of {len(layouts)} layouts")
    return _linked(document, layouts, rank or 1)


def layout_of_recommendation(
    rows: Rows, id_: str, rank: int | None, choice: str | None = None
) -> StoredLayout:
    document = rows.answers.recommendation(id_).document
    document["request"].update(best_cluster_and_stack(document))
    ranked = [one["prediction"]["layout"] for one in document["ranked"]]
    if choice is None:
        return _linked(document, ranked, rank or 1)
    if document[choice] is None:
        raise Invalid("choice", choice, "is not among those of the recommendation")
    layout = document[choice]["prediction"]["layout"]
    place = ranked.index(layout) + 1 if layout in ranked else None
    return replace(_linked(document, [layout], 1), field="choice", rank=place)


def best_cluster_and_stack(recommendation: dict[str, Any]) -> dict[str, Any]:
    """What a recommendation is for: of several places the best, with its stack, and as many of its
    chips as are used."""
    (best, *_), asked = recommendation.get("choices") or [{}], recommendation["request"]
    cluster = {**best.get("cluster", asked["cluster"]), "num_chips": recommendation["chips_used"]}
    return {"cluster": cluster, "stack": best.get("stack", asked["stack"])}


def layout_of_report(rows: Rows, report: Ran) -> AnsweredLayout:
    """What a report names, or describes itself."""
    if report.prediction_id is not None:
        return layout_of_prediction(rows, report.prediction_id, report.rank)
    if report.recommendation_id is not None:
        return layout_of_recommendation(rows, report.recommendation_id, report.rank, report.choice)
    if report.layout is None:
        raise Invalid("layout", None, "is required")
    return AnsweredLayout(report.question(), report.layout, "layout", None)


def _linked(document: dict[str, Any], layouts: list[dict[str, Any]], rank: int) -> StoredLayout:
    if rank > len(layouts):
        raise Invalid("rank", rank, f"must be at most {len(layouts)}")
    asked = {name: document["request"][name] for name in Question.model_fields}
    question, layout = (
        Question.model_validate(asked),
        LayoutFields.model_validate(layouts[rank - 1]),
    )
    return StoredLayout(
        question, layout, "rank", rank, ProfileUsed.model_validate(document["profile"])
    )
