"""Calibrations that nobody asks for. The policy of a profile may say after how many new reports a
calibration starts by itself, and after how many of one tenant a version of the tenant's own starts.

A version is *shared* by all tenants, or a tenant's *own*. *Informative* reports tell of time or
memory. Of several processes on one database, only the one that holds a lease does what is due for a
profile. What was done is kept under an Idempotency-Key that no request can have, so that it is done
once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from models.errors import DomainError
from service.errors import NothingToLearn, ServiceError, StillRunning
from service.identifiers import digest
from service.learning.calibration_input import MOST_OWN, base_of
from service.learning.calibrations import Calibrations
from service.own_profile import own_profile_id
from service.resolve.profiles import own_policy
from service.runtime.admission import AdmissionControl
from service.runtime.idempotency import (
    CreatedResource,
    IdempotencyKey,
    IdempotentCreation,
    SaveRows,
)
from service.schemas.profile import CalibrationRequest, Policy
from service.schemas.stored import read_stored
from service.store import Rows, Store
from service.store.reports import ReportFilter
from service.store.tables import ProfileRow
from service.store.versions import DEFAULT_PROFILE

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _DueCalibration:
    """A calibration that a policy asks for. Its `key` is the same in every process. `tenant` is the
    owner of the profile; None for a shared profile."""

    profile_id: str
    key: str
    tenant: str | None = None


class AutoCalibration:
    """Starts the calibrations that policies ask for. `look_s` is the number of seconds between two
    looks."""

    def __init__(
        self,
        store: Store,
        calibrations: Calibrations,
        creation: IdempotentCreation,
        admission: AdmissionControl,
        look_s: float,
    ) -> None:
        self._store = store
        self._calibrations = calibrations
        self._creation = creation
        self._admission = admission
        self._look_s = look_s
        self._done_keys: set[str] = set()
        """Keys of calibrations that this process has made, which saves asking the database."""

    async def run(self) -> None:
        """Starts every `look_s` seconds the calibrations that are due, until cancelled. A failure
        is logged, and the next look tries again."""
        while True:
            await asyncio.sleep(self._look_s)
            with _logged_failures():
                for due in await asyncio.to_thread(self._due_calibrations):
                    with _logged_failures():  # one that fails keeps no other tenant waiting
                        async with self._admission.admit(_never_gone, due.tenant):
                            await asyncio.to_thread(self._calibrate_alone, due)

    def _due_calibrations(self) -> list[_DueCalibration]:
        """Returns the calibrations that are due, of shared profiles and of tenants' own, but for
        those that this process has done already."""
        with self._store.reading() as rows:
            shared = [_due_calibration(rows, profile) for profile in rows.profiles.shared()]
            own = [_due_own_calibration(rows, tenant) for tenant in rows.api_keys.tenants()]
        return [
            due for due in [*shared, *own] if due is not None and due.key not in self._done_keys
        ]

    def _is_still_due(self, due: _DueCalibration) -> bool:
        """Returns whether a calibration is still due: another process may have done it since this
        one looked."""
        with self._store.reading() as rows:
            if due.tenant is not None:
                return _due_own_calibration(rows, due.tenant) == due
            return _due_calibration(rows, rows.profiles.get(due.profile_id)) == due

    def _calibrate_alone(self, due: _DueCalibration) -> None:
        """Calibrates under a lease, if the calibration is still due. Does nothing while another
        process holds the lease for this profile."""
        with (
            suppress(StillRunning),
            self._creation.holding(f"unattended calibrations of {due.profile_id}"),
        ):
            if self._is_still_due(due):
                self._calibrate(due)

    def _calibrate(self, due: _DueCalibration) -> None:
        """Calibrates, and marks the calibration as done under its key, even if nothing is learnt:
        it is then due again only after more reports."""
        key = IdempotencyKey.of(due.key, due.profile_id)
        made = self._creation.create(key, lambda: self._prepare(due))
        log.info("unattended calibration of %s made %s", due.profile_id, made.location)
        self._done_keys.add(due.key)

    def _prepare(self, due: _DueCalibration) -> SaveRows:
        """Returns the function that stores the new version. Where nothing can be learnt, it stores
        only the reason as the answer to the key, which keeps other processes from trying the
        same."""
        calibrations = self._calibrations
        if due.tenant is not None:
            # An own version is learnt from what its tenant alone reported.
            calibrations = calibrations.of(self._store.of(due.tenant, sees_all=False))
        try:
            return calibrations.calibrate(due.profile_id, CalibrationRequest())
        except (NothingToLearn, DomainError) as error:
            nothing_learnt = CreatedResource(
                f"/v1/profiles/{due.profile_id}", {"reason": str(error)}
            )
            log.info("unattended calibration of %s finds nothing: %s", due.profile_id, error)
            return lambda rows: nothing_learnt


@contextmanager
def _logged_failures() -> Iterator[None]:
    """Logs an error within the block instead of raising it, with a traceback unless it is one of
    the service's own errors, which say what is wrong."""
    try:
        yield
    except ServiceError as error:
        log.warning("unattended calibration: %s", error)
    except Exception:
        log.exception("unattended calibration failed")


