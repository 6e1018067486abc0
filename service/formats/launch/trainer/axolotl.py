"""The YAML of axolotl 0.21.0 (utils/schemas, utils/config) in the names of accelerate and the
Trainer."""

from __future__ import annotations

import re
from typing import Any

from service.formats.launch.trainer.told import (
    OBJECTIVE,
    REFERENCE_MODEL,
    TRAINED,
    Asked,
    Told,
    put_fsdp,
    renamed,
)
from service.formats.launch.trainer.trained_parts import of_patterns
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stop

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
_REMOVED = (
    "FSDP1 was removed in 0.20: shard with fsdp_config and fsdp_version 2, or name an earlier"
    " release as launch.version"
)
_VERSIONS = ("fsdp_version", "fsdp_config.fsdp_version", "fsdp_config.version")


def translate(settings: Settings, asked: Asked) -> Told:
    told = renamed(settings)
    _precision(told, settings)
    _batch(told, settings)
    _checkpointing(told, settings)
    _objective(told, settings)
    _adapters(told, settings)
    _kernels(told, settings)
    _plugins(settings)
    _sharding(told, settings, asked.version)
    if settings.truth("use_ray"):
        told.put("num_processes", settings.value("ray_num_workers"), "ray_num_workers")
    return told


def _precision(told: Told, settings: Settings) -> None:
    """bf16 is on where the device has it and nobody asks for fp16 (resolve_dtype)."""
    half = bool(settings.truth("fp16") or settings.truth("float16"))
    written = settings.given.get("bf16", "auto")
    bf16 = not half if written in ("auto", None) else bool(settings.truth("bf16"))
    bf16 = bf16 or settings.truth("bfloat16")
    told.put("bf16", bf16 and not settings.truth("fp16"), "bf16")
    told.put("fp16", half and not bf16, "fp16")
    if settings.truth("fp8"):
        told.put("fp8", True)
    is_16_bit = half or settings.truth("load_in_8bit")
    told.put("dtype", "bfloat16" if bf16 else "float16" if is_16_bit else "float32")


