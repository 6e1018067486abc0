"""What each framework calls the knobs of a layout, and the global batch: the setting that a person
would change first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.formats.launch.job import in_words

_MEGATRON = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "layers_per_chunk": "pipeline_model_parallel_layout",
    "balanced": "pipeline_model_parallel_layout",
    "placement": "use_tp_pp_dp_mapping",
    "recompute": "recompute_granularity",
    "recompute_modules": "recompute_modules",
    "recompute_layers": "recompute_num_layers",
    "sequence_parallel": "sequence_parallel",
    "offload_activations": "cpu_offloading_num_layers",
}
"""Attributes of Megatron-Core's own configuration."""


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


KNOB_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "megatron": {
        **{knob: _flag(name) for knob, name in _MEGATRON.items()},
        "micro_batch": "--micro-batch-size",
        "global_batch": "--global-batch-size",
        "schedule": "--num-virtual-stages-per-pipeline-rank",
        "virtual_stages": "--num-virtual-stages-per-pipeline-rank",
        "zero_stage": "--use-distributed-optimizer",
        "dp_replicate": "--num-distributed-optimizer-instances",
        "offload_optimizer": "--optimizer-cpu-offload",
    },
    "megatron-bridge": {
        **{knob: f"model.{name}" for knob, name in _MEGATRON.items()},
        "placement": "dist.use_tp_pp_dp_mapping",
        "micro_batch": "train.micro_batch_size",
        "global_batch": "train.global_batch_size",
        "schedule": "model.virtual_pipeline_model_parallel_size",
        "virtual_stages": "model.virtual_pipeline_model_parallel_size",
        "zero_stage": "ddp.use_distributed_optimizer",
        "dp_replicate": "ddp.num_distributed_optimizer_instances",
        "offload_activations": "model.cpu_offloading_num_layers",
        "offload_optimizer": "optimizer.optimizer_cpu_offload",
    },
    "torchtitan": {
        "tp": "parallelism.tensor_parallel_degree",
        "pp": "parallelism.pipeline_parallel_degree",
        "cp": "parallelism.context_parallel_degree",
        "ep": "parallelism.expert_parallel_degree",
        "dp_shard": "parallelism.data_parallel_shard_degree",
        "dp_replicate": "parallelism.data_parallel_replicate_degree",
        "micro_batch": "training.local_batch_size",
        "global_batch": "training.global_batch_size",
        "schedule": "parallelism.pipeline_parallel_schedule",
        "virtual_stages": "parallelism.pipeline_parallel_layers_per_stage",
        "zero_stage": "parallelism.fsdp_reshard_after_forward",
        "reshard": "parallelism.fsdp_reshard_after_forward",
        "sequence_parallel": "parallelism.enable_sequence_parallel",
        "recompute": "activation_checkpoint",
        "offload_optimizer": "training.enable_cpu_offload",
    },
    "maxtext": {
        "tp": "ici_tensor_parallelism",
        "pp": "ici_pipeline_parallelism",
        "cp": "ici_context_parallelism",
        "ep": "ici_expert_parallelism",
        "dp_shard": "ici_fsdp_parallelism",
        "dp_replicate": "dcn_data_parallelism",
        "micro_batch": "per_device_batch_size",
        "virtual_stages": "num_layers_per_pipeline_stage",
        "zero_stage": "shard_optimizer_over_data",
        "recompute": "remat_policy",
        "offload_activations": "remat_policy",
        "offload_optimizer": "optimizer_memory_host_offload",
    },
    "deepspeed": {
        "tp": "tensor_parallel.autotp_size",
        "pp": "pipeline.stages",
        "cp": "sequence_parallel_size",
        "ep": "expert_parallel.autoep_size",
        "micro_batch": "train_micro_batch_size_per_gpu",
        "global_batch": "train_batch_size",
        "zero_stage": "zero_optimization.stage",
        "recompute": "activation_checkpointing",
        "offload_activations": "activation_checkpointing.cpu_checkpointing",
        "offload_optimizer": "zero_optimization.offload_optimizer.device",
    },
    "accelerate": {
        "tp": "parallelism_config.parallelism_config_tp_size",
        "cp": "parallelism_config.parallelism_config_cp_size",
        "dp_shard": "parallelism_config.parallelism_config_dp_shard_size",
        "dp_replicate": "parallelism_config.parallelism_config_dp_replicate_size",
        "micro_batch": "per_device_train_batch_size",
        "zero_stage": "fsdp_config.fsdp_reshard_after_forward",
        "reshard": "fsdp_config.fsdp_reshard_after_forward",
        "recompute": "fsdp_config.fsdp_activation_checkpointing",
        "offload_optimizer": "fsdp_config.fsdp_offload_params",
    },
}
"""By format and knob. A knob that is not listed has no setting of its own there."""
_COUNTS = (
    "tp",
    "pp",
    "cp",
    "ep",
    "etp",
    "dp_shard",
    "dp_replicate",
    "micro_batch",
    "global_batch",
    "virtual_stages",
)
_COUNTED_OTHERWISE = {
    "torchtitan": ("virtual_stages",),
    "maxtext": ("virtual_stages", "micro_batch", "dp_shard", "dp_replicate"),
}
"""Knobs whose setting counts something else."""
_SCHEDULE_OF_CHUNKS = ("megatron", "megatron-bridge")
"""Formats in which the schedule follows from virtual stages."""


def alternatives_in_settings(format_: str, knob: str, values: Sequence[Any]) -> str | None:
    """Values of a knob, or of the global batch, of which each will do, as settings that can be
    written: "--tensor-model-parallel-size 1 or 2". None where no single setting says them."""
    setting = KNOB_SETTINGS[format_].get(knob)
    if setting is None:
        return None
    if knob == "schedule" and format_ in _SCHEDULE_OF_CHUNKS:
        return f"without {setting}" if "1f1b" in values else None
    if knob in _COUNTS and knob not in _COUNTED_OTHERWISE.get(format_, ()):
        return f"{setting} {in_words(sorted(values))}"
    if knob in ("sequence_parallel", "offload_optimizer") and len(values) == 1:
        if format_ == "megatron":
            return setting if values[0] else f"without {setting}"
        return f"{setting} {str(values[0]).lower()}" if knob == "sequence_parallel" else None
    return None
