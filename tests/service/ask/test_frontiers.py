from __future__ import annotations

import pytest

from service.schemas.frontier import FrontierAnswer
from tests.service.asking import QUESTION, assert_problem, changed

SMALL = changed(QUESTION, "cluster.num_chips", 16)


def test_every_combination_of_the_grid_is_a_point(shared_client) -> None:
    body = {**SMALL, "grid": {"scale_out": [0.5, 1], "num_chips": [8, 16, 17]}}
    answer = shared_client.post("/v1/frontiers", json=body)
    assert answer.status_code == 200
    found = answer.json()
    FrontierAnswer.model_validate(found)
    assert [point["at"] for point in found["points"]] == [
        {"scale_out": s, "num_chips": n} for s in (0.5, 1) for n in (8, 16, 17)
    ]
    assert all(point["exact"] for point in found["points"])
    for point in found["points"]:
        if point["gap"] is not None:
            assert point["gap"] == pytest.approx(point["without_s"] / point["with_s"] - 1)
            assert point["gap_low"] < point["gap"] < point["gap_high"]
            is_open = point["gap_low"] <= 0.03 < point["gap_high"]
            decided = "yes" if point["gap"] > 0.03 else "no"
            assert point["pipeline_needed"] == ("undecided" if is_open else decided)
    assert (
        shared_client.post("/v1/frontiers", json=found["request"]).json()["points"]
        == found["points"]
    )


def test_what_a_point_searches_for_fits_surely_unless_the_request_says_otherwise(
    shared_client,
) -> None:
    body = {**changed(QUESTION, "cluster.num_chips", 1), "grid": {"scale_out": [1]}}
    times = []
    for constraints in ({}, {"min_fit_probability": 0.9}, {"min_fit_probability": 0.5}):
        answer = shared_client.post("/v1/frontiers", json={**body, "constraints": constraints})
        (point,) = answer.json()["points"]
        times.append(point["without_s"])
    assert times[0] == times[1] > times[2]


def test_the_number_of_chips_that_there_are_is_the_cluster_as_it_is(shared_client) -> None:
    cluster = {"preset": "gb200", "num_chips": 128, "chips_per_domain": 32}
    asked = {**QUESTION, "stack": "megatron", "cluster": cluster}
    one, other = (
        shared_client.post("/v1/frontiers", json={**asked, "grid": grid}).json()["points"]
        for grid in ({"scale_out": [1]}, {"num_chips": [128]})
    )
    assert {**one[0], "at": {}} == {**other[0], "at": {}}


def test_how_far_it_holds_is_told_with_its_unit(shared_client) -> None:
    found = shared_client.post(
        "/v1/frontiers", json={**SMALL, "grid": {"layers": [0.5, 1], "num_chips": [8, 16]}}
    ).json()
    gaps = [(point["at"], point["gap"]) for point in found["points"] if point["gap"] is not None]
    unneeded = [at for at, gap in gaps if gap <= 0.03]  # the tolerance unless one is asked for
    assert found["reasons"][1:3] == [
        f"the largest of those has {max(at['num_chips'] for at in unneeded):g} chips",
        f"the largest of those has {max(at['layers'] for at in unneeded):g} times the layers",
    ]
    undecided = [point["pipeline_needed"] for point in found["points"]].count("undecided")
    assert undecided
    assert found["reasons"][3].startswith(f"at {undecided} points it is undecided")


def test_the_place_as_it_is_agrees_with_the_recommendation(shared_client) -> None:
    (here,) = shared_client.post("/v1/frontiers", json={**SMALL, "grid": {"scale_up": [1]}}).json()[
        "points"
    ]
    best = shared_client.post("/v1/recommendations", json=SMALL).json()
    without_pp = best["layouts"][best["pipelining"]["without"]]
    assert here["without"] == without_pp["prediction"]["layout"]
    assert here["gap"] == pytest.approx(best["pipelining"]["gap"])


def test_thresholds_come_where_they_are_asked_for(shared_client) -> None:
    plain = shared_client.post("/v1/recommendations", json=SMALL).json()
    asked = shared_client.post(
        "/v1/recommendations", json={**SMALL, "include": ["thresholds"]}
    ).json()
    assert plain["pipelining"]["thresholds"] is None
    assert {one["axis"] for one in asked["pipelining"]["thresholds"]} == {
        "scale_up",
        "scale_out",
        "domain",
    }
    assert {one["is_above"] for one in asked["pipelining"]["thresholds"]} == {
        asked["pipelining"]["gap"] > 0.03
    }
    settled = {**SMALL, "include": ["thresholds"], "constraints": {"pp": 1}}
    found = shared_client.post("/v1/recommendations", json=settled).json()["pipelining"]
    assert (found["needed"], found["thresholds"]) == ("unknown", [])


