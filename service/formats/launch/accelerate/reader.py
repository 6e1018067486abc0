"""What a configuration of accelerate says, as a YAML or JSON document or as the command line of
accelerate launch, with the defaults of accelerate 1.15.0.

TrainingArguments of transformers are read too: from the command line behind the script, or beside
the settings of the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from models.errors import Invalid
from service.formats.launch.accelerate.axolotl import in_names_of_accelerate
from service.formats.launch.accelerate.trl import read_adapters, read_model_format
from service.formats.launch.accelerate.writer import FRAMEWORK, NAME, OPTIMIZERS, RELEASE
from service.formats.launch.documents import (
    Settings,
    flat,
    nested,
    read_document,
    shown,
)
from service.formats.launch.facts import facts
from service.formats.launch.job import (
    NO_CHANGES,
    Changes,
    LaunchReading,
    Stopped,
    Stops,
    with_changes,
)
from service.formats.launch.switch_settings import known_release, take_switches
from service.formats.shell.command import split_command
from service.formats.shell.faults import PATH, require_arguments_defined
from service.formats.shell.files import NO_FILES, LaunchFiles
from service.formats.shell.reading import read_script
from service.formats.shell.script import Script

_COMMAND = re.compile(r"\baccelerate(?:[\w.-]*launch\b|\s+launch\b)", re.ASCII)
_KINDS = {
    "--use_fsdp": "FSDP",
    "--use_deepspeed": "DEEPSPEED",
    "--use_megatron_lm": "MEGATRON_LM",
    "--multi_gpu": "MULTI_GPU",
}
_SWITCHES = {
    *_KINDS,
    "--cpu", "--tpu", "--use_parallelism_config", "--module", "-m", "--no_python", "--quiet", "-q",
    "--debug", "--same_network", "--enable_cpu_affinity", "--dynamo_use_fullgraph",
    "--dynamo_use_dynamic", "--dynamo_use_regional_compilation", "--tpu_cluster",
    "--no_tpu_cluster", "--tpu_use_sudo", "--downcast_bf16",
}  # fmt: skip
"""Flags of accelerate launch without a value."""
_DEEPSPEED_KEYS = (
    "deepspeed_", "zero_stage", "zero3_", "offload_optimizer_", "offload_param_",
    "gradient_accumulation_steps", "gradient_clipping",
)  # fmt: skip
_OPTIMIZERS = {
    **{word: optimizer for optimizer, word in OPTIMIZERS.items()},
    "adamw_torch_fused": "adamw",
    "adamw_8bit": "adamw_8bit",
    "adamw_torch_8bit": "adamw_8bit",
}
_STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
"""Of FSDP1, in the order of their numbers from 1 (utils/constants.py, FSDP_SHARDING_STRATEGY)."""
_KEEPING = ("shard_grad_op", "hybrid_shard_zero2")
"""Of these, those that keep parameters gathered from one micro-batch to the next."""
_SEQUENCE_LENGTHS = ("max_seq_length", "max_length", "block_size", "cutoff_len", "seq_length")


def read(
    text: str,
    version: str | None,
    *,
    changes: Changes = NO_CHANGES,
    files: LaunchFiles = NO_FILES,
) -> LaunchReading:
    """What a document or a command line says. The model and, unless a TrainingArgument says it,
    the length of sequences are not in it."""
    is_command = _COMMAND.search(text) is not None
    document = _of_command(text, files) if is_command else read_document(text)
    named = in_names_of_accelerate(dict(flat(_with_prefixes(document))))
    said = with_changes(named, changes)
    settings = Settings(said)
    if is_command:
        command = split_command(text, files)
        settings.unread += [f"{each} (set in a branch)" for each in command.in_branches]
    ranks = settings.whole("num_processes", least=-1)
    num_devices = ranks if ranks is not None and ranks > 0 else None
    stops = Stops()
    stack, layout = _parallelism(settings, num_devices, stops)
    unwritten: dict[str, str] = {}
    workload = _precision(settings, unwritten)
    workload |= _optimizer(settings)
    read_model_format(settings, workload, is_sharded=bool(layout["zero_stage"]))
    workload |= read_adapters(settings)
    steps = _accumulation_steps(settings)
    workload |= _batch(settings, layout)
    if steps is None and "micro_batch" in layout:
        steps = 1
        unwritten["num_micro_batches"] = "the default of gradient_accumulation_steps"
    release, switches = RELEASE, {}
    if stack == "fsdp":
        release = known_release(settings, stack, version, RELEASE)
        switches = take_switches(settings, stack, release, layout)
    known = facts(NAME)
    unread, ignored = settings.rest(known["ignored"], known["defaults"])
    return LaunchReading(
        format=NAME,
        framework=FRAMEWORK,
        version=release,
        model=None,
        workload=workload,
        stack={"name": stack, **switches},
        layout=layout,
        num_devices=num_devices,
        num_micro_batches=steps,
        micro_batches_setting="gradient_accumulation_steps",
        unwritten=unwritten,
        stops=tuple(stops.found),
        settings=said,
        unread=tuple(unread),
        ignored=tuple(ignored),
    )


# -- the command line


def _of_command(text: str, files: LaunchFiles) -> dict[str, Any]:
    """The settings that a command line of accelerate launch says, as its document would. Where it
    names a document, that must be in the text too; flags go before it."""
    script = read_script(text, {}, files)
    said = dict(_command_settings(text, script))
    file = said.pop("config_file", None)
    recipe = said.pop("config", None)
    known = files.with_written(script.written)
    document: dict[str, Any] = {}
    for name, setting in ((file, "--config_file"), (recipe, "--config")):
        if name is not None:
            document |= flat(read_document(known.text(name, f"{setting} {name}")))
    return nested(document | said)


def _command_settings(text: str, script: Script) -> Iterator[tuple[str, str]]:
    for statement in script.statements:
        words = [*statement.words]
        for at, word in enumerate(words):
            if word.endswith(("accelerate", "accelerate-launch", "accelerate.commands.launch")):
                behind = at + 2 if words[at + 1 : at + 2] == ["launch"] else at + 1
                return _settings_of(words[behind:])
    raise Invalid(PATH, text[:80], "has no command accelerate launch: send that line")


def _settings_of(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The settings of the launcher's flags, then those of the script's."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        flag, value, at = _flag(words, at, switches=_SWITCHES)
        yield _launcher_setting(flag, value)
    if any(word.endswith(".py") for word in words[at + 1 :]):
        require_arguments_defined(words[at])  # which is in front of the script then
    at += 1  # the script
    while at < len(words):
        flag, value, at = _flag(words, at, switches=())
        while at < len(words) and not words[at].startswith("--"):  # of a list
            require_arguments_defined(words[at])
            value, at = f"{value} {words[at]}", at + 1
        yield flag.lstrip("-").replace("-", "_"), value


def _flag(
    words: Sequence[str], at: int, switches: Sequence[str] | set[str]
) -> tuple[str, str, int]:
    """A flag with its value, "true" where it has none, and where the next one stands."""
    require_arguments_defined(words[at])
    flag, equals, value = words[at].partition("=")
    has_value = at + 1 < len(words) and not words[at + 1].startswith("--")
    if equals:
        return flag, value, at + 1
    if flag.replace("-", "_").replace("__", "--", 1) in switches or not has_value:
        return flag, "true", at + 1
    return flag, words[at + 1], at + 2


def _launcher_setting(flag: str, value: str) -> tuple[str, str]:
    """A flag of accelerate launch by the name that the document has for it."""
    name = flag.lstrip("-").replace("-", "_")
    if f"--{name}" in _KINDS:
        return "distributed_type", _KINDS[f"--{name}"]
    for prefix, config in (
        ("fsdp_", "fsdp_config"),
        ("parallelism_config_", "parallelism_config"),
        ("megatron_lm_", "megatron_lm_config"),
        ("fp8_", "fp8_config"),
        ("dynamo_", "dynamo_config"),
    ):
        if name.startswith(prefix):
            return f"{config}.{name}", value
    if name.startswith(_DEEPSPEED_KEYS):
        return f"deepspeed_config.{name}", value
    return name, value


def _with_prefixes(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with `fsdp_` in front of every key of fsdp_config, where it may be left out
    (commands/launch.py, _validate_launch_command)."""
    named = dict(document)
    for config, prefix in (("fsdp_config", "fsdp_"), ("dynamo_config", "dynamo_")):
        inner = document.get(config)
        if isinstance(inner, Mapping):
            named[config] = {
                key if key.startswith(prefix) else f"{prefix}{key}": value
                for key, value in inner.items()
            }
    return named


