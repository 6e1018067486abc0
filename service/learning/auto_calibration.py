"""Calibrations that nobody asks for: the policy of a profile may say after how many reports one
starts by itself.

Of several processes on one database, only one runs each calibration: it claims an Idempotency-Key
that no request can have.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from models.errors import DomainError
from service.errors import NothingToLearn, ServiceError, StillRunning
from service.learning.calibrations import Calibrations
from service.runtime.admission import AdmissionControl
from service.runtime.idempotency import IdempotencyKey, IdempotentCreation
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
                        await asyncio.to_thread(self._calibrate, due)
            except ServiceError as error:
                log.warning("unattended calibration: %s", error)
            except Exception:
                log.exception("unattended calibration failed")

    def _due_calibrations(self) -> list[_DueCalibration]:
        with self._store.reading() as rows:
            candidates = [_due_calibration(rows, profile) for profile in rows.profiles.all()]
        return [due for due in candidates if due is not None and due.key not in self._done_keys]

    def _calibrate(self, due: _DueCalibration) -> None:
        """Calibrate once for this number of reports, even if they turn out to be of no use."""
        key = IdempotencyKey.of(due.key, due.profile_id)
        request = CalibrationRequest()
        try:
            made = self._creation.create(
                key, lambda: self._calibrations.calibrate(due.profile_id, request)
            )
            log.info("unattended calibration of %s made %s", due.profile_id, made.location)
        except StillRunning:
            return  # in another process, or in one that crashed: its claim expires
        except (NothingToLearn, DomainError) as error:
            log.info("unattended calibration of %s made nothing: %s", due.profile_id, error)
        self._done_keys.add(due.key)


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