def test_the_roofline_can_be_redone_by_hand(shared_client) -> None:
    found = shared_client.post("/v1/recommendations", json=SMALL).json()
    line = found["pipelining"]["roofline"]
    without_pp = found["layouts"][found["pipelining"]["without"]]
    computed = line["tokens"] * line["flops_per_token"] / line["flops_s"]
    assert computed == pytest.approx(without_pp["prediction"]["time"]["compute_s"])
    assert line["tokens_needed"] * line["flops_per_token"] / line["flops_s"] == pytest.approx(
        line["bytes"] / line["bytes_s"]
    )


@pytest.mark.parametrize(
    ("grid", "pointer"),
    [
        ({}, "/grid"),
        ({"speed": [1]}, "/grid/speed"),
        ({"scale_up": [0]}, "/grid/scale_up/0"),
        ({"scale_up": [*range(1, 31)], "scale_out": [*range(1, 31)]}, "/grid"),
        ({"domain": [1.5]}, "/grid/domain/0"),
    ],
)
def test_a_bad_grid_is_named(shared_client, grid: dict[str, object], pointer: str) -> None:
    assert_problem(
        shared_client.post("/v1/frontiers", json={**SMALL, "grid": grid}), "invalid", pointer
    )


def test_a_torus_has_no_domain_to_change(shared_client) -> None:
    body = {
        **SMALL,
        "cluster": {"preset": "tpu-v5p", "num_chips": 16},
        "stack": "maxtext",
        "grid": {"domain": [8]},
    }
    assert_problem(shared_client.post("/v1/frontiers", json=body), "invalid", "/grid/domain")


@pytest.mark.parametrize("pp", [1, [2, 4]])
def test_a_frontier_has_two_sides(shared_client, pp: object) -> None:
    body = {**SMALL, "grid": {"scale_out": [1]}, "constraints": {"pp": pp}}
    assert_problem(shared_client.post("/v1/frontiers", json=body), "invalid", "/constraints/pp")
    both = {**body, "constraints": {"pp": [1, 2]}}
    assert shared_client.post("/v1/frontiers", json=both).status_code == 200


def test_a_value_that_a_grid_names_twice_is_one(shared_client) -> None:
    found = shared_client.post(
        "/v1/frontiers", json={**SMALL, "grid": {"scale_out": [1, 1.0]}}
    ).json()
    assert len(found["points"]) == 1


@pytest.mark.parametrize(("num_chips", "idle"), [(8, True), (16, False)])
def test_a_network_that_no_point_uses_is_said_to_have_no_effect(
    shared_client, num_chips: int, idle: bool
) -> None:
    body = {**changed(QUESTION, "cluster.num_chips", num_chips), "grid": {"scale_out": [0.5, 2]}}
    answer = shared_client.post("/v1/frontiers", json=body).json()
    assert (
        any(line.startswith("grid.scale_out has no effect") for line in answer["assumptions"])
        == idle
    )
    assert (len({point["without_s"] for point in answer["points"]}) == 1) == idle


def test_a_domain_that_divides_badly_is_told_apart(shared_client) -> None:
    """1,152 chips in domains of 108 are twelve of 96; in domains of 72 the best step takes longer
    than in those of 64."""
    question = {
        "model": "deepseek-v3",
        "cluster": {"preset": "gb200-nvl72", "num_chips": 1152},
        "workload": {"seq_len": 4096, "global_batch": 4608, "precision": "mxfp8"},
        "stack": "megatron",
    }
    found = shared_client.post(
        "/v1/frontiers", json={**question, "grid": {"domain": [64, 72, 108]}}
    ).json()
    assert [point["chips_per_domain"] for point in found["points"]] == [64, 72, 96]
    best = [min(point["without_s"], point["with_s"]) for point in found["points"]]
    assert (best[1] > best[0]) == any(
        "larger domain is slower" in reason for reason in found["reasons"]
    )
    grown = shared_client.post(
        "/v1/frontiers", json={**question, "grid": {"domain": [72, 96]}}
    ).json()
    assert not any("larger domain" in reason for reason in grown["reasons"])


def test_what_was_not_searched_to_its_end_decides_nothing(shared_client) -> None:
    body = {**SMALL, "grid": {"scale_out": [0.1, 10]}, "time_limit_s": 1e-6}
    found = shared_client.post("/v1/frontiers", json=body).json()
    cut_short = [point for point in found["points"] if not point["exact"]]
    assert cut_short
    assert {point["pipeline_needed"] for point in cut_short} == {"unknown"}
    assert found["crossings"] == []
