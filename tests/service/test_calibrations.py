from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from asking import LAYOUT, PREDICTION, QUESTION, assert_problem

from models.errors import Invalid
from service.resolution import Resolved, Resolver
from service.schemas.question import Question

LAYOUTS = [
    {**LAYOUT, "recompute": recompute, "micro_batch": micro_batch}
    for recompute in ("none", "selective", "full")
    for micro_batch in (1, 2)
]
ADDRESS = "/v1/profiles/default/calibrations"


def report(client, factors: list[float]) -> list[str]:
    """Runs that took so much longer than predicted, one layout after the other; their ids."""
    prediction = client.post("/v1/predictions", json={**QUESTION, "layouts": LAYOUTS}).json()
    ids = []
    for index, factor in enumerate(factors):
        rank = index % len(LAYOUTS) + 1
        step = prediction["layouts"][rank - 1]["step_time_s"] * factor
        body = {"prediction_id": prediction["id"], "rank": rank, "outcome": "ok", "measured": {"step_time_s": step}}
        ids.append(client.post("/v1/reports", json=body).json()["id"])
    return ids


def activate(client, version: int) -> None:
    etag = client.get("/v1/profiles/default").headers["etag"]
    address = f"/v1/profiles/default/versions/{version}/activate"
    assert client.post(address, headers={"If-Match": etag}).status_code == 200


def predicted(client) -> tuple[int, float]:
    found = client.post("/v1/predictions", json=PREDICTION).json()
    return found["profile"]["version"], found["layouts"][0]["step_time_s"]


def test_without_reports_there_is_nothing_to_learn(client) -> None:
    answer = client.post(ADDRESS)
    assert answer.status_code == 422
    assert_problem(answer, "nothing-to-learn")
    crashed = {**PREDICTION, "outcome": "crashed"}
    assert client.post("/v1/reports", json=crashed).status_code == 201
    assert_problem(client.post(ADDRESS, json={}), "nothing-to-learn")


def test_slow_runs_teach_slow_predictions_and_can_be_unlearnt(client) -> None:
    report(client, [1.3] * 12)
    _, before = predicted(client)
    made = client.post(ADDRESS)
    assert made.status_code == 201
    assert made.headers["location"] == "/v1/profiles/default/versions/2"
    assert client.get(made.headers["location"]).json() == made.json()
    found = made.json()["calibration"]
    assert (found["based_on"], found["observations"], found["unusable"]) == (1, 12, [])
    assert found["error_after"] < found["error_before"]
    assert found["moved"]
    assert predicted(client) == (1, before)
    activate(client, 2)
    version, after = predicted(client)
    assert version == 2
    assert before < after < 1.3 * before * 1.01
    activate(client, 1)
    assert predicted(client) == (1, before)


def test_an_outlier_is_named(client) -> None:
    ids = report(client, [1.1] * 18 + [8.0])
    found = client.post(ADDRESS).json()["calibration"]
    assert found["outliers"] == [ids[-1]]
    assert found["reports"] == {"found": 19, "used": 19, "down_weighted": 1, "left_out": 0}


def test_a_report_the_models_no_longer_understand_is_left_out_with_its_reason(client, monkeypatch) -> None:
    kept, lost = report(client, [1.1, 1.1])
    resolve = Resolver.problem

    def forgetful(self: Resolver, question: Question) -> Resolved:
        resolved = resolve(self, question)
        forgetful.calls += 1
        if forgetful.calls == 2:
            raise Invalid("model", None, "is forgotten")
        return resolved

    forgetful.calls = 0
    monkeypatch.setattr(Resolver, "problem", forgetful)
    found = client.post(ADDRESS).json()["calibration"]
    assert found["reports"] == {"found": 2, "used": 1, "down_weighted": 0, "left_out": 1}
    assert found["unusable"] == [{"report": lost, "reason": "model: is forgotten"}]


def test_runs_out_of_memory_and_peaks_teach_memory(client) -> None:
    def held() -> float:
        return client.post("/v1/predictions", json=PREDICTION).json()["layouts"][0]["reserved_gib"]

    before = held()
    for _ in range(10):
        peak = {**PREDICTION, "outcome": "ok", "measured": {"mfu": {"value": 0.4, "attention": "causal"}}}
        memory = {"memory": {"reserved_gib": before * 1.3}}
        assert client.post("/v1/reports", json={**peak, **memory}).status_code == 201
        assert client.post("/v1/reports", json={**PREDICTION, "outcome": "out_of_memory"}).status_code == 201
    found = client.post(ADDRESS, json={"activate": True}).json()["calibration"]
    assert found["reports"]["used"] == 20
    assert found["memory_error_after"] < found["memory_error_before"]
    assert held() > before


def test_only_the_time_span_counts(client) -> None:
    report(client, [1.2] * 3)
    assert_problem(client.post(ADDRESS, json={"since": "2100-01-01T00:00:00Z"}), "nothing-to-learn")
    assert_problem(client.post(ADDRESS, json={"until": "2020-01-01T00:00:00+01:00"}), "nothing-to-learn")
    assert client.post(ADDRESS, json={"since": "2020-01-01T00:00:00Z"}).status_code == 201


def test_a_calibration_may_be_used_at_once(client) -> None:
    report(client, [1.2] * 3)
    assert client.post(ADDRESS, json={"activate": True}).status_code == 201
    assert client.get("/v1/profiles/default").json()["active_version"] == 2
    assert predicted(client)[0] == 2


def test_the_same_reports_teach_the_same(client) -> None:
    report(client, [1.2, 1.1, 1.3])
    first, second = (client.post(ADDRESS).json() for _ in range(2))
    assert (first["version"], second["version"]) == (2, 3)
    assert first["calibration"] == second["calibration"]
    assert first["terms"] == second["terms"]


def test_calibrations_at_once_make_a_version_each(client) -> None:
    report(client, [1.2] * 3)
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: client.post(ADDRESS), range(3)))
    assert sorted(answer.json()["version"] for answer in made) == [2, 3, 4]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"since": "yesterday"}, "/since"),
        ({"since": "2026-01-01T00:00:00"}, "/since"),
        ({"activate": "yes"}, "/activate"),
        ({"reports": []}, "/reports"),
        ([], ""),
        (None, ""),
        ({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "/until"),
    ],
)
def test_bad_calibrations(client, body: object, pointer: str) -> None:
    sent = {"content": json.dumps(body), "headers": {"content-type": "application/json"}}
    assert_problem(client.post(ADDRESS, **sent), "invalid", pointer)
