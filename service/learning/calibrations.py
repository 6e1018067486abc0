"""Calibrations: a new version of a profile (the coefficients of the cost model) is learnt from the
reports made under it; or, of a tenant's own profile, from what that tenant reported.

A version is *promoted* when it becomes the active one, with which predictions are made. `base` is
the version that is learnt on top of. *Held-out* runs were not learnt, and show its error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from models.calibration.calibrate import Calibration, calibrate
from models.calibration.cross_validation import ProfileComparison
from models.calibration.fleet_effects import drift_variance, with_fleet_offsets
from models.calibration.observation import with_limited_sources
from models.calibration.posterior import Posterior
from models.spec.profile import Profile
from service.errors import Conflict, NotFound, NothingToLearn
from service.learning.calibration_input import (
    MOST_OWN,
    CalibrationInput,
    has_learnt_the_same,
    read_input,
    read_own_input,
)
from service.learning.drift_flags import changes_of_level
from service.learning.promotion import compare_on_latest_runs, compare_on_published_runs, judge
from service.learning.step_time_changes import step_time_changes
from service.own_profile import is_own, own_profile_id
from service.resolve.disclosure import shared_influences
from service.resolve.profiles import add_own_version, add_version, version_document
from service.runtime.idempotency import CreatedResource, SaveRows
from service.runtime.process_pool import ProcessPool
from service.schemas.profile import (
    CalibrationAnswer,
    CalibrationRequest,
    KindErrors,
    Policy,
    Promotion,
    StepTimeChange,
    UnseenErrors,
)
from service.store import Rows, Store, UseCase
from service.store.reports import ReportFilter


@dataclass(frozen=True, slots=True)
class _NewVersion:
    """A version to be stored, with the columns that it has in profile_versions. `revision` is the
    profile's when the calibration began, by which a change meanwhile is noticed; it is 0 where a
    tenant had no profile of its own yet."""

    profile: Profile
    posterior: Posterior
    document: dict[str, Any]
    learnt: dict[str, Any]
    promoted: bool
    policy: Policy
    revision: int
    keeps_active: bool = False
    """True where the version in use stays though this one does not replace it."""


class Calibrations(UseCase):
    """Calibrations, whether a tenant asks for one or a policy starts it
    (service.learning.auto_calibration)."""

    def __init__(self, store: Store, pool: ProcessPool) -> None:
        super().__init__(store)
        self._pool = pool

    def of(self, store: Store) -> Calibrations:
        """Returns these calibrations on the rows that another store sees."""
        return Calibrations(store, self._pool)

    def calibrate(self, id_: str, request: CalibrationRequest) -> SaveRows:
        """Learns what the active version of a shared profile has not learnt yet, from the reports
        of all tenants; for a tenant's own profile, from the tenant's last reports. Returns the
        function that stores the new version. Raises NothingToLearn."""
        if is_own(id_):
            return self._calibrate_own(id_, request)
        store_of_all = self._store.of(None, sees_all=True)  # of no tenant, with the rows of all
        with store_of_all.reading() as rows:
            rows.profiles.get(id_)  # raises NotFound
            size = rows.reports.count(ReportFilter(profile_id=id_))
        # The pool decides by the number of reports whether a process is worth its start.
        new_version = self._pool.run(store_of_all, size, learn, id_, request)
        return lambda rows: _save(rows, id_, new_version)

    def _calibrate_own(self, id_: str, request: CalibrationRequest) -> SaveRows:
        """Learns a version for one tenant alone, from its last reports. Returns the function that
        stores it. Raises NothingToLearn."""
        tenant = self._owner(id_)
        store = self._store.of(tenant, sees_all=False)
        # It reads at most MOST_OWN reports, so few that the pool learns them in this thread.
        new_version = self._pool.run(store, MOST_OWN, learn_own, tenant, request)
        return lambda rows: _save_own(rows, tenant, new_version)

    def _owner(self, id_: str) -> str:
        """Returns the tenant whose own profile this is: the asking tenant, though it may have none
        yet, or another whose rows it sees. Raises NotFound, also for a profile that all share."""
        mine = self._store.tenant
        if mine is not None and id_ == own_profile_id(mine):
            return mine
        with self._store.reading() as rows:
            tenant = rows.profiles.get(id_).tenant
        if tenant is None:
            raise NotFound("profile", id_)
        return tenant


def _save(rows: Rows, id_: str, new_version: _NewVersion) -> CreatedResource:
    """Stores a version of a shared profile, and activates it if it was promoted. Raises Conflict
    where the profile changed since the calibration began."""
    row = add_version(
        rows,
        new_version.profile,
        "calibrated",
        new_version.posterior,
        new_version.document,
        new_version.learnt,
    )
    if new_version.promoted:
        before = rows.profiles.get(id_).active_version
        # The version that was just added has raised the revision by one; any other change raised it
        # more.
        if not rows.profiles.activate(id_, row.version, new_version.revision + 1):
            raise Conflict(
                "The profile changed while the calibration ran; look at it and try again."
            )
        rows.audit.add("profile.promoted", f"{id_}/{row.version}", before=before)
    return CreatedResource(
        f"/v1/profiles/{id_}/versions/{row.version}", version_document(rows, row)
    )


def _save_own(rows: Rows, tenant: str, new_version: _NewVersion) -> CreatedResource:
    """Stores a version of a tenant's own profile, and activates it if it was promoted. If it was
    not, the version that is active rests on outdated input: it is deactivated, unless the policy is
    manual, or `keeps_active` says that it stays. Raises Conflict where the profile or its reports
    changed meanwhile."""
    id_ = own_profile_id(tenant)
    rows.lock(f"profile:{id_}")
    profile = rows.profiles.find(id_)
    revision_now = 0 if profile is None else rows.profiles.revision(id_)
    is_changed = revision_now != new_version.revision
    if is_changed or rows.reports.any_withdrawn(new_version.learnt["recent"]):
        raise Conflict(
            "The profile or its reports changed while the calibration ran; look at it and try"
            " again."
        )
    before = None if profile is None else profile.active_version
    row = add_own_version(
        rows,
        tenant,
        new_version.profile,
        new_version.document,
        new_version.learnt,
        new_version.policy,
    )
    revision = rows.profiles.revision(id_)
    if new_version.promoted:
        rows.profiles.activate(id_, row.version, revision)
        rows.audit.add("profile.promoted", f"{id_}/{row.version}", before=before, of_tenant=tenant)
    elif (
        before is not None
        and new_version.policy.mode == "automatic"
        and not new_version.keeps_active
    ):
        rows.profiles.activate(id_, None, revision)  # None: no version is active
        rows.audit.add("profile.deactivated", id_, before=before, of_tenant=tenant)
    return CreatedResource(
        f"/v1/profiles/{id_}/versions/{row.version}", version_document(rows, row)
    )


def learn_own(store: Store, tenant: str, request: CalibrationRequest) -> _NewVersion:
    """Fits a tenant's own version and decides whether it is to be activated, without storing it. No
    other tenant has to agree. If runs have become slower, the version is not activated unless the
    request asks for it, and the active one stays. Raises NothingToLearn where there is no input, or
    the last version has learnt the same."""
    with store.reading() as rows:
        inputs = read_own_input(rows, tenant, request)
        is_known = has_learnt_the_same(rows, inputs)
        slower = None if request.activate else _latest_slowdown(rows, inputs)
    if not inputs.observations or is_known:
        raise NothingToLearn(len(inputs.unusable), inputs.base.version)
    fitted = _fit_profile(inputs)
    # None: an own version predicts for its tenant alone, so published runs are not compared.
    promotion = judge(inputs.policy, fitted, None, requested=request.activate, is_own=True)
    if slower is not None:
        promotion = Promotion(
            promoted=False,
            reason=f"{slower}. Predictions stay as they were, since a machine in trouble is not to"
            " become the one that is expected: look for what changed then, and activate this"
            " version if runs are to stay so",
        )
    new_version = _new_version(store, fitted, inputs, None, promotion)
    return replace(new_version, keeps_active=slower is not None)


def _latest_slowdown(rows: Rows, inputs: CalibrationInput) -> str | None:
    """Returns a sentence on the lasting slowdown (service.learning.drift) after which the latest of
    the runs to be learnt came; None where runs did not become slower."""
    changes = changes_of_level(rows, Profile.from_json(inputs.base.content), only_slower=True)
    latest_first = (run.report_id for run in reversed(inputs.runs))
    return next((changes[id_] for id_ in latest_first if id_ in changes), None)


def learn(store: Store, id_: str, request: CalibrationRequest) -> _NewVersion:
    """Fits a new version of a shared profile and decides whether it is to be activated, without
    storing it. A version that may be activated learns only what several tenants agree on. Raises
    NothingToLearn."""
    # A report that is being written has an id from before the cutoff. If it appeared only after the
    # input is read, it would count as learnt and never be.
    with store.writing() as rows:
        cutoff = rows.arrivals.wait_for_writers()
    with store.reading() as rows:
        inputs = read_input(rows, id_, request, cutoff)
    if not inputs.observations:
        raise NothingToLearn(len(inputs.unusable), inputs.base.version)
    may_activate = request.activate or inputs.policy.mode == "automatic"
    if may_activate:
        inputs = inputs.corroborated()
    fitted = _fit_profile(inputs)
    published = latest = None
    if may_activate:  # these comparisons may forbid it
        active = Profile.from_json(inputs.active.content)
        published = compare_on_published_runs(store, active, fitted.profile)
        latest = compare_on_latest_runs(store, id_, active, fitted.profile)
    fitted = inputs.compared_with_active(fitted)
    promotion = judge(
        inputs.policy,
        fitted,
        published,
        latest,
        requested=request.activate,
        is_agreed=inputs.is_agreed,
    )
    return _new_version(store, fitted, inputs, published, promotion)


def _new_version(
    store: Store,
    fitted: Calibration,
    inputs: CalibrationInput,
    published: ProfileComparison | None,
    promotion: Promotion,
) -> _NewVersion:
    """Returns the version with the answer that documents it: what was learnt, how predictions
    change, and whether it is promoted."""
    active = Profile.from_json(inputs.active.content)
    changes = step_time_changes(store, inputs.runs, active, fitted.profile)
    answer = _calibration_answer(fitted, inputs, published, promotion, changes)
    return _NewVersion(
        profile=fitted.profile,
        posterior=fitted.posterior,
        document=answer.model_dump(mode="json"),
        learnt=inputs.learnt(),
        promoted=promotion.promoted,
        policy=inputs.policy,
        revision=inputs.revision,
    )


def _fit_profile(inputs: CalibrationInput) -> Calibration:
    """Fits the profile to the runs and benchmarks. In a shared profile, the record of how far each
    run moved it (its influences) names no report, because other tenants read it."""
    problems = {observation.problem for observation in inputs.observations}
    # Each fleet gets offsets of its own to learn, from 0, beside what published runs have taught.
    profile = with_fleet_offsets(Profile.from_json(inputs.base.content), problems)
    # Hardware and software change: what was learnt long ago is less sure.
    posterior = inputs.posterior.with_added_variance(drift_variance(profile))
    made_by = (
        f"calibration on {len(inputs.runs)} reports and {len(inputs.benchmark_ids)} benchmarks"
    )
    if inputs.owner is not None:
        made_by += f" of one tenant, on top of version {inputs.base.version}"
    # Sources are limited, so that one that reports very often does not outweigh all others.
    fitted = calibrate(profile, with_limited_sources(inputs.observations), made_by, posterior)
    influences = fitted.profile.influences
    if influences is None or inputs.owner is not None:
        return fitted
    shared = replace(fitted.profile, influences=shared_influences(influences))
    return replace(fitted, profile=shared)


def _calibration_answer(
    fitted: Calibration,
    inputs: CalibrationInput,
    published: ProfileComparison | None,
    promotion: Promotion,
    changes: list[StepTimeChange],
) -> CalibrationAnswer:
    """Returns what a calibration did, as the version shows it. `published` compares errors on
    published runs; None where they were not compared."""
    return CalibrationAnswer.from_attributes(
        fitted,
        based_on=inputs.base.version,
        window=inputs.window(),
        promotion=promotion,
        unseen=_error_answers(fitted.held_out),
        unseen_memory=_error_answers(fitted.held_out_memory),
        published=_error_answers(published),
        observations=len(inputs.runs),
        waiting=0 if inputs.corroboration is None else inputs.corroboration.reports,
        changes=changes,
        unidentified=[
            {"coefficient": name, "scope": scope} for name, scope in sorted(fitted.unidentified)
        ],
        unusable=inputs.unusable,
    )


def _error_answers(held_out: ProfileComparison | None) -> UnseenErrors | None:
    """Returns the errors of step time or memory before and after a calibration, in all and by kind
    of run; None where nothing was compared."""
    if held_out is None:
        return None
    kinds = [
        KindErrors(kind=kind, runs=runs, error_before=before, error_after=after)
        for kind, (runs, before, after) in held_out.by_kind.items()
    ]
    return UnseenErrors.from_attributes(held_out, runs=len(held_out.measured), kinds=kinds)
