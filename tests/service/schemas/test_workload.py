"""Workloads on the wire: a batch in tokens is the same batch in sequences."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.asking import PREDICTION, QUESTION, assert_problem, changed

TOKENS = {"seq_len": 8192, "global_batch_tokens": 8192 * 128}


def asked(workload: dict[str, Any]) -> dict[str, Any]:
    return changed(PREDICTION, "workload", workload)


def test_a_batch_in_tokens_is_the_batch_in_sequences(shared_client) -> None:
    answer = shared_client.post("/v1/predictions", json=asked(TOKENS)).json()
    in_sequences = shared_client.post("/v1/predictions", json=PREDICTION).json()
    assert answer["layouts"] == in_sequences["layouts"]
    assert answer["request"] == in_sequences["request"]


def test_both_may_be_said_where_they_agree(shared_client) -> None:
    both = {**TOKENS, "global_batch": 128}
    assert shared_client.post("/v1/predictions", json=asked(both)).is_success


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({**TOKENS, "global_batch_tokens": 10**6}, "must be a multiple of seq_len = 8192"),
        ({**TOKENS, "global_batch_tokens": 10**6}, "the nearest are 999424 and 1007616"),
        ({**TOKENS, "global_batch_tokens": 100}, "the nearest is 8192"),
        ({**TOKENS, "global_batch": 64}, "is 128 sequences of seq_len = 8192"),
    ],
)
def test_a_batch_in_tokens_that_cannot_be_is_refused(shared_client, workload, said) -> None:
    response = shared_client.post("/v1/predictions", json=asked(workload))
    problem = assert_problem(response, "invalid", "/workload/global_batch_tokens")
    assert said in str(problem["errors"])


@pytest.mark.parametrize("batch", [{}, {"global_batch": None}, {"global_batch_tokens": None}])
def test_without_a_batch_both_ways_to_say_it_are_named(shared_client, batch) -> None:
    response = shared_client.post("/v1/predictions", json=asked({"seq_len": 8192, **batch}))
    problem = assert_problem(response, "invalid", "/workload/global_batch")
    assert "global_batch_tokens" in problem["detail"]


def test_a_batch_in_a_list_is_named_there(shared_client) -> None:
    workloads = [TOKENS, {**TOKENS, "global_batch_tokens": 10}]
    lists = {f"{name}s": [QUESTION[name]] for name in ("model", "cluster", "stack")}
    response = shared_client.post("/v1/sweeps", json={**lists, "workloads": workloads})
    assert_problem(response, "invalid", "/workloads/1/global_batch_tokens")


@pytest.mark.parametrize("value", ["1M", 0, True, 1.5])
def test_a_batch_in_tokens_is_a_whole_number(shared_client, value) -> None:
    workload = {**TOKENS, "global_batch_tokens": value, "global_batch": 128}
    response = shared_client.post("/v1/predictions", json=asked(workload))
    assert_problem(response, "invalid", "/workload/global_batch_tokens")


def test_names_may_be_in_capitals(shared_client) -> None:
    asked = changed(changed(QUESTION, "workload.optimizer", "AdamW"), "workload.precision", "BF16")
    answer = shared_client.post("/v1/predictions", json={**asked, "layout": {"dp_shard": 64}})
    workload = answer.json()["request"]["workload"]
    assert (workload["optimizer"], workload["precision"]) == ("adamw", "bf16")


def test_an_unknown_name_is_shown_as_it_was_written(shared_client) -> None:
    asked = changed(QUESTION, "workload.precision", "TF32")
    refused = shared_client.post("/v1/recommendations", json=asked)
    (error,) = assert_problem(refused, "invalid", "/workload/precision")["errors"]
    assert error["value"] == "TF32"


@pytest.mark.parametrize(
    ("value", "cure"),
    [("128k", "128k is 128000 or 131072"), ("2M", "2M is 2000000 or 2097152"), ("many", None)],
)
def test_a_number_in_thousands_is_written_out(shared_client, value: str, cure: str | None) -> None:
    asked = changed(QUESTION, "workload.seq_len", value)
    refused = shared_client.post("/v1/recommendations", json=asked)
    (error,) = assert_problem(refused, "invalid", "/workload/seq_len")["errors"]
    assert error["rule"].endswith(cure or "integer")