# -- what they say


def _parallelism(
    settings: Settings, num_devices: int | None, stops: Stops
) -> tuple[str, dict[str, Any]]:
    """The stack that a kind of distributed training is, and the layout."""
    kind = str(settings.take("distributed_type") or "NO").upper()
    settings.take("use_parallelism_config")
    checkpoints = settings.truth("activation_checkpointing") or False
    checkpoints |= settings.truth("gradient_checkpointing") or False  # the old name
    if kind == "FSDP":
        return "fsdp", _fsdp(settings, num_devices, stops, checkpoints=checkpoints)
    if kind == "DEEPSPEED":
        return "deepspeed", _deepspeed(settings, num_devices, stops, checkpoints=checkpoints)
    if kind == "MEGATRON_LM":
        return "megatron", _megatron(settings, num_devices, stops)
    if kind != "NO" and not kind.startswith("MULTI_"):
        rule = "must be FSDP, DEEPSPEED, MEGATRON_LM, NO or one of MULTI_…"
        raise Invalid(PATH, shown("distributed_type", kind), rule)
    degrees = {"dp_replicate": num_devices} if num_devices else {}
    return "fsdp", {"zero_stage": 0, **degrees, **_recompute_form(checkpoints)}


def _recompute_form(checkpoints: bool) -> dict[str, Any]:
    return {"recompute": "full" if checkpoints else "none"}


