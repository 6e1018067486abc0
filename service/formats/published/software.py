"""The software of published runs: the stack of the catalogue that a row means, and how old it is,
since older software is predicted to be slower.

A *row* is one published run, a JSON object, and `training` is the part of it about the training.
The *stack* is the training software, such as Megatron-LM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.errors import UnknownName
from models.spec import catalogue
from models.spec.hardware import Cluster
from models.spec.stack import Stack
from models.spec.switches import as_of, as_usually_run
from service.formats.published.switches import stated_switches

Row = Mapping[str, Any]
"""One published run, or an object inside of it, as JSON has it."""

_KERNELS = {
    "flash-attention-1": "flash1",
    "flash-attention-2": "flash2",
    "megatron-fused-softmax": "fused_softmax",
    "unfused": "unfused",
}
_STACK_OF_FRAMEWORK = {
    "megatron": {"NeMo": "megatron-bridge", "Primus-Turbo": "primus-turbo"},
    "fsdp": {"llm-foundry": "llm-foundry", "(?i)fms.fsdp": "fms-fsdp"},
    "in-house": {"HAI-LLM": "deepseek"},
}
"""By the stack that a row names: patterns in the name of its framework, and the stack of the
catalogue that each then stands for."""
_FSDP = ("fsdp1", "fsdp2")
"""The names in rows for the two interfaces of PyTorch's FSDP."""
_NEMO_RELEASE = re.compile(r"^(?!.*\bmain\b).*NeMo.*?\b[v(]?(2\d)\.(0[1-9]|1[0-2])\b")
_DEGREE_OF_LIMIT = {
    "max_tp": "tp",
    "max_cp": "cp",
    "max_ep": "ep",
    "max_pp": "pp",
    "max_virtual_stages": "vpp",
}
"""The limits of a stack, and the fields of a row that may show a higher one."""
_ZERO_STAGES = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3, "gemini": 3}
"""The ZeRO stage of each kind of data parallelism."""
_SHARDING = re.compile(rf"\b({'|'.join(_ZERO_STAGES)})")


def read_stack(row: Row, cluster: Cluster, software_year: float, assumed: list[str]) -> Stack:
    """Returns the software stack of a run: the catalogue's stack, changed by what the run's date
    implies, what the row states, and what the run must have been able to do. Adds the names of
    fields that were assumed to `assumed`."""
    training = row["training"]
    try:
        stack = catalogue.stack(_stack_name(row))
    except UnknownName:
        assumed.append("stack")
        stack = catalogue.stack("generic")
    # Take the software as it was at that time, and as that organisation usually runs it.
    year = _decimal_year(software_date(row)) if row.get("date") else None
    if year is not None:
        stack = as_of(stack, year)
    stack = as_usually_run(stack, row["source"].get("organisation") or "", year)
    changes = _stated_changes(training, stack) | stated_switches(row, stack)
    if "attention_kernel" not in changes:
        assumed.append("attention_kernel")
    abilities = _proven_abilities(stack, training, cluster.chip.vendor)
    age = _age_years(row, software_year, assumed)
    return replace(stack, **changes, **abilities, age_years=age)


def _stated_changes(training: Row, stack: Stack) -> dict[str, Any]:
    """Returns what a row states of kernels and compilation, as fields of Stack."""
    changes: dict[str, Any] = {}
    kernel = _KERNELS.get(training.get("attention_kernel") or "")
    if kernel:
        changes["attention_kernel"] = kernel
    # Rows state this of runs that fuse no other element-wise operations.
    if training.get("fused_norm_kernel") is not None:
        changes |= {"fused": False, "fused_norm": bool(training["fused_norm_kernel"])}
    # Stacks of JAX, whose launch is "graph", compile in any case.
    if training.get("compile") is not None and stack.launch != "graph":
        changes |= {
            "launch": "compiled" if training["compile"] else "eager",
            "fused": bool(training["compile"]),
        }
    if stack.loss == "compiled" and training.get("compile") is False:  # then PyTorch's own runs
        changes["loss"] = "pytorch"
    return changes


