"""Adapters in the fields of Megatron-Bridge: the LoRA that `cfg.peft` of a recipe is
(megatron/bridge/peft/lora.py). A *recipe* is a function that returns a whole configuration."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from typing import Any

from models.spec.adapters import MAX_RANK, Lora
from models.spec.architecture import Architecture
from service.formats.launch.job import Inexpressible
from service.formats.settings.field import shown
from service.formats.settings.reservation import Reservation
from service.formats.shell.faults import invalid_launch

SCHEME = "peft.scheme"
"""The field that the options peft and peft_scheme set, as it is named here."""
_SECTION = "peft."
_MLP_MODULES = ("linear_fc1", "linear_fc2")
_LATENT_MODULES = ("linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj",
           "linear_kv_up_proj")  # fmt: skip
"""The projections of latent attention: of queries one, or two with a latent of their own."""
_MIXER_MODULES = ("linear_qkv", *_LATENT_MODULES, "linear_proj", "in_proj", "out_proj")
_RANK = re.compile(r"[1-9]\d{0,3}", re.ASCII)
_USUAL_RANK = 32  # the default of its LoRA
_USUAL_MODULES = ("linear_qkv", "linear_proj", *_MLP_MODULES)
"""The modules that the LoRA of recipes adapts."""


# -- writing


def adapter_fields(model: Architecture, lora: Lora) -> dict[str, Any]:
    """Returns the fields that make LoRA adapters, each expert with its own. Raises Inexpressible
    where the model has none of the layers that the adapters are for."""
    modules = _adapted_modules(model, lora)
    if not modules:
        cure = f"{model.name} has none of these layers; ask with attention, mlp or both"
        raise Inexpressible("workload.lora.targets", [*lora.targets], cure)
    fields: dict[str, Any] = {
        "peft.dim": lora.rank,
        "peft.alpha": 2 * lora.rank,  # a usual scale; it changes neither time nor memory
        "peft.target_modules": modules,
    }
    if model.is_moe and "experts" in lora.targets:
        fields["peft.share_expert_adapters"] = False
    return fields


def adapters_in_python(model: Architecture, lora: Lora) -> str:
    """Returns the adapters as a Python expression: "LoRA(dim=8, alpha=16, …)"."""
    fields = adapter_fields(model, lora)
    arguments = (f"{name.removeprefix(_SECTION)}={value}" for name, value in fields.items())
    return f"LoRA({', '.join(arguments)})"


def _adapted_modules(model: Architecture, lora: Lora) -> list[str]:
    """Returns the names of the modules that get adapters, such as "linear_qkv". The modules of
    routed experts have the same names as those of an MLP. Where only one of the two is adapted,
    patterns such as "*.experts.linear_fc1" tell them apart."""
    names: list[str] = []
    if "attention" in lora.targets:
        is_latent = any(attention.is_mla for attention in model.attentions)
        names += _LATENT_MODULES if is_latent else ("linear_qkv",)
        names += ("linear_proj",)
        names += ("in_proj", "out_proj") if model.recurrences else ()
    if {"mlp", "experts"} <= {*lora.targets} or ("mlp" in lora.targets and not model.is_moe):
        return [*names, *_MLP_MODULES]
    if "mlp" in lora.targets:
        names += [f"*.{part}.{name}" for part in ("mlp", "shared_experts") for name in _MLP_MODULES]
    if "experts" in lora.targets and model.is_moe:
        names += [f"*.experts.{name}" for name in _MLP_MODULES]
    return names


# -- reading


def fields_of_scheme(text: str) -> dict[str, str]:
    """Returns the fields that a PEFT scheme sets. It is a name, or Python: "LoRA(dim=8)" gives
    {"peft.scheme": "LoRA", "peft.dim": "8"}."""
    try:
        scheme = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {SCHEME: text}
    if not isinstance(scheme, ast.Call):
        return {SCHEME: text.rpartition(".")[2]}
    fields = {SCHEME: ast.unparse(scheme.func).rpartition(".")[2]}
    for keyword in scheme.keywords:
        if keyword.arg:
            fields[f"{_SECTION}{keyword.arg}"] = ast.unparse(keyword.value)
    return fields


def has_adapters(fields: Mapping[str, str]) -> bool:
    """Returns True where the fields set up adapters, by a scheme other than "none" or by its
    parts."""
    scheme = fields.get(SCHEME, "").lower()
    return scheme != "none" and any(name.startswith(_SECTION) for name in fields)


def read_adapters(
    fields: Mapping[str, str], *, is_moe: bool
) -> tuple[dict[str, Any], list[Reservation]]:
    """Returns the adapters as a request writes them, {"rank": 32, "targets": ["attention"]}, and
    reservations for fields that are read in part. Raises Invalid for an impossible rank, or
    modules that are not known."""
    rank = fields.get("peft.dim", str(_USUAL_RANK))
    if not _RANK.fullmatch(rank):
        raise invalid_launch(f"peft.dim={rank}", f"must be a whole number from 1 to {MAX_RANK}")
    text = fields.get("peft.target_modules")
    modules = _USUAL_MODULES if text is None else re.findall(r"[\w.*]{1,200}", text, re.ASCII)
    targets = list(dict.fromkeys(target for name in modules for target in _targets_of_module(name)))
    if not targets:
        rule = f"names no module of {', '.join(_USUAL_MODULES)}: write which have adapters"
        raise invalid_launch(f"peft.target_modules={text}", rule)
    reservations = []
    if text is not None and not _adapt_whole_blocks(modules):
        reason = f"it is read as adapters of {', '.join(targets)}"
        reservations.append(_adapter_reservation("peft.target_modules", text, reason))
    scheme = fields.get(SCHEME, "lora")
    if scheme.lower() != "lora":
        reservations.append(_adapter_reservation("peft_scheme", scheme, "it is read as lora"))
    is_shared = fields.get("peft.share_expert_adapters") != "False"
    if is_moe and "experts" in targets and is_shared:
        reason = "it is read as adapters of each expert by itself"
        reservations.append(_adapter_reservation("peft.share_expert_adapters", "true", reason))
    return {"rank": int(rank), "targets": targets}, reservations


def _adapter_reservation(name: str, value: str, reason: str) -> Reservation:
    """Returns a reservation for a field of adapters, which workload.lora in the request would
    settle."""
    return Reservation(
        setting=shown(name, value),
        reason=reason,
        cure="give workload.lora in the request",
        answered_by="workload.lora",
    )


def _targets_of_module(module: str) -> tuple[str, ...]:
    """Returns the targets of a module as a request names them: ("mlp", "experts") for
    "linear_fc1"; none for an unknown module."""
    parts = module.split(".")
    if parts[-1] not in _MLP_MODULES:
        return ("attention",) if parts[-1] in _MIXER_MODULES else ()
    if "experts" in parts:
        return ("experts",)
    # A name without a path stands for the networks of dense layers and of experts.
    return ("mlp",) if {"mlp", "shared_experts"} & {*parts} else ("mlp", "experts")


def _adapt_whole_blocks(modules: Collection[str]) -> bool:
    """Returns True where all modules are known, and both the MLP and the attention (or Mamba) are
    adapted as a whole or not at all. A request can name only whole blocks."""
    names = {name.rpartition(".")[2] for name in modules}
    mlp = names & {*_MLP_MODULES}
    mixer = names & {*_MIXER_MODULES}
    # All latent attention has linear_kv_up_proj, which stands for its inputs; Mamba has in_proj.
    has_inputs = bool(mixer & {"linear_qkv", "linear_kv_up_proj", "in_proj"})
    has_output = bool(mixer & {"linear_proj", "out_proj"})
    are_known = names <= {*_MLP_MODULES, *_MIXER_MODULES}
    is_whole = not mixer or (has_inputs and has_output)
    return are_known and len(mlp) in (0, len(_MLP_MODULES)) and is_whole
