"""A report that was withdrawn is kept and counts nowhere."""

from __future__ import annotations

import csv
import json

import pytest

from tests.openapi import openapi
from tests.service.asking import LAYOUT, PREDICTION, QUESTION, REPORT, assert_problem, changed

OTHER = changed(REPORT, "measured.step_time_s", 1.5)


def ids(client, query: str = "") -> list[str]:
    return [item["id"] for item in client.get(f"/v1/reports{query}").json()["items"]]


@pytest.fixture
def pair(client) -> tuple[str, str]:
    """One report that was withdrawn, and one that was not."""
    gone, kept = (
        client.post("/v1/reports", json=report).json()["id"] for report in (REPORT, OTHER)
    )
    assert client.delete(f"/v1/reports/{gone}").status_code == 200
    return gone, kept


def test_a_withdrawn_report_is_in_no_list_unless_asked_for(client, pair) -> None:
    gone, kept = pair
    assert ids(client) == [kept]
    assert ids(client, "?include_withdrawn=true") == [kept, gone]
    for query, expected in (
        ("", [(kept, False)]),
        ("&include_withdrawn=true", [(kept, False), (gone, True)]),
    ):
        lines = csv.DictReader(client.get(f"/v1/reports?format=csv{query}").text.splitlines())
        assert [(line["id"], line["withdrawn_at"] != "") for line in lines] == expected


def test_a_withdrawn_report_counts_in_no_summary_drift_or_replay(client, pair) -> None:
    assert client.get("/v1/reports/summary").json()["overall"]["reports"] == 1
    assert client.get("/v1/profiles/default/drift").json()["runs"] == 1
    assert client.post("/v1/profiles/default/versions/1/replay").json()["reports"]["runs"] == 1


def test_no_calibration_learns_from_a_withdrawn_report(client, pair) -> None:
    _, kept = pair
    made = client.post("/v1/profiles/default/calibrations").json()
    assert made["calibration"]["window"]["reports"] == 1
    client.delete(f"/v1/reports/{kept}")
    answer = client.post("/v1/profiles/default/calibrations", json={"from_scratch": True})
    assert_problem(answer, "nothing-to-learn")
    assert client.get("/v1/profiles/default/versions/2").json() == made


def test_no_prediction_warns_of_a_withdrawn_report(client) -> None:
    failed = {**PREDICTION, "outcome": "out_of_memory"}
    report = client.post("/v1/reports", json=failed).json()["id"]
    tight = {**QUESTION, "layouts": [{**LAYOUT, "recompute": "none"}]}
    assert report in json.dumps(client.post("/v1/predictions", json=tight).json()["warnings"])
    client.delete(f"/v1/reports/{report}")
    assert client.post("/v1/predictions", json=tight).json()["warnings"] == []


def test_a_withdrawn_report_is_kept_as_it_was_received(client, pair) -> None:
    found = client.get(f"/v1/reports/{pair[0]}").json()
    assert json.loads(found["submission"]) == REPORT
    assert found["withdrawn_at"].endswith("Z")


def test_withdrawing_again_changes_nothing(client, pair) -> None:
    address = f"/v1/reports/{pair[0]}"
    first, again = client.get(address), client.delete(address)
    assert again.status_code == 200
    assert again.json()["withdrawn_at"] == first.json()["withdrawn_at"]
    assert again.headers["etag"] == first.headers["etag"]
    assert client.delete(address, headers={"If-Match": '"old"'}).status_code == 200


def test_a_withdrawal_changes_the_etag_of_the_report(client) -> None:
    address = client.post("/v1/reports", json=REPORT).headers["location"]
    seen = client.get(address).headers["etag"]
    assert client.get(address, headers={"If-None-Match": seen}).status_code == 304
    assert_problem(client.delete(address, headers={"If-Match": '"old"'}), "precondition-failed")
    assert_problem(client.delete(address, headers={"If-Match": "old"}), "bad-header")
    gone = client.delete(address, headers={"If-Match": seen})
    assert gone.headers["etag"] != seen
    assert client.get(address, headers={"If-None-Match": seen}).status_code == 200
    assert client.get(address, headers={"If-None-Match": gone.headers["etag"]}).status_code == 304


def test_what_is_not_there_cannot_be_withdrawn(client) -> None:
    assert_problem(client.delete("/v1/reports/nothing"), "not-found")


def test_withdrawing_is_documented() -> None:
    operation = openapi()["paths"]["/v1/reports/{id}"]["delete"]
    assert [(item["name"], item["required"]) for item in operation["parameters"]] == [
        ("id", True),
        ("if-match", False),
    ]
    assert {"200", "400", "404", "412"} <= operation["responses"].keys()
    assert "428" not in operation["responses"]
    assert operation["responses"]["200"]["headers"].keys() == {"ETag"}


GEMMS = {
    "cluster": {"preset": "h100"},
    "gemms": [{"m": 8192, "n": 8192, "k": 8192, "tflops": 600.0}],
}


def test_a_benchmark_that_was_withdrawn_is_kept_and_teaches_nothing(client) -> None:
    made = client.post("/v1/benchmarks", json=GEMMS).json()
    kept = client.post("/v1/benchmarks", json=GEMMS).json()
    address = f"/v1/benchmarks/{made['id']}"
    seen = client.get(address).headers["ETag"]
    assert_problem(client.delete(address, headers={"If-Match": '"other"'}), "precondition-failed")
    gone = client.delete(address, headers={"If-Match": seen})
    assert gone.json()["withdrawn_at"] is not None
    assert client.delete(address).json() == gone.json()
    again = client.get(address, headers={"If-None-Match": seen})
    assert again.status_code == 200
    assert again.json()["withdrawn_at"] == gone.json()["withdrawn_at"]
    listed = [item["id"] for item in client.get("/v1/benchmarks").json()["items"]]
    assert listed == [kept["id"]]
    everything = client.get("/v1/benchmarks?include_withdrawn=true").json()["items"]
    assert [item["withdrawn_at"] is not None for item in everything] == [False, True]
    assert client.get("/v1/audit").json()["items"][0]["action"] == "benchmark.withdrawn"
    client.delete(f"/v1/benchmarks/{kept['id']}")
    answer = client.post("/v1/profiles/default/calibrations")
    assert_problem(answer, "nothing-to-learn")