def _stack_name(row: Row) -> str:
    """Returns the catalogue's name for the stack. A row's `stack` may name only the base, such as
    Megatron-Core or FSDP; its `framework` then names what runs on top of it, such as NeMo. A
    framework whose software has PyTorch's FSDP as its backend counts as "fsdp"."""
    if (row.get("software") or {}).get("backend") in _FSDP:
        return "fsdp"
    framework = row.get("framework") or ""
    for pattern, stack in _STACK_OF_FRAMEWORK.get(row["stack"], {}).items():
        if re.search(pattern, framework):
            return stack
    return str(row["stack"])


def _proven_abilities(stack: Stack, training: Row, vendor: str) -> dict[str, Any]:
    """Returns, as fields of Stack, what the run proves that its software can do: chips of its
    vendor, and the schedules, degrees, ZeRO stages and offloads that it used. The catalogue may say
    that it cannot, and no layout of the run would then be legal."""
    abilities: dict[str, Any] = {}
    if stack.vendors:
        abilities["vendors"] = tuple(dict.fromkeys((*stack.vendors, vendor)))
    if training.get("sequence_parallel") is not None:
        abilities["sequence_parallel"] = (True, False)
    for limit, degree in _DEGREE_OF_LIMIT.items():
        if isinstance(training.get(degree), int):
            abilities[limit] = max(training[degree], getattr(stack, limit))
    schedule = (training.get("pp_schedule") or "").lower()
    if schedule.startswith("zb") or "dualpipe" in schedule:
        # Software that splits backward for one of these schedules can split it for the others.
        split_backward = ("zero_bubble", "zero_bubble_v", "dualpipe")
        abilities["schedules"] = tuple(dict.fromkeys((*stack.schedules, *split_backward)))
    stage = stated_zero_stage(training)
    if stage is not None:
        abilities["zero_stages"] = tuple(dict.fromkeys((*stack.zero_stages, stage)))
    offloaded = offloaded_states(training)
    if offloaded:
        abilities["offload"] = tuple(dict.fromkeys((*stack.offload, *offloaded)))
        abilities["offload_alone"] = False  # it may go with a pipeline and with recompute
    return abilities


def offloaded_states(training: Row) -> list[str]:
    """Returns the states that a row says are in host memory, "activations" or "optimizer"; an
    optimizer may go by its own name."""
    text = (training.get("offload") or "").lower().replace("adamw", "optimizer")
    return [name for name in ("activations", "optimizer") if name in text]


def _age_years(row: Row, software_year: float, assumed: list[str]) -> float:
    """Returns the age of the run's software in years; 0 without a date, which is noted in
    `assumed`."""
    if not row.get("date"):
        assumed.append("date")
        return 0.0
    return age_years(software_date(row), software_year)


def software_date(row: Row) -> str:
    """Returns the date of the run's software, "2024-07". It is the row's date, or the month in the
    name of a NeMo release ("24.07") where that is earlier."""
    release = _NEMO_RELEASE.search(row.get("framework") or "")
    if release is None:
        return str(row["date"])
    return min(f"20{release[1]}-{release[2]}", row["date"])


def age_years(date: str, software_year: float) -> float:
    """Returns by how many years software of that date, "2024" or "2024-07", is older than
    `software_year`; 0 where it is newer."""
    return max(software_year - _decimal_year(date), 0.0)


def _decimal_year(date: str) -> float:
    """Returns a date as a year with decimals: the middle of its month, or of the year without
    one."""
    year, _, month = date.partition("-")
    return int(year) + ((int(month[:2]) - 0.5) / 12 if month else 0.5)


def is_older_than(row: Row, year: float | None) -> bool:
    """Returns True where the run's date is before `year`, in which its stack got an ability.
    False where the row has no date or `year` is None."""
    return bool(year and row.get("date") and _decimal_year(row["date"]) < year)


def data_parallel_kind(training: Row) -> str:
    return str(training.get("data_parallel_kind") or "").lower()


def stated_zero_stage(training: Row) -> int | None:
    """Returns the ZeRO stage that a row states: 3 for "hsdp (fsdp in slice, dp across slices)"
    and for "dp2 x fsdp256 over jax devices". None where it states no known kind of data
    parallelism."""
    kind = _SHARDING.search(data_parallel_kind(training))
    return None if kind is None else _ZERO_STAGES[kind[1]]
