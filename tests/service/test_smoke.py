"""A walk through every part of the service, on SQLite and on PostgreSQL."""

from __future__ import annotations

from tests.service.asking import (
    CHIP,
    ON_POSTGRESQL_FIRST,
    PREDICTION,
    QUESTION,
    REPORT,
    assert_problem,
)

pytestmark = ON_POSTGRESQL_FIRST

SMALL = {**QUESTION, "cluster": {"preset": "h100", "num_chips": 8}}


def test_a_recommendation_is_kept_listed_and_drawn(client) -> None:
    made = client.post("/v1/recommendations", json=SMALL)
    assert made.status_code == 201
    address = made.headers["location"]
    assert client.get(address).json() == made.json()
    assert [item["location"] for item in client.get("/v1/recommendations").json()["items"]] == [
        address
    ]
    assert client.get(f"{address}/timeline").json()["stages"]


def test_a_prediction_is_kept_and_not_sent_twice(client) -> None:
    made = client.post("/v1/predictions", json=PREDICTION)
    kept = client.get(made.headers["location"])
    assert kept.json() == made.json()
    unchanged = client.get(
        made.headers["location"], headers={"If-None-Match": kept.headers["etag"]}
    )
    assert unchanged.status_code == 304


def test_comparisons_and_frontiers_are_answered(client) -> None:
    sides = {"first": {"constraints": {"tp": 1}}, "second": {"constraints": {"tp": 2}}}
    assert client.post("/v1/comparisons", json={**SMALL, **sides}).json()["reasons"]
    drawn = client.post("/v1/frontiers", json={**SMALL, "grid": {"scale_out": [1, 2]}}).json()
    assert len(drawn["points"]) == 2


def test_published_runs_are_found(client) -> None:
    found = client.get("/v1/evidence", params={"model": "llama-3.1-8b", "cluster": "h100"}).json()
    assert found["runs"]


def test_a_report_is_listed_summed_up_and_withdrawn(client) -> None:
    made = client.post("/v1/reports", json=REPORT)
    address = made.headers["location"]
    assert len(client.get("/v1/reports").json()["items"]) == 1
    assert client.get("/v1/reports/summary").json()["overall"]["reports"] == 1
    assert client.delete(address, headers={"If-Match": "*"}).status_code in (200, 204)
    assert client.get("/v1/reports").json()["items"] == []


def test_a_batch_keeps_the_good_ones(client) -> None:
    answer = client.post("/v1/reports", json={"reports": [REPORT, {**REPORT, "stack": "none"}]})
    assert [("id" in item, "problem" in item) for item in answer.json()["items"]]
    assert len(client.get("/v1/reports").json()["items"]) == 1


def test_a_calibration_is_made_activated_and_rolled_back(client) -> None:
    client.post("/v1/reports", json={"reports": [REPORT] * 5})
    made = client.post("/v1/profiles/default/calibrations", json={})
    assert made.json()["version"] == 2
    for version in (2, 1):
        answer = client.post(
            f"/v1/profiles/default/versions/{version}/activate", headers={"If-Match": "*"}
        )
        assert answer.json()["active_version"] == version


def test_drift_and_replays_read_what_was_reported(client) -> None:
    client.post("/v1/recommendations", json=SMALL)
    client.post("/v1/reports", json=REPORT)
    assert client.get("/v1/profiles/default/drift").status_code == 200
    assert client.post("/v1/profiles/default/versions/1/replay").status_code == 200


def test_a_chip_of_ones_own_is_registered_and_used(client) -> None:
    made = client.post("/v1/catalog/chips", json={"name": "mine", "chip": CHIP})
    assert made.status_code == 201
    asked = {**PREDICTION, "cluster": {"preset": "mine", "num_chips": 64}}
    assert client.post("/v1/predictions", json=asked).status_code == 201
    assert "mine" in str(client.get("/v1/catalog/chips").json())


def test_a_retry_with_its_key_is_answered_as_before(client) -> None:
    first, second = (
        client.post("/v1/predictions", json=PREDICTION, headers={"Idempotency-Key": "once"})
        for _ in range(2)
    )
    assert second.json() == first.json()
    assert second.headers["idempotency-replayed"] == "true"


def test_what_is_not_there_is_a_problem(client) -> None:
    for address in ("/v1/reports/none", "/v1/predictions/none", "/v1/recommendations/none"):
        assert_problem(client.get(address), "not-found")


def test_a_served_process_is_ready(client) -> None:
    assert client.get("/readyz").json() == {"database": "ok", "cost_model": "ok"}
