from __future__ import annotations

import csv
import io
import json
import time
from typing import Any

import pytest
from sqlalchemy import event

from service.schemas.layout import LayoutFields
from service.schemas.recommendation import RecommendationAnswer
from service.store.tables import RecommendationRow
from tests.long import one_in
from tests.paths import SHARED
from tests.service.asking import (
    QUESTION,
    SHAPE,
    assert_problem,
    candidate,
    changed,
    listed,
    predicted,
    store_as_before,
    without,
)
from tests.waiting import LONG_S

SMALL = changed(QUESTION, "cluster.num_chips", 16)
BOLD: dict[str, Any] = {
    "model": "llama-3-70b",
    "cluster": {"preset": "h100", "num_chips": 8},
    "workload": {"seq_len": 8192, "global_batch": 64},
    "stack": "torchtitan",
}
"""The fastest layout is less sure to fit than nine in ten."""
TIGHT: dict[str, Any] = {
    **changed(BOLD, "cluster.num_chips", 16),
    "constraints": {"offload_optimizer": False, "offload_activations": False},
}
"""A layout fits by the median, but none surely."""


def test_a_recommendation_is_stored_as_it_was_answered(client) -> None:
    made = client.post("/v1/recommendations", json=SMALL)
    assert made.status_code == 201
    assert client.get(made.headers["location"]).json() == made.json()
    RecommendationAnswer.model_validate(made.json())


def test_the_fastest_leads_and_the_simplest_is_within_the_tolerance(shared_client) -> None:
    found = shared_client.post(
        "/v1/recommendations", json={**SMALL, "tolerance": 0.1, "top": 3}
    ).json()
    times = [predicted(found, name)["step_time_s"] for name in ("fastest", "simplest")]
    assert found["simplest_gap"] == pytest.approx(times[1] / times[0] - 1)
    times = [one["prediction"]["step_time_s"] for one in listed(found, "ranked")]
    assert found["ranked"][0] == found["fastest"]
    assert times == sorted(times)
    assert len(times) <= 3
    assert predicted(found, "simplest")["step_time_s"] <= times[0] * 1.1
    assert candidate(found, "simplest")["complexity"] <= candidate(found, "fastest")["complexity"]
    assert found["chips_used"] == 16
    assert found["reasons"]
    assert found["pipelining"]["verdict"]


def test_what_is_recommended_fits_with_nine_in_ten_unless_the_request_says_otherwise(
    shared_client,
) -> None:
    plain = shared_client.post("/v1/recommendations", json=BOLD).json()
    assert plain["request"]["constraints"]["min_fit_probability"] == 0.9
    shown = [
        candidate(plain, "fastest"),
        candidate(plain, "simplest"),
        *listed(plain, "ranked"),
        *listed(plain, "front"),
    ]
    assert all(one["prediction"]["fit_probability"] >= 0.899 for one in shown)
    body = {**BOLD, "constraints": {"min_fit_probability": 0.5}}
    evenly = shared_client.post("/v1/recommendations", json=body).json()
    assert predicted(evenly, "fastest")["fit_probability"] < 0.9
    assert evenly["bolder"] is None
    assert any("constraints.min_fit_probability = 0.9" in line for line in evenly["reasons"])


def test_each_layout_is_written_once_the_one_to_launch_first(shared_client) -> None:
    """That is the recommended one; then come the others by step time."""
    fastest = set()
    for body in (BOLD, {**BOLD, "tolerance": 0.0}):
        found = shared_client.post("/v1/recommendations", json=body).json()
        assert found["recommended"] == 0
        layouts = [one["prediction"]["layout"] for one in found["layouts"]]
        assert all(layouts.count(layout) == 1 for layout in layouts)
        times = [one["prediction"]["step_time_s"] for one in found["layouts"][1:]]
        assert times == sorted(times)
        sides = [found["pipelining"][side] for side in ("without", "with_pp")]
        bolder = found["bolder"] and found["bolder"]["layout"]
        positions = [0, found["fastest"], bolder, *found["ranked"], *found["front"], *sides]
        assert {*positions} - {None} == {*range(len(layouts))}
        fastest.add(found["fastest"])
    assert 0 in fastest
    assert len(fastest) == 2


def test_the_bolder_layout_says_its_odds_and_its_gain_and_can_be_drawn_and_reported(client) -> None:
    found = client.post("/v1/recommendations", json=BOLD).json()
    bolder, fastest = predicted(found, "bolder"), predicted(found, "fastest")
    gain = fastest["step_time_s"] / bolder["step_time_s"] - 1
    assert found["bolder"]["gain"] == pytest.approx(gain)
    assert gain >= 0.01
    assert 0.5 <= bolder["fit_probability"] < fastest["fit_probability"]
    body = {**BOLD, "constraints": {"min_fit_probability": 0.5}}
    evenly = predicted(client.post("/v1/recommendations", json=body).json(), "fastest")
    assert evenly["step_time_s"] == bolder["step_time_s"]
    drawn = client.get(f"/v1/recommendations/{found['id']}/timeline?choice=bolder").json()
    assert drawn["step_time_s"] == bolder["step_time_s"]
    ran = {"recommendation_id": found["id"], "choice": "bolder", "outcome": "out_of_memory"}
    report = client.post("/v1/reports", json=ran).json()
    assert report["choice"] == "bolder"
    assert report["prediction"]["layout"] == bolder["layout"]


def test_what_surety_costs_is_a_reason_where_it_is_much(shared_client) -> None:
    body = {
        "model": "mixtral-8x7b",
        "cluster": {"preset": "h100", "num_chips": 16},
        "workload": {"seq_len": 8192, "global_batch": 128},
        "stack": "megatron",
    }
    found = shared_client.post("/v1/recommendations", json=body).json()
    assert found["bolder"]["gain"] > 0.1
    (facts,) = (facts for facts in found["reason_facts"] if facts["kind"] == "bolder")
    assert facts["figures"]["gain"] == found["bolder"]["gain"]


def test_where_nothing_is_sure_to_fit_the_surest_layout_is_told_and_can_be_asked_for(
    shared_client,
) -> None:
    refused = shared_client.post("/v1/recommendations", json=TIGHT)
    problem = assert_problem(refused, "infeasible")
    surest = problem["surest"]
    assert 0.5 <= problem["min_fit_probability"] <= surest["fit_probability"] < 0.9
    assert (
        f"constraints.min_fit_probability = {problem['min_fit_probability']:g}"
        in (problem["detail"])
    )
    assert problem["enough_chips"] == 32
    question = without(TIGHT, "constraints")
    alone = shared_client.post(
        "/v1/predictions", json={**question, "layout": surest["layout"]}
    ).json()["layouts"][0]
    assert alone["fit_probability"] == pytest.approx(surest["fit_probability"])
    least = problem["min_fit_probability"]
    again = changed(TIGHT, "constraints.min_fit_probability", least)
    found = shared_client.post("/v1/recommendations", json=again)
    assert found.is_success
    assert predicted(found.json(), "fastest")["fit_probability"] >= least - 1e-9


def test_where_not_even_the_predicted_memory_is_there_no_probability_helps(shared_client) -> None:
    body = changed(TIGHT, "cluster.num_chips", 8)
    problem = assert_problem(shared_client.post("/v1/recommendations", json=body), "infeasible")
    assert problem["surest"]["fit_probability"] < 0.5
    assert problem["min_fit_probability"] is None


def test_an_answer_of_before_it_named_a_bolder_layout_is_still_read(client) -> None:
    """It has layouts in full, and a surer one, which a report and a timeline may name."""
    found = client.post("/v1/recommendations", json=BOLD).json()
    older = without(found, "bolder", "recommended", "layouts")
    older |= {name: candidate(found, name) for name in ("fastest", "simplest")}
    older |= {name: listed(found, name) for name in ("ranked", "front")}
    older["surer"] = candidate(found, "simplest")
    store_as_before(client, RecommendationRow, older)
    address = f"/v1/recommendations/{found['id']}"
    assert client.get(address).json() == older
    assert client.get(f"{address}/timeline?choice=surer").status_code == 200
    ran = {"recommendation_id": found["id"], "outcome": "ok", "measured": {"step_time_s": 40.0}}
    report = client.post("/v1/reports", json={**ran, "choice": "surer"}).json()
    assert report["choice"] == "surer"
    assert report["prediction"]["layout"] == predicted(found, "simplest")["layout"]
    assert_problem(client.post("/v1/reports", json={**ran, "choice": "bolder"}), "invalid")
    for answer in (
        client.get(f"{address}/timeline?choice=fast"),
        client.post("/v1/reports", json={**ran, "choice": "fast"}),
    ):
        (error,) = assert_problem(answer, "invalid")["errors"]
        assert "bolder" in error["rule"]
        assert "surer" not in error["rule"]
    unnamed = client.post("/v1/reports", json=ran).json()
    assert unnamed["prediction"]["layout"] == predicted(found, "fastest")["layout"]


