"""The arguments of ms-swift 4.6.0 (arguments, trainers/arguments.py, config) in the names of
accelerate and the Trainer of transformers, so that one reader serves all tools. The functions read
ms-swift's settings in `settings`, and put into `trainer` what they mean there."""

from __future__ import annotations

import math

from models.spec import catalogue
from service.formats.launch.trainer.models import first_named_model
from service.formats.launch.trainer.trainer_settings import (
    CONTEXT,
    OBJECTIVE,
    REFERENCE_MODEL,
    Invocation,
    TrainerSettings,
    note_stop,
    renamed,
)
from service.formats.settings.settings import Settings

MODEL_NAMES = ("model", "model_id_or_path", "model_name_or_path")
_SEQUENCES_A_STEP = 16  # of all ranks, where nobody says how many (trainers/arguments.py)


def translate(settings: Settings, invocation: Invocation) -> TrainerSettings:
    """Returns ms-swift's settings under the names of accelerate and the Trainer."""
    trainer = renamed(settings)
    micro_batch = settings.integer("per_device_train_batch_size") or 1  # ms-swift's default
    trainer.put("per_device_train_batch_size", micro_batch)
    trainer.put("gradient_checkpointing", settings.boolean("gradient_checkpointing"))
    # By default ms-swift accumulates up to _SEQUENCES_A_STEP sequences.
    if settings.given.get("gradient_accumulation_steps") is None and invocation.num_devices:
        steps = max(1, math.ceil(_SEQUENCES_A_STEP / micro_batch / invocation.num_devices))
        trainer.put("gradient_accumulation_steps", steps)
    if settings.given.get("packing_length"):
        trainer.put("max_length", settings.integer("packing_length"), source_name="packing_length")
    _put_precision(trainer, settings)
    _put_adapters(trainer, settings)
    if invocation.command == "rlhf" or "rlhf_type" in settings.given:
        trainer.put(OBJECTIVE, objective_of(settings), source_name="rlhf_type")
    note_other_task(settings)
    if is_classification(settings):
        trainer.put(OBJECTIVE, "classification", source_name="task_type")
    if settings.given.get("ref_model"):
        trainer.put(REFERENCE_MODEL, settings.given["ref_model"], source_name="ref_model")
    kernel = settings.table.facts["attention"].get(settings.text("attn_impl") or "")
    if kernel:
        trainer.put("attn_implementation", kernel, source_name="attn_impl")
    _stop_at_packing(settings)
    _put_sharding(trainer, settings)
    return trainer


def objective_of(settings: Settings) -> str | None:
    """Returns the method of `swift rlhf`, such as "dpo". Its rm is a reward model, whose head
    gives one number (arguments/rlhf_args.py, _init_rm)."""
    kind = settings.text("rlhf_type")
    return "reward" if kind == "rm" else kind


def is_classification(settings: Settings) -> bool:
    """Returns True for a model whose head gives a number for each class, in place of words
    (model/register.py)."""
    return settings.text("task_type") == "seq_cls"


def note_other_task(settings: Settings) -> None:
    """Adds a reservation for a task that is neither classification nor the prediction of words."""
    if settings.text("task_type") not in (None, "causal_lm", "seq_cls"):
        reason = "the head, and how many texts a sample has, are not described"
        cure = "give workload.head, and count batches in texts"
        settings.add_reservation("task_type", reason, cure, answered_by="workload.head")


def _stop_at_packing(settings: Settings) -> None:
    """Notes a stop for sequences without padding beside attention that needs it."""
    name = "packing" if settings.boolean("packing") else "padding_free"
    kernel = settings.text("attn_impl") or settings.text("attn_implementation")
    if settings.boolean(name) and kernel not in settings.table.facts["without_padding"]:
        rule = "needs attn_impl flash_attn, flash_attention_2, 3 or 4"
        note_stop(settings, name, rule, "arguments/sft_args.py", "attn_impl flash_attn")


