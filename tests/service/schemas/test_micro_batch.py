"""Micro-batches on the wire: in tokens they are the same as in sequences, wherever a layout or
constraints may stand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.asking import LAYOUT, PREDICTION, QUESTION, REPORT, assert_problem, changed

IN_TOKENS = {**LAYOUT, "micro_batch_tokens": 2 * 8192}
IN_SEQUENCES = {**LAYOUT, "micro_batch": 2}
ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/predictions", "layout", QUESTION),
    ("/v1/predictions", "layouts", QUESTION),
    ("/v1/checks", "layout", {**QUESTION, "time_limit_s": 20}),
    ("/v1/reports", "layout", REPORT),
    ("/v1/comparisons", "first.layout", {**QUESTION, "first": {}, "second": {"layout": LAYOUT}}),
]


def answer(client: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.is_success, response.text
    made: dict[str, Any] = response.json()
    varies = ("id", "created_at", "received_at", "measured_at", "run_age_days", "timing")
    return {name: value for name, value in made.items() if name not in varies}


@pytest.mark.parametrize(("path", "place", "body"), ASKED)
def test_a_micro_batch_in_tokens_is_the_same_in_sequences(shared_client, path, place, body) -> None:
    def asked(layout: dict[str, Any]) -> dict[str, Any]:
        return changed(body, place, [layout] if place == "layouts" else layout)

    found = answer(shared_client, path, asked(IN_TOKENS))
    assert found == answer(shared_client, path, asked(IN_SEQUENCES))
    assert "'micro_batch': 2" in str(found)


@pytest.mark.parametrize("tokens", [2 * 8192, [8192, 2 * 8192]])
def test_constraints_may_be_in_tokens(shared_client, tokens) -> None:
    constraints = {"pp": 1, "tp": 1, "cp": 1, "micro_batch_tokens": tokens}
    body = {**changed(QUESTION, "cluster.num_chips", 8), "constraints": constraints}
    found = answer(shared_client, "/v1/recommendations", body)
    sequences = [2] if isinstance(tokens, int) else [1, 2]
    layouts = [one["prediction"]["layout"] for one in found["layouts"]]
    assert {one["micro_batch"] for one in layouts} <= {*sequences}
    assert found["request"]["constraints"]["micro_batch"] in (sequences, *sequences[:1])


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"micro_batch_tokens": 10_000}, "the nearest are 8192 and 16384"),
        ({"micro_batch_tokens": 100}, "the nearest is 8192"),
        ({"micro_batch_tokens": 8192, "micro_batch": 2}, "micro_batch = 2: give one of the two"),
        ({"micro_batch_tokens": 3 * 8192}, "micro_batch may be 2"),
    ],
)
def test_tokens_that_cannot_be_are_refused(shared_client, layout, said) -> None:
    for place, sent in (("layout", {**LAYOUT, **layout}), ("layouts", [{**LAYOUT, **layout}])):
        response = shared_client.post("/v1/predictions", json={**QUESTION, place: sent})
        pointer = "/layout" if place == "layout" else "/layouts/0"
        problem = assert_problem(response, "invalid", f"{pointer}/micro_batch_tokens")
        assert said in problem["errors"][0]["rule"]
        assert problem["errors"][0]["value"] == layout["micro_batch_tokens"]


def test_a_bad_micro_batch_of_a_comparison_is_refused_at_its_side(shared_client) -> None:
    body = {**QUESTION, "first": {"constraints": {"micro_batch_tokens": [8192, 10]}}}
    response = shared_client.post("/v1/comparisons", json=body)
    assert_problem(response, "invalid", "/first/constraints/micro_batch_tokens")


def test_a_request_without_a_workload_says_how_long_a_sequence_is(shared_client) -> None:
    launch = {"format": "megatron", "arguments": ["--seq-length", "8192"]}
    constraints = {"micro_batch_tokens": 8192}
    body = {"cluster": QUESTION["cluster"], "launch": launch, "constraints": constraints}
    response = shared_client.post("/v1/checks", json=body)
    problem = assert_problem(response, "invalid", "/constraints/micro_batch_tokens")
    assert "workload.seq_len" in problem["errors"][0]["rule"]


def test_a_layout_with_a_wrong_workload_is_not_blamed(shared_client) -> None:
    body = changed(changed(PREDICTION, "layout", IN_TOKENS), "workload.seq_len", "8k")
    assert_problem(shared_client.post("/v1/predictions", json=body), "invalid", "/workload/seq_len")
