"""Event streams that one tenant opens and does not read, beside another tenant's questions."""

from __future__ import annotations

import socket
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import insert

from service.api_keys import create
from service.schemas.sweep import SweepRequest
from service.store import Store, database
from service.store.tables import SweepItemRow
from service.sweeps.sweeps import Sweeps
from tests.service.asking import QUESTION, changed
from tests.service.processes import Service, serving
from tests.service.sweeps.conftest import REFUSED, SWEEP

pytestmark = pytest.mark.faults  # its limits are of time, which a busy machine has not

STREAMS = 200
RESULTS = 5000
QUESTIONS = 20


def long_sweep(store: Store) -> str:
    """A sweep that has RESULTS results and still waits for one."""
    save = Sweeps(store, lambda: None).prepare(SweepRequest.model_validate(SWEEP))
    result = {**REFUSED.result, "detail": "x" * 500}
    with store.writing() as rows:
        id_ = str((save(rows).document or {})["id"])
        items = [
            {"sweep_id": id_, "position": 8 + i, "attempts": 1, "event": i + 1,
             "outcome": "refused", "result": result}
            for i in range(RESULTS)
        ]  # fmt: skip
        rows._session.execute(insert(SweepItemRow), items)
        sweep = rows.sweeps.get(id_)
        sweep.total, sweep.events = RESULTS + 8, RESULTS
        # every position is that of a combination
        sweep.request = {**sweep.request, "constraints": [{}] * RESULTS}
    return id_


def statuses(streams: list[socket.socket]) -> Counter[bytes]:
    return Counter(stream.recv(12)[-3:] for stream in streams)


def timed(service: Service, method: str, path: str, **arguments: Any) -> float:
    began = time.monotonic()
    service.request(method, path, **arguments).raise_for_status()
    return time.monotonic() - began


class Waits:
    """How long each of some questions and probes of another tenant waits."""

    def __init__(self, service: Service, headers: dict[str, str], first: int) -> None:
        self.plain, self.alive, self.ready = list[float](), list[float](), list[float]()
        for i in range(QUESTIONS):  # each of a question that nobody has asked
            surety = 0.8 + (first + 2 * i) / 1000  # of which a search takes equally long
            asked = changed(QUESTION, "constraints", {"min_fit_probability": surety})
            answer = {"json": asked, "headers": headers}
            self.plain.append(timed(service, "POST", "/v1/recommendations", **answer))
            self.alive.append(timed(service, "GET", "/livez"))
            self.ready.append(timed(service, "GET", "/readyz"))

    @property
    def p95(self) -> float:
        return sorted(self.plain)[int(0.95 * (QUESTIONS - 1))]

    def __str__(self) -> str:
        most = max(self.plain), max(self.alive), max(self.ready)
        return f"p95 {self.p95:.3f} s, at most {', '.join(f'{each:.3f} s' for each in most)}"


def test_unread_streams_of_one_tenant_keep_no_other_waiting(database_url: str) -> None:
    store = Store(database.connect(database_url))
    hostile, honest = (create(store, tenant, ["recommend"]) for tenant in ("hostile", "honest"))
    id_ = long_sweep(store.of("hostile", sees_all=False))
    headers = {"Authorization": f"Bearer {honest}"}
    settings: dict[str, Any] = {"require_api_keys": True, "sweep_processes": 0}
    with serving(database_url, log_level="WARNING", **settings) as service, ExitStack() as held:
        alone = Waits(service, headers, 3)
        host, port = service.address.removeprefix("http://").split(":")
        head = f"GET /v1/sweeps/{id_}/events HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {hostile}"
        streams = list[socket.socket]()
        for _ in range(STREAMS):
            stream = held.enter_context(socket.create_connection((host, int(port)), timeout=60))
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stream.sendall(f"{head}\r\n\r\n".encode())
            streams.append(stream)
        beside = Waits(service, headers, 4)
        print(f"alone: {alone}\nbeside: {beside}")
        assert statuses(streams) == {b"200": 32, b"429": STREAMS - 32}
        # A machine that is busy with other things is allowed what it needs without streams.
        assert beside.p95 <= max(0.5, 2 * alone.p95)
        assert max(beside.plain) <= max(2, 2 * max(alone.plain))
        assert max(beside.alive) <= max(0.5, 2 * max(alone.alive))
        assert max(beside.ready) <= max(3, 2 * max(alone.ready))
