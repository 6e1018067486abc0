"""Sweeps over HTTP. Nothing is computed, save where a test runs a runner."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from service import api_keys
from service.store import Store
from service.sweeps.answering import ItemAnswer, answer_item
from tests.service.asking import assert_problem, candidate, changed, scraped
from tests.service.sweeps.conftest import REFUSED, SWEEP, Answers, Run
from tests.waiting import wait_for

NOTHING = ItemAnswer("infeasible", {"type": "/problems/infeasible", "detail": "for a test"})


@pytest.fixture
def client(make_client) -> TestClient:
    return make_client(sweep_processes=0)


@pytest.fixture
def sweep(client) -> dict[str, Any]:
    answer: dict[str, Any] = client.post("/v1/sweeps", json=SWEEP).raise_for_status().json()
    return answer


def finished(client: TestClient, sweep: dict[str, Any]) -> Callable[[], bool]:
    return lambda: client.get(sweep["location"]).json()["state"] == "finished"


def items(client: TestClient, sweep: dict[str, Any], **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(sweep["items"], params=query).json()["items"]
    return found


def events(client: TestClient, sweep: dict[str, Any], last: str | None = None) -> list[Any]:
    """The kind, id and document of every event until the end."""
    headers = {} if last is None else {"Last-Event-ID": last}
    text = client.get(sweep["events"], headers=headers).raise_for_status().text
    return [*_read_events(text)]


def _read_events(text: str) -> Iterator[tuple[str, str, Any]]:
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if fields:
            yield fields["event"], fields["id"], json.loads(fields["data"])


def test_a_sweep_is_answered_at_once_and_says_where_it_is(client) -> None:
    answer = client.post("/v1/sweeps", json=SWEEP)
    assert answer.status_code == 202
    assert client.get(answer.headers["location"]).json() == answer.json()
    assert answer.json()["outcomes"] == {"waiting": 8}
    assert answer.json()["total"] == 8
    assert client.get("/v1/sweeps").json()["items"][0]["id"] == answer.json()["id"]


@pytest.mark.parametrize(
    ("path", "value", "pointer"),
    [
        ("models", ["llama-3.1-8b", "llama-3.1-8bb"], "/models/1"),
        ("clusters", [{"preset": "h100"}], "/clusters/0/num_chips"),
        ("stacks", ["megatron", "megatrom"], "/stacks/1"),
        ("workloads", [{"seq_len": 8192}], "/workloads/0/global_batch"),
        ("constraints", [{}, {"pp": 0}], "/constraints/1/pp"),
        ("stacks", [], "/stacks"),
        ("profile", {"version": 77}, "/profile/version"),
    ],
)
def test_what_no_item_could_be_asked_with_is_refused(shared_client, path, value, pointer) -> None:
    problem = shared_client.post("/v1/sweeps", json=changed(SWEEP, path, value)).json()
    assert [error["pointer"] for error in problem["errors"]] == [pointer]


def test_too_many_combinations_are_refused(shared_client) -> None:
    many = [{"seq_len": 128 * i, "global_batch": 128} for i in range(1, 1001)]
    larger = {**SWEEP, "workloads": many, "stacks": ["maxtext"] * 3}
    problem = assert_problem(shared_client.post("/v1/sweeps", json=larger), "invalid")
    assert "2 x 2 x 1000 x 3 x 1 = 12000" in problem["errors"][0]["rule"]


def test_a_key_makes_one_sweep(client) -> None:
    headers = {"Idempotency-Key": "plan-7"}
    first = client.post("/v1/sweeps", json=SWEEP, headers=headers)
    again = client.post("/v1/sweeps", json=SWEEP, headers=headers)
    assert (again.status_code, again.json()) == (202, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    assert len(client.get("/v1/sweeps").json()["items"]) == 1
    other = client.post("/v1/sweeps", json={**SWEEP, "tolerance": 0.1}, headers=headers)
    assert_problem(other, "key-reused")


@pytest.mark.long
def test_an_item_is_what_a_recommendation_of_the_same_question_says(client, sweep, run) -> None:
    store: Store = client.app.state.services.store

    def answer(question: dict[str, Any]) -> ItemAnswer:
        return answer_item(store, question) if question["cluster"]["num_chips"] == 8 else NOTHING

    run(Answers(answer))
    wait_for(finished(client, sweep))
    for item in items(client, sweep, outcome="ok"):
        question = {
            "model": sweep["request"]["models"][item["combination"]["model"]],
            "cluster": SWEEP["clusters"][item["combination"]["cluster"]],
            "workload": SWEEP["workloads"][0],
            "stack": SWEEP["stacks"][item["combination"]["stack"]],
        }
        full = client.post("/v1/recommendations", json=question).raise_for_status().json()
        expected = candidate(full, "recommended")["prediction"]
        found = item["recommended"]
        for name in ("layout", "step_time_s", "step_time_low_s", "mfu", "needed_gib"):
            assert found[name] == expected[name], name
        assert found["exact"] == full["certificate"]["exact"]
        assert found["pipelining"] == full["pipelining"]["needed"]
    assert len(items(client, sweep, outcome="ok")) == 4


@pytest.mark.parametrize(
    ("path", "value", "outcome"),
    [
        ("model", "llama-3.1-405b", "infeasible"),
        ("stack", "maxtext-9", "refused"),
        ("workload.seq_len", 10**9, "refused"),
    ],
)
def test_what_is_wrong_with_a_question_is_its_answer(shared_client, path, value, outcome) -> None:
    store: Store = shared_client.app.state.services.store
    question = {
        "model": "llama-3.1-8b",
        "cluster": {"preset": "h100", "num_chips": 8},
        "workload": {"seq_len": 8192, "global_batch": 128},
        "stack": "torchtitan",
    }
    asked = changed(question, path, value)
    answer = answer_item(store, asked)
    problem = shared_client.post("/v1/recommendations", json=asked).json()
    assert (answer.outcome, answer.result["type"]) == (outcome, problem["type"])
    assert answer.result["detail"]


def test_results_come_in_pages_and_as_csv(client, sweep, run: Run) -> None:
    run(Answers(lambda question: NOTHING if question["stack"] == "maxtext" else REFUSED))
    wait_for(finished(client, sweep))
    first = client.get(sweep["items"], params={"limit": 5})
    second = client.get(first.links["next"]["url"]).json()
    paged = [*first.json()["items"], *second["items"]]
    assert [item["position"] for item in paged] == [*range(8)]
    assert second["next"] is None

    lines = [*csv.DictReader(io.StringIO(client.get(f"{sweep['items']}?format=csv").text))]
    for line, item in zip(lines, paged, strict=True):
        for name in ("position", "model", "chip", "num_chips", "stack", "outcome"):
            assert line[name] == str(item[name])
        assert line["problem"] == item["problem"]["type"]
    refused = client.get(f"{sweep['items']}?format=csv&outcome=refused").text
    assert len(refused.splitlines()) == 1 + 4


def test_events_tell_every_result_once_and_go_on_where_a_client_was(client, sweep, run) -> None:
    run(Answers(lambda _: NOTHING))
    wait_for(finished(client, sweep))
    told = events(client, sweep)
    assert "shardwright_sweep_items_waiting 0.0" in scraped(client)
    results = [document for kind, _, document in told if kind == "item"]
    assert sorted(item["position"] for item in results) == [*range(8)]
    assert [id_ for kind, id_, _ in told if kind == "item"] == [str(i) for i in range(1, 9)]
    assert told[-1][:2] == ("end", "8-end")
    assert told[-1][2]["state"] == "finished"

    rest = events(client, sweep, last="5")
    assert [document for kind, _, document in rest if kind == "item"] == results[5:]
    assert client.get(sweep["events"], headers={"Last-Event-ID": "8-end"}).status_code == 204
    assert_problem(client.get(sweep["events"], headers={"Last-Event-ID": "soon"}), "bad-header")
    assert_problem(client.get("/v1/sweeps/none/events"), "not-found")


def test_results_of_a_second_try_are_new_events(client, sweep, run: Run) -> None:
    failed = ItemAnswer("failed", {"type": "/problems/internal", "detail": "for a test"})
    answers = iter([failed, failed])
    runner = run(Answers(lambda _: next(answers, NOTHING)))
    wait_for(finished(client, sweep))
    again = client.post(f"{sweep['location']}/retry").json()
    assert again["outcomes"].get("failed", 0) == 0
    runner.wake()
    wait_for(finished(client, sweep))
    told = events(client, sweep, last="8-end")
    assert [(kind, id_) for kind, id_, _ in told] == [
        ("item", "9"),
        ("item", "10"),
        ("end", "10-end"),
    ]
    assert client.get(sweep["location"]).json()["outcomes"] == {"infeasible": 8}


def test_a_sweep_is_cancelled_and_removed(client, sweep) -> None:
    cancelled = client.post(f"{sweep['location']}/cancel").json()
    assert (cancelled["state"], cancelled["outcomes"]) == ("cancelled", {"cancelled": 8})
    assert cancelled["finished_at"]
    assert client.delete(sweep["location"]).status_code == 204
    for path in (sweep["location"], sweep["items"], sweep["events"]):
        assert_problem(client.get(path), "not-found")
    assert_problem(client.delete(sweep["location"]), "not-found")


def test_a_tenant_sees_and_changes_its_own_sweeps(make_client, database_url: str, run) -> None:
    client = make_client(require_api_keys=True, sweep_processes=0)
    store: Store = client.app.state.services.store
    mine, theirs = (
        {"Authorization": f"Bearer {api_keys.create(store, tenant, ['recommend'])}"}
        for tenant in ("team-a", "team-b")
    )
    sweep = client.post("/v1/sweeps", json=SWEEP, headers=mine).json()
    assert client.get("/v1/sweeps", headers=theirs).json()["items"] == []
    for method, path in (
        ("GET", ""), ("GET", "/items"), ("GET", "/items?format=csv"), ("GET", "/events"),
        ("POST", "/cancel"), ("POST", "/retry"), ("DELETE", ""),
    ):  # fmt: skip
        answer = client.request(method, sweep["location"] + path, headers=theirs)
        assert_problem(answer, "not-found")
    run(Answers(lambda _: NOTHING))
    wait_for(
        lambda: client.get(sweep["location"], headers=mine).json()["outcomes"] == {"infeasible": 8}
    )


def test_items_tell_hours_and_dollars_of_the_job_that_the_objective_describes(
    client, run: Run
) -> None:
    asked = {
        "models": ["llama-3.1-8b"],
        "clusters": [
            {"preset": "h100", "num_chips": 16},
            {"preset": "v5p-32", "stack": "maxtext"},
            {"preset": "gb300", "num_chips": 16},
        ],
        "workloads": [{"seq_len": 4096, "global_batch": 64}],
        "stacks": ["torchtitan"],
        "objective": {"tokens": 1e10, "budget_usd": 1e6, "deadline_hours": 1e4},
    }
    sweep = client.post("/v1/sweeps", json=asked).raise_for_status().json()
    store = client.app.state.services.store
    run(Answers(lambda question: answer_item(store, question)))
    wait_for(finished(client, sweep), within_s=60)
    found = items(client, sweep)
    assert [item["stack"] for item in found] == ["torchtitan", "maxtext", "torchtitan"]
    first, second, unpriced = (item["recommended"] for item in found)
    choice = client.post(
        "/v1/recommendations",
        json={
            "model": "llama-3.1-8b",
            "cluster": asked["clusters"][0],
            "workload": asked["workloads"][0],
            "stack": "torchtitan",
            "objective": asked["objective"],
        },
    ).json()["choices"][0]
    for name in ("hours", "hours_low", "hours_high", "usd", "meets", "meets_probability"):
        assert first[name] == choice[name]
    assert first["meets"]
    assert second["usd"] == pytest.approx(second["hours"] * 16 * 4.2)
    assert unpriced["missing"].startswith("a price")
    assert not unpriced["meets"]


def test_a_cluster_runs_its_own_stack_or_those_that_are_listed(client) -> None:
    cluster = {"preset": "h100", "num_chips": 16, "stack": "torchtitan"}
    problem = client.post("/v1/sweeps", json={**SWEEP, "clusters": [cluster]})
    assert_problem(problem, "invalid", "/clusters/0/stack")
