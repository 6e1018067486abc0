from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from asking import PREDICTION, assert_problem

from service.errors import Overloaded
from service.slots import HeavySlots


def test_a_body_is_refused_by_its_length(make_client) -> None:
    answer = make_client().post("/v1/predictions", content=b"x" * 50_000_000)
    assert answer.status_code == 413
    assert_problem(answer, "body-too-large")


def test_a_body_is_refused_while_it_streams(make_client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    client = make_client(max_body_bytes=2048)
    answer = client.post("/v1/predictions", content=chunks(), headers={"content-type": "application/json"})
    assert_problem(answer, "body-too-large")


def test_a_body_within_the_limit_is_read(make_client) -> None:
    assert make_client(max_body_bytes=1024).post("/v1/predictions", json=PREDICTION).status_code == 201


def test_slots_run_some_queue_some_and_refuse_the_rest() -> None:
    slots = HeavySlots(concurrency=2, queue=1, wait_s=10)
    running, finish, most = [], threading.Event(), []

    def work() -> bool:
        try:
            with slots.one():
                running.append(1)
                most.append(len(running))
                finish.wait(10)
                running.pop()
        except Overloaded:
            finish.set()
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: work(), range(4)))
    assert sorted(done) == [False, True, True, True]
    assert max(most) == 2


def test_waiting_ends() -> None:
    slots = HeavySlots(concurrency=1, queue=1, wait_s=0.01)
    with slots.one(), pytest.raises(Overloaded), slots.one():
        pass
    with slots.one():  # nothing leaked
        pass


def test_an_overloaded_service_says_when_to_come_back(make_client) -> None:
    client = make_client(heavy_concurrency=1, heavy_queue=0)
    started, finish = threading.Event(), threading.Event()
    predict = client.app.state.services.predictions.predict

    def slow(request: object) -> object:
        started.set()
        finish.wait(10)
        return predict(request)

    client.app.state.services.predictions.predict = slow
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/v1/predictions", json=PREDICTION)
        started.wait(10)
        refused = client.post("/v1/predictions", json=PREDICTION)
        assert client.get("/livez").status_code == client.get("/readyz").status_code == 200
        finish.set()
        assert first.result().status_code == 201
    assert refused.status_code == 503
    assert_problem(refused, "overloaded")
    assert int(refused.headers["retry-after"]) > 0
