"""Writes a layout as a configuration of accelerate launch, for accelerate 1.15.0, and the
TrainingArguments of transformers that go with it.

ZeRO 3 is FSDP2, which drops parameters after every backward. ZeRO 2 is FSDP1 with SHARD_GRAD_OP,
which keeps them from one micro-batch to the next (torch/distributed/fsdp/_runtime_utils.py,
_should_free_in_backward). Without ZeRO, DistributedDataParallel replicates the model.

The text of an Inexpressible says why no setting does what was asked for, and what to ask for
instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from models.spec.layout import Layout
from models.spec.switches import launch_arguments, launch_code
from service.formats.launch.documents import nested
from service.formats.launch.facts import facts
from service.formats.launch.job import Inexpressible, Job, LaunchConfiguration
from service.formats.launch.knobs import require_default_order, require_values
from service.formats.launch.machines import slurm_options

NAME = "accelerate"
FRAMEWORK = "accelerate"
RELEASE = "1.15.0"

OPTIMIZERS = {"adamw": "adamw_torch", "adamw_8bit": "adamw_bnb_8bit"}
"""By optimizer of a workload, TrainingArguments.optim (transformers 5.24.0, OptimizerNames). Its
sgd has no momentum, and its adafactor no first moment."""
_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
"""The dtype in which models without an fp32 copy are loaded, by precision."""
_DATA_PARALLEL = {"intel": "MULTI_XPU", "huawei": "MULTI_NPU"}
"""The distributed_type of plain data parallelism on the chips of a vendor. It is MULTI_GPU on
others."""


def write(job: Job) -> LaunchConfiguration:
    """Returns the document of accelerate that runs a job. Raises Inexpressible where none does."""
    layout = job.layout
    _require_expressible(job)
    machines = job.machines
    settings: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed_type(job),
        "num_machines": machines.nodes,
        "num_processes": layout.num_devices,
        "mixed_precision": _mixed_precision(job),
    }
    if job.problem.workload.precision == "fp8":
        settings["fp8_config.backend"] = "AO"  # torchao
        settings["fp8_config.enable_fsdp_float8_all_gather"] = True
    placeholders: dict[str, str] = {}
    if layout.zero_stage:
        settings |= {f"fsdp_config.{key}": value for key, value in _fsdp(layout).items()}
        name = "fsdp_config.fsdp_transformer_layer_cls_to_wrap"
        # The class of a layer, which FSDP wraps as a unit (transformers, _no_split_modules).
        layer_class = facts(NAME)["layer_classes"].get(job.family)
        if layer_class is None:
            placeholders[name] = "the class of a layer in the model's own code"
        else:
            settings[name] = layer_class
    if layout.zero_stage == 3:
        settings |= _parallelism(layout)
    settings |= launch_arguments(job.problem, layout)
    return LaunchConfiguration(
        format=NAME,
        framework=FRAMEWORK,
        version=RELEASE,
        settings=nested(settings),
        script_arguments=_training_arguments(job),
        placeholders=placeholders,
        slurm=slurm_options(job.machines),
        notes=tuple(_notes(job)),
    )


def _require_expressible(job: Job) -> None:
    """Raises Inexpressible for a layout or a precision that accelerate has no settings for."""
    layout = job.layout
    require_values(layout, NAME)
    # Ranks are in the order of accelerate's mesh (parallelism_config.py, _get_mesh).
    require_default_order(layout)
    _require_expressible_precision(job)
    _require_expressible_sharding(job)
    if layout.offload_optimizer and not layout.zero_stage:
        cure = "fsdp_offload_params is part of FSDP; ask with zero_stage 2 or 3"
        raise Inexpressible("layout.offload_optimizer", True, cure)
    if layout.offload_activations and (layout.zero_stage < 3 or layout.recompute != "full"):
        cure = "FSDP2 offloads what checkpointing keeps; ask with zero_stage 3 and recompute full"
        raise Inexpressible("layout.offload_activations", True, cure)


def _require_expressible_precision(job: Job) -> None:
    """Raises Inexpressible for number formats that accelerate's mixed_precision does not offer."""
    precision = job.problem.workload.precision
    if precision not in ("bf16", "fp16", "fp32", "fp8"):
        cure = "mixed_precision is bf16, fp16, fp8 or no; ask with one of these"
        raise Inexpressible("workload.precision", precision, cure)
    if precision == "fp8" and not job.problem.workload.master_weights:
        cure = "torchao casts parameters of 32 bits to fp8; ask with master_weights true"
        raise Inexpressible("workload.master_weights", False, cure)
    if precision == "fp8" and job.layout.zero_stage != 3:
        cure = "torchao gathers float8 with FSDP2 only; ask with zero_stage 3"
        raise Inexpressible("layout.zero_stage", job.layout.zero_stage, cure)


def _require_expressible_sharding(job: Job) -> None:
    """Raises Inexpressible for degrees that accelerate does not combine with the ZeRO stage."""
    layout = job.layout
    if layout.cp > 1 and job.problem.stack.context == "ulysses":
        cure = "Ulysses is of DeepSpeed, not of FSDP; ask with context allgather or ring"
        raise Inexpressible("stack.context", "ulysses", cure)
    if layout.zero_stage < 3:
        for axis in ("tp", "cp"):
            if getattr(layout, axis) > 1:
                cure = f"{axis} goes with FSDP2; ask with zero_stage 3"
                raise Inexpressible(f"layout.{axis}", getattr(layout, axis), cure)
    if layout.zero_stage == 3 and layout.dp_shard * layout.cp == 1:
        cure = "FSDP needs ranks to shard over; ask with dp_shard 2 or more"
        raise Inexpressible("layout.zero_stage", 3, cure)
    if layout.zero_stage == 3 and layout.dp_replicate > 1 and layout.dp_shard == 1:
        cure = "replicas beside cp need dp_shard 2 or more (ParallelismConfig); ask with that"
        raise Inexpressible("layout.dp_replicate", layout.dp_replicate, cure)
    if layout.zero_stage == 2 and layout.dp_replicate > 1:
        devices = job.machines.devices_per_node
        if layout.dp_shard != devices:
            cure = f"HYBRID_SHARD_ZERO2 shards over a machine; ask with dp_shard {devices}"
            raise Inexpressible("layout.dp_shard", layout.dp_shard, cure)


