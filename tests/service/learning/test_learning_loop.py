"""The loop around a profile: drift over time, and what another version would change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from service.ask import evidence
from service.learning import replays, report_ingestion
from tests.service.asking import PREDICTION, QUESTION, REPORT, assert_problem, changed

START = datetime(2026, 3, 2, 8, tzinfo=UTC)


def runs(
    client,
    factors: list[float],
    question: dict[str, Any] = PREDICTION,
    since: datetime = START,
    **more: Any,
) -> None:
    """One every hour, each so many times what is predicted."""
    predicted = client.post("/v1/predictions", json=question).json()["layouts"][0]["step_time_s"]
    reports = [
        {
            **question,
            "outcome": "ok",
            "measured": {"step_time_s": predicted * factor},
            "measured_at": (since + timedelta(hours=hour)).isoformat(),
            **more,
        }
        for hour, factor in enumerate(factors)
    ]
    answer = client.post("/v1/reports", json={"reports": reports})
    assert answer.json()["refused"] == 0, answer.text


def drift(client, **query: Any) -> dict[str, Any]:
    answer = client.get("/v1/profiles/default/drift", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def wobble(n: int, level: float = 1.0) -> list[float]:
    return [level * (1 + 0.01 * (-1) ** i * (i % 3)) for i in range(n)]


def test_a_cluster_that_got_slower_is_named_with_the_time(client) -> None:
    runs(client, [*wobble(30), *wobble(20, 1.06)])
    runs(client, wobble(50), changed(PREDICTION, "cluster.preset", "h200"))
    found = drift(client)
    first, second = found["series"]
    assert (first["chip"], second["chip"]) == ("h100-sxm-80gb", "h200-sxm-141gb")
    assert second["changes"] == []
    (change,) = first["changes"]
    assert change["slower"] == pytest.approx(0.06, abs=0.02)
    assert abs(
        datetime.fromisoformat(change["since"]) - (START + timedelta(hours=30))
    ) <= timedelta(hours=2)
    assert "6% slower since Tuesday, 03 March 2026" in first["sentence"]
    marked = change["report_ids"]
    listed = client.get("/v1/reports?chip=h100&limit=1000&fields=id,measured_at").json()["items"]
    after = {item["id"] for item in listed if item["measured_at"] >= change["since"]}
    assert {*marked} == after
    assert len(marked) == pytest.approx(20, abs=2)
    assert found["runs"] == 100


def test_slower_machines_that_begin_to_report_are_no_change(client) -> None:
    runs(client, wobble(60), source="east")
    runs(client, wobble(30, 1.15), since=START + timedelta(hours=30), source="west")
    (series,) = drift(client)["series"]
    assert series["changes"] == []
    runs(client, wobble(30, 1.25), since=START + timedelta(hours=60), source="west")
    (series,) = drift(client)["series"]
    (change,) = series["changes"]
    assert change["slower"] == pytest.approx(0.087, abs=0.02)


def test_few_runs_are_not_said_to_have_kept_their_level(client) -> None:
    runs(client, wobble(1))
    assert drift(client)["series"][0]["sentence"].endswith(
        ": 1 run, and it takes 12 to tell a change"
    )
    runs(client, wobble(11))
    assert drift(client)["series"][0]["sentence"].endswith(": no change in 12 runs")


def test_other_questions_are_no_drift(client) -> None:
    """Half the batch is a faster step, not a faster cluster."""
    runs(client, wobble(20))
    half = changed(PREDICTION, "workload.global_batch", 64)
    predicted = client.post("/v1/predictions", json=half).json()["layouts"][0]["step_time_s"]
    later = [
        {
            **half,
            "outcome": "ok",
            "measured": {"step_time_s": predicted * factor},
            "measured_at": (START + timedelta(days=2, hours=hour)).isoformat(),
        }
        for hour, factor in enumerate(wobble(20))
    ]
    client.post("/v1/reports", json={"reports": later})
    (series,) = drift(client)["series"]
    assert series["runs"] == 40
    assert series["changes"] == []


def test_drift_may_be_asked_of_a_version_and_of_the_newest(client) -> None:
    runs(client, wobble(14))
    assert drift(client, version=1) == drift(client)
    assert (drift(client, limit=10)["runs"], drift(client, limit=10)["more"]) == (10, True)
    assert_problem(client.get("/v1/profiles/default/drift?version=9"), "not-found")
    assert_problem(client.get("/v1/profiles/nobody/drift"), "not-found")
    assert_problem(client.get("/v1/profiles/default/drift?limit=0"), "invalid")
    assert drift(client, since="2100-01-01T00:00:00Z")["series"] == []


def test_a_replay_shows_what_another_version_would_change(client) -> None:
    prediction = client.post("/v1/predictions", json=PREDICTION).json()
    asked = changed(QUESTION, "cluster.num_chips", 16)
    recommendation = client.post("/v1/recommendations", json=asked).json()
    runs(client, [1.2] * 8)
    version = client.post("/v1/profiles/default/calibrations").json()["version"]
    answer = client.post(f"/v1/profiles/default/versions/{version}/replay")
    assert answer.status_code == 200
    found = answer.json()
    assert (found["profile"]["version"], found["active"]["version"]) == (2, 1)
    by_id = {one["id"]: one for one in found["answers"]}
    assert by_id.keys() >= {prediction["id"], recommendation["id"]}
    (layout,) = by_id[prediction["id"]]["layouts"]
    assert layout["step_time_s"] == prediction["layouts"][0]["step_time_s"]
    assert layout["replayed_step_time_s"] == pytest.approx(1.2 * layout["step_time_s"], rel=0.03)
    assert len(by_id[recommendation["id"]]["layouts"]) == len(recommendation["ranked"])
    reports = found["reports"]
    assert reports["runs"] == 8
    assert reports["error_active"] == pytest.approx(1 - 1 / 1.2)
    assert reports["error_replayed"] < 0.03


def test_a_replay_asks_for_layouts_as_sure_as_the_question_did(client) -> None:
    sure = {"constraints": {"min_fit_probability": 0.9}, "tolerance": 0}
    asked = client.post("/v1/recommendations", json={**QUESTION, **sure}).json()
    best = asked["layouts"][0]["prediction"]
    close = 0.98 * (best["usable_gib"] - best["memory_gib"]["context_gib"])
    more = {"measured": {"step_time_s": best["step_time_s"]}, "memory": {"reserved_gib": close}}
    report = {"recommendation_id": asked["id"], "outcome": "ok", **more}
    assert client.post("/v1/reports", json={"reports": 20 * [report]}).status_code < 300
    version = client.post("/v1/profiles/default/calibrations").json()["version"]
    question = {**QUESTION, "layout": best["layout"], "profile": {"version": version}}
    (now,) = client.post("/v1/predictions", json=question).json()["layouts"]
    assert now["fits"]
    assert now["fit_probability"] < 0.9
    for replayed, another in ((version, True), (1, False)):
        found = client.post(f"/v1/profiles/default/versions/{replayed}/replay").json()
        (answer,) = (one for one in found["answers"] if one["id"] == asked["id"])
        assert answer["another_first"] == another
        assert answer["layouts"][0]["replayed_fits"]


def test_a_replay_of_the_active_version_changes_nothing(client) -> None:
    client.post("/v1/predictions", json=PREDICTION)
    client.post("/v1/reports", json=REPORT)
    found = client.post("/v1/profiles/default/versions/1/replay", json={"limit": 5}).json()
    for answer in found["answers"]:
        assert not answer["another_first"]
        for layout in answer["layouts"]:
            assert layout["replayed_step_time_s"] == pytest.approx(layout["step_time_s"], rel=1e-12)
            assert layout["replayed_fits"] == layout["fits"]
    assert found["reports"]["error_active"] == found["reports"]["error_replayed"]
    assert_problem(client.post("/v1/profiles/default/versions/7/replay"), "not-found")
    assert_problem(
        client.post("/v1/profiles/default/versions/1/replay", json={"limit": 0}),
        "invalid",
        "/limit",
    )


def test_nothing_is_computed_while_a_transaction_is_open(client, monkeypatch) -> None:
    pool, open_ = client.app.state.services.store._engine.pool, dict[str, set[int]]()

    def watched(place: str, compute: Callable[..., Any], *given: Any) -> Any:
        open_.setdefault(place, set()).add(pool.checkedout())
        return compute(*given)

    for module, name in (
        (report_ingestion, "prediction_of"),
        (evidence, "prediction_of"),
        (replays, "predict"),
    ):
        monkeypatch.setattr(module, name, partial(watched, module.__name__, getattr(module, name)))
    asked = client.post("/v1/recommendations", json=changed(QUESTION, "cluster.num_chips", 16))
    assert (
        client.get("/v1/evidence", params={"recommendation_id": asked.json()["id"]}).status_code
        == 200
    )
    assert client.post("/v1/reports", json=REPORT).status_code == 201
    assert client.post("/v1/reports", json={"reports": [REPORT]}).status_code == 201
    assert client.post("/v1/profiles/default/versions/1/replay").status_code == 200
    assert open_ == {module.__name__: {0} for module in (report_ingestion, evidence, replays)}
