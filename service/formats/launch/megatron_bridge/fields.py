"""The fields of Megatron-Bridge's configurations, and what Megatron-LM calls them (fields/ has the
table).

Fields are dotted: `model.tensor_model_parallel_size` is of the section `model`. Arguments are those
of Megatron-LM's parser, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from service.formats.launch.facts import facts
from service.formats.launch.megatron.fields import flag_of_argument

RELEASE = "0.6.2"
_TABLE = f"megatron_bridge_{RELEASE}"

RENAMED: Mapping[str, str] = {
    "num_experts": "model.num_moe_experts",
    "decoder_first_pipeline_num_layers": "model.num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "model.num_layers_in_last_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank": "model.virtual_pipeline_model_parallel_size",
    "swiglu": "model.gated_linear_unit",
    "pad_vocab_size": "model.should_pad_vocab",
    "use_distributed_optimizer": "ddp.use_distributed_optimizer",
    "use_megatron_fsdp": "ddp.use_megatron_fsdp",
    "data_parallel_sharding_strategy": "ddp.data_parallel_sharding_strategy",
    "num_distributed_optimizer_instances": "ddp.num_distributed_optimizer_instances",
    "use_tp_pp_dp_mapping": "dist.use_tp_pp_dp_mapping",
    "use_torch_fsdp2": "dist.use_torch_fsdp2",
    "ckpt_format": "checkpoint.ckpt_format",
    "micro_batch_size": "train.micro_batch_size",
    "global_batch_size": "train.global_batch_size",
    "optimizer": "optimizer.optimizer",
    "use_precision_aware_optimizer": "optimizer.use_precision_aware_optimizer",
    "exp_avg_dtype": "optimizer.exp_avg_dtype",
    "exp_avg_sq_dtype": "optimizer.exp_avg_sq_dtype",
    "optimizer_cpu_offload": "optimizer.optimizer_cpu_offload",
}
"""The fields of arguments that are not called alike in the section `model`."""
PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "bf16_mixed": {"bf16": "True"},
    "fp16_mixed": {"fp16": "True", "grad_reduce_in_fp32": "False"},
    "bf16_with_fp8_delayed_scaling_mixed": {
        "bf16": "True",
        "fp8": "hybrid",
        "fp8_recipe": "delayed",
        "fp8_param_gather": "True",
    },
    "bf16_with_fp8_current_scaling_mixed": {
        "bf16": "True",
        "fp8": "hybrid",
        "fp8_recipe": "tensorwise",
        "fp8_param_gather": "True",
    },
    "bf16_with_fp8_subchannel_scaling_mixed": {
        "bf16": "True",
        "fp8": "hybrid",
        "fp8_recipe": "blockwise",
    },
    "bf16_with_mxfp8_mixed": {
        "bf16": "True",
        "fp8": "e4m3",
        "fp8_recipe": "mxfp8",
        "fp8_param_gather": "True",
    },
    "bf16_with_nvfp4_mixed": {"bf16": "True", "fp4": "e2m1", "fp8_param_gather": "True"},
}
"""The mixed precisions that have a name, by the fields that they set (training/mixed_precision.py).
Of nvfp4 it is fp4_param_gather that is on, which saves the same copies."""


def sections() -> Mapping[str, Mapping[str, Any]]:
    """The default of every field, by section and name."""
    found: Mapping[str, Mapping[str, Any]] = facts(_TABLE)["sections"]
    return found


def is_field(dotted: str) -> bool:
    section, _, name = dotted.partition(".")
    return name.partition(".")[0] in sections().get(section, {})


@cache
def argument_of_field() -> Mapping[str, str]:
    """The argument that says the same as a field, by the field."""
    found = {field: argument for argument, field in RENAMED.items()}
    for name in sections()["model"]:
        if name in flag_of_argument() and name not in RENAMED:
            found[f"model.{name}"] = name
    return found


def field_of_argument(argument: str) -> str:
    return RENAMED.get(argument, f"model.{argument}")
