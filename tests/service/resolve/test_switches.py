"""The switches that an answer rests on."""

from __future__ import annotations

import pytest

from tests.service.asking import LAYOUT, PREDICTION, QUESTION

EXPERTS = {
    "model": "deepseek-v3",
    "cluster": {"preset": "h100", "num_chips": 256},
    "workload": {"seq_len": 4096, "global_batch": 1024},
    "stack": "megatron",
    "layout": {
        "pp": 8,
        "dp_shard": 32,
        "ep": 32,
        "zero_stage": 1,
        "balanced": True,
        "virtual_stages": 2,
        "schedule": "interleaved",
    },
}


def test_a_prediction_names_its_switches(shared_client) -> None:
    answer = shared_client.post("/v1/predictions", json=EXPERTS).json()
    by_field = {one["field"]: one for one in answer["switches"]}
    dispatcher = by_field["stack.dispatcher"]
    otherwise = dispatcher.pop("otherwise")
    assert dispatcher == {
        "field": "stack.dispatcher",
        "name": "--moe-token-dispatcher-type",
        "value": "flex --moe-flex-dispatcher-backend deepep",
        "is_default": False,
        "default": "allgather",
        "since": "NeMo 25.07",
    }
    assert otherwise["value"] == "allgather"
    assert otherwise["how"] == 'stack: {"name": "megatron", "dispatcher": "allgather"}'
    said = {**EXPERTS, "stack": {"name": "megatron", "dispatcher": "allgather"}}
    other = shared_client.post("/v1/predictions", json=said).json()["layouts"][0]
    difference = other["step_time_s"] - answer["layouts"][0]["step_time_s"]
    assert otherwise["step_time_s"] == pytest.approx(difference)


def test_flags_that_are_off_are_not_set(shared_client) -> None:
    answer = shared_client.post("/v1/predictions", json=EXPERTS).json()
    by_field = {one["field"]: one for one in answer["switches"]}
    overlap = by_field["stack.overlap_expert"]
    assert (overlap["value"], overlap["default"]) == ("set", "not set")


def test_compilation_is_one_switch(shared_client) -> None:
    answer = shared_client.post("/v1/predictions", json=PREDICTION).json()
    launch = next(one for one in answer["switches"] if one["name"] == "compile.enable")
    assert launch["value"].startswith("true")
    assert launch["otherwise"]["how"] == 'stack: {"name": "torchtitan", "launch": "eager"}'
    assert launch["otherwise"]["step_time_s"] > 0


@pytest.mark.parametrize(
    ("route", "more"),
    [
        ("recommendations", {}),
        ("comparisons", {"first": {"layout": LAYOUT}}),
        ("frontiers", {"grid": {"num_chips": [32, 64]}}),
    ],
)
def test_every_answer_about_layouts_names_them(shared_client, route: str, more: dict) -> None:
    answer = shared_client.post(f"/v1/{route}", json={**QUESTION, **more}).json()
    assert any(one["name"] == "compile.enable" for one in answer["switches"]), answer


def test_a_version_brings_back_what_recipes_did_then(shared_client) -> None:
    def predicted(stack: dict) -> dict:
        answer = shared_client.post("/v1/predictions", json={**PREDICTION, "stack": stack})
        assert answer.is_success, answer.text
        return answer.json()

    old = predicted({"name": "torchtitan", "version": "0.2.1"})
    new = predicted({"name": "torchtitan", "version": "0.3.0"})
    assert old["layouts"][0]["needed_gib"] > new["layouts"][0]["needed_gib"]
    assert old["request"]["stack"] == {"name": "torchtitan", "version": "0.2.1"}
    how = next(one["otherwise"]["how"] for one in old["switches"] if "chunks" in one["field"])
    assert how == 'stack: {"name": "torchtitan", "version": "0.2.1", "loss_chunks": 8}'
    assert new["layouts"] == predicted({"name": "torchtitan"})["layouts"]


@pytest.mark.parametrize(
    ("stack", "said"),
    [
        ({"name": "torchtitan", "version": "7.1"}, "0.2.1, 0.2.2, 0.3.0"),
        ({"name": "generic", "version": "1.0"}, "there is none"),
        ({"name": "torchtitan", "version": "0.2.1", "age_years": 2.0}, "leave out age_years"),
    ],
)
def test_a_version_must_be_known_and_as_old_as_is_said(shared_client, stack, said) -> None:
    answer = shared_client.post("/v1/predictions", json={**PREDICTION, "stack": stack})
    assert answer.status_code == 422
    assert said in answer.text
    assert "stack.version" in answer.text


def test_context_parallelism_of_accelerate_is_predicted(shared_client) -> None:
    body = {**QUESTION, "stack": "fsdp", "layout": {"cp": 8, "dp_shard": 8, "recompute": "full"}}
    answer = shared_client.post("/v1/predictions", json=body)
    assert answer.is_success, answer.text


def test_a_refusal_of_sequence_parallelism_says_how_to_have_it(shared_client) -> None:
    layout = {"dp_shard": 32, "tp": 2, "sequence_parallel": True, "zero_stage": 1}
    body = {**QUESTION, "stack": "megatron-deepspeed", "layout": layout}
    assert "stack.sequence_parallel = [true, false]" in (
        shared_client.post("/v1/predictions", json=body).text
    )
