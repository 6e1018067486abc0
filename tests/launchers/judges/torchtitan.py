"""torchtitan's own reading of its flags, the checks of its trainer, its meshes and its split of a
model into stages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from judges.harness import main, require
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.components.quantization.utils import has_quantization
from torchtitan.config import ConfigManager
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.pipeline_parallel import (
    _generate_llm_fqn_per_model_part,
    _get_pipeline_metadata,
)
from torchtitan.trainer import Trainer

MANAGER = ConfigManager()
SCHEDULES = {
    "Schedule1F1B": "1f1b",
    "ScheduleGPipe": "afab",
    "ScheduleInterleaved1F1B": "interleaved",
}
RECOMPUTE = {"NoneType": "none", "SelectiveAC": "selective", "FullAC": "full"}
OPTIMIZERS = {"fused": "adamw", "fused_opt_states_bf16": "adamw_bf16_moments"}


def judge(configuration: dict[str, Any]) -> dict[str, Any]:
    config = MANAGER.parse_args(configuration["arguments"])
    with world(configuration["devices"]) as size:
        dims = ParallelDims.from_config(config.parallelism, size)
        dims.build_mesh()
        degrees = {axis: dims._single_axis_meshes[axis].size() for axis in ("pp", "cp", "tp", "ep")}
        degrees |= {"dp_replicate": dims.dp_replicate, "dp_shard": dims.dp_shard}
    require_divisible(config, dims)
    stands_in = "config" in configuration["placeholders"]
    if stands_in:
        # Somebody is to write the function of the model: only its number of layers is known.
        model: Any = SimpleNamespace(layers=[None] * configuration["num_layers"])
    else:
        model = config.model_spec.model
        model.update_from_config(config=config)
        config._validate_cuda_graphs()
    knobs = {**degrees, **batch(config, dims), **pipeline(config, dims, model), **policy(config)}
    if not stands_in:
        knobs["is_low_precision"] = has_quantization(model)
    elif "--optimizer.implementation" not in configuration["arguments"]:
        knobs["optimizer"] = "muon"  # which the function is to name
    return knobs


@contextmanager
def world(size: int) -> Iterator[int]:
    store = FakeStore()
    torch.distributed.init_process_group("fake", rank=0, world_size=size, store=store)
    try:
        yield size
    finally:
        torch.distributed.destroy_process_group()


def require_divisible(config: Trainer.Config, dims: ParallelDims) -> None:
    """What the trainer asks for when it starts (trainer.py, __init__)."""
    chunks = dims.tp if config.parallelism.enable_sequence_parallel else 1
    chunks *= 2 * dims.cp if dims.cp > 1 else 1
    length = config.training.seq_len
    require(length % chunks == 0, f"sequences of {length} in {chunks} parts")
    experts = dims.dp_shard * dims.cp * dims.tp
    require(experts % dims.ep == 0, f"{dims.ep} expert ranks of {experts}")


def batch(config: Trainer.Config, dims: ParallelDims) -> dict[str, int]:
    training = config.training
    of_rank, rest = divmod(training.global_batch_size, dims.dp_replicate * dims.dp_shard)
    require(rest == 0, f"{training.global_batch_size} sequences over the data-parallel ranks")
    steps, rest = divmod(of_rank, training.local_batch_size)
    require(rest == 0, f"{of_rank} sequences of a rank, {training.local_batch_size} at a time")
    micro_batch = training.local_batch_size
    if dims.pp > 1:
        require(steps == 1, f"the pipeline runs empty {steps} times a step")
        micro_batch = config.parallelism.pipeline_parallel_microbatch_size
    return {
        "seq_len": training.seq_len,
        "global_batch": training.global_batch_size,
        "micro_batch": micro_batch,
        "num_micro_batches": of_rank // micro_batch,
    }


def pipeline(config: Trainer.Config, dims: ParallelDims, model: Any) -> dict[str, Any]:
    if dims.pp == 1:
        return {"layers_per_chunk": [len(model.layers)]}
    parallelism = config.parallelism
    schedule = get_schedule_class(parallelism.pipeline_parallel_schedule)
    stages, layers, first, last = _get_pipeline_metadata(dims, parallelism, model)
    names = parallelism.module_fqns_per_model_part
    if names is None:
        names = _generate_llm_fqn_per_model_part(stages, layers, first, last)
    require(len(names) % dims.pp == 0, f"{len(names)} chunks on {dims.pp} stages")
    found = [name for part in names for name in part]
    expected = [f"layers.{index}" for index in range(layers)]
    whole = ["tok_embeddings", *expected, "norm", "lm_head"]
    require(found == whole, f"the chunks hold {found}")
    return {
        "schedule": SCHEDULES[schedule.__name__],
        "layers_per_chunk": [sum(name.startswith("layers.") for name in part) for part in names],
    }


def policy(config: Trainer.Config) -> dict[str, Any]:
    """Sharding, recompute, number formats, optimizer and switches."""
    parallelism = config.parallelism
    training = config.training
    compiled = config.compile.components if config.compile.enable else []
    recompute = type(config.activation_checkpoint).__qualname__.partition(".")[0]
    return {
        "sequence_parallel": parallelism.enable_sequence_parallel,
        "reshards": parallelism.fsdp_reshard_after_forward,
        "recompute": RECOMPUTE[recompute],
        "offload_optimizer": training.enable_cpu_offload,
        "parameters": training.mixed_precision_param,
        "optimizer": optimizer(config),
        "compiles_model": "model" in compiled,
        "compiles_loss": "loss" in compiled,
        "captures": not training.disable_cuda_graphs,
        "overlap_tensor": config.compile.enable_async_tensor_parallel,
        "balances": config.debug.moe_force_load_balance,
        "loss_chunks": getattr(config.loss, "num_chunks", 1),
    }


def optimizer(config: Trainer.Config) -> str:
    names = {group.optimizer_name for group in config.optimizer.param_groups}
    if any("Muon" in name for name in names):
        return "muon"
    return OPTIMIZERS[config.optimizer.implementation]


main(judge, "torchtitan", "process_group")
