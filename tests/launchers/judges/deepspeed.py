"""DeepSpeed's own reading of a document, with the steps of `deepspeed.initialize` before a model is
needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import torch
from deepspeed import comm
from deepspeed.module_inject.auto_ep_config import validate_autoep_config
from deepspeed.runtime.config import DeepSpeedConfig, get_pipeline_config
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology, PipelineParallelGrid
from judges.harness import main, require
from judges.watched import Watched
from torch.testing._internal.distributed.fake_pg import FakeStore

OPTIMIZERS = {"adamw": "adamw", "muon": "muon", "sgd": "sgd_momentum"}


def judge(configuration: dict[str, Any]) -> dict[str, Any]:
    document = Watched(configuration["settings"])
    with world(configuration["devices"]):
        config = initialized(document, configuration["devices"])
    require(not document.unread(), f"DeepSpeed reads nothing of {document.unread()}")
    zero = config.zero_config
    experts = config.expert_parallel_config
    checkpointing = config.activation_checkpointing_config
    tp = max(config.tensor_parallel_config.autotp_size, 1)
    return {
        # DeepSpeed counts every rank of tensor parallelism as one of data parallelism.
        "global_batch": config.train_batch_size / tp,
        "micro_batch": config.train_micro_batch_size_per_gpu,
        "num_micro_batches": config.gradient_accumulation_steps,
        "dp": config.world_size / tp,
        "pp": stages(document),
        "tp": tp,
        "cp": document.get("sequence_parallel_size", 1),
        "ep": experts.autoep_size if experts.enabled else 1,
        "zero_stage": int(zero.stage),
        "offload_optimizer": zero.offload_optimizer is not None,
        "offload_activations": checkpointing.cpu_checkpointing,
        "precision": precision(config),
        "optimizer": optimizer(config),
    }


@contextmanager
def world(size: int) -> Iterator[None]:
    store = FakeStore()
    torch.distributed.init_process_group("fake", rank=0, world_size=size, store=store)
    comm.comm.cdb = None
    comm.init_distributed(dist_backend="fake", auto_mpi_discovery=False, verbose=False)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def initialized(document: Watched, devices: int) -> DeepSpeedConfig:
    """What `deepspeed.initialize` makes of a document."""
    pp = stages(document)
    if pp > 1:
        require(devices % pp == 0, f"{pp} stages do not divide {devices} ranks")
        topology = PipeDataParallelTopology(num_pp=pp, num_dp=devices // pp)
        return DeepSpeedConfig(document, PipelineParallelGrid(topology))
    mesh = None
    if "sequence_parallel_size" in document and "data_parallel_size" in document:
        shape = (document["data_parallel_size"], document["sequence_parallel_size"])
        require(shape[0] * shape[1] == devices, f"a mesh of {shape} on {devices} ranks")
        mesh = comm.initialize_mesh_device(shape, ("data_parallel", "sequence_parallel"))
    config = DeepSpeedConfig(document, mesh_device=mesh)
    require_experts_fold(config, document, devices)
    return config


def require_experts_fold(config: DeepSpeedConfig, document: Watched, devices: int) -> None:
    """The engine's checks of AutoEP (runtime/engine.py, _configure_expert_parallel)."""
    zero = config.zero_config
    validate_autoep_config(
        config.expert_parallel_config,
        devices,
        1,
        config.tensor_parallel_config.autotp_size,
        document.get("sequence_parallel_size", 1),
        zero_stage=int(zero.stage),
        use_data_before_expert_parallel=config.use_data_before_expert_parallel_,
        zero_offload_optimizer=zero.offload_optimizer is not None,
        zero_offload_param=zero.offload_param is not None,
    )


def stages(document: Watched) -> int:
    known = {*get_pipeline_config({}), "use_reentrant"}
    unknown = set(document.get("pipeline", {})) - known
    require(not unknown, f"pipeline has no {unknown}")
    found = get_pipeline_config(document)["stages"]
    return 1 if found == "auto" else found


def precision(config: DeepSpeedConfig) -> str:
    if config.bfloat16_config.enabled:
        return "bf16"
    return "fp16" if config.float16_config.enabled else "fp32"


def optimizer(config: DeepSpeedConfig) -> str | None:
    """None where the training script passes its own."""
    if config.optimizer_name is None:
        require(config.zero_allow_untested_optimizer, "an optimizer of the script may be refused")
        return None
    return OPTIMIZERS[config.optimizer_name.lower()]


main(judge, "process_group")
