"""The settings of the Trainer of transformers that choose kernels, as fields of a stack.

A *switch* is a choice of software that no layout makes, such as a kernel. A *reservation* is a
remark that a setting could matter and is not taken into account.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.formats.launch.switch_settings import set_switches, values_of_switches
from service.formats.launch.trainer.trainer_settings import CONTEXT
from service.formats.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class _KernelSetting:
    """A setting of the Trainer that chooses a kernel, which is a switch of a stack."""

    defaults: tuple[str, ...]
    """Values that choose the stack's own default kernel."""
    answered_by: str = ""
    """The member of a request that says the same."""
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields of the stack by values that no switch has."""
    counted_as: Mapping[str, str] = field(default_factory=dict)
    """By value that is not modelled, the value as which it counts."""


_SETTINGS: Mapping[str, _KernelSetting] = {
    "attn_implementation": _KernelSetting(
        ("sdpa", "auto"),
        "stack.attention_kernel",
        fields={"flash_attention_4": {"attention_kernel": "flash4"}},
        counted_as={
            "xformers": "flash_attention_2",
            "flash_attention_2_hub": "flash_attention_2",
        },
    ),
    "use_liger_kernel": _KernelSetting(("false",), "stack.loss"),
    "torch_compile": _KernelSetting(("false", "auto"), "stack.launch"),
    "tiled_mlp": _KernelSetting(("false",)),
    "loss_type": _KernelSetting(
        ("nll",), "stack.loss", fields={"chunked_nll": {"loss": "fused_linear"}}
    ),
}


def read_switches(
    settings: Mapping[str, Any],
    arguments: Settings,
    stack: str,
    release: str,
    layout: Mapping[str, Any],
    assumed: list[str],
) -> dict[str, Any]:
    """Returns the fields of a stack that settings of the Trainer, and of a document beside it,
    decide. Adds a reservation in `arguments` for a kernel that no switch has. Adds a sentence
    to `assumed` for a kernel that is counted as another."""
    switch_settings = dict(settings)
    fields: dict[str, Any] = {}
    switch_values = values_of_switches(stack)
    for name, kernel in _SETTINGS.items():
        value = str(settings.get(name)).lower()
        if settings.get(name) is None or value in switch_values.get(name, ()):
            continue  # `set_switches` below reads it
        del switch_settings[name]  # it would be refused: no switch of the stack has this value
        stand_in = kernel.counted_as.get(value)
        if value in kernel.fields:
            fields |= kernel.fields[value]
        elif stand_in in switch_values.get(name, ()):
            assumed.append(f"{name} {settings[name]} is counted as {stand_in}")
            switch_settings[name] = stand_in
        elif value not in kernel.defaults:  # a default leaves the stack's own kernel
            answer = kernel.answered_by
            cure = f"give {answer}" if answer else "leave it out, which takes more memory"
            reason = "this kernel is not described"
            arguments.add_reservation(name, reason, cure, answered_by=answer)
    # A ZeRO stage that is not known counts as 3.
    fields = set_switches(switch_settings, stack, release, {"zero_stage": 3, **layout}) | fields
    experts = settings.get("experts_implementation")
    if experts is not None:
        fields["experts_at_once"] = str(experts).lower() != "eager"
    return fields


def lifted_rules(
    arguments: Settings, layout: Mapping[str, Any], *, is_tool: bool
) -> dict[str, Any]:
    """Returns the fields of the stack for rules that do not bind the Trainer or a tool, as False,
    and the way of context parallelism where a tool has its own.
    The Trainer offloads activations without checkpoints, however the model is sharded (trl 1.16.0
    models/activation_offloading.py). A tool (`is_tool`) has its own Ulysses, which runs beside
    plain replicas."""
    lifted: dict[str, Any] = {}
    context = arguments.text(CONTEXT)
    if context is not None:
        lifted["context"] = context
    if arguments.boolean("activation_offloading"):
        lifted["offloads_checkpoints"] = False
    if is_tool and layout.get("cp", 1) > 1 and layout.get("zero_stage") == 0:
        lifted["shards_over_context_and_experts"] = False
    return lifted