def _distributed_type(job: Job) -> str:
    """Returns the value of distributed_type: FSDP, NO for a single device, or the kind of data
    parallelism for the vendor."""
    if job.layout.zero_stage:
        return "FSDP"
    if job.layout.num_devices == 1:
        return "NO"
    return _DATA_PARALLEL.get(job.problem.cluster.chip.vendor, "MULTI_GPU")


def _mixed_precision(job: Job) -> str:
    """Returns the value of mixed_precision: "no" for parameters without an fp32 copy, since
    mixed precision makes one of every parameter that is trained (accelerator.py and
    utils/fsdp_utils.py, where they upcast)."""
    workload = job.problem.workload
    has_copies = workload.master_weights and workload.precision != "fp32"
    return workload.precision if has_copies else "no"


def _fsdp(layout: Layout) -> dict[str, Any]:
    """Returns the members of fsdp_config, without that prefix: {"fsdp_version": 2, …}."""
    settings: dict[str, Any] = {
        **_fsdp_sharding(layout),
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_offload_params": layout.offload_optimizer,
        "fsdp_activation_checkpointing": layout.recompute == "full",
    }
    if layout.offload_activations:
        settings["fsdp_activation_checkpointing_offload"] = True
    return settings


def _fsdp_sharding(layout: Layout) -> dict[str, Any]:
    """Returns the settings for the ZeRO stage: FSDP2 is ZeRO 3, FSDP1 is written for ZeRO 2
    alone. FSDP1 takes fsdp_sharding_strategy, whatever fsdp_reshard_after_forward says: its
    variable is always set (utils/launch.py)."""
    if layout.zero_stage == 3:
        return {"fsdp_version": 2, "fsdp_reshard_after_forward": layout.reshard}
    strategy = "HYBRID_SHARD_ZERO2" if layout.dp_replicate > 1 else "SHARD_GRAD_OP"
    return {"fsdp_version": 1, "fsdp_sharding_strategy": strategy, "fsdp_use_orig_params": True}


def _parallelism(layout: Layout) -> dict[str, int]:
    """Returns the degrees as settings: {"parallelism_config.parallelism_config_tp_size": 2, …}."""
    axes = ("dp_replicate", "dp_shard", "tp", "cp")
    prefix = "parallelism_config.parallelism_config"
    return {f"{prefix}_{axis}_size": getattr(layout, axis) for axis in axes}


def _training_arguments(job: Job) -> dict[str, Any]:
    """Returns the TrainingArguments of transformers that the script needs: {"optim":
    "adamw_torch", …}."""
    layout = job.layout
    workload = job.problem.workload
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": layout.micro_batch,
        "gradient_accumulation_steps": job.num_micro_batches,
    }
    if job.problem.stack.id == "trl":
        # TRL turns both on unless told otherwise (trl 1.16.0, trainer/base_config.py).
        arguments |= {"gradient_checkpointing": False, "bf16": _mixed_precision(job) == "bf16"}
    # FSDP checkpoints activations itself (fsdp_activation_checkpointing).
    if layout.recompute == "full" and not layout.zero_stage:
        arguments["gradient_checkpointing"] = True
    if workload.optimizer in OPTIMIZERS:
        arguments["optim"] = OPTIMIZERS[workload.optimizer]
    if not workload.master_weights:
        arguments["dtype"] = _DTYPES[workload.precision]
    return arguments | launch_arguments(job.problem, layout, of_script=True)


def _notes(job: Job) -> Iterator[str]:
    """Yields what the training script must do because no setting does it."""
    layout = job.layout
    problem = job.problem
    workload = problem.workload
    yield (
        f"Sequences of {workload.seq_len} tokens, and a batch of {workload.global_batch}, are the"
        " training script's; per_device_train_batch_size and gradient_accumulation_steps are"
        " TrainingArguments of transformers."
    )
    if not workload.master_weights:
        yield (
            f"Load the model with dtype=torch.{_DTYPES[workload.precision]}, as --dtype does in"
            " scripts of transformers and TRL: mixed_precision is no on purpose, since FSDP keeps"
            " an fp32 copy of what it casts."
        )
    if layout.zero_stage == 2:
        yield (
            "fsdp_version is 1 on purpose: ZeRO 2 keeps parameters from one micro-batch to the next"
            " (SHARD_GRAD_OP), and FSDP2 drops them after every backward, which is ZeRO 3."
        )
    if workload.optimizer not in OPTIMIZERS:
        yield f"Pass the optimizer ({workload.optimizer}) to the Trainer."
    if layout.zero_stage and problem.gradient_bytes > problem.parameter_bytes:
        yield (
            "mixed_precision reduces gradients in 16 bits; for fp32, as predicted, pass"
            " FullyShardedDataParallelPlugin a mixed_precision_policy with reduce_dtype"
            " torch.float32."
        )
    if layout.offload_optimizer:
        yield "fsdp_offload_params keeps the shards of parameters in host memory too."
    if layout.tp > 1:
        yield "With tp the model is loaded with tp_plan='auto' of transformers."
    yield from launch_code(problem, layout)
