"""Reports that name a check, or bring the launch itself, and reports by their labels."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.run_id import report_members, run_id
from tests.service.ask.test_checks import DEEPSPEED, FLAGS, LAUNCHED, SLOW
from tests.service.asking import ON_BOTH, QUESTION, REPORT, assert_problem, changed, without
from tests.service.learning.test_explanations import MEGATRON, TITAN

MEASURED: dict[str, Any] = {"outcome": "ok", "measured": {"step_time_s": 3.0}}
SLOWER = {"outcome": "ok", "measured": {"step_time_s": 30.0}}
LABELS = {"job_id": "1207", "user": "ada", "partition": "h100"}


def report(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/v1/reports", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def stored_check(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = client.post("/v1/checks", json={**body, "store": True}).json()
    return found


@pytest.mark.parametrize("body", [{**QUESTION, "layout": SLOW}, LAUNCHED], ids=["plain", "launch"])
def test_a_report_of_a_checked_job_is_held_against_what_was_checked(client, body: dict) -> None:
    checked = stored_check(client, body)
    made = report(client, {"check_id": checked["id"], **MEASURED})
    assert made["check_id"] == checked["id"]
    assert made["prediction"]["layout"] == checked["layout"]
    assert made["prediction"]["step_time_s"] == checked["prediction"]["step_time_s"]
    assert client.get(f"/v1/reports/{made['id']}").json()["check_id"] == checked["id"]


def test_a_job_pairs_itself_by_its_environment(client) -> None:
    checked = stored_check(client, LAUNCHED)
    environment = {"SHARDWRIGHT_ID": run_id("check", checked["id"])}
    made = report(client, {**report_members(environment), **MEASURED})
    assert made["check_id"] == checked["id"]


@pytest.mark.parametrize("value", ["0199c2f4", "sweep-0199c2f4", "check-"])
def test_a_name_that_no_report_may_have_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="SHARDWRIGHT_ID"):
        report_members({"SHARDWRIGHT_ID": value})


def test_a_job_that_its_framework_does_not_start_has_nothing_to_be_held_against(client) -> None:
    arguments = {**without(DEEPSPEED, "train_micro_batch_size_per_gpu"), "train_batch_size": 100}
    checked = stored_check(client, changed(LAUNCHED, "launch.arguments", arguments))
    assert checked["layout"] is None
    answer = client.post("/v1/reports", json={"check_id": checked["id"], **MEASURED})
    assert_problem(answer, "invalid")
    assert answer.json()["errors"][0]["field"] == "check_id"


def test_a_report_may_bring_the_launch_itself(client) -> None:
    checked = stored_check(client, LAUNCHED)
    made = report(client, {**LAUNCHED, **MEASURED, "labels": LABELS})
    assert made["prediction"]["layout"] == checked["layout"]
    assert made["prediction"]["step_time_s"] == checked["prediction"]["step_time_s"]
    assert (made["check_id"], made["labels"]) == (None, LABELS)


def test_a_report_with_a_launch_says_what_was_not_understood(client) -> None:
    launch = {"format": "megatron", "arguments": FLAGS.format("--zorblax 16")}
    made = report(client, {"launch": launch, "cluster": {"preset": "h100"}, **SLOWER})
    assert [one["setting"] for one in made["reservations"]] == ["--zorblax 16"]


def test_a_log_may_bring_the_launch_that_wrote_it(client) -> None:
    arguments = (
        "torchrun --nproc_per_node=8 --nnodes 8 -m torchtitan.train"
        " --parallelism.data_parallel_shard_degree=64 --training.global_batch_size 128"
        " --training.local_batch_size 1 --training.seq_len 8192 --activation_checkpoint.mode none"
    )
    body = {
        "launch": {"format": "torchtitan", "arguments": arguments},
        "model": "llama-3.1-8b",
        "cluster": {"preset": "h100", "num_chips": 64},
        "labels": LABELS,
    }
    answer = client.post("/v1/reports/logs", json={**body, "log": TITAN})
    assert answer.status_code == 201, answer.text
    found = answer.json()["report"]
    assert (found["labels"], found["prediction"]["layout"]["recompute"]) == (LABELS, "none")
    assert found["measured"]["step_time_s"] == pytest.approx(2.33, abs=0.01)
    assert_problem(client.post("/v1/reports/logs", json={**body, "log": MEGATRON}), "invalid")


@pytest.mark.parametrize(
    ("field", "value", "blamed"),
    [
        ("labels", {"a b": "x"}, "labels"),
        ("labels", {f"label{i}": "x" for i in range(17)}, "labels"),
        ("labels", {"job": "x" * 201}, "labels.job"),
        ("profile", {"version": 1}, "profile"),
    ],
)
def test_labels_have_limits_and_reports_no_profile(
    client, field: str, value: object, blamed: str
) -> None:
    answer = client.post("/v1/reports", json={**LAUNCHED, **MEASURED, field: value})
    assert_problem(answer, "invalid")
    assert answer.json()["errors"][0]["field"].startswith(blamed)


@pytest.mark.parametrize(
    "names", [("prediction_id", "check_id"), ("recommendation_id", "check_id")]
)
def test_a_report_names_one_answer(client, names: tuple[str, str]) -> None:
    body = {**dict.fromkeys(names, "x"), **MEASURED}
    answer = client.post("/v1/reports", json=body)
    assert_problem(answer, "invalid")
    assert answer.json()["errors"][0]["rule"] == f"give it or {names[0]}, not both"


@ON_BOTH
def test_reports_are_listed_by_their_labels(client) -> None:
    mine = report(client, {**REPORT, "labels": LABELS})
    other = report(client, {**REPORT, "labels": {**LABELS, "job_id": "1208", "user": "bob"}})
    report(client, REPORT)

    def listed(*labels: str, path: str = "/v1/reports") -> list[str]:
        items = client.get(path, params={"label": labels}).json()["items"]
        return [item["id"] for item in items]

    assert listed("user=ada") == [mine["id"]]
    assert listed("partition=h100") == [other["id"], mine["id"]]
    assert listed("partition=h100", "job_id=1208") == [other["id"]]
    assert listed("user=ada", "job_id=1208") == []
    assert (
        client.get("/v1/reports/summary", params={"label": "user=ada"}).json()["overall"]["reports"]
        == 1
    )
    lines = client.get("/v1/reports", params={"format": "csv", "label": "user=bob"}).text
    assert "job_id=1208" in lines
    assert lines.count("\r\n") == 2


def test_reports_of_a_batch_have_labels_and_launches_too(client) -> None:
    batch = [
        {**REPORT, "labels": {"job_id": "1"}},
        {**LAUNCHED, **MEASURED, "labels": {"job_id": "2"}},
    ]
    answer = client.post(
        "/v1/reports", json={"reports": [*batch, {**LAUNCHED, **MEASURED, "x": 1}]}
    )
    items = answer.json()["items"]
    assert [bool(item["id"]) for item in items] == [True, True, False]
    found = client.get("/v1/reports", params={"label": "job_id=2"}).json()["items"]
    assert [one["id"] for one in found] == [items[1]["id"]]


def test_an_explanation_may_name_a_check(client) -> None:
    checked = stored_check(client, {**QUESTION, "layout": SLOW})
    answer = client.post("/v1/explanations", json={"check_id": checked["id"], **MEASURED})
    assert answer.status_code == 200, answer.text
    assert without(answer.json(), "request")["outcome"] == "ok"
