"""Bandwidth and simplicity on real clusters.

`python -m tests.benchmarks.worked_cases [--case NAME] > docs/worked-cases.md`

Each case searches the best layout without and with a pipeline under a named stack, splits the gap
by term, and lays the published run beside it, predicted in its own layout. Nothing here is
asserted; it prints what comes out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from models.advice.recommendation import Candidate, Recommendation, recommend
from models.errors import DomainError, Infeasible
from models.prediction.prediction import Prediction, predict_layouts
from models.spec import catalogue
from models.spec.constraints import Constraints
from models.spec.flops import step_time_from_throughput
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.workload import Workload

SPLIT = (
    ("exposed data-parallel communication", ("data_s",)),
    ("recompute", ("recompute_s",)),
    ("expert all-to-all", ("expert_s",)),
    ("bubble and sends", ("bubble_s", "pipeline_s")),
    ("tensor and context parallel traffic", ("tensor_s", "context_s")),
    ("kernels (shapes, batch per chip)", ("compute_s",)),
    ("everything else", ("offload_s", "optimizer_s", "fixed_s", "jitter_s")),
)


@dataclass(frozen=True)
class Published:
    text: str
    layout: Layout | None
    step_time_s: float | None
    year: float | None = None


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    problem: Problem
    published: Published
    lifted: dict[str, dict[str, Any]] = field(default_factory=dict)


def problem(model: str, cluster: str, chips: int, stack: str, **workload: Any) -> Problem:
    return Problem(
        architecture=catalogue.architecture(model),
        cluster=catalogue.cluster(cluster, chips),
        workload=Workload(**workload),
        stack=catalogue.stack(stack),
    )


def without_mtp(question: Problem) -> Problem:
    return replace(question, architecture=replace(question.architecture, mtp_layers=0))


def cases() -> Iterator[Case]:
    deepseek = {
        "seq_len": 4096,
        "precision": "fp8",
        "optimizer": "adamw_bf16_moments",
        "load_balancing": "bias",
    }
    yield Case(
        "deepseek-v3-h800",
        "DeepSeek-V3 on 2,048 H800 (8-GPU NVLink nodes, 400 Gb/s), 15,360 x 4,096, fp8,"
        " DeepSeek-like stack",
        problem(
            "deepseek-v3", "deepseek-h800-mpft", 2048, "deepseek", global_batch=15360, **deepseek
        ),
        Published(
            "arXiv 2412.19437 §1 and §3.2, 2505.09343 table 4: PP16, EP64, ZeRO-1, DualPipe;"
            " 19.9 s a step",
            Layout(
                pp=16,
                dp_shard=128,
                ep=64,
                zero_stage=1,
                schedule="dualpipe",
                recompute="selective",
                balanced=True,
            ),
            19.907,
            2024.96,
        ),
        {
            "ZeRO-3 (FSDP) offered": {"zero_stages": (0, 1, 2, 3)},
            "EP up to 256": {"max_ep": 256},
            "no node limit on routing": {"node_limit": None},
            "tensor parallelism up to 8": {"max_tp": 8, "sequence_parallel": (True,)},
            "full recompute offered": {"recompute": ("none", "selective", "full")},
            "offload offered": {"offload": ("activations", "optimizer")},
            "TP and ZeRO-3": {
                "max_tp": 8,
                "sequence_parallel": (True,),
                "zero_stages": (0, 1, 2, 3),
            },
            "all of these": {
                "max_tp": 8,
                "sequence_parallel": (True,),
                "zero_stages": (0, 1, 2, 3),
                "max_ep": 256,
                "node_limit": None,
                "recompute": ("none", "selective", "full"),
                "offload": ("activations", "optimizer"),
            },
        },
    )
    yield Case(
        "deepseek-v3-v5p",
        "DeepSeek-V3 (without MTP, as MaxText trains it) on 512 TPU v5p, 3,072 x 8,192, bf16,"
        " MaxText",
        without_mtp(
            problem(
                "deepseek-v3",
                "tpu-v5p",
                512,
                "maxtext",
                seq_len=8192,
                global_batch=3072,
                load_balancing="bias",
            )
        ),
        Published(
            "tpu-recipes deepseek3_671b_v5p (MaxText @3eb77db3): FSDP over all chips, no PP, TP or"
            " EP; 90.7 s a step",
            Layout(
                dp_shard=512,
                zero_stage=3,
                micro_batch=6,
                recompute="full",
                offload_activations=True,
            ),
            90.7,
            2025.5,
        ),
    )
    yield Case(
        "kimi-k2-gb300",
        "Kimi-K2 on 4,608 GB300 NVL72, 18,432 x 4,096, mxfp8, Megatron",
        problem(
            "kimi-k2",
            "gb300",
            4608,
            "megatron",
            seq_len=4096,
            global_batch=18432,
            precision="mxfp8",
            load_balancing="bias",
        ),
        Published(
            "no run on this cluster; DeepSeek-V3 ran PP2 on GB300 NVL72 (Megatron-Bridge 26.06)",
            None,
            None,
        ),
    )
    for chips, tflops in ((8192, 430), (16384, 400)):
        llama = problem(
            "llama-3.1-405b",
            "meta-llama3-24k-roce",
            chips,
            "megatron",
            seq_len=8192,
            global_batch=2048,
        )
        yield Case(
            f"llama-3.1-405b-{chips}",
            f"Llama-3.1-405B on {chips:,} H100 (24K RoCE cluster), 2,048 x 8,192, bf16, Megatron",
            llama,
            Published(
                f"arXiv 2407.21783 table 4: TP8, PP16, {tflops} TFLOP/s a GPU (attention counted"
                " full); §3.3.2: embedding and head are chunks by themselves; it did fit: its"
                " trainer frees tensors of pipeline stages early, which is not described here, so"
                " that more memory is predicted than a device has",
                Layout(
                    pp=16,
                    tp=8,
                    dp_shard=chips // 128,
                    zero_stage=1,
                    sequence_parallel=True,
                    balanced=True,
                    schedule="interleaved",
                    virtual_stages=8,
                ),
                published_time(llama, tflops),
                2024.5,
            ),
        )


def published_time(question: Problem, tflops: float) -> float:
    return step_time_from_throughput(
        tflops * 1e12, question.cluster.num_chips, question.architecture, question.workload, "full"
    )


def line(label: str, found: Candidate | None) -> str:
    if found is None:
        return f"| {label} | none is legal and fits | | | |"
    return prediction_line(label, found.prediction)


def prediction_line(label: str, p: Prediction) -> str:
    interval = f"{p.step_time_s:.2f} s ({p.step_time_low_s:.2f} to {p.step_time_high_s:.2f})"
    memory = f"{p.needed_gib:.0f} of {p.usable_gib:.0f} GiB"
    return f"| {label} | {p.layout.summary()} | {interval} | {p.mfu['causal']:.1%} | {memory} |"


def show(case: Case) -> None:
    print(f"## {case.title}\n")
    begun = time.perf_counter()
    found = recommend(case.problem, shipped_profile())
    print("| | layout | step time, 80% interval | MFU (causal) | memory |")
    print("|---|---|---|---|---|")
    print(line("best, pp = 1", found.pipelining.without))
    print(line("best, pp > 1", found.pipelining.with_pp))
    print(line("simplest within 3%", found.simplest))
    published(case)
    print(f"\nPublished: {case.published.text}.", end=" ")
    print(f"Pipelining is {found.pipelining.verdict}. ({time.perf_counter() - begun:.1f} s)\n")
    gap(found)
    lift(case)


def published(case: Case) -> None:
    run = case.published
    if run.layout is None:
        return
    profile = shipped_profile()
    print(
        prediction_line(
            "published layout, today's software",
            predict_layouts(case.problem, [run.layout], profile)[0],
        )
    )
    if run.step_time_s and run.year:
        then = replace(case.problem.stack, age_years=profile.software_year - run.year)
        predicted = predict_layouts(replace(case.problem, stack=then), [run.layout], profile)[0]
        print(prediction_line("published layout, software of its date", predicted))
        error = predicted.step_time_s / run.step_time_s - 1
        print(
            f"| published layout, measured | | {run.step_time_s:.2f} s (prediction {error:+.1%})"
            " | | |"
        )


def gap(found: Recommendation) -> None:
    if found.pipelining.gap is None:
        return
    print(f"Gap of pp = 1 over pp > 1: {found.pipelining.gap:+.1%}, in seconds by term:\n")
    print("| term | pp = 1 minus pp > 1 |\n|---|---|")
    for label, names in SPLIT:
        print(f"| {label} | {sum(found.pipelining.split[name] for name in names):+.2f} |")
    print()


def lift(case: Case) -> None:
    if not case.lifted:
        return
    print("With each limit of the stack lifted in turn:\n")
    print("| lifted | best, pp = 1 | best, pp > 1 |\n|---|---|---|")
    for label, changes in case.lifted.items():
        changed = replace(case.problem, stack=replace(case.problem.stack, **changes))
        print(
            f"| {label} | {best(changed, (1,))} |"
            f" {best(changed, tuple(2**k for k in range(1, 12)))} |"
        )
    print()


def best(question: Problem, pp: tuple[int, ...]) -> str:
    try:
        found = recommend(
            question, shipped_profile(), Constraints(allowed={"pp": pp})
        ).fastest.prediction
    except Infeasible as error:
        return f"{error.constraint}: {error.detail}"
    except DomainError as error:
        return str(error)
    return f"{found.step_time_s:.2f} s: {found.layout.summary()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case")
    wanted = parser.parse_args().case
    profile = shipped_profile()
    print("# Bandwidth and simplicity: worked cases\n")
    print(
        "Printed by `python -m tests.benchmarks.worked_cases`, profile",
        f"{profile.id} version {profile.version}.\n",
    )
    for case in cases():
        if wanted in (None, case.name):
            show(case)


if __name__ == "__main__":
    main()
