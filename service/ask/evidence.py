"""Published runs beside what is asked: the nearest, with what is predicted of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from models.calibration.fleet_effects import as_published
from models.prediction.nearest_runs import Library, Traits
from models.prediction.prediction import predict_layouts
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.identifiers import digest
from service.resolve.answered_layout import (
    AnsweredLayout,
    layout_of_prediction,
    layout_of_recommendation,
)
from service.resolve.measurements import log_ratio, mfu_of, within
from service.resolve.profiles import active_profile
from service.resolve.resolution import Resolver
from service.runtime.lru_cache import LruCache
from service.schemas.cluster import ClusterPreset
from service.schemas.evidence import (
    Difference,
    EvidenceAnswer,
    EvidenceList,
    EvidenceQuery,
    EvidenceShown,
    MeasuredRun,
    PredictedRun,
    PublishedRun,
)
from service.schemas.prediction import ByConvention, ProfileUsed
from service.store import Rows, Store

SHOWN = 3


def seed(store: Store) -> None:
    """Put the shipped runs into a database that has none, or another release's; of several
    processes one does."""
    text = (files("models") / "data/runs.jsonl").read_text()
    release = digest(text)
    with store.writing() as rows:
        rows.lock("evidence")
        if rows.evidence.release() != release:
            rows.evidence.replace(release, (json.loads(line) for line in text.splitlines()))


@dataclass(frozen=True, slots=True)
class _Shelf:
    """The runs of a release. `kinds`: source, model and chip of each; `fitted`: which of them
    ran."""

    ids: list[str]
    kinds: list[tuple[str, str, str]]
    fitted: list[bool]
    library: Library

    @classmethod
    def of(cls, runs: Sequence[PublishedRun]) -> _Shelf:
        return cls(
            ids=[run.id for run in runs],
            kinds=[(run.source.title, run.model.name, run.chip) for run in runs],
            fitted=[run.outcome == "ok" for run in runs],
            library=Library([run.traits() for run in runs]),
        )

    def order(self, wanted: Traits) -> list[tuple[int, float]]:
        """Every run and its distance, the nearest first."""
        distances = self.library.distances(wanted)
        return [(int(i), float(distances[i])) for i in np.argsort(distances, kind="stable")]


@dataclass(frozen=True, slots=True)
class _Found:
    run: PublishedRun
    problem: Problem
    distance: float

    @classmethod
    def of(
        cls, rows: Rows, resolver: Resolver, id_: str, distance: float, profile: Profile
    ) -> _Found:
        run = PublishedRun.model_validate(rows.evidence.get(id_))
        return cls(run, resolver.resolve(run.question(profile.software_year)).problem, distance)


_shelves = LruCache[str | None, _Shelf](1)
"""By release, which is the same in every database."""


class Evidence:
    def __init__(self, store: Store) -> None:
        self._store = store

    def nearest(self, query: EvidenceQuery, asker: Store) -> dict[str, Any]:
        """To an answer that the asker's store has, or to what the query names."""
        with asker.reading() as rows:
            profile, resolver = as_published(active_profile(rows)), Resolver(rows)
            wanted, shelf = _wanted(rows, query), self._current(rows)
            nearest = shelf.order(wanted)[: query.limit]
            found = [
                _Found.of(rows, resolver, shelf.ids[i], distance, profile)
                for i, distance in nearest
            ]
        items = [_answer(one, profile, wanted) for one in found]
        used = ProfileUsed(id=profile.id, version=profile.version)
        return EvidenceList(items=items, profile=used, runs=len(shelf.ids)).model_dump(mode="json")

    def beside(self, problem: Problem, layout: Layout, profile: Profile) -> list[EvidenceShown]:
        """The nearest runs, one of each model, chip and source."""
        wanted, theirs, found = (
            Traits.of(problem, layout),
            as_published(profile),
            dict[tuple[str, str, str], _Found](),
        )
        with self._store.reading() as rows:
            resolver, shelf = Resolver(rows), self._current(rows)
            for i, distance in shelf.order(wanted):
                if len(found) == SHOWN:
                    break
                if shelf.fitted[i] and shelf.kinds[i] not in found:
                    found[shelf.kinds[i]] = _Found.of(
                        rows, resolver, shelf.ids[i], distance, theirs
                    )
        return [EvidenceShown.of(_answer(one, theirs, wanted)) for one in found.values()]

    def _current(self, rows: Rows) -> _Shelf:
        release = rows.evidence.release()
        known = _shelves.get_many([release])
        if not known:
            known = {
                release: _Shelf.of(
                    [PublishedRun.model_validate(document) for document in rows.evidence.all()]
                )
            }
            _shelves.put_many(known)
        return known[release]


def _wanted(rows: Rows, query: EvidenceQuery) -> Traits:
    resolver = Resolver(rows)
    if query.prediction_id is not None:
        return _traits(resolver, layout_of_prediction(rows, query.prediction_id, query.rank))
    if query.recommendation_id is not None:
        return _traits(
            resolver, layout_of_recommendation(rows, query.recommendation_id, query.rank)
        )
    tokens = query.seq_len * query.global_batch if query.seq_len and query.global_batch else None
    stated: dict[str, Any] = {
        "precision": query.precision,
        "seq_len": query.seq_len,
        "tokens_per_step": tokens,
    }
    if query.model is not None:
        architecture = resolver.architecture(query.model).value
        count = architecture.parameters
        stated |= {
            "parameters": count.total,
            "active_parameters": count.active,
            "sparse": architecture.is_moe,
        }
    stated["num_chips"] = query.num_chips
    if query.cluster is not None:
        chip, _, size = resolver.cluster_parts(
            ClusterPreset(preset=query.cluster, num_chips=query.num_chips)
        )
        stated |= {
            "chip": chip.value.id,
            "generation": chip.value.generation,
            "num_chips": size.num_chips,
        }
    if query.stack is not None:
        stated["stack"] = resolver.stack(query.stack).value.calibrated_as
    return Traits(**stated)


def _traits(resolver: Resolver, subject: AnsweredLayout) -> Traits:
    return Traits.of(resolver.resolve(subject.question).problem, subject.layout.build())


def _answer(found: _Found, profile: Profile, wanted: Traits) -> EvidenceAnswer:
    run, problem = found.run, found.problem
    predicted = predict_layouts(problem, [run.layout.build()], profile)[0]
    differs = wanted.differing(run.traits())
    return EvidenceAnswer(
        **run.model_dump(
            mode="json", include={"id", "source", "family", "trust", "date", "assumed", "outcome"}
        ),
        **run.model_dump(
            mode="json", include={"model", "cluster", "workload", "stack"}, exclude_unset=True
        ),
        layout=run.layout,
        distance=found.distance,
        differs={
            name: Difference(asked=asked, run=theirs) for name, (asked, theirs) in differs.items()
        },
        measured=_measured(run, problem),
        predicted=PredictedRun.model_validate(
            {name: getattr(predicted, name) for name in PredictedRun.model_fields}
        ),
        residual=log_ratio(run.step_time_s, predicted.step_time_s),
        within_interval=within(run.step_time_s, predicted),
        fit_verdict_agrees=predicted.fits == (run.outcome == "ok"),
    )


def _measured(run: PublishedRun, problem: Problem) -> MeasuredRun:
    step = run.step_time_s
    return MeasuredRun(
        step_time_s=step,
        tokens_per_s_per_chip=problem.workload.tokens / step / problem.cluster.num_chips
        if step
        else None,
        mfu=ByConvention.model_validate(mfu_of(problem, step)) if step else None,
        converted=run.converted,
        memory_gib=run.memory_gib,
    )
