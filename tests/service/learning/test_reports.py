from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from sqlalchemy import event

from tests.service.asking import (
    CHIP,
    LAYOUT,
    PREDICTION,
    QUESTION,
    REPORT,
    assert_problem,
    changed,
    without,
)

GEMMS = {
    "cluster": {"preset": "h100"},
    "gemms": [{"m": 8192, "n": 8192, "k": 8192, "tflops": 600.0}],
}
SUBMISSIONS = [("/v1/reports", REPORT), ("/v1/benchmarks", GEMMS)]


def test_a_report_stands_beside_its_prediction(client) -> None:
    made = client.post("/v1/reports", json=REPORT)
    assert made.status_code == 201
    found = made.json()
    predicted = found["prediction"]["step_time_s"]
    assert found["residual"] == pytest.approx(math.log(2.0 / predicted))
    low, high = found["prediction"]["step_time_low_s"], found["prediction"]["step_time_high_s"]
    assert found["within_interval"] == (low <= 2.0 <= high)
    assert found["profile"] == {"id": "default", "version": 1}


def test_the_submission_is_kept_as_received(client) -> None:
    received = "  " + json.dumps(REPORT, indent=3, ensure_ascii=False) + "\n"
    headers = {"content-type": "application/json"}
    made = client.post("/v1/reports", content=received.encode(), headers=headers)
    kept = client.get(made.headers["location"]).json()
    assert kept.pop("submission") == received
    assert kept == made.json()


def test_submissions_are_read_only_to_be_shown(client) -> None:
    kept = [client.post(address, json=sent).headers["location"] for address, sent in SUBMISSIONS]
    queries: list[str] = []
    engine = client.app.state.services.store._engine
    event.listen(engine, "before_cursor_execute", lambda *execution: queries.append(execution[2]))
    for address in (
        "/v1/reports",
        "/v1/reports?format=csv",
        "/v1/benchmarks",
        "/v1/profiles/default/drift",
    ):
        assert client.get(address).status_code == 200
    assert client.post("/v1/profiles/default/calibrations").status_code == 201
    assert queries
    assert not any("submission" in query for query in queries)
    for address, (_, sent) in zip(kept, SUBMISSIONS, strict=True):
        assert json.loads(client.get(address).json()["submission"]) == sent
    assert sum("submission" in query for query in queries) == len(kept)


def test_a_report_links_to_a_prediction(client) -> None:
    layouts = [LAYOUT, {**LAYOUT, "recompute": "full"}]
    prediction = client.post("/v1/predictions", json={**QUESTION, "layouts": layouts}).json()
    submission = {
        "prediction_id": prediction["id"],
        "outcome": "ok",
        "measured": {"step_time_s": 2.0},
    }
    assert_problem(client.post("/v1/reports", json=submission), "invalid", "/rank")
    assert_problem(client.post("/v1/reports", json={**submission, "rank": 3}), "invalid", "/rank")
    found = client.post("/v1/reports", json={**submission, "rank": 2}).json()
    assert found["prediction"] == prediction["layouts"][1]
    assert found["prediction_id"] == prediction["id"]


@pytest.mark.parametrize(
    ("measured", "form"),
    [
        ({"step_time_s": 2.0}, "step_time_s"),
        ({"tokens_per_s": 8192 * 128 / 2.0}, "tokens_per_s"),
        ({"tokens_per_s_per_chip": 8192 * 128 / 2.0 / 64}, "tokens_per_s_per_chip"),
    ],
)
def test_every_form_of_a_speed_means_the_same(
    client, measured: dict[str, float], form: str
) -> None:
    found = client.post("/v1/reports", json=changed(REPORT, "measured", measured)).json()[
        "measured"
    ]
    assert found["given"] == form
    assert found["step_time_s"] == pytest.approx(2.0)
    assert found["tokens_per_s_per_chip"] == pytest.approx(8192)