def test_a_slice_of_a_given_shape_is_not_cut(shared_client) -> None:
    """But of several some may be left."""
    body = {
        **changed(QUESTION, "stack", "maxtext"),
        "cluster": {"preset": "tpu-v5p", "torus_shape": [1, 1, 31]},
    }
    assert_problem(shared_client.post("/v1/recommendations", json=body), "infeasible")
    body["cluster"] = {"preset": "tpu-v5p", "torus_shape": [2, 2, 4], "num_chips": 48}
    body["workload"] = {"seq_len": 4096, "global_batch": 64}
    found = shared_client.post("/v1/recommendations", json=body).json()
    assert found["chips_used"] == 32


def test_every_layout_is_in_the_certificate_once(shared_client) -> None:
    found = shared_client.post("/v1/recommendations", json=SMALL).json()["certificate"]
    parts = ("over_memory", "pruned_by_memory", "pruned_by_bound", "evaluated")
    assert found["space"] == sum(found[part] for part in parts) + sum(found["rejected"].values())
    assert found["exact"]


def test_a_search_that_runs_out_of_time_answers_with_the_best_so_far_and_says_so(
    shared_client,
) -> None:
    exact = shared_client.post("/v1/recommendations", json=QUESTION).json()
    body = {**QUESTION, "time_limit_s": 1e-6}
    found = shared_client.post("/v1/recommendations", json=body).json()
    assert not found["certificate"]["exact"]
    assert any("The search was stopped" in reason for reason in found["reasons"])
    best, time = (
        predicted(exact, "fastest")["step_time_s"],
        predicted(found, "fastest")["step_time_s"],
    )
    assert best <= time <= best * (1 + found["certificate"]["gap"])


def test_alternatives_that_time_did_not_reach_are_not_said_to_be_settled(shared_client) -> None:
    body = {**QUESTION, "time_limit_s": 1e-6, "alternatives": {"num_chips": [16, 32]}}
    first, *others = shared_client.post("/v1/recommendations", json=body).json()["choices"]
    assert first["step_time_s"] > 0
    assert [other["exact"] for other in others] == [False, False]
    assert all("time ran out" in other["refused"] for other in others)


def test_the_answer_says_what_it_rests_on(client) -> None:
    found = client.post("/v1/recommendations", json=SMALL).json()
    assert found["profile"] == {"id": "default", "version": 1}
    assert found["catalogue"]["stack"]["name"] == "torchtitan"
    assert found["conventions"]["mfu"].keys() == predicted(found, "fastest")["mfu"].keys()
    assert found["request"]["tolerance"] == 0.03
    price = candidate(found, "fastest")["usd_per_million_tokens"]
    assert price > 0


def test_the_same_question_gets_the_same_answer(shared_client) -> None:
    first = shared_client.post("/v1/recommendations", json=SMALL).json()
    second = shared_client.post("/v1/recommendations", json=first["request"]).json()
    own = ("id", "created_at", "launch", "assumptions")  # a launch names the id
    assert without(first, *own) == without(second, *own)
    assert first["launch"]["arguments"] == second["launch"]["arguments"]


def test_constraints_are_kept(shared_client) -> None:
    body = {**SMALL, "constraints": {"tp": [2, 4], "pp": 1, "recompute": "full"}}
    for one in shared_client.post("/v1/recommendations", json=body).json()["layouts"]:
        layout = one["prediction"]["layout"]
        assert layout["tp"] in (2, 4)
        assert (layout["pp"], layout["recompute"]) == (1, "full")


def test_a_recommended_layout_predicts_the_same(shared_client) -> None:
    found = predicted(shared_client.post("/v1/recommendations", json=SMALL).json(), "fastest")
    alone = shared_client.post("/v1/predictions", json={**SMALL, "layout": found["layout"]}).json()[
        "layouts"
    ][0]
    assert alone["step_time_s"] == pytest.approx(found["step_time_s"])
    assert alone["needed_gib"] == pytest.approx(found["needed_gib"])


def test_what_cannot_fit_is_an_honest_answer(shared_client) -> None:
    body = changed(changed(QUESTION, "model", "llama-3.1-405b"), "cluster.num_chips", 8)
    answer = shared_client.post("/v1/recommendations", json=body)
    assert answer.status_code == 422
    found = assert_problem(answer, "infeasible")
    assert found["constraint"] == "memory"
    assert found["needed"] > found["available"] > 0
    assert found["unit"] == "GiB"
    enough = shared_client.post(
        "/v1/recommendations", json=changed(body, "cluster.num_chips", found["enough_chips"])
    )
    assert enough.is_success


CONTRADICTIONS = [
    {"tp": 3},
    {"pp": 64},
    {"dp": 1, "tp": 1, "cp": 1, "pp": 1},
    {"schedule": "dualpipe", "pp": 2},
    {"ep": 8},
    {"memory_reserve_gib": 79.0},
    {"micro_batch": 1000},
]


@pytest.mark.parametrize("constraints", CONTRADICTIONS)
def test_constraints_that_contradict_are_an_honest_answer(shared_client, constraints: dict) -> None:
    found = assert_problem(
        shared_client.post("/v1/recommendations", json={**SMALL, "constraints": constraints}),
        "infeasible",
    )
    assert found["constraint"]


def test_all_constraints_that_are_in_the_way_are_named_with_their_values(shared_client) -> None:
    asked = {**QUESTION, "constraints": {"tp": 4, "pp": [8], "dp": 4, "recompute": "none"}}
    found = assert_problem(
        shared_client.post("/v1/recommendations", json=asked), "infeasible", "/constraints/dp"
    )
    assert {error["pointer"]: error["value"] for error in found["errors"]} == {
        "/constraints/tp": 4, "/constraints/pp": [8], "/constraints/dp": 4,
    }  # fmt: skip
    assert "8 · 4 · 4 = 128, exceed the 64 devices" in found["detail"]
    assert found["unit"] is None
    sides = {"first": {}, "second": {"constraints": {"tp": 8, "cp": 16}}}
    compared = assert_problem(
        shared_client.post("/v1/comparisons", json={**QUESTION, **sides}),
        "infeasible",
        "/second/constraints/cp",
    )
    assert compared["constraint"] == "second.constraints.cp"


def test_a_zero_stage_that_the_stack_lacks_is_refused_by_name_wherever_it_is_asked(
    shared_client,
) -> None:
    asked = {**SMALL, "stack": "megatron", "constraints": {"zero_stage": 2}}
    found = assert_problem(
        shared_client.post("/v1/recommendations", json=asked),
        "infeasible",
        "/constraints/zero_stage",
    )
    assert "layouts are searched with stack.zero_stages 0, 1, 3; add 2 to it" in found["detail"]
    drawn = shared_client.post(
        "/v1/frontiers", json={**asked, "grid": {"scale_out": [1, 2]}}
    ).json()
    assert all(
        point["refused"].startswith("constraints.zero_stage: no legal layout")
        for point in drawn["points"]
    )
    sides = {"first": {}, "second": {"constraints": asked["constraints"]}}
    compared = shared_client.post(
        "/v1/comparisons", json={**without(asked, "constraints"), **sides}
    )
    assert_problem(compared, "infeasible", "/second/constraints/zero_stage")
    other = {**asked["cluster"], "stack": "megatron"}
    chosen = {**asked, "stack": "deepspeed", "alternatives": {"clusters": [other]}}
    choices = shared_client.post("/v1/recommendations", json=chosen).json()["choices"]
    assert choices[0]["refused"] is None
    assert choices[1]["refused"].startswith("constraints.zero_stage: no legal layout")


