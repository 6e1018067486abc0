"""How a script with TRL's ModelConfig makes the model: its number format, and adapters beside it
(trl 1.16.0, trainer/model_config.py)."""

from __future__ import annotations

import re
from typing import Any

from models.errors import Invalid
from models.spec.adapters import MAX_RANK, Lora
from service.formats.launch.documents import Settings, shown
from service.formats.shell.faults import PATH

_USUAL_RANK = 16
_ALL = "all-linear"
_TARGETS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"), ("attention",)),
    **dict.fromkeys(("gate_proj", "up_proj", "down_proj", "gate_up_proj"), ("mlp", "experts")),
}
"""What the matrices of transformers are, in the words of requests."""
_HALVES = {"bfloat16": "bf16", "float16": "fp16"}


def flags_for(lora: Lora) -> str:
    """The flags that make adapters, but for the names of matrices, which are the model's."""
    narrow = f" --load_in_{lora.base_bits}bit" if lora.base_bits < 16 else ""
    return f"--use_peft --lora_r {lora.rank}{narrow} --lora_target_modules …"


def read_model_format(settings: Settings, workload: dict[str, Any], *, is_sharded: bool) -> None:
    """Put into a workload the number format that the model is loaded in. FSDP makes an fp32 copy
    where precision is mixed."""
    dtype = settings.word("dtype")
    if dtype in (None, "auto", "float32"):
        return
    if dtype not in _HALVES:
        rule = f"must be auto, float32, {' or '.join(_HALVES)}"
        raise Invalid(PATH, shown("dtype", dtype), rule)
    is_mixed = workload["precision"] != "fp32"
    if not is_mixed:
        workload["precision"] = _HALVES[dtype]
    if not (is_mixed and is_sharded):
        workload["master_weights"] = False


def read_adapters(settings: Settings) -> dict[str, Any]:
    """The adapters in the wire form; nothing where none are asked for."""
    if not settings.truth("use_peft"):
        return {}
    rank = settings.whole("lora_r") or _USUAL_RANK
    if rank > MAX_RANK:
        raise Invalid(PATH, shown("lora_r", rank), f"must be at most {MAX_RANK}")
    bits = 16
    for narrow in (8, 4):
        bits = narrow if settings.truth(f"load_in_{narrow}bit") else bits
    for name in ("lora_alpha", "lora_dropout", "lora_task_type", "use_rslora"):
        settings.take(name)
    return {"lora": {"rank": rank, "targets": _targets(settings), "base_bits": bits}}


def _targets(settings: Settings) -> list[str]:
    name = "lora_target_modules"
    written = settings.take(name)
    modules = re.findall(r"[\w-]{1,100}", " ".join(_words(written)), re.ASCII)
    found = [target for module in modules for target in _TARGETS.get(module, ())]
    if modules == [_ALL]:
        return ["attention", "mlp", "experts"]
    if not modules:
        settings.unread.append(f"{name} (not given: PEFT picks them by model; read as {_ALL})")
    elif not _are_whole(set(modules)):
        settings.unread.append(f"{shown(name, modules)} (read as all matrices of these networks)")
    return list(dict.fromkeys(found)) or ["attention", "mlp", "experts"]


def _words(written: Any) -> list[str]:
    return [str(each) for each in (written if isinstance(written, list) else [written or ""])]


def _are_whole(modules: set[str]) -> bool:
    """Whether all modules are known, and each network is adapted as a whole."""
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    network = {"gate_proj", "up_proj", "down_proj"}
    parts = [modules & attention, modules & network]
    return modules <= attention | network and all(
        not part or part == whole for part, whole in zip(parts, (attention, network), strict=True)
    )
