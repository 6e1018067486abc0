"""Adapters, packing and 16-bit parameters over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.asking import PREDICTION, assert_problem, changed


def predicted(client: Any, **workload: object) -> dict[str, Any]:
    question = changed(PREDICTION, "workload", {**PREDICTION["workload"], **workload})
    answer = client.post("/v1/predictions", json=question)
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_adapters_are_on_the_matrices_that_are_named(shared_client: Any) -> None:
    few, all_ = (
        predicted(shared_client, lora={"rank": 16, **targets})
        for targets in ({"targets": ["attention"]}, {})
    )
    assert few["request"]["workload"]["lora"]["targets"] == ["attention"]
    states = "optimizer_gib"
    assert few["layouts"][0]["memory_gib"][states] < all_["layouts"][0]["memory_gib"][states]
    assert any(
        line.startswith("workload.lora.targets is attention, mlp") for line in all_["assumptions"]
    )


def test_adapters_of_a_higher_rank_take_longer(shared_client: Any) -> None:
    low, high = (
        predicted(shared_client, lora={"rank": rank})["layouts"][0]["time"]["compute_s"]
        for rank in (16, 2048)
    )
    assert high > 1.1 * low


@pytest.mark.parametrize(
    ("workload", "pointer"),
    [
        ({"lora": {"rank": 0}}, "/workload/lora/rank"),
        ({"lora": {"targets": []}}, "/workload/lora/targets"),
        ({"lora": {"targets": ["embedding"]}}, "/workload/lora/targets/0"),
        ({"packing": {"mean_length": 9000}}, "/workload/packing/mean_length"),
        ({"packing": {"mean_length": 1200, "spread": 10}}, "/workload/packing/spread"),
        ({"precision": "fp32", "master_weights": False}, "/workload/master_weights"),
    ],
)
def test_what_breaks_a_rule_is_pointed_at(
    shared_client: Any, workload: dict[str, object], pointer: str
) -> None:
    question = changed(PREDICTION, "workload", {**PREDICTION["workload"], **workload})
    assert_problem(shared_client.post("/v1/predictions", json=question), "invalid", pointer)


@pytest.mark.parametrize("stack", ["megatron", "megatron-bridge"])
def test_a_model_without_attention_is_answered(shared_client: Any, stack: str) -> None:
    mamba = {"kind": "mamba2", "num_heads": 64, "head_dim": 64, "state_size": 128, "num_groups": 8}
    model = {
        "hidden_size": 2048, "vocab_size": 32000, "layers": [{"count": 8, "recurrence": mamba}],
    }  # fmt: skip
    question = changed(changed(PREDICTION, "model", model), "stack", stack)
    layout = {"dp_shard": 64, "zero_stage": 1}
    answer = shared_client.post("/v1/predictions", json=changed(question, "layout", layout))
    assert answer.is_success, answer.text


@pytest.mark.parametrize("value", [["llama"], [], {}])
def test_a_model_type_that_is_no_word_is_refused(shared_client: Any, value: object) -> None:
    question = changed(PREDICTION, "model", {"model_type": value, "hidden_size": 4096})
    assert_problem(
        shared_client.post("/v1/predictions", json=question), "invalid", "/model/model_type"
    )


def test_a_stack_of_trl_knows_whether_its_release_makes_all_logits(shared_client) -> None:
    body = {
        "model": "qwen3-8b",
        "cluster": {"preset": "h100", "num_chips": 8},
        "workload": {"seq_len": 131072, "global_batch": 1},
        "layout": {"cp": 8, "recompute": "full"},
    }
    logits = []
    for stack in ("trl", {"name": "trl", "version": "1.6.0"}, "fsdp"):
        answer = shared_client.post("/v1/predictions", json={**body, "stack": stack})
        assert answer.status_code == 201, answer.text
        logits.append(answer.json()["layouts"][0]["memory_gib"]["logits_gib"])
    assert logits[0] < 1 < 30 < logits[1] == logits[2]


@pytest.mark.parametrize("stack", ["transformers", "axolotl", "llama-factory", "ms-swift", "trl"])
def test_a_tool_around_the_trainer_is_the_stack_that_its_file_tells(
    shared_client, stack: str
) -> None:
    document = {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1}
    body = {
        "model": "llama-3.1-8b",
        "cluster": {"preset": "h100", "num_chips": 8},
        "workload": {"seq_len": 4096, "global_batch": 8},
        "launch": {"format": "deepspeed", "arguments": document},
        "stack": stack,
    }
    answer = shared_client.post("/v1/predictions", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.json()["launch_read"]["framework"] == "DeepSpeed"
