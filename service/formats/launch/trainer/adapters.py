"""Adapters that a script of transformers and PEFT makes beside the model (trl 1.16.0, trainer/
model_config.py; peft, LoraConfig).

A *target* is a group of matrices that have adapters: those of attention, of MLPs or of experts. A
*reservation* is a remark that a setting could matter and is not, or not fully, taken into account.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

from models.spec.adapters import MAX_RANK, BaseBits, Lora, Module
from service.formats.launch.trainer.trained_parts import parts_of_modules
from service.formats.settings.field import shown
from service.formats.settings.settings import Settings
from service.formats.shell.faults import invalid_launch

_USUAL_RANK = 16  # the default of TRL's lora_r
_WHOLE = (
    "some of these modules, trained whole beside the adapters, are neither the embedding nor the"
    " head"
)
_GIVE = "give workload.lora, with the targets and modules to count"
_WITHOUT_WHOLE = "leave these out to judge the rest, or judge full fine-tuning"
_ALL = "all-linear"
_ATTENTION_MATRICES: tuple[Module, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP_MATRICES: tuple[Module, ...] = ("gate_proj", "up_proj", "down_proj")
_MATRICES: Mapping[str, tuple[Module, ...]] = {
    **{name: (name,) for name in (*_ATTENTION_MATRICES, *_MLP_MATRICES)},
    # One matrix for queries, keys and values, without the output.
    **dict.fromkeys(("qkv_proj", "c_attn", "query_key_value", "Wqkv"), _ATTENTION_MATRICES[:3]),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fc1": ("up_proj",),
    "fc2": ("down_proj",),
    "w1": ("gate_proj",),
    "w2": ("down_proj",),
    "w3": ("up_proj",),
}
"""The matrices of transformers that each name stands for, alone or joined."""
_IN_EXPERTS = frozenset({"experts", "gate_up_proj", "down_proj", "up_proj", "gate_proj"})
_MODULE = re.compile(r"[A-Za-z_][\w-]{0,99}", re.ASCII)
_NAME = re.compile(r"[\w.-]{1,400}", re.ASCII)


def flags_for(lora: Lora) -> str:
    """Returns the flags of TRL that make adapters: "--use_peft --lora_r 16 --lora_target_modules
    q_proj". An ellipsis stands for the modules where only groups of them are given."""
    narrow = f" --load_in_{lora.base_bits}bit" if lora.base_bits < 16 else ""
    modules = " ".join(lora.modules) or "…"
    return f"--use_peft --lora_r {lora.rank}{narrow} --lora_target_modules {modules}"


def read_adapters(settings: Settings, assumed: list[str]) -> dict[str, Any]:
    """Returns the adapters as fields of a workload, {"lora": {"rank": 16, "targets":
    ["attention"], "base_bits": 4}}; none where there are none. Adds a sentence to `assumed`
    about each setting that is counted as something else. Raises Invalid for too large a rank."""
    if not (settings.boolean("use_peft") or settings.boolean("lora_enable")):
        for name in ("lora_r", "load_in_4bit", "load_in_8bit"):
            if settings.given.get(name) not in (None, False, "false", "False"):
                reason = "it goes with adapters, and nothing here asks for them"
                settings.add_reservation(name, reason, "write use_peft, or leave it out")
        return {}
    rank = settings.integer("lora_r") or settings.integer("lora_rank") or _USUAL_RANK
    if rank > MAX_RANK:
        raise invalid_launch(shown("lora_r", rank), f"must be at most {MAX_RANK}")
    bits = settings.integer("bits") or 16  # of a frozen weight
    for narrow in (8, 4):
        bits = narrow if settings.boolean(f"load_in_{narrow}bit") else bits
    if bits not in get_args(BaseBits):
        reason = f"frozen weights of {bits} bits are not described"
        settings.add_reservation("bits", reason, "judge it with 4 or 8 bits")
        bits = 16
    lora = {"rank": rank, **_targets_and_modules(settings, assumed), "base_bits": bits}
    return {"lora": lora, **_modules_to_save(settings, assumed)}