@pytest.mark.parametrize("num_chips", [1, 2, 7, 12, 61])
def test_any_number_of_chips_has_an_answer(shared_client, num_chips: int) -> None:
    body = changed(
        changed(QUESTION, "model", {**SHAPE, "num_layers": 4}), "cluster.num_chips", num_chips
    )
    answer = shared_client.post("/v1/recommendations", json=body)
    assert answer.is_success
    found = answer.json()
    assert found["chips_used"] <= num_chips
    assert (found["fewer_chips"] is None) == (found["chips_used"] == num_chips)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cluster.num_chips", 997),
        ("cluster.num_chips", 999_983),
        ("workload.global_batch", 1),
        ("workload.global_batch", 9_999_991),
        ("workload.seq_len", 1),
        ("workload.seq_len", 10**7),
    ],
)
def test_odd_questions_are_answered_in_time(shared_client, path: str, value: int) -> None:
    began = time.monotonic()
    answer = shared_client.post("/v1/recommendations", json=changed(QUESTION, path, value))
    assert answer.status_code in (200, 201, 422)
    if answer.status_code == 422:
        assert_problem(answer, "infeasible")
    assert time.monotonic() - began < LONG_S


def test_a_report_links_to_a_recommendation(client) -> None:
    recommendation = client.post("/v1/recommendations", json=SMALL).json()
    submission = {
        "recommendation_id": recommendation["id"],
        "outcome": "ok",
        "measured": {"step_time_s": 9.0},
    }
    found = client.post("/v1/reports", json=submission).json()
    assert found["choice"] is None
    assert found["prediction"]["layout"] == predicted(recommendation, "recommended")["layout"]
    first = client.post("/v1/reports", json={**submission, "rank": 1}).json()
    assert first["prediction"]["layout"] == predicted(recommendation, "fastest")["layout"]
    second = client.post("/v1/reports", json={**submission, "rank": 2}).json()
    ranked = listed(recommendation, "ranked")
    assert second["prediction"]["layout"] == ranked[1]["prediction"]["layout"]
    assert_problem(client.post("/v1/reports", json={**submission, "rank": 99}), "invalid", "/rank")


def test_a_report_names_a_layout_as_the_recommendation_does(client) -> None:
    made = client.post("/v1/recommendations", json=QUESTION).json()
    ran = {"recommendation_id": made["id"], "outcome": "ok", "measured": {"step_time_s": 2.5}}
    report = client.post("/v1/reports", json={**ran, "choice": "simplest"}).json()
    assert report["prediction"]["layout"] == predicted(made, "simplest")["layout"]
    layouts = [one["prediction"]["layout"] for one in listed(made, "ranked")]
    assert (report["choice"], layouts[report["rank"] - 1]) == (
        "simplest",
        report["prediction"]["layout"],
    )
    large = {
        **changed(QUESTION, "workload.global_batch", 256),
        "model": "llama-3-70b",
        "stack": "megatron",
    }
    large |= {"top": 1, "tolerance": 0.2}
    one_ranked = client.post("/v1/recommendations", json=large).json()["id"]
    beyond = {"recommendation_id": one_ranked, "outcome": "crashed", "choice": "simplest"}
    assert client.post("/v1/reports", json=beyond).json()["rank"] is None
    fastest = client.post("/v1/reports", json={**ran, "choice": "fastest"}).json()
    assert (fastest["choice"], fastest["rank"]) == ("fastest", 1)
    assert [item["choice"] for item in client.get("/v1/reports").json()["items"][::2]] == [
        "fastest",
        "simplest",
    ]
    lines = csv.DictReader(io.StringIO(client.get("/v1/reports?format=csv").text))
    assert [(line["choice"], line["rank"]) for line in lines][:2] == [
        ("fastest", "1"),
        ("simplest", ""),
    ]
    sure = client.post(
        "/v1/recommendations", json={**QUESTION, "constraints": {"min_fit_probability": 0.95}}
    ).json()
    assert "surer" not in sure
    surer = {**ran, "recommendation_id": sure["id"], "choice": "surer"}
    assert_problem(client.post("/v1/reports", json=surer), "invalid", "/choice")
    assert_problem(
        client.post("/v1/reports", json={**ran, "choice": "simplest", "rank": 1}),
        "invalid",
        "/choice",
    )


def test_a_report_on_fewer_chips_than_asked_is_of_those_that_were_used(client) -> None:
    asked = changed(changed(QUESTION, "cluster.num_chips", 61), "workload.global_batch", 64)
    recommendation = client.post("/v1/recommendations", json=asked).json()
    submission = {
        "recommendation_id": recommendation["id"],
        "outcome": "ok",
        "measured": {"step_time_s": 9.0},
    }
    found = client.post("/v1/reports", json=submission).json()
    assert found["request"]["cluster"]["num_chips"] == recommendation["chips_used"] < 61


@pytest.mark.parametrize(
    ("stack", "modules", "said"),
    [
        ("maxtext", ["alternate_mm"], "maxtext recomputes the modules"),
        ("deepspeed", ["core_attn"], "deepspeed recomputes none, full"),
        ("megatron", ["moe_act"], "no layer of llama-3-8b has moe_act"),
    ],
)
def test_modules_that_cannot_be_recomputed_are_refused(
    shared_client, stack: str, modules: list[str], said: str
) -> None:
    asked = {**QUESTION, "stack": stack, "constraints": {"recompute_modules": modules}}
    body = assert_problem(
        shared_client.post("/v1/recommendations", json=asked),
        "invalid",
        "/constraints/recompute_modules",
    )
    assert said in body["errors"][0]["rule"]


def test_what_needs_as_much_as_a_run_out_of_memory_is_left_out(client) -> None:
    first = client.post("/v1/recommendations", json=QUESTION).json()
    assert first["out_of_memory"] == []
    assert not any("out of memory" in reason for reason in first["reasons"])
    report = client.post(
        "/v1/reports", json={"recommendation_id": first["id"], "outcome": "out_of_memory"}
    ).json()
    again = client.post("/v1/recommendations", json=QUESTION).json()
    ran = first["layouts"][0]["prediction"]
    layout, needed = ran["layout"], ran["needed_gib"]
    assert [(run["report_id"], run["layout"]) for run in again["out_of_memory"]] == [
        (report["id"], layout)
    ]
    assert again["out_of_memory"][0]["needed_gib"] == pytest.approx(needed)
    shown = [
        candidate(again, "fastest"),
        candidate(again, "simplest"),
        *listed(again, "ranked"),
        *listed(again, "front"),
    ]
    assert max(candidate["prediction"]["needed_gib"] for candidate in shown) < needed
    assert again["reasons"][0].startswith("left out:")
    assert report["id"] in again["reasons"][0]
    larger = client.post(
        "/v1/recommendations", json=changed(QUESTION, "workload.global_batch", 256)
    ).json()
    assert [run["report_id"] for run in larger["out_of_memory"]] == [report["id"]]
    elsewhere = client.post(
        "/v1/recommendations", json=changed(QUESTION, "stack", "megatron")
    ).json()
    assert elsewhere["out_of_memory"] == []


