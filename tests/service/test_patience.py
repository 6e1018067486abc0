"""How long a caller waits, the queue included."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from httpx import Response

from tests.service.asking import LARGEST, QUESTION, assert_problem

ASKING: dict[str, dict[str, Any]] = {
    "recommendations": QUESTION,
    "comparisons": {**QUESTION, "first": {"constraints": {"pp": 1}}},
    "checks": {**QUESTION, "layout": {"dp_shard": 64}, "time_limit_s": 30},
    "frontiers": {**QUESTION, "grid": {"scale_out": [0.5, 1, 2, 4, 8]}},
    "predictions": {**QUESTION, "layout": {"dp_shard": 64}},
    "explanations": {
        **QUESTION,
        "layout": {"dp_shard": 64},
        "outcome": "ok",
        "measured": {"step_time_s": 3.0},
    },
}


async def listening() -> bool:
    return False


@pytest.mark.parametrize("path", ASKING)
def test_every_question_says_how_long_its_caller_waits(client, path: str) -> None:
    answer = client.post(f"/v1/{path}", json={**ASKING[path], "wait_s": 30})
    assert answer.status_code in (200, 201), answer.text
    refused = client.post(f"/v1/{path}", json={**ASKING[path], "wait_s": 0})
    assert_problem(refused, "invalid")


def test_a_search_ends_within_the_time_that_its_caller_waits(client) -> None:
    began = time.monotonic()
    asked = {**LARGEST, "time_limit_s": 60, "wait_s": 1}
    answer = client.post("/v1/recommendations", json=asked)
    assert answer.status_code == 201
    assert not answer.json()["certificate"]["exact"]
    # Well below its time_limit_s, and with room for what a busy machine does after the search.
    assert time.monotonic() - began < 40


def test_who_waits_in_the_queue_is_told_when_its_time_is_over(make_client) -> None:
    client = make_client(heavy_concurrency=1)
    asked = {"json": {**ASKING["checks"], "wait_s": 0.5}}

    async def ask_while_another_computes() -> Response:
        async with client.app.state.services.search_admission.admit(listening):
            return await asyncio.to_thread(client.post, "/v1/checks", **asked)

    assert_problem(client.portal.call(ask_while_another_computes), "overloaded")
