"""What Megatron-Core makes of a configuration of its own, whoever wrote it."""

from __future__ import annotations

from typing import Any

import torch
from judges.harness import require
from megatron.core import parallel_state
from megatron.core.models.hybrid.hybrid_layer_allocation import (
    parse_hybrid_pattern,
    validate_segment_layers,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.enums import LayerType
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from torch.testing._internal.distributed.fake_pg import FakeStore

ZERO_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
MOMENTS = {torch.float32: "adamw", torch.bfloat16: "adamw_bf16_moments", torch.uint8: "adamw_8bit"}
FP8_RECIPES = {"tensorwise": "fp8", "delayed": "fp8", "blockwise": "fp8", "mxfp8": "mxfp8"}


def mesh(
    config: TransformerConfig, devices: int, *, replicas: int, pipeline_inside: bool
) -> dict[str, Any]:
    """The degrees of the process groups that Megatron-Core makes, and the order of their ranks.
    `replicas` are those of the shards of optimizer states."""
    order = "tp-cp-ep-pp-dp" if pipeline_inside else "tp-cp-ep-dp-pp"
    store = FakeStore()
    torch.distributed.init_process_group("fake", rank=0, world_size=devices, store=store)
    try:
        parallel_state.initialize_model_parallel(
            config.tensor_model_parallel_size,
            config.pipeline_model_parallel_size,
            config.virtual_pipeline_model_parallel_size,
            context_parallel_size=config.context_parallel_size,
            hierarchical_context_parallel_sizes=config.hierarchical_context_parallel_sizes,
            expert_model_parallel_size=config.expert_model_parallel_size,
            num_distributed_optimizer_instances=replicas,
            expert_tensor_parallel_size=config.expert_tensor_parallel_size,
            order=order,
            create_gloo_process_groups=False,
        )
        sizes = {
            "tp": parallel_state.get_tensor_model_parallel_world_size(),
            "cp": parallel_state.get_context_parallel_world_size(),
            "dp": parallel_state.get_data_parallel_world_size(),
            "pp": parallel_state.get_pipeline_model_parallel_world_size(),
        }
        of_experts = {
            "ep": parallel_state.get_expert_model_parallel_world_size(),
            "etp": parallel_state.get_expert_tensor_parallel_world_size(),
        }
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
    return {
        **sizes,
        **(of_experts if config.num_moe_experts else {}),
        "replicas_of_shards": replicas,
        "placement": [axis for axis in order.split("-") if sizes.get(axis, 1) > 1],
    }


def model(config: TransformerConfig, vocab_size: int, pattern: str | None = None) -> dict[str, Any]:
    """The model, and how it is cut over stages, by the pattern of its layers where it has one."""
    virtual_stages = config.virtual_pipeline_model_parallel_size or 1
    chunks = range(config.pipeline_model_parallel_size * virtual_stages)
    return {
        "num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_query_groups,
        "num_experts": config.num_moe_experts or 0,
        "capacity_factor": config.moe_expert_capacity_factor,
        "vocab_size": vocab_size,
        "virtual_stages": virtual_stages,
        "layers_per_chunk": (
            _layers_of_pattern(config, pattern, virtual_stages)
            if pattern
            else [_layers(config, chunk, virtual_stages) for chunk in chunks]
        ),
    }


def _layers_of_pattern(config: TransformerConfig, pattern: str, virtual_stages: int) -> list[int]:
    """Of each chunk, as hybrid models cut their patterns (hybrid_layer_allocation.py)."""
    main = parse_hybrid_pattern(pattern).main_pattern or ""
    segments = main.split("|")
    chunks = config.pipeline_model_parallel_size * virtual_stages
    require(len(segments) == chunks, f"{pattern} has {len(segments)} chunks of {chunks}")
    return [len(validate_segment_layers(segment)) for segment in segments]


def _layers(config: TransformerConfig, chunk: int, virtual_stages: int) -> int:
    """Of a chunk, in the order of the model."""
    virtual_stage, stage = divmod(chunk, config.pipeline_model_parallel_size)
    layout = config.pipeline_model_parallel_layout
    if layout is not None:
        return layout.layout[stage][virtual_stage].count(LayerType.decoder)
    return get_num_layers_to_build(config, virtual_stage if virtual_stages > 1 else None, stage)


def memory(config: TransformerConfig) -> dict[str, Any]:
    """Recompute and offload of activations."""
    recompute = config.recompute_granularity or "none"
    layers = 0
    if recompute == "full" and config.recompute_method == "block":
        layers = config.recompute_num_layers
    return {
        "sequence_parallel": config.sequence_parallel,
        "recompute": recompute,
        "recompute_modules": sorted(config.recompute_modules) if recompute == "selective" else [],
        "recompute_layers": layers,
        "offload_activations": config.cpu_offloading or config.fine_grained_activation_offloading,
    }


def precision(config: TransformerConfig) -> str:
    if config.fp4:
        return "nvfp4"
    if config.fp8:
        return FP8_RECIPES[config.fp8_recipe]
    return "bf16" if config.bf16 else "fp16" if config.fp16 else "fp32"


def optimizer(config: Any) -> str:
    """Of an OptimizerConfig."""
    if config.optimizer == "adam":
        return MOMENTS[config.exp_avg_dtype]
    return {"sgd": "sgd_momentum"}.get(config.optimizer, config.optimizer)


def require_trainable(config: TransformerConfig, micro_batches: int) -> None:
    """What Megatron-Core finds out only once it trains."""
    tp = config.tensor_model_parallel_size
    require(
        not config.num_moe_experts or tp == 1 or config.sequence_parallel,
        "experts beside tensor parallelism need sequence parallelism (moe_layer.py)",
    )
    for field in ("num_attention_heads", "num_query_groups"):
        count = getattr(config, field)
        require(count % tp == 0 or tp % count == 0, f"{field} {count} over tensor parallel {tp}")
    if config.virtual_pipeline_model_parallel_size:
        pp, group = config.pipeline_model_parallel_size, config.microbatch_group_size_per_vp_stage
        require(
            pp <= group <= micro_batches and not 0 < micro_batches % group < pp,
            f"{micro_batches} micro-batches in groups of {group} over {pp} stages (schedules.py)",
        )
