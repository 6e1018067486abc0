"""What a DeepSpeed document says, with the defaults of deepspeed 0.19.8."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from models.errors import Invalid
from service.formats.launch.deepspeed.writer import FRAMEWORK, NAME, RELEASE
from service.formats.launch.documents import (
    Settings,
    document_in_script,
    read_document,
    shown,
)
from service.formats.launch.job import LaunchReading
from service.formats.launch.shell_script import PATH
from service.formats.launch.switch_settings import known_release, take_switches

_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "muon": "muon", "sgd": "sgd_momentum"}
_DATA_TYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def read(text: str, version: str | None) -> LaunchReading:
    """What a document says, or the one that a script writes.

    The model, the sequence length and the devices are not in it, except for the number of devices
    that follows from a batch of which all three numbers are given.
    """
    settings = Settings(read_document(document_in_script(text) or text))
    layout = _mesh(settings)
    workload = _precision(settings)
    workload |= _optimizer(settings)
    layout |= _sharding(settings)
    layout |= _recompute(settings, pp=layout["pp"])
    steps = settings.whole("gradient_accumulation_steps")
    workload |= _batch(settings, layout, steps)
    release = known_release(settings, NAME, version, RELEASE)
    switches = take_switches(settings, NAME, release, layout)
    _check_reduction(settings, switches)
    facts = _facts()
    unread, ignored = settings.rest(facts["ignored"], facts["defaults"])
    return LaunchReading(
        format=NAME,
        framework=FRAMEWORK,
        version=release,
        model=None,
        workload=workload,
        stack={"name": NAME, **switches},
        layout=layout,
        num_devices=_num_devices(layout),
        num_micro_batches=steps,
        unread=tuple(unread),
        ignored=tuple(ignored),
    )


@cache
def _facts() -> dict[str, Any]:
    """The keys of the release, from its source (fields/deepspeed.json)."""
    return json.loads((files("service.formats.launch") / "fields" / "deepspeed.json").read_text())


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


def _precision(settings: Settings) -> dict[str, Any]:
    bf16 = [settings.truth(f"{name}.enabled") for name in ("bf16", "bfloat16")]
    fp16 = settings.truth("fp16.enabled")
    if fp16 and any(bf16):
        raise Invalid(PATH, "bf16.enabled and fp16.enabled", "cannot both be true; drop one")
    return {"precision": "bf16" if any(bf16) else "fp16" if fp16 else "fp32"}


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


def _batch(settings: Settings, layout: dict[str, Any], steps: int | None) -> dict[str, Any]:
    """The batch of a step, from the equation train_batch_size = train_micro_batch_size_per_gpu *
    gradient_accumulation_steps * ranks (runtime/config.py, _batch_assertion), whose ranks are those
    of data parallelism and of AutoTP. The data-parallel degree goes into the layout where it
    follows."""
    batch = settings.whole("train_batch_size")
    micro = settings.whole("train_micro_batch_size_per_gpu")
    ranks = settings.whole("data_parallel_size")
    if batch and micro and steps:
        ranks = _ranks(batch, micro, steps, ranks)
    elif batch and steps and ranks:
        micro = max(batch // (steps * ranks), 1)
    elif micro and ranks:
        batch = batch or micro * (steps or 1) * ranks
    if micro:
        layout["micro_batch"] = micro
    if ranks:
        shard = "dp_shard" if layout["zero_stage"] else "dp_replicate"
        layout[shard] = _without_tensor("ranks", ranks, layout["tp"])
    return (
        {"global_batch": _without_tensor("train_batch_size", batch, layout["tp"])} if batch else {}
    )


def _ranks(batch: int, micro: int, steps: int, ranks: int | None) -> int:
    equation = f"train_batch_size({batch}) = micro({micro}) * accumulation({steps}) * ranks"
    if batch % (micro * steps):
        raise Invalid(PATH, equation, "has no whole number of ranks; change one of the three")
    follows = batch // (micro * steps)
    if ranks is not None and ranks != follows:
        rule = f"gives {follows} data-parallel ranks, and data_parallel_size says {ranks}"
        raise Invalid(PATH, equation, rule)
    return follows


def _without_tensor(name: str, value: int, tp: int) -> int:
    """A number that counts every rank of AutoTP, without those."""
    if value % tp:
        rule = f"must be a multiple of autotp_size({tp}), whose ranks DeepSpeed counts"
        raise Invalid(PATH, f"{name} = {value}", rule)
    return value // tp


def _num_devices(layout: dict[str, Any]) -> int | None:
    ranks = layout.get("dp_shard") or layout.get("dp_replicate")
    return ranks and ranks * layout["pp"] * layout["cp"] * layout["tp"]