def test_all_answers_leave_out_what_has_run_out_of_memory(client) -> None:
    first = client.post("/v1/recommendations", json=QUESTION).json()
    needed = predicted(first, "fastest")["needed_gib"]
    client.post("/v1/reports", json={"recommendation_id": first["id"], "outcome": "out_of_memory"})
    chips = QUESTION["cluster"]["num_chips"]
    objective = {"minimize": "chips", "tokens": 1e9, "deadline_hours": 1e6}
    others = {"num_chips": [chips // 2], "up_to_chips": chips}
    placed = client.post(
        "/v1/recommendations",
        json={**QUESTION, "objective": {}, "alternatives": others | {"up_to_chips": None}},
    )
    found = placed.json()
    best = found["choices"][0]
    assert best["name"] == "cluster"
    assert best["step_time_s"] == predicted(found, "fastest")["step_time_s"]
    assert predicted(found, "fastest")["needed_gib"] < needed
    fewest = client.post(
        "/v1/recommendations", json={**QUESTION, "objective": objective, "alternatives": others}
    ).json()
    assert fewest["choices"][0]["step_time_s"] == predicted(fewest, "fastest")["step_time_s"]
    sides = {
        "first": {"constraints": {}},
        "second": {"layout": predicted(first, "fastest")["layout"]},
    }
    compared = client.post("/v1/comparisons", json={**QUESTION, **sides}).json()
    assert compared["first"]["prediction"]["layout"] == predicted(found, "fastest")["layout"]
    assert any(reason.startswith("left out:") for reason in compared["reasons"])
    assert any("second is predicted to need" in reason for reason in compared["reasons"])
    drawn = client.post("/v1/frontiers", json={**QUESTION, "grid": {"scale_up": [1]}}).json()
    (point,) = drawn["points"]
    assert any(reason.startswith("left out:") for reason in drawn["reasons"])
    times = [point["without_s"], point["with_s"]]
    assert min(times) == pytest.approx(predicted(found, "fastest")["step_time_s"])


def test_where_all_that_fits_has_run_out_of_memory_the_answer_warns(client) -> None:
    pinned = {**QUESTION, "constraints": dict.fromkeys(("pp", "tp", "cp", "micro_batch"), 1)}
    pinned["constraints"] |= {
        "recompute": "full",
        "zero_stage": 3,
        "reshard": True,
        "offload_optimizer": False,
        "min_fit_probability": 0.5,
    }
    first = client.post("/v1/recommendations", json=pinned).json()
    report = client.post(
        "/v1/reports", json={"recommendation_id": first["id"], "outcome": "out_of_memory"}
    ).json()
    again = client.post("/v1/recommendations", json=pinned).json()
    assert predicted(again, "fastest")["layout"] == predicted(first, "fastest")["layout"]
    assert "this layout" in again["reasons"][0]
    assert report["id"] in again["reasons"][0]


@pytest.mark.parametrize("outcome", one_in(2, ["ok", "out_of_memory"]))
def test_many_reports_of_another_run_change_nothing_of_what_ran_out_of_memory(
    client, outcome: str
) -> None:
    """Neither what stands nor what was disproved, and one report of a run says as much as many."""
    small, large = (
        {"dp_shard": 8, "tp": 8, "recompute": "full"},
        {"dp_replicate": 64, "zero_stage": 0, "micro_batch": 2},
    )
    other = (
        {"layout": large}
        if outcome != "ok"
        else {"layout": small, "measured": {"step_time_s": 9.0}}
    )
    others = {"reports": 150 * [{**QUESTION, **other, "outcome": outcome}]}
    first = client.post("/v1/recommendations", json=QUESTION).json()
    linked = {"recommendation_id": first["id"]}
    report = client.post("/v1/reports", json={**linked, "outcome": "out_of_memory"}).json()
    assert client.post("/v1/reports", json=others).status_code < 300
    stands = client.post("/v1/recommendations", json=QUESTION).json()
    assert report["id"] in [run["report_id"] for run in stands["out_of_memory"]]
    assert report["id"] in stands["reasons"][0]
    client.post("/v1/reports", json={**linked, "outcome": "ok", "measured": {"step_time_s": 2.4}})
    assert client.post("/v1/reports", json=others).status_code < 300
    again = client.post("/v1/recommendations", json=QUESTION).json()
    assert report["id"] not in [run["report_id"] for run in again["out_of_memory"]]
    assert predicted(again, "fastest")["layout"] == predicted(first, "fastest")["layout"]


@pytest.mark.parametrize("outcome", one_in(2, ["crashed", "aborted"]))
def test_a_run_that_failed_for_another_reason_disproves_by_its_steps(client, outcome: str) -> None:
    first = client.post("/v1/recommendations", json=QUESTION).json()
    linked = {"recommendation_id": first["id"]}
    client.post("/v1/reports", json={**linked, "outcome": "out_of_memory"})
    client.post("/v1/reports", json={**linked, "outcome": outcome})
    assert len(client.post("/v1/recommendations", json=QUESTION).json()["out_of_memory"]) == 1
    ran = client.post(
        "/v1/reports", json={**linked, "outcome": outcome, "measured": {"step_time_s": 2.4}}
    ).json()
    assert ran["fit_verdict_agrees"] is True
    assert client.post("/v1/recommendations", json=QUESTION).json()["out_of_memory"] == []


@pytest.mark.parametrize(("chips", "constraints"), [(1, {}), (8, {}), (8, {"pp": 1}), (64, {})])
def test_a_model_of_one_layer_has_an_answer(
    shared_client, chips: int, constraints: dict[str, int]
) -> None:
    asked = {
        **QUESTION,
        "model": {**SHAPE, "num_layers": 1},
        "cluster": {"preset": "h100", "num_chips": chips},
    }
    found = shared_client.post("/v1/recommendations", json={**asked, "constraints": constraints})
    assert found.is_success, found.json()
    assert predicted(found.json(), "fastest")["layout"]["pp"] == 1
    assert found.json()["pipelining"]["needed"] is not True


def test_a_later_run_that_ended_well_disproves_one_out_of_memory(client) -> None:
    first = client.post("/v1/recommendations", json=QUESTION).json()
    linked = {"recommendation_id": first["id"]}
    client.post("/v1/reports", json={**linked, "outcome": "out_of_memory"})
    client.post("/v1/reports", json={**linked, "outcome": "ok", "measured": {"step_time_s": 2.4}})
    again = client.post("/v1/recommendations", json=QUESTION).json()
    assert again["out_of_memory"] == []
    assert not any("out of memory" in reason for reason in again["reasons"])


def test_a_run_that_ended_well_before_disproves_nothing_whenever_it_is_reported(client) -> None:
    first = client.post("/v1/recommendations", json=QUESTION).json()
    linked = {"recommendation_id": first["id"]}
    client.post(
        "/v1/reports",
        json={**linked, "outcome": "out_of_memory", "measured_at": "2026-06-02T00:00:00Z"},
    )
    ok = {**linked, "outcome": "ok", "measured": {"step_time_s": 2.4}}
    client.post("/v1/reports", json={**ok, "measured_at": "2026-06-01T00:00:00Z"})
    assert len(client.post("/v1/recommendations", json=QUESTION).json()["out_of_memory"]) == 1
    client.post("/v1/reports", json={**ok, "measured_at": "2026-06-03T00:00:00Z"})
    assert client.post("/v1/recommendations", json=QUESTION).json()["out_of_memory"] == []


def test_the_answer_is_for_the_best_of_the_alternatives(shared_client) -> None:
    others = {
        "clusters": [{"preset": "a100", "num_chips": 16}],
        "num_chips": [8, 32, 16, 8],
    }  # its own 16, and 8 twice
    found = shared_client.post("/v1/recommendations", json={**SMALL, "alternatives": others}).json()
    names = [choice["name"] for choice in found["choices"]]
    assert sorted(names) == [
        "alternatives.clusters[0]", "alternatives.num_chips[0]", "alternatives.num_chips[1]",
        "cluster",
    ]  # fmt: skip
    assert names[0] == "alternatives.num_chips[1]"
    assert found["reasons"][0].startswith(
        "where: of 4 places alternatives.num_chips[1] (32 h100-sxm-80gb) has the shortest step: "
    )
    assert found["chips_used"] == 32
    assert predicted(found, "fastest")["step_time_s"] == found["choices"][0]["step_time_s"]
    assert found["request"]["alternatives"]["num_chips"] == others["num_chips"]
    assert [other["num_chips"] for other in found["request"]["alternatives"]["clusters"]] == [16]
    assert found["request"]["cluster"] == {"preset": "h100-sxm-80gb", "num_chips": 16}
    again = shared_client.post("/v1/recommendations", json=found["request"]).json()
    assert candidate(again, "fastest") == candidate(found, "fastest")
    assert again["choices"] == found["choices"]


@pytest.mark.parametrize("chips", [8, 32])
def test_a_report_of_the_best_alternative_is_of_its_cluster(client, chips: int) -> None:
    others = {"clusters": [{"preset": "h200", "num_chips": chips}]}
    made = client.post("/v1/recommendations", json={**SMALL, "alternatives": others}).json()
    best = made["choices"][0]
    assert best["name"] == ("alternatives.clusters[0]" if chips == 32 else "cluster")
    submission = {
        "recommendation_id": made["id"],
        "outcome": "ok",
        "measured": {"step_time_s": 9.0},
    }
    found = client.post("/v1/reports", json={**submission, "choice": "fastest"}).json()
    assert found["request"]["cluster"] == best["cluster"]
    assert found["prediction"]["step_time_s"] == pytest.approx(best["step_time_s"])
    (replayed,) = client.post("/v1/profiles/default/versions/1/replay").json()["answers"]
    assert replayed["layouts"][0]["replayed_step_time_s"] == pytest.approx(best["step_time_s"])


def test_where_no_cluster_will_do_each_is_told_why(shared_client) -> None:
    large = {**SMALL, "model": "deepseek-v3", "alternatives": {"num_chips": [24, 32]}}
    found = assert_problem(shared_client.post("/v1/recommendations", json=large), "infeasible")
    assert "none of 3 clusters has a layout that fits" in found["detail"]
    for name in (
        "cluster (16 h100-sxm-80gb)",
        "num_chips[0] (24 h100-sxm-80gb)",
        "num_chips[1] (32 h100-sxm-80gb)",
    ):
        assert f"{name}: memory: at least" in found["detail"]
    assert found["needed"] > found["available"]


def test_the_cheapest_by_a_deadline_is_found(shared_client) -> None:
    objective = {
        "minimize": "cost",
        "tokens": 1e10,
        "usd_per_chip_hour": 2.5,
        "deadline_hours": 1e6,
    }
    body = {**SMALL, "alternatives": {"num_chips": [8, 32]}, "objective": objective}
    choices = shared_client.post("/v1/recommendations", json=body).json()["choices"]
    assert [choice["usd"] for choice in choices] == sorted(choice["usd"] for choice in choices)
    assert all(choice["meets"] for choice in choices)
    hasty = {**body, "objective": {**objective, "deadline_hours": 0.001}}
    found = shared_client.post("/v1/recommendations", json=hasty).json()
    assert not any(choice["meets"] for choice in found["choices"])
    assert found["reasons"][0].startswith(
        "where: none of 3 places keeps deadline_hours = 0.001 with a probability of 0.9; the"
        " nearest is"
    )


@pytest.mark.parametrize("said", ["checkpoint_s", "restart_s"])
def test_what_failures_are_taken_to_cost_nothing_of_is_said(shared_client, said: str) -> None:
    objective = {"failures_per_chip_hour": 1e-4, said: 60.0}
    lines = shared_client.post(
        "/v1/recommendations", json={**SMALL, "objective": objective}
    ).json()["assumptions"]
    open_ = [name for name in ("checkpoint_s", "restart_s") if name != said]
    assert [line.split(" is 0")[0] for line in lines if "goodput" in line] == [
        f"objective.{name}" for name in open_
    ]
    without_failures = shared_client.post(
        "/v1/recommendations", json={**SMALL, "objective": {said: 60.0}}
    ).json()
    assert not any("goodput" in line for line in without_failures["assumptions"])


def test_a_chunk_without_layers_is_pointed_out(shared_client) -> None:
    def said(virtual_stages: int) -> bool:
        constraints = {"pp": 4, "virtual_stages": virtual_stages}
        body = {**SMALL, "stack": "megatron", "constraints": constraints}
        found = shared_client.post("/v1/recommendations", json=body).json()
        empty = 0 in predicted(found, "fastest")["layers_per_chunk"]
        assert empty == (virtual_stages == 4)
        return any("a chunk without layers" in line for line in found["assumptions"])

    assert said(4)
    assert not said(2)


@pytest.mark.parametrize(("batch", "said"), [(2**22, True), (128, False)])
def test_a_batch_that_looks_like_tokens_is_pointed_out(
    shared_client, batch: int, said: bool
) -> None:
    found = shared_client.post(
        "/v1/recommendations", json=changed(SMALL, "workload.global_batch", batch)
    ).json()
    assert ("counts sequences, not tokens" in found["reasons"][0]) == said
    brief = shared_client.get(f"/v1/recommendations/{found['id']}?view=brief").json()
    assert brief["reasons"][0] == found["reasons"][0]


def test_of_several_places_those_that_keep_the_limits_are_compared(shared_client) -> None:
    objective = {
        "minimize": "time",
        "tokens": 1e10,
        "usd_per_chip_hour": 2.5,
        "deadline_probability": 0.5,
    }
    body = {**SMALL, "alternatives": {"num_chips": [8, 32]}, "objective": objective}
    costs = sorted(
        choice["usd"]
        for choice in shared_client.post("/v1/recommendations", json=body).json()["choices"]
    )
    tight = {**body, "objective": {**objective, "budget_usd": (costs[0] + costs[1]) / 2}}
    found = shared_client.post("/v1/recommendations", json=tight).json()
    assert [choice["meets"] for choice in found["choices"]] == [True, False, False]
    assert found["reasons"][0].startswith("where: only one of 3 places keeps budget_usd")
    assert "; then" not in found["reasons"][0]
    two = {**body, "objective": {**objective, "budget_usd": (costs[1] + costs[2]) / 2}}
    found = shared_client.post("/v1/recommendations", json=two).json()
    hours = [choice["hours"] for choice in found["choices"] if choice["meets"]]
    assert len(hours) == 2
    assert hours == sorted(hours)
    assert "2 of 3 places keep budget_usd" in found["reasons"][0]
    assert f"then {found['choices'][1]['name']}" in found["reasons"][0]


def test_a_place_is_judged_by_the_best_that_it_can_do(shared_client) -> None:
    """On 100 chips all of which are used a step takes twice as long as on 96 of them: the deadline
    is kept with those, and those are what is recommended."""
    body = {
        **QUESTION,
        "cluster": {"preset": "gb200", "num_chips": 100},
        "workload": {"seq_len": 8192, "global_batch": 128},
    }
    alone = shared_client.post("/v1/recommendations", json=body).json()
    fewer_s = predicted(alone, "fastest")["step_time_s"]
    between = (fewer_s + alone["fewer_chips"]["all_chips_s"]) / 2
    hours = 1e12 / (128 * 8192) * between / 3600
    objective = {"minimize": "time", "tokens": 1e12, "deadline_hours": hours}
    found = shared_client.post("/v1/recommendations", json={**body, "objective": objective}).json()
    (choice,) = found["choices"]
    assert choice["meets"]
    assert choice["num_chips"] == 100
    assert choice["chips_used"] == found["chips_used"] == 96
    assert choice["step_time_s"] == predicted(found, "fastest")["step_time_s"] == fewer_s
    assert found["fewer_chips"] == alone["fewer_chips"]
    assert choice["all_chips_s"] == alone["fewer_chips"]["all_chips_s"]
    assert found["reasons"][1].startswith("4 of the 100 chips are left out")


def test_every_place_has_the_price_that_it_is_ranked_by(shared_client) -> None:
    cluster = {"preset": "a100", "num_chips": 16}
    body = {
        **SMALL,
        "alternatives": {"clusters": [cluster]},
        "objective": {"minimize": "cost", "tokens": 1e9},
    }
    for choice in shared_client.post("/v1/recommendations", json=body).json()["choices"]:
        assert choice["usd"] == pytest.approx(
            choice["usd_per_chip_hour"] * choice["num_chips"] * choice["hours"]
        )


def test_a_place_whose_chip_has_no_list_price_does_not_refuse_the_comparison(
    shared_client,
) -> None:
    body = {
        **SMALL,
        "alternatives": {"clusters": [{"preset": "gb300", "num_chips": 16}]},
        "objective": {"minimize": "cost", "tokens": 1e9},
    }
    first, last = shared_client.post("/v1/recommendations", json=body).json()["choices"]
    assert (first["name"], first["missing"]) == ("cluster", None)
    assert last["missing"].startswith("a price: none is published for gb300-nvl72")
    assert last["hours"] > 0
    assert last["usd"] is None
    body["objective"]["prices"] = {"gb300": 0.5, "h100": 6.0}
    first, last = shared_client.post("/v1/recommendations", json=body).json()["choices"]
    assert (first["chip"], first["usd_per_chip_hour"]) == ("gb300-nvl72", 0.5)
    assert last["usd_per_chip_hour"] == 6.0
    body["objective"]["prices"] = {"h1000": 6.0}
    answer = shared_client.post("/v1/recommendations", json=body)
    assert_problem(answer, "unknown-name", "/objective/prices/h1000")


def test_a_choice_tells_its_layout_mfu_and_odds(shared_client) -> None:
    body = {
        **SMALL,
        "alternatives": {"num_chips": [32]},
        "objective": {"minimize": "cost", "tokens": 1e9, "deadline_hours": 1e4},
    }
    found = shared_client.post("/v1/recommendations", json=body).json()
    fastest = predicted(found, "fastest")
    best = found["choices"][0]
    assert best["layout"] == fastest["layout"]
    assert best["mfu"] == fastest["mfu"]
    assert "micro_batch=" in best["layout_summary"]
    assert best["meets_probability"] == pytest.approx(1.0)
    assert best["hours_low"] < best["hours"] < best["hours_high"]
    assert best["usd_low"] < best["usd"] < best["usd_high"]


def test_where_the_own_cluster_cannot_run_the_stack_another_place_can(shared_client) -> None:
    body = {
        **SMALL,
        "stack": "megatron",
        "cluster": {"preset": "v5p-32"},
        "alternatives": {
            "clusters": [{"preset": "h100", "num_chips": 16}],
            "num_chips": [32],
            "up_to_chips": 64,
        },
        "objective": {"tokens": 1e9, "deadline_hours": 1e4},
    }
    found = shared_client.post("/v1/recommendations", json=body).json()
    first, own = found["choices"]
    assert first["name"] == "alternatives.clusters[0]"
    assert own["name"] == "cluster"
    assert own["refused"].startswith("stack megatron: runs on")
    again = shared_client.post("/v1/recommendations", json=found["request"]).json()
    assert again["choices"] == found["choices"]


def test_a_price_that_is_given_goes_before_that_of_the_objective(shared_client) -> None:
    dear = {"preset": "a100", "num_chips": 16, "usd_per_chip_hour": 9.0}
    body = {
        **SMALL,
        "alternatives": {"clusters": [dear]},
        "objective": {"tokens": 1e9, "usd_per_chip_hour": 3.0},
    }
    found = shared_client.post("/v1/recommendations", json=body).json()
    paid = {choice["name"]: choice["usd"] / choice["hours"] / 16 for choice in found["choices"]}
    assert paid == {"cluster": pytest.approx(3.0), "alternatives.clusters[0]": pytest.approx(9.0)}
    assert candidate(found, "fastest")["usd_per_million_tokens"] == pytest.approx(
        found["choices"][0]["usd_per_million_tokens"]
    )
    assert not any("USD an hour" in line for line in found["assumptions"])
    assert any(
        "USD an hour" in line
        for line in shared_client.post("/v1/recommendations", json=SMALL).json()["assumptions"]
    )


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"objective": {"minimize": "fun"}}, "/objective/minimize"),
        ({"objective": {"deadline_hours": 3}}, "/objective/tokens"),
        (
            {"alternatives": {"clusters": [{"preset": "nothing", "num_chips": 8}]}},
            "/alternatives/clusters/0/preset",
        ),
        ({"alternatives": {"num_chips": [0]}}, "/alternatives/num_chips/0"),
        (
            {"alternatives": {"clusters": [{"preset": "h200", "num_chips": 8, "stack": "x"}]}},
            "/alternatives/clusters/0/stack",
        ),
    ],
)
def test_a_bad_alternative_is_named(
    shared_client, changes: dict[str, object], pointer: str
) -> None:
    answer = shared_client.post("/v1/recommendations", json={**SMALL, **changes})
    assert answer.status_code in (404, 422)
    assert pointer in [error["pointer"] for error in answer.json()["errors"]]


