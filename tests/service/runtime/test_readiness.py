"""Readiness is known in a bounded time, and tells what keeps the database from being used."""

from __future__ import annotations

import asyncio
import threading
import time

from sqlalchemy import Engine, event, select

from service.runtime import readiness
from service.runtime.readiness import Readiness
from service.store import database
from service.store.tables import WriteCheckRow
from tests.service.asking import ON_BOTH, PREDICTION, assert_problem, changed
from tests.waiting import LONG_S


class Frozen:
    """A store of a database that does not answer until it is thawed."""

    def __init__(self) -> None:
        self.thawed = threading.Event()
        self.asked = 0

    def state(self) -> str:
        self.asked += 1
        self.thawed.wait(LONG_S)
        return "ok"

    def close(self) -> None: ...


def test_a_database_that_is_frozen_is_waited_for_by_one_thread(monkeypatch) -> None:
    monkeypatch.setattr(readiness, "WAIT_S", 0.1)
    store = Frozen()
    checks = Readiness(store)

    async def probe() -> list[str]:
        states = await asyncio.gather(*(checks.state() for _ in range(20)))
        store.thawed.set()
        while not checks._running.done():
            await asyncio.sleep(0.01)
        return [*states, await checks.state(LONG_S)]

    assert asyncio.run(probe()) == ["does not answer"] * 20 + ["ok"]
    assert store.asked == 2
    checks.close()


def test_metrics_beside_a_database_that_is_frozen_take_less_time_than_a_probe(client) -> None:
    assert client.get("/readyz").status_code == 200
    services = client.app.state.services
    whole, frozen = services.readiness._store, Frozen()
    services.readiness._store = frozen
    took_s = []
    for _ in range(3):
        began = time.monotonic()
        assert "shardwright_database_up 0.0" in client.get("/metrics").text
        took_s.append(time.monotonic() - began)
    assert min(took_s) < readiness.WAIT_S  # the least, as the machine may be busy
    frozen.thawed.set()
    services.readiness._store = whole
    assert client.get("/readyz").status_code == 200


@ON_BOTH
def test_a_database_that_can_be_written_is_ready_and_keeps_nothing_of_it(
    client, database_url: str
) -> None:
    for _ in range(3):
        assert client.get("/readyz").json() == {"database": "ok", "cost_model": "ok"}
    engine = database.connect(database_url)
    with engine.connect() as connection:
        assert connection.execute(select(WriteCheckRow)).all() == []
    engine.dispose()


def limit_pages(engine: Engine, pages: int) -> None:
    """SQLite then says of a file of so many pages what it says of one on a full disk."""

    @event.listens_for(engine, "checkout")
    def limit(connection, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")


def test_a_database_without_room_says_so_and_works_again_when_there_is_some(client) -> None:
    services = client.app.state.services
    engines = [services.store._engine, services.readiness._store._engine]
    for engine in engines:
        limit_pages(engine, 1)  # fewer than there are: none is added
    for seq_len in range(2048, 4096):
        refused = client.post(
            "/v1/predictions", json=changed(PREDICTION, "workload.seq_len", seq_len)
        )
        if refused.status_code != 201:
            break
    assert "has no room left" in assert_problem(refused, "unavailable")["detail"]
    assert refused.headers["retry-after"]
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["database"]) == (503, "has no room left")
    assert "shardwright_database_up 0.0" in client.get("/metrics").text
    for engine in engines:
        limit_pages(engine, 10**6)
    assert client.get("/readyz").status_code == 200
    assert client.post("/v1/predictions", json=PREDICTION).status_code in (200, 201)
