"""Many reports at once: each as it would be alone, the bad ones named and the rest kept."""

from __future__ import annotations

import csv
import io
import json
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from service.learning.model_families import family_of
from service.learning.report_batches import batch_outcomes
from service.schemas.limits import MAX_BATCH_REPORTS
from tests.service.asking import (
    CONFIG,
    PREDICTION,
    QUESTION,
    REPORT,
    assert_problem,
    changed,
    without,
)


def stored(client) -> int:
    return len(client.get("/v1/reports").json()["items"])


def test_each_is_answered_as_it_would_be_alone(client) -> None:
    reports = [
        REPORT,
        changed(REPORT, "measured.step_time_s", 3.0),
        changed(REPORT, "layout.recompute", "full"),
        {**PREDICTION, "outcome": "crashed"},
        {
            **REPORT,
            "source": "us",
            "measured_at": "2026-01-05T10:00:00Z",
            "memory": {"reserved_gib": 40.0},
        },
    ]
    answer = client.post("/v1/reports", json={"reports": reports})
    assert answer.status_code == 201
    found = answer.json()
    assert (found["accepted"], found["refused"]) == (5, 0)
    for report, item in zip(reports, found["items"], strict=True):
        alone = client.post("/v1/reports", json=report).json()
        together = client.get(item["location"]).json()
        assert json.loads(together.pop("submission")) == report
        assert (together.pop("same_as"), alone.pop("same_as")) == (None, together["id"])
        for name in ("id", "created_at", "measured_at"):
            assert (together.pop(name) == alone.pop(name)) == (
                name == "measured_at" and name in report
            )
        assert together == alone
        assert item["residual"] == together["residual"]


def test_the_bad_ones_are_named_and_the_rest_kept(client) -> None:
    prediction = client.post("/v1/predictions", json=PREDICTION).json()["id"]
    reports: list[Any] = [
        REPORT,
        without(REPORT, "cluster"),
        changed(REPORT, "layout.tp", 3),
        changed(REPORT, "stack", "nobody"),
        {"prediction_id": prediction, "outcome": "ok", "measured": {"step_time_s": 2.0}},
        {"prediction_id": "nowhere", "outcome": "ok", "measured": {"step_time_s": 2.0}},
        changed(REPORT, "measured.step_time_s", "fast"),
        changed(REPORT, "measured", {"mfu": {"value": 1.2, "attention": "causal"}}),
        {**REPORT, "memory": {"reserved_gib": 400.0}},
    ]
    found = client.post("/v1/reports", json={"reports": reports}).json()
    assert (found["accepted"], found["refused"]) == (2, 7)
    assert stored(client) == 2
    pointers = [[error["pointer"] for error in item["errors"]] for item in found["items"]]
    assert pointers == [
        [],
        ["/reports/1/cluster"],
        ["/reports/2/layout"],
        ["/reports/3/stack"],
        [],
        ["/reports/5/prediction_id"],
        ["/reports/6/measured/step_time_s"],
        ["/reports/7/measured/mfu"],
        ["/reports/8/memory/reserved_gib"],
    ]
    assert found["items"][6]["errors"][0]["value"] == "fast"


UNREADABLE = [
    ('"step_time_s": NaN', "/measured/step_time_s", "NaN", "is not JSON"),
    ('"step_time_s": -Infinity', "/measured/step_time_s", "-Infinity", "is not JSON"),
    ('"step_time_s": 1e400', "/measured/step_time_s", "1e400", "64-bit float"),
    (f'"step_time_s": {"1" * 5000}', "/measured/step_time_s", "1" * 40 + "…", "more digits"),
    ('"step_time_s": 2.0, "step_time_s": 2.0', "/measured/step_time_s", 2, "given twice"),
    ('"step_time_s": "\\u0000"', "/measured/step_time_s", "\\u0000", "NUL character"),
    ('"step_time_s": "\\ud800"', "/measured/step_time_s", "\\ud800", "surrogate"),
    (
        f'"step_time_s": "{"x" * 900}\\u0000"',
        "/measured/step_time_s",
        "x" * 40 + "\\u0000",
        "at its character 900",
    ),
    ('"\\udfff": "2.0"', "/measured", "\\udfff", "is a name with"),
    ('"step_time_s": ' + "[" * 64 + "]" * 64, "", None, "nests deeper than 64"),
    ('"step_time_s": ' + "[" * 100_000 + "]" * 100_000, "", None, "nests deeper than 64"),
    (
        '"step_time_s": [' + "{}," * 30 + '{"]": "\\"}"}]',
        "/measured/step_time_s",
        "a list of 31 items",
        "valid number",
    ),
    (
        "{" + ",".join(f'"{i}":1' for i in range(30_000)) + "}",
        "/measured",
        "an object with 30000 members",
        "more than 20000",
    ),
]


