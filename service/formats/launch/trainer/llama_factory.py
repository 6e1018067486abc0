"""The settings of LLaMA-Factory 0.9.5 (hparams, model/patcher.py, model/adapter.py) in the names of
accelerate and the Trainer."""

from __future__ import annotations

from service.formats.launch.trainer.llama_factory_parts import one_block, trained_layers
from service.formats.launch.trainer.told import (
    MOMENT_RANK,
    OBJECTIVE,
    REFERENCE_MODEL,
    Asked,
    Told,
    put_fsdp,
    renamed,
)
from service.formats.settings.settings import Settings

_WITHOUT_REFERENCE = ("orpo", "simpo")
_OBJECTIVES = {"rm": "reward_beside_logits"}  # AutoModelForCausalLMWithValueHead has both heads
_USUAL_BATCH = 8  # of TrainingArguments
_RANKS_A_BLOCK = 4
"""An orthogonal block of b x b has b (b - 1) / 2 parameters for b inputs, about as many for a
square matrix as adapters of rank b / 4."""


def translate(settings: Settings, asked: Asked) -> Told:
    told = renamed(settings)
    told.put("max_length", settings.value("cutoff_len"), "cutoff_len")
    told.settings.setdefault("per_device_train_batch_size", _USUAL_BATCH)
    stage = settings.word("stage")
    _objective(told, settings, stage)
    told.put("packing", bool(settings.truth("neat_packing") or _packs(settings, stage)))
    # On unless switched off, whatever TrainingArguments say (model_utils/checkpointing.py).
    told.put("gradient_checkpointing", not settings.truth("disable_gradient_checkpointing"))
    told.put("activation_offloading", settings.truth("use_unsloth_gc"))
    if settings.truth("pure_bf16"):
        told.put("bf16", False)
        told.put("dtype", "bfloat16", "pure_bf16")
    _adapters(told, settings)
    _optimizer(told, settings)
    kernel = settings.table.facts["attention"].get(settings.word("flash_attn") or "auto")
    if kernel:
        told.put("attn_implementation", kernel, "flash_attn")
    if settings.given.get("fsdp"):
        put_fsdp(told, settings, version=1)
    if "ray_num_workers" in settings.given:
        told.put("num_processes", settings.value("ray_num_workers"), "ray_num_workers")
    if settings.truth("use_mca") or any(name in settings.given for name in _mcore(settings)):
        _megatron(told, settings)
    return told


def _objective(told: Told, settings: Settings, stage: str | None) -> None:
    loss = settings.word("pref_loss")
    if stage == "dpo" and loss in _WITHOUT_REFERENCE:
        told.put(OBJECTIVE, loss, "pref_loss")
    elif settings.truth("use_asft_loss"):
        told.put(OBJECTIVE, "asft", "use_asft_loss")
    else:
        told.put(OBJECTIVE, _OBJECTIVES.get(str(stage), stage), "stage")
    if settings.given.get("ref_model"):
        told.put(REFERENCE_MODEL, settings.given["ref_model"], "ref_model")
        told.assumed.append("ref_model is counted as a copy of the model that is trained")


def _packs(settings: Settings, stage: str | None) -> bool:
    """Pre-training packs unless told otherwise (parser.py)."""
    written = settings.value("packing")
    return stage == "pt" if written is None else bool(written)


def _adapters(told: Told, settings: Settings) -> None:
    kind = settings.word("finetuning_type")
    if kind in ("lora", "oft"):
        told.put("use_peft", True, "finetuning_type")
        told.settings.setdefault("lora_r", settings.value("lora_rank"))
        modules = settings.given.get("oft_target" if kind == "oft" else "lora_target", "all")
        told.put(
            "lora_target_modules", "all-linear" if modules == "all" else modules, "lora_target"
        )
    if kind == "oft":
        block = settings.whole("oft_block_size", least=0) or _RANKS_A_BLOCK
        told.put("lora_r", max(block // _RANKS_A_BLOCK, 1))
        told.assumed.append(
            f"orthogonal adapters of blocks of {block} are counted as LoRA of rank"
            f" {told.settings['lora_r']}, which has about as many parameters"
        )
    if kind == "freeze":
        trained_layers(told, settings)
    elif settings.truth("use_llama_pro"):
        settings.reserve("use_llama_pro", _OF_SOME_LAYERS, _OF_ALL_LAYERS)
    if settings.truth("use_badam"):
        one_block(told, settings)
    if settings.given.get("additional_target"):
        told.put("lora_modules_to_save", settings.given["additional_target"], "additional_target")
    bits = settings.whole("quantization_bit")
    if bits:
        told.put("bits", bits, "quantization_bit")


_OF_SOME_LAYERS = "adapters are on some layers alone, and which ones is not described"
_OF_ALL_LAYERS = "leave it out to judge adapters on all layers, which take more"


_PROJECTING = {"use_galore": "galore", "use_apollo": "apollo"}


def _optimizer(told: Told, settings: Settings) -> None:
    for name, optimizer in (("use_adam_mini", "adam_mini"), ("use_muon", "muon")):
        if settings.truth(name):
            told.put("optim", optimizer, name)
    for name, kind in _PROJECTING.items():
        if settings.truth(name):
            own = settings.word("optim") or "adamw"
            told.put("optim", f"{kind}_{'adamw_8bit' if '8bit' in own else 'adamw'}", name)
            told.put(MOMENT_RANK, settings.value(f"{kind}_rank"), f"{kind}_rank")


def _mcore(settings: Settings) -> dict[str, str]:
    names: dict[str, str] = settings.table.facts["mcore"]
    return names


def _megatron(told: Told, settings: Settings) -> None:
    """The settings of mcore_adapter, which trains with Megatron-Core, as accelerate calls them."""
    prefix = "megatron_lm_config.megatron_lm"
    told.put("distributed_type", "MEGATRON_LM")
    for name in _mcore(settings):
        if settings.given.get(name) is not None:
            other = _ACCELERATE_NAMES.get(name, name)
            told.put(f"{prefix}_{other}", settings.given[name], name)
    for name, other in _MEGATRON_SWITCHES.items():
        if settings.given.get(name) is not None:
            told.put(f"{prefix}_{other}", settings.given[name], name)
    told.put("gradient_checkpointing", False)


_ACCELERATE_NAMES = {
    "tensor_model_parallel_size": "tp_degree",
    "pipeline_model_parallel_size": "pp_degree",
}
_MEGATRON_SWITCHES = {
    "sequence_parallel": "sequence_parallelism",
    "use_distributed_optimizer": "use_distributed_optimizer",
    "recompute_granularity": "recompute_granularity",
}
