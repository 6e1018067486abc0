"""Launch configurations of stored answers over HTTP."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml

from tests.service.asking import QUESTION, assert_problem, changed

DEEPSPEED = {**QUESTION, "stack": "deepspeed"}
SHARDED = {"dp_shard": 64, "zero_stage": 3, "recompute": "full"}
ACCELERATE = {**QUESTION, "stack": "fsdp"}
TEXTS = ["text/x-shellscript", "application/yaml", "text/x-python"]


def predicted(client: Any, question: dict[str, Any], *layouts: dict[str, Any]) -> Any:
    answer = client.post("/v1/predictions", json={**question, "layouts": [*layouts]}).json()
    assert "id" in answer, answer
    return answer


def launched(client: Any, id_: str, format_: str = "deepspeed", **more: Any) -> Any:
    return client.get(f"/v1/predictions/{id_}/launch/{format_}", **more)


def assert_wrong(response: Any, name: str, field: str) -> Any:
    problem = assert_problem(response, name)
    assert [error["field"] for error in problem["errors"]] == [field]
    return problem


def test_a_predicted_layout_is_launched(client) -> None:
    made = predicted(client, DEEPSPEED, SHARDED)
    found = launched(client, made["id"]).json()
    assert found == made["launch"]
    assert found["settings"]["zero_optimization"]["stage"] == 3
    assert found["settings"]["train_batch_size"] == 128
    assert found["environment"] == {"SHARDWRIGHT_PREDICTION_ID": made["id"]}
    assert found["slurm"]["nodes"] == 8


def test_one_of_several_is_named_by_rank(client) -> None:
    plain = {"dp_replicate": 64, "zero_stage": 0}
    made = predicted(client, DEEPSPEED, SHARDED, plain)
    assert launched(client, made["id"], params={"rank": 1}).json() == made["launch"]
    second = launched(client, made["id"], params={"rank": 2}).json()
    assert second["settings"]["zero_optimization"]["stage"] == 0
    assert_wrong(launched(client, made["id"]), "invalid", "rank")
    assert_wrong(launched(client, made["id"], params={"rank": 3}), "invalid", "rank")
    assert_problem(launched(client, made["id"], params={"speed": 1}), "invalid")


def test_a_recommended_layout_is_launched_unless_another_is_chosen(client) -> None:
    asked = {**ACCELERATE, "constraints": {"recompute": ["none", "full"], "zero_stage": 3}}
    made = client.post("/v1/recommendations", json=asked).json()
    address = f"/v1/recommendations/{made['id']}/launch/accelerate"
    found = client.get(address).json()
    assert found == made["launch"]
    assert found["environment"] == {"SHARDWRIGHT_RECOMMENDATION_ID": made["id"]}
    assert client.get(f"{address}?choice=recommended").json() == found
    fastest = client.get(f"{address}?choice=fastest")
    assert fastest.json() == client.get(f"{address}?rank=1").json()
    assert_wrong(client.get(f"{address}?choice=fastest&rank=1"), "invalid", "choice")


def test_the_form_is_that_of_the_accept_header(client) -> None:
    made = predicted(client, ACCELERATE, SHARDED)
    answers = {
        accept: launched(client, made["id"], "accelerate", headers={"Accept": accept})
        for accept in ("*/*", *TEXTS)
    }
    settings = answers["*/*"].json()["settings"]
    assert yaml.safe_load(answers["application/yaml"].text) == settings
    for accept in TEXTS:
        assert answers[accept].headers["content-type"] == f"{accept}; charset=utf-8"
        assert "Accept" in answers[accept].headers["vary"]
        assert made["id"] in answers[accept].text
    script = answers["text/x-shellscript"].text
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert len({answer.headers["etag"] for answer in answers.values()}) == 4


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/yaml;q=0.5, text/x-python;q=0.8", "text/x-python"),
        ("text/*, application/json;q=0.9", "text/x-shellscript"),
        ("text/x-shellscript;q=0, */*", "application/json"),
        ("Application/YAML", "application/yaml"),
        ("", "application/json"),
        ("application/json;q=0.2, application/*;q=0.5", "application/yaml"),
    ],
)
def test_preferences_are_weighed(client, accept: str, expected: str) -> None:
    made = predicted(client, DEEPSPEED, SHARDED)
    found = launched(client, made["id"], headers={"Accept": accept})
    assert found.headers["content-type"].partition(";")[0] == expected


@pytest.mark.parametrize("accept", ["image/png", "application/json;q=0", "text/html;q=x"])
def test_a_form_that_there_is_not_is_refused(client, accept: str) -> None:
    made = predicted(client, DEEPSPEED, SHARDED)
    problem = assert_problem(
        launched(client, made["id"], headers={"Accept": accept}), "not-acceptable"
    )
    assert all(media_type in problem["detail"] for media_type in ("application/json", *TEXTS))


def test_what_the_client_has_is_not_sent_again(client) -> None:
    made = predicted(client, DEEPSPEED, SHARDED)
    tag = launched(client, made["id"]).headers["etag"]
    again = launched(client, made["id"], headers={"If-None-Match": tag})
    assert (again.status_code, again.headers["etag"]) == (304, tag)
    other = {"If-None-Match": tag, "Accept": "application/yaml"}
    assert launched(client, made["id"], headers=other).status_code == 200


def test_what_a_framework_cannot_say_is_named_and_the_answer_stands(client) -> None:
    layout = {"dp_shard": 64, "zero_stage": 3, "recompute": "selective"}
    made = predicted(client, ACCELERATE, layout)
    assert made["launch"]["format"] == "accelerate"
    assert "none or full" in made["launch"]["error"]
    found = launched(client, made["id"], "accelerate")
    problem = assert_wrong(found, "invalid", "layout.recompute")
    (error,) = problem["errors"]
    assert error["value"] == "selective"
    assert "cannot be said in accelerate" in error["rule"]


def test_formats_that_there_are_not_are_named(client) -> None:
    made = predicted(client, DEEPSPEED, SHARDED)
    problem = assert_wrong(launched(client, made["id"], "slurm"), "unknown-name", "format")
    assert "accelerate" in problem["detail"]
    problem = assert_wrong(launched(client, made["id"], "accelerate"), "invalid", "format")
    assert "ask for deepspeed" in problem["detail"]
    assert_problem(launched(client, "none"), "not-found")


def test_stacks_without_a_format_have_no_launch(client) -> None:
    made = predicted(client, {**QUESTION, "stack": "generic"}, {"dp_shard": 64})
    assert made["launch"] is None
    assert_wrong(launched(client, made["id"]), "invalid", "format")


def test_a_document_is_what_the_framework_reads(client) -> None:
    made = predicted(client, changed(DEEPSPEED, "cluster.num_chips", 16), {"dp_shard": 16})
    reading = {
        **{name: DEEPSPEED[name] for name in ("model",)},
        "cluster": {"preset": "h100"},
        "workload": {"seq_len": 8192},
        "launch": {"format": "deepspeed", "arguments": json.dumps(made["launch"]["settings"])},
    }
    again = client.post("/v1/predictions", json=reading).json()
    assert again["layouts"][0]["layout"] == made["layouts"][0]["layout"]
    assert again["layouts"][0]["step_time_s"] == pytest.approx(made["layouts"][0]["step_time_s"])
