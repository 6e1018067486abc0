from __future__ import annotations

import inspect
import pickle

import pytest

from service import errors, field_violations
from service.web import problem_types
from tests.paths import ROOT
from tests.service.asking import PREDICTION, assert_problem, changed


@pytest.mark.parametrize("name", problem_types.TYPES)
def test_every_problem_type_says_what_it_means(shared_client, name: str) -> None:
    answer = shared_client.get(f"/problems/{name}")
    assert answer.status_code == 200
    assert answer.json()["status"] == problem_types.TYPES[name].status
    assert answer.json()["meaning"]


def test_every_error_of_the_service_is_in_the_tree_and_has_a_problem_type() -> None:
    raised = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.ServiceError)
    ]
    for kind in raised:
        assert kind.__name__ in (errors.__doc__ or "")
        if kind is not errors.ServiceError:
            assert problem_types.problem_name(kind.__new__(kind)) in problem_types.TYPES


@pytest.mark.parametrize(
    "raised",
    [
        errors.Unavailable("is busy"),
        errors.NotFound("profile", "fleet"),
        errors.QueueFull(2, 16),
        errors.Stopping(),
        errors.BodyTooSlow(3.0),
    ],
    ids=repr,
)
def test_an_error_of_another_process_is_the_same_here(raised: errors.ServiceError) -> None:
    received = pickle.loads(pickle.dumps(raised))
    assert type(received) is type(raised)
    assert (str(received), vars(received)) == (str(raised), vars(raised))


def test_addresses_without_a_resource_are_not_found(client) -> None:
    assert_problem(client.get("/nowhere"), "not-found")
    assert_problem(client.get("/problems/nonsense"), "not-found")
    assert_problem(client.get("/v1/predictions/nonsense"), "not-found")
    assert_problem(client.get("/v1/predictions/%00"), "not-found")
    assert_problem(client.get("/v1/recommendations/" + "x" * 5000), "not-found")
    assert_problem(client.get("/v1/reports/%ff"), "not-found")
    assert_problem(client.get("/v1/profiles/nonsense"), "not-found")
    assert_problem(client.get("/v1/profiles/default/versions/7"), "not-found")
    assert_problem(client.get("/v1/profiles/default/versions/99999999999999999999"), "not-found")
    assert_problem(client.get("/v1/catalog/planets"), "not-found")
    assert_problem(client.get("/v1/catalog/chips/a%00b"), "not-found")
    assert_problem(client.post("/v1/profiles/nonsense/calibrations"), "not-found")


def test_a_wrong_method_names_the_right_ones(client) -> None:
    answer = client.delete("/v1/comparisons")
    assert_problem(answer, "method-not-allowed")
    assert answer.headers["allow"] == "POST"
    assert client.delete("/livez").headers["allow"] == "GET, HEAD"
    for path, methods in (
        ("reports/summary", "GET, HEAD"),
        ("reports/logs", "POST"),
        ("reports/summary-of-mine", "DELETE, GET, HEAD"),
        ("catalog/chips", "GET, HEAD, POST"),
        ("catalog/stacks", "GET, HEAD"),
    ):
        assert client.options(f"/v1/{path}").headers["allow"] == methods
    answer = client.delete("/v1/reports")
    assert answer.headers["allow"] == "GET, HEAD, POST"
    assert "GET, HEAD, POST" in assert_problem(answer, "method-not-allowed")["detail"]


@pytest.mark.parametrize(
    "path", ["/", "/livez", "/docs", "/v1/reports", "/v1/catalog/chips/h100", "/nowhere"]
)
def test_head_is_get_without_its_body(shared_client, path: str) -> None:
    head, get = shared_client.head(path), shared_client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


def test_the_index_leads_everywhere(client) -> None:
    found = client.get("/").json()
    assert found["name"] == "Shardwright"
    assert f"## {found['version']}" in (ROOT / "CHANGELOG.md").read_text()
    for path in [found["docs"], found["openapi"], *found["collections"].values()]:
        assert client.get(path).status_code == 200, path


def test_several_errors_come_together(shared_client) -> None:
    body = changed(changed(PREDICTION, "workload.seq_len", 0), "cluster.num_chips", "8")
    found = assert_problem(
        shared_client.post("/v1/predictions", json=body), "invalid", "/workload/seq_len"
    )
    assert {error["pointer"] for error in found["errors"]} == {
        "/workload/seq_len",
        "/cluster/num_chips",
    }


def test_long_values_are_echoed_shortened(shared_client) -> None:
    body = changed(PREDICTION, "model", "x" * 10_000)
    found = assert_problem(shared_client.post("/v1/predictions", json=body), "invalid", "/model")
    assert len(found["errors"][0]["value"]) == field_violations.MAX_VALUE_CHARACTERS


def test_a_pointer_escapes_what_rfc_6901_escapes(shared_client) -> None:
    body = changed(PREDICTION, "workload", {**PREDICTION["workload"], "a/b~c": 1})
    assert_problem(shared_client.post("/v1/predictions", json=body), "invalid", "/workload/a~1b~0c")


def test_a_defect_is_told_without_internals(client, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret of the house")

    client.app.state.services.predictions.get = broken
    answer = client.get("/v1/predictions/x")
    assert answer.status_code == 500
    assert_problem(answer, "internal")
    assert "secret" not in answer.text
    assert "secret of the house" in caplog.text