@pytest.mark.parametrize("attention", ["causal", "full"])
def test_mfu_is_read_in_its_convention(client, attention: str) -> None:
    given = client.post("/v1/reports", json=REPORT).json()["measured"]["mfu"][attention]
    back = changed(
        REPORT, "measured", {"mfu": {"value": given, "attention": attention, "peak_tflops": 989.4}}
    )
    found = client.post("/v1/reports", json=back).json()["measured"]
    assert found["step_time_s"] == pytest.approx(2.0)
    assert attention in found["conversion"]
    tflops = {"value": given * 989.4, "attention": attention}
    rated = client.post(
        "/v1/reports", json=changed(REPORT, "measured", {"tflops_per_chip": tflops})
    ).json()["measured"]
    assert (rated["given"], rated["step_time_s"]) == (
        "tflops_per_chip",
        pytest.approx(found["step_time_s"]),
    )


def test_a_run_out_of_memory_agrees_with_a_prediction_that_does_not_fit(client) -> None:
    heavy = {**LAYOUT, "micro_batch": 2, "recompute": "none"}
    body = {
        **QUESTION,
        "layout": heavy,
        "outcome": "out_of_memory",
        "failure": {"stage": 0, "peak_gib": 79.0},
    }
    found = client.post("/v1/reports", json=body).json()
    assert found["fit_verdict_agrees"] == (not found["prediction"]["fits"])
    assert found["residual"] is None
    assert found["failure"] == {"stage": 0, "peak_gib": 79.0}
    assert (
        client.post("/v1/reports", json=changed(body, "failure.peak_gib", 150.0)).status_code == 201
    )


@pytest.mark.parametrize(("micro_batch", "foreseen"), [(1, False), (8, True)])
def test_out_of_memory_is_flagged_where_it_was_not_foreseen(
    client, micro_batch: int, foreseen: bool
) -> None:
    body = {
        **changed(QUESTION, "workload.global_batch", 1024),
        "layout": {**LAYOUT, "micro_batch": micro_batch, "recompute": "none"},
        "outcome": "out_of_memory",
    }
    found = client.post("/v1/reports", json=body).json()
    assert found["prediction"]["fits"] != foreseen
    assert (found["flag"] is None) == foreseen
    if found["flag"]:
        assert found["flag"].startswith(
            f"ran out of memory, {found['prediction']['needed_gib']:.1f} of "
        )


@pytest.mark.parametrize(
    ("change", "pointer", "rule"),
    [
        (
            {"parts": {"exposed_communication_s": 2.1}},
            "/parts/exposed_communication_s",
            "must not exceed the step",
        ),
        ({"parts": {"expert_imbalance": 0.2}}, "/parts/expert_imbalance", "llama-3-8b has none"),
        ({"memory": {}}, "/memory", "give allocated_gib or reserved_gib"),
        ({"memory": {"stage": 0}}, "/memory", "give allocated_gib or reserved_gib"),
        (
            {"outcome": "out_of_memory", "failure": {"peak_gib": 161.0}},
            "/failure/peak_gib",
            "2 times the 80 GB",
        ),
        ({"measured": {"step_time_s": 2000.0}}, "/measured/step_time_s", "check the unit"),
        ({"measured": {"tokens_per_s": 500.0}}, "/measured/tokens_per_s", "check the unit"),
        (
            {"measured": {"mfu": {"value": 30, "attention": "causal"}}},
            "/measured/mfu/value",
            "is a fraction: give 0.3 for 30%",
        ),
    ],
)
def test_what_no_run_can_have_measured_is_refused(
    shared_client, change: dict[str, Any], pointer: str, rule: str
) -> None:
    report = {**REPORT, **change}
    alone = assert_problem(shared_client.post("/v1/reports", json=report), "invalid", pointer)
    assert rule in alone["errors"][0]["rule"]
    batch = shared_client.post("/v1/reports", json={"reports": [REPORT, report]}).json()
    (error,) = batch["items"][1]["errors"]
    assert (error["pointer"], error["rule"]) == (f"/reports/1{pointer}", alone["errors"][0]["rule"])


