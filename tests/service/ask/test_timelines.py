from __future__ import annotations

import pytest

from service.schemas.timeline import ChromeTrace, TimelineAnswer
from tests.openapi import openapi
from tests.service.asking import PREDICTION, QUESTION, assert_problem, changed, predicted

PIPED = changed(
    {**QUESTION, "layouts": [{"pp": 2, "dp_shard": 8}, {"dp_shard": 16}]}, "cluster.num_chips", 16
)


def test_a_prediction_is_drawn_by_rank(client) -> None:
    made = client.post("/v1/predictions", json=PIPED).json()
    found = client.get(f"/v1/predictions/{made['id']}/timeline?rank=1").json()
    TimelineAnswer.model_validate(found)
    assert found["stages"] == 2
    assert found["profile"] == made["profile"]
    assert found["step_time_s"] == pytest.approx(made["layouts"][0]["step_time_s"])
    assert found["pipeline_s"] <= found["closed_form_s"] * (1 + 1e-9)
    assert_problem(client.get(f"/v1/predictions/{made['id']}/timeline"), "invalid")
    assert_problem(client.get(f"/v1/predictions/{made['id']}/timeline?rank=3"), "invalid")


def test_a_recommendation_is_drawn_as_a_chrome_trace(client) -> None:
    made = client.post(
        "/v1/recommendations", json=changed(QUESTION, "cluster.num_chips", 16)
    ).json()
    plain = client.get(f"/v1/recommendations/{made['id']}/timeline?micro_batches=2").json()
    trace = client.get(
        f"/v1/recommendations/{made['id']}/timeline?format=chrome&micro_batches=2"
    ).json()
    ChromeTrace.model_validate(trace)
    shown = {"micro_batches": plain["micro_batches"], "of_micro_batches": plain["of_micro_batches"]}
    assert trace["otherData"] == shown
    assert shown["micro_batches"] < shown["of_micro_batches"]
    (process,) = [event for event in trace["traceEvents"] if event["name"] == "process_name"]
    drawn = "{micro_batches} of {of_micro_batches} micro-batches of a step".format(**shown)
    assert process["args"] == {"name": drawn}
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == len(plain["events"])
    assert max(span["ts"] + span["dur"] for span in spans) / 1e6 == pytest.approx(
        max(event["end_s"] for event in plain["events"])
    )


def test_a_recommendation_is_drawn_by_choice(client) -> None:
    asked = {**QUESTION, "model": "llama-3-70b", "stack": "megatron", "tolerance": 0.2}
    made = client.post("/v1/recommendations", json=asked).json()
    address = f"/v1/recommendations/{made['id']}/timeline?micro_batches=8&choice="
    times = {
        name: predicted(made, name)["step_time_s"]
        for name in ("recommended", "fastest", "simplest", "bolder")
        if made[name] is not None
    }
    assert len({*times.values()}) > 1
    for name, seconds in times.items():
        assert client.get(address + name).json()["step_time_s"] == pytest.approx(seconds)
    assert_problem(client.get(f"{address}simplest&rank=1"), "invalid")
    assert_problem(client.get(f"{address}best"), "invalid")
    prediction = client.post("/v1/predictions", json=PREDICTION).json()["id"]
    assert_problem(client.get(f"/v1/predictions/{prediction}/timeline?choice=fastest"), "invalid")


@pytest.mark.parametrize("made", ["predictions", "recommendations"])
def test_both_formats_are_documented(made: str) -> None:
    operation = openapi()["paths"][f"/v1/{made}/{{id}}/timeline"]["get"]
    forms = operation["responses"]["200"]["content"]["application/json"]["schema"]["anyOf"]
    assert [form["$ref"].rsplit("/", 1)[1] for form in forms] == ["TimelineAnswer", "ChromeTrace"]


def test_a_plain_layout_ends_when_its_step_does(client) -> None:
    made = client.post("/v1/predictions", json=PREDICTION).json()
    found = client.get(f"/v1/predictions/{made['id']}/timeline").json()
    assert max(event["end_s"] for event in found["events"]) == pytest.approx(found["step_time_s"])


@pytest.mark.parametrize("query", ["format=svg", "rank=0", "speed=1", "micro_batches=0"])
def test_a_bad_query_is_named(shared_client, query: str) -> None:
    made = shared_client.post("/v1/predictions", json=PREDICTION).json()
    assert_problem(shared_client.get(f"/v1/predictions/{made['id']}/timeline?{query}"), "invalid")


def test_what_is_not_there_has_no_timeline(client) -> None:
    assert_problem(client.get("/v1/predictions/nothing/timeline"), "not-found")


def test_a_timeline_is_drawn_once_and_has_an_etag(client, monkeypatch) -> None:
    made = client.post("/v1/predictions", json=PREDICTION).json()
    address = f"/v1/predictions/{made['id']}/timeline"
    first = client.get(address)
    monkeypatch.setattr("service.ask.timelines.timeline", None)
    again = client.get(address)
    assert again.content == first.content
    etag = client.get(address, headers={"Accept-Encoding": "identity"}).headers["ETag"]
    seen = client.get(address, headers={"If-None-Match": etag})
    assert (seen.status_code, seen.content) == (304, b"")
    monkeypatch.undo()
    other = client.get(f"{address}?micro_batches=1", headers={"Accept-Encoding": "identity"})
    assert other.headers["ETag"] != etag