def _fsdp(
    settings: Settings, num_devices: int | None, stops: Stops, *, checkpoints: bool
) -> dict[str, Any]:
    version = settings.whole("fsdp_config.fsdp_version") or 1
    checkpoints |= settings.truth("fsdp_config.fsdp_activation_checkpointing") or False
    offloads = settings.truth("fsdp_config.fsdp_activation_checkpointing_offload")
    layout: dict[str, Any] = {
        **_recompute_form(checkpoints),
        "offload_activations": offloads or False,
        "offload_optimizer": settings.truth("fsdp_config.fsdp_offload_params") or False,
    }
    if version == 1:
        return layout | _fsdp1_sharding(settings, num_devices, stops)
    reshard = settings.truth("fsdp_config.fsdp_reshard_after_forward")
    return {
        **layout,
        "zero_stage": 3,
        "reshard": True if reshard is None else reshard,
        **stops.attempt(lambda: _mesh(settings, num_devices), {}),
    }


def _fsdp1_sharding(settings: Settings, num_devices: int | None, stops: Stops) -> dict[str, Any]:
    """The sharding of FSDP1, which takes fsdp_sharding_strategy whatever else is said (FSDP_
    SHARDING_STRATEGY is always set by utils/launch.py)."""
    reshard_name = "fsdp_config.fsdp_reshard_after_forward"
    written = settings.take("fsdp_config.fsdp_sharding_strategy") or "FULL_SHARD"
    strategy = _strategy(written)
    reshard = settings.take(reshard_name)
    if reshard is not None and str(reshard).lower() not in (strategy, "true"):
        cure = "FSDP1 takes fsdp_sharding_strategy: write it there"
        settings.unread.append(f"{shown(reshard_name, reshard)} ({cure})")
    if strategy == "no_shard":
        return {"zero_stage": 0, **({"dp_replicate": num_devices} if num_devices else {})}
    layout: dict[str, Any] = {"zero_stage": 2 if strategy in _KEEPING else 3}
    if num_devices is None:
        return layout
    machines = settings.whole("num_machines") or 1
    replicas = machines if strategy.startswith("hybrid") else 1
    rule = f"must be a multiple of num_machines({machines})"
    shards = stops.attempt(lambda: _quotient(num_devices, replicas, rule), num_devices)
    return layout | {"dp_shard": shards, "dp_replicate": replicas}


def _quotient(num_devices: int, divisor: int, rule: str) -> int:
    """The processes over a number that must divide them."""
    if num_devices % divisor:
        below = num_devices // divisor * divisor
        cure = f"num_processes {below or divisor} or {below + divisor}"
        raise Stopped("num_processes", num_devices, rule, cure)
    return num_devices // divisor


def _strategy(written: object) -> str:
    strategy = str(written).lower()
    if strategy.isdigit() and 1 <= int(strategy) <= len(_STRATEGIES):
        strategy = _STRATEGIES[int(strategy) - 1]
    if strategy not in _STRATEGIES:
        rule = f"must be one of {', '.join(map(str.upper, _STRATEGIES))}"
        raise Invalid(PATH, shown("fsdp_sharding_strategy", written), rule)
    return strategy


def _mesh(settings: Settings, num_devices: int | None) -> dict[str, Any]:
    """The degrees of parallelism_config; without it FSDP2 shards over all ranks."""
    prefix = "parallelism_config.parallelism_config_"
    has_mesh = "parallelism_config" in settings
    mesh = {
        axis: settings.whole(f"{prefix}{axis}_size") or 1
        for axis in ("dp_replicate", "dp_shard", "tp", "cp")
    }
    if not has_mesh:
        return {"dp_shard": num_devices} if num_devices else {}
    devices = mesh["dp_replicate"] * mesh["dp_shard"] * mesh["tp"] * mesh["cp"]
    if num_devices is not None and devices != num_devices:
        product = " * ".join(f"{axis}({degree})" for axis, degree in mesh.items())
        rule = f"must be {product} = {devices}, as ParallelismConfig asks"
        raise Stopped("num_processes", num_devices, rule, f"num_processes {devices}")
    return mesh


