"""Calibrations that nobody asks for: where a profile's policy says after how many reports, they
start by themselves.

Of several processes on one database one runs each: it claims an Idempotency-Key that no request can
have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from models.errors import DomainError
from service.errors import NothingToLearn, ServiceError, StillRunning
from service.learning.calibrations import Calibrations
from service.runtime.admission import HeavySlots
from service.runtime.idempotency import Creation, Key
from service.schemas.profile import CalibrationRequest, Policy
from service.store import Rows, Store
from service.store.reports import ReportFilter
from service.store.tables import ProfileRow

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Due:
    """A calibration that a policy asks for; `key` tells it from all others."""

    profile_id: str
    key: str


class AutoCalibration:
    def __init__(
        self,
        store: Store,
        calibrations: Calibrations,
        creation: Creation,
        slots: HeavySlots,
        look_s: float,
    ) -> None:
        self._store, self._calibrations, self._creation, self._slots = (
            store,
            calibrations,
            creation,
            slots,
        )
        self._look_s, self._done = look_s, set[str]()

    async def run(self) -> None:
        """Look now and then what is due, until cancelled; after a failure the next look is as good
        as the first."""
        while True:
            await asyncio.sleep(self._look_s)
            try:
                for due in await asyncio.to_thread(self._due):
                    async with self._slots.one(_listening):
                        await asyncio.to_thread(self._calibrate, due)
            except ServiceError as error:
                log.warning("unattended calibration: %s", error)
            except Exception:
                log.exception("unattended calibration failed")

    def _due(self) -> list[_Due]:
        with self._store.reading() as rows:
            found = [due for profile in rows.profiles.all() for due in _of(rows, profile)]
        return [due for due in found if due.key not in self._done]

    def _calibrate(self, due: _Due) -> None:
        """Once for as many reports, even where they turn out to be of no use."""
        try:
            key, request = Key.of(due.key, due.profile_id), CalibrationRequest()
            made = self._creation.create(
                key, lambda: self._calibrations.calibrate(due.profile_id, request)
            )
            log.info("unattended calibration of %s made %s", due.profile_id, made.location)
        except StillRunning:
            return  # in another process, or one that crashed: the claim ends with time
        except (NothingToLearn, DomainError) as error:
            log.info("unattended calibration of %s made nothing: %s", due.profile_id, error)
        self._done.add(due.key)


def _of(rows: Rows, profile: ProfileRow) -> Iterator[_Due]:
    after = Policy.model_validate(profile.policy).after_reports
    if after is None:
        return
    latest = rows.profiles.latest(profile.id)
    came = ReportFilter(profile_id=profile.id, received_since=latest.created_at)
    times = rows.reports.count_telling(came) // after
    if times:
        yield _Due(
            profile.id,
            f"calibration of {profile.id} after version {latest.version}, {times} times {after}",
        )


async def _listening() -> bool:
    return False
