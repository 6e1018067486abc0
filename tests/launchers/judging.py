"""Launch configurations put before the judge of their framework, which runs in the environment that
has the real ones."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from models.spec.architecture import Architecture
from models.spec.hardware import Cluster
from service.formats.launch.documents import flat, nested
from service.formats.launch.formats import FORMATS
from service.formats.launch.job import Job, LaunchConfiguration
from service.formats.launch.rendering import command_words
from tests.paths import ROOT

PYTHON = ROOT / ".venv-launchers/bin/python"
Case: TypeAlias = tuple[Job, LaunchConfiguration]
_FOLDER = ROOT / "tests/launchers"
_FILLED: Mapping[str, Mapping[str, Any]] = {
    "megatron": {
        "--data-path": "corpus_text_document",
        "--tokenizer-type": "NullTokenizer",
        "--tokenizer-model": "tokenizer.model",
        "--train-iters": 1000,
        "--lr": 3e-4,
        "--min-lr": 3e-5,
        "--lr-decay-style": "cosine",
        "--lr-warmup-iters": 100,
        "--weight-decay": 0.1,
        "--save": "checkpoints",
        "--save-interval": 100,
        "--load": "checkpoints",
        "--rotary-base": 500000,
        "--norm-epsilon": 1e-5,
        "--moe-aux-loss-coeff": 0.01,
        "--dsa-indexer-loss-coeff": 0.01,
    },
    "megatron-bridge": {
        "tokenizer.tokenizer_model": "tokenizer",
        "train.train_iters": 1000,
        "optimizer.lr": 3e-4,
        "optimizer.min_lr": 3e-5,
        "scheduler.lr_warmup_iters": 100,
        "checkpoint.save": "checkpoints",
        "checkpoint.save_interval": 100,
        "checkpoint.load": "checkpoints",
        "model.moe_aux_loss_coeff": 0.01,
        "model.dsa_indexer_loss_coeff": 0.01,
        "checkpoint.pretrained_checkpoint": ".",
    },
    "torchtitan": {
        "hf_assets_path": "tokenizer",
        "dataloader.dataset": "c4",
        "training.steps": 1000,
        "optimizer.param_groups.0.optimizer_kwargs.lr": 3e-4,
        "lr_scheduler.warmup_steps": 100,
        "lr_scheduler.decay_ratio": 0.8,
        "checkpoint.folder": "checkpoints",
        "checkpoint.interval": 100,
        "module": "llama3",
        "config": "llama3_8b",
    },
    "maxtext": {
        "run_name": "run",
        "base_output_directory": "output",
        "dataset_type": "synthetic",
        "tokenizer_path": "tokenizer",
        "steps": 1000,
        "learning_rate": 3e-4,
        "max_segments_per_seq": 32,
        "model_name": "default",
    },
    "deepspeed": {"optimizer.params.lr": 3e-4, "gradient_clipping": 1.0},
    "accelerate": {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"},
}
"""What is put in the place of placeholders."""


def judged(format_: str, cases: Iterable[Case]) -> list[dict[str, Any]]:
    """The answer of the judge to each configuration: `knobs`, or why it is `refused`."""
    lines = [json.dumps(_case(job, configuration)) for job, configuration in cases]
    module = f"judges.{format_.replace('-', '_')}"
    with TemporaryDirectory() as folder:
        file = Path(folder) / "answers.jsonl"
        file.touch()
        done = subprocess.run(
            [PYTHON, "-W", "ignore", "-m", module, file],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            cwd=_FOLDER,
        )
        answers = [json.loads(line) for line in file.read_text().splitlines()]
    if done.returncode or len(answers) != len(lines):
        raise RuntimeError(f"{module} stopped after {len(answers)} answers:\n{done.stderr[-4000:]}")
    return answers


def _case(job: Job, configuration: LaunchConfiguration) -> dict[str, Any]:
    cluster = job.problem.cluster
    filled = _FILLED.get(configuration.format, {})
    options = FORMATS[configuration.format].options
    named = [name for name in configuration.placeholders if name not in options]
    values = {name: filled[name] for name in named}
    if "model_name" in values:
        values |= _maxtext_sizes(job.problem.architecture)
    if FORMATS[configuration.format].words is None:
        settings = nested({**flat(configuration.settings), **values})
    else:
        settings = {**configuration.settings, **values}
    return {
        "settings": settings,
        "arguments": command_words(replace(configuration, settings=settings)),
        "placeholders": list(configuration.placeholders),
        "environment": configuration.environment,
        "devices": job.layout.num_devices,
        "chip": cluster.chip.id,
        "slice_shape": cluster.slice_shape,
        "devices_per_slice": _devices_per_slice(cluster),
        "num_layers": job.problem.architecture.num_layers,
        "generation": cluster.chip.generation,
    }


def _maxtext_sizes(model: Architecture) -> dict[str, int]:
    """What the file of a model would say that MaxText has none for."""
    experts = [layer.moe for layer in model.kinds if layer.moe]
    sizes = {
        "base_num_decoder_layers": model.num_layers,
        "base_emb_dim": model.hidden_size,
        "vocab_size": model.vocab_size,
    }
    if experts:
        sizes["num_experts"] = experts[0].num_experts
        sizes["num_experts_per_tok"] = experts[0].experts_per_token
        sizes["base_mlp_dim"] = experts[0].intermediate_size
        sizes["base_moe_mlp_dim"] = experts[0].intermediate_size
        sizes["first_num_dense_layers"] = sum(layer.moe is None for layer in model.layers)
    return sizes


def _devices_per_slice(cluster: Cluster) -> int:
    """Devices that are joined by links of their own, without the network."""
    if cluster.is_torus:
        return prod(cluster.slice_shape) * cluster.chip.devices_per_chip
    return min(cluster.scale_up_domain, cluster.num_devices)
