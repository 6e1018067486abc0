"""Adapters that a script of transformers and PEFT makes beside the model (trl 1.16.0, trainer/
model_config.py; peft, LoraConfig)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from models.errors import Invalid
from models.spec.adapters import MAX_RANK, BaseBits, Lora
from service.formats.launch.trainer.trained_parts import of_modules
from service.formats.settings.field import shown
from service.formats.settings.settings import Settings
from service.formats.shell.faults import PATH

_USUAL_RANK = 16
_WHOLE = (
    "some of these modules, trained whole beside the adapters, are neither the embedding nor the"
    " head"
)
_WITHOUT_WHOLE = "leave these out to judge the rest, or judge full fine-tuning"
_ALL = "all-linear"
_EVERYTHING = ["attention", "mlp", "experts"]
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_NETWORK = {"gate_proj", "up_proj", "down_proj"}
_TARGETS = {
    **dict.fromkeys((*_ATTENTION, "qkv_proj", "c_attn", "query_key_value", "Wqkv"), ("attention",)),
    **dict.fromkeys((*_NETWORK, "gate_up_proj", "fc1", "fc2"), ("mlp", "experts")),
}
"""What the matrices of transformers are, in the words of requests."""
_MODULE = re.compile(r"[A-Za-z_][\w-]{0,99}", re.ASCII)


def flags_for(lora: Lora) -> str:
    """The flags that make adapters, but for the names of matrices, which are the model's."""
    narrow = f" --load_in_{lora.base_bits}bit" if lora.base_bits < 16 else ""
    return f"--use_peft --lora_r {lora.rank}{narrow} --lora_target_modules …"


def read_adapters(settings: Settings, assumed: list[str]) -> dict[str, Any]:
    """The adapters in the wire form; nothing where none are asked for. What is counted as something
    else goes into `assumed`."""
    if not (settings.truth("use_peft") or settings.truth("lora_enable")):
        for name in ("lora_r", "load_in_4bit", "load_in_8bit"):
            if settings.given.get(name) not in (None, False, "false", "False"):
                reason = "it goes with adapters, and nothing here asks for them"
                settings.reserve(name, reason, "write use_peft, or leave it out")
        return {}
    rank = settings.whole("lora_r") or settings.whole("lora_rank") or _USUAL_RANK
    if rank > MAX_RANK:
        raise Invalid(PATH, shown("lora_r", rank), f"must be at most {MAX_RANK}")
    bits = settings.whole("bits") or 16
    for narrow in (8, 4):
        bits = narrow if settings.truth(f"load_in_{narrow}bit") else bits
    if bits not in get_args(BaseBits):
        reason = f"frozen weights of {bits} bits are not described"
        settings.reserve("bits", reason, "judge it with 4 or 8 bits")
        bits = 16
    targets = list(_targets(settings, assumed))
    lora = {"rank": rank, "targets": targets, "base_bits": bits}
    return {"lora": lora, **_modules_to_save(settings, assumed)}


def _modules_to_save(settings: Settings, assumed: list[str]) -> dict[str, Any]:
    """The modules that are trained whole beside adapters."""
    name = "lora_modules_to_save"
    modules = _modules(settings.given.get(name))
    if not modules:
        return {}
    parts = of_modules(modules)
    if parts.unknown:
        settings.reserve(name, _WHOLE, _WITHOUT_WHOLE, answered_by="workload.trained")
    if not (parts.embedding or parts.head):
        return {}
    assumed.append(f"{name}: PEFT keeps the frozen original of each, which is not counted")
    return {"trained": parts.fields}


def _targets(settings: Settings, assumed: list[str]) -> Iterator[str]:
    name = "lora_target_modules"
    modules = _modules(settings.given.get(name))
    parameters = _modules(settings.given.get("lora_target_parameters"))
    found = {target for module in modules for target in _TARGETS.get(module, ())}
    if not modules:
        assumed.append(f"{name} is not given, and PEFT picks them by model: all are counted")
    elif modules != {_ALL} and not _are_whole(modules):
        assumed.append(
            f"{name}: each network that has an adapter on some matrix is counted as adapted whole"
        )
    if parameters & {"experts", "gate_up_proj", "down_proj", "up_proj", "gate_proj"}:
        found.add("experts")
    yield from (target for target in _EVERYTHING if not found or target in found)


def _modules(written: Any) -> set[str]:
    """The names of modules in a list, in words, or in a pattern."""
    text = " ".join(map(str, written)) if isinstance(written, list) else str(written or "")
    return set(_MODULE.findall(text))


def _are_whole(modules: set[str]) -> bool:
    """Whether all modules are known, and each network is adapted as a whole."""
    parts = ((modules & _ATTENTION, _ATTENTION), (modules & _NETWORK, _NETWORK))
    return modules <= _ATTENTION | _NETWORK and all(part in (set(), whole) for part, whole in parts)
