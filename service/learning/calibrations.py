"""Learn a new version of a profile from the reports made under it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from models.calibration.calibrate import Calibration, Observation, Unseen, by_source, calibrate
from models.calibration.fleet_effects import as_fleet, drift
from models.calibration.posterior import Posterior
from models.errors import DomainError
from models.spec.profile import Profile
from service.errors import Conflict, NothingToLearn
from service.identifiers import earliest_id
from service.learning.benchmarks import observed
from service.learning.promotion import Everybody, Published, judge
from service.resolve.observations import Observations, log_residuals
from service.resolve.profiles import add_version, version_document
from service.resolve.resolution import Resolver
from service.runtime.idempotency import Created, Save
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
from service.store.tables import BenchmarkRow, ProfileVersionRow, ReportRow

_CLOCKS_DIFFER = timedelta(minutes=2)
"""Between the processes that make ids, or when a clock is set."""


@dataclass(frozen=True, slots=True)
class _Ground:
    """What a calibration builds on, and the reports that are new to it. `settled`: those not seen
    came later."""

    base: ProfileVersionRow
    active: ProfileVersionRow
    posterior: Posterior
    revision: int
    policy: Policy
    reports: list[ReportRow]
    benchmarks: list[BenchmarkRow]
    observations: list[Observation]
    unusable: list[Unusable]
    settled: datetime
    windowed: bool

    @property
    def profile(self) -> Profile:
        return Profile.from_json(self.base.content)

    def beside(self, replaced: Profile, found: Calibration) -> Calibration:
        """The same with the active version as what was before: it is that which a new one replaces.
        What it said of memory is not looked up."""
        if self.base.version == self.active.version:
            return found
        unseen = found.unseen
        if unseen is not None:
            timed = sorted(
                (o for o in self.observations if o.step_time_s is not None), key=lambda o: o.key
            )
            unseen = replace(unseen, before=unseen.measured - log_residuals(timed, replaced))
        return replace(found, unseen=unseen, unseen_memory=None)

    def learnt(self) -> dict[str, Any]:
        """Which reports a version from here rests on: how many, and those that came last.

        What comes before `through` needs no names, and none of it is missed: what this calibration
        did not see gets an id of a moment after it was `settled` (service.store.arrivals), but for
        as much as clocks differ.
        """
        before = self.base.learnt or {"reports": 0, "through": None, "recent": []}
        rows: list[ReportRow | BenchmarkRow] = [*self.reports, *self.benchmarks]
        if self.windowed:  # what lies outside is still to be learnt
            recent = [*before["recent"], *(row.id for row in rows)]
            return {**before, "reports": before["reports"] + len(self.reports), "recent": recent}
        through = max(earliest_id(self.settled - _CLOCKS_DIFFER), before["through"] or "")
        recent = [id_ for id_ in (*before["recent"], *(row.id for row in rows)) if id_ >= through]
        return {
            "reports": before["reports"] + len(self.reports),
            "through": through,
            "recent": recent,
        }

    def window(self) -> Window:
        dates = [report.measured_at for report in self.reports]
        return Window(
            first=min(dates, default=None),
            last=max(dates, default=None),
            reports=len(self.reports),
            benchmarks=len(self.benchmarks),
            all_reports=self.learnt()["reports"],
        )


@dataclass(frozen=True, slots=True)
class _Learnt:
    """A version to be stored: what profile_versions holds of it."""

    profile: Profile
    posterior: Posterior
    document: dict[str, Any]
    learnt: dict[str, Any]
    promoted: bool
    revision: int


@dataclass(frozen=True, slots=True)
class _Nothing:
    """No report is new to `version`."""

    unusable: int
    version: int


class Calibrations:
    def __init__(self, store: Store, worker: ProcessPool) -> None:
        self._store, self._worker = store, worker

    def calibrate(self, id_: str, request: CalibrationRequest) -> Save:
        """Learn from the reports that the active version has not learnt yet, on top of what it
        knows."""
        with self._store.reading() as rows:
            rows.profiles.get(id_)
            size = rows.reports.count(ReportFilter(profile_id=id_))
        found = self._worker.run(self._store, size, learn, id_, request)
        if isinstance(found, _Nothing):
            raise NothingToLearn(found.unusable, found.version)

        def save(rows: Rows) -> Created:
            row = add_version(
                rows, found.profile, "calibrated", found.posterior, found.document, found.learnt
            )
            if found.promoted and not rows.profiles.activate(id_, row.version, found.revision + 1):
                raise Conflict(
                    "The profile changed while the calibration ran; look at it and try again."
                )
            return Created(
                f"/v1/profiles/{id_}/versions/{row.version}", version_document(rows, row)
            )

        return save


def learn(store: Store, id_: str, request: CalibrationRequest) -> _Learnt | _Nothing:
    with store.writing() as rows:
        settled = rows.arrivals.settled()
    with store.reading() as rows:
        ground = _ground(rows, id_, request, settled)
    if not ground.observations:
        return _Nothing(len(ground.unusable), ground.base.version)
    profile = as_fleet(ground.profile, {observation.problem for observation in ground.observations})
    posterior = ground.posterior.loosened(drift(profile))
    made_by = (
        f"calibration on {len(ground.reports)} reports and {len(ground.benchmarks)} benchmarks"
    )
    found = calibrate(profile, by_source(ground.observations), made_by, posterior)
    automatic = request.activate or ground.policy.mode == "automatic"
    replaced = Profile.from_json(ground.active.content)
    published = Published(store).compared(replaced, found.profile) if automatic else None
    everybody = Everybody(store, id_).compared(replaced, found.profile) if automatic else None
    found = ground.beside(replaced, found)
    promotion = judge(ground.policy, found, published, everybody, asked=request.activate)
    return _Learnt(
        profile=found.profile,
        posterior=found.posterior,
        document=_calibration_answer(found, ground, published, promotion).model_dump(mode="json"),
        learnt=ground.learnt(),
        promoted=promotion.promoted,
        revision=ground.revision,
    )


def _ground(rows: Rows, id_: str, request: CalibrationRequest, settled: datetime) -> _Ground:
    profile = rows.profiles.get(id_)
    active = rows.profiles.active(id_)
    base = rows.profiles.latest(id_, "shipped") if request.from_scratch else active
    known = rows.profiles.posterior(id_, base.version)
    learnt = base.learnt or {"through": None, "recent": []}
    wanted = ReportFilter(
        profile_id=id_, since=request.since, until=request.until, after_id=learnt["through"]
    )
    old = {*learnt["recent"]}
    reports = [report for report in rows.reports.telling(wanted) if report.id not in old]
    usable, unusable = Observations(rows).of(reports)
    benchmarks = rows.benchmarks.made(request.since, request.until, learnt["through"])
    told = _told(
        rows, [one for one in benchmarks if one.id not in old], Profile.from_json(base.content)
    )
    return _Ground(
        base=base,
        active=active,
        posterior=Posterior.from_json(known) if known else Posterior.nothing(),
        revision=profile.revision,
        policy=Policy.model_validate(profile.policy),
        reports=[report for report, _ in usable],
        benchmarks=[row for row, _ in told],
        observations=[observation for _, observation in (*usable, *told)],
        unusable=unusable,
        settled=settled,
        windowed=request.since is not None or request.until is not None,
    )


def _told(
    rows: Rows, benchmarks: Sequence[BenchmarkRow], profile: Profile
) -> list[tuple[BenchmarkRow, Observation]]:
    """What benchmarks tell of this profile's coefficients; those of things that are gone tell
    nothing."""
    resolver, told = Resolver(rows), list[tuple[BenchmarkRow, Observation]]()
    for row in benchmarks:
        with suppress(DomainError, ValidationError):
            told.append((row, observed(resolver, row, profile)))
    return told


def _calibration_answer(
    found: Calibration, ground: _Ground, published: Unseen | None, promotion: Promotion
) -> CalibrationAnswer:
    return CalibrationAnswer.model_validate(
        {
            "based_on": ground.base.version,
            "window": ground.window(),
            "promotion": promotion,
            "unseen": _errors(found.unseen),
            "unseen_memory": _errors(found.unseen_memory),
            "published": _errors(published),
            "observations": len(ground.reports),
            "moved": [asdict(moved) for moved in found.moved],
            "unidentified": [
                {"coefficient": name, "scope": scope} for name, scope in sorted(found.unidentified)
            ],
            "outliers": list(found.outliers),
            "unusable": ground.unusable,
            "error_before": found.error_before,
            "error_after": found.error_after,
            "memory_error_before": found.memory_error_before,
            "memory_error_after": found.memory_error_after,
        }
    )


def _errors(unseen: Unseen | None) -> dict[str, Any] | None:
    if unseen is None:
        return None
    return {
        "runs": len(unseen.measured),
        "error_before": unseen.error_before,
        "error_after": unseen.error_after,
        "coverage": unseen.coverage,
        "kinds": [
            {"kind": kind, "runs": runs, "error_before": before, "error_after": after}
            for kind, (runs, before, after) in unseen.by_kind.items()
        ],
    }
