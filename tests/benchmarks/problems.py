"""The named problems: what the search is timed on, and checked against brute force with two knobs
pinned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from models.spec import catalogue
from models.spec.architecture import Architecture
from models.spec.problem import Problem
from models.spec.workload import Workload

Make = Callable[[], Problem]


def problem(
    model: str | Architecture, cluster: tuple[str, int], stack: str, **workload: Any
) -> Problem:
    """Of entries of the catalogue."""
    architecture = catalogue.architecture(model) if isinstance(model, str) else model
    return Problem(
        architecture=architecture,
        cluster=catalogue.cluster(*cluster),
        workload=Workload(**workload),
        stack=catalogue.stack(stack),
    )


def _megatron_1t() -> Architecture:
    return Architecture.from_shape(
        name="Megatron-1T", num_layers=128, hidden_size=25600, intermediate_size=102400,
        num_attention_heads=160, num_key_value_heads=160, vocab_size=51200,
    )  # fmt: skip


_FP8 = {
    "seq_len": 4096,
    "precision": "fp8",
    "optimizer": "adamw_bf16_moments",
    "load_balancing": "bias",
}
_SPARSE = {"seq_len": 4096, "load_balancing": "bias"}

NAMED: dict[str, Make] = {
    "llama-3.1-8b": lambda: problem(
        "llama-3.1-8b", ("h100", 64), "torchtitan", seq_len=8192, global_batch=128
    ),
    "llama-3.1-405b": lambda: problem(
        "llama-3.1-405b",
        ("meta-llama3-24k-roce", 16384),
        "megatron",
        seq_len=8192,
        global_batch=2048,
    ),
    "deepseek-v3 15360": lambda: problem(
        "deepseek-v3", ("deepseek-h800-mpft", 2048), "deepseek", global_batch=15360, **_FP8
    ),
    "deepseek-v3 16384": lambda: problem(
        "deepseek-v3", ("deepseek-h800-mpft", 2048), "deepseek", global_batch=16384, **_FP8
    ),
    "deepseek-v3 v5p": lambda: problem(
        "deepseek-v3", ("tpu-v5p", 8192), "maxtext", global_batch=16384, **_SPARSE
    ),
    "kimi-k2 gb300": lambda: problem(
        "kimi-k2", ("gb300", 4608), "megatron", global_batch=18432, precision="mxfp8", **_SPARSE
    ),
    "megatron-1t": lambda: problem(
        _megatron_1t(),
        ("b200", 131072),
        "megatron",
        seq_len=8192,
        global_batch=8192,
        precision="mxfp8",
    ),
    "gpt3-175b 1600": lambda: problem(
        "gpt3-175b", ("a100", 10000), "megatron", seq_len=2048, global_batch=1600
    ),
    "gpt3-175b 1536": lambda: problem(
        "gpt3-175b", ("a100", 10000), "megatron", seq_len=2048, global_batch=1536
    ),
    "kimi-k2 v7x": lambda: problem(
        "kimi-k2", ("tpu-v7x", 98304), "maxtext", global_batch=24576, **_SPARSE
    ),
}
