"""The YAML of axolotl 0.21.0 (utils/schemas, utils/config) in the names of accelerate and the
Trainer of transformers, so that one reader serves all tools around the Trainer.

The functions read axolotl's settings in `settings`, and put into `trainer` what they mean there. A
*stop* is a setting with which axolotl refuses to start, and a *reservation* a remark that a setting
could matter and is not, or not fully, taken into account.
"""

from __future__ import annotations

import re

from service.formats.launch.accelerate.sharding import DEGREES
from service.formats.launch.trainer.trained_parts import parts_matching
from service.formats.launch.trainer.trainer_settings import (
    OBJECTIVE,
    REFERENCE_MODEL,
    TRAINED,
    Invocation,
    TrainerSettings,
    note_stop,
    put_fsdp,
    renamed,
)
from service.formats.settings.settings import Settings

_ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "flex_attention": "flex_attention",
    "xformers_attention": "xformers",
    "eager_attention": "eager",
}
"""The switches of earlier releases, of which the first that is on counts."""
_WITHOUT_FSDP1 = 20
"""The minor release in which FSDP1 was removed."""
_WITH_ULYSSES = 20
"""The minor release from which Ulysses is taken before a ring."""
_OBJECTIVES = {"reward_model": "reward", "process_reward_model": "process_reward"}
_FSDP1_REMOVED = (
    "FSDP1 was removed in 0.20: shard with fsdp_config and fsdp_version 2, or name an earlier"
    " release as launch.version"
)
_VERSIONS = ("fsdp_version", "fsdp_config.fsdp_version", "fsdp_config.version")


def translate(settings: Settings, invocation: Invocation) -> TrainerSettings:
    """Returns axolotl's settings under the names of accelerate and the Trainer."""
    trainer = renamed(settings)
    _put_precision(trainer, settings)
    _put_batch(trainer, settings)
    _put_checkpointing(trainer, settings)
    _put_objective(trainer, settings)
    _put_adapters(trainer, settings)
    _put_kernels(trainer, settings)
    _add_reservations_for_plugins(settings)
    _put_sharding(trainer, settings, invocation.version)
    if settings.boolean("use_ray"):
        trainer.put(
            "num_processes", settings.value("ray_num_workers"), source_name="ray_num_workers"
        )
    return trainer


