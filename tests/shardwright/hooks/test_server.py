"""The policy server, without the schedulers that call it."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Any

import pytest
import yaml

from shardwright.client.settings import ClientSettings
from shardwright.hooks.policy import HookPolicy
from shardwright.hooks.server import policy_server
from tests.shardwright.hooks.jobs import ILLEGAL, MEGATRON
from tests.shardwright.hooks.kubernetes import objects

with warnings.catch_warnings():  # starlette would rather have httpx2 than httpx
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

NOBODY = HookPolicy(
    service=ClientSettings(url="http://127.0.0.1:9"),
    enforce=frozenset({"illegal", "will_not_fit"}),
    patch=True,
)


def _sky_body(script: str) -> str:
    """Returns what SkyPilot sends: a JSON string that is JSON."""
    command = json.dumps(script.partition("srun ")[2])
    task = f"resources:\n  accelerators: B300:8\nnum_nodes: 1\nrun: {command}\n"
    return json.dumps({"task": task, "skypilot_config": "{}\n", "request_name": "cluster.launch"})


def _dstack_body(script: str) -> dict[str, Any]:
    configuration = {
        "type": "task",
        "commands": [script.partition("srun ")[2]],
        "env": {"A": "1"},
        "resources": {"gpu": {"name": ["B300"], "count": {"min": 8, "max": 8}}},
    }
    return {"user": "ann", "project": "main", "spec": {"configuration": configuration}}


def test_kubernetes_gets_its_review_back_with_a_response(
    asked: list[Any], policy: HookPolicy
) -> None:
    client = TestClient(policy_server(policy))
    response = client.post("/kubernetes", json=objects.review(objects.job()))
    assert response.json()["response"]["warnings"]
    assert len(asked) == 1
    assert client.post("/kubernetes", json={}).status_code == 400
    assert client.get("/livez").text == "ok"


@pytest.mark.usefixtures("asked")
def test_a_task_of_skypilot_goes_back_as_it_came(policy: HookPolicy) -> None:
    client = TestClient(policy_server(policy))
    body = _sky_body(MEGATRON)
    answer = json.loads(client.post("/skypilot", json=body).json())
    assert answer["task"] == json.loads(body)["task"]
    assert client.post("/skypilot", json=_sky_body(ILLEGAL)).status_code == 200


@pytest.mark.usefixtures("asked")
def test_a_task_of_skypilot_prints_what_was_found_where_it_may_be_changed(
    policy: HookPolicy,
) -> None:
    client = TestClient(policy_server(replace(policy, patch=True)))
    task = json.loads(client.post("/skypilot", json=_sky_body(MEGATRON)).json())["task"]
    document = yaml.safe_load(task)
    assert document["run"].startswith('echo "$SHARDWRIGHT_CHECK" >&2\n')
    assert document["envs"]["SHARDWRIGHT_CHECK"].startswith("shardwright: go, with warnings: ")


@pytest.mark.usefixtures("asked")
def test_illegal_jobs_are_refused_with_the_reason_where_that_is_enforced(
    policy: HookPolicy,
) -> None:
    client = TestClient(policy_server(replace(policy, enforce=frozenset({"illegal"}))))
    refused = client.post("/skypilot", json=_sky_body(ILLEGAL))
    assert refused.status_code == 400
    assert "--tensor-model-parallel-size 3" in refused.text
    answer = client.post("/dstack/apply_policies/on_run_apply", json=_dstack_body(ILLEGAL)).json()
    assert "--tensor-model-parallel-size 3" in answer["error"]


@pytest.mark.usefixtures("asked")
def test_a_run_of_dstack_goes_back_as_it_came_or_prints_what_was_found(
    policy: HookPolicy,
) -> None:
    body = _dstack_body(MEGATRON)
    path = "/dstack/apply_policies/on_run_apply"
    answer = TestClient(policy_server(policy)).post(path, json=body).json()
    assert answer == {"spec": body["spec"], "error": None}
    client = TestClient(policy_server(replace(policy, patch=True)))
    changed = client.post(path, json=body).json()["spec"]["configuration"]
    assert changed["commands"][1:] == body["spec"]["configuration"]["commands"]
    assert changed["env"]["SHARDWRIGHT_CHECK"].startswith("shardwright: go, with warnings: ")
    assert changed["env"]["A"] == "1"


@pytest.mark.parametrize("kind", ["fleet", "volume", "gateway"])
def test_other_things_of_dstack_pass(asked: list[Any], policy: HookPolicy, kind: str) -> None:
    body = {"user": "ann", "project": "main", "spec": {"configuration": {"type": kind}}}
    path = f"/dstack/apply_policies/on_{kind}_apply"
    answer = TestClient(policy_server(policy)).post(path, json=body).json()
    assert answer == {"spec": body["spec"], "error": None}
    assert asked == []


def test_everything_goes_on_unchanged_where_no_service_is() -> None:
    client = TestClient(policy_server(NOBODY))
    body = _sky_body(ILLEGAL)
    answer = json.loads(client.post("/skypilot", json=body).json())
    assert answer["task"] == json.loads(body)["task"]
    body_of_run = _dstack_body(ILLEGAL)
    answer = client.post("/dstack/apply_policies/on_run_apply", json=body_of_run).json()
    assert answer == {"spec": body_of_run["spec"], "error": None}


@pytest.mark.parametrize("body", ['{"task": 1}', "[]", "{}"])
def test_what_cannot_be_read_goes_back_as_it_came(body: str) -> None:
    assert TestClient(policy_server(NOBODY)).post("/skypilot", json=body).json() == body
