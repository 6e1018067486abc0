"""A tenant stores no more than it may."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

from service import api_keys
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


def test_without_keys_all_are_one_tenant(make_client) -> None:
    client = make_client(max_stored_per_tenant=1)
    assert client.post("/v1/reports", json=REPORT).status_code == 201
    assert_problem(client.post("/v1/reports", json=REPORT), "storage-full")
