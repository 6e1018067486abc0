"""The settings of LLaMA-Factory 0.9.5 (hparams, model/patcher.py, model/adapter.py) in the names of
accelerate and the Trainer of transformers, so that one reader serves all tools. The
functions read LLaMA-Factory's settings in `settings`, and put into `trainer` what they mean there.
"""

from __future__ import annotations

from service.formats.launch.trainer.llama_factory_parts import put_one_block, put_trained_layers
from service.formats.launch.trainer.trainer_settings import (
    MOMENT_RANK,
    OBJECTIVE,
    REFERENCE_MODEL,
    Invocation,
    TrainerSettings,
    note_stop,
    put_fsdp,
    renamed,
)
from service.formats.settings.settings import Settings

_WITHOUT_REFERENCE = ("orpo", "simpo")
_OBJECTIVES = {"rm": "reward_beside_logits"}  # AutoModelForCausalLMWithValueHead has both heads
_USUAL_BATCH = 8  # of TrainingArguments
_BLOCK_OF_RANK_1 = 4
"""An orthogonal block of b x b has b (b - 1) / 2 parameters for b inputs, about as many for a
square matrix as adapters of rank b / 4."""


def translate(settings: Settings, invocation: Invocation) -> TrainerSettings:
    """Returns LLaMA-Factory's settings under the names of accelerate and the Trainer."""
    trainer = renamed(settings)
    trainer.put("max_length", settings.value("cutoff_len"), source_name="cutoff_len")
    trainer.settings.setdefault("per_device_train_batch_size", _USUAL_BATCH)
    stage = settings.text("stage")
    _put_objective(trainer, settings, stage)
    trainer.put("packing", bool(settings.boolean("neat_packing") or _packs(settings, stage)))
    # Checkpointing is on unless this switch is set, whatever TrainingArguments say
    # (model_utils/checkpointing.py).
    trainer.put("gradient_checkpointing", not settings.boolean("disable_gradient_checkpointing"))
    trainer.put("activation_offloading", settings.boolean("use_unsloth_gc"))
    if settings.boolean("pure_bf16"):
        trainer.put("bf16", False)  # which would be mixed precision, with an fp32 copy
        trainer.put("dtype", "bfloat16", source_name="pure_bf16")
    _put_adapters(trainer, settings)
    _put_optimizer(trainer, settings)
    kernel = settings.table.facts["attention"].get(str(settings.text("flash_attn")))
    if kernel:
        trainer.put("attn_implementation", kernel, source_name="flash_attn")
    if settings.given.get("fsdp"):
        put_fsdp(trainer, settings, version=1)
    if "ray_num_workers" in settings.given:
        trainer.put(
            "num_processes", settings.value("ray_num_workers"), source_name="ray_num_workers"
        )
    if settings.boolean("use_mca") or any(name in settings.given for name in _mcore(settings)):
        _put_megatron(trainer, settings)
    return trainer


def _put_objective(trainer: TrainerSettings, settings: Settings, stage: str | None) -> None:
    """Sets the objective of training in `trainer`: that of `stage`, such as "dpo", or a
    preference loss that needs no reference model."""
    loss = settings.text("pref_loss")
    if stage == "dpo" and loss in _WITHOUT_REFERENCE:
        trainer.put(OBJECTIVE, loss, source_name="pref_loss")
    elif settings.boolean("use_asft_loss"):
        trainer.put(OBJECTIVE, "asft", source_name="use_asft_loss")
    else:
        trainer.put(OBJECTIVE, _OBJECTIVES.get(str(stage), stage), source_name="stage")
    if settings.given.get("ref_model"):
        trainer.put(REFERENCE_MODEL, settings.given["ref_model"], source_name="ref_model")
        trainer.assumed.append("ref_model is counted as a copy of the model that is trained")


def _packs(settings: Settings, stage: str | None) -> bool:
    """Returns True where sequences are packed, as they are by default in pre-training
    (parser.py)."""
    packing = settings.value("packing")
    return stage == "pt" if packing is None else bool(packing)