def test_an_alternative_may_have_a_stack_of_its_own(shared_client) -> None:
    """GPUs and TPUs in one comparison, and back from its own answer; what ran is then of that
    stack."""
    slice_ = {"preset": "v5p-32", "stack": {"name": "maxtext", "max_tp": 4}}
    body = {
        **SMALL,
        "stack": "megatron",
        "alternatives": {"clusters": [slice_, {"preset": "h200", "num_chips": 16}]},
    }
    found = shared_client.post(
        "/v1/recommendations", json={**body, "objective": {"minimize": "chips"}}
    ).json()
    stacks = {choice["name"]: choice["stack"] for choice in found["choices"]}
    assert stacks == {
        "cluster": "megatron", "alternatives.clusters[0]": slice_["stack"],
        "alternatives.clusters[1]": "megatron",
    }  # fmt: skip
    assert not any(choice["refused"] for choice in found["choices"])
    again = shared_client.post("/v1/recommendations", json=found["request"]).json()
    assert again["choices"] == found["choices"]
    alone = {**body, "cluster": {"preset": "v5p-32"}, "stack": slice_["stack"], "alternatives": {}}
    (there,) = shared_client.post(
        "/v1/recommendations", json={**alone, "objective": {"minimize": "chips"}}
    ).json()["choices"]
    assert {**there, "name": "alternatives.clusters[0]"} in found["choices"]


