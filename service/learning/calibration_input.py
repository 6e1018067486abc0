"""The input of a calibration: the reports and benchmarks that the version it starts from has not
learnt yet. It is a version of a *profile*, which has the coefficients of the cost model.

A *group* is the measurements of one tenant on one chip and stack. It *waits* until other tenants
measure alike. A tenant's *own* version is learnt from its reports alone, and predicts only for it.
The record `learnt` of a version says by ids what it has learnt: all before `through`, and those in
`recent`, but nothing of the groups in `waiting` from their `first` id on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

from pydantic import ValidationError

from models.calibration.calibrate import Calibration
from models.calibration.observation import Observation
from models.calibration.posterior import Posterior
from models.errors import DomainError
from models.spec.profile import Profile
from service.identifiers import earliest_id
from service.learning.benchmarks import benchmark_observation
from service.learning.corroboration import Corroborated, Group, TenantBenchmark, corroborated
from service.own_profile import own_profile_id
from service.resolve.calibration_targets import log_residuals, observation
from service.resolve.profiles import own_policy
from service.resolve.resolution import Resolver
from service.resolve.stored_runs import StoredRun, StoredRuns
from service.schemas.profile import CalibrationAnswer, CalibrationRequest, Policy, Unusable, Window
from service.schemas.stored import read_stored
from service.store import Rows
from service.store.reports import ReportFilter
from service.store.tables import BenchmarkRow, ProfileVersionRow, ReportRow
from service.store.versions import DEFAULT_PROFILE

AnyRow = TypeVar("AnyRow", BenchmarkRow, ReportRow)

_MAX_CLOCK_SKEW = timedelta(minutes=2)
"""Time that the clocks of the processes that make ids may differ, or one may be set back."""

MOST_OWN = 200
"""The last runs, and benchmarks, that a tenant's own version rests on. They say how its machines
are now, and are learnt within a second."""


@dataclass(frozen=True)
class CalibrationInput:
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
    benchmarks: list[TenantBenchmark]
    unusable: list[Unusable]
    cutoff: datetime
    """Every report with an id from before this moment was visible when the input was read."""
    windowed: bool
    """True where the request asked for the reports of a span of time only."""
    owner: str | None = None
    """The tenant whose own version is learnt; None where the version is for all."""
    corroboration: Corroborated | None = None
    """The agreed measurements, and those left out for want of agreement. None where the calibration
    learns from all measurements."""
    is_agreed: bool = True
    """True where several tenants agree on what is learnt, or where that is not asked for."""

    @cached_property
    def observations(self) -> list[Observation]:
        """Returns the runs and the benchmarks as the fit takes them."""
        return [
            *map(observation, self.runs),
            *(benchmark.observation for benchmark in self.benchmarks),
        ]

    @property
    def seen_ids(self) -> list[str]:
        """Returns the sorted ids of the runs, of the reports that cannot be used, and of the
        benchmarks. The record of a tenant's own version lists them, so that the same input is not
        learnt again (has_learnt_the_same)."""
        runs = [run.report_id for run in self.runs]
        return sorted([*runs, *(report.report for report in self.unusable), *self.benchmark_ids])

    @property
    def benchmark_ids(self) -> list[str]:
        return [benchmark.observation.key for benchmark in self.benchmarks]

    def corroborated(self) -> CalibrationInput:
        """Returns the input with only those measurements that several tenants agree on. If they
        agree on nothing, returns all of it with `is_agreed` set to false."""
        agreed = corroborated(
            self.runs,
            self.benchmarks,
            Profile.from_json(self.base.content),
            min_tenants=self.policy.min_tenants,
            margin=self.policy.margin,
        )
        if not agreed.runs and not agreed.benchmarks:
            return replace(self, is_agreed=False)
        return replace(self, runs=agreed.runs, benchmarks=agreed.benchmarks, corroboration=agreed)

    def compared_with_active(self, calibration: Calibration) -> Calibration:
        """Returns the calibration with the errors of the active version, which it would replace, as
        its errors before. The fit took those of `base`, another version where a calibration starts
        from scratch. The comparison of memory is then left out: none was made with `active`."""
        if self.base.version == self.active.version:
            return calibration
        held_out = calibration.held_out
        if held_out is not None:
            timed = [run for run in self.runs if run.step_time_s is not None]
            timed.sort(key=lambda run: run.report_id)  # the order of `held_out`
            # Log measured less its log residual is the log of the active version's prediction.
            residuals = log_residuals(timed, Profile.from_json(self.active.content))
            held_out = replace(held_out, before=held_out.measured - residuals)
        return replace(calibration, held_out=held_out, held_out_memory=None)

    def learnt(self) -> dict[str, Any]:
        """Returns the record of what a version made from this input has learnt: the number of
        reports, and the ids by which a later calibration tells what is new. Everything with an id
        before `through` is learnt, and so are the ids in `recent`. Only the groups in `waiting` are
        not: from their first id on they are read again, until others agree with them.

        Ids before `through` need no list, because what this calibration could not see gets an id
        from after the cutoff (service.store.arrivals), give or take the difference of clocks. A
        tenant's own version learns everything anew each time: its record lists all ids.
        """
        if self.owner is not None:
            return {"reports": len(self.runs), "recent": self.seen_ids}
        before = _learnt_before(self.base)
        through = before["through"]
        waiting = _waiting_groups(before)
        recent = [*before["recent"], *(run.report_id for run in self.runs), *self.benchmark_ids]
        if self.corroboration is not None:
            # Measurements of groups that others agree with, but not in what these measured. They
            # count as learnt, because only groups without any agreement are read again.
            recent += self.corroboration.unused
        # With a window, `through` and `waiting` stay those of `base`: what lies outside of the
        # window is still to be learnt.
        if not self.windowed:
            through = max(earliest_id(self.cutoff - _MAX_CLOCK_SKEW), through or "")
            waiting = {} if self.corroboration is None else self.corroboration.waiting
            # Ids before `through` and `waiting` are never read again, so none needs to be kept.
            recent = [id_ for id_ in recent if id_ >= min([through, *waiting.values()])]
        return {
            "reports": before["reports"] + len(self.runs),
            "through": through,
            "recent": recent,
            "waiting": [{**asdict(group), "first": first} for group, first in waiting.items()],
        }

    def window(self) -> Window:
        """Returns the dates and numbers of what is learnt, as the answer shows them. A source
        counts once, though it has reports and benchmarks."""
        dates = [run.measured_at for run in self.runs]
        return Window(
            first=min(dates, default=None),
            last=max(dates, default=None),
            reports=len(self.runs),
            benchmarks=len(self.benchmark_ids),
            all_reports=self.learnt()["reports"],
            sources=len(
                {
                    observation.source.removesuffix("/benchmarks")
                    for observation in self.observations
                }
            ),
        )


def read_input(
    rows: Rows, id_: str, request: CalibrationRequest, cutoff: datetime
) -> CalibrationInput:
    """Returns the reports and benchmarks that the active version has not learnt yet. With
    `from_scratch`, that is all of them, because it starts from the shipped version. `rows` show
    every report from before `cutoff`, so that a later calibration need not look there again."""
    profile = rows.profiles.get(id_)
    active = rows.profiles.active(id_)
    base = rows.profiles.latest(id_, "shipped") if request.from_scratch else active
    # None where the version has no posterior: its coefficients then count as independent.
    posterior = rows.profiles.posterior(id_, base.version)
    learnt = _learnt_before(base)
    report_filter = ReportFilter(profile_id=id_, since=request.since, until=request.until)
    reports = _unlearnt_reports(rows, report_filter, learnt)
    runs, unusable = StoredRuns(rows).read(reports)
    return CalibrationInput(
        base=base,
        active=active,
        posterior=Posterior.from_json(posterior) if posterior else Posterior.independent(),
        revision=profile.revision,
        policy=read_stored(Policy, profile.policy),
        runs=runs,
        benchmarks=_unlearnt_benchmarks(rows, request, learnt, Profile.from_json(base.content)),
        unusable=unusable,
        cutoff=cutoff,
        windowed=request.since is not None or request.until is not None,
    )


def read_own_input(rows: Rows, tenant: str, request: CalibrationRequest) -> CalibrationInput:
    """Returns the last reports and benchmarks of this tenant, to be learnt on top of the active
    shared version, whether that has learnt from them or not. `rows` are the tenant's."""
    own = rows.profiles.find(own_profile_id(tenant))
    active = rows.profiles.active(DEFAULT_PROFILE)
    posterior = rows.profiles.posterior(DEFAULT_PROFILE, active.version)
    span = ReportFilter(tenant=tenant, since=request.since, until=request.until)
    reports = rows.reports.by_ids(rows.reports.last_informative_ids(span, MOST_OWN))
    runs, unusable = StoredRuns(rows).read(sorted(reports, key=lambda report: report.id))
    return CalibrationInput(
        base=active,
        active=active,
        posterior=Posterior.from_json(posterior) if posterior else Posterior.independent(),
        revision=0 if own is None else own.revision,
        policy=own_policy(rows) if own is None else read_stored(Policy, own.policy),
        runs=runs,
        benchmarks=_last_benchmarks(rows, request, Profile.from_json(active.content)),
        unusable=unusable,
        cutoff=datetime.now(UTC),  # unused: an own version learns everything anew
        windowed=request.since is not None or request.until is not None,
        owner=tenant,
    )


