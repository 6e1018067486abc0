from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from httpx import Response
from starlette.types import ASGIApp, Message

from service.errors import ClientGone, QueueFull, TurnNeverCame
from service.runtime.admission import AdmissionControl
from tests.service.asking import PREDICTION, QUESTION, assert_problem, changed
from tests.waiting import LONG_S

SMALL = changed(QUESTION, "cluster.num_chips", 8)


def test_a_body_is_refused_by_its_length(make_client) -> None:
    answer = make_client().post("/v1/predictions", content=b"x" * 50_000_000)
    assert answer.status_code == 413
    assert_problem(answer, "body-too-large")


def test_a_body_is_refused_while_it_streams(make_client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    client = make_client(max_body_bytes=2048)
    answer = client.post(
        "/v1/predictions", content=chunks(), headers={"content-type": "application/json"}
    )
    assert_problem(answer, "body-too-large")


def test_a_body_within_the_limit_is_read(make_client) -> None:
    assert (
        make_client(max_body_bytes=1024).post("/v1/predictions", json=PREDICTION).status_code == 201
    )


async def in_time(app: ASGIApp, body: list[bytes], every_s: float = 0) -> list[Message]:
    """What it sends to a client whose body stops before its end."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/predictions",
        "raw_path": b"",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "state": {},
    }
    sent: list[Message] = []

    async def receive() -> Message:
        if body:
            await asyncio.sleep(every_s)
            return {"type": "http.request", "body": body.pop(), "more_body": True}
        return await asyncio.Future()

    async def send(message: Message) -> None:
        sent.append(message)

    await asyncio.wait_for(app(scope, receive, send), LONG_S)
    return sent


@pytest.mark.parametrize("body", [[], [b'{"model":'], [b" " * 5000]])
def test_a_body_that_stops_is_not_waited_for(make_client, body: list[bytes]) -> None:
    app = make_client(body_wait_s=0.2, max_body_bytes=4096).app
    expected = "body-too-large" if len(b"".join(body)) > 4096 else "body-too-slow"
    start, *rest = asyncio.run(in_time(app, body))
    problem = json.loads(b"".join(part.get("body", b"") for part in rest))
    assert start["status"] == problem["status"] == (413 if expected == "body-too-large" else 408)
    assert problem["type"].endswith(expected)


def test_a_body_that_comes_byte_by_byte_is_not_waited_for(make_client) -> None:
    app, body = make_client(body_wait_s=0.2).app, [b" "] * 1000
    start, *_ = asyncio.run(in_time(app, body, every_s=0.05))
    assert start["status"] == 408
    assert len(body) > 900


def test_no_more_bodies_are_held_than_there_is_memory_for(make_client) -> None:
    app = make_client(body_wait_s=1, max_body_bytes=2**20).app

    async def twenty() -> list[int]:
        sent = await asyncio.gather(*(in_time(app, [b" " * 2**18] * 4) for _ in range(20)))
        return sorted(start["status"] for start, *_ in sent)

    assert asyncio.run(twenty()) == [408] * 16 + [503] * 4
    assert asyncio.run(twenty()) == [408] * 16 + [503] * 4  # nothing is held any more


async def listening() -> bool:
    return False


async def gone() -> bool:
    return True


def test_slots_run_some_queue_some_and_refuse_the_rest() -> None:
    async def four() -> tuple[list[object], int]:
        slots, running, most, finish = (
            AdmissionControl("searches", concurrency=2, queue=1, wait_s=10),
            0,
            0,
            asyncio.Event(),
        )

        async def work(name: int) -> int:
            nonlocal running, most
            async with slots.admit(listening):
                running += 1
                most = max(most, running)
                await finish.wait()
                running -= 1
            return name

        tasks = [asyncio.create_task(work(name)) for name in range(4)]
        await asyncio.sleep(0.05)
        finish.set()
        return await asyncio.gather(*tasks, return_exceptions=True), most

    done, most = asyncio.run(four())
    assert (done[:3], most) == ([0, 1, 2], 2)
    assert isinstance(done[3], QueueFull)
    assert "2 may compute at a time and 1 wait" in str(done[3])


@pytest.mark.parametrize(
    ("client", "wait_s", "error"), [(listening, 0.01, TurnNeverCame), (gone, 60, ClientGone)]
)
def test_waiting_ends_with_its_time_or_its_client(
    client, wait_s: float, error: type[Exception]
) -> None:
    async def wait() -> None:
        slots = AdmissionControl("searches", concurrency=1, queue=1, wait_s=wait_s)
        async with slots.admit(listening):
            for _ in range(2):  # whoever gives up leaves the queue
                with pytest.raises(error):
                    async with slots.admit(client):
                        pass
        async with slots.admit(listening):  # nothing leaked
            pass

    asyncio.run(asyncio.wait_for(wait(), LONG_S))


def test_a_search_that_nobody_waits_for_any_more_is_never_begun(make_client) -> None:
    client = make_client(heavy_concurrency=1, heavy_queue=1)
    app, sent, begun = client.app, [], []
    app.state.services.recommendations.recommend = begun.append
    messages = [
        {"type": "http.request", "body": json.dumps(QUESTION).encode()},
        {"type": "http.disconnect"},
    ]
    path = "/v1/recommendations"
    headers = [(b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": headers,
    }

    async def receive() -> dict:
        return messages.pop(0)

    async def send(message: dict) -> None:
        sent.append(message)

    async def ask() -> None:
        async with app.state.services.search_admission.admit(listening):
            await app(scope, receive, send)

    client.portal.call(ask)
    assert (sent[0]["status"], begun) == (499, [])


def test_a_search_ends_when_its_client_leaves(make_client) -> None:
    client = make_client()
    app, sent, begun, ended = client.app, [], threading.Event(), threading.Event()
    left = asyncio.Event()

    def search(request: object, looked_up: object, require_client: Callable[[], None]) -> None:
        begun.set()
        try:
            while True:  # a search asks now and then
                require_client()
                time.sleep(0.01)
        finally:
            ended.set()

    app.state.services.recommendations.recommend = search
    messages = [{"type": "http.request", "body": json.dumps(QUESTION).encode()}]
    headers = [(b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/recommendations",
        "query_string": b"",
        "headers": headers,
    }

    async def receive() -> dict:
        if messages:
            return messages.pop(0)
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        sent.append(message)

    async def ask() -> None:
        asked = asyncio.create_task(app(scope, receive, send))
        assert await asyncio.to_thread(begun.wait, LONG_S)
        left.set()
        await asyncio.wait_for(asked, LONG_S)

    client.portal.call(ask)
    assert ended.is_set()
    assert sent[0]["status"] == 499


def many_layouts(count: int) -> dict[str, object]:
    question = {name: value for name, value in PREDICTION.items() if name != "layout"}
    return {**question, "layouts": [PREDICTION["layout"]] * count}


def test_an_overloaded_service_says_when_to_come_back(make_client) -> None:
    client = make_client(heavy_concurrency=1, heavy_queue=0)
    started, finish = threading.Event(), threading.Event()
    recommend = client.app.state.services.recommendations.recommend

    def slow(*given: object) -> object:
        started.set()
        finish.wait(LONG_S)
        return recommend(*given)

    def ask() -> Response:
        return client.post("/v1/recommendations", json=SMALL, headers={"Idempotency-Key": "a"})

    client.app.state.services.recommendations.recommend = slow
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask)
        assert started.wait(LONG_S)
        another = changed(SMALL, "workload.global_batch", 2 * SMALL["workload"]["global_batch"])
        refused = client.post("/v1/recommendations", json=another)
        assert client.get("/livez").status_code == client.get("/readyz").status_code == 200
        assert (
            client.post("/v1/predictions", json=PREDICTION).status_code == 201
        )  # cheap work waits for no search
        assert_problem(client.post("/v1/predictions", json=many_layouts(1000)), "overloaded")
        assert_problem(ask(), "still-running")
        finish.set()
        assert first.result().status_code == 201
    assert refused.status_code == 503
    assert "queue is full" in assert_problem(refused, "overloaded")["detail"]
    assert int(refused.headers["retry-after"]) > 0


def test_a_retry_of_what_is_answered_waits_for_no_turn(make_client) -> None:
    client, headers = make_client(heavy_concurrency=1, heavy_queue=0), {"Idempotency-Key": "a"}
    assert client.post("/v1/recommendations", json=SMALL, headers=headers).status_code == 201

    async def ask_in_the_meantime() -> Response:
        async with client.app.state.services.search_admission.admit(listening):
            return await asyncio.to_thread(
                client.post, "/v1/recommendations", json=SMALL, headers=headers
            )

    assert client.portal.call(ask_in_the_meantime).headers["idempotency-replayed"] == "true"
