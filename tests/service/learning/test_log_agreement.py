"""Logs are held against what is said of their run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.asking import PREDICTION, assert_problem

ADDRESS = "/v1/reports/logs"
TITAN = "[rank0]:[titan] 2026-03-04 10:11:12,101 - root - INFO - "
ASKED = {
    "model": "llama-3.1-8b",
    "cluster": {"preset": "h100", "num_chips": 64},
    "workload": {"seq_len": 8192, "global_batch": 64},
    "stack": "torchtitan",
    "layout": {"dp_shard": 64, "zero_stage": 3, "recompute": "selective"},
}


def steps(more: str = "") -> str:
    return "".join(
        f"{TITAN}step: {step:2d}  loss:  9.3  memory: 48.91GiB(61.52%)  tps: 7,0{step:02d}{more}\n"
        for step in range(1, 9)
    )


def refusal(client, header: str, **said: Any) -> str:
    """The rule that a log breaks; empty where it is taken."""
    answer = client.post(ADDRESS, json={**ASKED, **said, "log": f"{header}\n{steps()}"})
    if answer.status_code == 201:
        return ""
    return assert_problem(answer, "invalid", "/log")["errors"][0]["rule"]


@pytest.mark.parametrize(
    ("right", "wrong", "both"),
    [
        (
            "Model llama3 8B size: 8,030,261,248 total parameters",
            "Model llama3 3B size: 3,212,749,824 total parameters",
            ("3,212,749,824", "llama-3-8b with 8,030,261,248 parameters", "give in model"),
        ),
        (
            "Training starts at step 1, with local batch size 1, global batch size 64, sequence"
            " length 8192, total steps 90 (warmup 9)",
            "Training starts at step 1, with local batch size 2, global batch size 128, sequence"
            " length 8192, total steps 90 (warmup 9)",
            ("global batch size 128", "workload.global_batch = 64", "give in workload.global_ba"),
        ),
        (
            "local batch size 1, global batch size 64, sequence length 8192",
            "local batch size 1, global batch size 64, sequence length 4096",
            ("sequence length 4096", "workload.seq_len = 8,192"),
        ),
        (
            "Building 1-D device mesh with ['dp_shard'], [64]",
            "Building 1-D device mesh with ['dp_shard'], [8]",
            ("[8]", "cluster.num_chips = 64"),
        ),
        (
            "TransformerModelArgs(dim=4096, n_layers=32, n_heads=32)",
            "TransformerModelArgs(dim=2048, n_layers=16, n_heads=32)",
            ("n_layers=16", "model.num_layers = 32"),
        ),
        (
            "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory",
            "XPU capacity: Intel(R) Data Center GPU Max 1550 with 63.98GiB memory",
            ("Data Center GPU Max 1550", "cluster.chip = h100-sxm-80gb", "pvc-tile-64gb"),
        ),
    ],
)
def test_a_header_of_another_run_is_refused_with_both_values(
    shared_client, right: str, wrong: str, both: tuple[str, ...]
) -> None:
    assert refusal(shared_client, TITAN + right) == ""
    rule = refusal(shared_client, TITAN + wrong)
    assert all(said in rule for said in both), rule
    # several runs in one log: one of them is the one that was asked for
    assert refusal(shared_client, f"{TITAN}{wrong}\n{TITAN}{right}") == ""


def test_a_log_without_a_header_is_told_by_the_flops_of_its_lines(shared_client) -> None:
    def rule(tflops: float) -> str:
        log = steps(f"  tflops: {tflops}  mfu: 41.08%")
        answer = shared_client.post(ADDRESS, json={**ASKED, "log": log})
        return "" if answer.status_code == 201 else answer.json()["errors"][0]["rule"]

    assert rule(407.35) == ""
    assert "FLOPs for a token" in rule(80.0)
    assert "FLOPs for a token" in rule(2000.0)


def test_adapters_in_a_log_and_none_in_the_request_are_refused(shared_client) -> None:
    peft = "trainable params: 20,971,520 || all params: 8,051,232,768 || trainable%: 0.2605"
    assert "workload.lora" in refusal(shared_client, peft)
    trainer = "  Number of trainable parameters = {:,}"
    assert refusal(shared_client, trainer.format(8_030_261_248)) == ""
    assert refusal(shared_client, trainer.format(8_030_261_248 // 64)) == ""  # a shard of FSDP1
    assert refusal(shared_client, trainer.format(7_615_616_512)) != ""
    in_part = {**ASKED["workload"], "trained": {"layers": [-1, -2]}}
    assert refusal(shared_client, trainer.format(436_224_000), workload=in_part) == ""
    assert refusal(shared_client, trainer.format(436_224_000)) != ""


def primus(tokens_per_s: float, memory: str) -> str:
    return "".join(
        f"[20251202 09:12:0{step}][rank-7/8][INFO ] :  iteration {step:8d}/ 500 | consumed samples:"
        f" {64 * step} | elapsed time per iteration (ms): 5200.0/5204.0 | {memory} | tokens per GPU"
        f" (tokens/s/GPU): {tokens_per_s}/6296.7 | global batch size:    64 | lm loss: 2.1E+00 |\n"
        for step in range(2, 9)
    )


MI300X = {
    **ASKED,
    "cluster": {"preset": "mi300x", "num_chips": 8},
    "workload": {"seq_len": 4096, "global_batch": 64},
    "stack": "primus-turbo",
    "layout": {"dp_shard": 8, "zero_stage": 1},
}


def test_tokens_per_second_and_device_tell_the_number_of_devices(shared_client) -> None:
    log = primus(6301.5, "hip mem usage/free/total/usage_ratio: 141.22GB/50.76GB/191.98GB/73.56%")
    of_eight = shared_client.post(ADDRESS, json={**MI300X, "log": log}).json()
    assert of_eight["reading"]["memory_gib"] == 141.22
    assert of_eight["measured_at_from"] == "log"
    assert of_eight["report"]["measured_at"].startswith("2025-12-02T09:12:08")
    of_32 = {**MI300X, "cluster": {"preset": "mi300x", "num_chips": 32}}
    of_32["layout"] = {"dp_shard": 32, "zero_stage": 1}
    answer = shared_client.post(ADDRESS, json={**of_32, "log": log})
    rule = assert_problem(answer, "invalid", "/log")["errors"][0]["rule"]
    assert "32768 tokens a device" in rule
    assert "those of 8 devices, not 32" in rule


def test_a_share_of_the_memory_becomes_that_share_of_the_chips(shared_client) -> None:
    log = primus(6301.5, "mem usages: 0.7500")
    answer = shared_client.post(ADDRESS, json={**MI300X, "log": log}).json()
    assert answer["reading"]["memory_gib"] == pytest.approx(0.75 * 191.5, abs=1)
    assert answer["report"]["memory"]["reserved_gib"] == answer["reading"]["memory_gib"]
    assert "75.0% of the device's memory" in answer["notes"][-1]


KILLED = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been"
    " OOM Killed.\n"
)


@pytest.mark.parametrize(
    "last",
    [
        KILLED,
        "slurmstepd: error: Detected 2 oom-kill event(s) in StepId=77.0 cgroup. Some of your"
        " processes may have been killed by the cgroup out-of-memory handler.\n",
        "srun: error: node-3: task 11: Out Of Memory\n",
        "[12345.6] Out of memory: Killed process 4711 (python) total-vm:1kB\n",
        "[12345.6] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/\n",
        "  Reason:       OOMKilled\n",
    ],
)
def test_a_run_that_its_host_killed_has_failed(shared_client, last: str) -> None:
    log = steps()
    killed = shared_client.post(ADDRESS, json={**ASKED, "log": log + last}).json()
    assert killed["report"]["outcome"] == "crashed"
    assert killed["reading"]["out_of_memory"] is False
    assert any("memory of a host" in note for note in killed["notes"])
    for outcome in ("ok", "out_of_memory"):
        said = shared_client.post(ADDRESS, json={**ASKED, "outcome": outcome, "log": log + last})
        assert_problem(said, "invalid", "/outcome")
    again = shared_client.post(ADDRESS, json={**ASKED, "log": last + log}).json()
    assert again["report"]["outcome"] == "ok"
    early = shared_client.post(ADDRESS, json={**ASKED, "log": last})
    assert early.json()["report"]["outcome"] == "crashed"


def test_a_log_of_the_trainer_is_a_report_of_fsdp(shared_client) -> None:
    bars = "".join(f"\r  3%|▎  | {n}/400 [00:{n:02d}<18:15,  2.90s/it]" for n in range(2, 40))
    said = {**ASKED, "stack": "fsdp", "layout": {"dp_shard": 64, "zero_stage": 3}}
    answer = shared_client.post(ADDRESS, json={**said, "log": bars})
    assert answer.status_code == 201, answer.text
    assert answer.json()["reading"]["framework"] == "huggingface"
    refused = shared_client.post(ADDRESS, json={**PREDICTION, "stack": "maxtext", "log": bars})
    assert "is of huggingface" in refused.text