@pytest.mark.parametrize(("written", "pointer", "value", "rule"), UNREADABLE)
def test_one_that_cannot_be_read_is_refused_by_itself(
    shared_client, written: str, pointer: str, value: object, rule: str
) -> None:
    good = json.dumps(REPORT)
    bad = good.replace(
        '{"step_time_s": 2.0}', written if written.startswith("{") else f"{{{written}}}"
    )
    headers = {"content-type": "application/json"}
    body = f'{{"reports": [{good}, {bad} , {good}]}}'
    answer = shared_client.post("/v1/reports", content=body.encode(), headers=headers)
    assert answer.status_code == 201
    assert (answer.json()["accepted"], answer.json()["refused"]) == (2, 1)
    (error,) = answer.json()["items"][1]["errors"]
    assert (error["pointer"], error["value"]) == (f"/reports/1{pointer}", value)
    assert rule in error["rule"]
    strict = body.replace('{"reports"', '{"all_or_nothing": true, "reports"').encode()
    refused = shared_client.post("/v1/reports", content=strict, headers=headers)
    found = assert_problem(refused, "invalid", f"/reports/1{pointer}")
    assert found["errors"][0]["value"] == value or not pointer
    if rule != "valid number":
        assert_problem(
            shared_client.post("/v1/reports", content=bad.encode(), headers=headers),
            "malformed-body",
        )


NO_JSON = {
    "a comma too many": '{"reports": [%s, ]}',
    "no comma": '{"reports": [%s %s]}',
    "no end": '{"reports": [%s, %s',
    "no end of depth": '{"reports": [%s, ' + "[" * 100_000,
    "cut off in a string": '{"reports": [%s, {"source": "ab',
    "no item": '{"reports": [%s, nope]}',
    "two texts": '{"reports": [%s]} {}',
    "twice": '{"reports": [%s], "reports": [%s]}',
    "not finite beside them": '{"reports": [%s], "all_or_nothing": NaN}',
    "in an array": '["reports": [%s]]',
    "an odd name": '{"reports\\x": [%s]}',
}


@pytest.mark.parametrize("name", NO_JSON)
def test_a_batch_that_is_no_json_is_refused(client, name: str) -> None:
    body = NO_JSON[name].replace("%s", json.dumps(REPORT)).encode()
    headers = {"content-type": "application/json"}
    assert_problem(client.post("/v1/reports", content=body, headers=headers), "malformed-body")
    assert stored(client) == 0


