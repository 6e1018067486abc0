"""Whether a calibration's version takes the place of the active one, and why not where it does
not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from models.calibration.calibrate import JUDGED, Calibration, Unseen
from models.calibration.fleet_effects import as_published
from models.columns import Array
from models.cost.step import predict
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients, Profile
from service.resolve.observations import Observations, log_residuals
from service.resolve.resolution import Resolver
from service.runtime.lru_cache import LruCache
from service.schemas.evidence import PublishedRun
from service.schemas.profile import Policy, Promotion
from service.store import Store
from service.store.reports import ReportFilter

_LEAST = 0.001  # by which the error must fall: less is chance
_OF_EACH = 6  # published runs of a chip, stack and kind of model
_LAST = 20  # runs that somebody reported last
_SOURCES = 200  # that reported last


@dataclass(frozen=True, slots=True)
class _Sample:
    """A few runs of each kind, and what they trained."""

    runs: list[PublishedRun]
    problems: list[Problem]


_samples = LruCache[tuple[str | None, float], _Sample](1)
"""By release, which is the same in every database, and the year that a profile's software is of."""


class Published:
    """A few published runs of each chip and stack, under two profiles: what a calibration does to
    everything else."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def compared(self, before: Profile, after: Profile) -> Unseen | None:
        sample = self._of(after.software_year)
        runs, problems = sample.runs, sample.problems
        if not runs:
            return None
        theirs = as_published(after)
        layouts = [Layouts.of([run.layout.build()]) for run in runs]
        were, are = _log_times(
            list(zip(problems, layouts, strict=True)), [as_published(before), theirs]
        )
        return Unseen(
            measured=np.log([run.step_time_s or np.nan for run in runs]),
            before=were,
            after=are,
            spread=np.array(
                [theirs.neighbourhood(problem.neighbourhoods).spread for problem in problems]
            ),
            kinds=tuple((f"chip:{p.cluster.chip.id}", f"stack:{p.stack.kin}") for p in problems),
        )

    def _of(self, software_year: float) -> _Sample:
        with self._store.reading() as rows:
            asked = rows.evidence.release(), software_year
            known = _samples.among([asked])
            if not known:
                resolver = Resolver(rows)
                runs = _few_of_each(
                    [PublishedRun.model_validate(document) for document in rows.evidence.all()]
                )
                problems = [resolver.problem(run.question(software_year)).problem for run in runs]
                known = {asked: _Sample(runs, problems)}
                _samples.add(known)
            return known[asked]


class Everybody:
    """The last runs of each tenant or source, under two profiles: what one reports may not be at
    another's cost."""

    def __init__(self, store: Store, profile_id: str) -> None:
        self._store, self._wanted = store, ReportFilter(profile_id=profile_id, measured=True)

    def compared(self, before: Profile, after: Profile) -> Unseen | None:
        with self._store.reading() as rows:
            reports = rows.reports.last_of_each_source(self._wanted, _LAST, _SOURCES)
            usable, _ = Observations(rows).of(reports)
        runs = [run for _, run in usable if run.step_time_s is not None]
        if not runs:
            return None
        measured = np.log([run.step_time_s or np.nan for run in runs])
        return Unseen(
            measured=measured,
            before=measured - log_residuals(runs, before),
            after=measured - log_residuals(runs, after),
            spread=np.array(
                [after.neighbourhood(run.problem.neighbourhoods).spread for run in runs]
            ),
            kinds=tuple((run.source,) for run in runs),
        )


