"""Calibrations that nobody asks for: the policy of a profile may say after how many reports one
starts by itself.

Of several processes on one database, only one at a time looks what is due for a profile and does
it: it holds a lease. What was done is kept under an Idempotency-Key that no request can have.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass

from models.errors import DomainError
from service.errors import NothingToLearn, ServiceError, StillRunning
from service.learning.calibrations import Calibrations
from service.runtime.admission import AdmissionControl
from service.runtime.idempotency import (
    CreatedResource,
    IdempotencyKey,
    IdempotentCreation,
    SaveRows,
)
from service.schemas.profile import CalibrationRequest, Policy
from service.store import Rows, Store
from service.store.reports import ReportFilter
from service.store.tables import ProfileRow

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _DueCalibration:
    """A calibration that a policy asks for. Its `key` is the same in every process."""

    profile_id: str
    key: str


class AutoCalibration:
    def __init__(
        self,
        store: Store,
        calibrations: Calibrations,
        creation: IdempotentCreation,
        slots: AdmissionControl,
        look_s: float,
    ) -> None:
        self._store = store
        self._calibrations = calibrations
        self._creation = creation
        self._slots = slots
        self._look_s = look_s
        self._done_keys: set[str] = set()

    async def run(self) -> None:
        """Every `look_s` seconds, run what is due, until cancelled. A failure is logged, and the
        next look tries again."""
        while True:
            await asyncio.sleep(self._look_s)
            try:
                for due in await asyncio.to_thread(self._due_calibrations):
                    async with self._slots.admit(_never_gone):
                        await asyncio.to_thread(self._calibrate_alone, due.profile_id)
            except ServiceError as error:
                log.warning("unattended calibration: %s", error)
            except Exception:
                log.exception("unattended calibration failed")

    def _due_calibrations(self) -> list[_DueCalibration]:
        with self._store.reading() as rows:
            candidates = [_due_calibration(rows, profile) for profile in rows.profiles.all()]
        return [due for due in candidates if due is not None and due.key not in self._done_keys]

    def _calibrate_alone(self, profile_id: str) -> None:
        """Does what is due for a profile, unless another process is about to."""
        with (
            suppress(StillRunning),
            self._creation.holding(f"unattended calibrations of {profile_id}"),
        ):
            # Another process may have done it since this one looked.
            for due in self._due_calibrations():
                if due.profile_id == profile_id:
                    self._calibrate(due)

    def _calibrate(self, due: _DueCalibration) -> None:
        """Calibrate once for this number of reports, even if they turn out to be of no use."""
        key = IdempotencyKey.of(due.key, due.profile_id)
        made = self._creation.create(key, lambda: self._prepare(due.profile_id))
        log.info("unattended calibration of %s made %s", due.profile_id, made.location)
        self._done_keys.add(due.key)

    def _prepare(self, profile_id: str) -> SaveRows:
        """The new version; or the profile as it is, so that no process tries the same again."""
        try:
            return self._calibrations.calibrate(profile_id, CalibrationRequest())
        except (NothingToLearn, DomainError) as error:
            nothing = CreatedResource(f"/v1/profiles/{profile_id}", {"reason": str(error)})
            log.info("unattended calibration of %s finds nothing: %s", profile_id, error)
            return lambda rows: nothing


def _due_calibration(rows: Rows, profile: ProfileRow) -> _DueCalibration | None:
    """What the profile's policy asks for. One is due each time that another `after_reports` reports
    have come since the latest version was made."""
    after = Policy.model_validate(profile.policy).after_reports
    if after is None:
        return None
    latest = rows.profiles.latest(profile.id)
    received = ReportFilter(profile_id=profile.id, received_since=latest.created_at)
    times = rows.reports.count_informative(received) // after
    if not times:
        return None
    key = f"calibration of {profile.id} after version {latest.version}, {times} times {after}"
    return _DueCalibration(profile.id, key)


async def _never_gone() -> bool:
    return False
