"""A tenant stores no more than it may."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, func, select
from starlette.testclient import TestClient

from service import api_keys
from service.store import database, memory
from service.store.quota import SWEEP_ITEM_BYTES
from service.store.tables import Counted, Table, TenantStorageRow
from service.tools.retention import drop_old_answers
from tests.service.asking import (
    ON_BOTH,
    ON_POSTGRESQL_FIRST,
    PREDICTION,
    REPORT,
    assert_problem,
    changed,
)
from tests.service.sweeps.conftest import SWEEP

GEMM: dict[str, Any] = {
    "cluster": {"preset": "h100"},
    "gemms": [{"m": 8192, "n": 8192, "k": 8192, "tflops": 600}],
}


COUNTED_ROWS = [
    mapper.class_ for mapper in Table.registry.mappers if issubclass(mapper.class_, Counted)
]
SPARE = 100
"""Bytes that no row is as small as."""


def headers_of(client: TestClient, tenant: str) -> dict[str, str]:
    key = api_keys.create(client.app.state.services.store, tenant, ["recommend", "report"])
    return {"Authorization": f"Bearer {key}"}


def used(client: TestClient, tenant: str | None) -> int:
    """How many bytes are counted for a tenant, by its count and by its rows."""
    store = client.app.state.services.store
    name = tenant or ""
    with store.reading() as rows:
        counted = rows._session.scalar(
            select(TenantStorageRow.bytes).where(TenantStorageRow.tenant == name)
        )
        of_rows = sum(
            rows._session.scalar(
                select(func.coalesce(func.sum(row.stored_bytes), 0)).where(
                    row.tenant.is_not_distinct_from(tenant)
                )
            )
            for row in COUNTED_ROWS
        )
    assert (counted or 0) == of_rows
    return int(of_rows)


@ON_BOTH
def test_what_would_be_too_much_is_refused_whole_and_others_go_on(make_client) -> None:
    client = make_client(require_api_keys=True, max_stored_bytes_per_tenant=40_000)
    a, b = headers_of(client, "a"), headers_of(client, "b")

    def ask(headers: dict[str, str], batch: int) -> Any:
        question = changed(PREDICTION, "workload.global_batch", batch)
        return client.post("/v1/predictions", json=question, headers=headers)

    assert ask(a, 64).status_code == 201
    assert client.post("/v1/benchmarks", json=GEMM, headers=a).status_code == 201
    before = used(client, "a")
    many = {"reports": [{**REPORT, "source": str(i)} for i in range(20)]}
    detail = assert_problem(client.post("/v1/reports", json=many, headers=a), "storage-full")
    assert "may store 40,000 bytes" in detail["detail"]
    assert f"{before:,} are used" in detail["detail"]
    assert "SHARDWRIGHT_MAX_STORED_BYTES_PER_TENANT" in detail["detail"]
    assert client.get("/v1/reports", headers=a).json()["items"] == []
    assert used(client, "a") == before
    assert client.post("/v1/reports", json=REPORT, headers=a).status_code == 201
    assert before < used(client, "a") <= 40_000
    assert client.post("/v1/reports", json=many, headers=a).status_code == 409
    assert ask(a, 64).status_code == 200  # which is stored already
    assert ask(b, 128).status_code == 201


@ON_POSTGRESQL_FIRST
def test_a_log_counts_with_all_of_its_bytes_until_it_is_withdrawn(make_client) -> None:
    client = make_client(require_api_keys=True, max_stored_bytes_per_tenant=500_000)
    headers = headers_of(client, "a")

    def report(size: int) -> Any:
        body = json.dumps(REPORT)
        padded = body + " " * (size - len(body))  # what is received is stored as it is
        return client.post(
            "/v1/reports",
            content=padded,
            headers={**headers, "Content-Type": "application/json"},
        )

    first = report(200_000)
    assert first.status_code == 201, first.text
    assert 200_000 < used(client, "a") < 215_000
    assert_problem(report(300_000), "storage-full")
    withdrawn = client.delete(f"/v1/reports/{first.json()['id']}", headers=headers)
    assert withdrawn.status_code == 200, withdrawn.text
    assert used(client, "a") < 15_000
    kept = client.get(f"/v1/reports/{first.json()['id']}", headers=headers).json()
    assert kept["submission"] == ""
    assert kept["measured"] == first.json()["measured"]
    assert report(300_000).status_code == 201


@ON_BOTH
def test_every_item_of_a_sweep_counts_until_the_sweep_is_removed(make_client) -> None:
    """Of eight items each: two sweeps are more than the tenant may store."""
    client = make_client(
        require_api_keys=True, max_stored_bytes_per_tenant=30_000, sweep_processes=0
    )
    a, b = headers_of(client, "a"), headers_of(client, "b")

    def sweep(headers: dict[str, str]) -> Any:
        return client.post("/v1/sweeps", json=SWEEP, headers=headers)

    first = sweep(a)
    assert first.status_code == 202
    assert used(client, "a") > 8 * SWEEP_ITEM_BYTES
    detail = assert_problem(sweep(a), "storage-full")["detail"]
    assert "DELETE /v1/sweeps/{id}" in detail
    assert len(client.get("/v1/sweeps", headers=a).json()["items"]) == 1
    assert sweep(b).status_code == 202
    client.delete(first.headers["location"], headers=a)
    assert used(client, "a") == 0
    assert sweep(a).status_code == 202


@ON_POSTGRESQL_FIRST
def test_of_many_at_once_no_more_are_stored_than_there_is_room_for(make_client) -> None:
    client = make_client(require_api_keys=True, max_stored_bytes_per_tenant=60_000)
    headers = headers_of(client, "a")

    def post(number: int) -> int:
        report = {**REPORT, "source": str(number)}
        return client.post("/v1/reports", json=report, headers=headers).status_code

    with ThreadPoolExecutor(6) as pool:
        answers = [*pool.map(post, range(24))]
    assert {*answers} == {201, 409}
    assert 50_000 < used(client, "a") <= 60_000


def test_counting_reads_no_row_of_what_is_stored(make_client) -> None:
    client = make_client()
    statements: list[str] = []
    engine = client.app.state.services.store._engine
    event.listen(engine, "before_cursor_execute", lambda *a: statements.append(a[2].lower()))
    assert client.post("/v1/reports", json=REPORT).status_code == 201
    counts = [one for one in statements if "count(" in one or "sum(" in one]
    assert not [one for one in counts if "evidence" not in one], "evidence is no tenant's"
    assert sum("tenant_storage" in one for one in statements) == 1


@ON_POSTGRESQL_FIRST
def test_the_operator_makes_room_for_a_tenant_at_once(make_client, monkeypatch) -> None:
    monkeypatch.setattr(memory, "_LONGEST_S", 0.0)  # as where half a minute has passed
    client = make_client(require_api_keys=True)
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
    full = used(client, "a") + SPARE
    client = make_client(require_api_keys=True, max_stored_bytes_per_tenant=full)
    assert "--tenant" in assert_problem(ask(a, 256), "storage-full")["detail"]

    dropped = drop_old_answers(client.app.state.services.store, timedelta(), "a")
    assert dropped.predictions == 1
    assert used(client, "a") < full - SPARE
    assert (ids(a), ids(b)) == ([reported], [of_b])

    again = ask(a, 64, **key)
    assert again.status_code == 201
    assert again.json()["id"] != first
    assert ask(a, 64, **key).json()["id"] == again.json()["id"]
    assert_problem(client.get(f"/v1/predictions/{first}", headers=a), "not-found")


def test_without_keys_all_are_one_tenant(make_client) -> None:
    client = make_client(max_stored_bytes_per_tenant=15_000)
    many = {"reports": [{**REPORT, "source": str(i)} for i in range(5)]}
    assert client.post("/v1/reports", json=REPORT).status_code == 201
    assert_problem(client.post("/v1/reports", json=many), "storage-full")


@ON_BOTH
def test_a_migration_counts_what_is_there_and_can_be_undone(make_client, database_url: str) -> None:
    client = make_client(require_api_keys=True, sweep_processes=0)
    a = headers_of(client, "a")
    assert client.post("/v1/predictions", json=PREDICTION, headers=a).status_code == 201
    assert client.post("/v1/reports", json=REPORT, headers=a).status_code == 201
    assert client.post("/v1/benchmarks", json=GEMM, headers=a).status_code == 201
    assert client.post("/v1/sweeps", json=SWEEP, headers=a).status_code == 202
    before = used(client, "a")
    engine = database.connect(database_url)
    database.downgrade(engine, "0019")
    database.migrate(engine)
    engine.dispose()
    assert used(client, "a") == pytest.approx(before, rel=0.01)  # JSON may be spaced otherwise
