"""The real frameworks read what the launch formats write, on a machine without accelerators.

`make test-launchers` makes the environment that has them, and runs these tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest

from models.errors import Invalid
from models.spec.adapters import Lora
from models.spec.architecture import Architecture
from models.spec.layout import Layout
from models.spec.workload import Packing
from service.formats.launch.documents import flat, nested
from service.formats.launch.formats import FORMATS
from service.formats.launch.job import Job
from tests.benchmarks.problems import problem
from tests.launchers import expectations
from tests.launchers.jobs import hybrids, random_jobs
from tests.launchers.judging import PYTHON, Case, judged

JOBS = 200
"""How many random jobs a framework judges, of those whose layouts its format has words for."""
HYBRIDS = {"megatron": 60, "megatron-bridge": 40}
"""How many more with recurrences, sparse attention or layers of one block, by format."""
SHOWN = 5

pytestmark = [
    pytest.mark.launchers,
    pytest.mark.skipif(not PYTHON.exists(), reason="make test-launchers makes the environment"),
]


# -- spoiled configurations, so that a judge that takes everything is found out


def _case(stack: str, layout: Mapping[str, Any], **of_problem: Any) -> Case:
    of_problem = {
        "model": "llama-3-70b",
        "cluster": ("h100-sxm-80gb", 256),
        "seq_len": 8192,
        "global_batch": 1024,
        **of_problem,
    }
    job = Job.of(problem(stack=stack, **of_problem), Layout(**layout))
    format_ = next(each for each in FORMATS.values() if stack in each.stacks)
    return job, format_.write(job)


def _spoiled(case: Case, changes: Mapping[str, Any]) -> Case:
    """The configuration with settings changed, by their dotted names; None takes one out."""
    job, configuration = case
    is_document = FORMATS[configuration.format].words is None
    settings = flat(configuration.settings) if is_document else configuration.settings
    settings = {**settings, **changes}
    kept = {name: value for name, value in settings.items() if value is not None}
    return job, replace(configuration, settings=nested(kept) if is_document else kept)


_DENSE = {"tp": 8, "pp": 4, "dp_shard": 8, "zero_stage": 1, "sequence_parallel": True}
_INTERLEAVED = {**_DENSE, "schedule": "interleaved", "virtual_stages": 5}
_SPARSE = {"tp": 2, "pp": 4, "dp_shard": 32, "ep": 8, "zero_stage": 1, "sequence_parallel": True}
_MIXTRAL = {"model": "mixtral-8x7b"}
_FULLY_SHARDED = {"dp_shard": 256, "zero_stage": 3, "recompute": "full"}
_ON_TPUS = {"cluster": ("tpu-v5p", 256), "model": "llama-2-70b"}
_KNOWN: Mapping[str, Mapping[str, Callable[[], Case]]] = {
    "megatron": {
        "dense": partial(_case, "megatron", _DENSE),
        "interleaved": partial(_case, "megatron", _INTERLEAVED),
        "sparse": partial(_case, "megatron", _SPARSE, **_MIXTRAL),
        "data": partial(_case, "megatron", {"dp_shard": 256, "zero_stage": 1}),
    },
    "megatron-bridge": {
        "dense": partial(_case, "megatron-bridge", _DENSE),
        "sparse": partial(_case, "megatron-bridge", _SPARSE, **_MIXTRAL),
        "adapters": partial(_case, "megatron-bridge", _DENSE, lora=Lora(rank=8)),
        "adapters of experts": partial(
            _case,
            "megatron-bridge",
            {"tp": 2, "cp": 2, "dp_shard": 64, "ep": 8, "zero_stage": 1, "sequence_parallel": True},
            lora=Lora(rank=8, targets=("experts",)),
            packing=Packing(mean_length=1024),
            **_MIXTRAL,
        ),
    },
    "torchtitan": {
        "dense": partial(_case, "torchtitan", {**_DENSE, "schedule": "1f1b", "zero_stage": 3}),
        "sharded": partial(_case, "torchtitan", {**_FULLY_SHARDED, "ep": 8}, model="qwen3-30b-a3b"),
    },
    "maxtext": {
        "sharded": partial(_case, "maxtext", _FULLY_SHARDED, **_ON_TPUS),
        "pipeline": partial(
            _case,
            "maxtext",
            {"pp": 4, "dp_shard": 64, "zero_stage": 3, "recompute": "full", "schedule": "afab"},
            **_ON_TPUS,
        ),
    },
    "deepspeed": {
        "offloaded": partial(_case, "deepspeed", {**_FULLY_SHARDED, "offload_optimizer": True}),
        "pipeline": partial(_case, "deepspeed", {"pp": 8, "dp_shard": 32, "zero_stage": 1}),
    },
    "accelerate": {
        "sharded": partial(_case, "fsdp", _FULLY_SHARDED),
        "hybrid": partial(_case, "fsdp", {**_FULLY_SHARDED, "dp_shard": 16, "dp_replicate": 16}),
        "narrow": partial(_case, "fsdp", _FULLY_SHARDED, master_weights=False),
    },
}
"""Layouts of models that people train, by the format and a name."""
_SPOILED: Mapping[str, tuple[tuple[str, Mapping[str, Any]], ...]] = {
    "megatron": (
        ("dense", {"--tensor-parallel-degree": 8}),
        ("dense", {"--global-batch-size": 1025}),
        ("dense", {"--recompute-granularity": "selective", "--recompute-modules": ["attn"]}),
        ("interleaved", {"--num-virtual-stages-per-pipeline-rank": 3}),
        ("sparse", {"--sequence-parallel": None, "--tp-comm-overlap": None}),
        ("sparse", {"--expert-model-parallel-size": 3}),
        ("data", {"--sequence-parallel": True}),  # which Megatron switches off
    ),
    "megatron-bridge": (
        ("dense", {"model.tensor_parallel_size": 8}),
        ("dense", {"train.global_batch_size": 1025}),
        ("dense", {"model.recompute_granularity": "some"}),
        ("sparse", {"model.expert_model_parallel_size": 3}),
        ("sparse", {"model.moe_pad_expert_input_to_capacity": True}),
        ("adapters", {"checkpoint.pretrained_checkpoint": None}),
        ("adapters of experts", {"model.calculate_per_token_loss": False}),
    ),
    "torchtitan": (
        ("dense", {"parallelism.tensor_parallel_size": 8}),
        ("dense", {"parallelism.pipeline_parallel_schedule": "2F2B"}),
        ("dense", {"parallelism.data_parallel_shard_degree": 9}),
        ("dense", {"training.global_batch_size": 1025}),
        ("sharded", {"parallelism.expert_parallel_degree": 3}),
        ("sharded", {"activation_checkpoint": "half"}),
    ),
    "maxtext": (
        ("sharded", {"remat_policy": "most"}),
        ("sharded", {"ici_fsdp_parallelism": 128}),
        ("sharded", {"ici_shard_parallelism": 1}),
        ("pipeline", {"num_layers_per_pipeline_stage": 7}),
        ("pipeline", {"num_pipeline_microbatches": 6}),
    ),
    "deepspeed": (
        ("offloaded", {"zero_optimisation.stage": 3}),
        ("offloaded", {"zero_optimization.stages": 3}),
        ("offloaded", {"zero_optimization.stage": 4}),
        ("offloaded", {"train_batch_size": 1000}),
        ("pipeline", {"pipeline.num_stages": 8}),
        ("pipeline", {"pipeline.stages": 7}),
    ),
    "accelerate": (
        ("sharded", {"fsdp_config.fsdp_sharding": "FULL_SHARD"}),
        ("sharded", {"num_gpus": 256}),
        ("sharded", {"mixed_precision": "bf17"}),
        ("hybrid", {"parallelism_config.parallelism_config_tp_size": 2}),
    ),
}
"""Changes of these that a framework must not train with, or that its parser passes over."""


# -- judged


def _random_cases(format_: str, count: int, models: Sequence[Architecture] = ()) -> list[Case]:
    found: list[Case] = []
    jobs = random_jobs(FORMATS[format_].stacks, seed=format_, models=models)
    while len(found) < count:
        job = next(jobs)
        with suppress(Invalid):  # which the format has no words for
            found.append((job, FORMATS[format_].write(job)))
    return found


@cache
def _answers(format_: str) -> tuple[list[tuple[Case, dict[str, Any]]], list[dict[str, Any]]]:
    """What the framework answers to the right configurations, and to the spoiled ones. It is
    started once, since that takes most of the time."""
    known = {name: make() for name, make in _KNOWN[format_].items()}
    right = [
        *known.values(),
        *_random_cases(format_, JOBS),
        *_random_cases(format_, HYBRIDS.get(format_, 0), hybrids()),
    ]
    spoiled = [_spoiled(known[name], changes) for name, changes in _SPOILED[format_]]
    answers = judged(format_, [*right, *spoiled])
    return list(zip(right, answers, strict=False)), answers[len(right) :]


FORMAT = pytest.mark.parametrize(
    "format_", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in FORMATS]
)


@FORMAT
def test_a_framework_understands_what_is_written_for_it(format_: str) -> None:
    judged_cases, _ = _answers(format_)
    wrong = []
    for (job, configuration), answer in judged_cases:
        expected = getattr(expectations, format_.replace("-", "_"))(job, configuration)
        if answer != {"knobs": expected}:
            wrong.append(_difference(job.layout, expected, answer, configuration.settings))
    print(f"{format_}: {len(judged_cases) - len(wrong)} of {len(judged_cases)} understood")
    assert not wrong, "\n".join([f"{len(wrong)} of {len(judged_cases)}:", *wrong[:SHOWN]])


def _difference(
    layout: Layout, expected: Mapping[str, Any], answer: Mapping[str, Any], settings: object
) -> str:
    knobs = answer.get("knobs", {})
    other = {
        name: (expected.get(name), knobs.get(name))
        for name in sorted({*expected, *knobs})
        if expected.get(name) != knobs.get(name)
    }
    return f"{layout.summary()}: {answer.get('refused') or f'written and read {other}'}\n{settings}"


@FORMAT
def test_a_framework_refuses_a_spoiled_configuration(format_: str) -> None:
    _, answers = _answers(format_)
    for (name, changes), answer in zip(_SPOILED[format_], answers, strict=True):
        assert "refused" in answer, (name, changes)
