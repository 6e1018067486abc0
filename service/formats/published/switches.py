"""The switches of published runs (`training.switches`): what a run says of its kernels and its
overlap, in the fields of a stack.

A *switch* is a choice of software that no layout makes, such as a kernel. The *stack* is the
training software. A *reader* turns the value of a switch into fields of `Stack`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from models.errors import Invalid
from models.spec.stack import Stack

Changes = dict[str, Any]

_DISPATCHERS = {
    "allgather": "allgather",
    "alltoall": "alltoall",
    "deepep": "deduplicated",
    "hybridep": "deduplicated",
}
_ATTENTION_KERNELS = {
    "unfused": "unfused",
    "fused-softmax": "fused_softmax",
    "flash-1": "flash1",
    "flash-2": "flash2",
}
_FLASH_KERNELS = {"flash": "pytorch", "flash-3": "auto", "flash-4": "auto"}
"""For stacks that have another kernel unless told otherwise: FlashAttention of a version that is
left open is that of PyTorch, and the later versions are the fastest of their chips."""
_EXPERTS_AT_ONCE = ("deepep", "hybridep")
"""Dispatchers whose tokens arrive sorted by expert, for kernels that compute all experts at once
(DeepEP csrc and its README; Megatron-LM transformer/moe/fused_a2a.py)."""
_TRANSFORMER_ENGINE = {"attention_kernel": "auto", "fused_norm": True}
"""Its layers have a fused norm, and the attention of cuDNN or FlashAttention, whichever is faster
(transformer_engine/pytorch/attention, module/layernorm_linear.py)."""
_GRAPHS = {"none": "none", "partial": "partial", "full": "full", "on": "full"}
"""The part of a step that is captured, by the extent that is stated."""


def _flag_reader(field: str) -> Callable[[Any], Changes]:
    """Returns a reader of a switch that sets this field of Stack to true or false."""
    return lambda value: {field: bool(value)}


def _cuda_graph_fields(value: Any) -> Changes:
    """Returns the fields of Stack for how much of a step is captured as a CUDA graph. A step can
    be captured whole only where experts have a fixed size."""
    extent = _GRAPHS[value]
    return {"moe_graphs": extent, "static_experts": extent == "full"}


def _choice_reader(field: str, choices: Mapping[Any, Any]) -> Callable[[Any], Changes]:
    """Returns a reader of a switch that sets this field of Stack. `choices` maps values of the
    switch to values of the field; other values of the switch set nothing."""
    return lambda value: {field: choices[value]} if value in choices else {}


def _gather_bytes(value: Any) -> Changes:
    """Returns the field of Stack for the bytes of a gathered parameter: 2, for bf16, where the
    switch is off. Where it is on, 0 stands for the bytes of the GEMMs' own format, such as fp8."""
    return {"gather_bytes": 0 if value else 2}


_READERS: dict[str, Callable[[Any], Changes]] = {
    "dispatcher": _choice_reader("dispatcher", _DISPATCHERS),
    "moe_overlap": _flag_reader("overlap_expert"),
    "tp_comm_overlap": _flag_reader("overlap_tensor"),
    "mc2": _flag_reader("overlap_tensor"),
    "overlap_grad_reduce": _flag_reader("overlap_data"),
    "gradient_bucketing": lambda value: {} if value else {"overlap_data": False},
    "attention": _choice_reader("attention_kernel", _ATTENTION_KERNELS),
    "fused_norm": lambda value: {"fused": False, "fused_norm": bool(value)},
    "grouped_gemm": lambda value: {"experts_at_once": value is not False},
    "router_fusion": _flag_reader("fused_routing"),
    "fused_loss": lambda value: {"loss": "fused"} if value else {},
    "liger": lambda value: {"loss": "fused_linear", "fused": True} if value else {},
    "param_offload": _flag_reader("parameters_on_host"),
    "gradient_bytes": lambda value: {"gradient_bytes": float(value)},
    "reduce_dtype": _choice_reader("reduce_bytes", {"bf16": 2.0, "fp32": 4.0}),
    "fp8_param_gather": _gather_bytes,
    "fp8_all_gather": _gather_bytes,
    "fp8_recipe": _choice_reader("fp8_scaling", {"tensorwise": "tensorwise", "rowwise": "rowwise"}),
    "cuda_graphs": _cuda_graph_fields,
}
"""By name of a switch. Those that are not here are read elsewhere, or change nothing that the
models tell apart."""


_NOT_DESCRIBED = {"packed_experts": "how the weights of experts lie in memory is not described"}
"""Switches that change what a step does, in ways that the models do not tell apart, and why a run
that states one is refused."""


def stated_switches(row: Mapping[str, Any], stack: Stack) -> Changes:
    """Returns the fields of Stack that a run's switches and its library of kernels decide.
    Raises Invalid for a switch that is not modelled, and for unknown extents of CUDA graphs."""
    switches = row["training"].get("switches") or {}
    changes: Changes = {}
    if (row.get("software") or {}).get("kernel_library") == "transformer_engine":
        changes |= _kernel_unless_auto(stack, _TRANSFORMER_ENGINE)
    if (kernel := _FLASH_KERNELS.get(switches.get("attention", ""))) is not None:
        changes |= _kernel_unless_auto(stack, {"attention_kernel": kernel})
    # These dispatchers send tokens for kernels that compute all experts at once.
    if switches.get("dispatcher") in _EXPERTS_AT_ONCE:
        changes["experts_at_once"] = True
    for name, value in switches.items():
        if name in _NOT_DESCRIBED:
            raise Invalid(f"training.switches.{name}", value, _NOT_DESCRIBED[name])
        if name == "cuda_graphs" and value not in _GRAPHS:
            raise Invalid("training.switches.cuda_graphs", value, f"is none of {[*_GRAPHS]}")
        if name in _READERS:
            changes |= _READERS[name](value)
    return changes


def _kernel_unless_auto(stack: Stack, changes: Changes) -> Changes:
    """Returns `changes`, which set the kernels that a row states. Returns none for a stack whose
    attention kernel is "auto", which already stands for the fastest kernel of the chips."""
    return {} if stack.attention_kernel == "auto" else changes
