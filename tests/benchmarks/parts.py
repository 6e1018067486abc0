"""The parts of the model against measurements of the parts: collectives, matrix multiplications,
attention.

    python -m tests.benchmarks.parts --measured FILE [--profile priors|shipped] [--json]

FILE is a list of {"chip", "what", "value", …}, as hardware measurements are published. With
"priors" no training run has been looked at; "shipped" is the fitted profile, whose coefficients
stand for what training achieves.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from models.cost import kernels
from models.cost.collectives import collective_seconds
from models.cost.facts import coefficient_records
from models.cost.problem_records import question
from models.cost.single_operations import collective_cost, gemm_seconds
from models.errors import DomainError
from models.spec import catalogue
from models.spec.attention import Attention
from models.spec.hardware import Chip
from models.spec.problem import Problem
from models.spec.profile import Coefficients, Profile, priors, shipped_profile
from models.spec.recompute import NONE
from models.spec.workload import Workload

Row = Mapping[str, Any]
Found = tuple[str, float, float]
"""What was measured on which chip, the predicted and the measured seconds."""


def collective(row: Row, chip: Chip, c: Coefficients) -> float | None:
    """Seconds of an nccl-tests row: bus bandwidth counts what a ring moves (nccl-tests
    doc/PERFORMANCE.md)."""
    ranks, size = row.get("ranks"), row.get("bytes")
    if not (row["what"] == "allreduce_busbw_sweep" and ranks and size):
        return None
    problem = replace(_alone(chip), cluster=catalogue.cluster(chip.id, ranks))
    return collective_seconds(collective_cost(problem, "all_reduce", c), float(size))


def gemm(row: Row, chip: Chip, profile: Profile) -> float | None:
    """Seconds of one m x k by k x n product."""
    precision = {"fp16": "fp16", "bf16": "bf16", "fp8": "fp8", "fp4": "nvfp4"}.get(
        str(row.get("dtype"))
    )
    if row["what"] != "gemm_by_size" or precision is None:
        return None
    problem = _alone(chip, precision=precision)
    m, k, n = (np.array([float(row[dim])]) for dim in ("m_dim", "k_dim", "n_dim"))
    return float(gemm_seconds(problem, m, k, n, profile.coefficients(problem.scopes))[0])


_IMPLEMENTATIONS = {
    "fa2": "flash2",
    "fa3": "flash3",
    "cudnn": "cudnn",
    "pytorch-unfused": "unfused",
}


def attention(row: Row, chip: Chip, profile: Profile) -> float | None:
    """Seconds of 16k tokens of hidden size 2,048, causal: forward and backward together, as
    training runs them."""
    kernel = _IMPLEMENTATIONS.get(str(row.get("impl")))
    asked = (
        row.get("causal")
        and row.get("direction") == "fwd+bwd"
        and "hidden 2048" in row["conditions"]
    )
    if row["what"] != "attention" or kernel is None or not asked:
        return None
    problem = _alone(chip, seq_len=row["seq_len"], kernel=kernel)
    dim = int(row["head_dim"])
    heads = Attention(
        num_attention_heads=2048 // dim,
        num_key_value_heads=2048 // dim,
        head_dim=dim,
        v_head_dim=dim,
    )
    layer, *_ = problem.architecture.layers
    layers = (replace(layer, attention=heads),)
    problem = replace(problem, architecture=replace(problem.architecture, layers=layers))
    c = coefficient_records(profile.coefficients(problem.scopes))[0]
    q = question(problem, np.array([NONE]))
    passes = kernels.attention(q.facts[0], q.layers[0], c, 2.0**14, 2048 / dim)
    return float(passes.forward + kernels.backward(passes))


def _alone(
    chip: Chip, precision: Any = "bf16", seq_len: int = 4096, kernel: Any = "auto"
) -> Problem:
    stack = replace(catalogue.stack("generic"), attention_kernel=kernel)
    return Problem(
        architecture=catalogue.architecture("llama-3-8b"),
        cluster=catalogue.cluster(chip.id, 1),
        workload=Workload(seq_len=seq_len, global_batch=1, precision=precision),
        stack=stack,
    )


def pairs(rows: Sequence[Row], profile: Profile) -> Iterator[Found]:
    for row in rows:
        try:
            chip = catalogue.chip(row["chip"])
        except DomainError:
            continue
        yield from _pair(row, chip, profile)


def _pair(row: Row, chip: Chip, profile: Profile) -> Iterator[Found]:
    scopes = (f"generation:{chip.generation}", f"chip:{chip.id}")
    if (predicted := collective(row, chip, profile.coefficients(scopes))) is not None:
        ranks, size = row["ranks"], row["bytes"]
        measured = size * 2 * (ranks - 1) / ranks / (row["value"] * 1e9)
        large = "large" if size >= 2**26 else "small" if size < 2**20 else "medium"
        where = "several domains" if row["nodes"] > 1 else "one domain"
        yield f"all-reduce, {large}, {chip.id}, {where}", predicted, measured
    if (predicted := gemm(row, chip, profile)) is not None:
        flops = 2.0 * row["m_dim"] * row["n_dim"] * row["k_dim"]
        yield f"gemm, {row['dtype']}, {chip.id}", predicted, flops / (row["value"] * 1e12)
    if (predicted := attention(row, chip, profile)) is not None:
        flops = (
            3.5 * 4 * 2**14 * row["seq_len"] * 2048 / 2
        )  # causal halved, backward 2.5 times forward
        yield f"attention, {row['impl']}, {chip.id}", predicted, flops / (row["value"] * 1e12)


def scores(found: Sequence[Found]) -> dict[str, dict[str, float]]:
    by_kind: dict[str, list[float]] = defaultdict(list)
    for kind, predicted, measured in found:
        by_kind[kind].append(predicted / measured - 1)
    return {
        kind: {
            "n": len(errors),
            "median_abs_error": float(np.median(np.abs(errors))),
            "p90_abs_error": float(np.quantile(np.abs(errors), 0.9)),
            "bias": float(np.median(errors)),
        }
        for kind, errors in sorted(by_kind.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measured", type=Path, required=True)
    parser.add_argument("--profile", choices=("priors", "shipped"), default="priors")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    profile = priors() if asked.profile == "priors" else shipped_profile()
    found = scores(list(pairs(json.loads(asked.measured.read_text()), profile)))
    width = max(map(len, found), default=0) + 2
    print(f"{'':{width}}{'n':>5}{'median':>9}{'p90':>9}{'bias':>9}")
    for kind, s in found.items():
        print(
            f"{kind:{width}}{s['n']:5}{s['median_abs_error']:9.1%}{s['p90_abs_error']:9.1%}{s['bias']:+9.1%}"
        )
    if asked.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
