"""A few published runs of each chip and stack, which show what a calibration does to everybody's
machines. A *problem* is the question of a run with all its names resolved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from threading import Lock

import numpy as np
from cachetools import LRUCache, cached

from models.columns import Array
from models.cost.predictions import predict
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients, Profile
from service.resolve.resolution import Resolver
from service.schemas.evidence import PublishedRun
from service.schemas.stored import read_stored
from service.store import Rows, Store

_RUNS_OF_A_KIND = 6  # enough for a median, and few enough to predict them all in a moment


@dataclass(frozen=True, slots=True)
class PublishedSample:
    """Some published runs, and the problem of each in the same order."""

    runs: list[PublishedRun]
    problems: list[Problem]

    def log_times(self, profiles: Sequence[Profile]) -> Array:
        """Returns the natural logarithm of each run's step time under each profile; shape
        (profiles, runs)."""
        coefficients = {
            scopes: _coefficients_by_profile(profiles, scopes)
            for scopes in {problem.scopes for problem in self.problems}
        }
        # The layout of a run is predicted under all profiles at once: one copy of it for each.
        copies = np.zeros(len(profiles), dtype=np.int64)
        times = np.empty((len(self.runs), len(profiles)))
        for i, (run, problem) in enumerate(zip(self.runs, self.problems, strict=True)):
            layouts = Layouts.of([run.layout.build()]).take(copies)
            times[i] = predict(problem, layouts, coefficients[problem.scopes]).step_time_s
        return np.asarray(np.log(times).T)


def published_sample(store: Store, software_year: float) -> PublishedSample:
    """Returns the sample for the year of the software that a profile describes."""
    with store.reading() as rows:
        return _read_sample(rows, software_year)


@cached(
    # One sample is enough: published runs are the same in every database of a release, and all
    # profiles of a release describe the software of one year.
    LRUCache(1),
    key=lambda rows, software_year: (rows.versions.evidence, software_year),
    lock=Lock(),
)
def _read_sample(rows: Rows, software_year: float) -> PublishedSample:
    """Reads the sample from the database, and resolves the question of each run."""
    resolver = Resolver(rows)
    published = [read_stored(PublishedRun, document) for document in rows.evidence.all()]
    runs = _few_of_each_kind(published)
    problems = [resolver.resolve(run.question(software_year)).problem for run in runs]
    return PublishedSample(runs, problems)


def _few_of_each_kind(published: Sequence[PublishedRun]) -> list[PublishedRun]:
    """Returns at most _RUNS_OF_A_KIND measured runs of each kind, which is a chip, a stack, and
    whether the model is sparse. The runs are taken at equal strides, in the order of their ids,
    because runs of one source have similar ids."""
    runs = [run for run in published if run.step_time_s is not None]
    kinds = [(run.chip, run.stack.name, run.is_sparse) for run in runs]
    sizes = Counter(kinds)
    passed: Counter[tuple[str, str, bool]] = Counter()
    sample: list[PublishedRun] = []
    for run, kind in zip(runs, kinds, strict=True):
        stride = max(sizes[kind] // _RUNS_OF_A_KIND, 1)  # every run where there are few
        if passed[kind] % stride == 0 and passed[kind] // stride < _RUNS_OF_A_KIND:
            sample.append(run)
        passed[kind] += 1
    return sample


def _coefficients_by_profile(profiles: Sequence[Profile], scopes: Sequence[str]) -> Coefficients:
    """Returns the coefficients of these scopes as arrays with one value for each profile, shape
    (profiles,), so that one call predicts under all of them."""
    by_profile = [profile.coefficients(scopes) for profile in profiles]
    names = [field.name for field in fields(Coefficients)]
    return Coefficients(
        **{name: np.array([getattr(values, name) for values in by_profile]) for name in names}
    )
