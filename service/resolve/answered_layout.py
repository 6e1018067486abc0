"""Finds the layout that a request means when it names an earlier answer, and the question that the
layout answered.

An answer is a prediction, a recommendation or a check of a job. A *choice* is a layout with a name
in a recommendation, such as "simplest". A *rank* is a place among an answer's layouts, from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from models.errors import Invalid
from models.layouts.rules import lift_search_limits, require_legal
from models.spec.layout import Layout
from models.spec.problem import Problem
from service.resolve.recommended_layouts import RecommendedLayouts
from service.resolve.resolution import Resolver
from service.schemas.layout import LayoutFields
from service.schemas.prediction import ProfileUsed
from service.schemas.question import Question
from service.schemas.run_subject import RunSubject
from service.schemas.stored import read_stored
from service.store import Rows


@dataclass(frozen=True, slots=True)
class AnsweredLayout:
    """A layout and the question that it is an answer to."""

    question: Question
    layout: LayoutFields
    field: str
    """The field of the request that names the layout."""
    rank: int | None
    """Rank of the layout among those of an earlier answer, from 1."""
    reservations: Sequence[Mapping[str, str]] = ()
    """Settings of the launch that an earlier answer read the layout from, and did not
    understand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLayout(AnsweredLayout):
    """A layout of a stored answer, with the profile that it was predicted with."""

    profile: ProfileUsed


def layout_of_prediction(rows: Rows, id_: str, rank: int | None) -> StoredLayout:
    """Returns the layout of a stored prediction; raises Invalid where it has several and `rank` is
    None."""
    document = rows.answers.prediction(id_).document
    layouts = [item["layout"] for item in document["layouts"]]
    if len(layouts) > 1 and rank is None:
        raise Invalid("rank", None, f"is required: the prediction is of {len(layouts)} layouts")
    return _layout_at_rank(document, layouts, rank=rank or 1)  # without a rank there is only one


def layout_of_recommendation(
    rows: Rows, id_: str, rank: int | None, choice: str | None = None
) -> StoredLayout:
    """Returns a layout of a stored recommendation: the one with this rank, or with a name such as
    "simplest"; without either, the recommended one. Its rank is None if it is not among the
    ranked."""
    document = rows.answers.recommendation(id_).document
    # The best choice may be of another cluster or stack than the request names first.
    document["request"].update(best_cluster_and_stack(document))
    layouts = RecommendedLayouts.of(document)
    ranked = [prediction["layout"] for prediction in layouts.ranked]
    if rank is not None:
        return _layout_at_rank(document, ranked, rank=rank)
    prediction = layouts.default if choice is None else layouts.with_name(choice)
    layout = prediction["layout"]
    rank_of_choice = ranked.index(layout) + 1 if layout in ranked else None
    chosen = _layout_at_rank(document, [layout], rank=1)
    # The field of the request that picked the layout, for errors about it.
    field = "recommendation_id" if choice is None else "choice"
    return replace(chosen, field=field, rank=rank_of_choice)


def legal_run(
    resolver: Resolver, question: Question, layout_fields: LayoutFields
) -> tuple[Problem, Layout]:
    """Returns a question and a layout as values of the models, with names resolved in today's
    catalogue. Raises an error where the layout is no longer legal: an answer may be older than a
    rule."""
    layout = layout_fields.build()
    # Limits on the search do not bind a layout that is stated: those that it exceeds are raised.
    problem = lift_search_limits(resolver.resolve(question).problem, layout)
    require_legal(problem, layout)
    return problem, layout


def layout_of_check(rows: Rows, id_: str) -> StoredLayout:
    """Returns the layout of a job that was checked; raises Invalid where its framework refuses to
    start the job before it has one."""
    document = rows.answers.check(id_).document
    if document["layout"] is None:
        rule = "is of a job that its framework does not start, so that nothing is predicted of it"
        raise Invalid("check_id", id_, rule)
    checked = _layout_at_rank(document, [document["layout"]], rank=1)
    return replace(checked, field="check_id", rank=None)  # its only layout, which has no rank


def best_cluster_and_stack(recommendation: dict[str, Any]) -> dict[str, Any]:
    """Returns `cluster` and `stack` of the best choice of a recommendation, which is the first, as
    a request writes them, with as many chips as are used."""
    request = recommendation["request"]
    choices = recommendation.get("choices")
    best = choices[0] if choices else {}  # without choices the place is that of the request
    cluster = best.get("cluster", request["cluster"])
    return {
        "cluster": {**cluster, "num_chips": recommendation["chips_used"]},
        "stack": best.get("stack", request["stack"]),
    }


def layout_of_report(rows: Rows, report: RunSubject) -> AnsweredLayout:
    """Returns the layout that was run: from the answer that a report names, or the one that it
    describes itself. Raises Invalid where it does neither."""
    if report.prediction_id is not None:
        return layout_of_prediction(rows, report.prediction_id, report.rank)
    if report.recommendation_id is not None:
        return layout_of_recommendation(rows, report.recommendation_id, report.rank, report.choice)
    if report.check_id is not None:
        return layout_of_check(rows, report.check_id)
    if report.layout is None:
        raise Invalid("layout", None, "is required")
    return AnsweredLayout(report.question(), report.layout, field="layout", rank=None)


def _layout_at_rank(
    document: dict[str, Any], layouts: list[dict[str, Any]], rank: int
) -> StoredLayout:
    """Returns the layout with this rank, from 1, among the `layouts` of a stored answer, with its
    question and profile. Raises Invalid for a rank that is too high."""
    if rank > len(layouts):
        raise Invalid("rank", rank, f"must be at most {len(layouts)}")
    question = {name: document["request"][name] for name in Question.model_fields}
    return StoredLayout(
        question=read_stored(Question, question),
        layout=read_stored(LayoutFields, layouts[rank - 1]),
        field="rank",
        rank=rank,
        profile=read_stored(ProfileUsed, document["profile"]),
        reservations=document.get("reservations", ()),
    )
