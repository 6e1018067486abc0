"""Lists and answers as CSV: by the query or the Accept header, whole, and with an ETag."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from service.routes.list_tables import TABLES
from service.schemas.profile import Policy
from service.web import tables
from tests.service.asking import PREDICTION, QUESTION, REPORT, assert_problem

LISTS = (
    "reports", "recommendations", "predictions", "checks", "benchmarks", "sweeps", "audit",
    "catalog/chips", "catalog/architectures", "profiles", "profiles/default/versions",
)  # fmt: skip


def rows(answer: Any) -> list[dict[str, str]]:
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/csv")
    return [*csv.DictReader(io.StringIO(answer.text))]


def listed(client: Any, path: str, **query: str) -> list[dict[str, Any]]:
    if path != "profiles":  # which come in one page
        query["limit"] = "1000"
    answer = client.get(f"/v1/{path}", params=query)
    assert answer.status_code == 200
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


@pytest.mark.parametrize("path", LISTS)
def test_every_list_is_a_table_too(shared_client, path: str) -> None:
    asked = shared_client.get(f"/v1/{path}?format=csv")
    found = rows(asked)
    preferred = shared_client.get(f"/v1/{path}", headers={"Accept": "text/csv"})
    assert preferred.text == asked.text
    assert len(found) == len(listed(shared_client, path))
    seen = {"If-None-Match": asked.headers["ETag"]}
    assert shared_client.get(f"/v1/{path}?format=csv", headers=seen).status_code == 304
    for part in ("limit=1", "fields=id", "view=brief"):
        assert_problem(shared_client.get(f"/v1/{path}?format=csv&{part}"), "invalid")


@pytest.mark.parametrize("path", LISTS)
def test_every_list_in_brief_has_the_columns_of_its_table(shared_client, path: str) -> None:
    """Whatever they hold: sequences and labels are parts in JSON, and text in a cell."""
    table = rows(shared_client.get(f"/v1/{path}?format=csv"))
    brief = listed(shared_client, path, view="brief")
    assert len(brief) == len(table)
    for item, row in zip(brief, table, strict=True):
        assert item.keys() == row.keys()
        for name, value in item.items():
            if isinstance(value, str | int) and not isinstance(value, bool):
                assert row[name].removeprefix("'") == str(value), name
    assert listed(shared_client, path, view="full") == listed(shared_client, path)


def test_reports_in_brief_have_figures_and_flags_on_one_level(client) -> None:
    report = {**REPORT, "labels": {"job_id": "7"}}
    made = client.post("/v1/reports", json=report).json()
    (brief,) = client.get("/v1/reports?view=brief").json()["items"]
    assert brief["step_time_s"] == made["measured"]["step_time_s"]
    assert brief["predicted_step_time_s"] == made["prediction"]["step_time_s"]
    assert (brief["chip"], brief["labels"]) == ("h100-sxm-80gb", {"job_id": "7"})
    asked = client.get("/v1/reports?view=brief&fields=id,chip").json()["items"]
    assert asked == [{"id": made["id"], "chip": "h100-sxm-80gb"}]
    assert_problem(client.get("/v1/reports?view=brief&fields=measured"), "invalid")
    assert_problem(client.get("/v1/reports?view=short"), "invalid")


def test_the_versions_of_a_profile_are_a_list_with_the_errors_of_each(client) -> None:
    for _ in range(6):
        client.post("/v1/reports", json=REPORT)
    for _ in range(2):
        asked = {"from_scratch": True}
        client.post("/v1/profiles/default/calibrations", json=asked).raise_for_status()
    path = "/v1/profiles/default/versions"
    first = client.get(f"{path}?limit=2").json()
    assert [item["version"] for item in first["items"]] == [3, 2]
    rest = client.get(f"{path}?limit=2&cursor={first['next']}").json()
    assert [item["version"] for item in rest["items"]] == [1]
    assert rest["next"] is None
    assert [item["active"] for item in (*first["items"], *rest["items"])] == [False, False, True]
    made = client.get(f"{path}/3").json()["calibration"]
    assert first["items"][0]["calibration"] == made
    table = rows(client.get(f"{path}?format=csv"))
    assert float(table[0]["unseen_error_before"]) == made["unseen"]["error_before"]
    assert [row["origin"] for row in table] == ["calibrated", "calibrated", "shipped"]
    assert_problem(client.get("/v1/profiles/nobody/versions"), "not-found")


def test_published_runs_are_a_table_too_of_all_that_a_query_selects(shared_client) -> None:
    asked = "model=deepseek-v3&cluster=h800&text=deepseek"
    answer = shared_client.get(f"/v1/evidence?{asked}&limit=3").json()
    table = rows(shared_client.get(f"/v1/evidence?{asked}&format=csv"))
    assert len(table) == answer["found"] > 3
    brief = shared_client.get(f"/v1/evidence?{asked}&limit=3&view=brief").json()
    assert [item["id"] for item in brief["items"]] == [item["id"] for item in answer["items"]]
    for run, item, row in zip(answer["items"], brief["items"], table, strict=False):
        assert item["step_time_s"] == run["measured"]["step_time_s"]
        assert item["predicted_step_time_s"] == run["predicted"]["step_time_s"]
        assert (row["id"], row["title"]) == (run["id"], run["source"]["title"])


def test_a_table_has_every_item_of_a_list_of_many_pages(client, monkeypatch) -> None:
    monkeypatch.setattr("service.routes.list_tables._MOST_ITEMS", 2)
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
        ("GET", "profiles/default", "text/csv"),
        ("GET", "profiles/default/versions/1", "text/csv"),
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


def test_the_table_of_profiles_has_every_field_of_a_policy() -> None:
    paths = TABLES["profiles"].columns.values()
    assert [path for path in paths if path.startswith("policy.")] == [
        f"policy.{name}" for name in Policy.model_fields
    ]
