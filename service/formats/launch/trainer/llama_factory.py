"""The settings of LLaMA-Factory 0.9.5 (hparams, model/patcher.py, model/adapter.py) in the names of
accelerate and the Trainer; and those of its second interface (v1/config)."""

from __future__ import annotations

from service.formats.launch.trainer.told import Asked, Told, put_fsdp, renamed
from service.formats.settings.settings import Settings

_PREFERENCES = ("rm", "ppo", "dpo", "kto")
_OTHER_STAGE = (
    "this stage runs other forwards and losses than supervised training, often of a second model"
)
_SUPERVISED = "ask about stage sft, which this job takes at least"
_BITS = {4: "load_in_4bit", 8: "load_in_8bit"}
_RANKS_A_BLOCK = 4
"""An orthogonal block of b x b has b (b - 1) / 2 parameters for b inputs, about as many for a
square matrix as adapters of rank b / 4."""


def translate(settings: Settings, asked: Asked) -> Told:
    told = renamed(settings)
    told.put("max_length", settings.value("cutoff_len"), "cutoff_len")
    stage = settings.word("stage")
    if stage in _PREFERENCES:
        settings.reserve("stage", _OTHER_STAGE, _SUPERVISED)
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
        reason = "only some layers are trained, and which ones is not described"
        settings.reserve("finetuning_type", reason, "judge it as full, which takes more")
    bits = settings.whole("quantization_bit")
    if bits in _BITS:
        told.put(_BITS[bits], True, "quantization_bit")
    elif bits:
        reason = f"frozen weights of {bits} bits are not described"
        settings.reserve("quantization_bit", reason, "judge it with 4 or 8 bits")


def _optimizer(told: Told, settings: Settings) -> None:
    for name, optimizer in (("use_adam_mini", "adam_mini"), ("use_muon", "muon")):
        if settings.truth(name):
            told.put("optim", optimizer, name)


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


def translate_v1(settings: Settings, asked: Asked) -> Told:
    """The settings of the second interface, whose defaults checkpoint and take bf16."""
    told = renamed(settings)
    for own in ("cutoff_len", "micro_batch_size", "bf16", "enable_activation_checkpointing"):
        told.put(settings.table.facts["renamed"][own], settings.value(own), own)
    if settings.given.get("global_batch_size"):
        told.put("global_batch_size", settings.whole("global_batch_size"))
    _adapters_v1(told, settings)
    _sharding_v1(told, settings)
    if settings.given.get("kernel_config.name") == "liger_kernel":
        told.put("use_liger_kernel", True, "kernel_config.name")
    if settings.word("optim_config.name") == "muon":
        told.put("optim", "muon", "optim_config.name")
    kernel = {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "disabled": "eager"}
    if (attention := settings.word("flash_attn")) in kernel:
        told.put("attn_implementation", kernel[str(attention)], "flash_attn")
    return told


def _adapters_v1(told: Told, settings: Settings) -> None:
    kind = settings.word("peft_config.name")
    if kind == "lora":
        told.put("use_peft", True, "peft_config.name")
        if told.settings.get("lora_target_modules", "all") == "all":
            told.put("lora_target_modules", "all-linear", "peft_config.target_modules")
    elif kind is not None:
        reason = "only some parameters are trained, and which ones is not described"
        settings.reserve("peft_config.name", reason, "leave it out to judge full fine-tuning")
    bits = settings.value("quant_config.quantization_bit")
    if isinstance(bits, (int, str)) and bits in _BITS:
        told.put(_BITS[bits], True, "quant_config.quantization_bit")


def _sharding_v1(told: Told, settings: Settings) -> None:
    kind = settings.word("dist_config.name")
    cp = settings.value("dist_config.cp_size")
    if kind == "fsdp2":
        told.put("distributed_type", "FSDP")
        told.put("fsdp_config.fsdp_version", 2)
        for name in ("reshard_after_forward", "offload_params"):
            value = settings.value(f"dist_config.{name}")
            if value is not None:
                told.put(f"fsdp_config.fsdp_{name}", value, f"dist_config.{name}")
        for axis, own in (("dp_replicate", "mp_replicate_size"), ("dp_shard", "mp_shard_size")):
            value = settings.value(f"dist_config.{own}")
            name = f"parallelism_config.parallelism_config_{axis}_size"
            if value or (cp and cp != 1):
                told.put(name, value or "auto", f"dist_config.{own}")
    elif kind == "deepspeed":
        told.put("deepspeed", settings.value("dist_config.config_file"), "dist_config.config_file")
    elif kind is not None:
        reason = "this distributed plugin is not described"
        settings.reserve("dist_config.name", reason, "judge it with fsdp2 or deepspeed")
    if cp and cp != 1:
        told.put("parallelism_config.parallelism_config_cp_size", cp, "dist_config.cp_size")
        if settings.word("dist_config.cp_mode") == "ulysses":
            told.put("parallelism_config.parallelism_config_sp_backend", "deepspeed")
