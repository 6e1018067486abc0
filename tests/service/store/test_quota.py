"""A tenant stores no more than it may."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from starlette.testclient import TestClient

from service import api_keys
from service.store import memory
from service.tools.retention import drop_old_answers
from tests.service.asking import ON_BOTH, PREDICTION, REPORT, assert_problem, changed
from tests.service.sweeps.conftest import SWEEP

GEMM: dict[str, Any] = {
    "cluster": {"preset": "h100"},
    "gemms": [{"m": 8192, "n": 8192, "k": 8192, "tflops": 600}],
}


def headers_of(client: TestClient, tenant: str) -> dict[str, str]:
    key = api_keys.create(client.app.state.services.store, tenant, ["recommend", "report"])
    return {"Authorization": f"Bearer {key}"}


def test_what_would_be_too_much_is_refused_whole_and_others_go_on(make_client) -> None:
    client = make_client(require_api_keys=True, max_stored_per_tenant=4)
    a, b = headers_of(client, "a"), headers_of(client, "b")

    def ask(headers: dict[str, str], batch: int) -> Any:
        question = changed(PREDICTION, "workload.global_batch", batch)
        return client.post("/v1/predictions", json=question, headers=headers)

    assert ask(a, 64).status_code == 201
    assert client.post("/v1/benchmarks", json=GEMM, headers=a).status_code == 201
    too_many = client.post("/v1/reports", json={"reports": [REPORT] * 3}, headers=a)
    detail = assert_problem(too_many, "storage-full")["detail"]
    assert "may store 4 predictions, recommendations, reports, benchmarks, items of" in detail
    assert "SHARDWRIGHT_MAX_STORED_PER_TENANT" in detail
    assert client.get("/v1/reports", headers=a).json()["items"] == []
    two = client.post("/v1/reports", json={"reports": [REPORT] * 2}, headers=a)
    assert two.json()["accepted"] == 2
    assert_problem(ask(a, 128), "storage-full")
    assert ask(a, 64).status_code == 200  # which is stored already
    assert ask(b, 128).status_code == 201


@ON_BOTH
def test_every_item_of_a_sweep_counts(make_client) -> None:
    """Of eight items each: the sweep and one report are as much as the tenant may store."""
    client = make_client(require_api_keys=True, max_stored_per_tenant=9, sweep_processes=0)
    a, b = headers_of(client, "a"), headers_of(client, "b")

    def sweep(headers: dict[str, str]) -> Any:
        return client.post("/v1/sweeps", json=SWEEP, headers=headers)

    first = sweep(a)
    assert first.status_code == 202
    detail = assert_problem(sweep(a), "storage-full")["detail"]
    assert "DELETE /v1/sweeps/{id}" in detail
    assert len(client.get("/v1/sweeps", headers=a).json()["items"]) == 1
    assert client.post("/v1/reports", json=REPORT, headers=a).status_code == 201
    assert_problem(client.post("/v1/reports", json=REPORT, headers=a), "storage-full")
    assert sweep(b).status_code == 202
    client.delete(first.headers["location"], headers=a)
    assert client.post("/v1/reports", json=REPORT, headers=a).status_code == 201


@ON_BOTH
def test_the_operator_makes_room_for_a_tenant_at_once(make_client, monkeypatch) -> None:
    monkeypatch.setattr(memory, "_AT_HAND_S", 0.0)  # as where half a minute has passed
    client = make_client(require_api_keys=True, max_stored_per_tenant=3)
    a, b = headers_of(client, "a"), headers_of(client, "b")

    def ask(headers: dict[str, str], batch: int, **more: str) -> Any:
        question = changed(PREDICTION, "workload.global_batch", batch)
        return client.post("/v1/predictions", json=question, headers={**headers, **more})

    def ids(headers: dict[str, str]) -> list[str]:
        items = client.get("/v1/predictions", headers=headers).json()["items"]
        return [item["id"] for item in items]

    key = {"Idempotency-Key": "k"}
    first, reported = (ask(a, batch, **more).json()["id"] for batch, more in ((64, key), (128, {})))
    of_b = ask(b, 64).json()["id"]
    report = {"prediction_id": reported, "outcome": "ok", "measured": {"step_time_s": 20.0}}
    assert client.post("/v1/reports", json=report, headers=a).status_code == 201
    assert "--tenant" in assert_problem(ask(a, 256), "storage-full")["detail"]

    dropped = drop_old_answers(client.app.state.services.store, timedelta(), "a")
    assert dropped.predictions == 1
    assert (ids(a), ids(b)) == ([reported], [of_b])

    again = ask(a, 64, **key)
    assert again.status_code == 201
    assert again.json()["id"] != first
    assert ask(a, 64, **key).json()["id"] == again.json()["id"]
    assert_problem(client.get(f"/v1/predictions/{first}", headers=a), "not-found")


def test_without_keys_all_are_one_tenant(make_client) -> None:
    client = make_client(max_stored_per_tenant=1)
    assert client.post("/v1/reports", json=REPORT).status_code == 201
    assert_problem(client.post("/v1/reports", json=REPORT), "storage-full")