def test_reports_are_kept_as_they_were_written(client) -> None:
    odd = json.dumps(REPORT, indent=3).replace("2.0", "2.10e0").replace("llama", "ll\\u0061ma")
    config = json.dumps(
        {**REPORT, "model": {**CONFIG, "time_step_limit": [0.0, math.inf]}, "source": "é😀"}
    )
    body = f' {{"r\\u0065ports" :\n[\t{odd} ,{config}\r], "all_or_nothing": true}} '.encode()
    answer = client.post("/v1/reports", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 201, answer.text
    kept = [client.get(item["location"]).json()["submission"] for item in answer.json()["items"]]
    assert kept == [odd, config]
    alone = client.post(
        "/v1/reports", content=odd.encode(), headers={"content-type": "application/json"}
    )
    assert client.get(alone.headers["location"]).json()["submission"] == odd


def test_a_refusal_shows_the_value_as_it_was_given(client) -> None:
    far = [
        changed(REPORT, "measured.step_time_s", 1e6),
        {**REPORT, "measured_at": "2199-01-01T00:00:00+01:00"},
    ]
    for all_or_nothing in (False, True):
        body = {"reports": [REPORT, *far], "all_or_nothing": all_or_nothing}
        found = client.post("/v1/reports", json=body).json()
        errors = (
            found["errors"]
            if all_or_nothing
            else [item["errors"][0] for item in found["items"][1:]]
        )
        assert [error["value"] for error in errors] == [1e6, "2199-01-01T00:00:00+01:00"]


def test_more_than_a_batch_may_hold_is_refused(shared_client) -> None:
    body = {"reports": [0] * (MAX_BATCH_REPORTS + 1)}
    found = assert_problem(shared_client.post("/v1/reports", json=body), "invalid", "/reports")
    assert "at most 10000" in found["detail"]


def test_all_or_nothing_takes_nothing_where_one_is_bad(client) -> None:
    body = {"reports": [REPORT, without(REPORT, "cluster")], "all_or_nothing": True}
    problem = assert_problem(client.post("/v1/reports", json=body), "invalid", "/reports/1/cluster")
    assert len(problem["errors"]) == 1
    assert stored(client) == 0
    assert (
        client.post("/v1/reports", json={**body, "reports": [REPORT, REPORT]}).json()["accepted"]
        == 2
    )


def test_a_batch_of_nothing_good_is_refused(client) -> None:
    assert_problem(client.post("/v1/reports", json={"reports": [{}, []]}), "invalid", "/reports/1")
    mixed = client.post("/v1/reports", json={"reports": [1, None, "x", REPORT]}).json()
    assert (mixed["accepted"], mixed["refused"]) == (1, 3)
    assert_problem(
        client.post("/v1/reports", json={"reports": [{}]}), "invalid", "/reports/0/outcome"
    )
    assert_problem(client.post("/v1/reports", json={"reports": []}), "invalid", "/reports")
    assert_problem(
        client.post("/v1/reports", json={"reports": [REPORT], "atomic": True}), "invalid", "/atomic"
    )


def test_a_retry_with_the_same_key_adds_nothing(client) -> None:
    headers = {"Idempotency-Key": "batch-1"}
    first = client.post("/v1/reports", json={"reports": [REPORT] * 3}, headers=headers)
    again = client.post("/v1/reports", json={"reports": [REPORT] * 3}, headers=headers)
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert stored(client) == 3


def test_a_slow_run_is_flagged_with_what_was_expected(client) -> None:
    predicted = client.post("/v1/predictions", json=PREDICTION).json()["layouts"][0]
    slow = changed(REPORT, "measured.step_time_s", 1.5 * predicted["step_time_high_s"])
    found = client.post("/v1/reports", json=slow).json()
    mfu = found["measured"]["mfu"]["causal"]
    assert found["flag"].startswith(f"measured {mfu:.1%} MFU (causal), ")
    highest = predicted["step_time_s"] / predicted["step_time_low_s"]
    assert f"{predicted['mfu']['causal'] * highest:.1%}" in found["flag"]
    usual = changed(REPORT, "measured.step_time_s", predicted["step_time_s"])
    assert client.post("/v1/reports", json=usual).json()["flag"] is None


def test_measured_communication_points_at_communication(client) -> None:
    layout = {
        "tp": 8,
        "dp_shard": 8,
        "zero_stage": 1,
        "sequence_parallel": True,
        "recompute": "selective",
    }
    question = {**QUESTION, "stack": "megatron", "layout": layout}
    predicted = client.post("/v1/predictions", json=question).json()["layouts"][0]
    slow = 1.6 * predicted["step_time_s"]
    exposed = (
        slow
        - predicted["step_time_s"]
        + predicted["time"]["tensor_s"]
        + predicted["time"]["data_s"]
    )
    body = {**question, "outcome": "ok", "measured": {"step_time_s": slow}}
    told = client.post(
        "/v1/reports", json={**body, "parts": {"exposed_communication_s": exposed}}
    ).json()
    assert "traffic" in told["flag"]
    assert told["parts"]["predicted_exposed_communication_s"] < exposed
    assert_problem(client.post("/v1/reports", json={**body, "parts": {}}), "invalid", "/parts")


def test_csv_shows_what_ran_and_how_fast(client) -> None:
    made = client.post("/v1/reports", json=REPORT).json()
    client.post("/v1/reports", json={**without(REPORT, "measured"), "outcome": "crashed"})
    crashed, ran = csv.DictReader(io.StringIO(client.get("/v1/reports?format=csv").text))
    assert (
        ran["layout"]
        == crashed["layout"]
        == "dp_shard=64 micro_batch=1 zero=3 recompute=layernorm+mlp_act+alternate_mm"
    )
    measured = {
        "tokens_per_s": made["measured"]["tokens_per_s"],
        "mfu_causal": made["measured"]["mfu"]["causal"],
    }
    assert {name: float(ran[name]) for name in measured} == measured
    assert float(ran["predicted_mfu_causal"]) == made["prediction"]["mfu"]["causal"]
    assert crashed["mfu_causal"] == crashed["tokens_per_s"] == ""


def test_csv_has_every_report_once_and_no_formula(client) -> None:
    reports = [changed(REPORT, "measured.step_time_s", 2.0 + i / 10) for i in range(7)]
    reports.append({**REPORT, "source": "=HYPERLINK(1)"})
    client.post("/v1/reports", json={"reports": reports})
    answer = client.get("/v1/reports?format=csv")
    assert answer.headers["content-type"].startswith("text/csv")
    lines = list(csv.DictReader(io.StringIO(answer.text)))
    assert sorted(float(line["step_time_s"]) for line in lines) == [
        2.0,
        *(2.0 + i / 10 for i in range(7)),
    ]
    assert {line["chip"] for line in lines} == {"h100-sxm-80gb"}
    assert [line["source"] for line in lines if line["source"]] == ["'=HYPERLINK(1)"]
    assert {line["id"] for line in lines} == {
        item["id"] for item in client.get("/v1/reports").json()["items"]
    }
    assert client.get("/v1/reports?format=csv&chip=a100").text.count("\r\n") == 1
    assert_problem(client.get("/v1/reports?format=csv&limit=3"), "invalid")


def test_the_summary_counts_every_report_in_each_section(client) -> None:
    other = changed(changed(REPORT, "cluster.preset", "h200"), "measured.step_time_s", 1.9)
    dated = {**REPORT, "measured_at": "2026-01-05T10:00:00Z", "source": "us"}
    crashed = {**PREDICTION, "outcome": "crashed"}
    aborted = {**REPORT, "outcome": "aborted"}
    client.post("/v1/reports", json={"reports": [REPORT, other, dated, crashed, aborted]})
    found = client.get("/v1/reports/summary").json()
    counts = [found["overall"][name] for name in ("reports", "measured", "crashed", "aborted")]
    assert counts == [5, 4, 1, 1]
    for section in found["by"].values():
        assert sum(group["reports"] for group in section.values()) == 5
    assert found["by"]["week"]["2026-W02"]["reports"] == 1
    assert found["by"]["family"].keys() == {"llama-3.1"} or found["by"]["family"].keys() == {
        "llama-3"
    }
    assert found["by"]["source"]["us"]["measured"] == 1
    residuals = [item["residual"] for item in client.get("/v1/reports?chip=h200").json()["items"]]
    assert found["by"]["chip"]["h200-sxm-141gb"]["residual_median"] == pytest.approx(residuals[0])
    assert client.get("/v1/reports/summary?chip=h200").json()["overall"]["reports"] == 1
    assert client.get("/v1/reports/summary?chip=b200").json()["overall"]["residual_median"] is None


def test_a_summary_keeps_little_of_many_reports(client) -> None:
    ((known, _),) = batch_outcomes(client.app.state.services.store, [json.dumps(REPORT)])
    residuals = np.random.default_rng(1).normal(size=6000)
    many = [
        {
            **known,
            "document": {},
            "stack": ("megatron", "maxtext")[index % 2],
            "residual": float(residual),
        }
        for index, residual in enumerate(residuals)
    ]
    with client.app.state.services.store.writing() as rows:
        rows.reports.add(many)
    client.get("/v1/reports/summary")
    tracemalloc.start()
    found = client.get("/v1/reports/summary").json()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5e6
    for statistics, mine in (
        (found["overall"], residuals),
        (found["by"]["stack"]["maxtext"], residuals[1::2]),
    ):
        quantiles = [statistics[f"residual_{name}"] for name in ("low", "median", "high")]
        assert quantiles == pytest.approx(np.quantile(mine, (0.1, 0.5, 0.9)))
        assert statistics["median_abs_error"] == pytest.approx(np.median(np.abs(np.expm1(-mine))))


def test_families_are_names_without_sizes() -> None:
    names = {
        "llama-3.1-405b": "llama-3.1",
        "qwen3-235b-a22b": "qwen3",
        "mixtral-8x7b": "mixtral",
        "deepseek-v3": "deepseek-v3",
        "custom": "custom",
        "gemma-3-27b": "gemma-3",
        "-7b": "-7b",
    }
    assert {name: family_of(name) for name in names} == names
