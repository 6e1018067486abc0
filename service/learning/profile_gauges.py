"""What metrics say of the database, and of the sweeps and profiles in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

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

_DRIFT_REPORTS = 500
_DRIFT_KEPT_S = 600.0
"""Drift is told of the newest reports only, and not anew at every scrape, because it predicts the
run of each."""


class ProfileGauges:
    def __init__(self, store: Store, drift: Drift, cost_model: CostModel) -> None:
        self._store = store
        self._drift = drift
        self._cost_model = cost_model
        self._changes: TTLCache[str, list[float]] = TTLCache(maxsize=100, ttl=_DRIFT_KEPT_S)
        self._lock = threading.Lock()
        """Held while drift is told, so that scrapes at the same time do it once."""

    def read(self) -> list[Metric]:
        """The gauges. Of a database that does not answer they say only that."""
        try:
            schema = SCHEMA.family({(self._store.revision(), self._store.state()): 1})
            with self._store.reading() as rows:
                waiting = SWEEP_ITEMS_WAITING.family({(): rows.sweeps.waiting()})
            return [DATABASE_UP.family({(): 1}), schema, waiting, *self._of_profiles()]
        except Unavailable:
            return self.without_database()

    def without_database(self) -> list[Metric]:
        return [DATABASE_UP.family({(): 0})]

    def _of_profiles(self) -> Iterator[Metric]:
        with self._store.reading() as rows:
            versions = {row.id: row.active_version for row in rows.profiles.shared()}
            own = rows.profiles.count_own_in_use()
        active = {id_: version for id_, version in versions.items() if version is not None}
        yield ACTIVE_VERSION.family({(id_,): version for id_, version in active.items()})
        yield OWN_VERSIONS.family({(): own})
        if self._cost_model.state == "ok":  # drift predicts
            changes = {id_: self._last_changes(id_) for id_ in active}
            largest = {id_: max(each, key=abs, default=0.0) for id_, each in changes.items()}
            yield DRIFT.family({(id_,): change for id_, change in largest.items()})
            yield DRIFTING_KINDS.family({(id_,): len(each) for id_, each in changes.items()})

    def _last_changes(self, profile_id: str) -> list[float]:
        """The last change of each kind of run that has changed."""
        with self._lock:
            if profile_id not in self._changes:
                drift = self._drift.of(profile_id, DriftQuery(limit=_DRIFT_REPORTS))
                changes = [series["changes"] for series in drift["series"]]
                self._changes[profile_id] = [each[-1]["slower"] for each in changes if each]
            return self._changes[profile_id]
