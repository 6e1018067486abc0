"""Megatron-Bridge's own reading of overrides, and its checks, on the values that its recipes for
pre-training share, or those for adapters."""

from __future__ import annotations

import os
import sys
from typing import Any

from judges import megatron_core
from judges.harness import main
from judges.shims import SHIMS

SHIMS["transformer_engine"].apply()
SHIMS["bridge"].apply()

from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.models.hybrid.hybrid_provider import HybridModelProvider
from megatron.bridge.models.mla_provider import MLAModelProvider
from megatron.bridge.models.qwen_vl.qwen3_vl_provider import Qwen3VLModelProvider
from megatron.bridge.models.t5_provider import T5ModelProvider

models = sys.modules["megatron.bridge.models"]
models.GPTModelProvider = GPTModelProvider
models.T5ModelProvider = T5ModelProvider

from megatron.bridge.recipes.common import _peft_common, _pretrain_common
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import ConfigContainer, runtime_config_update
from megatron.bridge.training.mixed_precision import bf16_mixed
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides


def judge(configuration: dict[str, Any]) -> dict[str, Any]:
    os.environ["WORLD_SIZE"] = str(configuration["devices"])
    words = configuration["arguments"]
    config = process_config_with_overrides(recipe(words), cli_overrides=words)
    runtime_config_update(config)
    model = config.model
    of_rank = config.train.global_batch_size // config.data_parallel_size
    megatron_core.require_trainable(model, of_rank // config.train.micro_batch_size)
    mesh = megatron_core.mesh(
        model,
        configuration["devices"],
        replicas=config.ddp.num_distributed_optimizer_instances,
        pipeline_inside=config.dist.use_tp_pp_dp_mapping,
    )
    return {
        **mesh,
        **megatron_core.model(
            model, model.vocab_size, getattr(model, "hybrid_layer_pattern", None)
        ),
        **megatron_core.memory(model),
        "seq_len": model.seq_length,
        "global_batch": config.train.global_batch_size,
        "micro_batch": config.train.micro_batch_size,
        "zero_stage": zero_stage(config),
        "offload_optimizer": config.optimizer.optimizer_cpu_offload,
        "precision": megatron_core.precision(model),
        "optimizer": megatron_core.optimizer(config.optimizer),
        "rank_of_adapters": config.peft.dim if config.peft else None,
    }


def recipe(words: list[str]) -> ConfigContainer:
    """A recipe of a small model, of the kind that the overrides are for."""
    has_adapters = any(word.startswith("+peft.") for word in words)
    config = _peft_common() if has_adapters else _pretrain_common()
    config.model = provider(words)(num_layers=1, hidden_size=128, num_attention_heads=1)
    config.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
    config.mixed_precision = bf16_mixed()
    return config


def provider(words: list[str]) -> type:
    """What makes the model that overrides are for."""
    if any(word.startswith("model.hybrid_layer_pattern=") for word in words):
        return HybridModelProvider
    if any(word.startswith("model.freeze_vision_model=") for word in words):
        return Qwen3VLModelProvider
    return MLAModelProvider if "model.multi_latent_attention=true" in words else GPTModelProvider


def zero_stage(config: ConfigContainer) -> int:
    if config.ddp.use_megatron_fsdp:
        return megatron_core.ZERO_STAGES[config.ddp.data_parallel_sharding_strategy]
    return int(config.ddp.use_distributed_optimizer)


main(judge, "device", "process_group")
