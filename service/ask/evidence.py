"""Finds the published runs nearest to a question or an answer, with what is predicted of them.

A *published run* ships with the service: a training run that somebody described in public, with its
measured speed or its end by lack of memory. The *traits* of a run are what runs are compared by,
such as chip, stack and parameters. The *family* of a run is the publication that it is from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from threading import Lock
from typing import Any

import numpy as np
from cachetools import LRUCache, cached

from models.columns import Array
from models.prediction.nearest_runs import RunIndex, RunTraits
from models.spec.identity import cached_by_identity
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.errors import ServiceError
from service.identifiers import digest
from service.resolve.answered_layout import layout_of_prediction, layout_of_recommendation
from service.resolve.known_predictions import prediction_of, without_fleet
from service.resolve.measurements import is_within_interval, log_ratio, mfu_of
from service.resolve.profiles import active_profile
from service.resolve.resolution import Resolver
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
from service.schemas.layout import LayoutFields
from service.schemas.prediction import ProfileUsed
from service.schemas.stored import read_stored
from service.store import Rows, Store, UseCase
from service.store.cursors import cut_page, read_cursor

MAX_SHOWN = 3
"""Runs beside an answer."""
_LIST = "evidence"
_RELEASES = 2  # whose runs are kept in memory
_KEPT_RUNS = 2048  # published runs whose predictions are kept in memory

_RUN_FIELDS = {"id", "source", "family", "trust", "date", "assumed", "outcome"}
_QUESTION_FIELDS = {"model", "cluster", "workload", "stack"}


def seed(store: Store) -> None:
    """Stores the shipped runs, unless the database has those of this release already.

    A lock lets only one of several starting processes do this.
    """
    text = (files("models") / "data/runs.jsonl").read_text()
    release = digest(text)
    with store.writing() as rows:
        rows.lock("evidence")
        if rows.evidence.release() != release:
            rows.evidence.replace(release, (json.loads(line) for line in text.splitlines()))


@dataclass(frozen=True, slots=True)
class _RunIndex:
    """The published runs of a release. All lists have them in one order."""

    runs: Sequence[PublishedRun]
    source_model_chip: list[tuple[str, str, str]]
    """Only one of the runs that share all three is shown beside an answer."""
    has_trained: list[bool]
    """False where a run was published as out of memory or failed."""
    texts: list[str]
    """In which a query finds its words."""
    rank_by_date: Array
    """The rank of each run by its date, from 0 for the newest; shape (runs,)."""
    library: RunIndex
    """The traits of all runs in columns, by which distances are computed at once."""

    @classmethod
    def of(cls, runs: Sequence[PublishedRun]) -> _RunIndex:
        """Returns the index of these runs, with all that queries need worked out."""
        return cls(
            runs=runs,
            source_model_chip=[(run.source.title, run.model.name, run.chip) for run in runs],
            has_trained=[run.outcome == "ok" for run in runs],
            texts=[_searched_text(run) for run in runs],
            rank_by_date=_rank_by_date(runs),
            library=RunIndex([run.traits() for run in runs]),
        )

    def by_distance(self, traits: RunTraits) -> Iterator[tuple[int, float]]:
        """Yields (index, distance) of every run, the nearest to `traits` first."""
        distances = self.library.distances(traits)
        for i in np.argsort(distances, kind="stable"):
            yield int(i), float(distances[i])

    def selected(self, query: EvidenceQuery, traits: RunTraits) -> list[tuple[int, float]]:
        """Returns (index, distance) of every run that the query selects, the nearest to `traits`
        first, and the newest first among those equally near."""
        distances = self.library.distances(traits)
        words = (query.text or "").casefold().split()
        return [
            (int(i), float(distances[i]))
            for i in np.lexsort((self.rank_by_date, distances))  # the last key counts first
            if (not query.exact or distances[i] == 0)
            and query.family in (None, self.runs[i].family)
            and query.outcome in (None, self.runs[i].outcome)
            and all(word in self.texts[i] for word in words)
        ]


def _searched_text(run: PublishedRun) -> str:
    """Returns the text in which a query looks for its words: source, model, chip and stack,
    case-folded."""
    source = run.source
    parts = (source.title, source.where, source.organisation, run.family, run.model.name, run.chip)
    return " ".join(filter(None, (*parts, run.stack.name))).casefold()


def _rank_by_date(runs: Sequence[PublishedRun]) -> Array:
    """Returns the rank of each run by its date, from 0 for the newest; shape (runs,). Runs of one
    date keep their order, and runs without a date come last."""
    ranks = np.empty(len(runs), dtype=int)
    newest_first = sorted(range(len(runs)), key=lambda i: runs[i].date or "", reverse=True)
    ranks[newest_first] = np.arange(len(runs))
    return ranks


@dataclass(frozen=True, slots=True)
class _NearRun:
    run: PublishedRun
    problem: Problem
    """The question of the run: model, workload, cluster and stack."""
    distance: float

    @classmethod
    def of(
        cls, resolver: Resolver, run: PublishedRun, distance: float, profile: Profile
    ) -> _NearRun:
        """Returns a run with its question resolved. The age of its software counts back from the
        newest that the profile describes. `distance` is from the question that it is shown
        beside."""
        question = run.question(profile.software_year)
        return cls(run, resolver.resolve(question).problem, distance)


class Evidence(UseCase):
    def load(self) -> None:
        """Reads the published runs, which takes a second, before the first question needs them. If
        the database is not ready, they are read with that question."""
        with suppress(ServiceError), self._store.reading() as rows:
            _run_index(rows)

    def nearest(self, query: EvidenceQuery, tenant_store: Store) -> dict[str, Any]:
        """Returns a page of the runs that the query selects, the nearest first. They are compared
        with the answer that the query names, or else with what the query states. Raises NotFound if
        `tenant_store`, the store as the asking tenant sees it, does not have the answer."""
        # The cursor holds how many runs the pages before this one have.
        first = int(read_cursor(_LIST, query.cursor) or 0)
        with tenant_store.reading() as rows:
            # Effects that were learnt from one fleet of machines do not hold for published runs.
            profile = without_fleet(active_profile(rows))
            resolver = Resolver(rows)
            traits = _query_traits(rows, query)
            index = _run_index(rows)
            selected = index.selected(query, traits)
            # (rank, (index, distance)) of the runs from this page on, and one more if there is one.
            following_runs = [*enumerate(selected, 1)][first : first + query.limit + 1]
            page, following = cut_page(
                _LIST, following_runs, query.limit, lambda ranked: str(ranked[0])
            )
            near = [
                _NearRun.of(resolver, index.runs[i], distance, profile) for _, (i, distance) in page
            ]
        return EvidenceList(
            items=[_evidence_answer(run, profile, traits) for run in near],
            profile=ProfileUsed(id=profile.id, version=profile.version),
            found=len(selected),
            runs=len(index.runs),
            next=following,
        ).model_dump(mode="json")

    def families(self) -> list[str]:
        """Returns the names of the publications that runs come from, sorted."""
        with self._store.reading() as rows:
            return sorted({run.family for run in _run_index(rows).runs})

    def nearest_to_layout(
        self, problem: Problem, layout: Layout, profile: Profile
    ) -> list[EvidenceShown]:
        """Returns the published runs nearest to a layout, at most MAX_SHOWN. Only runs that trained
        count, and of each model, chip and source only the nearest."""
        traits = RunTraits.of(problem, layout)
        # Effects that were learnt from one fleet of machines do not hold for published runs.
        profile_without_fleet = without_fleet(profile)
        nearest = dict[tuple[str, str, str], _NearRun]()
        with self._store.reading() as rows:
            resolver = Resolver(rows)
            index = _run_index(rows)
            for i, distance in index.by_distance(traits):
                if len(nearest) == MAX_SHOWN:
                    break
                origin = index.source_model_chip[i]
                if index.has_trained[i] and origin not in nearest:
                    nearest[origin] = _NearRun.of(
                        resolver, index.runs[i], distance, profile_without_fleet
                    )
        return [
            EvidenceShown.of(_evidence_answer(near, profile_without_fleet, traits))
            for near in nearest.values()
        ]


@cached(LRUCache(_RELEASES), key=lambda rows: rows.versions.evidence, lock=Lock())
def _run_index(rows: Rows) -> _RunIndex:
    """Returns the published runs of the database, read once for each release. A release has the
    same runs in every database."""
    return _RunIndex.of([read_stored(PublishedRun, run) for run in rows.evidence.all()])


def _query_traits(rows: Rows, query: EvidenceQuery) -> RunTraits:
    """Returns what published runs are compared with: model, chip, stack and sizes of the stored
    answer that the query names, or else of what the query states."""
    resolver = Resolver(rows)
    if query.prediction_id is not None:
        answered = layout_of_prediction(rows, query.prediction_id, query.rank)
    elif query.recommendation_id is not None:
        answered = layout_of_recommendation(rows, query.recommendation_id, query.rank)
    else:
        return _stated_traits(resolver, query)
    return RunTraits.of(resolver.resolve(answered.question).problem, answered.layout.build())


def _stated_traits(resolver: Resolver, query: EvidenceQuery) -> RunTraits:
    """Returns the model, chip, stack and sizes that a query states; None for what it leaves
    open."""
    traits: dict[str, Any] = {
        "precision": query.precision,
        "seq_len": query.seq_len,
        "num_chips": query.num_chips,
    }
    if query.seq_len and query.global_batch:
        traits["tokens_per_step"] = query.seq_len * query.global_batch
    if query.model is not None:
        architecture = resolver.architecture(query.model).value
        count = architecture.parameters
        traits |= {
            "parameters": count.total,
            "active_parameters": count.active,
            "sparse": architecture.is_moe,
        }
    if query.cluster is not None:
        preset = ClusterPreset(preset=query.cluster, num_chips=query.num_chips)
        chip, _, size = resolver.cluster_parts(preset)
        traits |= {
            "chip": chip.value.id,
            "generation": chip.value.generation,
            "num_chips": size.num_chips,
        }
    if query.stack is not None:
        # Stacks that share the coefficients of one count as that one.
        traits["stack"] = resolver.stack(query.stack).value.calibrated_as
    return RunTraits(**traits)


def _evidence_answer(near: _NearRun, profile: Profile, traits: RunTraits) -> EvidenceAnswer:
    """Returns a published run with its prediction, and with each trait in which it differs from
    `traits`."""
    differences = traits.differences_from(near.run.traits())
    return EvidenceAnswer(
        **_question_independent_facts(near.run, near.problem, profile),
        distance=near.distance,
        differs={
            name: Difference(asked=asked_value, run=value_of_run)
            for name, (asked_value, value_of_run) in differences.items()
        },
    )


@cached_by_identity(_KEPT_RUNS, objects=3)
def _question_independent_facts(
    run: PublishedRun, problem: Problem, profile: Profile
) -> dict[str, Any]:
    """Returns the facts of a published run that do not depend on the question it is shown beside.
    `problem` is the run's own question. The dictionary is kept in memory and shared: callers must
    not change it."""
    layout = run.layout.build()
    predicted = prediction_of(problem, profile, layout)
    return {
        # The question is shown as the run states it, without the defaults of what it leaves open.
        **run.model_dump(mode="json", include=_RUN_FIELDS),
        **run.model_dump(mode="json", include=_QUESTION_FIELDS, exclude_unset=True),
        "layout": LayoutFields.shown(layout, on_torus=problem.cluster.is_torus),
        "layout_summary": layout.summary(),
        "measured": _measured(run, problem),
        "predicted": PredictedRun.from_attributes(predicted),
        "residual": log_ratio(run.step_time_s, predicted.step_time_s),
        "within_interval": is_within_interval(run.step_time_s, predicted),
        "fit_verdict_agrees": predicted.fits == (run.outcome == "ok"),
    }


def _measured(run: PublishedRun, problem: Problem) -> MeasuredRun:
    """Returns the measured speed and memory of a published run. All of the speed is None where it
    has no step time."""
    step = run.step_time_s
    tokens_per_s_per_chip = None
    if step:
        tokens_per_s_per_chip = problem.workload.tokens / step / problem.cluster.num_chips
    mfu = mfu_of(problem, step) if step else None
    return MeasuredRun.from_attributes(run, tokens_per_s_per_chip=tokens_per_s_per_chip, mfu=mfu)
