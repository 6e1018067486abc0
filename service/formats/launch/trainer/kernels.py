"""The settings of the Trainer that choose kernels, as fields of a stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.formats.launch.switch_settings import set_switches, values_of_switches
from service.formats.settings.settings import Settings

_KERNELS = ("attn_implementation", "use_liger_kernel", "torch_compile", "tiled_mlp", "loss_type")
"""Settings that choose kernels, which are switches of a stack."""
_USUAL: Mapping[str, tuple[str, ...]] = {
    "attn_implementation": ("sdpa", "auto"),
    "use_liger_kernel": ("false",),
    "torch_compile": ("false", "auto"),
    "tiled_mlp": ("false",),
    "loss_type": ("nll",),
}
"""Their values that are what a stack does anyway."""
_GIVEN_AS = {
    "attn_implementation": "stack.attention_kernel",
    "use_liger_kernel": "stack.loss",
    "torch_compile": "stack.launch",
    "tiled_mlp": "",
    "loss_type": "stack.loss",
}
"""The members of a request that say the same."""
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "flash_attention_4": {"attention_kernel": "flash4"},
    "chunked_nll": {"loss": "fused_linear"},
}
"""Kernels that no switch names, as fields of the stack."""
_LIKE_KERNELS = {
    "xformers": "flash_attention_2",
    "flash_attention_2_hub": "flash_attention_2",
}
"""Kernels that are counted as others."""


def read_switches(
    settings: Mapping[str, Any],
    arguments: Settings,
    stack: str,
    release: str,
    layout: Mapping[str, Any],
    assumed: list[str],
) -> dict[str, Any]:
    """Fields of a stack as settings of the Trainer and of a document beside it have its switches.
    A kernel that no switch names is reserved among the `arguments`; what is counted as another
    goes into `assumed`."""
    given = dict(settings)
    fields: dict[str, Any] = {}
    known = values_of_switches(stack)
    for name in _KERNELS:
        value = str(given.get(name)).lower()
        if given.get(name) is None or value in known.get(name, ()):
            continue
        written = given.pop(name)
        other = _LIKE_KERNELS.get(value)
        if value in _FIELDS:
            fields |= _FIELDS[value]
        elif other in known.get(name, ()):
            assumed.append(f"{name} {written} is counted as {other}")
            given[name] = other
        elif value not in _USUAL[name]:
            answer = _GIVEN_AS[name]
            cure = f"give {answer}" if answer else "leave it out, which takes more memory"
            reason = "this kernel is not described"
            arguments.reserve(name, reason, cure, answered_by=answer)
    switches = set_switches(given, stack, release, {"zero_stage": 3, **layout}) | fields
    experts = given.get("experts_implementation")
    if experts is not None:
        switches["experts_at_once"] = str(experts).lower() != "eager"
    return switches


def lifted_rules(
    arguments: Settings, layout: Mapping[str, Any], *, is_tool: bool
) -> dict[str, Any]:
    """Rules of a stack that do not hold for what the Trainer or a tool does itself. The Trainer
    sends whatever backward needs to the host, with checkpoints or without, however the model is
    sharded (trl 1.16.0 models/activation_offloading.py). Tools with a Ulysses of their own have it
    beside replicas too."""
    lifted: dict[str, Any] = {}
    if arguments.boolean("activation_offloading"):
        lifted["offloads_checkpoints"] = False
    if is_tool and layout.get("cp", 1) > 1 and layout.get("zero_stage") == 0:
        lifted["shards_over_context_and_experts"] = False
    return lifted