def has_learnt_the_same(rows: Rows, inputs: CalibrationInput) -> bool:
    """Returns whether the last version of the tenant's own profile has learnt exactly this input,
    so that another would be the same. A version that the tenant has deactivated does not count."""
    id_ = own_profile_id(inputs.owner or "")  # input of a tenant's own version has an owner
    own = rows.profiles.find(id_)
    # Under a manual policy, no active version means that the tenant deactivated it, or never
    # activated it.
    if own is None or (own.active_version is None and inputs.policy.mode == "manual"):
        return False
    last = rows.profiles.find_latest(id_)
    return last is not None and (last.learnt, base_of(last)) == (
        inputs.learnt(),
        inputs.base.version,
    )


def base_of(own_version: ProfileVersionRow) -> int:
    """Returns the number of the shared version on top of which a tenant's own version was
    learnt."""
    calibration = read_stored(CalibrationAnswer, own_version.calibration)
    return calibration.based_on


_NOTHING_LEARNT: dict[str, Any] = {"reports": 0, "through": None, "recent": [], "waiting": []}


def _learnt_before(version: ProfileVersionRow) -> dict[str, Any]:
    """Returns the record of what a version has learnt (CalibrationInput.learnt). A shipped version
    has learnt nothing."""
    return {**_NOTHING_LEARNT, **(version.learnt or {})}


