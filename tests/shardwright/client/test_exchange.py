"""A call's steps: what is sent again, how long is waited, and what is raised in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from shardwright.client.call import Call
from shardwright.client.errors import (
    Invalid,
    Overloaded,
    Problem,
    TimedOut,
    Unreachable,
    UnreadableAnswer,
)
from shardwright.client.exchange import Pause, exchange
from shardwright.client.settings import ClientSettings

SETTINGS = ClientSettings(url="http://service", timeout_s=60, retries=3)
READ: Call[Any] = Call(method="GET", path="/v1/profiles")
CREATE: Call[Any] = Call(method="POST", path="/v1/reports", body={}, takes_key=True)
Came = httpx.Response | httpx.TransportError


class Clock:
    """A clock that pauses alone move."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def run(
    call: Call[Any],
    comes: Callable[[int], Came],
    settings: ClientSettings = SETTINGS,
) -> tuple[Any, list[httpx.Request], list[float]]:
    """The answer of a call, or its error, with the requests and the pauses on the way. `comes`
    says what comes of each try."""
    clock = Clock()
    steps = exchange(call, settings, httpx.Client(base_url=settings.url).build_request, clock)
    requests: list[httpx.Request] = []
    pauses: list[float] = []
    came: Came | None = None
    try:
        while True:
            step = steps.send(came) if requests or pauses else next(steps)
            if isinstance(step, Pause):
                pauses.append(step.seconds)
                clock.now_s += step.seconds
                came = None
            else:
                requests.append(step)
                came = comes(len(requests) - 1)
                if isinstance(came, httpx.Response):
                    came.request = step
    except StopIteration as end:
        return end.value, requests, pauses
    except (Problem, Unreachable, TimedOut, UnreadableAnswer) as error:
        return error, requests, pauses


def busy(**headers: str) -> httpx.Response:
    document = {"type": "/problems/busy", "title": "Busy", "status": 503, "detail": "wait"}
    return httpx.Response(
        503,
        json=document,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


def test_a_service_that_is_not_ready_is_asked_again_when_it_says() -> None:
    ready = httpx.Response(200, json={"items": []})
    answer, requests, pauses = run(
        READ, lambda tried: ready if tried == 2 else busy(Retry_After="3")
    )
    assert answer == {"items": []}
    assert len(requests) == 3
    assert pauses == [3.0, 3.0]


def test_all_tries_of_a_creation_have_one_key() -> None:
    _, requests, _ = run(CREATE, lambda tried: busy())
    keys = {request.headers["Idempotency-Key"] for request in requests}
    assert len(requests) == 1 + SETTINGS.retries
    assert len(keys) == 1


def test_two_creations_have_two_keys() -> None:
    made = httpx.Response(201, json={})
    keys = {run(CREATE, lambda tried: made)[1][0].headers["Idempotency-Key"] for _ in range(2)}
    assert len(keys) == 2


def test_pauses_grow_where_the_service_names_none() -> None:
    error, _, pauses = run(READ, lambda tried: httpx.ConnectError("refused"))
    assert isinstance(error, Unreachable)
    assert "SHARDWRIGHT_URL" in str(error)
    assert pauses[0] <= 0.5 < pauses[-1] <= 2.0


def test_no_pause_goes_beyond_the_time_of_the_call() -> None:
    error, requests, pauses = run(READ, lambda tried: busy(Retry_After="100"))
    assert isinstance(error, Overloaded)
    assert error.retry_after_s == 100
    assert (len(requests), pauses) == (1, [])


def test_a_slow_service_is_timed_out() -> None:
    short = ClientSettings(url="http://service", timeout_s=2, retries=0)
    error, _, _ = run(READ, lambda tried: httpx.ReadTimeout("slow"), short)
    assert isinstance(error, TimedOut)
    assert "2 s" in str(error)


def test_the_reason_that_a_service_gave_before_it_was_timed_out_is_told() -> None:
    """One that compiles its cost model says so after half a minute, and is asked once more."""
    error, requests, _ = run(READ, lambda tried: httpx.ReadTimeout("slow") if tried else busy())
    assert isinstance(error, Overloaded)
    assert str(error) == "wait"
    assert len(requests) > 1


def test_a_refusal_names_field_value_and_rule_and_is_not_asked_again() -> None:
    fault = {"field": "cluster.num_chips", "value": 0, "rule": "must be at least 1"}
    document = {"type": "/problems/invalid", "title": "A value", "errors": [fault], "detail": "d"}
    error, requests, _ = run(READ, lambda tried: httpx.Response(422, json=document))
    assert isinstance(error, Invalid)
    assert len(requests) == 1
    assert error.type == "invalid"
    (found,) = error.errors
    assert (found.field, found.value, found.rule) == (*fault.values(),)


@pytest.mark.parametrize("status", [200, 404, 502])
def test_what_is_no_answer_of_the_service_is_said_to_be_none(status: int) -> None:
    error, _, _ = run(READ, lambda tried: httpx.Response(status, text="<html>proxy</html>"))
    assert isinstance(error, UnreadableAnswer)
    assert "proxy" in str(error)
