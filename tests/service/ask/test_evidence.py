"""Published runs beside the answers: carried over unchanged, the nearest first, each with its
prediction."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest

from models.cost.predictions import predict
from models.spec.layout import Layouts
from models.spec.profile import shipped_profile
from service.formats import published
from service.resolve.resolution import Resolver
from service.schemas.evidence import EvidenceList, PublishedRun
from service.tools.carry_runs import published_run_documents
from tests.service.asking import PREDICTION, QUESTION, assert_problem, changed
from tests.service.formats.huggingface.test_hybrid import HYBRIDS as OF_EVERY_KIND
from tests.test_scores import ROW

SHIPPED = [
    json.loads(line) for line in (files("models") / "data/runs.jsonl").read_text().splitlines()
]

HYBRIDS = {one["config"]["model_type"]: one["config"] for one in OF_EVERY_KIND}


def nearest(client, **query: Any) -> dict[str, Any]:
    answer = client.get("/v1/evidence", params=query)
    assert answer.status_code == 200, answer.text
    EvidenceList.model_validate(answer.json())
    return answer.json()


def test_every_shipped_run_has_a_source_and_a_name_of_its_own() -> None:
    assert len(SHIPPED) > 3000
    assert len({run["id"] for run in SHIPPED}) == len(SHIPPED)
    for run in SHIPPED:
        found = PublishedRun.model_validate(run)
        assert found.source.title
        assert found.source.where
        assert (found.step_time_s is not None) == (found.outcome == "ok")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "training": {
                "tp": 2,
                "sequence_parallel": False,
                "recompute": "full",
                "pp": 2,
                "pp_schedule": "zb-h1",
            }
        },
        {
            "model": {
                "moe": {"num_experts": 8, "experts_per_token": 2, "moe_intermediate_size": 14336}
            }
        },
        {"model": {"extra": {"sliding_window": "sliding_window 4096, alternating"}}},
        {
            "training": {
                "data_parallel_kind": "fsdp",
                "optimizer": "adafactor",
                "compute_dtype": "fp8",
                "compile": True,
            }
        },
        {
            "cluster": {"chip": "tpu-v5p", "num_chips": 64, "fabric": "ICI 4x4x4"},
            "stack": "maxtext",
            "training": {"recompute": "full"},
        },
        {"cluster": {"chip": "gb200-nvl72", "num_chips": 64, "scaleup_domain": 64}},
        {"date": None, "stack": "nobody-knows"},
        {"model": {"config": HYBRIDS["qwen3_next"]}},
        {"model": {"config": HYBRIDS["bamba"]}},
    ],
)
def test_a_run_that_is_carried_over_is_predicted_as_before(
    shared_client, changes: dict[str, Any]
) -> None:
    """The published row read directly is the oracle of the same run in the project's own form."""
    row = {**json.loads(json.dumps(ROW)), "id": "x", "trust": "A", "failure": None}
    row["source"]["where"], row["model"]["name"] = "a table", "m"
    for name, value in changes.items():
        row[name] = {**row[name], **value} if isinstance(value, dict) else value
    profile = shipped_profile()
    (document,) = published_run_documents([row], profile)
    run, direct = (
        PublishedRun.model_validate_json(json.dumps(document)),
        published.read(row, profile.software_year),
    )
    with shared_client.app.state.services.store.reading() as rows:
        problem = Resolver(rows).resolve(run.question(profile.software_year)).problem
    layouts = Layouts.of([run.layout.build()])
    assert run.layout.build() in direct.alternatives
    # The same offsets apply, but that links which are nobody's own have no name.
    is_named = "levels" not in document["cluster"]
    assert (problem.scopes == direct.problem.scopes) == is_named
    # A report of the same document means the same.
    assert run.layout.with_stack_defaults(problem).build() == run.layout.build()
    here = predict(problem, layouts, profile.coefficients(problem.scopes))
    there = predict(direct.problem, layouts, profile.coefficients(direct.problem.scopes))
    assert here.step_time_s[0] == pytest.approx(there.step_time_s[0], rel=1e-12)
    assert here.reserved_bytes[0] == pytest.approx(there.reserved_bytes[0], rel=1e-12)
    assert run.traits().stack == direct.problem.stack.id
    assert run.parameters == direct.problem.architecture.parameters.total
    assert run.is_sparse == direct.problem.architecture.is_moe
    assert problem.architecture.kinds == direct.problem.architecture.kinds


def test_what_cannot_be_expressed_is_left_out() -> None:
    assert [
        *published_run_documents(
            [{**ROW, "outcome": "failed", "failure": "unknown"}], shipped_profile()
        )
    ] == []
    assert [
        *published_run_documents(
            [{**ROW, "cluster": {"chip": "abacus"}, "failure": None}], shipped_profile()
        )
    ] == []


def test_the_nearest_runs_come_first(shared_client) -> None:
    found = nearest(
        shared_client, model="llama-3.1-405b", cluster="h100", num_chips=16384, seq_len=8192
    )
    distances = [item["distance"] for item in found["items"]]
    assert distances == sorted(distances)
    assert len(distances) == 10
    assert found["items"][0]["model"]["num_layers"] == 126
    assert found["items"][0]["differs"] == {}
    assert found["runs"] == len(SHIPPED)
    for item in found["items"]:
        assert (item["distance"] == 0) == (item["differs"] == {})


