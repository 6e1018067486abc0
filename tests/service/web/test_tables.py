"""Lists and answers as CSV: by the query or the Accept header, whole, and with an ETag."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from service.web import tables
from tests.service.asking import PREDICTION, QUESTION, REPORT, assert_problem

LISTS = (
    "reports", "recommendations", "predictions", "checks", "benchmarks", "sweeps", "audit",
    "catalog/chips", "catalog/architectures",
)  # fmt: skip


def rows(answer: Any) -> list[dict[str, str]]:
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/csv")
    return [*csv.DictReader(io.StringIO(answer.text))]


@pytest.mark.parametrize("path", LISTS)
def test_every_list_is_a_table_too(shared_client, path: str) -> None:
    asked = shared_client.get(f"/v1/{path}?format=csv")
    found = rows(asked)
    preferred = shared_client.get(f"/v1/{path}", headers={"Accept": "text/csv"})
    assert preferred.text == asked.text
    assert len(found) == len(shared_client.get(f"/v1/{path}?limit=1000").json()["items"])
    seen = {"If-None-Match": asked.headers["ETag"]}
    assert shared_client.get(f"/v1/{path}?format=csv", headers=seen).status_code == 304
    for part in ("limit=1", "fields=id"):
        assert_problem(shared_client.get(f"/v1/{path}?format=csv&{part}"), "invalid")


def test_a_table_has_every_item_of_a_list_of_many_pages(client, monkeypatch) -> None:
    monkeypatch.setattr("service.routes.tables._MOST_ITEMS", 2)
    for chips in (8, 16, 32, 64, 128):
        question = {**PREDICTION, "cluster": {"preset": "h100", "num_chips": chips}}
        question["layout"] = {"dp_shard": chips, "zero_stage": 3}
        client.post("/v1/predictions", json=question).raise_for_status()
    found = rows(client.get("/v1/predictions?format=csv"))
    assert [row["num_chips"] for row in found] == ["128", "64", "32", "16", "8"]
    assert {row["seq_len"] for row in found} == {"8192"}


def test_a_table_changes_its_etag_with_its_list_and_a_long_one_has_none(
    client, monkeypatch
) -> None:
    client.post("/v1/reports", json=REPORT)
    before = client.get("/v1/reports?format=csv")
    client.post("/v1/reports", json=REPORT)
    seen = {"If-None-Match": before.headers["ETag"]}
    after = client.get("/v1/reports?format=csv", headers=seen)
    assert len(rows(after)) == 2
    monkeypatch.setattr(tables, "_MOST_TAGGED", 10)
    streamed = client.get("/v1/reports?format=csv")
    assert streamed.text == after.text
    assert "ETag" not in streamed.headers


def test_choices_are_a_table_too(shared_client) -> None:
    asked = {**QUESTION, "alternatives": {"num_chips": [32]}, "objective": {"tokens": 1e9}}
    made = shared_client.post("/v1/recommendations", json=asked).json()
    path = f"/v1/recommendations/{made['id']}/choices"
    assert shared_client.get(path).json() == {"items": made["choices"]}
    table = rows(shared_client.get(f"{path}?format=csv"))
    assert [float(row["usd"]) for row in table] == [each["usd"] for each in made["choices"]]
    assert [row["chip"] for row in table] == ["h100-sxm-80gb"] * 2


def test_a_frontier_is_a_table_too(shared_client) -> None:
    asked = {**QUESTION, "grid": {"scale_out": [1, 2]}}
    drawn = shared_client.post("/v1/frontiers", json=asked).json()
    table = rows(shared_client.post("/v1/frontiers?format=csv", json=asked))
    assert [float(row["scale_out"]) for row in table] == [1.0, 2.0]
    assert [row["pipeline_needed"] for row in table] == [
        point["pipeline_needed"] for point in drawn["points"]
    ]


@pytest.mark.parametrize(
    ("method", "path", "accept"),
    [
        ("GET", "profiles", "text/csv"),
        ("GET", "reports/summary", "text/csv"),
        ("GET", "recommendations", "application/xml"),
        ("POST", "predictions", "text/csv"),
        ("GET", "catalog/chips/h100", "image/png"),
    ],
)
def test_a_form_that_does_not_exist_is_refused(
    shared_client, method: str, path: str, accept: str
) -> None:
    sent = {"json": PREDICTION} if method == "POST" else {}
    answer = shared_client.request(method, f"/v1/{path}", headers={"Accept": accept}, **sent)
    problem = assert_problem(answer, "not-acceptable")
    assert "application/json" in problem["detail"]
    for taken in ("*/*", "application/json", "application/*;q=0.5, text/html"):
        other = shared_client.request(method, f"/v1/{path}", headers={"Accept": taken}, **sent)
        assert other.status_code in (200, 201)
