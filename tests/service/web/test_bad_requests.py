"""Bad requests: each must be refused at the place that is wrong, none may fail or hang."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.asking import (
    CHIP,
    LAYOUT,
    PREDICTION,
    QUESTION,
    REPORT,
    SHAPE,
    assert_problem,
    changed,
    without,
)

IMAGE_MODEL = {
    "model_type": "vit",
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "image_size": 224,
    "patch_size": 16,
}
LEVEL = {"name": "switch", "size": 8, "gb_s_per_chip": 100}
TORUS = {"ndim": 2, "max_chips": 256, "gb_s_per_link": 50, "wrap": "cubes", "wrap_length": 4}
MOE = {"num_experts": 8, "experts_per_token": 2, "moe_intermediate_size": 512}


def cluster(**fields: Any) -> dict[str, Any]:
    return changed(PREDICTION, "cluster", {"num_chips": 64, **fields})


def model(**fields: Any) -> dict[str, Any]:
    return changed(PREDICTION, "model", {**SHAPE, **fields})


def layout(**fields: Any) -> dict[str, Any]:
    return changed(PREDICTION, "layout", fields)


def stack(**fields: Any) -> dict[str, Any]:
    return changed(PREDICTION, "stack", {"name": "torchtitan", **fields})


BAD_PREDICTIONS: list[tuple[dict[str, Any], str, str]] = [
    *[
        (cluster(preset="h100", num_chips=n), "invalid", "/cluster/num_chips")
        for n in (0, -1, 10**7, 10**30, 1.5, "8", True)
    ],
    *[(cluster(preset="h100", num_chips=n), "invalid", "/layout") for n in (1, 7, 997)],
    (changed(PREDICTION, "cluster", {"preset": "h100"}), "invalid", "/cluster/num_chips"),
    (changed(PREDICTION, "cluster", "v5p-256"), "invalid", "/cluster"),
    (cluster(preset="h1000"), "unknown-name", "/cluster/preset"),
    (cluster(preset="h100@3"), "unknown-name", "/cluster/preset"),
    (cluster(preset="dgx-h100-superpod", num_chips=20_000), "invalid", "/cluster/num_chips"),
    (cluster(preset="h100", torus_shape=[8, 8]), "invalid", "/cluster/torus_shape"),
    (cluster(preset="tpu-v5p", torus_shape=[8, 8]), "invalid", "/cluster/torus_shape"),
    (cluster(preset="tpu-v5p", torus_shape=[5, 5, 5]), "invalid", "/cluster/torus_shape"),
    (cluster(preset="tpu-v5p", chips_per_domain=8), "invalid", "/cluster/chips_per_domain"),
    (cluster(preset="h100", chips_per_domain=9), "invalid", "/cluster/chips_per_domain"),
    (cluster(preset="h100", speed=1), "invalid", "/cluster/speed"),
    (cluster(chip="nope"), "unknown-name", "/cluster/chip"),
    (cluster(chip="h100", levels=[LEVEL]), "invalid", "/cluster/num_chips"),
    (cluster(chip="h100", levels=[LEVEL, LEVEL]), "invalid", "/cluster/levels"),
    (
        cluster(
            chip="h100",
            num_chips=64,
            levels=[
                {**LEVEL, "size": 8},
                {**LEVEL, "size": 16},
                {**LEVEL, "size": 64, "scale": "up"},
            ],
        ),
        "invalid",
        "/cluster/levels",
    ),
    (
        cluster(chip="h100", levels=[{**LEVEL, "gb_s_per_chip": -5}]),
        "invalid",
        "/cluster/levels/0/gb_s_per_chip",
    ),
    (cluster(chip="h100", levels=[]), "invalid", "/cluster/levels"),
    (cluster(chip="h100", torus={**TORUS, "ndim": 9}), "invalid", "/cluster/torus/ndim"),
    (cluster(chip="h100", torus={**TORUS, "max_chips": 16}), "invalid", "/cluster/num_chips"),
    (cluster(chip=without(CHIP, "peak_tflops")), "invalid", "/cluster/chip/peak_tflops"),
    (
        cluster(chip=changed(CHIP, "peak_tflops", {"fp8": 100.0})),
        "invalid",
        "/cluster/chip/peak_tflops",
    ),
    (
        cluster(chip=changed(CHIP, "peak_tflops", {"fp7": 100.0})),
        "invalid",
        "/cluster/chip/peak_tflops/fp7",
    ),
    (cluster(chip=changed(CHIP, "memory_gb", 10**400)), "invalid", "/cluster/chip/memory_gb"),
    (
        cluster(chip=changed(CHIP, "scale_up", {"gb_s_per_chip": 450})),
        "invalid",
        "/cluster/chip/scale_up",
    ),
    (changed(PREDICTION, "cluster", "h100"), "invalid", "/cluster"),
    *[
        (changed(PREDICTION, "workload.seq_len", n), "invalid", "/workload/seq_len")
        for n in (0, -1, 10**9, 1000.5, None)
    ],
    *[
        (changed(PREDICTION, "workload.global_batch", n), "invalid", "/workload/global_batch")
        for n in (1, 63, 100)
    ],
    (changed(PREDICTION, "workload.global_batch", 10**8), "invalid", "/workload/global_batch"),
    (changed(PREDICTION, "workload.precision", "fp3"), "invalid", "/workload/precision"),
    (changed(PREDICTION, "workload.precision", "nvfp4"), "invalid", "/workload/precision"),
    (changed(PREDICTION, "workload.precision", "mxfp8"), "invalid", "/workload/precision"),
    (changed(PREDICTION, "workload.optimizer", "sgdd"), "invalid", "/workload/optimizer"),
    (changed(PREDICTION, "workload.token_budget", -1), "invalid", "/workload/token_budget"),
    (changed(PREDICTION, "workload.batch", 1), "invalid", "/workload/batch"),
    (changed(PREDICTION, "model", "llama-9"), "unknown-name", "/model"),
    (changed(PREDICTION, "model", "a\tb"), "invalid", "/model"),
    (changed(PREDICTION, "model", IMAGE_MODEL), "unsupported", "/model/model_type"),
    (
        changed(PREDICTION, "model", {"model_type": "llama"}),
        "invalid",
        "/model/num_hidden_layers",
    ),
    (changed(PREDICTION, "model", {"model_type": 5}), "invalid", "/model/model_type"),
    (changed(PREDICTION, "model", {}), "invalid", "/model/num_layers"),
    (changed(PREDICTION, "model", 5), "invalid", "/model"),
    (model(hidden_size=4097), "invalid", "/model/head_dim"),
    (model(num_key_value_heads=5), "invalid", "/model/num_key_value_heads"),
    (model(num_layers=0), "invalid", "/model/num_layers"),
    (model(num_layers=10**6), "invalid", "/model/num_layers"),
    (model(hidden_size=2**24, intermediate_size=2**24, num_layers=1024), "invalid", "/model"),
    (model(full_attention_period=4), "invalid", "/model/full_attention_period"),
    (model(moe={**MOE, "experts_per_token": 9}), "invalid", "/model/moe/experts_per_token"),
    (model(moe={**MOE, "num_groups": 3}), "invalid", "/model/moe/num_groups"),
    (model(layers=[{}]), "invalid", "/model/num_layers"),
    (model(moe={**MOE, "first_k_dense": 32}), "invalid", "/model/moe/first_k_dense"),
    (model(moe={**MOE, "moe_layer_freq": 64}), "invalid", "/model/moe/moe_layer_freq"),
    (layout(dp_shard=64, etp=2), "invalid", "/layout/etp"),
    (layout(dp_shard=64, virtual_stages=2), "invalid", "/layout/virtual_stages"),
    (model(activation="gelu"), "invalid", "/model/activation"),
    (changed(model(moe=MOE), "layout", {**LAYOUT, "ep": 3}), "invalid", "/layout/ep"),
    (changed(PREDICTION, "stack", "megatorn"), "unknown-name", "/stack"),
    (changed(PREDICTION, "stack", 5), "invalid", "/stack"),
    (stack(name="nope"), "unknown-name", "/stack/name"),
    (stack(schedules=[]), "invalid", "/stack/schedules"),
    (stack(schedules=["2f2b"]), "invalid", "/stack/schedules/0"),
    (stack(max_tp="8"), "invalid", "/stack/max_tp"),
    (stack(turbo=True), "invalid", "/stack/turbo"),
    (layout(**LAYOUT, speed=1), "invalid", "/layout/speed"),
    (layout(dp_shard=63, zero_stage=3), "invalid", "/layout"),
    (layout(tp=64, sequence_parallel=True), "invalid", "/layout/tp"),
    (layout(pp=64), "invalid", "/layout/pp"),
    (layout(dp_shard=8, ep=8, zero_stage=3, tp=8, sequence_parallel=True), "invalid", "/layout/ep"),
    (layout(**{**LAYOUT, "placement": ["tp"] * 5}), "invalid", "/layout/placement"),
    (layout(**{**LAYOUT, "zero_stage": 4}), "invalid", "/layout/zero_stage"),
    (layout(**{**LAYOUT, "micro_batch": 0}), "invalid", "/layout/micro_batch"),
    (layout(**{**LAYOUT, "schedule": "dualpipe"}), "invalid", "/layout/schedule"),
    (changed(PREDICTION, "layouts", [LAYOUT]), "invalid", "/layout"),
    (QUESTION, "invalid", "/layout"),
    ({**QUESTION, "layouts": []}, "invalid", "/layouts"),
    ({**QUESTION, "layouts": [LAYOUT] * 1001}, "invalid", "/layouts"),
    ({**QUESTION, "layouts": [LAYOUT, {"dp_shard": 3}, LAYOUT]}, "invalid", "/layouts/1"),
    ({**PREDICTION, "extra": 1}, "invalid", "/extra"),
    ({}, "invalid", "/model"),
]


@pytest.mark.parametrize(("body", "name", "pointer"), BAD_PREDICTIONS)
def test_a_bad_prediction_is_refused_at_its_field(
    shared_client, body: dict[str, Any], name: str, pointer: str
) -> None:
    assert_problem(shared_client.post("/v1/predictions", json=body), name, pointer)


@pytest.mark.parametrize("body", [[], None, "text", 5, True, [[[]]]])
def test_a_body_that_is_no_object_is_refused(shared_client, body: Any) -> None:
    assert_problem(shared_client.post("/v1/predictions", json=body), "invalid", "")


BAD_REPORTS: list[tuple[dict[str, Any], str, str]] = [
    (without(REPORT, "outcome"), "invalid", "/outcome"),
    (without(REPORT, "measured"), "invalid", "/measured"),
    (without(REPORT, "layout"), "invalid", "/layout"),
    (changed(REPORT, "outcome", "fine"), "invalid", "/outcome"),
    (
        changed({**PREDICTION, "outcome": "crashed"}, "parts", {"expert_imbalance": 0.1}),
        "invalid",
        "/parts",
    ),
    (changed(REPORT, "failure", {}), "invalid", "/failure"),
    (changed(REPORT, "measured", {}), "invalid", "/measured"),
    (changed(REPORT, "measured", {"step_time_s": 1, "tokens_per_s": 1}), "invalid", "/measured"),
    (changed(REPORT, "measured", {"step_time_s": -1}), "invalid", "/measured/step_time_s"),
    (changed(REPORT, "measured", {"step_time_s": 1e300}), "invalid", "/measured/step_time_s"),
    (changed(REPORT, "measured", {"tokens_per_s": 1e-6}), "invalid", "/measured/tokens_per_s"),
    (
        changed(REPORT, "measured", {"mfu": {"value": 41, "attention": "full"}}),
        "invalid",
        "/measured/mfu/value",
    ),
    (changed(REPORT, "measured", {"mfu": {"value": 0.4}}), "invalid", "/measured/mfu/attention"),
    (
        changed(
            REPORT, "measured", {"mfu": {"value": 0.4, "attention": "full", "peak_dtype": "fp4"}}
        ),
        "invalid",
        "/measured/mfu/peak_dtype",
    ),
    (
        changed(
            REPORT,
            "measured",
            {"mfu": {"value": 1, "attention": "full", "peak_dtype": "bf16", "peak_tflops": 1}},
        ),
        "invalid",
        "/measured/mfu",
    ),
    (changed(REPORT, "memory", {"reserved_gib": -1}), "invalid", "/memory/reserved_gib"),
    (changed(REPORT, "memory", {"reserved_gib": 0}), "invalid", "/memory/reserved_gib"),
    (changed(REPORT, "memory", {"reserved_gib": 500}), "invalid", "/memory/reserved_gib"),
    (
        changed(REPORT, "memory", {"allocated_gib": 60, "reserved_gib": 59.9}),
        "invalid",
        "/memory/allocated_gib",
    ),
    (changed(REPORT, "prediction_id", "x"), "invalid", "/model"),
    (changed(REPORT, "rank", 1), "invalid", "/rank"),
    (changed(REPORT, "layout.dp_shard", 3), "invalid", "/layout"),
    (
        {"prediction_id": "x", "recommendation_id": "y", "outcome": "crashed"},
        "invalid",
        "/recommendation_id",
    ),
]


@pytest.mark.parametrize(("body", "name", "pointer"), BAD_REPORTS)
def test_a_bad_report_is_refused_at_its_field(
    shared_client, body: dict[str, Any], name: str, pointer: str
) -> None:
    assert_problem(shared_client.post("/v1/reports", json=body), name, pointer)


@pytest.mark.parametrize("link", ["prediction_id", "recommendation_id"])
def test_a_report_of_something_unknown_is_not_found(shared_client, link: str) -> None:
    assert_problem(
        shared_client.post("/v1/reports", json={link: "nope", "outcome": "crashed"}), "not-found"
    )


BAD_QUERIES = [
    "limit=0",
    "limit=1001",
    "limit=x",
    "page=2",
    "cursor=%00",
    "cursor=!!!",
    "cursor=AAAA",
    "chip=%00",
    "chip=a%00b",
    "stack=",
    "outcome=fine",
    "profile_version=0",
    "profile_version=99999999999999999999",
    "since=yesterday",
    "since=2026-01-01T00:00:00",
    "since=0001-01-01T00:00:00%2B14:00",
    "until=2026-01-01T00:00:00Z&since=2026-01-01T00:00:00Z",
    "limit=1&limit=2",
    "until=9999-12-31T23:59:59-14:00",
]


@pytest.mark.parametrize("query", BAD_QUERIES)
def test_a_bad_query_is_refused_by_its_parameter(shared_client, query: str) -> None:
    found = assert_problem(shared_client.get(f"/v1/reports?{query}"), "invalid")
    assert found["errors"][0]["field"].partition("[")[0] == query.split("=")[0]
    assert found["errors"][0]["pointer"] is None


@pytest.mark.parametrize(
    "address",
    [
        "/v1/profiles",
        "/v1/profiles/default",
        "/v1/catalog/chips",
        "/v1/catalog/chips/h100",
        "/v1/predictions/x",
    ],
)
def test_no_address_ignores_a_query(shared_client, address: str) -> None:
    found = assert_problem(shared_client.get(f"{address}?sort=name"), "invalid")
    assert [(error["field"], error["value"]) for error in found["errors"]] == [("sort", "name")]
    assert "unknown query parameter" in found["detail"]


def test_a_query_error_shows_what_was_given(shared_client) -> None:
    found = assert_problem(shared_client.get("/v1/reports?limit=1&limit=2"), "invalid")
    assert found["errors"][0]["value"] == ["1", "2"]
    span = "since=2100-01-01T00:00:00Z&until=2020-01-01T00:00:00Z"
    found = assert_problem(shared_client.get(f"/v1/reports?{span}"), "invalid")
    assert (found["errors"][0]["field"], found["errors"][0]["value"]) == (
        "until",
        "2020-01-01T00:00:00Z",
    )


@pytest.mark.parametrize(
    ("query", "near"),
    [("chip=h1000", "h100"), ("chip=mine@2", "'mine@2'"), ("stack=megatorn", "megatron")],
)
def test_a_filter_by_an_unknown_name_is_refused(shared_client, query: str, near: str) -> None:
    assert (
        near in assert_problem(shared_client.get(f"/v1/reports?{query}"), "unknown-name")["detail"]
    )


@pytest.mark.parametrize("path", ["/v1/predictions", "/v1/recommendations"])
def test_what_is_out_of_range_is_refused(shared_client, path: str) -> None:
    question = PREDICTION if path == "/v1/predictions" else QUESTION
    for field, value in (
        ("cluster.num_chips", 10**7),
        ("workload.seq_len", 10**9),
        ("workload", None),
    ):
        assert_problem(shared_client.post(path, json=changed(question, field, value)), "invalid")
    assert_problem(
        shared_client.post(path, content=b"null", headers={"content-type": "application/json"}),
        "invalid",
    )
    long = shared_client.post(path, json=changed(question, "workload.seq_len", 10**7))
    if path == "/v1/predictions":
        assert long.json()["layouts"][0]["fits"] is False


UNKNOWN: list[tuple[str, dict[str, Any], set[str], set[str]]] = [
    ("predictions", {**PREDICTION, "x": 1}, {"model", "layout", "layouts"}, {"constraints"}),
    ("predictions", changed(PREDICTION, "layout.x", 1), {"tp", "dp_shard"}, {"seq_len"}),
    ("predictions", changed(PREDICTION, "cluster.x", 1), {"preset", "num_chips"}, {"levels"}),
    (
        "predictions",
        changed(PREDICTION, "model", {**SHAPE, "x": 1}),
        {"num_layers", "moe"},
        {"preset"},
    ),
    (
        "recommendations",
        {**QUESTION, "constraints": {"x": 1}},
        {"tp", "dp", "memory_reserve_gib"},
        {"model"},
    ),
    ("reports", {**REPORT, "x": 1}, {"outcome", "prediction_id"}, {"reports"}),
    ("reports", {"reports": [REPORT], "x": 1}, {"reports", "all_or_nothing"}, {"outcome"}),
    (
        "reports",
        {"reports": [changed(REPORT, "measured.x", 1)]},
        {"step_time_s", "mfu"},
        {"outcome"},
    ),
]


@pytest.mark.parametrize(("path", "body", "known", "elsewhere"), UNKNOWN)
def test_where_a_field_is_unknown_the_known_ones_are_told(
    shared_client, path: str, body: dict[str, Any], known: set[str], elsewhere: set[str]
) -> None:
    (error,) = assert_problem(shared_client.post(f"/v1/{path}", json=body), "invalid")["errors"]
    kind, _, names = error["rule"].partition("; known here: ")
    assert kind == "unknown field"
    assert known <= {*names.split(", ")}
    assert not elsewhere & {*names.split(", ")}


ELSEWHERE: list[tuple[str, dict[str, Any], str]] = [
    (
        "recommendations",
        changed(QUESTION, "workload.micro_batch_tokens", 8192),
        "constraints.micro_batch_tokens",
    ),
    (
        "predictions",
        changed(PREDICTION, "workload.micro_batch_tokens", 8192),
        "layout.micro_batch_tokens or layouts[].micro_batch_tokens",
    ),
    (
        "predictions",
        changed(PREDICTION, "stack", {"name": "megatron", "moe_graph": "full"}),
        "moe_graphs",
    ),
    ("predictions", {**PREDICTION, "seq_len": 4096}, "workload.seq_len"),
    ("predictions", changed(PREDICTION, "layout.num_chips", 8), "cluster.num_chips"),
    ("reports", {"reports": [{**REPORT, "seq_len": 4096}]}, "workload.seq_len"),
    ("reports", {**REPORT, "seq_len": 4096}, "workload.seq_len"),
]


@pytest.mark.parametrize(("path", "body", "places"), ELSEWHERE)
def test_a_field_that_belongs_elsewhere_is_told_where(
    shared_client, path: str, body: dict[str, Any], places: str
) -> None:
    (error,) = assert_problem(shared_client.post(f"/v1/{path}", json=body), "invalid")["errors"]
    assert error["rule"].startswith(f"unknown field, did you mean {places}?; known here: ")


GROUPED = {
    "num_experts": 8,
    "experts_per_token": 2,
    "moe_intermediate_size": 1024,
    "groups_per_token": 1,
}
WHAT_WAS_GIVEN: list[tuple[str, dict[str, Any], str, Any]] = [
    (
        "predictions",
        changed(PREDICTION, "workload.precision", "nvfp4"),
        "/workload/precision",
        "nvfp4",
    ),
    (
        "predictions",
        changed(PREDICTION, "layouts", [LAYOUT]),
        "/layout",
        "an object with 3 members",
    ),
    (
        "predictions",
        changed(PREDICTION, "layout.dp_shard", 63),
        "/layout",
        "an object with 3 members",
    ),
    ("predictions", changed(PREDICTION, "model", 5), "/model", 5),
    ("predictions", changed(PREDICTION, "stack", ["megatron"]), "/stack", ["megatron"]),
    ("reports", changed(REPORT, "failure", {}), "/failure", "an object with 0 members"),
    ("reports", without(REPORT, "measured"), "/measured", None),
    ("reports", changed(REPORT, "measured.step_time_s", 1e-5), "/measured/step_time_s", 1e-5),
    ("reports", changed(REPORT, "prediction_id", "x"), "/model", "llama-3.1-8b"),
    ("reports", {**REPORT, "measured_at": 1700000000}, "/measured_at", 1700000000),
    ("reports", {**REPORT, "measured_at": "1700000000.5"}, "/measured_at", "1700000000.5"),
    (
        "predictions",
        {**PREDICTION, "stack": {"name": "megatron", "gradient_bytes": 1.0}},
        "/stack/gradient_bytes",
        1.0,
    ),
    (
        "predictions",
        {**PREDICTION, "stack": {"name": "megatron", "attention_kernel": "splash"}},
        "/stack/attention_kernel",
        "splash",
    ),
    (
        "predictions",
        {**PREDICTION, "model": {**SHAPE, "moe": {**GROUPED, "num_groups": 3}}},
        "/model/moe/num_groups",
        3,
    ),
]


@pytest.mark.parametrize(("path", "body", "pointer", "value"), WHAT_WAS_GIVEN)
def test_an_error_shows_what_was_given(
    shared_client, path: str, body: dict, pointer: str, value: object
) -> None:
    found = assert_problem(shared_client.post(f"/v1/{path}", json=body), "invalid", pointer)
    assert [error["value"] for error in found["errors"]] == [value]
    assert "None" not in found["detail"]


BAD_RECOMMENDATIONS: list[tuple[dict[str, Any], str]] = [
    ({**QUESTION, "constraints": {"tp": 0}}, "/constraints/tp"),
    ({**QUESTION, "constraints": {"tp": []}}, "/constraints/tp"),
    ({**QUESTION, "constraints": {"tp": [1, "2"]}}, "/constraints/tp/1"),
    ({**QUESTION, "constraints": {"schedule": "fast"}}, "/constraints/schedule"),
    ({**QUESTION, "constraints": {"speed": 1}}, "/constraints/speed"),
    ({**QUESTION, "constraints": {"memory_reserve_gib": -2}}, "/constraints/memory_reserve_gib"),
    ({**QUESTION, "constraints": {"memory_reserve_gib": 1e4}}, "/constraints/memory_reserve_gib"),
    ({**QUESTION, "tolerance": -0.1}, "/tolerance"),
    ({**QUESTION, "tolerance": "3%"}, "/tolerance"),
    ({**QUESTION, "top": 0}, "/top"),
    ({**QUESTION, "layout": LAYOUT}, "/layout"),
    ({**QUESTION, "cluster": {"preset": "v5p-1000000"}, "stack": "maxtext"}, "/cluster/preset"),
    (
        {
            **QUESTION,
            "cluster": {
                "chip": "h100",
                "num_chips": 64,
                "levels": [{"gb_s_per_chip": 100}],
                "scale_out_gb_s": 1,
            },
        },
        "/cluster/scale_out_gb_s",
    ),
    ({**QUESTION, "time_limit_s": 0}, "/time_limit_s"),
    ({**QUESTION, "time_limit_s": 1000}, "/time_limit_s"),
]


@pytest.mark.parametrize(("body", "pointer"), BAD_RECOMMENDATIONS)
def test_a_bad_recommendation_is_refused_at_its_field(
    shared_client, body: dict[str, Any], pointer: str
) -> None:
    assert_problem(shared_client.post("/v1/recommendations", json=body), "invalid", pointer)