def test_a_report_of_the_best_alternative_is_of_its_stack(client) -> None:
    own = {**SMALL, "cluster": {"preset": "a100", "num_chips": 8}, "stack": "megatron"}
    body = {**own, "alternatives": {"clusters": [{"preset": "v5p-64", "stack": "maxtext"}]}}
    made = client.post("/v1/recommendations", json=body).json()
    assert made["choices"][0]["name"] == "alternatives.clusters[0]"
    assert made["catalogue"]["stack"]["name"] == "maxtext"
    assert made["request"]["stack"] == "megatron"
    ran = {"recommendation_id": made["id"], "outcome": "ok", "measured": {"step_time_s": 9.0}}
    found = client.post("/v1/reports", json=ran).json()
    assert found["request"]["stack"] == "maxtext"
    assert found["prediction"]["step_time_s"] == pytest.approx(
        predicted(made, "fastest")["step_time_s"]
    )
    (replayed,) = client.post("/v1/profiles/default/versions/1/replay").json()["answers"]
    assert replayed["layouts"][0]["replayed_step_time_s"] == pytest.approx(
        made["choices"][0]["step_time_s"]
    )


@pytest.mark.parametrize(
    ("precision", "other", "why"),
    [
        (
            "bf16",
            {"preset": "v5p-32"},
            "stack megatron: runs on chips of nvidia, amd, huawei, not on tpu-v5p",
        ),
        (
            "fp8",
            {"preset": "a100", "num_chips": 16},
            "workload.precision fp8: NVIDIA A100 SXM4 80GB has no published",
        ),
    ],
)
def test_what_one_alternative_cannot_run_refuses_that_one(
    shared_client, precision: str, other: dict[str, Any], why: str
) -> None:
    body = {**changed(SMALL, "workload.precision", precision), "stack": "megatron"}
    found = shared_client.post(
        "/v1/recommendations", json={**body, "alternatives": {"clusters": [other]}}
    ).json()
    best, last = found["choices"]
    assert best["name"] == "cluster"
    assert last["refused"].startswith(why)
    assert last["num_chips"] == 16
    assert (
        "where: of 2 places cluster (16 h100-sxm-80gb) has the shortest step: "
        in found["reasons"][0]
    )
    wrong = {**body, "cluster": other, "alternatives": {"num_chips": [8]}}
    assert_problem(
        shared_client.post("/v1/recommendations", json=wrong),
        "invalid",
        f"/{why.split()[0].replace('.', '/')}",
    )


def test_a_constraint_that_the_stack_of_one_alternative_does_not_know_refuses_that_one(
    shared_client,
) -> None:
    body = {**SMALL, "stack": "megatron", "constraints": {"recompute_modules": ["core_attn"]}}
    place = {"preset": "h200", "num_chips": 16}
    other = {**place, "stack": "torchtitan"}
    found = shared_client.post(
        "/v1/recommendations", json={**body, "alternatives": {"clusters": [other]}}
    ).json()
    assert [choice["name"] for choice in found["choices"]] == [
        "cluster",
        "alternatives.clusters[0]",
    ]
    assert found["choices"][1]["refused"].startswith(
        "constraints.recompute_modules: stack torchtitan recomputes"
    )
    nowhere = {
        **body,
        "stack": "torchtitan",
        "cluster": place,
        "alternatives": {"clusters": [other]},
    }
    answer = shared_client.post("/v1/recommendations", json=nowhere)
    assert_problem(answer, "invalid", "/constraints/recompute_modules")


def test_another_number_of_chips_than_a_slice_has_is_named_where_it_stands(shared_client) -> None:
    body = {
        **SMALL,
        "stack": "maxtext",
        "cluster": {"preset": "v5p-32"},
        "alternatives": {"num_chips": [64]},
    }
    assert_problem(
        shared_client.post("/v1/recommendations", json=body), "invalid", "/alternatives/num_chips/0"
    )


