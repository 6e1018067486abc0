"""The YAML of axolotl 0.21.0 (utils/schemas), which starts accelerate and the Trainer of
transformers, in the names of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RENAMED = {
    "base_model": "model_name_or_path",
    "sequence_len": "max_length",
    "micro_batch_size": "per_device_train_batch_size",
    "optimizer": "optim",
    "num_epochs": "num_train_epochs",
    "dp_shard_size": "parallelism_config.parallelism_config_dp_shard_size",
    "dp_replicate_size": "parallelism_config.parallelism_config_dp_replicate_size",
    "tensor_parallel_size": "parallelism_config.parallelism_config_tp_size",
    "context_parallel_size": "parallelism_config.parallelism_config_cp_size",
    "fsdp_version": "fsdp_config.fsdp_version",
}
KEYS = (*_RENAMED, "adapter", "lora_r", "lora_alpha", "lora_target_linear", "sample_packing")
"""Keys that tell of axolotl."""
_ADAPTERS = ("lora", "qlora")
_MARKS = ("base_model", "micro_batch_size", "sequence_len")
"""Keys of which each is axolotl's alone."""


def in_names_of_accelerate(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a document, by dotted names, as accelerate and transformers call them. Those
    of a document that is none of axolotl are left as they are."""
    if not any(mark in flat for mark in _MARKS):
        return dict(flat)
    found = {_RENAMED.get(name, name): value for name, value in flat.items()}
    if found.get("adapter") in _ADAPTERS:
        del found["adapter"]
        found["use_peft"] = True
    if found.get("lora_target_linear") is True:
        del found["lora_target_linear"]
        found["lora_target_modules"] = "all-linear"
    if found.get("bf16") == "auto":
        found["bf16"] = True
    if any(name.startswith("fsdp_config.") for name in found):
        found.setdefault("distributed_type", "FSDP")
    return found
