"""The flags of `accelerate launch`, in the names of its document (accelerate 1.15.0, commands/
launch.py). The *document* is accelerate's YAML file of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.formats.launch.trainer.arguments import flags_of
from service.formats.settings.stop import Stop

_TYPE_OF_SWITCH = {
    "use_fsdp": "FSDP",
    "use_deepspeed": "DEEPSPEED",
    "use_megatron_lm": "MEGATRON_LM",
    "multi_gpu": "MULTI_GPU",
}
_EXCLUSIVE = ("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp")
_SWITCHES = {
    *_TYPE_OF_SWITCH,
    "cpu", "tpu", "use_parallelism_config", "module", "m", "no_python", "quiet", "q", "debug",
    "same_network", "enable_cpu_affinity", "dynamo_use_fullgraph", "dynamo_use_dynamic",
    "dynamo_use_regional_compilation", "tpu_cluster", "no_tpu_cluster", "tpu_use_sudo",
    "downcast_bf16",
}  # fmt: skip
"""Flags without a value."""
_DEEPSPEED_KEYS = (
    "deepspeed_", "zero_stage", "zero3_", "offload_optimizer_", "offload_param_",
    "gradient_accumulation_steps", "gradient_clipping",
)  # fmt: skip
_CONFIG_OF_PREFIX = {
    "fsdp_": "fsdp_config",
    "parallelism_config_": "parallelism_config",
    "megatron_lm_": "megatron_lm_config",
    "fp8_": "fp8_config",
    "dynamo_": "dynamo_config",
}
"""By prefix of a flag, the object of the document that holds it."""


def launcher_settings(words: Sequence[str]) -> dict[str, Any]:
    """Returns the settings that the words between `accelerate launch` and the script give:
    {"fsdp_config.fsdp_version": "2"} for --fsdp_version 2."""
    flags = _flags(words)
    # -m says only that the script is a module, and "" is the name of a bare --.
    return dict(_in_document(name, value) for name, value in flags.items() if name not in ("m", ""))


def stops_of(words: Sequence[str]) -> list[Stop]:
    """Returns the stop where several flags between `accelerate launch` and the script each choose
    the kind of training (_validate_launch_command)."""
    given = _flags(words)
    kinds = [name for name in _EXCLUSIVE if name in given]
    if len(kinds) < 2:
        return []
    others = " and ".join(f"--{name}" for name in kinds[:-1])
    return [
        Stop(
            setting=f"--{kinds[-1]}",
            value=None,
            rule=f"does not go with {others}: accelerate stops where there are two of these",
            source="accelerate 1.15.0: commands/launch.py, _validate_launch_command",
            cure="keep one",
            hides_layout=True,
        )
    ]


def _flags(words: Sequence[str]) -> dict[str, str]:
    return flags_of([word for word in words if word != "launch"], _SWITCHES)


def _in_document(name: str, value: str) -> tuple[str, str]:
    """Returns the name and the value that a flag of `accelerate launch` has in its document:
    ("distributed_type", "FSDP") for --use_fsdp, ("fsdp_config.fsdp_version", "2") for
    --fsdp_version 2."""
    if name in _TYPE_OF_SWITCH:
        return "distributed_type", _TYPE_OF_SWITCH[name]
    for prefix, config in _CONFIG_OF_PREFIX.items():
        if name.startswith(prefix):
            return f"{config}.{name}", value
    if name.startswith(_DEEPSPEED_KEYS):
        return f"deepspeed_config.{name}", value
    return name, value


def with_prefixes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings whose keys in fsdp_config and dynamo_config all have the prefix fsdp_ or
    dynamo_, which a document may leave out (commands/launch.py, _validate_launch_command).
    dynamo_backend alone is that of dynamo_config (commands/config/config_args.py)."""
    prefixed: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "dynamo_backend":
            prefixed[f"dynamo_config.{name}"] = value
            continue
        config, dot, key = name.partition(".")
        prefix = {"fsdp_config": "fsdp_", "dynamo_config": "dynamo_"}.get(config, "")
        is_bare = bool(dot) and not key.startswith(prefix)
        prefixed[f"{config}.{prefix}{key}" if is_bare else name] = value
    return prefixed