def test_a_share_of_the_memory_is_flagged(client) -> None:
    share = client.post("/v1/reports", json={**REPORT, "memory": {"reserved_gib": 0.85}}).json()
    assert "measured 0.85 GiB reserved" in share["flag"]
    expected = share["prediction"]["reserved_gib"]
    fine = client.post("/v1/reports", json={**REPORT, "memory": {"reserved_gib": expected}}).json()
    assert fine["flag"] is None


def test_a_rate_of_one_chip_is_told_by_the_number_of_chips(client) -> None:
    reported = client.post("/v1/reports", json=REPORT).json()
    chips = QUESTION["cluster"]["num_chips"]
    rate = reported["measured"]["tokens_per_s"] / chips
    of_one = client.post("/v1/reports", json={**REPORT, "measured": {"tokens_per_s": rate}}).json()
    assert f"and there are {chips} chips: check that the rate is that of all" in of_one["flag"]


def test_a_batch_in_tokens_is_named_as_one(shared_client) -> None:
    batch = QUESTION["workload"]["global_batch"]
    tokens = batch * QUESTION["workload"]["seq_len"]
    body = changed(REPORT, "workload.global_batch", tokens)
    problem = assert_problem(
        shared_client.post("/v1/reports", json=body), "invalid", "/measured/step_time_s"
    )
    assert f"if {tokens} are tokens, give {batch}" in problem["errors"][0]["rule"]


def test_experts_may_be_out_of_balance(client) -> None:
    body = {
        **REPORT,
        "model": "mixtral-8x7b",
        "layout": {**LAYOUT, "ep": 8},
        "parts": {"expert_imbalance": 0.2},
    }
    found = client.post("/v1/reports", json=changed(body, "measured.step_time_s", 4.0)).json()
    assert found["parts"]["expert_imbalance"] == 0.2


def test_measured_memory_is_compared(client) -> None:
    found = client.post("/v1/reports", json={**REPORT, "memory": {"reserved_gib": 40.0}}).json()
    expected = math.log(40.0 / found["prediction"]["reserved_gib"])
    assert found["memory"]["reserved_residual"] == pytest.approx(expected)
    assert found["memory"]["allocated_residual"] is None


def test_memory_of_another_stage_than_the_fullest_is_compared_with_nothing(client) -> None:
    layout = {**LAYOUT, "pp": 4, "dp_shard": 16}
    body = {**QUESTION, "layout": layout, "outcome": "ok", "measured": {"step_time_s": 5.0}}
    fullest = client.post("/v1/predictions", json={**QUESTION, "layout": layout}).json()["layouts"][
        0
    ]
    for stage in range(4):
        found = client.post(
            "/v1/reports", json={**body, "memory": {"reserved_gib": 20.0, "stage": stage}}
        ).json()
        assert (found["memory"]["reserved_residual"] is None) == (stage != fullest["memory_stage"])


def test_reports_are_paged_newest_first(client) -> None:
    made = [client.post("/v1/reports", json=REPORT).json()["id"] for _ in range(5)]
    address, seen = "/v1/reports?limit=2", []
    while address:
        page = client.get(address)
        seen += [item["id"] for item in page.json()["items"]]
        assert (page.json()["next"] is None) == ("link" not in page.headers)
        address = page.headers["link"].split(">")[0].lstrip("<") if "link" in page.headers else ""
    assert seen == sorted(made, reverse=True)