def judge(
    policy: Policy,
    found: Calibration,
    published: Unseen | None,
    everybody: Unseen | None = None,
    *,
    asked: bool,
) -> Promotion:
    """`asked`: the caller wants it active at once, whatever the policy's mode. `everybody`: of each
    source the last runs, whose errors may not grow, whoever's reports these are; sources are not
    named."""
    if 2 * len(found.outliers) > found.observations:
        return _kept(
            f"{len(found.outliers)} of {found.observations} reports are outliers: no coefficient"
            " explains them"
        )
    judged = [("step times", found.unseen), ("peaks of memory", found.unseen_memory)]
    errors = {what: unseen for what, unseen in judged if unseen is not None}
    if not errors:
        rule = f"fewer than {JUDGED} measured step times, or peaks of memory"
        return _kept(f"{rule}: its error on runs that it did not see is unknown")
    change = "on runs that it did not see " + " and ".join(
        f"the error of {what} goes from {unseen.error_before:.1%} to {unseen.error_after:.1%}"
        for what, unseen in errors.items()
    )
    if all(unseen.error_after > unseen.error_before - _LEAST for unseen in errors.values()):
        return _kept(f"{change}, which is no fall of {100 * _LEAST:g} percentage points or more")
    if policy.mode == "manual" and not asked:
        return _kept(f"{change}; the policy is manual: a person activates it")
    compared = {f"{what} of unseen reports": unseen for what, unseen in errors.items()}
    if published:
        compared["step times of published runs"] = published
    for runs, before, after in everybody.by_kind.values() if everybody else ():
        if after > before + policy.margin:
            worse = (
                f"of the last {runs} runs that somebody reported the error grows from {before:.1%}"
                f" to {after:.1%}"
            )
            return _kept(f"{change}, but {worse}, by more than the margin of {policy.margin:.1%}")
    for what, unseen in compared.items():
        for whose, (runs, before, after) in _errors(unseen).items():
            if after > before + policy.margin:
                worse = f"the error on {runs} {what}{whose} grows from {before:.1%} to {after:.1%}"
                return _kept(
                    f"{change}, but {worse}, by more than the margin of {policy.margin:.1%}"
                )
    return Promotion(
        promoted=True, reason=f"{change}, and nothing gets worse by more than {policy.margin:.1%}"
    )


def _errors(unseen: Unseen) -> dict[str, tuple[int, float, float]]:
    """Runs, error before and error after: of all together, and of each kind of which there are
    enough."""
    overall = len(unseen.measured), unseen.error_before, unseen.error_after
    return {"": overall, **{f" of {kind}": errors for kind, errors in unseen.by_kind.items()}}


def _kept(reason: str) -> Promotion:
    return Promotion(promoted=False, reason=reason)


def _few_of_each(runs: Sequence[PublishedRun]) -> list[PublishedRun]:
    """Spread over the runs of each kind, in the order of their ids."""
    fitted = [run for run in runs if run.step_time_s is not None]
    kinds = [(run.chip, run.stack.name, run.model.moe is not None) for run in fitted]
    sizes, nth, kept = Counter(kinds), Counter[tuple[str, str, bool]](), list[PublishedRun]()
    for run, kind in zip(fitted, kinds, strict=True):
        stride = max(sizes[kind] // _OF_EACH, 1)
        if nth[kind] % stride == 0 and nth[kind] // stride < _OF_EACH:
            kept.append(run)
        nth[kind] += 1
    return kept


def _log_times(pairs: Sequence[tuple[Problem, Layouts]], profiles: Sequence[Profile]) -> Array:
    """Of layouts one by one, under each profile; shape (profiles, layouts)."""
    known = {
        scopes: _beside(profiles, scopes) for scopes in {problem.scopes for problem, _ in pairs}
    }
    each = np.zeros(len(profiles), dtype=np.int64)
    times = [
        predict(problem, x.take(each), known[problem.scopes]).step_time_s for problem, x in pairs
    ]
    return np.log(np.array(times).T)


def _beside(profiles: Sequence[Profile], scopes: Sequence[str]) -> Coefficients:
    found = [profile.coefficients(scopes) for profile in profiles]
    return Coefficients(
        **{
            one.name: np.array([getattr(c, one.name) for c in found])
            for one in fields(Coefficients)
        }
    )