def _put_precision(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets the number formats in `trainer`. bf16 "auto" means bf16 where the device has it, which
    counts as given, unless fp16 is asked for. bf16 goes before fp16 (resolve_dtype)."""
    fp16 = settings.boolean("fp16") or settings.boolean("float16")
    is_auto = settings.given.get("bf16", "auto") in ("auto", None)
    bf16 = not fp16 if is_auto else settings.boolean("bf16")
    bf16 = bf16 or settings.boolean("bfloat16")
    trainer.put("bf16", bf16, source_name="bf16")
    trainer.put("fp16", fp16 and not bf16, source_name="fp16")
    if settings.boolean("fp8"):
        trainer.put("fp8", True)
    dtype = "float16" if fp16 or settings.boolean("load_in_8bit") else "float32"
    trainer.put("dtype", "bfloat16" if bf16 else dtype)


def _put_batch(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets the micro-batch, its accumulation, the sequence length and the default optimizer in
    `trainer`."""
    micro_batch = settings.integer("micro_batch_size")
    batch = settings.integer("batch_size")
    steps = settings.integer("gradient_accumulation_steps")
    if batch and micro_batch and "gradient_accumulation_steps" not in settings.given:
        # The deprecated batch_size is the product of both (validation.py).
        steps = max(batch // micro_batch, 1)
    trainer.put("per_device_train_batch_size", micro_batch, source_name="micro_batch_size")
    trainer.put("gradient_accumulation_steps", steps)
    trainer.put("max_length", settings.value("sequence_len"), source_name="sequence_len")
    if "optimizer" not in settings.given:  # the default is axolotl's
        trainer.put("optim", settings.table.fields["optimizer"].default, source_name="optimizer")


def _put_checkpointing(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets activation checkpointing and offload in `trainer`. Adds a reservation for offload
    to disk."""
    checkpointing = settings.given.get("gradient_checkpointing")
    trainer.put("gradient_checkpointing", bool(checkpointing))
    offloads = settings.given.get("activation_offloading")
    if not offloads and checkpointing in ("offload", "offload_disk"):
        offloads = checkpointing
    if offloads in ("disk", "offload_disk"):
        reason = "activations go to disk, whose time is not described"
        settings.add_reservation(
            "activation_offloading", reason, "judge it with true, in host memory"
        )
    trainer.put("activation_offloading", bool(offloads))


def _put_objective(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets the objective of training in `trainer`: the method of rl, such as "dpo", or a reward
    model."""
    for name, objective in _OBJECTIVES.items():
        if settings.boolean(name):
            trainer.put(OBJECTIVE, objective, source_name=name)
    if settings.text("rl"):
        trainer.put(OBJECTIVE, settings.text("rl"), source_name="rl")
        # Both losses never hold all logits.
        if settings.boolean("dpo_use_liger_kernel"):
            trainer.put("loss_type", "chunked_nll", source_name="dpo_use_liger_kernel")
    if settings.boolean("rl_adapter_ref_model"):
        trainer.put(REFERENCE_MODEL, True, source_name="rl_adapter_ref_model")


def _put_trained_parameters(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets in `trainer` which parts of the model are trained, where not all are. Records a
    reservation for patterns whose parameters are not known."""
    patterns = settings.given.get("unfrozen_parameters")
    if not patterns:
        return
    parts = parts_matching(patterns if isinstance(patterns, list) else [patterns])
    if parts.unknown:
        reason = f"which parameters {', '.join(parts.unknown[:3])[:80]} names is not known"
        cure = "give workload.trained"
        settings.add_reservation(
            "unfrozen_parameters", reason, cure, answered_by="workload.trained"
        )
        return
    if parts.is_in_part:
        trainer.assumed.append("unfrozen_parameters: layers that are trained in part are counted as"
            " trained whole")  # fmt: skip
    if parts.fields is not None:
        trainer.put(TRAINED, parts.fields, source_name="unfrozen_parameters")


def _put_adapters(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets the adapters of lora or qlora in `trainer`; without adapters, the parameters that are
    trained."""
    adapter = settings.text("adapter")
    if adapter is None or not adapter:
        # Without an adapter these have no effect, and need no reservation.
        for name in ("lora_r", "load_in_8bit", "load_in_4bit"):
            trainer.settings.pop(name, None)
        _put_trained_parameters(trainer, settings)
        return
    if adapter not in ("lora", "qlora"):
        cure = "judge it as lora of a rank with as many parameters"
        settings.add_reservation("adapter", "adapters of this kind are not described", cure)
    trainer.put("use_peft", True, source_name="adapter")
    if adapter == "qlora":
        _stop_at_bits(settings)
    if adapter == "qlora" and "load_in_4bit" not in trainer.settings:
        trainer.put("load_in_4bit", True, source_name="adapter")
    if settings.boolean("gptq"):
        trainer.put("load_in_4bit", True, source_name="gptq")
    modules = settings.given.get("lora_target_modules")
    if settings.boolean("lora_target_linear"):
        modules = "all-linear"
    if modules is not None:
        trainer.put("lora_target_modules", modules)
    if settings.given.get("lora_modules_to_save"):
        trainer.put("lora_modules_to_save", settings.given["lora_modules_to_save"])
    parameters = settings.given.get("lora_target_parameters")
    if parameters:
        trainer.put("lora_target_parameters", parameters)


def _stop_at_bits(settings: Settings) -> None:
    """Notes a stop for qlora beside frozen weights that do not have 4 bits."""
    file = "utils/schemas/peft.py"
    cure = "load_in_4bit true"
    others = [name for name in ("load_in_8bit", "gptq") if settings.boolean(name)]
    for name in others:
        rule = "does not go with adapter qlora, which loads 4 bits"
        note_stop(settings, name, rule, file, f"{cure} in its place")
    if not (others or settings.boolean("load_in_4bit")):
        note_stop(settings, "adapter", "qlora needs load_in_4bit true", file, cure)


def _put_kernels(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets the attention kernel, and losses that never hold all logits, in `trainer`. Records a
    reservation for quantization-aware training."""
    if "attn_implementation" not in trainer.settings:
        kernels = (kernel for name, kernel in _ATTENTION.items() if settings.boolean(name))
        if kernel := next(kernels, None):
            trainer.put("attn_implementation", kernel)
    plugins = " ".join(map(str, settings.value("plugins") or ()))
    has_cut_loss = settings.given.get("cut_cross_entropy", "CutCrossEntropyPlugin" in plugins)
    if settings.boolean("liger_fused_linear_cross_entropy") or has_cut_loss:
        trainer.put("use_liger_kernel", True, source_name="liger_fused_linear_cross_entropy")
    if has_cut_loss:
        trainer.assumed.append("cut_cross_entropy is counted as Liger's loss: neither makes logits")
    qat = next((name for name in settings.given if name.startswith("qat.")), None)
    if qat is not None:
        reason = "the rounding of weights or activations in every forward pass is not described"
        settings.add_reservation(qat, reason, "leave qat out to judge the rest of the job")
    if settings.boolean("chunked_cross_entropy"):
        trainer.put("loss_type", "chunked_nll", source_name="chunked_cross_entropy")


def _add_reservations_for_plugins(settings: Settings) -> None:
    """Adds reservations for unknown plugins, and for quantized weights."""
    uses: dict[str, str] = settings.table.facts["plugins"]
    for plugin in map(str, settings.value("plugins") or ()):
        use = next((use for name, use in uses.items() if plugin.endswith(name)), "not_described")
        if use == "not_described":
            reason = f"the plugin {plugin[:80]} may do anything in a step"
            settings.add_reservation("plugins", reason, "leave it out to judge the rest of the job")
    quantized = settings.text("model_quantization_config")
    if quantized and not settings.given.get("model_quantization_config_kwargs.dequantize"):
        reason = "the frozen weights have fewer bits, in a format that is not described"
        cure = "give workload.lora.base_bits 4 or 8"
        settings.add_reservation("model_quantization_config", reason, cure)


def _put_sharding(trainer: TrainerSettings, settings: Settings, version: str | None) -> None:
    """Sets FSDP, context and expert parallelism in `trainer`, as the release `version` reads
    them. Notes a stop for settings of FSDP1 where the release has removed it."""
    fsdp_version = next((settings.given[name] for name in _VERSIONS if name in settings.given), 2)
    has_config = any(name.startswith("fsdp_config.") for name in settings.given)
    options = settings.given.get("fsdp")  # such as full_shard, which only FSDP1 has
    release_has_fsdp1 = _is_before(version, _WITHOUT_FSDP1)
    if not release_has_fsdp1:
        _stop_at_fsdp1(settings)
    if options and release_has_fsdp1:
        put_fsdp(trainer, settings, version=2 if str(fsdp_version) == "2" else 1)
        trainer.put("fsdp", options)
    elif has_config or options:
        put_fsdp(trainer, settings, version=2)
    _put_context(trainer, settings, version)
    _put_expert_parallelism(trainer, settings)
    if any(name.startswith(DEGREES) for name in trainer.settings):
        # Devices that no degree takes are shards, or else replicas (utils/distributed.py).
        for axis in ("dp_shard", "dp_replicate"):
            trainer.settings.setdefault(f"{DEGREES}{axis}_size", "auto")


def _put_context(trainer: TrainerSettings, settings: Settings, version: str | None) -> None:
    """Sets context parallelism in `trainer`. It is Ulysses unless a ring is asked for
    (integrations/context_parallel), and a ring in earlier releases. Beside DeepSpeed it is
    DeepSpeed's sequence parallelism (utils/distributed.py)."""
    cp = settings.integer("context_parallel_size") or settings.integer("context_parallel.size") or 1
    cp = settings.integer("sequence_parallel_degree") or cp
    trainer.settings.pop(f"{DEGREES}cp_size", None)  # which `renamed` has set as if for a ring
    if cp == 1:
        return
    backend = settings.text("context_parallel.backend")
    is_ring = backend == "ring" or _is_before(version, _WITH_ULYSSES)
    # accelerate's "sp" is Ulysses, and its "cp" a ring.
    if settings.given.get("deepspeed") or not is_ring:
        trainer.put(f"{DEGREES}sp_size", cp, source_name="context_parallel_size")
    else:
        trainer.put(f"{DEGREES}cp_size", cp, source_name="context_parallel_size")
        # accelerate's "alltoall" passes keys and values round the ring; "allgather" gathers them.
        trainer.put(f"{DEGREES}cp_comm_strategy", "alltoall")
    if backend == "usp":
        reason = "heads and a ring together are not described"
        cure = "judge it with backend ulysses or ring"
        settings.add_reservation("context_parallel.backend", reason, cure)


def _put_expert_parallelism(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets expert parallelism in `trainer` (integrations/expert_parallel). Notes a stop without
    FSDP, and a reservation where experts drop tokens."""
    ep = settings.integer("expert_parallel_size") or 1
    if ep == 1:
        return
    if trainer.settings.get("distributed_type") != "FSDP":
        _note_stop(settings, "expert_parallel_size", "needs fsdp_config, with fsdp_version 2")
    trainer.put(f"{DEGREES}ep_size", ep, source_name="expert_parallel_size")
    capacity = settings.integer("expert_parallel_token_capacity")
    micro_batch = settings.integer("micro_batch_size") or 1
    # The most tokens that an expert can get: all those of the ranks that share the experts.
    tokens = (settings.integer("sequence_len") or 1) * micro_batch * ep
    if capacity is not None and capacity < tokens:
        reason = f"it drops tokens of an expert that gets more than {capacity} of {tokens}"
        cure = "give workload.capacity_factor"
        settings.add_reservation("expert_parallel_token_capacity", reason, cure)


def _is_before(version: str | None, minor: int) -> bool:
    """Returns True where `version` names a release before 0.`minor`; False without a version."""
    numbers = re.match(r"v?0\.(\d{1,3})", version or "", re.ASCII)
    return numbers is not None and int(numbers.group(1)) < minor


def _stop_at_fsdp1(settings: Settings) -> None:
    """Notes a stop for each setting of FSDP1, which this release refuses (validation.py,
    check_fsdp_version)."""
    if settings.given.get("fsdp"):
        _note_stop(settings, "fsdp", _FSDP1_REMOVED)
    for name in _VERSIONS:
        if name in settings.given and str(settings.given[name]) != "2":
            _note_stop(settings, name, f"must be 2: {_FSDP1_REMOVED}")
    for key in ("sharding_strategy", "forward_prefetch"):
        for name in (f"fsdp_config.{key}", f"fsdp_config.fsdp_{key}"):
            if name in settings.given:
                _note_stop(settings, name, f"is of FSDP1 alone: {_FSDP1_REMOVED}")
                settings.given.pop(name)  # the job is read as FSDP2, which has none


def _note_stop(settings: Settings, name: str, rule: str) -> None:
    """Notes that axolotl refuses the setting `name`, by `rule`."""
    note_stop(settings, name, rule, "utils/schemas/validation.py")
