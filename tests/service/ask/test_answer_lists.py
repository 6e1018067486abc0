"""Lists of answers, by what was asked about and when."""

from __future__ import annotations

import pytest

from tests.service.asking import PREDICTION, changed


@pytest.fixture(scope="module")
def ids(shared_client) -> dict[str, str]:
    questions = {
        "plain": PREDICTION,
        "b200": changed(PREDICTION, "cluster.preset", "b200"),
        "megatron": changed(PREDICTION, "stack", "megatron"),
        "qwen": changed(PREDICTION, "model", "qwen3-8b"),
        "levels": {
            **PREDICTION,
            "cluster": {
                "chip": "h100",
                "levels": [
                    {"name": "nvlink", "size": 8, "gb_s_per_chip": 450},
                    {"name": "leaf", "gb_s_per_chip": 50},
                ],
                "num_chips": 64,
            },
        },
    }
    return {
        shared_client.post("/v1/predictions", json=question).raise_for_status().json()["id"]: name
        for name, question in questions.items()
    }


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("chip=b200", {"b200"}),
        ("chip=h100", {"plain", "megatron", "qwen", "levels"}),
        ("chip=h100&chip=b200&stack=megatron", {"megatron"}),
        ("model=qwen3-8b&model=nothing", {"qwen"}),
        ("model=llama-3.1-8b&stack=torchtitan", {"plain", "b200", "levels"}),
        ("since=2000-01-01T00:00:00Z&until=2001-01-01T00:00:00Z", set()),
    ],
)
def test_answers_are_filtered_by_model_chip_stack_and_time(
    shared_client, ids, query, expected
) -> None:
    items = shared_client.get(f"/v1/predictions?{query}").raise_for_status().json()["items"]
    assert {ids[item["id"]] for item in items} == expected
    table = shared_client.get(f"/v1/predictions?{query}&format=csv").text
    assert len(table.splitlines()) == 1 + len(expected)
