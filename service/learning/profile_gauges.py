"""The metrics of the database, and of the sweeps and profiles in it, as Prometheus scrapes them.
*Drift* is a lasting change of how long runs of one kind take, beside what is predicted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from cachetools import TTLCache
from prometheus_client import Metric

from service.errors import Unavailable
from service.learning.drift import Drift
from service.metrics import (
    ACTIVE_VERSION,
    DATABASE_UP,
    DRIFT,
    DRIFTING_KINDS,
    OWN_VERSIONS,
    SCHEMA,
    SWEEP_ITEMS_WAITING,
)
from service.runtime.cost_model import CostModel
from service.schemas.summary import DriftQuery
from service.store import Store
from service.store.unavailability import SILENT

_DRIFT_REPORTS = 500
_DRIFT_KEPT_S = 600.0
"""Drift predicts the run of every report. The gauges limit it to the newest reports, and do not
work it out at every scrape."""
_WAIT_S = 0.4
"""Seconds that a scrape waits for the gauges. With the time that it waits for the state of the
database it stays below a second: one that takes longer than Prometheus waits would lose all
metrics."""


class ProfileGauges:
    def __init__(self, store: Store, drift: Drift, cost_model: CostModel) -> None:
        self._store = store
        self._drift = drift
        self._cost_model = cost_model
        self._changes: TTLCache[str, list[float]] = TTLCache(maxsize=100, ttl=_DRIFT_KEPT_S)
        self._thread = ThreadPoolExecutor(1, "read gauges")
        """The threads for requests may all be busy. Scrapes at the same time share one read."""
        self._reading: Future[list[Metric]] | None = None
        self._last: list[Metric] = []

    async def families(self, database: str) -> list[Metric]:
        """Returns the gauges. `database` is the state of the database, such as "ok": if it does not
        answer, the only gauge says so. Gauges that are not read in time have the values of the last
        scrape."""
        up = DATABASE_UP.family({(): int(database == "ok")})
        if database == SILENT:
            return [up]
        if self._reading is None or self._reading.done():
            self._reading = self._thread.submit(self._database_gauges, database)
        # Shielded, a read that takes longer goes on, and the next scrape gets it.
        with suppress(TimeoutError):
            self._last = await asyncio.wait_for(
                asyncio.shield(asyncio.wrap_future(self._reading)), _WAIT_S
            )
        return [up, *self._last]

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    def _database_gauges(self, database: str) -> list[Metric]:
        """Returns the gauges that are read from the database; none if it stops answering
        meanwhile. `database` is its state, such as "ok"."""
        try:
            schema = SCHEMA.family({(self._store.revision(), database): 1})
            with self._store.reading() as rows:
                waiting = SWEEP_ITEMS_WAITING.family({(): rows.sweeps.waiting()})
            return [schema, waiting, *self._profile_families()]
        except Unavailable:  # after the caller has found that it answers
            return []

    def _profile_families(self) -> Iterator[Metric]:
        """Yields the gauges of the active versions, of tenants' own versions, and of drift."""
        with self._store.reading() as rows:
            versions = {row.id: row.active_version for row in rows.profiles.shared()}
            own = rows.profiles.count_own_in_use()
        active = {id_: version for id_, version in versions.items() if version is not None}
        yield ACTIVE_VERSION.family({(id_,): version for id_, version in active.items()})
        yield OWN_VERSIONS.family({(): own})
        if self._cost_model.state == "ok":  # drift needs predictions
            changes = {id_: self._last_changes(id_) for id_ in active}
            largest = {
                id_: max(series_changes, key=abs, default=0.0)
                for id_, series_changes in changes.items()
            }
            yield DRIFT.family({(id_,): change for id_, change in largest.items()})
            yield DRIFTING_KINDS.family(
                {(id_,): len(series_changes) for id_, series_changes in changes.items()}
            )

    def _last_changes(self, profile_id: str) -> list[float]:
        """Returns the last change of level of each kind of run that has changed, as a share by
        which steps became slower. Only the newest _DRIFT_REPORTS reports are looked at, and the
        result is kept for _DRIFT_KEPT_S, because metrics are scraped again and again."""
        if profile_id not in self._changes:
            drift = self._drift.answer(profile_id, DriftQuery(limit=_DRIFT_REPORTS))
            changes = [series["changes"] for series in drift["series"]]
            self._changes[profile_id] = [
                series_changes[-1]["slower"] for series_changes in changes if series_changes
            ]
        return self._changes[profile_id]
