"""Problems and layouts that the tests of costs have in common."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from models.cost.predictions import predict
from models.spec import catalogue
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.workload import Workload

PROFILE = shipped_profile()


def question(model: str = "llama-3.1-70b", chips: int = 64, **workload: object) -> Problem:
    fields: dict[str, object] = {"seq_len": 8192, "global_batch": 128, **workload}
    return Problem(
        architecture=catalogue.architecture(model),
        cluster=catalogue.cluster("h100", chips),
        workload=Workload(**fields),  # type: ignore[arg-type]
        stack=catalogue.stack("megatron"),
    )


LAYOUTS = [
    Layout(dp_shard=64, zero_stage=3, recompute="full"),
    Layout(tp=8, dp_shard=8, zero_stage=1, sequence_parallel=True),
    Layout(
        tp=4,
        pp=4,
        dp_shard=4,
        zero_stage=1,
        sequence_parallel=True,
        schedule="interleaved",
        virtual_stages=5,
    ),
    Layout(
        tp=2, cp=2, pp=2, dp_shard=8, zero_stage=1, sequence_parallel=True, recompute="selective"
    ),
]


def step_times(problem: Problem) -> np.ndarray:
    return predict(problem, Layouts.of(LAYOUTS), PROFILE.coefficients(problem.scopes)).step_time_s


def faster_link(problem: Problem, level: int, factor: float) -> Problem:
    fabric = problem.cluster.fabric
    levels = list(fabric.levels)
    levels[level] = replace(levels[level], gb_s_per_chip=levels[level].gb_s_per_chip * factor)
    cluster = replace(problem.cluster, fabric=replace(fabric, levels=tuple(levels)))
    return replace(problem, cluster=cluster)


def on_stack(name: str, problem: Problem, **changes: object) -> Problem:
    return replace(problem, stack=replace(catalogue.stack(name), **changes))  # type: ignore[arg-type]
