"""The arguments of ms-swift 4.6.0 (arguments, trainers/arguments.py, config) in the names of
accelerate and the Trainer."""

from __future__ import annotations

import math

from service.formats.launch.trainer.told import OBJECTIVE, REFERENCE_MODEL, Asked, Told, renamed
from service.formats.settings.settings import Settings

_SEQUENCES_A_STEP = 16  # of all ranks, where nobody says how many (trainers/arguments.py)


def translate(settings: Settings, asked: Asked) -> Told:
    told = renamed(settings)
    micro = settings.whole("per_device_train_batch_size") or 1
    told.put("per_device_train_batch_size", micro)
    told.put("gradient_checkpointing", settings.truth("gradient_checkpointing"))
    if settings.given.get("gradient_accumulation_steps") is None and asked.num_devices:
        steps = max(1, math.ceil(_SEQUENCES_A_STEP / micro / asked.num_devices))
        told.put("gradient_accumulation_steps", steps)
    if settings.given.get("packing_length"):
        told.put("max_length", settings.whole("packing_length"), "packing_length")
    _precision(told, settings)
    _adapters(told, settings)
    if asked.command == "rlhf" or "rlhf_type" in settings.given:
        told.put(OBJECTIVE, objective_of(settings), "rlhf_type")
    if settings.given.get("ref_model"):
        told.put(REFERENCE_MODEL, settings.given["ref_model"], "ref_model")
    kernel = settings.table.facts["attention"].get(settings.word("attn_impl") or "")
    if kernel:
        told.put("attn_implementation", kernel, "attn_impl")
    _sharding(told, settings)
    return told


def objective_of(settings: Settings) -> str | None:
    """Returns the objective of `swift rlhf`. rm trains a reward model, whose head gives one number
    (arguments/rlhf_args.py, _init_rm)."""
    kind = settings.word("rlhf_type")
    return "reward" if kind == "rm" else kind


def _precision(told: Told, settings: Settings) -> None:
    """Without torch_dtype it is that of the checkpoint, bf16 of nearly all."""
    dtype = settings.word("torch_dtype") or "bfloat16"
    half = settings.truth("fp16") or dtype == "float16"
    told.put("fp16", half)
    told.put("bf16", not half and dtype != "float32", "torch_dtype")
    told.put("dtype", dtype, "torch_dtype")


def _adapters(told: Told, settings: Settings) -> None:
    names = ("tuner_type", "train_type", "sft_type")
    name = next((candidate for candidate in names if candidate in settings.given), "tuner_type")
    kind = settings.word(name) or "lora"
    if kind == "full":
        return
    if kind not in ("lora", "longlora"):
        cure = "judge it as lora of a rank with as many parameters"
        settings.reserve(name, "adapters of this kind are not described", cure)
    told.put("use_peft", True, name)
    told.settings.setdefault("lora_r", settings.value("lora_rank"))
    told.settings.setdefault("lora_target_modules", "all-linear")
    if settings.value("quant_bits") is not None:
        told.put("bits", settings.value("quant_bits"), "quant_bits")
    if settings.given.get("modules_to_save"):
        told.put("lora_modules_to_save", settings.given["modules_to_save"], "modules_to_save")


def _sharding(told: Told, settings: Settings) -> None:
    facts = settings.table.facts
    preset = facts["deepspeed_presets"].get(str(settings.given.get("deepspeed")))
    if preset is not None:
        told.settings.pop("deepspeed")
        for name, value in preset.items():
            told.put(f"deepspeed.{name}", value, "deepspeed")
    tp = settings.whole("deepspeed_autotp_size")
    if tp:
        told.put("deepspeed.tensor_parallel.autotp_size", tp, "deepspeed_autotp_size")
    fsdp = settings.given.get("fsdp")
    if str(fsdp) in facts["fsdp_presets"]:
        for name, value in facts["fsdp_presets"][str(fsdp)].items():
            told.put(name, value, "fsdp")
    elif fsdp:
        told.put("fsdp", fsdp)
    told.settings.pop("sequence_parallel_size", None)
    cp = settings.whole("sequence_parallel_size")
    if cp is not None and cp > 1:
        told.put("parallelism_config.parallelism_config_sp_size", cp, "sequence_parallel_size")