def _modules_to_save(settings: Settings, assumed: list[str]) -> dict[str, Any]:
    """Returns the modules that are fully trained beside adapters, as fields of a workload:
    {"trained": …}."""
    name = "lora_modules_to_save"
    modules = _module_names(settings.given.get(name))
    if not modules:
        return {}
    parts = parts_of_modules(modules)
    if parts.unknown:
        settings.add_reservation(name, _WHOLE, _WITHOUT_WHOLE, answered_by="workload.trained")
    if not (parts.embedding or parts.head):
        return {}
    assumed.append(f"{name}: PEFT keeps the frozen original of each, which is not counted")
    return {"trained": parts.fields}


def _targets_and_modules(settings: Settings, assumed: list[str]) -> dict[str, list[str]]:
    """Returns the groups of matrices that have adapters, and the single matrices where groups
    are not adapted as a whole: {"targets": ["attention"], "modules": ["q_proj", "v_proj"]}."""
    name = "lora_target_modules"
    names = _module_names(settings.given.get(name))
    if not names:
        assumed.append(f"{name} is not given, and PEFT picks them by model: all are counted")
    matrices = {matrix for module in names for matrix in _MATRICES.get(module, ())}
    _add_reservation_for_others(settings, name, sorted(matrices))
    expert_parameters = _module_names(settings.given.get("lora_target_parameters")) & _IN_EXPERTS
    in_attention = bool(matrices & {*_ATTENTION_MATRICES})
    in_mlp = bool(matrices & {*_MLP_MATRICES})
    in_experts = in_mlp or bool(expert_parameters)  # experts have the module names of an MLP
    is_adapted = {"attention": in_attention, "mlp": in_mlp, "experts": in_experts}
    # Where no name is known, all groups count.
    targets = [group for group, is_in in is_adapted.items() if is_in] or [*is_adapted]
    if in_experts and not in_mlp:  # lora_target_parameters adapts experts as a whole
        matrices |= {*_MLP_MATRICES}
    in_groups: list[str] = []  # all matrices of the groups that have adapters at all
    for group in (_ATTENTION_MATRICES, _MLP_MATRICES):
        if matrices & {*group}:
            in_groups += group
    if matrices.issuperset(in_groups):
        return {"targets": targets}
    return {"targets": targets, "modules": [name for name in in_groups if name in matrices]}


def _add_reservation_for_others(settings: Settings, name: str, matrices: list[str]) -> None:
    """Adds a reservation for modules that are no known matrices, or for a regular expression,
    which may leave layers out. `name` is the setting, and `matrices` are those that count."""
    value = settings.given.get(name)
    words = re.split(r"[,\s\"']+", str(value or "").strip("[]\"' "))
    modules = [str(word) for word in (value if isinstance(value, list) else words) if word]
    unknown = [
        word for word in modules if word != _ALL and word.rpartition(".")[2] not in _MATRICES
    ]
    # Words that are no plain names, such as ".*(q_proj|v_proj)", are regular expressions.
    unknown_names = [word for word in unknown if _NAME.fullmatch(word)]
    if unknown_names:
        reason = f"adapters of {', '.join(unknown_names[:4])} are not described"
        settings.add_reservation(name, reason, _GIVE, answered_by="workload.lora")
    elif not all(map(_NAME.fullmatch, modules)):
        counted = ", ".join(matrices) or "all matrices"
        reason = f"a pattern, read as adapters of {counted} on all layers"
        settings.add_reservation(name, reason, _GIVE, answered_by="workload.lora")


def _module_names(value: Any) -> set[str]:
    """Returns the names of modules in a list, a text or a regular expression: {"q_proj",
    "v_proj"} for ".*(q_proj|v_proj)"."""
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value or "")
    return set(_MODULE.findall(text))
