"""The figures of docs/by-hand.md are those of the models that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from models.advice.recommendation import recommend
from models.prediction.prediction import predict_layouts
from models.spec import catalogue
from models.spec.adapters import Lora
from models.spec.architecture import Architecture
from models.spec.flops import encoder_flops, model_flops
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.workload import Workload
from service.formats import huggingface
from service.formats.launch.formats import format_of_stack
from service.formats.launch.job import Job
from tests.paths import ROOT, SHARED

TOWERS = [
    one["config"]
    for one in json.loads((ROOT / "tests/service/formats/vision_towers.json").read_text())
]
PAGE = (ROOT / "docs" / "by-hand.md").read_text()
CASES: list[tuple[str, str, int, str, dict[str, Any], Layout, str, tuple[str, ...]]] = [
    (
        "qwen3-next-80B-A3B", "h100", 64, "megatron", {"seq_len": 4096, "global_batch": 512},
        Layout(pp=4, dp_shard=16, ep=16, schedule="interleaved", virtual_stages=5, balanced=True,
               zero_stage=1),
        "23.0 GFLOP", ("3.9", "7.8", "15.2"),
    ),
    (
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "gb200", 72, "megatron-bridge",
        {"seq_len": 8192, "global_batch": 576}, Layout(dp_shard=72, micro_batch=4, zero_stage=3),
        "20.8 GFLOP", ("5.7", "3.2", "4.9"),
    ),
    (
        "DeepSeek-V3.2", "h800", 1024, "megatron", {"seq_len": 131072, "global_batch": 256},
        Layout(dp_shard=64, cp=2, tp=8, ep=32, zero_stage=3, offload_activations=True),
        "671.88 G", ("2.8", "4.8", "7.6"),
    ),
    (
        "llama-3-70b", "h100", 8, "torchtitan",
        {"seq_len": 4096, "global_batch": 32, "lora": Lora(rank=16)}, Layout(dp_replicate=2, tp=4),
        "294.1", ("32.9", "0.4", "1.3"),
    ),
]  # fmt: skip
"""Questions, each with a layout, what the page counts for it, and the GiB of its parameters,
gradients and optimizer states."""


def _model(name: str) -> Architecture:
    file = SHARED / "hf_configs" / f"{name}.json"
    if name.startswith("llama"):
        return catalogue.architecture(name)
    if not file.exists():
        pytest.skip(f"{file.name} is not here")
    return huggingface.read(json.loads(file.read_text()))


@pytest.mark.parametrize(
    ("config", "of_encoder", "of_text", "parameters"),
    [(TOWERS[-2], "17.4", "200.8", "576.4 M"), (TOWERS[-1], "17.2", "94.5", "538.6 M")],
    ids=("8B", "30B-A3B"),
)
def test_figures_of_images_are_those_of_the_answer(
    config: dict[str, Any], of_encoder: str, of_text: str, parameters: str
) -> None:
    text = huggingface.read(config)
    encoder = huggingface.read_tower(config, text).encoder(1024, None)
    problem = Problem(
        architecture=replace(text, encoder=encoder),
        cluster=catalogue.cluster("h100", 32),
        workload=Workload(seq_len=4096, global_batch=128),
        stack=catalogue.stack("megatron-bridge"),
    )
    per_sequence = model_flops(text, problem.workload) / 128 / 1e12
    assert f"{encoder_flops(encoder) / 1e12:.1f}" == of_encoder
    assert f"{per_sequence:.1f}" == of_text
    assert f"{encoder.parameters / 1e6:.1f} M" == parameters
    assert parameters in PAGE
    assert of_text in PAGE
    layout = recommend(problem, shipped_profile()).recommended.prediction.layout
    assert _launched(problem, layout)["model.freeze_vision_model"] is False


@pytest.mark.parametrize(
    ("model", "cluster", "chips", "stack", "workload", "layout", "shown", "memory"),
    CASES,
    ids=[case[0] for case in CASES],
)
def test_figures_are_those_of_the_answer(
    model: str,
    cluster: str,
    chips: int,
    stack: str,
    workload: dict[str, Any],
    layout: Layout,
    shown: str,
    memory: tuple[str, ...],
) -> None:
    problem = Problem(
        architecture=_model(model),
        cluster=catalogue.cluster(cluster, chips),
        workload=Workload(**workload),
        stack=catalogue.stack(stack),
    )
    architecture = problem.architecture
    flops = model_flops(architecture, problem.workload) / problem.workload.tokens
    assert shown in PAGE
    assert shown in (
        f"{flops / 1e9:.1f} GFLOP", f"{flops / 1e9:.1f}",
        f"{architecture.parameters.total / 1e9:.2f} G",
    )  # fmt: skip
    predicted_gib = predict_layouts(problem, [layout], shipped_profile())[0].memory_gib
    names = ("parameters_gib", "gradients_gib", "optimizer_gib")
    assert tuple(f"{predicted_gib[name]:.1f}" for name in names) == memory
    assert all(figure in PAGE for figure in memory)
    launch = _launched(problem, layout)
    assert any(name in PAGE for name in _NAMED if name in launch)


_NAMED = (
    "--experimental-attention-variant",
    "model.hybrid_layer_pattern",
    "training.dtype",
)
"""Settings of these launches that the page names."""


def _launched(problem: Problem, layout: Layout) -> Mapping[str, Any]:
    """The settings of the launch of a layout."""
    format_ = format_of_stack(problem.stack.id)
    assert format_ is not None
    return format_.write(Job.of(problem, layout)).settings