def _put_adapters(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets adapters in `trainer`; without adapters, the parameters of the model that are
    trained."""
    kind = settings.text("finetuning_type")
    if kind in ("lora", "oft"):
        trainer.put("use_peft", True, source_name="finetuning_type")
        trainer.settings.setdefault("lora_r", settings.value("lora_rank"))
        modules = settings.given.get("oft_target" if kind == "oft" else "lora_target", "all")
        trainer.put(
            "lora_target_modules",
            "all-linear" if modules == "all" else modules,
            source_name="lora_target",
        )
    if kind == "oft":
        block = settings.integer("oft_block_size", least=0) or _BLOCK_OF_RANK_1
        rank = max(block // _BLOCK_OF_RANK_1, 1)
        trainer.put("lora_r", rank)
        trainer.assumed.append(
            f"orthogonal adapters of blocks of {block} are counted as LoRA of rank {rank}, which"
            " has about as many parameters"
        )
    if kind == "freeze":
        put_trained_layers(trainer, settings)
    elif settings.boolean("use_llama_pro"):
        reason = "adapters are on some layers alone, and which ones is not described"
        cure = "leave it out to judge adapters on all layers, which take more"
        settings.add_reservation("use_llama_pro", reason, cure)
    if settings.boolean("use_badam"):
        put_one_block(trainer, settings)
    if settings.given.get("additional_target"):
        trainer.put(
            "lora_modules_to_save",
            settings.given["additional_target"],
            source_name="additional_target",
        )
    bits = settings.integer("quantization_bit")
    if bits and kind not in ("lora", "oft"):
        rule = "goes with finetuning_type lora or oft"
        note_stop(settings, "quantization_bit", rule, "hparams/parser.py", "finetuning_type lora")
    if bits:
        trainer.put("bits", bits, source_name="quantization_bit")


_PROJECTING = {"use_galore": "galore", "use_apollo": "apollo"}
"""Switches of optimizers whose moments are those of gradients projected to a low rank."""


def _put_optimizer(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets the optimizer in `trainer` where a switch of its own selects it: Muon, Adam-mini, or
    one that projects gradients to a rank."""
    for name, optimizer in (("use_adam_mini", "adam_mini"), ("use_muon", "muon")):
        if settings.boolean(name):
            trainer.put("optim", optimizer, source_name=name)
    for name, projection in _PROJECTING.items():
        if settings.boolean(name):
            # The Trainer's name is the projection and then the optimizer: galore_adamw_8bit.
            optimizer = "adamw_8bit" if "8bit" in (settings.text("optim") or "") else "adamw"
            trainer.put("optim", f"{projection}_{optimizer}", source_name=name)
            rank = f"{projection}_rank"
            trainer.put(MOMENT_RANK, settings.value(rank), source_name=rank)


def _mcore(settings: Settings) -> dict[str, str]:
    """Returns the settings of mcore_adapter, which trains with Megatron-Core."""
    names: dict[str, str] = settings.table.facts["mcore"]
    return names


def _put_megatron(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets the arguments of mcore_adapter, which trains with Megatron-Core, in `trainer` under
    accelerate's names for them."""
    trainer.put("distributed_type", "MEGATRON_LM")
    for name in [*_mcore(settings), *_MEGATRON_SWITCHES]:
        if settings.given.get(name) is not None:
            key = _ACCELERATE_NAMES.get(name, name)
            trainer.put(
                f"megatron_lm_config.megatron_lm_{key}", settings.given[name], source_name=name
            )
    trainer.put("gradient_checkpointing", False)  # Megatron has recompute_granularity instead


_ACCELERATE_NAMES = {
    "tensor_model_parallel_size": "tp_degree",
    "pipeline_model_parallel_size": "pp_degree",
    "sequence_parallel": "sequence_parallelism",
}
_MEGATRON_SWITCHES = ("sequence_parallel", "use_distributed_optimizer", "recompute_granularity")
