"""Answers in brief: no more than a launcher needs, in the form that it asks for."""

from __future__ import annotations

from typing import Any

import pytest

from service.ask.answer_briefs import prediction_brief, recommendation_brief
from service.schemas.brief import PredictionBrief, RecommendationBrief
from service.store.tables import RecommendationRow
from tests.service.asking import (
    LAYOUT,
    PREDICTION,
    QUESTION,
    candidate,
    changed,
    predicted,
    store_as_before,
    without,
)

MAX_BYTES = 4096
SMALL = changed(QUESTION, "cluster.num_chips", 16)
LARGE: dict[str, Any] = {
    "model": "deepseek-v3",
    "cluster": {"preset": "h800", "num_chips": 2048},
    "workload": {"seq_len": 4096, "global_batch": 15360, "load_balancing": "bias"},
    "stack": "megatron",
}
TPU: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": {"preset": "v5p-128"},
    "workload": {"seq_len": 8192, "global_batch": 256},
    "stack": "maxtext",
}


@pytest.mark.parametrize("question", [SMALL, LARGE, TPU])
def test_a_brief_recommendation_says_what_to_launch(shared_client, question: dict) -> None:
    made = shared_client.post("/v1/recommendations?view=brief", json=question)
    assert made.is_success
    assert len(made.content) <= MAX_BYTES
    brief = made.json()
    RecommendationBrief.model_validate(brief)
    assert brief["location"] == made.headers["location"]
    full = shared_client.get(brief["location"]).json()
    best = predicted(full, "recommended")
    for name in ("step_time_s", "step_time_low_s", "step_time_high_s", "fit_probability"):
        assert brief[name] == best[name]
    assert len(brief["reasons"]) == 3
    assert [reason for reason in full["reasons"] if reason in brief["reasons"]] == brief["reasons"]
    kinds = {
        facts["kind"]
        for reason, facts in zip(full["reasons"], full["reason_facts"], strict=True)
        if reason in brief["reasons"]
    }
    assert "memory" in kinds
    assert brief["chips_used"] == full["chips_used"]
    assert len(brief["layout"]) < len(best["layout"]) - 5
    assert brief["launch"]
    launch = shared_client.get(brief["launch"]).json()
    assert launch == full["launch"]
    assert brief["notes"] == [note for note in launch["notes"] if len(note) <= 300][:3]
    assert brief["nodes"] == launch["slurm"].get("nodes")
    assert brief["devices_per_node"] == launch["slurm"].get("gpus-per-node")
    asked = {**question, "layout": brief["layout"]}
    (again,) = shared_client.post("/v1/predictions", json=asked).json()["layouts"]
    assert again["layout"] == best["layout"]


def test_a_brief_prediction_is_of_the_fastest_that_fits(shared_client) -> None:
    layouts = [{**LAYOUT, "micro_batch": 2, "recompute": "none"}, LAYOUT, {"dp_shard": 64}]
    asked = {**QUESTION, "layouts": [{**LAYOUT, "recompute": "full"}, *layouts]}
    brief = shared_client.post("/v1/predictions?view=brief", json=asked).json()
    PredictionBrief.model_validate(brief)
    full = shared_client.get(brief["location"]).json()["layouts"]
    fitting = [one for one in full if one["fits"]]
    best = min(fitting, key=lambda one: one["step_time_s"])
    assert (brief["rank"], brief["of"]) == (full.index(best) + 1, 4)
    assert brief["step_time_s"] == best["step_time_s"]
    assert brief["launch"] is None or brief["launch"].endswith(f"?rank={brief['rank']}")


def test_no_brief_is_larger_than_it_says(shared_client) -> None:
    found = shared_client.post("/v1/recommendations", json=LARGE).json()
    found["reasons"] = [f"{number} " + "näher " * 10_000 for number in range(5)]
    found["launch"]["notes"] = found["reasons"]
    layout = candidate(found, "recommended")["prediction"]["layout"]
    layout |= {"layers_per_chunk": [1] * 4096, "recompute_modules": ["mla_up_proj"] * 9}
    told = shared_client.post("/v1/predictions", json=PREDICTION).json()
    told["warnings"] = found["reasons"]
    for brief in (recommendation_brief(found), prediction_brief(told)):
        assert len(str(brief).encode()) <= MAX_BYTES
        assert all(line.endswith("…") for line in brief.get("reasons", brief.get("warnings")))