@pytest.mark.parametrize(
    ("leaves", "said"),
    [
        ([4, 4], None),
        (
            [2, 6],
            (
                "leaves order ranks only: they hold 16 to 48 of the chips in use, and traffic is"
                " priced as if leaf joined"
            ),
        ),
        ([8], "leaves order ranks only: they hold 64 of the chips in use"),
        ([], None),
    ],
)
def test_leaves_that_are_priced_as_others_are_said(
    shared_client, leaves: list[int], said: str | None
) -> None:
    named = [{"leaf": f"l{i}"} for i, count in enumerate(leaves) for _ in range(count)] or [{}] * 8
    nodes = [{"name": f"n{i}", "chips": 8, **leaf} for i, leaf in enumerate(named)]
    levels = [
        {"name": "node", "size": 8, "gb_s_per_chip": 450, "scale": "up"},
        {"name": "leaf", "size": 32, "gb_s_per_chip": 50},
        {"name": "spine", "gb_s_per_chip": 12},
    ]
    cluster = {"chip": "h100", "num_chips": 64, "levels": levels}
    found = shared_client.post(
        "/v1/recommendations", json={**QUESTION, "cluster": cluster, "allocation": {"nodes": nodes}}
    )
    lines = [line for line in found.json()["assumptions"] if line.startswith("leaves")]
    assert len(lines) == (said is not None)
    assert all(line.startswith(said or "") for line in lines)


@pytest.mark.long
def test_held_nodes_are_used_and_ranks_placed_on_them(shared_client) -> None:
    nodes = [{"name": f"n{i}", "chips": 8 if i else 7} for i in range(3)]
    body = {**SMALL, "cluster": {"preset": "h100"}, "allocation": {"nodes": nodes}}
    found = shared_client.post("/v1/recommendations", json=body).json()
    hosts = found["allocation"]["hosts"]
    assert sum(host["chips"] for host in hosts) == found["chips_used"]
    assert {host["node"] for host in hosts} <= {"n0", "n1", "n2"}
    spare = 23 - found["chips_used"]
    assert sum(found["allocation"]["spares"].values()) == spare > 0
    assert found["reasons"][-1].startswith(f"{spare} of the 23 chips that are held are spare")
    again = shared_client.post("/v1/recommendations", json=found["request"]).json()
    assert again["allocation"] == found["allocation"]
    assert candidate(again, "fastest") == candidate(found, "fastest")


@pytest.mark.parametrize(
    ("most", "why"),
    [
        (8, "8 of the 16 chips that are held are spare: cluster.num_chips lets at most 8 be used."),
        (9, "cluster.num_chips lets at most 9 be used, and the fastest way found uses 8."),
    ],
)
def test_chips_are_spare_because_of_the_limit_where_it_is_the_limit(
    shared_client, most: int, why: str
) -> None:
    nodes = [{"name": name, "chips": 8} for name in "ab"]
    body = {
        **SMALL,
        "cluster": {"preset": "h100", "num_chips": most},
        "allocation": {"nodes": nodes},
    }
    assert shared_client.post("/v1/recommendations", json=body).json()["reasons"][-1].endswith(why)


@pytest.mark.parametrize(
    ("nodes", "pointer"),
    [
        ([], "/allocation/nodes"),
        ([{"name": "a", "chips": 8}, {"name": "a", "chips": 8}], "/allocation/nodes/1/name"),
        (
            [{"name": n, "chips": 4, "domain": "r", "leaf": n} for n in "ab"],
            "/allocation/nodes/1/leaf",
        ),
        ([{"name": "a", "chips": 80}], "/allocation/nodes"),
    ],
)
def test_bad_nodes_are_named(shared_client, nodes: list[dict[str, object]], pointer: str) -> None:
    body = {**SMALL, "cluster": {"preset": "h100"}, "allocation": {"nodes": nodes}}
    assert_problem(shared_client.post("/v1/recommendations", json=body), "invalid", pointer)


def test_of_several_allocations_the_best_is_chosen_and_ranks_placed_on_it(shared_client) -> None:
    def nodes(*chips: int, name: str) -> dict[str, Any]:
        return {"nodes": [{"name": f"{name}{i}", "chips": held} for i, held in enumerate(chips)]}

    body = {
        **SMALL,
        "cluster": {"preset": "h100"},
        "allocation": nodes(8, 8, name="a"),
        "alternatives": {
            "allocations": [nodes(8, 8, 8, 8, name="b"), nodes(8, name="c")],
            "clusters": [{"preset": "a100", "num_chips": 16}],
        },
    }
    found = shared_client.post("/v1/recommendations", json=body).json()
    assert found["choices"][0]["name"] == "alternatives.allocations[0]"
    assert {choice["name"]: choice["num_chips"] for choice in found["choices"]} == {
        "cluster": 16,
        "alternatives.allocations[0]": 32,
        "alternatives.allocations[1]": 8,
        "alternatives.clusters[0]": 16,
    }
    assert {host["node"][0] for host in found["allocation"]["hosts"]} == {"b"}
    used = sum(host["chips"] for host in found["allocation"]["hosts"])
    assert used == found["chips_used"] == found["choices"][0]["chips_used"]
    again = shared_client.post("/v1/recommendations", json=found["request"]).json()
    assert again["allocation"] == found["allocation"]
    assert again["choices"] == found["choices"]


@pytest.mark.long
def test_an_allocation_that_no_layout_fits_on_is_refused_by_itself(shared_client) -> None:
    body = {
        **SMALL,
        "model": "llama-3.1-70b",
        "cluster": {"preset": "h100"},
        "allocation": {"nodes": [{"name": "a", "chips": 1}]},
        "alternatives": {
            "allocations": [{"nodes": [{"name": f"b{i}", "chips": 8} for i in range(8)]}]
        },
    }
    found = shared_client.post("/v1/recommendations", json=body).json()
    refused = {choice["name"]: choice["refused"] for choice in found["choices"]}
    assert refused["alternatives.allocations[0]"] is None
    assert refused["cluster"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"alternatives": {"num_chips": [8]}}, "/alternatives/num_chips"),
        (
            {
                "alternatives": {"up_to_chips": 8},
                "objective": {"deadline_hours": 100, "tokens": 1e9},
            },
            "/alternatives/up_to_chips",
        ),
        (
            {"alternatives": {"allocations": [{"nodes": [{"name": "c", "chips": 9}]}]}},
            "/alternatives/allocations/0/nodes",
        ),
    ],
)
def test_numbers_of_chips_beside_an_allocation_are_told_the_way(
    shared_client, change: dict[str, Any], pointer: str
) -> None:
    nodes = [{"name": name, "chips": 8} for name in "ab"]
    body = {**SMALL, "cluster": {"preset": "h100"}, "allocation": {"nodes": nodes}, **change}
    assert_problem(shared_client.post("/v1/recommendations", json=body), "invalid", pointer)


def test_nodes_are_no_slice_of_another_size(shared_client) -> None:
    """Of the field that was sent, not of the number of chips that follows from it."""
    nodes = [{"name": f"n{i}", "chips": 4} for i in range(16)]
    body = {
        **changed(SMALL, "stack", "maxtext"),
        "cluster": {"preset": "v5p-256"},
        "allocation": {"nodes": nodes},
    }
    found = shared_client.post("/v1/recommendations", json=body)
    assert_problem(found, "invalid", "/allocation")
    assert "v5p-256 is 128 chips" in found.text


@pytest.mark.long
def test_the_fewest_chips_that_keep_a_deadline_are_found(shared_client) -> None:
    """More of them than are asked for is no answer: one domain fewer misses it."""
    objective = {"minimize": "chips", "tokens": 1e11, "deadline_hours": 72}
    body = {**SMALL, "alternatives": {"up_to_chips": 160}, "objective": objective}
    found = shared_client.post("/v1/recommendations", json=body).json()
    best = found["choices"][0]
    assert best["name"] == "alternatives.up_to_chips"
    assert best["meets"]
    assert f"{best['num_chips']} chips are the fewest of" in " ".join(found["reasons"])
    fewer = {**body, "alternatives": {"num_chips": [best["num_chips"] - 8]}}
    misses = shared_client.post("/v1/recommendations", json=fewer).json()["choices"]
    assert not any(choice["meets"] for choice in misses if choice["num_chips"] < best["num_chips"])
    again = shared_client.post(
        "/v1/recommendations", json={k: v for k, v in found["request"].items() if k != "profile"}
    )
    assert again.json()["choices"] == found["choices"]


