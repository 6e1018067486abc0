"""Predict the layouts a caller names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.errors import Invalid
from models.layouts.rules import RULES, first_broken
from models.prediction.prediction import predict_layouts
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from service.ask.answer_pages import answer_page, brief
from service.ask.oom_history import out_of_memory, warnings
from service.errors import Refused
from service.resolve.answer_basis import basis
from service.resolve.assumptions import of_the_chunks, of_the_layout
from service.resolve.profiles import wanted_profile
from service.resolve.resolution import Resolver
from service.runtime.idempotency import Created, Save
from service.schemas.catalog import CatalogQuery
from service.schemas.layout import LayoutFields
from service.schemas.prediction import PredictedLayout, PredictionAnswer, PredictionRequest
from service.store import Rows, Store
from service.store.tables import PredictionRow


class Predictions:
    def __init__(self, store: Store) -> None:
        self._store = store

    def predict(self, request: PredictionRequest) -> Save:
        with self._store.reading() as rows:
            resolved = Resolver(rows).problem(request)
            profile = wanted_profile(rows, request.profile)
        open_ = request.asked()
        asked = {name: fields.settled(resolved.problem) for name, fields in open_.items()}
        layouts = {name: fields.build() for name, fields in asked.items()}
        require_legal(resolved.problem, layouts, open_)
        predictions = map(
            PredictedLayout.of, predict_layouts(resolved.problem, [*layouts.values()], profile)
        )
        predicted = dict(zip(layouts, predictions, strict=True))
        failed = out_of_memory(self._store, resolved.problem, profile)
        answer = PredictionAnswer(
            layouts=[*predicted.values()],
            out_of_memory=failed,
            warnings=warnings(predicted, failed),
            **basis(request, resolved, profile),
        )
        for name, fields in asked.items():
            answer.assumptions += of_the_layout(name, open_[name], fields, resolved.problem)
            answer.assumptions += of_the_chunks(name, predicted[name])
        answer.request["layouts"] = [fields.model_dump(mode="json") for fields in asked.values()]
        return lambda rows: _save(rows, answer)

    def get(self, id_: str) -> dict[str, Any]:
        with self._store.reading() as rows:
            return rows.answers.prediction(id_).document

    def page(self, query: CatalogQuery) -> dict[str, Any]:
        return answer_page(self._store, PredictionRow, query)


def require_legal(
    problem: Problem, layouts: Mapping[str, Layout], asked: Mapping[str, LayoutFields]
) -> None:
    """Refused, with every layout that breaks a rule, by where each stands in the request; a knob
    that was not `asked` for has no value there."""
    if not layouts:
        return
    broken = first_broken(problem, Layouts.of(layouts.values()))
    refused = [
        _broken(problem, layout, name, asked[name], int(index))
        for (name, layout), index in zip(layouts.items(), broken, strict=True)
        if index >= 0
    ]
    if refused:
        raise Refused(refused)


_BESIDE = {"ep": "etp", "schedule": "virtual_stages"}
"""Knobs that break the rules of another one, where that was left open."""


def _broken(
    problem: Problem, layout: Layout, name: str, asked: LayoutFields, index: int
) -> Invalid:
    rule = RULES[index]
    knob = rule.field.removeprefix("layout").lstrip(".")
    if (
        knob not in asked.model_fields_set
        and (other := _BESIDE.get(knob)) in asked.model_fields_set
    ):
        knob = other
    value = getattr(asked, knob) if knob in asked.model_fields_set else None
    return Invalid(
        f"{name}.{knob}" if knob else name, value, f"{rule.name}: {rule.message(problem, layout)}"
    )


def _save(rows: Rows, answer: PredictionAnswer) -> Created:
    document = answer.model_dump(mode="json")
    row = PredictionRow(
        id=answer.id,
        created_at=answer.created_at,
        profile_id=answer.profile.id,
        profile_version=answer.profile.version,
        brief=brief(document),
        document=document,
    )
    rows.answers.add(row)
    return Created(f"/v1/predictions/{answer.id}", document)