def _deepspeed(
    settings: Settings, num_devices: int | None, stops: Stops, *, checkpoints: bool
) -> dict[str, Any]:
    prefix = "deepspeed_config"
    stage = settings.whole(f"{prefix}.zero_stage", least=0)
    device = settings.word(f"{prefix}.offload_optimizer_device")
    if device == "nvme":
        settings.unread.append(f"{prefix}.offload_optimizer_device = nvme (read as cpu)")
    name = f"{prefix}.deepspeed_config_file"
    written = settings.take(name)
    if written is not None:
        cure = "send the text of that file, with format deepspeed"
        settings.unread.append(f"{shown(name, written)} ({cure})")
    stage = 2 if stage is None else stage  # utils/dataclasses.py, DeepSpeedPlugin
    cp = settings.whole("parallelism_config.parallelism_config_sp_size") or 1
    layout = {
        **_recompute_form(checkpoints),
        "zero_stage": stage,
        "offload_optimizer": device in ("cpu", "nvme"),
        "cp": cp,
    }
    if num_devices is None:
        return layout
    rule = f"must be a multiple of parallelism_config_sp_size({cp})"
    ranks = stops.attempt(lambda: _quotient(num_devices, cp, rule), num_devices)
    return layout | {"dp_shard" if stage else "dp_replicate": ranks}


def _megatron(settings: Settings, num_devices: int | None, stops: Stops) -> dict[str, Any]:
    prefix = "megatron_lm_config.megatron_lm"
    names = {
        "tp": "tp_degree",
        "pp": "pp_degree",
        "cp": "context_parallel_size",
        "ep": "expert_model_parallel_size",
        "etp": "expert_tensor_parallel_size",
    }
    layout: dict[str, Any] = {
        knob: settings.whole(f"{prefix}_{name}") or 1 for knob, name in names.items()
    }
    layout["sequence_parallel"] = settings.truth(f"{prefix}_sequence_parallelism") or False
    layout["offload_optimizer"] = settings.truth(f"{prefix}_optimizer_cpu_offload") or False
    layout["zero_stage"] = int(settings.truth(f"{prefix}_use_distributed_optimizer") or False)
    granularity = settings.word(f"{prefix}_recompute_granularity")
    if settings.truth(f"{prefix}_recompute_activations"):
        granularity = granularity or "selective"
    layout["recompute"] = granularity or "none"
    if num_devices is None:
        return layout
    others = layout["tp"] * layout["pp"] * layout["cp"]
    rule = f"must be a multiple of tp * pp * cp = {others}"
    ranks = stops.attempt(lambda: _quotient(num_devices, others, rule), num_devices)
    shard = "dp_shard" if layout["zero_stage"] else "dp_replicate"
    return layout | {shard: ranks}


def _precision(settings: Settings, unwritten: dict[str, str]) -> dict[str, Any]:
    """The precision of TrainingArguments, or else of the launcher."""
    if not any(name in settings for name in ("mixed_precision", "bf16", "fp16")):
        unwritten["workload.precision"] = "the default of mixed_precision"
    precision = settings.word("mixed_precision") or "no"
    for name in ("bf16", "fp16"):
        if settings.truth(name):
            precision = name
    if precision not in ("no", "bf16", "fp16", "fp8"):
        rule = "must be no, bf16, fp16 or fp8"
        raise Invalid(PATH, shown("mixed_precision", precision), rule)
    for name in ("backend", "enable_fsdp_float8_all_gather"):
        settings.take(f"fp8_config.{name}")
    return {"precision": "fp32" if precision == "no" else precision}


def _optimizer(settings: Settings) -> dict[str, Any]:
    written = settings.word("optim")
    if written is None:
        return {}
    if written not in _OPTIMIZERS:
        settings.unread.append(shown("optim", written))
        return {}
    return {"optimizer": _OPTIMIZERS[written]}


def _batch(settings: Settings, layout: dict[str, Any]) -> dict[str, Any]:
    """The length of sequences. The micro-batch goes into the layout."""
    workload: dict[str, Any] = {}
    for name in _SEQUENCE_LENGTHS:
        length = settings.whole(name)
        workload |= {"seq_len": length} if length else {}
    micro = settings.whole("per_device_train_batch_size")
    if micro is not None:
        layout["micro_batch"] = micro
    return workload


def _accumulation_steps(settings: Settings) -> int | None:
    """Micro-batches of a step; None where nothing is said."""
    names = (
        "gradient_accumulation_steps",
        "deepspeed_config.gradient_accumulation_steps",
        "megatron_lm_config.megatron_lm_num_micro_batches",
    )
    said = [settings.whole(name) for name in names]
    return next(filter(None, said), None)
