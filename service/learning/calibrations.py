"""Calibrations: a new version of a profile is learnt from the reports made under it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from models.calibration.calibrate import Calibration, calibrate
from models.calibration.cross_validation import ProfileComparison
from models.calibration.fleet_effects import drift_variance, with_fleet_offsets
from models.calibration.observation import Observation, with_limited_sources
from models.calibration.posterior import Posterior
from models.errors import DomainError
from models.spec.profile import Profile
from service.errors import Conflict, NothingToLearn
from service.identifiers import earliest_id
from service.learning.benchmarks import benchmark_observation
from service.learning.promotion import compare_on_latest_runs, compare_on_published_runs, judge
from service.resolve.calibration_targets import log_residuals, observation
from service.resolve.profiles import add_version, version_document
from service.resolve.resolution import Resolver
from service.resolve.stored_runs import StoredRun, StoredRuns
from service.runtime.idempotency import CreatedResource, SaveRows
from service.runtime.process_pool import ProcessPool
from service.schemas.profile import (
    CalibrationAnswer,
    CalibrationRequest,
    Policy,
    Promotion,
    Unusable,
    Window,
)
from service.store import Rows, Store
from service.store.reports import ReportFilter
from service.store.tables import BenchmarkRow, ProfileVersionRow

_MAX_CLOCK_SKEW = timedelta(minutes=2)
"""How far the clocks of the processes that make ids may differ, or one may be set back."""


@dataclass(frozen=True, slots=True)
class _CalibrationInput:
    """The version that a calibration starts from, and what it has not learnt yet."""

    base: ProfileVersionRow
    """The version that is learnt on top of."""
    active: ProfileVersionRow
    """The version that the new one would replace. It differs from `base` where a calibration starts
    from scratch."""
    posterior: Posterior
    revision: int
    policy: Policy
    runs: list[StoredRun]
    benchmark_ids: list[str]
    observations: list[Observation]
    """The runs and the benchmarks, as the fit takes them."""
    unusable: list[Unusable]
    cutoff: datetime
    """Every report with an id from before this moment was visible when the input was read."""
    windowed: bool
    """Whether the request asked for the reports of a span of time only."""

    def compared_with_active(self, calibration: Calibration) -> Calibration:
        """The calibration with its errors set beside those of the active version, which is what a
        new version replaces. What the active version says of memory is not worked out."""
        if self.base.version == self.active.version:
            return calibration
        held_out = calibration.held_out
        if held_out is not None:
            timed = [run for run in self.runs if run.step_time_s is not None]
            timed.sort(key=lambda run: run.report_id)  # the order of `held_out`
            residuals = log_residuals(timed, Profile.from_json(self.active.content))
            held_out = replace(held_out, before=held_out.measured - residuals)
        return replace(calibration, held_out=held_out, held_out_memory=None)

    def learnt(self) -> dict[str, Any]:
        """What a version made from this input has learnt: the number of reports, and the ids by
        which a later calibration tells what is new.

        Everything with an id before `through` is learnt, and so are the ids in `recent`. Ids before
        `through` need no list, because what this calibration could not see gets an id from after
        the cutoff (service.store.arrivals), give or take the difference of clocks.
        """
        before = self.base.learnt or {"reports": 0, "through": None, "recent": []}
        through = before["through"]
        recent = [*before["recent"], *(run.report_id for run in self.runs), *self.benchmark_ids]
        if not self.windowed:  # what lies outside of a window is still to be learnt
            through = max(earliest_id(self.cutoff - _MAX_CLOCK_SKEW), through or "")
            recent = [id_ for id_ in recent if id_ >= through]
        return {
            "reports": before["reports"] + len(self.runs),
            "through": through,
            "recent": recent,
        }

    def window(self) -> Window:
        dates = [run.measured_at for run in self.runs]
        return Window(
            first=min(dates, default=None),
            last=max(dates, default=None),
            reports=len(self.runs),
            benchmarks=len(self.benchmark_ids),
            all_reports=self.learnt()["reports"],
        )


@dataclass(frozen=True, slots=True)
class _NewVersion:
    """A version to be stored, with the columns that it has in profile_versions. `revision` is that
    of the profile when the calibration began."""

    profile: Profile
    posterior: Posterior
    document: dict[str, Any]
    learnt: dict[str, Any]
    promoted: bool
    revision: int


@dataclass(frozen=True, slots=True)
class _NothingNew:
    """There is no usable report that `version` has not learnt; `unusable` counts the others."""

    unusable: int
    version: int


class Calibrations:
    def __init__(self, store: Store, worker: ProcessPool) -> None:
        self._store = store
        self._worker = worker

    def calibrate(self, id_: str, request: CalibrationRequest) -> SaveRows:
        """Learn from the reports that the active version has not learnt yet, on top of what it
        knows."""
        with self._store.reading() as rows:
            rows.profiles.get(id_)
            size = rows.reports.count(ReportFilter(profile_id=id_))
        made = self._worker.run(self._store, size, learn, id_, request)
        if isinstance(made, _NothingNew):
            raise NothingToLearn(made.unusable, made.version)
        return lambda rows: _save(rows, id_, made)


def _save(rows: Rows, id_: str, made: _NewVersion) -> CreatedResource:
    row = add_version(rows, made.profile, "calibrated", made.posterior, made.document, made.learnt)
    if made.promoted and not rows.profiles.activate(id_, row.version, made.revision + 1):
        raise Conflict("The profile changed while the calibration ran; look at it and try again.")
    return CreatedResource(
        f"/v1/profiles/{id_}/versions/{row.version}", version_document(rows, row)
    )


def learn(store: Store, id_: str, request: CalibrationRequest) -> _NewVersion | _NothingNew:
    """The version that a calibration makes, judged but not stored."""
    with store.writing() as rows:
        cutoff = rows.arrivals.wait_for_writers()
    with store.reading() as rows:
        given = _calibration_input(rows, id_, request, cutoff)
    if not given.observations:
        return _NothingNew(len(given.unusable), given.base.version)
    fitted = _fitted(given)
    published = latest = None
    if request.activate or given.policy.mode == "automatic":
        active = Profile.from_json(given.active.content)
        published = compare_on_published_runs(store, active, fitted.profile)
        latest = compare_on_latest_runs(store, id_, active, fitted.profile)
    fitted = given.compared_with_active(fitted)
    promotion = judge(given.policy, fitted, published, latest, requested=request.activate)
    answer = _calibration_answer(fitted, given, published, promotion)
    return _NewVersion(
        profile=fitted.profile,
        posterior=fitted.posterior,
        document=answer.model_dump(mode="json"),
        learnt=given.learnt(),
        promoted=promotion.promoted,
        revision=given.revision,
    )


def _fitted(given: _CalibrationInput) -> Calibration:
    problems = {one.problem for one in given.observations}
    profile = with_fleet_offsets(Profile.from_json(given.base.content), problems)
    # hardware and software change with time, so that what was learnt long ago is less sure
    posterior = given.posterior.with_added_variance(drift_variance(profile))
    made_by = f"calibration on {len(given.runs)} reports and {len(given.benchmark_ids)} benchmarks"
    return calibrate(profile, with_limited_sources(given.observations), made_by, posterior)


def _calibration_input(
    rows: Rows, id_: str, request: CalibrationRequest, cutoff: datetime
) -> _CalibrationInput:
    profile = rows.profiles.get(id_)
    active = rows.profiles.active(id_)
    base = rows.profiles.latest(id_, "shipped") if request.from_scratch else active
    posterior = rows.profiles.posterior(id_, base.version)
    learnt = base.learnt or {"through": None, "recent": []}
    learnt_ids = {*learnt["recent"]}
    wanted = ReportFilter(
        profile_id=id_, since=request.since, until=request.until, after_id=learnt["through"]
    )
    reports = [row for row in rows.reports.informative(wanted) if row.id not in learnt_ids]
    runs, unusable = StoredRuns(rows).read(reports)
    benchmarks = rows.benchmarks.created_between(request.since, request.until, learnt["through"])
    benchmark_observations = _benchmark_observations(
        rows,
        [row for row in benchmarks if row.id not in learnt_ids],
        Profile.from_json(base.content),
    )
    return _CalibrationInput(
        base=base,
        active=active,
        posterior=Posterior.from_json(posterior) if posterior else Posterior.independent(),
        revision=profile.revision,
        policy=Policy.model_validate(profile.policy),
        runs=runs,
        benchmark_ids=[measured.key for measured in benchmark_observations],
        observations=[*map(observation, runs), *benchmark_observations],
        unusable=unusable,
        cutoff=cutoff,
        windowed=request.since is not None or request.until is not None,
    )


def _benchmark_observations(
    rows: Rows, benchmarks: Sequence[BenchmarkRow], profile: Profile
) -> list[Observation]:
    """What the benchmarks say of the coefficients of this profile. A benchmark of something that
    the catalogue no longer has is left out."""
    resolver = Resolver(rows)
    observations: list[Observation] = []
    for row in benchmarks:
        with suppress(DomainError, ValidationError):
            observations.append(benchmark_observation(resolver, row, profile))
    return observations


def _calibration_answer(
    fitted: Calibration,
    given: _CalibrationInput,
    published: ProfileComparison | None,
    promotion: Promotion,
) -> CalibrationAnswer:
    return CalibrationAnswer.model_validate(
        {
            "based_on": given.base.version,
            "window": given.window(),
            "promotion": promotion,
            "unseen": _errors(fitted.held_out),
            "unseen_memory": _errors(fitted.held_out_memory),
            "published": _errors(published),
            "observations": len(given.runs),
            "moved": [asdict(moved) for moved in fitted.moved],
            "unidentified": [
                {"coefficient": name, "scope": scope} for name, scope in sorted(fitted.unidentified)
            ],
            "outliers": list(fitted.outliers),
            "unusable": given.unusable,
            "error_before": fitted.error_before,
            "error_after": fitted.error_after,
            "memory_error_before": fitted.memory_error_before,
            "memory_error_after": fitted.memory_error_after,
        }
    )


def _errors(held_out: ProfileComparison | None) -> dict[str, Any] | None:
    if held_out is None:
        return None
    return {
        "runs": len(held_out.measured),
        "error_before": held_out.error_before,
        "error_after": held_out.error_after,
        "coverage": held_out.coverage,
        "kinds": [
            {"kind": kind, "runs": runs, "error_before": before, "error_after": after}
            for kind, (runs, before, after) in held_out.by_kind.items()
        ],
    }