def _put_precision(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets the number formats in `trainer`. Without torch_dtype they are those of the
    checkpoint, which is nearly always bf16."""
    dtype = settings.text("torch_dtype") or "bfloat16"
    fp16 = settings.boolean("fp16") or dtype == "float16"
    trainer.put("fp16", fp16)
    trainer.put("bf16", not fp16 and dtype != "float32", source_name="torch_dtype")
    trainer.put("dtype", dtype, source_name="torch_dtype")


def _put_adapters(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets LoRA adapters in `trainer`, unless all parameters are trained. LoRA is the default.
    Adds a reservation for adapters of other kinds."""
    names = ("tuner_type", "train_type", "sft_type")  # the setting, and what it was called before
    name = next((candidate for candidate in names if candidate in settings.given), "tuner_type")
    kind = settings.text(name) or "lora"
    if kind == "full":
        return
    if kind not in ("lora", "longlora"):
        cure = "judge it as lora of a rank with as many parameters"
        settings.add_reservation(name, "adapters of this kind are not described", cure)
    trainer.put("use_peft", True, source_name=name)
    trainer.settings.setdefault("lora_r", settings.value("lora_rank"))
    trainer.settings.setdefault("lora_target_modules", "all-linear")
    if settings.value("quant_bits") is not None:
        trainer.put("bits", settings.value("quant_bits"), source_name="quant_bits")
    if settings.given.get("modules_to_save"):
        trainer.put(
            "lora_modules_to_save", settings.given["modules_to_save"], source_name="modules_to_save"
        )


def _put_sharding(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets in `trainer` what presets such as "zero2" mean for DeepSpeed or FSDP, and the tensor
    and sequence parallelism beside them."""
    facts = settings.table.facts
    preset = facts["deepspeed_presets"].get(str(settings.given.get("deepspeed")))
    if preset is not None:
        trainer.settings.pop("deepspeed")  # the preset's name would be taken for a file
        for name, value in preset.items():
            trainer.put(f"deepspeed.{name}", value, source_name="deepspeed")
    tp = settings.integer("deepspeed_autotp_size")
    if tp:
        trainer.put(
            "deepspeed.tensor_parallel.autotp_size", tp, source_name="deepspeed_autotp_size"
        )
    fsdp = settings.given.get("fsdp")
    if str(fsdp) in facts["fsdp_presets"]:
        for name, value in facts["fsdp_presets"][str(fsdp)].items():
            trainer.put(name, value, source_name="fsdp")
    elif fsdp:
        trainer.put("fsdp", fsdp)
    # ms-swift's own Ulysses is read as that of accelerate, which calls its degree otherwise.
    trainer.settings.pop("sequence_parallel_size", None)
    cp = settings.integer("sequence_parallel_size")
    if cp is not None and cp > 1:
        trainer.put(
            "parallelism_config.parallelism_config_sp_size",
            cp,
            source_name="sequence_parallel_size",
        )
        _put_context(trainer, settings, cp)


def _put_context(trainer: TrainerSettings, settings: Settings, cp: int) -> None:
    """Sets the way of context parallelism in `trainer` where a ring takes part. Ulysses takes as
    many ranks as divide the heads of keys, and a ring the rest (sequence_parallel/
    sequence_parallel.py, _init_device_mesh). Notes a stop for a ring beside padding."""
    model = first_named_model(settings.given, MODEL_NAMES)
    if model.id is None:
        return
    attentions = catalogue.architecture(model.id).attentions
    heads = math.gcd(cp, *(attention.num_key_value_heads for attention in attentions))
    if heads == cp:
        return
    trainer.put(CONTEXT, "ring", source_name="sequence_parallel_size")
    if heads > 1:
        trainer.assumed.append(
            f"sequence_parallel_size {cp}: heads over {heads} ranks and a ring of {cp // heads} are"
            f" counted as a ring of {cp}"
        )
    if not (settings.boolean("padding_free") or settings.boolean("packing")):
        rule = f"needs padding_free true, for a ring: heads of keys go over {heads} ranks at most"
        file = "sequence_parallel/sequence_parallel.py"
        note_stop(settings, "sequence_parallel_size", rule, file, "padding_free true")
