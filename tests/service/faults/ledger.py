"""Clients that report without end, and the books that they keep."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from service.store import Store, database
from service.store.reports import ReportFilter
from tests.service.asking import REPORT, changed
from tests.service.processes import Service

_CLIENTS = 3
_BATCHES = (1, 3, 20, 230)  # the largest is computed in another process
_EVERY_REPORT = 10**6
_TRY_AGAIN_S = 0.2
_DRAINED_S = 120.0


@dataclass
class Delivery:
    """Reports that are sent together, under one Idempotency-Key, until they are acknowledged."""

    sources: list[str]
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def body(self) -> dict[str, Any]:
        reports = [changed(REPORT, "source", source) for source in self.sources]
        return reports[0] if len(reports) == 1 else {"reports": reports}


class Ledger:
    """What clients send to a service, and what it has acknowledged."""

    def __init__(self, service: Service, randomness: random.Random) -> None:
        self.service = service
        self.refusals: list[str] = []
        """Answers that neither acknowledge nor ask to be tried again."""
        self.acknowledged: list[str] = []
        self._randomness = randomness
        self._open: list[Delivery] = []
        self._sending = threading.Event()

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Clients report while the block runs, and then deliver what is still open."""
        self._sending.set()
        clients = [threading.Thread(target=self._report) for _ in range(_CLIENTS)]
        for client in clients:
            client.start()
        try:
            yield
        finally:
            self._sending.clear()
            for client in clients:
                client.join()
        self._deliver_the_rest()

    def _report(self) -> None:
        while self._sending.is_set():
            size = self._randomness.choice(_BATCHES)
            delivery = Delivery([uuid.uuid4().hex for _ in range(size)])
            if not self._send(delivery):
                self._open.append(delivery)
                time.sleep(_TRY_AGAIN_S)

    def _deliver_the_rest(self) -> None:
        ends = time.monotonic() + _DRAINED_S
        while self._open and time.monotonic() < ends:
            delivery = self._open.pop(0)
            if not self._send(delivery):
                self._open.append(delivery)
                time.sleep(_TRY_AGAIN_S)

    def _send(self, delivery: Delivery) -> bool:
        """Whether the service has acknowledged it."""
        headers = {"Idempotency-Key": delivery.key}
        try:
            answer = self.service.request(
                "POST", "/v1/reports", json=delivery.body(), headers=headers
            )
        except httpx.TransportError:
            return False
        if answer.status_code == 201:
            self.acknowledged += delivery.sources
            return True
        if answer.status_code not in (409, 503) or "retry-after" not in answer.headers:
            self.refusals.append(answer.text)
        return False

    def require_each_once(self, url: str) -> None:
        """Everything was acknowledged in the end, and is stored once."""
        assert self.refusals == [], self.service.errors()
        assert self._open == [], f"some were not acknowledged: {self.service.errors()}"
        engine = database.connect(url)
        with Store(engine).reading() as rows:
            stored = [row.source for row in rows.reports.newest(ReportFilter(), _EVERY_REPORT)]
        engine.dispose()
        assert Counter(stored) == Counter(self.acknowledged)
