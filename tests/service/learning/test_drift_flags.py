"""Runs after a change of level are flagged wherever reports are read."""

from __future__ import annotations

import csv
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from service import api_keys
from tests.service.asking import ON_POSTGRESQL_FIRST, PREDICTION, changed

START = datetime(2026, 3, 2, 8, tzinfo=UTC)
SINCE = "are 8% slower since Tuesday, 03 March 2026"


def report_runs(
    client,
    factors: list[float],
    since: int = 0,
    step_time_s: float | None = None,
    **sent: Any,
) -> list[str]:
    """Reports one run an hour from so many hours on, each so many times `step_time_s`, or what is
    predicted."""
    if step_time_s is None:
        predicted = client.post("/v1/predictions", json=PREDICTION, **sent).json()
        step_time_s = predicted["layouts"][0]["step_time_s"]
    reports = [
        {
            **PREDICTION,
            "outcome": "ok",
            "measured": {"step_time_s": step_time_s * factor},
            "measured_at": (START + timedelta(hours=since + hour)).isoformat(),
        }
        for hour, factor in enumerate(factors)
    ]
    answer = client.post("/v1/reports", json={"reports": reports}, **sent).json()
    assert answer["refused"] == 0
    return [item["id"] for item in answer["items"]]


def level(runs: int, factor: float = 1.0) -> list[float]:
    return [factor * (1 + 0.005 * (run % 3)) for run in range(runs)]


def flagged(client, query: str = "", **sent: Any) -> set[str]:
    answer = client.get(f"/v1/reports?flagged=true&limit=1000{query}", **sent)
    return {item["id"] for item in answer.json()["items"]}


def after_changes(client, profile: str = "default", **sent: Any) -> set[str]:
    """The runs after the changes that drift tells."""
    series = client.get(f"/v1/profiles/{profile}/drift", **sent).json()["series"]
    changes = [change for each in series for change in each["changes"]]
    return {id_ for change in changes for id_ in change["report_ids"]}


@ON_POSTGRESQL_FIRST
def test_every_way_to_read_reports_tells_the_runs_after_a_change(client) -> None:
    report_runs(client, level(24))
    slow = {*report_runs(client, level(12, 1.08), since=24)}
    assert flagged(client) == slow == after_changes(client)
    listed = client.get("/v1/reports?limit=1000").json()["items"]
    assert {item["id"]: bool(item["flag"]) for item in listed} == {
        item["id"]: item["id"] in slow for item in listed
    }
    rows = csv.DictReader(client.get("/v1/reports?format=csv").text.splitlines())
    assert {row["id"] for row in rows if SINCE in row["flag"]} == slow
    assert all(SINCE in client.get(f"/v1/reports/{id_}").json()["flag"] for id_ in slow)
    counts = [
        client.get(f"/v1/reports/summary?flagged={is_flagged}").json()["overall"]["reports"]
        for is_flagged in ("true", "false")
    ]
    assert counts == [12, 24]


def test_flags_follow_reports_that_come_later_and_withdrawals(client) -> None:
    report_runs(client, level(11))
    assert flagged(client) == set()
    report_runs(client, level(1), since=11)
    slow = report_runs(client, level(9, 1.08), since=12)
    assert flagged(client) == {*slow}
    mended = report_runs(client, level(12), since=21)
    assert flagged(client) == after_changes(client) == set()
    for id_ in mended:
        client.delete(f"/v1/reports/{id_}")
    assert flagged(client) == after_changes(client) == {*slow}
    for id_ in slow[:4]:
        client.delete(f"/v1/reports/{id_}")
    assert flagged(client, "&include_withdrawn=true") == after_changes(client) == set()


def test_a_run_beyond_its_interval_keeps_its_own_flag_beside_that_of_drift(client) -> None:
    report_runs(client, level(12))
    *_, last = report_runs(client, level(12, 2.5), since=12)
    flag = client.get(f"/v1/reports/{last}").json()["flag"]
    measured, drift = flag.rsplit("; ", 1)
    assert measured.startswith("measured ")
    assert drift.startswith("runs of llama-3 ")


def test_another_model_chip_or_stack_is_not_flagged(client) -> None:
    report_runs(client, level(12))
    report_runs(client, level(12, 1.08), since=12)
    other = changed(PREDICTION, "cluster.preset", "h200")
    run = {**other, "outcome": "ok", "measured": {"step_time_s": 1.0}}
    id_ = client.post("/v1/reports", json=run).json()["id"]
    assert "slower since" not in (client.get(f"/v1/reports/{id_}").json()["flag"] or "")


def test_the_etag_of_a_report_changes_with_its_flag_and_still_guards_its_withdrawal(client) -> None:
    report_runs(client, level(12))
    *_, last = report_runs(client, level(5, 1.08), since=12)
    address = f"/v1/reports/{last}"
    before = client.get(address).headers["etag"]
    report_runs(client, level(5, 1.08), since=17)
    answer = client.get(address, headers={"If-None-Match": before})
    assert answer.status_code == 200
    etag = answer.headers["etag"]
    assert client.get(address, headers={"If-None-Match": etag}).status_code == 304
    assert client.delete(address, headers={"If-Match": '"another"'}).status_code == 412
    assert client.delete(address, headers={"If-Match": etag}).status_code == 200


def test_each_tenant_is_told_of_its_own_runs(make_client) -> None:
    guarded = make_client(require_api_keys=True)
    store = guarded.app.state.services.store

    def headers(tenant: str, *scopes: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {api_keys.create(store, tenant, scopes)}"}

    slow_one, steady_one = (headers(name, "recommend", "report") for name in ("a", "b"))
    report_runs(guarded, level(12), headers=slow_one)
    slow = report_runs(guarded, level(12, 1.08), since=12, headers=slow_one)
    report_runs(guarded, level(24), headers=steady_one)
    assert flagged(guarded, headers=slow_one) == {*slow}
    assert flagged(guarded, headers=steady_one) == set()
    admin = headers("c", "report", "admin")
    assert flagged(guarded, headers=admin) == after_changes(guarded, headers=admin)


def test_lists_do_not_wait_for_the_cost_model(client, monkeypatch) -> None:
    report_runs(client, level(12))
    report_runs(client, level(12, 1.08), since=12)
    monkeypatch.setattr(client.app.state.services.cost_model, "state", "being compiled")
    assert flagged(client) == set()
    assert len(client.get("/v1/reports?limit=1000").json()["items"]) == 24


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_the_flag_says_which_way_runs_changed(client, factor: float) -> None:
    report_runs(client, level(12))
    id_ = report_runs(client, level(12, factor), since=12)[-1]
    way = "10% slower" if factor > 1 else "10% faster"
    assert way in client.get(f"/v1/reports/{id_}").json()["flag"]