def test_each_is_measured_beside_what_is_predicted(shared_client) -> None:
    for item in nearest(shared_client, model="deepseek-v3", limit=20)["items"]:
        measured, predicted = item["measured"], item["predicted"]
        if item["outcome"] == "ok":
            assert (
                predicted["step_time_low_s"]
                < predicted["step_time_s"]
                < predicted["step_time_high_s"]
            )
            tokens = item["workload"]["seq_len"] * item["workload"]["global_batch"]
            rate = tokens / measured["step_time_s"] / item["cluster"]["num_chips"]
            assert measured["tokens_per_s_per_chip"] == pytest.approx(rate)
        else:
            assert measured["step_time_s"] is None
            assert item["residual"] is None


def test_what_is_left_open_counts_for_nothing(shared_client) -> None:
    assert {item["distance"] for item in nearest(shared_client, limit=50)["items"]} == {0}


def test_an_answer_finds_the_runs_like_it(client) -> None:
    made = client.post("/v1/predictions", json=PREDICTION).json()
    found = nearest(client, prediction_id=made["id"], limit=3)
    assert found["items"][0]["stack"]["name"] == "torchtitan"
    assert found == nearest(client, prediction_id=made["id"], rank=1, limit=3)


def test_a_recommendation_shows_three_runs_of_different_kinds(client) -> None:
    made = client.post(
        "/v1/recommendations", json=changed(QUESTION, "cluster.num_chips", 16)
    ).json()
    shown = made["evidence"]
    assert len(shown) == 3
    assert [one["distance"] for one in shown] == sorted(one["distance"] for one in shown)
    everything = nearest(client, recommendation_id=made["id"], limit=50)["items"]
    near = {item["id"]: item for item in everything}
    first = near[shown[0]["id"]]
    assert shown[0]["measured_step_time_s"] == first["measured"]["step_time_s"]
    assert shown[0]["residual"] == first["residual"]
    assert everything[0]["distance"] <= shown[0]["distance"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 51}, "limit"),
        ({"global_batch": 8}, "seq_len"),
        ({"precision": "bf17"}, "precision"),
        ({"rank": 1}, "rank"),
        ({"prediction_id": "a", "recommendation_id": "b"}, "prediction_id"),
        ({"prediction_id": "a", "model": "llama-3.1-8b"}, "model"),
        ({"chip": "h100"}, "chip"),
    ],
)
def test_bad_queries_are_refused_by_name(shared_client, query: dict[str, Any], field: str) -> None:
    problem = assert_problem(shared_client.get("/v1/evidence", params=query), "invalid")
    assert [error["field"].split(".")[0] for error in problem["errors"]] == [field]


@pytest.mark.parametrize("field", ["model", "cluster", "stack"])
def test_unknown_names_are_named(shared_client, field: str) -> None:
    problem = assert_problem(
        shared_client.get("/v1/evidence", params={field: "nobody"}), "unknown-name"
    )
    assert [error["field"].split(".")[0] for error in problem["errors"]] == [field]


def test_an_answer_that_is_not_there(shared_client) -> None:
    assert_problem(
        shared_client.get("/v1/evidence", params={"prediction_id": "nowhere"}), "not-found"
    )


def test_exact_leaves_out_what_differs(shared_client) -> None:
    answer = nearest(shared_client, model="deepseek-v3", stack="megatron", exact=True, limit=50)
    assert answer["items"]
    assert all(run["differs"] == {} for run in answer["items"])
    assert answer["found"] < nearest(shared_client, model="deepseek-v3", exact=True)["found"]


def test_every_word_of_the_text_is_in_what_is_found(shared_client) -> None:
    both = nearest(shared_client, text="GB300 Bridge", limit=50)
    assert both["items"]
    for run in both["items"]:
        assert run["cluster"]["chip"] == "gb300-nvl72"
        assert "bridge" in (run["stack"]["name"] + run["source"]["where"]).casefold()
    for word in ("gb300", "bridge"):
        assert both["found"] <= nearest(shared_client, text=word)["found"]


def test_the_pages_together_have_every_run_once(shared_client) -> None:
    query = {"family": "deepseek", "outcome": "ok"}
    expected = {run["id"] for run in SHIPPED if run["family"] == "deepseek"}
    page = nearest(shared_client, **query, limit=2)
    ids = [run["id"] for run in page["items"]]
    while page["next"] is not None:
        page = nearest(shared_client, **query, limit=2, cursor=page["next"])
        ids += [run["id"] for run in page["items"]]
    assert sorted(ids) == sorted(expected)
    assert page["found"] == len(ids)


def test_of_runs_equally_near_the_newest_come_first(shared_client) -> None:
    items = nearest(shared_client, limit=50)["items"]
    dates = [run["date"] or "" for run in items]
    assert dates == sorted(dates, reverse=True)


def test_what_selects_runs_goes_with_an_answer(client) -> None:
    prediction = client.post("/v1/predictions", json=PREDICTION).json()
    found = nearest(client, prediction_id=prediction["id"], family="nemo", outcome="ok")
    assert {run["family"] for run in found["items"]} == {"nemo"}