def test_a_cursor_that_was_changed_is_refused(client) -> None:
    for _ in range(2):
        client.post("/v1/reports", json=REPORT)
    cursor = client.get("/v1/reports?limit=1").json()["next"]
    foreign = client.get("/v1/catalog/chips?limit=1").json()["next"]
    first, inner = (
        "B" if cursor[place] == "A" else "A" for place in (0, 20)
    )  # one that is not there yet
    for bad in (
        cursor[:-1],
        cursor + "A",
        first + cursor[1:],
        cursor[:20] + inner + cursor[21:],
        foreign,
    ):
        found = assert_problem(client.get("/v1/reports", params={"cursor": bad}), "invalid")
        assert found["errors"][0]["value"] == bad
    assert_problem(client.get("/v1/catalog/stacks", params={"cursor": foreign}), "invalid")


def test_a_filter_takes_registered_and_reported_names(client) -> None:
    assert client.post("/v1/catalog/chips", json={"name": "mine", "chip": CHIP}).status_code == 201
    assert client.get("/v1/reports?chip=Mine").json()["items"] == []
    assert_problem(client.get("/v1/reports?chip=custom"), "unknown-name")
    versioned = assert_problem(client.get("/v1/reports?chip=mine@1"), "invalid")
    assert "without its version" in versioned["errors"][0]["rule"]
    own = changed(REPORT, "cluster", {"chip": CHIP, "num_chips": 64})
    named = client.post("/v1/reports", json=own).json()["catalogue"]["chip"]["name"]
    assert named.startswith("custom-")
    assert len(client.get(f"/v1/reports?chip={named}").json()["items"]) == 1


def test_nobody_measures_in_the_future(client) -> None:
    later = {**REPORT, "measured_at": "2999-01-01T00:00:00Z"}
    assert_problem(client.post("/v1/reports", json=later), "invalid", "/measured_at")


def test_a_gap_that_nothing_explains_is_not_explained(client) -> None:
    found = client.post("/v1/reports", json=changed(REPORT, "measured.step_time_s", 900.0)).json()
    assert "check the measurement" in found["flag"]


SPARSE = {
    **REPORT,
    "model": "mixtral-8x7b",
    "stack": "megatron",
    "layout": {"dp_shard": 64, "ep": 8, "zero_stage": 1},
}


def test_measured_communication_accounts_for_its_part_of_the_gap(client) -> None:
    predicted = client.post("/v1/reports", json=SPARSE).json()["prediction"]
    gap = 0.5 * predicted["step_time_s"]
    slow = changed(SPARSE, "measured.step_time_s", predicted["step_time_s"] + gap)
    hidden = sum(
        predicted["time"][term]
        for term in ("tensor_s", "context_s", "expert_s", "data_s", "pipeline_s")
    )

    def flag(exposed: float) -> str:
        return client.post(
            "/v1/reports", json={**slow, "parts": {"exposed_communication_s": exposed}}
        ).json()["flag"]

    said = f"exposed communication, as measured, accounts for {gap:.2g} s of the gap of {gap:.2g} s"
    assert said in flag(hidden + gap)
    assert "kernels" not in flag(hidden + gap)
    half = flag(hidden + gap / 2)
    assert f"accounts for {gap / 2:.2g} s of the gap" in half
    assert "the rest looks like kernels" in half
    assert f"accounts for none of the gap of {gap:.2g} s" in flag(hidden / 2)


def test_measured_imbalance_accounts_for_its_part_of_the_gap(client) -> None:
    predicted = client.post("/v1/reports", json=SPARSE).json()["prediction"]["step_time_s"]
    slow = changed(SPARSE, "measured.step_time_s", 1.5 * predicted)
    far, even = (
        client.post("/v1/reports", json={**slow, "parts": {"expert_imbalance": imbalance}}).json()[
            "flag"
        ]
        for imbalance in (1.0, 0.0)
    )
    found = re.search(
        r"expert imbalance, as measured, accounts for ([\d.]+) s of the gap of ([\d.]+) s", far
    )
    assert found
    assert float(found[1]) > 0.5 * float(found[2])
    assert "expert imbalance, as measured, accounts for none of the gap" in even
    assert "the rest looks like kernels" in even
    forced = changed({**slow, "parts": {"expert_imbalance": 1.0}}, "workload.routing", "balanced")
    assert "imbalance" not in client.post("/v1/reports", json=forced).json()["flag"]