def _batch(told: Told, settings: Settings) -> None:
    micro = settings.whole("micro_batch_size")
    batch = settings.whole("batch_size")
    steps = settings.whole("gradient_accumulation_steps")
    if batch and micro and "gradient_accumulation_steps" not in settings.given:
        steps = max(batch // micro, 1)  # validation.py, where batch_size is deprecated
    told.put("per_device_train_batch_size", micro, "micro_batch_size")
    told.put("gradient_accumulation_steps", steps)
    told.put("max_length", settings.value("sequence_len"), "sequence_len")
    if "optimizer" not in settings.given:
        told.put("optim", settings.table.fields["optimizer"].default, "optimizer")


def _checkpointing(told: Told, settings: Settings) -> None:
    written = settings.given.get("gradient_checkpointing")
    told.put("gradient_checkpointing", bool(written))
    offloads = settings.given.get("activation_offloading") or (
        written if written in ("offload", "offload_disk") else None
    )
    if offloads in ("disk", "offload_disk"):
        reason = "activations go to disk, whose time is not described"
        settings.reserve("activation_offloading", reason, "judge it with true, in host memory")
    told.put("activation_offloading", bool(offloads))


def _objective(told: Told, settings: Settings) -> None:
    for name, objective in _OBJECTIVES.items():
        if settings.truth(name):
            told.put(OBJECTIVE, objective, name)
    if settings.word("rl"):
        told.put(OBJECTIVE, settings.word("rl"), "rl")
        if settings.truth("dpo_use_liger_kernel"):
            told.put("loss_type", "chunked_nll", "dpo_use_liger_kernel")
    if settings.truth("rl_adapter_ref_model"):
        told.put(REFERENCE_MODEL, True, "rl_adapter_ref_model")


def _parameters(told: Told, settings: Settings) -> None:
    """The parameters of the model that are trained, where not all are."""
    patterns = settings.given.get("unfrozen_parameters")
    if not patterns:
        return
    parts = of_patterns(patterns if isinstance(patterns, list) else [patterns])
    if parts.unknown:
        reason = f"which parameters {', '.join(parts.unknown[:3])[:80]} names is not known"
        cure = "give workload.trained"
        settings.reserve("unfrozen_parameters", reason, cure, answered_by="workload.trained")
        return
    if parts.is_in_part:
        told.assumed.append("unfrozen_parameters: layers that are trained in part are counted as"
            " trained whole")  # fmt: skip
    if parts.fields is not None:
        told.put(TRAINED, parts.fields, "unfrozen_parameters")


def _adapters(told: Told, settings: Settings) -> None:
    adapter = settings.word("adapter")
    if adapter is None or not adapter:
        for name in ("lora_r", "load_in_8bit", "load_in_4bit"):
            told.settings.pop(name, None)
        _parameters(told, settings)
        return
    if adapter not in ("lora", "qlora"):
        cure = "judge it as lora of a rank with as many parameters"
        settings.reserve("adapter", "adapters of this kind are not described", cure)
    told.put("use_peft", True, "adapter")
    if adapter == "qlora" and "load_in_4bit" not in told.settings:
        told.put("load_in_4bit", True, "adapter")
    if settings.truth("gptq"):
        told.put("load_in_4bit", True, "gptq")
    modules = settings.given.get("lora_target_modules")
    if settings.truth("lora_target_linear"):
        modules = "all-linear"
    if modules is not None:
        told.put("lora_target_modules", modules)
    if settings.given.get("lora_modules_to_save"):
        told.put("lora_modules_to_save", settings.given["lora_modules_to_save"])
    parameters = settings.given.get("lora_target_parameters")
    if parameters:
        told.put("lora_target_parameters", parameters)


def _kernels(told: Told, settings: Settings) -> None:
    if "attn_implementation" not in told.settings:
        on = [kernel for name, kernel in _ATTENTION.items() if settings.truth(name)]
        if on:
            told.put("attn_implementation", on[0])
    plugins = " ".join(map(str, settings.value("plugins") or ()))
    cuts = settings.given.get("cut_cross_entropy", "CutCrossEntropyPlugin" in plugins)
    if settings.truth("liger_fused_linear_cross_entropy") or cuts:
        told.put("use_liger_kernel", True, "liger_fused_linear_cross_entropy")
    if cuts:
        told.assumed.append("cut_cross_entropy is counted as Liger's loss: neither makes logits")
    rounds = next((name for name in settings.given if name.startswith("qat.")), None)
    if rounds is not None:
        reason = "the rounding of weights or activations in every forward pass is not described"
        settings.reserve(rounds, reason, "leave qat out to judge the rest of the job")
    if settings.truth("chunked_cross_entropy"):
        told.put("loss_type", "chunked_nll", "chunked_cross_entropy")


def _plugins(settings: Settings) -> None:
    known = settings.table.facts["plugins"]
    for plugin in settings.value("plugins") or ():
        use = next((use for name, use in known.items() if str(plugin).endswith(name)), None)
        if use is None or use == "not_described":
            reason = f"the plugin {str(plugin)[:80]} may do anything in a step"
            settings.reserve("plugins", reason, "leave it out to judge the rest of the job")
    quantized = settings.word("model_quantization_config")
    if quantized and not settings.given.get("model_quantization_config_kwargs.dequantize"):
        reason = "the frozen weights have fewer bits, in a format that is not described"
        cure = "give workload.lora.base_bits 4 or 8"
        settings.reserve("model_quantization_config", reason, cure)


def _sharding(told: Told, settings: Settings, version: str | None) -> None:
    prefix = "parallelism_config.parallelism_config_"
    own_version = next((settings.given[name] for name in _VERSIONS if name in settings.given), 2)
    has_fsdp = any(name.startswith("fsdp_config.") for name in settings.given)
    listed = settings.given.get("fsdp")
    has_fsdp1 = _is_before(version, _WITHOUT_FSDP1)
    if not has_fsdp1:
        _stop_at_fsdp1(settings)
    if listed and has_fsdp1:
        put_fsdp(told, settings, version=1 if str(own_version) != "2" else 2)
        told.put("fsdp", listed)
    elif has_fsdp or listed:
        put_fsdp(told, settings, version=2)
    _context(told, settings, prefix, version)
    _experts(told, settings, prefix)
    if any(name.startswith(prefix) for name in told.settings):
        # Devices that no degree takes are shards, or else replicas (utils/distributed.py).
        for axis in ("dp_shard", "dp_replicate"):
            told.settings.setdefault(f"{prefix}{axis}_size", "auto")


def _context(told: Told, settings: Settings, prefix: str, version: str | None) -> None:
    """Heads are exchanged for tokens where nobody asks for a ring and the ranks of a sequence fit
    a node (integrations/context_parallel); earlier releases have a ring. Beside DeepSpeed it is its
    sequence parallelism (utils/distributed.py)."""
    cp = settings.whole("context_parallel_size") or settings.whole("context_parallel.size") or 1
    cp = settings.whole("sequence_parallel_degree") or cp
    told.settings.pop(f"{prefix}cp_size", None)
    if cp == 1:
        return
    backend = settings.word("context_parallel.backend")
    is_ring = backend == "ring" or _is_before(version, _WITH_ULYSSES)
    if settings.given.get("deepspeed") or not is_ring:
        told.put(f"{prefix}sp_size", cp, "context_parallel_size")
    else:
        told.put(f"{prefix}cp_size", cp, "context_parallel_size")
        told.put(f"{prefix}cp_comm_strategy", "alltoall")
    if backend == "usp":
        reason = "heads and a ring together are not described"
        cure = "judge it with backend ulysses or ring"
        settings.reserve("context_parallel.backend", reason, cure)


def _experts(told: Told, settings: Settings, prefix: str) -> None:
    """Experts that are divided over ranks (integrations/expert_parallel)."""
    ep = settings.whole("expert_parallel_size") or 1
    if ep == 1:
        return
    if told.settings.get("distributed_type") != "FSDP":
        _stop(settings, "expert_parallel_size", "needs fsdp_config, with fsdp_version 2")
    told.put(f"{prefix}ep_size", ep, "expert_parallel_size")
    cap = settings.whole("expert_parallel_token_capacity")
    micro = settings.whole("micro_batch_size") or 1
    tokens = (settings.whole("sequence_len") or 1) * micro * ep
    if cap is not None and cap < tokens:
        reason = f"it drops tokens of an expert that gets more than {cap} of {tokens}"
        cure = "give workload.capacity_factor"
        settings.reserve("expert_parallel_token_capacity", reason, cure)


def _is_before(version: str | None, minor: int) -> bool:
    """Returns True where a release is named that is older than 0.`minor`."""
    numbers = re.match(r"v?0\.(\d{1,3})", version or "", re.ASCII)
    return numbers is not None and int(numbers.group(1)) < minor


def _stop_at_fsdp1(settings: Settings) -> None:
    """Note where this release stops at settings of FSDP1 (validation.py, check_fsdp_version)."""
    if settings.given.get("fsdp"):
        _stop(settings, "fsdp", _REMOVED)
    for name in _VERSIONS:
        if name in settings.given and str(settings.given[name]) != "2":
            _stop(settings, name, f"must be 2: {_REMOVED}")
    for key in ("sharding_strategy", "forward_prefetch"):
        for name in (f"fsdp_config.{key}", f"fsdp_config.fsdp_{key}"):
            if name in settings.given:
                _stop(settings, name, f"is of FSDP1 alone: {_REMOVED}")
                settings.given.pop(name)


def _stop(settings: Settings, name: str, rule: str) -> None:
    value: Any = settings.given[name]
    release = f"{settings.table.package} {settings.table.release}"
    rule = f"{release} stops at it: {rule}"
    source = f"{release}: utils/schemas/validation.py"
    settings.stops.append(Stop(setting=name, value=value, rule=rule, source=source))
