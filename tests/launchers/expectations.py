"""What a framework must have understood of a job, in the words in which its judge answers."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

from models.spec.layout import Layout
from models.spec.switches import applies, switches_of
from service.formats.launch.job import Job, LaunchConfiguration
from service.formats.launch.megatron.patterns import has_pattern


def megatron(job: Job, _: LaunchConfiguration) -> dict[str, Any]:
    layout = job.layout
    return {
        **_degrees(job),
        "replicas_of_shards": layout.dp_replicate if layout.zero_stage else 1,
        "placement": _order(layout),
        **_model(job),
        "virtual_stages": layout.virtual_stages,
        **_batch(job),
        "sequence_parallel": layout.sequence_parallel,
        **_recompute(job),
        **_megatron_layers(job),
        "zero_stage": layout.zero_stage,
        "offload_activations": layout.offload_activations,
        "offload_optimizer": layout.offload_optimizer,
        "precision": job.problem.workload.precision,
        "optimizer": job.problem.workload.optimizer,
    }


def megatron_bridge(job: Job, configuration: LaunchConfiguration) -> dict[str, Any]:
    lora = job.problem.workload.lora
    return {**megatron(job, configuration), "rank_of_adapters": lora and lora.rank}


def _megatron_layers(job: Job) -> dict[str, Any]:
    """The layers of each chunk. In a pattern a mixer and its network are two."""
    chunks = list(job.layers_per_chunk)
    model = job.problem.architecture
    if not has_pattern(model):
        return {"layers_per_chunk": chunks}
    ends = [0, *accumulate(chunks)]
    blocks = [layer.blocks for layer in model.layers]
    counts = [sum(blocks[start:end]) for start, end in pairwise(ends)]
    recomputed = job.layout.recompute_layers * max(blocks)
    return {
        "num_layers": sum(blocks),
        "layers_per_chunk": counts,
        "recompute_layers": recomputed,
    }


def _degrees(job: Job) -> dict[str, int]:
    layout = job.layout
    of_experts = {"ep": layout.ep, "etp": layout.etp}
    return {
        "tp": layout.tp,
        "pp": layout.pp,
        "cp": layout.cp,
        "dp": layout.dp,
        **(of_experts if job.problem.architecture.is_moe else {}),
    }


def _order(layout: Layout) -> list[str]:
    """The axes that have more than one rank, innermost first; shards and replicas are one axis."""
    active = [axis for axis in layout.placement if getattr(layout, axis) > 1]
    return list(dict.fromkeys("dp" if axis.startswith("dp_") else axis for axis in active))


def _model(job: Job) -> dict[str, Any]:
    model = job.problem.architecture
    attention = model.attentions[0]
    experts = {layer.moe.num_experts for layer in model.kinds if layer.moe} or {0}
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_heads": attention.num_attention_heads,
        "num_kv_heads": attention.num_attention_heads
        if attention.is_mla
        else attention.num_key_value_heads,
        "num_experts": experts.pop(),
        "capacity_factor": _capacity(job),
        "vocab_size": model.vocab_size,
    }


def _capacity(job: Job) -> float | None:
    return job.problem.workload.capacity_factor if job.problem.architecture.is_moe else None


def _batch(job: Job) -> dict[str, int]:
    workload = job.problem.workload
    return {
        "seq_len": workload.seq_len,
        "global_batch": workload.global_batch,
        "micro_batch": job.layout.micro_batch,
    }


def _recompute(job: Job) -> dict[str, Any]:
    layout = job.layout
    modules = layout.recompute_modules or job.problem.stack.selective[0]
    is_selective = layout.recompute == "selective"
    return {
        "recompute": layout.recompute,
        "recompute_modules": sorted(job.problem.effective_modules(modules)) if is_selective else [],
        "recompute_layers": layout.recompute_layers,
    }


def deepspeed(job: Job, _: LaunchConfiguration) -> dict[str, Any]:
    layout = job.layout
    return {
        **{axis: getattr(layout, axis) for axis in ("pp", "tp", "cp", "ep", "dp")},
        "global_batch": job.problem.workload.global_batch,
        "micro_batch": layout.micro_batch,
        "num_micro_batches": job.num_micro_batches,
        "zero_stage": layout.zero_stage,
        "offload_optimizer": layout.offload_optimizer,
        "offload_activations": layout.offload_activations,
        "precision": job.problem.workload.precision,
        "optimizer": _named(job, "adamw", "muon", "sgd_momentum"),
    }


def accelerate(job: Job, _: LaunchConfiguration) -> dict[str, Any]:
    layout = job.layout
    return {
        **{axis: getattr(layout, axis) for axis in ("dp_replicate", "dp_shard", "tp", "cp")},
        "micro_batch": layout.micro_batch,
        "num_micro_batches": job.num_micro_batches,
        "optimizer": _named(job, "adamw", "adamw_8bit"),
        "precision": job.problem.workload.precision,
        "launch": job.problem.stack.launch,
        "zero_stage": layout.zero_stage,
        **({"reshard": layout.reshard} if layout.zero_stage == 3 else {}),
        "recompute": layout.recompute,
        "offload_optimizer": layout.offload_optimizer,
        "offload_activations": layout.offload_activations,
    }


def _named(job: Job, *names: str) -> str | None:
    """The optimizer, where the format has a name for it; others are built by the script."""
    optimizer = job.problem.workload.optimizer
    return optimizer if optimizer in names else None


def torchtitan(job: Job, configuration: LaunchConfiguration) -> dict[str, Any]:
    layout = job.layout
    workload = job.problem.workload
    stack = job.problem.stack
    reshards = layout.zero_stage == 3 and layout.reshard
    found: dict[str, Any] = {
        **{axis: getattr(layout, axis) for axis in ("pp", "cp", "tp", "ep")},
        "dp_replicate": layout.dp_replicate,
        "dp_shard": layout.dp_shard,
        **_batch(job),
        "num_micro_batches": job.num_micro_batches,
        "layers_per_chunk": list(job.layers_per_chunk),
        "sequence_parallel": layout.sequence_parallel or layout.tp == 1,
        "reshards": ("always" if reshards else "never") if layout.zero_stage else "default",
        "recompute": layout.recompute,
        "offload_optimizer": layout.offload_optimizer,
        "parameters": "float32" if workload.precision == "fp32" else "bfloat16",
        "optimizer": workload.optimizer,
        "compiles_model": stack.launch != "eager",
        "compiles_loss": stack.loss == "compiled",
        "captures": stack.launch == "graph",
        "overlap_tensor": stack.overlap_tensor and _means_something(job, "overlap_tensor"),
        "balances": job.problem.architecture.is_moe and workload.routing == "balanced",
        "loss_chunks": stack.loss_chunks,
    }
    if layout.pp > 1:
        found["schedule"] = layout.schedule
    if "config" not in configuration.placeholders:
        found["is_low_precision"] = workload.precision in ("fp8", "mxfp8", "nvfp4")
    return found


def _means_something(job: Job, field: str) -> bool:
    """Whether a switch of the stack does, for the layout."""
    switches = [switch for switch in switches_of(job.problem.stack) if switch.field == field]
    return any(applies(switch, job.problem, job.layout) for switch in switches)


def maxtext(job: Job, _: LaunchConfiguration) -> dict[str, Any]:
    layout = job.layout
    workload = job.problem.workload
    model = job.problem.architecture
    is_sharded = layout.zero_stage == 3
    return {
        **{axis: getattr(layout, axis) for axis in ("tp", "cp", "pp", "ep")},
        "replicas": layout.dp_replicate if is_sharded else layout.dp,
        "shards": layout.dp_shard if is_sharded else 1,
        "seq_len": workload.seq_len,
        "global_batch": workload.global_batch,
        "micro_batch_of_all": layout.micro_batch * layout.dp,
        "layers_per_chunk": list(job.layers_per_chunk),
        "recompute": layout.recompute,
        "recompute_modules": _named_recompute(job),
        "offload_activations": layout.offload_activations,
        "model": [model.num_layers, model.hidden_size, model.vocab_size],
        "capacity_factor": _capacity(job),
        "shards_optimizer": layout.zero_stage == 1,
        "offload_optimizer": layout.offload_optimizer,
        "precision": workload.precision,
        "optimizer": workload.optimizer,
    }


def _named_recompute(job: Job) -> list[str]:
    """The recomputed modules whose tensors have names in MaxText."""
    modules = set(_recompute(job)["recompute_modules"])
    named = {"core_attn", "out_proj", "mlp", "mlp_gate", "moe", "mla_up_proj"}
    return sorted(modules & (named - {"mlp_gate"} if modules & {"mlp", "moe"} else named))
