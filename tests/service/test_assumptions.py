from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from asking import PREDICTION, changed

from service.resolution import TEXT_TOWERS

PUBLISHED = json.loads((Path(__file__).parents[1] / "formats/published.json").read_text())
MULTIMODAL = next(item["config"] for item in PUBLISHED.values() if item["config"]["model_type"] == "llama4")


def on(preset: str, **layout: Any) -> dict[str, Any]:
    return {**changed(PREDICTION, "cluster.preset", preset), "stack": "generic", "layout": layout}


SHARDED = {"dp_shard": 64, "zero_stage": 3}
SAID = [
    (on("tpu-v5p", **SHARDED), "usable memory is nominal: all 95 GiB of the data sheet"),
    (on("trn2", **SHARDED), "usable memory is nominal: all 96 GiB of the data sheet"),
    (on("mi250x", **SHARDED), "cluster.num_chips counts mi250x-gcd: each is a GCD, half of an MI250X"),
    (on("tpu-v7x", dp_shard=128, zero_stage=3), "a chip has 2 devices: degrees multiply to 128 devices"),
    (changed(PREDICTION, "model", "llama-4-scout"), "of llama-4-scout only the text tower counts"),
    (changed(PREDICTION, "model", MULTIMODAL), "of llama4_text only the text tower counts"),
    (changed(PREDICTION, "workload.token_budget", 1e12), "workload.token_budget has no effect"),
    (changed(PREDICTION, "workload.load_balancing", "bias"), "workload.load_balancing has no effect"),
]


@pytest.mark.parametrize(("body", "said"), SAID)
def test_what_a_prediction_takes_for_granted_is_said_when_it_applies(shared_client, body: dict, said: str) -> None:
    def lines(asked: dict[str, Any]) -> str:
        answer = shared_client.post("/v1/predictions", json=asked)
        assert answer.status_code == 201, answer.text
        return "\n".join(answer.json()["assumptions"])

    assert said in lines(body)
    assert said not in lines(PREDICTION)


def test_load_balancing_of_experts_is_not_said_to_be_idle(shared_client) -> None:
    sparse = changed(changed(PREDICTION, "model", "mixtral-8x7b"), "workload.load_balancing", "bias")
    answer = shared_client.post("/v1/predictions", json=sparse)
    assert answer.status_code == 201
    assert "no effect" not in answer.text


def test_the_text_towers_are_those_of_the_shipped_data() -> None:
    entries = json.loads((files("models") / "data/architectures.json").read_text())
    assert {entry["id"] for entry in entries if entry["source"].startswith("text tower")} == TEXT_TOWERS
