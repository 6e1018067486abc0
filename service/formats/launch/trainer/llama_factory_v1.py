"""The settings of LLaMA-Factory's second interface (llamafactory 0.9.5, v1/config, v1/plugins) in
the names of accelerate and the Trainer of transformers, so that one reader serves all tools. The
functions read LLaMA-Factory's settings in `settings`, and put into `trainer` what they mean there.
"""

from __future__ import annotations

from service.formats.launch.trainer.llama_factory_parts import put_trained_layers
from service.formats.launch.trainer.trainer_settings import Invocation, TrainerSettings, renamed
from service.formats.settings.settings import Settings

_ATTENTION_KERNELS = {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "disabled": "eager"}
_AXES = {"dp_replicate": "mp_replicate_size", "dp_shard": "mp_shard_size"}
"""The settings for the axes of FSDP2's mesh, by accelerate's name of the axis."""


def translate(settings: Settings, invocation: Invocation) -> TrainerSettings:
    """Returns the settings of LLaMA-Factory's second interface under the names of accelerate and
    the Trainer."""
    trainer = renamed(settings)
    # `renamed` takes given settings alone, and the defaults of these count too: bf16 and
    # checkpointing are on.
    for name in ("cutoff_len", "micro_batch_size", "bf16", "enable_activation_checkpointing"):
        trainer.put(settings.table.facts["renamed"][name], settings.value(name), source_name=name)
    if settings.given.get("global_batch_size"):
        trainer.put("global_batch_size", settings.integer("global_batch_size"))
    _put_adapters(trainer, settings)
    _put_sharding(trainer, settings)
    if settings.given.get("kernel_config.name") == "liger_kernel":
        trainer.put("use_liger_kernel", True, source_name="kernel_config.name")
    if settings.text("optim_config.name") == "muon":
        trainer.put("optim", "muon", source_name="optim_config.name")
    kernel = _ATTENTION_KERNELS.get(settings.text("flash_attn") or "")
    if kernel is not None:
        trainer.put("attn_implementation", kernel, source_name="flash_attn")
    return trainer


def _put_adapters(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets adapters in `trainer`; without adapters, the layers that are trained."""
    kind = settings.text("peft_config.name")
    if kind == "lora":
        trainer.put("use_peft", True, source_name="peft_config.name")
        # Settings with a name of the Trainer's, such as the modules, have been put there before.
        if trainer.settings.get("lora_target_modules", "all") == "all":
            trainer.put(
                "lora_target_modules", "all-linear", source_name="peft_config.target_modules"
            )
    elif kind == "freeze":
        put_trained_layers(trainer, settings, "peft_config.")
    elif kind is not None:
        reason = "only some parameters are trained, and which ones is not described"
        settings.add_reservation(
            "peft_config.name", reason, "leave it out to judge full fine-tuning"
        )
    bits = settings.value("quant_config.quantization_bit")
    if bits is not None:
        trainer.put("bits", bits, source_name="quant_config.quantization_bit")


def _put_sharding(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets FSDP2 or the DeepSpeed document in `trainer`, and context parallelism. Records a
    reservation for other plugins."""
    kind = settings.text("dist_config.name")
    cp = settings.value("dist_config.cp_size")
    splits_context = cp and cp != 1
    if kind == "fsdp2":
        trainer.put("distributed_type", "FSDP")
        trainer.put("fsdp_config.fsdp_version", 2)
        for name in ("reshard_after_forward", "offload_params"):
            value = settings.value(f"dist_config.{name}")
            if value is not None:
                trainer.put(f"fsdp_config.fsdp_{name}", value, source_name=f"dist_config.{name}")
        for axis, name in _AXES.items():
            degree = settings.value(f"dist_config.{name}")
            # Once one degree is set, accelerate takes the others as 1 unless they are "auto".
            if degree or splits_context:
                trainer.put(
                    f"parallelism_config.parallelism_config_{axis}_size",
                    degree or "auto",
                    source_name=f"dist_config.{name}",
                )
    elif kind == "deepspeed":
        trainer.put(
            "deepspeed",
            settings.value("dist_config.config_file"),
            source_name="dist_config.config_file",
        )
    elif kind is not None:
        reason = "this distributed plugin is not described"
        settings.add_reservation("dist_config.name", reason, "judge it with fsdp2 or deepspeed")
    if splits_context:
        trainer.put(
            "parallelism_config.parallelism_config_cp_size", cp, source_name="dist_config.cp_size"
        )
        # The stack of FSDP tells Ulysses from other exchanges by this backend.
        if settings.text("dist_config.cp_mode") == "ulysses":
            trainer.put("parallelism_config.parallelism_config_sp_backend", "deepspeed")
