"""How long a caller waits, the queue included."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from service.runtime.deadline import Deadline, Until
from tests.service.asking import LARGEST, QUESTION, assert_problem

ASKING: dict[str, dict[str, Any]] = {
    "recommendations": {**LARGEST, "time_limit_s": 60},
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


@pytest.mark.parametrize("path", ASKING)
def test_every_question_says_how_long_its_caller_waits(client, path: str) -> None:
    answer = client.post(f"/v1/{path}", json={**ASKING[path], "wait_s": 30})
    assert answer.status_code in (200, 201), answer.text
    refused = client.post(f"/v1/{path}", json={**ASKING[path], "wait_s": 0})
    assert_problem(refused, "invalid")


def test_a_search_ends_within_the_time_that_its_caller_waits(client) -> None:
    began = time.monotonic()
    answer = client.post("/v1/recommendations", json={**ASKING["recommendations"], "wait_s": 3})
    assert answer.status_code == 201
    assert not answer.json()["certificate"]["exact"]
    assert time.monotonic() - began < 15  # on a machine that others use as well


def test_who_waits_in_the_queue_is_told_when_its_time_is_over(make_client) -> None:
    client = make_client(heavy_concurrency=1)
    long = threading.Thread(
        target=client.post,
        args=("/v1/recommendations",),
        kwargs={"json": {**ASKING["recommendations"], "wait_s": 6}},
    )
    long.start()
    time.sleep(0.5)
    began = time.monotonic()
    answer = client.post("/v1/checks", json={**ASKING["checks"], "wait_s": 0.5})
    assert_problem(answer, "overloaded")
    assert time.monotonic() - began < 4
    long.join()


def test_time_in_which_others_compute_counts_for_who_waits() -> None:
    def others_compute() -> None:
        time.sleep(0.2)

    patient = Deadline(0.1, others_compute)
    impatient = Deadline(0.1, Until(others_compute, time.monotonic() + 0.15))
    assert patient()
    assert not impatient()
