from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from shardwright.client.settings import ClientSettings
from shardwright.hooks.kubernetes.review import reviewed
from shardwright.hooks.policy import HookPolicy
from tests.shardwright.hooks.kubernetes import objects

KINDS = pytest.mark.parametrize("kind", objects.ALL)


@pytest.fixture
def site(policy: HookPolicy) -> HookPolicy:
    """A site whose queue has B300; the TrainJob names no chips itself."""
    return replace(policy, chips={"large": "b300"})


def _patch(response: dict[str, Any]) -> list[dict[str, Any]]:
    assert response["patchType"] == "JSONPatch"
    operations: list[dict[str, Any]] = json.loads(base64.b64decode(response["patch"]))
    return operations


@KINDS
@pytest.mark.usefixtures("asked")
def test_a_slow_job_is_allowed_with_warnings(site: HookPolicy, kind: str) -> None:
    review = objects.review(objects.ALL[kind]())
    answer = reviewed(review, site)
    response = answer["response"]
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert response["uid"] == review["request"]["uid"]
    assert response["allowed"]
    assert "patch" not in response
    assert response["warnings"][0].startswith("shardwright: go, with warnings: ")
    assert "change first: --tensor-model-parallel-size 4" in response["warnings"][1]
    assert max(map(len, response["warnings"])) <= 256


@KINDS
def test_a_job_is_checked_with_all_its_nodes(site: HookPolicy, asked: list[Any], kind: str) -> None:
    """Sixteen chips: two pods of eight, or two nodes of eight."""
    reviewed(objects.review(objects.ALL[kind]()), site)
    _, answer = asked[0]
    assert answer["request"]["cluster"]["num_chips"] == 16


@KINDS
@pytest.mark.usefixtures("asked")
def test_an_illegal_job_is_refused_only_where_that_is_enforced(site: HookPolicy, kind: str) -> None:
    review = objects.review(objects.ALL[kind](3))
    assert reviewed(review, site)["response"]["allowed"]
    response = reviewed(review, replace(site, enforce=frozenset({"illegal"})))["response"]
    assert not response["allowed"]
    assert response["status"]["code"] == 403
    assert "--tensor-model-parallel-size 3" in response["status"]["message"]


@KINDS
@pytest.mark.usefixtures("asked")
def test_a_patch_adds_an_annotation_and_variables_and_changes_nothing(
    site: HookPolicy, kind: str
) -> None:
    job = objects.ALL[kind]()
    response = reviewed(objects.review(job), replace(site, patch=True))["response"]
    after = objects.patched(job, _patch(response))
    verdict, _, run_id = after["metadata"]["annotations"]["shardwright/check"].partition(":")
    assert verdict == "go_with_warnings"
    assert json.dumps({"name": "SHARDWRIGHT_ID", "value": run_id}) in json.dumps(after)
    assert '{"name": "SHARDWRIGHT_URL", "value": "http://testserver"}' in json.dumps(after)
    assert _without_additions(after) == _without_additions(job)


def _without_additions(part: Any) -> Any:
    """An object without what a patch may add."""
    if isinstance(part, list):
        kept = [_without_additions(item) for item in part]
        return [item for item in kept if not str(item).startswith("{'name': 'SHARDWRIGHT_")] or None
    if isinstance(part, dict):
        kept_items = {
            name: _without_additions(value)
            for name, value in part.items()
            if name != "shardwright/check"
        }
        return {name: value for name, value in kept_items.items() if value not in (None, {})}
    return part


def test_the_workload_of_kueue_and_other_kinds_pass_unseen(
    site: HookPolicy, asked: list[Any]
) -> None:
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "job-llama"},
        "spec": {"podSets": [{"name": "main", "template": objects.job()["spec"]["template"]}]},
    }
    site = replace(site, patch=True, enforce=frozenset({"illegal"}))
    response = reviewed(objects.review(workload), site)["response"]
    assert response == {"uid": response["uid"], "allowed": True}
    response = reviewed(objects.review(objects.job(), "UPDATE"), site)["response"]
    assert response == {"uid": response["uid"], "allowed": True}
    assert asked == []


@KINDS
def test_a_job_is_allowed_where_no_service_is(kind: str) -> None:
    policy = HookPolicy(
        service=ClientSettings(url="http://127.0.0.1:9"),
        enforce=frozenset({"illegal"}),
        patch=True,
    )
    response = reviewed(objects.review(objects.ALL[kind](3)), policy)["response"]
    assert response["allowed"]
    assert "patch" not in response
    assert "goes on unchanged" in response["warnings"][0]
