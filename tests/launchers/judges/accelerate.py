"""What `accelerate launch` makes of a configuration file, and processes of the environment in which
they start; and what transformers makes of the arguments of the script."""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from accelerate import ParallelismConfig
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin, TorchDynamoPlugin
from accelerate.utils.dataclasses import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env
from judges.harness import main, require
from transformers import HfArgumentParser, TrainingArguments
from trl import SFTConfig

ZERO_STAGES = {
    "FULL_SHARD": 3,
    "HYBRID_SHARD": 3,
    "SHARD_GRAD_OP": 2,
    "_HYBRID_SHARD_ZERO2": 2,
    "NO_SHARD": 0,
}
OPTIMIZERS = {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_bnb_8bit": "adamw_8bit"}
PRECISIONS = {None: "fp32", "bfloat16": "bf16", "float16": "fp16"}
LAUNCHES = {"NO": "eager", "INDUCTOR": "compiled", "CUDAGRAPHS": "graph"}


def judge(configuration: dict[str, Any]) -> dict[str, Any]:
    training, model = script_arguments(configuration["arguments"])
    args = launch_arguments(configuration["settings"])
    processes = configuration["devices"]
    require(args.num_processes == processes, f"{args.num_processes} of {processes} processes")
    os.environ.update(prepare_multi_gpu_env(args))
    checkpoints = training.gradient_checkpointing
    knobs: dict[str, Any] = {
        "micro_batch": training.per_device_train_batch_size,
        "num_micro_batches": training.gradient_accumulation_steps,
        "optimizer": optimizer(configuration["arguments"], training),
        "precision": precision(args.mixed_precision, model.dtype),
        "launch": LAUNCHES[TorchDynamoPlugin().backend.value],
    }
    if args.use_fsdp:
        plugin = FullyShardedDataParallelPlugin()
        require(
            not (plugin.activation_checkpointing and checkpoints),
            "activations are checkpointed by FSDP and by the script",
        )
        checkpoints = checkpoints or plugin.activation_checkpointing
        knobs |= sharding(args, plugin, processes)
    else:
        knobs |= {"zero_stage": 0, "dp_replicate": processes, "dp_shard": 1, "tp": 1, "cp": 1}
        knobs |= {"offload_optimizer": False, "offload_activations": False}
    return {**knobs, "recompute": "full" if checkpoints else "none"}


@dataclass
class ModelArguments:
    """Arguments that scripts of transformers and TRL have for the model."""

    dtype: str | None = None
    attn_implementation: str | None = None


def script_arguments(words: list[str]) -> tuple[TrainingArguments, ModelArguments]:
    # Of these only what is written for TRL says --bf16, since TRL turns it on by itself.
    arguments = SFTConfig if "--bf16" in words else TrainingArguments
    parser = HfArgumentParser((arguments, ModelArguments))
    return parser.parse_args_into_dataclasses(["--output_dir", ".", "--use_cpu", *words])


def precision(mixed: str, loaded: str | None) -> str:
    """Mixed precision, or else that which the model is loaded in."""
    return PRECISIONS[loaded] if mixed == "no" else mixed


def launch_arguments(document: dict[str, Any]) -> Namespace:
    """The arguments of the launcher, with those of the file put in. It takes any key of the inner
    objects, also one that it does not have."""
    parser = launch_command_parser()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "accelerate.yaml"
        file.write_text(yaml.safe_dump(document))
        words = ["--config_file", str(file), "--main_process_port", "0", "train.py"]
        args = parser.parse_args(words)
        known = set(vars(args))
        args, _, _ = _validate_launch_command(args)
    for name, value in document.items():
        if isinstance(value, dict):
            prefix = name.removesuffix("config")
            keys = {key if key.startswith(prefix) else f"{prefix}{key}" for key in value}
            require(keys <= known, f"accelerate launch has no {sorted(keys - known)}")
    return args


def sharding(
    args: Namespace, plugin: FullyShardedDataParallelPlugin, processes: int
) -> dict[str, Any]:
    """Degrees and policies of FSDP."""
    version = plugin.fsdp_version
    mesh = ParallelismConfig() if args.use_parallelism_config else None
    strategy = plugin.sharding_strategy if version == 1 else None
    if mesh:
        accelerator = SimpleNamespace(
            multi_device=False,
            num_processes=processes,
            is_fsdp2=version == 2,
            is_main_process=True,
            distributed_type=DistributedType.FSDP,
        )
        mesh._validate_accelerator(accelerator)
        sizes = {axis: mesh._sizes[axis] for axis in ("dp_replicate", "dp_shard", "tp", "cp")}
    else:
        is_hybrid = strategy is not None and "HYBRID" in strategy.name
        shards = processes // args.num_machines if is_hybrid else processes
        sizes = {"dp_replicate": processes // shards, "dp_shard": shards, "tp": 1, "cp": 1}
    return {
        **sizes,
        "zero_stage": 3 if strategy is None else ZERO_STAGES[strategy.name],
        **({"reshard": plugin.reshard_after_forward} if version == 2 else {}),
        "offload_optimizer": offloads(plugin.cpu_offload),
        "offload_activations": plugin.activation_checkpointing_offload,
    }


def offloads(policy: object) -> bool:
    """Of FSDP1, CPUOffload with a switch; of FSDP2, CPUOffloadPolicy or OffloadPolicy."""
    return getattr(policy, "offload_params", type(policy).__name__ == "CPUOffloadPolicy")


def optimizer(words: list[str], training: TrainingArguments) -> str | None:
    """None where the script builds its own."""
    return OPTIMIZERS[training.optim] if "--optim" in words else None


main(judge, "current_device")
