"""Prints whether a few real clusters need a pipeline, and why.

`python -m tests.benchmarks.worked_cases [--case NAME] > worked-cases.md`

For each case the command searches the fastest layout without and with a pipeline under a named
stack, splits the difference of their step times by term, and predicts the published run in its own
layout. It asserts nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from models.advice.candidate import Candidate
from models.advice.recommendation import Recommendation, recommend
from models.errors import DomainError, Infeasible
from models.prediction.prediction import Prediction, predict_layouts
from models.spec import catalogue
from models.spec.constraints import Constraints
from models.spec.flops import step_time_from_throughput
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.workload import Workload

INTRODUCTION = """\
Each case asks one question: which layout is the fastest without a pipeline (pp = 1), which is the
fastest with one (pp > 1), and which is the simplest within 3% of the faster of the two? A heading
names the model, the cluster, the batch (sequences x tokens), the number format and the stack.

Step times have an 80% interval. MFU counts attention as causal. Memory is what the fullest device
needs, of what is usable there. Where a run was published on the same cluster, its layout is
predicted too: with the software of today, and with that of its date. The last row has what was
measured, and how far the prediction for the software of that date is off.
"""
TERM_GROUPS = (
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
            "PP16, EP64, ZeRO-1 and DualPipe, 19.9 s a step (arXiv 2412.19437 §1 and §3.2, arXiv"
            " 2505.09343 table 4)",
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
            "FSDP over all chips, without PP, TP or EP, 90.7 s a step (tpu-recipes"
            " deepseek3_671b_v5p, MaxText @3eb77db3)",
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
            "no run on this cluster. DeepSeek-V3 ran with PP2 on GB300 NVL72 (Megatron-Bridge"
            " 26.06)",
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
                f"TP8 and PP16, {tflops} TFLOP/s a GPU with attention counted full (arXiv"
                " 2407.21783 table 4). The embedding and the head are chunks by themselves"
                " (§3.3.2). The run did fit, though more memory is predicted than a device has:"
                " its trainer frees tensors of pipeline stages early, which the model does not"
                " describe",
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


def candidate_row(label: str, candidate: Candidate | None) -> str:
    if candidate is None:
        return f"| {label} | none is legal and fits | | | |"
    return prediction_row(label, candidate.prediction)


def prediction_row(label: str, p: Prediction) -> str:
    interval = f"{p.step_time_s:.2f} s ({p.step_time_low_s:.2f} to {p.step_time_high_s:.2f})"
    memory = f"{p.needed_gib:.0f} of {p.usable_gib:.0f} GiB"
    return f"| {label} | {p.layout.summary()} | {interval} | {p.mfu['causal']:.1%} | {memory} |"


def print_case(case: Case) -> None:
    print(f"## {case.title}\n")
    start = time.perf_counter()
    answer = recommend(case.problem, shipped_profile(), Constraints(use_all_chips=True))
    print("| | layout | step time, 80% interval | MFU (causal) | memory |")
    print("|---|---|---|---|---|")
    print(candidate_row("fastest without a pipeline", answer.pipelining.without))
    print(candidate_row("fastest with a pipeline", answer.pipelining.with_pp))
    print(candidate_row("simplest within 3%", answer.simplest))
    print_published_rows(case)
    print(f"\nPublished: {case.published.text}.\n")
    print(f"{answer.pipelining.verdict}\n")
    print(f"The answer took {time.perf_counter() - start:.1f} s.\n")
    print_difference(answer)
    print_lifted_limits(case)


def print_published_rows(case: Case) -> None:
    """Print the rows of the published layout, as it is predicted and as it was measured."""
    run = case.published
    if run.layout is None:
        return
    profile = shipped_profile()
    (today,) = predict_layouts(case.problem, [run.layout], profile)
    print(prediction_row("published layout, today's software", today))
    if run.step_time_s and run.year:
        stack = replace(case.problem.stack, age_years=profile.software_year - run.year)
        (then,) = predict_layouts(replace(case.problem, stack=stack), [run.layout], profile)
        print(prediction_row("published layout, software of its date", then))
        error = then.step_time_s / run.step_time_s - 1
        print(
            f"| published layout, measured | | {run.step_time_s:.2f} s (prediction {error:+.1%})"
            " | | |"
        )


def print_difference(answer: Recommendation) -> None:
    """Print by which terms a step without a pipeline takes longer than one with a pipeline."""
    if answer.pipelining.gap is None:
        return
    print(
        f"Without a pipeline the step time changes by {answer.pipelining.gap:+.1%}. The difference"
        " by term:\n"
    )
    print("| term | seconds without a pipeline, less those with one |\n|---|---|")
    for label, names in TERM_GROUPS:
        print(f"| {label} | {sum(answer.pipelining.split[name] for name in names):+.2f} |")
    print()


def print_lifted_limits(case: Case) -> None:
    if not case.lifted:
        return
    print(
        "The stack has limits that others do not have. With each of them lifted in turn, and then"
        " several together, the fastest layouts are:\n"
    )
    print("| limit lifted | fastest without a pipeline | fastest with a pipeline |\n|---|---|---|")
    for label, changes in case.lifted.items():
        changed = replace(case.problem, stack=replace(case.problem.stack, **changes))
        without = fastest_or_reason(changed, (1,))
        with_pipeline = fastest_or_reason(changed, tuple(2**k for k in range(1, 12)))
        print(f"| {label} | {without} | {with_pipeline} |")
    print()


def fastest_or_reason(question: Problem, pp: tuple[int, ...]) -> str:
    """The fastest layout with one of these numbers of stages, or why there is none."""
    constraints = Constraints(allowed={"pp": pp}, use_all_chips=True)
    try:
        fastest = recommend(question, shipped_profile(), constraints).fastest.prediction
    except Infeasible as error:
        return f"{error.constraint}: {error.detail}"
    except DomainError as error:
        return str(error)
    return f"{fastest.step_time_s:.2f} s: {fastest.layout.summary()}"


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
    print(INTRODUCTION)
    for case in cases():
        if wanted in (None, case.name):
            print_case(case)


if __name__ == "__main__":
    main()