def test_what_leads_the_reasons_leads_the_brief(shared_client) -> None:
    tokens = changed(SMALL, "workload.global_batch", 16 * 8192)
    brief = shared_client.post("/v1/recommendations?view=brief", json=tokens).json()
    assert brief["reasons"][0].startswith("check workload.global_batch")
    layout, memory = brief["reasons"][1:]
    assert layout.startswith(("The fastest layout that fits", "Recommended is"))
    assert memory.startswith("The recommended layout needs")


@pytest.mark.parametrize(
    ("prefer", "view", "is_brief", "applied"),
    [
        ("return=minimal", None, True, "return=minimal"),
        ('handling=lenient, return="minimal"; wait=1', None, True, "return=minimal"),
        ("return=representation", None, False, "return=representation"),
        ("return=minimal", "full", False, None),
        ("return=representation", "brief", True, None),
        ("respond-async", None, False, None),
        (None, "brief", True, None),
        (None, None, False, None),
    ],
)
def test_a_view_is_preferred_by_a_header_or_named(
    shared_client, prefer: str | None, view: str | None, is_brief: bool, applied: str | None
) -> None:
    headers = {} if prefer is None else {"Prefer": prefer}
    params = {} if view is None else {"view": view}
    made = shared_client.post("/v1/predictions", json=PREDICTION, headers=headers, params=params)
    got = shared_client.get(made.headers["location"], headers=headers, params=params)
    for response in (made, got):
        assert ("location" in response.json()) == is_brief
        assert response.headers.get("preference-applied") == applied
        assert "Prefer" in response.headers["vary"]


@pytest.mark.parametrize("kind", ["recommendations", "predictions"])
def test_each_view_has_an_etag_of_its_own(shared_client, kind: str) -> None:
    question = SMALL if kind == "recommendations" else PREDICTION
    location = shared_client.post(f"/v1/{kind}", json=question).headers["location"]
    minimal = {"Prefer": "return=minimal"}
    whole = shared_client.get(location)
    brief = shared_client.get(location, headers=minimal)
    tags = [response.headers["etag"] for response in (whole, brief)]
    assert tags[0] != tags[1]
    assert shared_client.get(location, params={"view": "brief"}).headers["etag"] == tags[1]
    seen = {"If-None-Match": tags[1]}
    again = shared_client.get(location, headers={**minimal, **seen})
    assert (again.status_code, again.headers["preference-applied"]) == (304, "return=minimal")
    assert "Prefer" in again.headers["vary"]
    assert shared_client.get(location, headers=seen).status_code == 200
    both = {"If-None-Match": ", ".join(tags)}
    assert shared_client.get(location, headers=both).headers["etag"] == tags[0]


def test_a_retry_may_ask_for_another_view_of_the_same_answer(client) -> None:
    key = {"Idempotency-Key": "the-same"}
    full = client.post("/v1/recommendations", json=SMALL, headers=key)
    brief = client.post("/v1/recommendations?view=brief", json=SMALL, headers=key)
    again = client.post("/v1/recommendations", json=SMALL, headers=key)
    assert brief.headers["idempotency-replayed"] == "true"
    assert brief.json()["id"] == full.json()["id"]
    assert again.json() == full.json()
    assert len(client.get("/v1/recommendations").json()["items"]) == 1


def test_an_answer_of_before_layouts_had_positions_is_shown_in_brief(client) -> None:
    found = client.post("/v1/recommendations", json=SMALL).json()
    older = without(found, "recommended", "layouts", "bolder")
    older |= {name: candidate(found, name) for name in ("fastest", "simplest")}
    older["ranked"] = [older["fastest"]]
    store_as_before(client, RecommendationRow, older)
    brief = client.get(f"/v1/recommendations/{found['id']}?view=brief").json()
    assert brief["step_time_s"] == predicted(found, "fastest")["step_time_s"]
