"""Micro-benchmarks: stored beside what the models say, and learnt by the next calibration."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.asking import assert_problem, changed, without

CLUSTER = {"preset": "h100", "num_chips": 8}
HOPPER_GB_S = 478.0  # bus bandwidth of published all-reduces over a node


def table(bus_gb_s: float, latency_us: float = 14.0, ranks: int = 8) -> str:
    lines = []
    for power in range(3, 34):
        size = 2**power
        us = latency_us + size * 2 * (ranks - 1) / ranks / bus_gb_s / 1e3
        lines.append(f"{size} {size // 4} float sum -1 {us:.2f} 0 0 0 {us:.2f} 0 0 0")
    return "\n".join(lines)


def sweep(bus_gb_s: float, **more: Any) -> dict[str, Any]:
    return {"cluster": CLUSTER, "operation": "all_reduce", "nccl_tests": table(bus_gb_s), **more}


def gemms(tflops: float) -> dict[str, Any]:
    return {
        "cluster": {"preset": "h100"},
        "gemms": [{"m": 8192, "n": 8192, "k": 8192, "tflops": tflops}],
    }


def test_a_table_stands_beside_the_model_and_is_kept(client) -> None:
    made = client.post("/v1/benchmarks", json=sweep(HOPPER_GB_S, source="us"))
    assert made.status_code == 201
    found = made.json()
    assert (found["kind"], found["operation"], found["chip"], found["num_chips"]) == (
        "collective",
        "all_reduce",
        "h100-sxm-80gb",
        8,
    )
    assert len(found["points"]) == 31
    kept = client.get(made.headers["location"]).json()
    assert "float sum" in kept.pop("submission")
    assert kept == found
    assert client.get("/v1/benchmarks").json()["items"] == [without(found, "points")]


def test_points_name_their_sizes_and_what_was_published(client) -> None:
    found = client.post("/v1/benchmarks", json=sweep(HOPPER_GB_S)).json()
    points = {point["bytes"]: point for point in found["points"]}
    assert [point["what"] for point in found["points"]] == [str(2**power) for power in range(3, 34)]
    assert points[2**33]["published_s"] == pytest.approx(points[2**33]["measured_s"], rel=0.1)
    assert points[2**33]["published_s"] != pytest.approx(points[2**33]["predicted_s"], rel=0.02)
    assert points[2**20]["published_s"] is None
    assert found["predicted_from"].startswith("priors")
    product = client.post("/v1/benchmarks", json=gemms(600.0)).json()["points"][0]
    assert [product[name] for name in ("what", "bytes", "m", "n", "k")] == [
        "8192 x 8192 x 8192",
        None,
        8192,
        8192,
        8192,
    ]
    assert product["published_s"] is None


def test_a_machine_like_the_published_ones_is_at_no_distance(client) -> None:
    found = client.post("/v1/benchmarks", json=sweep(HOPPER_GB_S)).json()["offsets"]
    assert found["scaleup"] == pytest.approx(
        0, abs=0.15
    )  # of log-odds: 0.80 of the link rate or 0.82


def test_a_slower_machine_lies_below_and_a_faster_one_above(client) -> None:
    slow, fast = (
        client.post("/v1/benchmarks", json=sweep(gb_s)).json()["offsets"] for gb_s in (300, 550)
    )
    assert slow["scaleup"] < -0.3 < 0.3 < fast["scaleup"]
    slow, fast = (
        client.post("/v1/benchmarks", json=gemms(tflops)).json()["offsets"] for tflops in (450, 850)
    )
    assert slow["gemm_16"] < fast["gemm_16"]


def test_switches_that_reduce_may_be_faster_than_links(client) -> None:
    """And say no more of the network than that it is not what decides: links within a node are as
    fast."""
    told = []
    for gb_s in (300.0, 390.0, 480.0):
        made = client.post(
            "/v1/benchmarks", json={**sweep(gb_s), "cluster": {"preset": "h100", "num_chips": 16}}
        )
        assert made.status_code == 201
        told.append(made.json()["offsets"]["scaleout"])
    assert told[0] < told[1] == pytest.approx(told[2])


def test_between_nodes_it_is_the_network(client) -> None:
    body = {**sweep(45.0), "cluster": {"preset": "h100", "num_chips": 16}}
    assert "scaleout" in client.post("/v1/benchmarks", json=body).json()["offsets"]
    alltoall = {
        **body,
        "operation": "all_to_all",
        "nccl_tests": body["nccl_tests"].replace("sum", "none"),
    }
    assert "alltoall" in client.post("/v1/benchmarks", json=alltoall).json()["offsets"]


def test_products_of_several_formats_stand_in_one_table(client) -> None:
    size = {"m": 8192, "n": 8192, "k": 8192}
    rows = [
        {**size, "dtype": "fp8", "tflops": 1200.0},
        {**size, "tflops": 600.0},
        {**size, "dtype": "fp16", "tflops": 640.0},
        {**size, "dtype": "fp8", "tflops": 1210.0},
    ]
    found = client.post(
        "/v1/benchmarks", json={"cluster": {"preset": "h100"}, "gemms": rows}
    ).json()
    assert [point["dtype"] for point in found["points"]] == ["fp8", "bf16", "fp16", "fp8"]
    flops = 2 * 8192**3
    assert [flops / point["measured_s"] / 1e12 for point in found["points"]] == pytest.approx(
        [1200, 600, 640, 1210]
    )
    alone, pair = (
        client.post(
            "/v1/benchmarks",
            json={"cluster": {"preset": "h100"}, "precision": dtype, "gemms": some},
        ).json()
        for dtype, some in (("fp8", [rows[0], rows[3]]), ("bf16", rows[1:3]))
    )
    assert found["offsets"] == pytest.approx({**alone["offsets"], **pair["offsets"]})
    assert found["offsets"].keys() == {"gemm_8", "gemm_16"}


def test_what_stages_send_each_other_tells_of_the_links(client) -> None:
    def told(us_for_1gb: float, num_chips: int) -> dict[str, float]:
        lines = [
            f"{2**p} {2**p // 4} float sum -1 {14 + us_for_1gb * 2**p / 2**30:.2f} 0 0 N/A"
            for p in range(3, 34)
        ]
        output = "# Collective test starting: sendrecv_perf\n" + "\n".join(lines)
        body = {"cluster": {"preset": "h100", "num_chips": num_chips}, "nccl_tests": output}
        made = client.post("/v1/benchmarks", json=body).json()
        assert made["operation"] == "send_recv"
        return made["offsets"]

    fast, slow = told(3000.0, 8), told(4500.0, 8)
    assert fast.keys() == slow.keys() == {"scaleup"}
    assert slow["scaleup"] < fast["scaleup"]
    assert told(25_000.0, 16).keys() == {"scaleout"}


@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "scatter"])
def test_what_no_layout_has_is_refused_by_name(shared_client, name: str) -> None:
    output = f"# Collective test starting: {name}_perf\n{table(400)}"
    refused = shared_client.post("/v1/benchmarks", json={"cluster": CLUSTER, "nccl_tests": output})
    (error,) = assert_problem(refused, "invalid", "/operation")["errors"]
    assert error["value"] == name
    assert f"is of {name}, which no layout has" in error["rule"]


def test_the_next_calibration_learns_it_once(client) -> None:
    layout = {
        "tp": 8,
        "dp_shard": 8,
        "zero_stage": 1,
        "sequence_parallel": True,
        "recompute": "selective",
    }
    question = {
        "model": "llama-3.1-70b",
        "cluster": {"preset": "h100", "num_chips": 64},
        "workload": {"seq_len": 8192, "global_batch": 128},
        "stack": "megatron",
        "layout": layout,
    }

    def tensor_s() -> float:
        return client.post("/v1/predictions", json=question).json()["layouts"][0]["time"][
            "tensor_s"
        ]

    before = tensor_s()
    for _ in range(5):
        client.post("/v1/benchmarks", json=sweep(300.0, stack="megatron"))
    made = client.post("/v1/profiles/default/calibrations").json()
    window = made["calibration"]["window"]
    assert (window["reports"], window["benchmarks"]) == (0, 5)
    moved = {
        (one["coefficient"], one["scope"]): one["shift_in_spreads"]
        for one in made["calibration"]["moved"]
    }
    assert moved["scaleup", "fleet:all"] < -0.2
    etag = client.get("/v1/profiles/default").headers["etag"]
    client.post("/v1/profiles/default/versions/2/activate", headers={"If-Match": etag})
    assert tensor_s() > 1.1 * before
    assert_problem(client.post("/v1/profiles/default/calibrations"), "nothing-to-learn")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (without(sweep(400), "operation"), "operation"),
        (without(sweep(400), "nccl_tests", "operation"), "nccl_tests"),
        ({**sweep(400), "gemms": gemms(500)["gemms"]}, "nccl_tests"),
        (changed(sweep(400), "nccl_tests", "nothing"), "nccl_tests"),
        (changed(sweep(400), "cluster.num_chips", 1), "cluster.num_chips"),
        (changed(sweep(400), "operation", "all_gather"), "operation"),
        (sweep(40_000), "nccl_tests"),
        (sweep(0.001), "nccl_tests"),
        ({**sweep(400), "precision": "fp8"}, "precision"),
        ({**gemms(500), "operation": "all_reduce"}, "operation"),
        (gemms(5000), "gemms[0].tflops"),
        ({**gemms(500), "gemms": []}, "gemms"),
        ({**gemms(500), "precision": "bf17"}, "precision"),
        (changed({**gemms(500), "precision": "fp8"}, "cluster.preset", "a100"), "precision"),
        ({**gemms(500), "precision": "mxfp8"}, "precision"),
        (
            changed(gemms(500), "cluster.preset", "a100")
            | {"gemms": [{"m": 8, "n": 8, "k": 8, "dtype": "fp8", "tflops": 1}]},
            "gemms[0].dtype",
        ),
        ({**sweep(400), "size": 3}, "size"),
    ],
)
def test_bad_benchmarks_are_refused_by_name(
    shared_client, body: dict[str, Any], field: str
) -> None:
    problem = assert_problem(shared_client.post("/v1/benchmarks", json=body), "invalid")
    assert [error["field"] for error in problem["errors"]] == [field]


def test_ranks_and_chips_agree(shared_client) -> None:
    ranks = "".join(f"#  Rank {i} Group  0 Pid 1 on node-0 device {i}\n" for i in range(4))
    body = changed(sweep(400), "nccl_tests", ranks + table(400))
    problem = assert_problem(
        shared_client.post("/v1/benchmarks", json=body), "invalid", "/cluster/num_chips"
    )
    assert "4 ranks" in problem["errors"][0]["rule"]
    alone = changed(body, "cluster", {"preset": "h100"})
    assert shared_client.post("/v1/benchmarks", json=alone).json()["num_chips"] == 4


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090"])
def test_devices_are_those_of_the_cluster(shared_client, name: str) -> None:
    device = f"#  Rank  0 Group  0 Pid 1 on node-0 device  0 [0000:19:00] {name}\n"
    body = changed(sweep(400), "nccl_tests", device + table(400))
    problem = assert_problem(shared_client.post("/v1/benchmarks", json=body), "invalid", "/cluster")
    assert name in problem["errors"][0]["rule"]


def test_bandwidths_of_another_number_of_ranks_are_refused(shared_client) -> None:
    line = "1073741824 268435456 float sum -1 4029.4 266.48 466.33 0 4016.4 267.34 467.85 0"
    body = changed(sweep(400), "nccl_tests", line)
    assert shared_client.post("/v1/benchmarks", json=body).status_code == 201
    refused = shared_client.post("/v1/benchmarks", json=changed(body, "cluster.num_chips", 16))
    problem = assert_problem(refused, "invalid", "/cluster/num_chips")
    assert "has 16 devices, and the output is of 8 ranks" in problem["errors"][0]["rule"]


def test_a_benchmark_that_is_not_there(shared_client) -> None:
    assert_problem(shared_client.get("/v1/benchmarks/nowhere"), "not-found")


def listing(device: str, gpus: int = 8) -> str:
    ranks = [
        f"#  Rank  {rank} Group  0 Pid  {4100 + rank} on    node-0 device  {rank} [0x0a] {device}"
        for rank in range(gpus)
    ]
    return "\n".join([*ranks, table(100.0)])


@pytest.mark.parametrize(
    ("preset", "device"),
    [("v100", "Tesla V100-SXM2-32GB"), ("h20-3e", "NVIDIA H20-3e")],
)
def test_a_collective_needs_no_format_of_matrix_products(shared_client, preset, device) -> None:
    body = {**sweep(100.0), "cluster": {"preset": preset, "num_chips": 8}}
    made = shared_client.post("/v1/benchmarks", json={**body, "nccl_tests": listing(device)})
    assert made.status_code == 201, made.text


@pytest.mark.parametrize(
    ("preset", "device"),
    [
        ("h20", "NVIDIA H20-3e"),
        ("h20-3e", "NVIDIA H20"),
        ("h100", "NVIDIA H100 PCIe"),
        ("rtx-3090", "NVIDIA GeForce RTX 3090 Ti"),
        ("mi250x", "AMD Instinct MI210"),
    ],
)
def test_output_of_a_sibling_of_the_chip_is_refused(shared_client, preset, device) -> None:
    body = {**sweep(100.0), "cluster": {"preset": preset, "num_chips": 8}}
    refused = shared_client.post("/v1/benchmarks", json={**body, "nccl_tests": listing(device)})
    assert f"the output lists {device}" in assert_problem(refused, "invalid")["detail"]


def test_products_are_still_held_against_the_formats_of_the_chip(shared_client) -> None:
    body = {**gemms(60.0), "cluster": {"preset": "v100"}}
    assert_problem(shared_client.post("/v1/benchmarks", json=body), "invalid", "/precision")
    halves = shared_client.post("/v1/benchmarks", json={**body, "precision": "fp16"})
    assert halves.status_code == 201, halves.text
