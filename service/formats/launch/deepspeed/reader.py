"""What a DeepSpeed document says, with the defaults of deepspeed 0.19.8."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from models.errors import Invalid
from models.layouts.factors import divisors
from service.formats.launch.deepspeed.writer import FRAMEWORK, NAME, RELEASE
from service.formats.launch.documents import (
    Settings,
    flat,
    read_document,
    shown,
)
from service.formats.launch.facts import facts
from service.formats.launch.job import (
    NO_CHANGES,
    Changes,
    LaunchReading,
    Stop,
    Stopped,
    Stops,
    in_words,
    with_changes,
)
from service.formats.launch.switch_settings import known_release, take_switches
from service.formats.shell.command import files_of
from service.formats.shell.faults import PATH
from service.formats.shell.files import NO_FILES, LaunchFiles

_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "muon": "muon", "sgd": "sgd_momentum"}
_MOST_VALUES = 4  # that a cure names
_BATCH_KEYS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
)  # fmt: skip
_NAMES_FILE = re.compile(r"(?<![\w-])(--deepspeed(?:[_-]config)?)[ =]+([^\s'\"-][^\s'\"]*)")
"""A flag that says where the document is."""
_DATA_TYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def read(
    text: str,
    version: str | None,
    *,
    changes: Changes = NO_CHANGES,
    files: LaunchFiles = NO_FILES,
) -> LaunchReading:
    """What a document says, or the one that a script writes.

    The model, the sequence length and the devices are not in it, except for the number of devices
    that follows from a batch of which all three numbers are given.
    """
    said = with_changes(dict(flat(read_document(_document(text, files)))), changes)
    settings = Settings(said)
    says_ranks = "data_parallel_size" in settings
    layout = _mesh(settings)
    stops = Stops()
    unwritten: dict[str, str] = {}
    workload = _precision(settings, stops, unwritten)
    workload |= _optimizer(settings)
    layout |= _sharding(settings)
    layout |= _recompute(settings, pp=layout["pp"])
    takes_one = sum(name in settings for name in _BATCH_KEYS) == 1
    steps = settings.whole("gradient_accumulation_steps")
    workload |= _batch(settings, layout, steps, stops)
    if takes_one and "global_batch" in workload:
        steps = 1
        unwritten["num_micro_batches"] = "the default of gradient_accumulation_steps"
    release = known_release(settings, NAME, version, RELEASE)
    switches = take_switches(settings, NAME, release, layout)
    _check_reduction(settings, switches)
    known = facts(NAME)
    unread, ignored = settings.rest(known["ignored"], known["defaults"])
    return LaunchReading(
        format=NAME,
        framework=FRAMEWORK,
        version=release,
        model=None,
        workload=workload,
        stack={"name": NAME, **switches},
        layout=layout,
        num_devices=_num_devices(layout),
        devices_setting="data_parallel_size" if says_ranks else "train_batch_size",
        num_micro_batches=steps,
        micro_batches_setting="gradient_accumulation_steps",
        unwritten=unwritten,
        stops=tuple(stops.found),
        settings=said,
        unread=tuple(unread),
        ignored=tuple(ignored),
    )


def _document(text: str, files: LaunchFiles) -> str:
    """The text of the document: all of it, or that of the file that a command names. Raises Invalid
    where that was not sent."""
    if text.lstrip().startswith("{"):
        return text
    is_command = _NAMES_FILE.search(text) is not None or "<<" in text
    known = files_of(text, files) if is_command else files
    if match := _NAMES_FILE.search(text):
        return known.text(match.group(2), f"{match.group(1)} {match.group(2)}")
    return (known.only_text() if is_command else None) or text


def _mesh(settings: Settings) -> dict[str, Any]:
    """The degrees other than those of data parallelism."""
    enabled = settings.truth("expert_parallel.enabled")
    ep = settings.whole("expert_parallel.autoep_size")
    etp = settings.whole("expert_parallel.expert_tensor_parallel_size")
    mesh: dict[str, Any] = {
        "pp": settings.whole("pipeline.stages") or 1,
        "cp": settings.whole("sequence_parallel_size") or 1,
        "tp": settings.whole("tensor_parallel.autotp_size", least=0) or 1,
        "ep": (ep if enabled else None) or 1,
        "etp": (etp if enabled else None) or 1,
    }
    if settings.word("pipeline.partition") == "uniform" and mesh["pp"] > 1:
        mesh["balanced"] = False
    if mesh["pp"] > 1:
        mesh["schedule"] = "1f1b"
    return mesh


def _precision(settings: Settings, stops: Stops, unwritten: dict[str, str]) -> dict[str, Any]:
    names = [f"{name}.enabled" for name in ("bf16", "bfloat16", "fp16")]
    is_open = any(map(settings.is_auto, names))
    if not any(name in settings for name in names):
        unwritten["workload.precision"] = "what DeepSpeed trains in without bf16 and fp16"
    said = [settings.truth(f"{name}.enabled") for name in ("bf16", "bfloat16")]
    bf16 = any(said)
    fp16 = settings.truth("fp16.enabled")
    if fp16 and bf16:
        rule = "does not go with bf16.enabled: DeepSpeed stops where both are true"
        stops.found.append(Stop(setting="fp16.enabled", value=True, rule=rule, cure="drop one"))
    if is_open and not (bf16 or fp16):
        return {}
    found: dict[str, Any] = {"precision": "bf16" if bf16 else "fp16" if fp16 else "fp32"}
    has_narrow_states = [
        settings.truth(f"bf16.{name}")
        for name in ("bf16_master_weights_and_grads", "bf16_optimizer_states")
    ]
    if bf16 and all(has_narrow_states):
        found["master_weights"] = False
    elif any(has_narrow_states):
        settings.unread.append("bf16.bf16_master_weights_and_grads (read as false)")
    return found


def _optimizer(settings: Settings) -> dict[str, Any]:
    written = settings.take("optimizer.type")
    if written is None:
        return {}
    optimizer = _OPTIMIZERS.get(str(written).lower())
    if optimizer is None:
        settings.unread.append(shown("optimizer.type", written))
        return {}
    return {"optimizer": optimizer}


def _sharding(settings: Settings) -> dict[str, Any]:
    stage = settings.whole("zero_optimization.stage", least=0) or 0
    if stage > 3:
        raise Invalid(PATH, shown("zero_optimization.stage", stage), "must be 0, 1, 2 or 3")
    device = settings.word("zero_optimization.offload_optimizer.device")
    if settings.truth("zero_optimization.cpu_offload"):  # as it was written before 0.3.16
        device = "cpu"
    if device == "nvme":
        name = "zero_optimization.offload_optimizer.device"
        settings.unread.append(f"{shown(name, device)} (read as cpu)")
    return {"zero_stage": stage, "offload_optimizer": device in ("cpu", "nvme")}


def _recompute(settings: Settings, pp: int) -> dict[str, Any]:
    """A block for checkpointing says that the model's code uses it; that of a pipeline has a
    number of layers between checkpoints too."""
    interval = settings.whole("pipeline.activation_checkpoint_interval", least=0) or 0
    has_block = "activation_checkpointing" in settings
    on_host = settings.truth("activation_checkpointing.cpu_checkpointing") or False
    if interval > 1:
        name = "pipeline.activation_checkpoint_interval"
        settings.unread.append(f"{shown(name, interval)} (read as every layer)")
    is_full = has_block or (interval > 0 and pp > 1)
    return {
        "recompute": "full" if is_full else "none",
        "offload_activations": on_host,
    }


def _check_reduction(settings: Settings, switches: Mapping[str, Any]) -> None:
    """Gradients are taken to be reduced in the format that they are added up in; another is
    unread."""
    name = "communication_data_type"
    written = settings.word(name)
    if written is None:
        return
    if _DATA_TYPE_BYTES.get(written) != switches.get("gradient_bytes"):
        settings.unread.append(shown(name, written))


def _batch(
    settings: Settings, layout: dict[str, Any], steps: int | None, stops: Stops
) -> dict[str, Any]:
    """The batch of a step, from the equation train_batch_size = train_micro_batch_size_per_gpu *
    gradient_accumulation_steps * ranks (runtime/config.py, _batch_assertion), whose ranks are those
    of data parallelism and of AutoTP. The data-parallel degree goes into the layout where it
    follows."""
    batch = settings.whole("train_batch_size")
    micro = settings.whole("train_micro_batch_size_per_gpu")
    said = settings.whole("data_parallel_size")
    ranks = said
    tp = layout["tp"]
    if batch and micro and steps:
        ranks = stops.attempt(partial(_ranks, batch, micro, steps, said), None)
    elif batch and steps and ranks:
        micro = stops.attempt(partial(_micro_batch, batch, steps, ranks), None)
    elif micro and ranks:
        batch = batch or micro * (steps or 1) * ranks
    if micro:
        layout["micro_batch"] = micro
    if ranks:
        alone = stops.attempt(partial(_without_tensor, "ranks", ranks, tp), None)
        shard = "dp_shard" if layout["zero_stage"] else "dp_replicate"
        layout |= {shard: alone} if alone else {}
    if not batch:
        return {}
    if stops.found:  # then the batch is what the other numbers make of all ranks
        return {} if micro and steps else {"global_batch": batch}
    of_data = stops.attempt(partial(_without_tensor, "train_batch_size", batch, tp), batch)
    return {"global_batch": of_data}


def _ranks(batch: int, micro: int, steps: int, ranks: int | None) -> int:
    equation = f"must be micro({micro}) * accumulation({steps}) * ranks"
    near = batch // (micro * steps) or 1
    if batch % (micro * steps):
        cure = f"train_batch_size {near * micro * steps} or {(near + 1) * micro * steps}"
        rule = f"{equation}, which has no whole number of ranks; change one of the three"
        raise Stopped("train_batch_size", batch, rule, cure)
    if ranks is not None and ranks != near:
        rule = f"{equation}: gives {near} data-parallel ranks, and data_parallel_size says {ranks}"
        raise Stopped("train_batch_size", batch, rule, f"train_batch_size {micro * steps * ranks}")
    return near


def _micro_batch(batch: int, steps: int, ranks: int) -> int:
    """The micro-batch that is not said. DeepSpeed rounds it down, and then its equation fails."""
    if batch % (steps * ranks):
        near = batch // (steps * ranks) or 1
        rule = f"must be micro * accumulation({steps}) * ranks({ranks})"
        cure = f"train_batch_size {near * steps * ranks} or {(near + 1) * steps * ranks}"
        raise Stopped("train_batch_size", batch, rule, cure)
    return batch // (steps * ranks)


def _without_tensor(name: str, value: int, tp: int) -> int:
    """A number that counts every rank of AutoTP, without those."""
    if value % tp:
        rule = f"must divide {name}({value}), in which DeepSpeed counts its ranks"
        cure = f"tensor_parallel.autotp_size {in_words(divisors(value)[:_MOST_VALUES])}"
        raise Stopped("tensor_parallel.autotp_size", tp, rule, cure)
    return value // tp


def _num_devices(layout: dict[str, Any]) -> int | None:
    ranks = layout.get("dp_shard") or layout.get("dp_replicate")
    return ranks and ranks * layout["pp"] * layout["cp"] * layout["tp"]