def _due_calibration(rows: Rows, profile: ProfileRow) -> _DueCalibration | None:
    """Returns the calibration of a shared profile, if it is due by the profile's policy: each time
    that another `after_reports` reports have come since the latest version was made."""
    after = read_stored(Policy, profile.policy).after_reports
    if after is None:
        return None
    latest = rows.profiles.latest(profile.id)
    received = ReportFilter(profile_id=profile.id, received_since=latest.created_at)
    # The number of times is part of the key, so that each calibration is made once.
    times = rows.reports.count_informative(received) // after
    if not times:
        return None
    key = f"calibration of {profile.id} after version {latest.version}, {times} times {after}"
    return _DueCalibration(profile.id, key)


def _due_own_calibration(rows: Rows, tenant: str) -> _DueCalibration | None:
    """Returns the calibration of a tenant's own profile, if it is due. It is due after enough new
    reports and benchmarks, or when the last version has become outdated: a report or benchmark that
    it learnt was withdrawn, or the shared version beneath it is no longer active."""
    id_ = own_profile_id(tenant)
    own = rows.profiles.find(id_)
    policy = own_policy(rows) if own is None else read_stored(Policy, own.policy)
    shared = rows.profiles.get(DEFAULT_PROFILE)
    after_own = read_stored(Policy, shared.policy).own_after_reports
    # Without a number in the shared policy no tenant's own version starts by itself.
    if policy.mode == "manual" or after_own is None:
        return None
    after = policy.after_reports or after_own
    runs = rows.reports.last_informative_ids(ReportFilter(tenant=tenant), MOST_OWN)
    benchmarks = rows.benchmarks.last_ids(tenant, MOST_OWN)
    last = rows.profiles.find_latest(id_)
    # `recent` has the ids of all reports and benchmarks that the last version has learnt.
    learnt = set[str](last.learnt["recent"]) if last is not None and last.learnt else set[str]()
    new = len({*runs, *benchmarks} - learnt)
    is_outdated = last is not None and (
        base_of(last) != shared.active_version
        or rows.reports.any_withdrawn([*learnt])
        or rows.benchmarks.any_withdrawn([*learnt])
    )
    # At least `after` have to be new, and half as many as are learnt already: else a tenant with
    # many reports would have a new version for every few of them.
    if not runs or not (is_outdated or new >= max(after, len(learnt) // 2)):
        return None
    # The key names what would be learnt: once tried, it is not due again before that changes.
    number = 0 if last is None else last.version
    seen = digest(str(shared.active_version), *runs, *benchmarks)
    return _DueCalibration(id_, f"calibration of {id_} after version {number} on {seen}", tenant)


async def _never_gone() -> bool:
    """Stands for the check of whether a client has hung up: no client waits for these
    calibrations."""
    return False
