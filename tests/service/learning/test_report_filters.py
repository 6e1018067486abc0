"""Lists and summaries of reports are narrowed by filters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.service.asking import REPORT, assert_problem, changed


@pytest.fixture(scope="module")
def ids(shared_client) -> dict[str, str]:
    """The ids of some reports, by what is special about each. Tests of this module only read."""
    slow = changed(REPORT, "measured", {"step_time_s": 20.0})
    reports = {
        "plain": {**REPORT, "source": "ours", "measured_at": "2026-03-02T23:30:00Z"},
        "slow": {**slow, "source": "theirs", "measured_at": "2026-03-03T01:00:00+02:00"},
        "small": {
            **changed(changed(REPORT, "cluster.num_chips", 32), "layout.dp_shard", 32),
            "measured_at": "2026-03-03T00:30:00Z",
        },
        "other": {**changed(REPORT, "cluster.preset", "b200"), "outcome": "aborted"},
        "model": {**changed(REPORT, "model", "qwen3-8b"), "measured_at": "2025-01-01T00:00:00Z"},
    }
    made = shared_client.post("/v1/reports", json={"reports": [*reports.values()]}).json()
    assert made["refused"] == 0, made
    return {name: item["id"] for name, item in zip(reports, made["items"], strict=True)}


def listed(client, ids: dict[str, str], query: str) -> set[str]:
    names = {id_: name for name, id_ in ids.items()}
    items = client.get(f"/v1/reports?{query}").raise_for_status().json()["items"]
    return {names[item["id"]] for item in items}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("source=ours", {"plain"}),
        ("source=ours&source=theirs", {"plain", "slow"}),
        ("flagged=true&source=theirs", {"slow"}),
        ("flagged=false&source=theirs", set()),
        ("within_interval=false&source=theirs", {"slow"}),
        ("num_chips=32", {"small"}),
        ("num_chips=32&num_chips=64&chip=h100&family=llama-3", {"plain", "slow", "small"}),
        ("chip=b200", {"other"}),
        ("chip=b200&chip=h100&outcome=aborted", {"other"}),
        ("family=qwen3", {"model"}),
        ("family=qwen3&family=llama-3&chip=b200", {"other"}),
        ("family=nothing", set()),
        ("architecture=qwen3-8b&architecture=llama-3.1-8b&num_chips=32", {"small"}),
    ],
)
def test_reports_are_filtered_by_any_of_several_values(shared_client, ids, query, expected) -> None:
    assert listed(shared_client, ids, query) == expected


def test_reports_that_came_late_are_found_by_when_they_came(shared_client, ids) -> None:
    before = (datetime.now(UTC) - timedelta(hours=1)).isoformat().replace("+", "%2B")
    assert listed(shared_client, ids, f"created_since={before}") == {*ids}
    assert "model" not in listed(shared_client, ids, f"since={before}")
    assert listed(shared_client, ids, "created_since=2100-01-01T00:00:00Z") == set()


def test_items_have_the_fields_that_are_asked_for(shared_client, ids) -> None:
    page = shared_client.get("/v1/reports?fields=id,residual&limit=2").json()
    assert [item.keys() for item in page["items"]] == [{"id", "residual"}] * 2
    assert page["next"] is not None
    problem = assert_problem(shared_client.get("/v1/reports?fields=id,residuals"), "invalid")
    assert "it has" in problem["errors"][0]["rule"]
    for path in ("recommendations", "catalog/chips"):
        assert shared_client.get(f"/v1/{path}?fields=name").status_code in (200, 422)


def groups(client, query: str) -> list[tuple[dict[str, str], int]]:
    summary: dict[str, Any] = client.get(f"/v1/reports/summary?{query}").json()
    return [(group["key"], group["reports"]) for group in summary["groups"]]


def test_a_summary_groups_by_several_keys_and_by_time(shared_client, ids) -> None:
    assert groups(shared_client, "family=llama-3&source=ours&source=theirs") == []
    assert groups(shared_client, "by=chip,stack") == [
        ({"chip": "b200-sxm", "stack": "torchtitan"}, 1),
        ({"chip": "h100-sxm-80gb", "stack": "torchtitan"}, 4),
    ]
    of_march = "since=2026-03-01T00:00:00Z&until=2026-04-01T00:00:00Z"
    assert groups(shared_client, f"{of_march}&by=source&bucket=day") == [
        ({"bucket": "2026-03-02T00:00:00Z", "source": "ours"}, 1),
        ({"bucket": "2026-03-02T00:00:00Z", "source": "theirs"}, 1),
        ({"bucket": "2026-03-03T00:00:00Z", "source": ""}, 1),
    ]
    assert groups(shared_client, f"{of_march}&bucket=month") == [
        ({"bucket": "2026-03-01T00:00:00Z"}, 3)
    ]
    assert_problem(shared_client.get("/v1/reports/summary?by=colour"), "invalid")
