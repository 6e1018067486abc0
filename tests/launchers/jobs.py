"""Random jobs: legal layouts of random problems, with switches that stand anyhow."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, get_args

import numpy as np

from models.errors import Invalid
from models.layouts.factors import divisors
from models.layouts.rules import first_broken
from models.spec import catalogue
from models.spec.architecture import Architecture
from models.spec.hardware import Chip
from models.spec.layout import AXES, Layout, Layouts
from models.spec.problem import Problem
from models.spec.stack import Stack
from models.spec.switches import changed, switches_of
from models.spec.workload import OPTIMIZERS, LoadBalancing, Precision, Routing, Workload
from service.formats.launch.job import Job

T = TypeVar("T")
_DRAWN = 300
"""How many layouts of a problem are drawn; most break a rule."""
_KEPT = 3
"""How many legal layouts of a problem become jobs."""
_CHIPS = (8, 16, 32, 64, 128, 256, 512, 24, 96, 384)


def random_jobs(stacks: Sequence[str], seed: str) -> Iterator[Job]:
    """Jobs on these stacks, without end, which are the same for the same seed."""
    draw = random.Random(seed)
    while True:
        try:
            problem = _problem(draw, catalogue.stack(draw.choice(stacks)))
            layouts = _layouts(draw, problem)
        except Invalid:  # parts that do not go together, such as a chip and a precision
            continue
        for layout in layouts:
            yield Job.of(problem, layout)


def _problem(draw: random.Random, stack: Stack) -> Problem:
    chips = [chip for chip in _chips() if not stack.vendors or chip.vendor in stack.vendors]
    return Problem(
        architecture=draw.choice(_models()),
        cluster=catalogue.cluster(draw.choice(chips).id, draw.choice(_CHIPS)),
        workload=Workload(
            seq_len=draw.choice((2048, 4096, 8192, 16384)),
            global_batch=draw.choice((64, 96, 256, 512, 1024, 1536)),
            precision=_mostly(draw, "bf16", get_args(Precision)),
            optimizer=_mostly(draw, "adamw", tuple(OPTIMIZERS)),
            load_balancing=draw.choice(get_args(LoadBalancing)),
            routing=draw.choice(get_args(Routing)),
        ),
        stack=changed(stack, _switches(draw, stack)),
    )


@cache
def _models() -> tuple[Architecture, ...]:
    return tuple(dict.fromkeys(catalogue.architectures().values()))


@cache
def _chips() -> tuple[Chip, ...]:
    return tuple(dict.fromkeys(catalogue.chips().values()))


def _mostly(draw: random.Random, usual: T, others: Sequence[T]) -> T:
    return usual if draw.random() < 0.6 else draw.choice(others)


def _switches(draw: random.Random, stack: Stack) -> dict[str, Any]:
    """Another value for some of the switches."""
    found = {}
    for switch in switches_of(stack):
        values = [setting.value for setting in switch.settings]
        if values and draw.random() < 0.3:
            found[switch.field] = draw.choice(values)
    return found


def _layouts(draw: random.Random, problem: Problem) -> list[Layout]:
    """Some legal layouts of a problem; none where none of those drawn is legal."""
    drawn = [layout for _ in range(_DRAWN) if (layout := _layout(draw, problem))]
    legal = np.flatnonzero(first_broken(problem, Layouts.of(drawn)) < 0) if drawn else []
    different = list(dict.fromkeys(drawn[row] for row in legal))
    return draw.sample(different, min(_KEPT, len(different)))


def _layout(draw: random.Random, problem: Problem) -> Layout | None:
    """A layout with the knobs that the stack has; None where these contradict each other."""
    stack = problem.stack
    knobs: dict[str, Any] = _degrees(draw, problem)
    dp = knobs["dp_shard"] * knobs["dp_replicate"]
    in_pipeline = knobs["pp"] > 1
    schedule = draw.choice(stack.schedules) if in_pipeline else _mostly(draw, "1f1b", ("afab",))
    virtual_stages = draw.choice((2, 2, 3, 4, 5)) if schedule == "interleaved" else 1
    recompute = draw.choice(stack.recompute)
    zero_stage = _mostly(draw, stack.zero_stages[-1], stack.zero_stages)
    if zero_stage == 0:
        knobs |= {"dp_replicate": dp, "dp_shard": 1}
    knobs |= {
        "micro_batch": draw.choice(divisors(problem.workload.global_batch)[:4]),
        "placement": draw.choice(stack.placements or (AXES,)),
        "schedule": schedule,
        "virtual_stages": virtual_stages,
        "balanced": draw.random() < 0.5,
        "recompute": recompute,
        "recompute_modules": draw.choice(((), *stack.selective))
        if recompute == "selective"
        else (),
        "recompute_layers": draw.choice((0, 0, 1, 2)) if recompute == "full" else 0,
        "zero_stage": zero_stage,
        "reshard": draw.choice(stack.reshard),
        "sequence_parallel": knobs["tp"] > 1 and draw.choice(stack.sequence_parallel),
        "offload_activations": "activations" in stack.offload and draw.random() < 0.15,
        "offload_optimizer": "optimizer" in stack.offload and draw.random() < 0.15,
    }
    knobs |= _stated_layers(draw, problem, knobs)
    try:
        return Layout(**knobs)
    except Invalid:
        return None


def _degrees(draw: random.Random, problem: Problem) -> dict[str, int]:
    """Degrees whose product is the number of devices, and degrees of experts."""
    stack = problem.stack
    limits: Mapping[str, int] = {"tp": stack.max_tp, "cp": stack.max_cp, "pp": stack.max_pp}
    axes = [axis for axis in AXES if limits.get(axis, 2) > 1]
    weights = [draw.random() ** 2 for _ in axes]
    degrees = dict.fromkeys(AXES, 1)
    for factor in _prime_factors(problem.cluster.num_devices):
        degrees[draw.choices(axes, weights)[0]] *= factor
    degrees |= {"ep": 1, "etp": 1}
    experts = [layer.moe.num_experts for layer in problem.architecture.kinds if layer.moe]
    if experts:
        degrees["etp"] = degrees["tp"] if problem.experts_keep_tensor else draw.choice((1, 1, 2))
        if not stack.expert_tensor_parallel:
            degrees["etp"] = 1
        if stack.max_ep > 1:
            degrees["ep"] = draw.choice(divisors(experts[0]))
    return degrees


@cache
def _prime_factors(number: int) -> tuple[int, ...]:
    if number == 1:
        return ()
    factor = divisors(number)[1]
    return factor, *_prime_factors(number // factor)


def _stated_layers(
    draw: random.Random, problem: Problem, knobs: Mapping[str, Any]
) -> dict[str, Any]:
    """Sometimes, numbers of layers for the chunks, the first and the last of which have fewer."""
    chunks = knobs["pp"] * knobs["virtual_stages"]
    layers = problem.architecture.num_layers
    if chunks < 2 or not knobs["balanced"] or layers < 2 * chunks or draw.random() < 0.5:
        return {}
    counts = [layers // chunks] * chunks
    counts[draw.randrange(chunks)] += layers % chunks
    moved = draw.randint(1, counts[0])
    counts[0] -= moved
    counts[draw.randrange(chunks)] += moved
    return {"layers_per_chunk": tuple(counts)}