def test_no_part_of_a_node_that_keeps_the_limits_is_smaller_than_the_fewest_chips(
    shared_client,
) -> None:
    objective = {"minimize": "chips", "tokens": 1e12, "budget_usd": 260000}
    alternatives = {"up_to_chips": 1024, "num_chips": [1, 2, 3, 4, 6]}
    body = {**QUESTION, "stack": "megatron", "objective": objective, "alternatives": alternatives}
    found = shared_client.post("/v1/recommendations", json=body).json()
    fewest = min(choice["num_chips"] for choice in found["choices"] if choice["meets"])
    assert f"{found['choices'][0]['num_chips']} chips are the fewest of" in found["reasons"][1]
    assert found["choices"][0]["num_chips"] == fewest < 8
    assert "(divisors of 8 and multiples of 8)" in found["reasons"][1]


def test_other_numbers_of_chips_hold_as_many_of_a_domain_or_all(shared_client) -> None:
    cluster = {"preset": "gb200", "num_chips": 64, "chips_per_domain": 32}
    body = {
        **QUESTION,
        "stack": "megatron",
        "cluster": cluster,
        "alternatives": {"num_chips": [128, 16]},
    }
    found = shared_client.post("/v1/recommendations", json=body).json()["choices"]
    assert {c["num_chips"]: c["cluster"]["chips_per_domain"] for c in found} == {
        64: 32,
        128: 32,
        16: 16,
    }


def test_as_many_chips_of_another_kind_are_not_the_fewest_of_its_own(shared_client) -> None:
    objective = {"minimize": "chips", "tokens": 1e11, "deadline_hours": 72}
    body = {**SMALL, "alternatives": {"up_to_chips": 160}, "objective": objective}
    chips = shared_client.post("/v1/recommendations", json=body).json()["choices"][0]["num_chips"]
    others = {"up_to_chips": 160, "clusters": [{"preset": "a100", "num_chips": chips}]}
    found = shared_client.post("/v1/recommendations", json={**body, "alternatives": others}).json()
    assert "alternatives.up_to_chips" in [choice["name"] for choice in found["choices"]]


def test_the_fewest_chips_need_a_limit_to_keep(shared_client) -> None:
    body = {**SMALL, "alternatives": {"up_to_chips": 160}}
    assert_problem(
        shared_client.post("/v1/recommendations", json=body), "invalid", "/alternatives/up_to_chips"
    )


def test_where_no_number_of_chips_keeps_the_limits_it_is_said(shared_client) -> None:
    objective = {"minimize": "chips", "tokens": 1e14, "deadline_hours": 1}
    body = {**SMALL, "alternatives": {"up_to_chips": 64}, "objective": objective}
    reasons = " ".join(shared_client.post("/v1/recommendations", json=body).json()["reasons"])
    assert "fewest chips: up to 64 chips not even the peak of all keeps the limits" in reasons


def test_a_list_shows_what_came_of_each(client) -> None:
    made = client.post("/v1/recommendations", json=SMALL).json()
    (item,) = client.get("/v1/recommendations").json()["items"]
    best = predicted(made, "recommended")
    assert item["result"] == {
        "chips_used": made["chips_used"],
        "layout_summary": LayoutFields.summary(best["layout"]),
        "step_time_s": best["step_time_s"],
        "mfu": best["mfu"],
        "fit_probability": best["fit_probability"],
        "exact": made["certificate"]["exact"],
        "faster_on": None,
    }
    assert item["request"]["model"] == made["request"]["model"]


@pytest.mark.long
def test_fewer_chips_are_used_where_they_are_faster(client) -> None:
    """Everything is of those then: reports, timelines and lists."""
    odd = {
        **changed(QUESTION, "cluster.num_chips", 22),
        "workload": {"seq_len": 4096, "global_batch": 144},
    }
    made = client.post("/v1/recommendations", json={**odd, "stack": "megatron"}).json()
    (item,) = client.get("/v1/recommendations").json()["items"]
    assert item["result"]["chips_used"] == made["chips_used"] == 20
    assert made["fewer_chips"]["num_chips"] == 20
    assert made["reasons"][0] == made["fewer_chips"]["message"]
    ran = {"recommendation_id": made["id"], "outcome": "crashed"}
    report = client.post("/v1/reports", json=ran).json()
    assert report["request"]["cluster"]["num_chips"] == 20
    drawn = client.get(f"/v1/recommendations/{made['id']}/timeline").json()
    assert drawn["step_time_s"] == predicted(made, "recommended")["step_time_s"]
    again = client.post("/v1/recommendations", json=made["request"]).json()
    assert again["layouts"] == made["layouts"]
    whole = {**odd, "stack": "megatron", "constraints": {"use_all_chips": True}}
    on_all = client.post("/v1/recommendations", json=whole).json()
    assert (on_all["chips_used"], on_all["fewer_chips"]) == (22, None)
    assert predicted(on_all, "fastest")["step_time_s"] == made["fewer_chips"]["all_chips_s"]


def test_a_list_reads_no_whole_answers(client) -> None:
    client.post("/v1/recommendations", json=SMALL)
    queries: list[str] = []
    engine = client.app.state.services.store._engine
    event.listen(engine, "before_cursor_execute", lambda *execution: queries.append(execution[2]))
    assert len(client.get("/v1/recommendations").json()["items"]) == 1
    assert queries
    assert not any("document" in query for query in queries)


def test_constraints_that_only_fewer_chips_can_meet_say_how_many(shared_client) -> None:
    asked = {
        **QUESTION,
        "stack": "megatron",
        "cluster": {"preset": "h100", "num_chips": 50},
        "constraints": {"tp": 8},
    }
    refused = assert_problem(
        shared_client.post("/v1/recommendations", json=asked), "infeasible", "/constraints/tp"
    )
    assert "no legal layout of 50 chips has tp in [8]" in refused["detail"]
    cure = "48 of the chips have one: ask with num_chips 48"
    assert refused["detail"].endswith(cure)
    assert all(error["rule"].endswith(cure) for error in refused["errors"])
    assert (
        shared_client.post(
            "/v1/recommendations", json=changed(asked, "cluster.num_chips", 48)
        ).status_code
        == 201
    )


def test_constraints_that_no_number_of_chips_can_meet_are_refused_for_the_number_asked(
    shared_client,
) -> None:
    asked = {
        **QUESTION,
        "stack": "megatron",
        "cluster": {"preset": "h100", "num_chips": 47},
        "constraints": {"tp": 47},
    }
    refused = assert_problem(
        shared_client.post("/v1/recommendations", json=asked), "infeasible", "/constraints/tp"
    )
    assert refused["detail"].startswith("no legal layout uses all 47 chips (")


def test_products_of_fp32_run_on_a_chip_without_tf32(shared_client) -> None:
    asked = changed({**QUESTION, "stack": "megatron"}, "cluster.preset", "v100")
    asked["workload"] = {"seq_len": 2048, "global_batch": 64, "precision": "fp32"}
    assert shared_client.post("/v1/recommendations", json=asked).is_success


def test_a_level_within_the_torus_is_refused(shared_client) -> None:
    torus = {"ndim": 3, "max_chips": 64, "gb_s_per_link": 90, "wrap": "cubes", "wrap_length": 4}
    levels = [{"name": "nvl", "size": 8, "gb_s_per_chip": 450}, {"gb_s_per_chip": 3}]
    asked = changed(
        QUESTION, "cluster", {"chip": "h100", "torus": torus, "levels": levels, "num_chips": 128}
    )
    assert_problem(
        shared_client.post("/v1/recommendations", json=asked), "invalid", "/cluster/levels/0/size"
    )


@pytest.mark.skipif(not (SHARED / "hf_configs").is_dir(), reason="needs the configs of models")
@pytest.mark.parametrize(
    ("name", "preset", "chips", "seq_len", "batch"),
    [
        ("qwen3-next-80B-A3B", "h100", 64, 4096, 512),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "gb300", 8, 4096, 64),
        ("DeepSeek-V3.2", "h800", 256, 131072, 256),
        ("Kimi-K3", "gb300", 1024, 4096, 4096),
    ],
)
def test_a_published_config_with_layers_of_several_kinds_gets_a_layout_that_fits(
    shared_client, name: str, preset: str, chips: int, seq_len: int, batch: int
) -> None:
    asked = {
        "model": json.loads((SHARED / f"hf_configs/{name}.json").read_text()),
        "cluster": {"preset": preset, "num_chips": chips},
        "workload": {"seq_len": seq_len, "global_batch": batch},
        "stack": "megatron",
    }
    made = shared_client.post("/v1/recommendations", json=asked)
    assert made.is_success
    found = predicted(made.json(), "fastest")
    assert found["fits"]
    assert 0 < found["mfu"]["full"] < 1