def test_a_run_that_was_stopped_is_no_slow_run(client) -> None:
    stopped = client.post("/v1/reports", json={**PREDICTION, "outcome": "aborted"}).json()
    assert [stopped[name] for name in ("measured", "residual", "within_interval", "flag")] == [
        None
    ] * 4
    assert stopped["fit_verdict_agrees"] is None
    after_some = client.post("/v1/reports", json={**REPORT, "outcome": "aborted"}).json()
    assert after_some["fit_verdict_agrees"] == after_some["prediction"]["fits"]
    assert after_some["residual"] == client.post("/v1/reports", json=REPORT).json()["residual"]
    failed = client.post(
        "/v1/reports", json={**REPORT, "outcome": "aborted", "failure": {"stage": 0}}
    )
    assert_problem(failed, "invalid", "/failure")
    too_much = client.post(
        "/v1/reports", json={**REPORT, "outcome": "aborted", "memory": {"reserved_gib": 90}}
    )
    assert_problem(too_much, "invalid", "/memory/reserved_gib")
    assert len(client.get("/v1/reports?outcome=aborted").json()["items"]) == 2


def test_reports_are_filtered(client) -> None:
    def count(query: str) -> int:
        return len(client.get(f"/v1/reports?{query}").json()["items"])

    client.post("/v1/reports", json=REPORT)
    crashed = {**changed(PREDICTION, "cluster.preset", "h200"), "outcome": "crashed"}
    assert client.post("/v1/reports", json=crashed).status_code == 201
    assert (
        count("chip=h100")
        == count("chip=h100-sxm-80gb")
        == count("outcome=ok")
        == count("chip=h200")
        == 1
    )
    assert count("chip=H100") == count("chip=H100_SXM_80GB") == 1
    assert (
        count("stack=titan") == count("architecture=llama-3-8b") == count("profile_version=1") == 2
    )
    assert (
        count("chip=b200") == count("profile_version=2") == count("since=2100-01-01T00:00:00Z") == 0
    )
    assert count("since=2020-01-01T00:00:00Z&until=2100-01-01T00:00:00Z&chip=h200") == 1


@pytest.mark.parametrize(
    ("stack", "date", "age"),
    [
        ("torchtitan", "2025-06-11T00:00:00Z", 1.14),
        ({"name": "torchtitan", "max_pp": 8}, "2025-06-30T00:00:00Z", 1.14),
        ("torchtitan", "2001-01-01T00:00:00Z", 20),
        ({"name": "torchtitan", "age_years": 0.25}, "2025-06-11T00:00:00Z", 0.25),
        ("torchtitan", "2026-09-11T00:00:00Z", None),
        ("torchtitan", None, None),
    ],
)
def test_a_run_that_is_described_has_software_as_old_as_its_date(client, stack, date, age) -> None:
    report = {**REPORT, "stack": stack, **({"measured_at": date} if date else {})}
    found = client.post("/v1/reports", json=report).json()
    said = [line for line in found["assumptions"] if "as old as measured_at" in line]
    given = stack if isinstance(stack, dict) else {"name": stack}
    assert found["request"]["stack"] == (stack if age is None else {**given, "age_years": age})
    told = age is not None and "age_years" not in given
    assert (
        said
        == [f"stack.age_years is {age}: the software is as old as measured_at, {str(date)[:7]}"]
        * told
    )
    slower = {**REPORT, "stack": {"name": "torchtitan", "age_years": age or 0.0}}
    assert (
        found["prediction"]["step_time_s"]
        == client.post("/v1/reports", json=slower).json()["prediction"]["step_time_s"]
    )