def _waiting_groups(learnt: dict[str, Any]) -> dict[Group, str]:
    """Returns the groups whose measurements wait for other tenants to agree, each with the first id
    that is not learnt."""
    return {
        Group(**{field.name: group[field.name] for field in fields(Group)}): group["first"]
        for group in learnt["waiting"]
    }


def _unlearnt_reports(
    rows: Rows, report_filter: ReportFilter, learnt: dict[str, Any]
) -> list[ReportRow]:
    """Returns the reports that the filter selects and that are not learnt yet, oldest first.
    Reports of a group that waits for others to agree are read again from its first id on."""
    # Informative reports tell a step time, a peak of memory, or that memory ran out. Those from
    # `through` on are new; earlier ones count only in groups that wait.
    reports = [*rows.reports.informative(replace(report_filter, after_id=learnt["through"]))]
    for group, first in _waiting_groups(learnt).items():
        if not group.of_benchmarks:
            group_filter = replace(
                report_filter,
                from_id=first,
                tenant=group.tenant,
                chip=[group.chip],
                stack=[group.stack],
            )
            reports += rows.reports.informative(group_filter)
    return _not_learnt({row.id: row for row in reports}, learnt["recent"])


def _unlearnt_benchmarks(
    rows: Rows, request: CalibrationRequest, learnt: dict[str, Any], profile: Profile
) -> list[TenantBenchmark]:
    """Returns the benchmarks that are not learnt yet as observations for this profile, oldest
    first. Benchmarks of a group that waits for others to agree are read again from its first id
    on."""
    waiting = _waiting_groups(learnt)
    span = request.since, request.until
    # Those from `through` on are new; earlier ones count only in groups that wait.
    benchmarks = {row.id: row for row in rows.benchmarks.created_between(*span, learnt["through"])}
    if any(group.of_benchmarks for group in waiting):
        for row in rows.benchmarks.created_between(*span, None):  # None: from the first id on
            first = waiting.get(_group_of(row))
            if first is not None and row.id >= first:
                benchmarks[row.id] = row
    return _tenant_benchmarks(rows, _not_learnt(benchmarks, learnt["recent"]), profile)


def _last_benchmarks(
    rows: Rows, request: CalibrationRequest, profile: Profile
) -> list[TenantBenchmark]:
    """Returns the last MOST_OWN usable benchmarks as observations for this profile, oldest
    first."""
    newest_first: list[TenantBenchmark] = []
    before = None
    # Benchmarks that cannot be used are left out, so one page may not be enough.
    while len(newest_first) < MOST_OWN:
        page = rows.benchmarks.newest(MOST_OWN, before, since=request.since, until=request.until)
        newest_first += _tenant_benchmarks(rows, page, profile)
        if len(page) < MOST_OWN:  # there are no older ones
            break
        before = page[-1].id
    return newest_first[:MOST_OWN][::-1]


def _tenant_benchmarks(
    rows: Rows, stored: Sequence[BenchmarkRow], profile: Profile
) -> list[TenantBenchmark]:
    """Returns stored benchmarks as observations for a calibration of this profile. A benchmark
    whose chip, fabric or stack the catalogue no longer has is left out."""
    resolver = Resolver(rows)
    benchmarks: list[TenantBenchmark] = []
    for row in stored:
        with suppress(DomainError, ValidationError):
            measured = benchmark_observation(resolver, row, profile)
            offsets = row.document["offsets"]
            benchmarks.append(TenantBenchmark(_group_of(row), measured, offsets))
    return benchmarks


def _group_of(row: BenchmarkRow) -> Group:
    """Returns the tenant, chip and stack of a benchmark: measurements of one group are judged
    together."""
    return Group(row.tenant, row.chip, row.stack, of_benchmarks=True)


def _not_learnt(rows_by_id: dict[str, AnyRow], learnt_ids: Sequence[str]) -> list[AnyRow]:
    """Returns the rows whose id is not among `learnt_ids`, oldest first."""
    learnt = {*learnt_ids}
    return [rows_by_id[id_] for id_ in sorted(rows_by_id) if id_ not in learnt]
