"""Jobs that hooks are shown."""

from __future__ import annotations

from typing import Any

import yaml

MEGATRON = """#!/bin/bash
#SBATCH --job-name=llama-70b --nodes=1 --ntasks-per-node=8 --gpus-per-node=b300:8
srun python pretrain_gpt.py --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 \\
  --num-attention-heads 64 --group-query-attention --num-query-groups 8 --swiglu \\
  --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights \\
  --vocab-size 128256 --seq-length 8192 --max-position-embeddings 8192 --bf16 \\
  --tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 1 \\
  --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 512
"""
"""Runs, but far slower than it could: its tensor-parallel traffic hides behind nothing."""
ILLEGAL = MEGATRON.replace("tensor-model-parallel-size 8", "tensor-model-parallel-size 3")
NO_TRAINING = """#!/bin/bash
#SBATCH --nodes=1
srun echo hello
"""
BETTER_FLAG = "--tp-comm-overlap"
"""The first change that a check of MEGATRON names."""


def numbered(text: str, number: int) -> str:
    """A job that was not asked about before: with another batch for each number."""
    return text.replace("512", str(512 + 8 * number))


def skypilot_task(script: str) -> str:
    """The job as a task of SkyPilot."""
    task = {
        "resources": {"accelerators": "B300:8"},
        "num_nodes": 1,
        "run": script.partition("srun ")[2],
    }
    return yaml.safe_dump(task)


def dstack_run(script: str) -> str:
    """The job as a configuration of dstack."""
    configuration = {
        "type": "task",
        "commands": [script.partition("srun ")[2]],
        "resources": {"gpu": "B300:8"},
    }
    return yaml.safe_dump(configuration)


def dstack_spec(script: str) -> dict[str, Any]:
    """The job as dstack sends it to a policy server, with the GPUs written out."""
    gpus = {"name": ["B300"], "count": {"min": 8, "max": 8}}
    return {"configuration": {**yaml.safe_load(dstack_run(script)), "resources": {"gpu": gpus}}}