def test_a_run_of_a_prediction_has_its_software_whatever_its_date(client) -> None:
    made = client.post("/v1/predictions", json=PREDICTION).json()
    linked = {"prediction_id": made["id"], "outcome": "ok", "measured": {"step_time_s": 2.0}}
    found = client.post(
        "/v1/reports", json={**linked, "measured_at": "2024-06-11T00:00:00Z"}
    ).json()
    assert found["request"]["stack"] == "torchtitan"
    assert found["prediction"]["step_time_s"] == made["layouts"][0]["step_time_s"]


@pytest.mark.parametrize(
    ("field", "value", "example"),
    [
        ("measured", 2.0, '{"step_time_s": 2.0}'),
        ("measured", "2 s", '{"step_time_s": 2.0}'),
        ("measured.mfu", 0.42, '{"value": 0.41, "attention": "causal"}'),
        ("measured.tflops_per_chip", 400, '{"value": 400.0, "attention": "causal"}'),
        ("memory", 61.5, '{"reserved_gib": 61.5}'),
        ("failure", 70, '{"peak_gib": 79.1}'),
        ("parts", 0.2, '{"exposed_communication_s": 0.2}'),
    ],
)
def test_a_bare_number_is_told_the_shape_to_send(
    shared_client, field: str, value: object, example: str
) -> None:
    nested = field.removeprefix("measured.")
    body = {**REPORT, field: value} if nested == field else {**REPORT, "measured": {nested: value}}
    pointer = "/" + field.replace(".", "/")
    problem = assert_problem(shared_client.post("/v1/reports", json=body), "invalid", pointer)
    assert problem["errors"][0]["rule"] == f"must be an object, such as {example}"


def test_a_speed_beside_measured_is_told_where_it_goes(shared_client) -> None:
    for field, example in (("step_time_s", "2.0"), ("mfu", '{"value": 0.41')):
        body = {**without(REPORT, "measured"), field: 2.0}
        problem = assert_problem(
            shared_client.post("/v1/reports", json=body), "invalid", f"/{field}"
        )
        assert f'goes into measured, as in "measured": {{"{field}": {example}' in str(problem)


def test_a_report_that_says_the_same_again_counts_and_is_told(client) -> None:
    first = client.post("/v1/reports", json=REPORT).json()
    assert first["same_as"] is None
    again = client.post("/v1/reports", json=REPORT).json()
    assert again["same_as"] == first["id"] != again["id"]
    assert client.get(f"/v1/reports/{again['id']}").json()["same_as"] == first["id"]
    other = client.post("/v1/reports", json=changed(REPORT, "measured.step_time_s", 2.5)).json()
    assert other["same_as"] is None
    client.delete(f"/v1/reports/{first['id']}")
    assert client.post("/v1/reports", json=REPORT).json()["same_as"] == again["id"]


def test_nothing_is_learnt_from_a_run_whose_launch_was_not_understood(client) -> None:
    layout = "--tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer"
    sizes = "--seq-length 8192 --global-batch-size 128 --micro-batch-size 1 --bf16"
    arguments = f"torchrun pretrain_gpt.py {layout} {sizes} --zorblax 16"
    launched = {
        "model": "llama-3-8b",
        "cluster": {"preset": "h100", "num_chips": 64},
        "launch": {"format": "megatron", "arguments": arguments},
    }
    predicted = client.post("/v1/predictions", json=launched)
    assert predicted.status_code == 201, predicted.json()
    (reservation,) = predicted.json()["reservations"]
    assert reservation["setting"] == "--zorblax 16"
    measured = {"outcome": "ok", "measured": {"step_time_s": 3.0}}
    report = {"prediction_id": predicted.json()["id"], **measured}
    reported = client.post("/v1/reports", json=report).json()
    assert reported["reservations"] == [reservation]
    drift = client.get("/v1/profiles/default/drift").json()
    assert drift["left_out"] == 1
    assert drift["runs"] == 0
