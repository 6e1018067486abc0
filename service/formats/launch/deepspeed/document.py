"""Reads a DeepSpeed document (ds_config.json), with the defaults of deepspeed 0.19.8.

A *stop* is a setting with which DeepSpeed refuses to start. A *reservation* is a remark that a
setting could matter and is not, or not fully, taken into account. `stops.attempt` notes the stop
that a call raises, and goes on with the value `instead`.
The *ranks* of a document include those of tensor parallelism.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from models.layouts.factors import divisors
from service.formats.launch.deepspeed.writer import RELEASE
from service.formats.launch.job import in_words
from service.formats.settings.field import shown
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stop, Stopped, Stops
from service.formats.shell.faults import invalid_launch

SOURCE = f"deepspeed {RELEASE}: runtime/config.py, DeepSpeedConfig"
_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "muon": "muon", "sgd": "sgd_momentum"}
_STAGES = re.compile(r"\d{1,6}", re.ASCII)
_ON_HOST = ("cpu", "nvme")
_MOST_VALUES = 4  # that a cure names
BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_OFFLOAD_OPTIMIZER = "zero_optimization.offload_optimizer.device"
_OFFLOAD_PARAMETERS = "zero_optimization.offload_param.device"
_NVME_NOT_DESCRIBED = "reads and writes of NVMe are not described"
_DATA_TYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentParts:
    """The parts of a launch that a document sets, in the JSON form of requests."""

    layout: dict[str, Any]
    workload: dict[str, Any]
    accumulation_steps: int | None
    """Micro-batches of a data-parallel rank in a step; None where the document does not set them
    and they do not follow from a default."""
    default_origins: dict[str, str]
    """By field of the request, where a value comes from that the document does not set."""


def read_document_settings(settings: Settings, stops: Stops, *, has_trainer: bool) -> DocumentParts:
    """Returns the layout and the workload that a document sets, such as {"train_batch_size": 64,
    "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}.

    `has_trainer` says that the Trainer of transformers runs the model. It decides itself whether
    to checkpoint activations. Without it, a block for checkpointing means that they are.
    """
    default_origins: dict[str, str] = {}
    if not any(name in settings for name in _FORMAT_SWITCHES):
        default_origins["workload.precision"] = "what DeepSpeed trains in without bf16 and fp16"
    layout = _degrees(settings)
    workload = _precision(settings, stops) | _optimizer(settings)
    layout |= _sharding(settings)
    layout |= _recompute(settings, layout["pp"], layout["tp"], has_trainer=has_trainer)
    has_one_batch_key = sum(name in settings.given for name in BATCH_KEYS) == 1
    steps = settings.integer("gradient_accumulation_steps")
    workload |= _batch(settings, layout, steps, stops)
    # Without a second number DeepSpeed accumulates no micro-batches.
    if has_one_batch_key and "global_batch" in workload:
        steps = 1
        default_origins["num_micro_batches"] = "the default of gradient_accumulation_steps"
    stop_at_unknown(settings)
    return DocumentParts(
        layout=layout,
        workload=workload,
        accumulation_steps=steps,
        default_origins=default_origins,
    )


def num_devices(layout: Mapping[str, Any]) -> int | None:
    """Returns the product of the degrees of a document's layout, which has one data-parallel
    degree; None where that is not known. Expert parallelism lies within these degrees."""
    ranks: int | None = layout.get("dp_shard") or layout.get("dp_replicate")
    return ranks and ranks * layout["pp"] * layout["cp"] * layout["tp"]


def add_reservation_for_reduction(settings: Settings, switches: Mapping[str, Any]) -> None:
    """Adds a reservation where communication_data_type, in which gradients are sent, is not the
    format in which they are accumulated. `switches` has the bytes of that format as
    "gradient_bytes"."""
    name = "communication_data_type"
    data_type = settings.text(name)
    if data_type is None or settings.is_auto(name):
        return
    if _DATA_TYPE_BYTES.get(data_type) != switches.get("gradient_bytes"):
        reason = "gradients are counted as sent in the format that they are added up in"
        cure = "give stack.reduce_bytes"
        settings.add_reservation(name, reason, cure, answered_by="stack.reduce_bytes")


def stop_at_unknown(settings: Settings) -> None:
    """Removes unknown names inside the objects of a document, and notes a stop for each:
    DeepSpeed refuses them there (runtime/config_utils.py, extra="forbid"), and ignores them at
    the top level."""
    strict = settings.table.facts["strict"]
    for name in [*settings.given]:
        if name.partition(".")[0] in strict and settings.table.field(name) is None:
            stop = settings.stop_at_name(name, settings.nearest(name))
            settings.stops.append(stop)
            del settings.given[name]


def _degrees(settings: Settings) -> dict[str, Any]:
    """Returns the degrees of parallelism without those of data parallelism, and the schedule of
    the pipeline where there is one."""
    has_experts = settings.boolean("expert_parallel.enabled")
    ep = settings.integer("expert_parallel.autoep_size")
    etp = settings.integer("expert_parallel.expert_tensor_parallel_size")
    stages = settings.given.get("pipeline.stages")
    # DeepSpeed takes texts here, such as "auto".
    if isinstance(stages, str) and _STAGES.fullmatch(stages):
        settings.put("pipeline.stages", int(stages))
    layout: dict[str, Any] = {
        "pp": settings.integer("pipeline.stages") or 1,
        "cp": settings.integer("sequence_parallel_size") or 1,
        "tp": settings.integer("tensor_parallel.autotp_size", least=0) or 1,  # 0 switches it off
        "ep": (ep if has_experts else None) or 1,
        "etp": (etp if has_experts else None) or 1,
    }
    if layout["pp"] > 1:
        layout["schedule"] = "1f1b"  # the only one of DeepSpeed's pipeline engine
        if settings.text("pipeline.partition") == "uniform":
            layout["balanced"] = False  # every stage has as many layers, whatever they cost
    return layout


_FORMAT_SWITCHES = ("bf16.enabled", "bfloat16.enabled", "fp16.enabled")
_NARROW_STATE_SWITCHES = ("bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states")


def _precision(settings: Settings, stops: Stops) -> dict[str, Any]:
    """Returns the precision of a workload, and master_weights where states have 16 bits. Returns
    nothing where bf16 or fp16 is "auto", which the Trainer decides. Notes a stop where both are
    on."""
    bf16 = settings.boolean("bf16.enabled")
    bf16 |= settings.boolean("bfloat16.enabled")
    fp16 = settings.boolean("fp16.enabled")
    if fp16 and bf16:
        rule = "does not go with bf16.enabled: DeepSpeed stops where both are true"
        stops.noted.append(
            Stop(setting="fp16.enabled", value=True, rule=rule, source=SOURCE, cure="drop one")
        )
    if not (bf16 or fp16) and any(map(settings.is_auto, _FORMAT_SWITCHES)):
        return {}
    has_narrow_states = [settings.boolean(name) for name in _NARROW_STATE_SWITCHES]
    if bf16 and all(has_narrow_states):
        return {"precision": "bf16", "master_weights": False}
    if any(has_narrow_states):
        reason = "16-bit master weights without 16-bit states, or the reverse, are not modelled"
        settings.add_reservation(_NARROW_STATE_SWITCHES[0], reason, "set both, or neither")
    if bf16:
        return {"precision": "bf16"}
    return {"precision": "fp16" if fp16 else "fp32"}


def _optimizer(settings: Settings) -> dict[str, Any]:
    """Returns the optimizer of a workload. Returns nothing where the document names none, or one
    that is unknown here, for which it adds a reservation."""
    name = settings.value("optimizer.type")
    if name is None or settings.is_auto("optimizer.type"):
        return {}
    optimizer = _OPTIMIZERS.get(str(name).lower())
    if optimizer is None:
        reason = "how much this optimizer keeps of a parameter is not described"
        cure = "give workload.optimizer in place of it"
        settings.add_reservation("optimizer.type", reason, cure, answered_by="workload.optimizer")
        return {}
    return {"optimizer": optimizer}


def _sharding(settings: Settings) -> dict[str, Any]:
    """Returns the ZeRO stage, and whether the optimizer is offloaded. Adds reservations for
    NVMe and for parameters on the host."""
    stage = settings.integer("zero_optimization.stage", least=0) or 0
    if stage > 3:
        raise invalid_launch(shown("zero_optimization.stage", stage), "must be 0, 1, 2 or 3")
    # Before 0.3.16 each device was a switch (cpu_offload), true or false.
    optimizer_device = settings.text(_OFFLOAD_OPTIMIZER)
    if settings.boolean("zero_optimization.cpu_offload"):
        optimizer_device = "cpu"
    if settings.boolean("zero_optimization.cpu_offload_param"):
        settings.put(_OFFLOAD_PARAMETERS, "cpu")
    parameter_device = settings.text(_OFFLOAD_PARAMETERS)
    offloads_optimizer = optimizer_device in _ON_HOST
    if optimizer_device == "nvme":
        settings.add_reservation(_OFFLOAD_OPTIMIZER, _NVME_NOT_DESCRIBED, "judge it with cpu")
    if parameter_device in _ON_HOST:
        _add_reservation_for_parameters(
            settings, str(parameter_device), offloads_optimizer=offloads_optimizer
        )
    return {"zero_stage": stage, "offload_optimizer": offloads_optimizer}


def _add_reservation_for_parameters(
    settings: Settings, device: str, *, offloads_optimizer: bool
) -> None:
    """Adds a reservation for parameters that are offloaded without the optimizer, or to NVMe.
    Only parameters in RAM beside their optimizer are modelled. `device` is "cpu" or "nvme"."""
    if not offloads_optimizer:
        reason = "parameters on the host without the optimizer are not described"
        settings.add_reservation(_OFFLOAD_PARAMETERS, reason, "offload the optimizer too")
    elif device == "nvme":
        settings.add_reservation(_OFFLOAD_PARAMETERS, _NVME_NOT_DESCRIBED, "judge it with cpu")


def _recompute(settings: Settings, pp: int, tp: int, *, has_trainer: bool) -> dict[str, Any]:
    """Returns the recompute of the layout. A pipeline (pp above 1) has an interval of layers
    between checkpoints; other models checkpoint every layer or none, which the Trainer decides
    itself where `has_trainer` is true."""
    block = "activation_checkpointing"
    partitions = f"{block}.partition_activations"
    interval_name = "pipeline.activation_checkpoint_interval"
    interval = settings.integer(interval_name, least=0) or 0
    if interval > 1:
        reason = "checkpoints of several layers are not described"
        settings.add_reservation(interval_name, reason, "judge it with 1")
    checkpoints = interval > 0 and pp > 1
    offloads = settings.boolean(f"{block}.cpu_checkpointing") and not has_trainer
    if not has_trainer:  # the block alone means that activations are checkpointed
        checkpoints |= block in settings
        if tp > 1 and settings.boolean(partitions):
            reason = "checkpoints cut over tensor parallelism are not described"
            settings.add_reservation(partitions, reason, "judge it with false")
    return {"recompute": "full" if checkpoints else "none", "offload_activations": offloads}


def _batch(
    settings: Settings, layout: dict[str, Any], steps: int | None, stops: Stops
) -> dict[str, Any]:
    """Returns the global batch as a field of the workload, where the document determines it, and
    puts the micro-batch and the data-parallel degree into `layout`. `steps` is the number of
    accumulated micro-batches.

    These numbers obey train_batch_size = train_micro_batch_size_per_gpu *
    gradient_accumulation_steps * ranks (runtime/config.py, _batch_assertion), where the ranks
    are those of data parallelism times those of AutoTP. A missing one follows from the others.
    """
    batch = settings.integer("train_batch_size")
    micro_batch = settings.integer("train_micro_batch_size_per_gpu")
    stated_ranks = settings.integer("data_parallel_size")
    ranks = stated_ranks
    tp = layout["tp"]
    if batch and micro_batch and steps:
        ranks = stops.attempt(
            partial(_ranks, batch, micro_batch, steps, stated_ranks), instead=None
        )
    elif batch and steps and ranks:
        micro_batch = stops.attempt(partial(_micro_batch, batch, steps, ranks), instead=None)
    elif micro_batch and ranks:
        batch = batch or micro_batch * (steps or 1) * ranks
    if micro_batch:
        layout["micro_batch"] = micro_batch
    if ranks:
        dp = stops.attempt(partial(_divided_by_tp, "ranks", ranks, tp), instead=None)
        if dp:
            layout["dp_shard" if layout["zero_stage"] else "dp_replicate"] = dp
    if not batch:
        return {}
    # After a stop the numbers contradict each other: those of a rank, where both are given, count
    # for more than train_batch_size.
    if stops.noted:
        return {} if micro_batch and steps else {"global_batch": batch}
    without_tp = stops.attempt(
        partial(_divided_by_tp, "train_batch_size", batch, tp), instead=batch
    )
    return {"global_batch": without_tp}


def _ranks(batch: int, micro_batch: int, steps: int, stated_ranks: int | None) -> int:
    """Returns the ranks over which a batch is divided. Raises Stopped where that is no whole
    number, or not `stated_ranks`."""
    equation = f"must be micro({micro_batch}) * accumulation({steps}) * ranks"
    ranks = batch // (micro_batch * steps)
    if batch % (micro_batch * steps):
        # The nearest legal batches are advised; below the smallest one, that one and the next.
        below = (ranks or 1) * micro_batch * steps
        cure = f"train_batch_size {below} or {below + micro_batch * steps}"
        rule = f"{equation}, which has no whole number of ranks; change one of the three"
        raise Stopped("train_batch_size", batch, rule, cure)
    if stated_ranks not in (None, ranks):
        cure = f"train_batch_size {micro_batch * steps * stated_ranks}"
        rule = (
            f"{equation}: gives {ranks} data-parallel ranks, and data_parallel_size says"
            f" {stated_ranks}"
        )
        raise Stopped("train_batch_size", batch, rule, cure)
    return ranks


def _micro_batch(batch: int, steps: int, ranks: int) -> int:
    """Returns the micro-batch that follows from the other numbers. Raises Stopped where that is
    no whole number: DeepSpeed rounds it down, and then its own check fails."""
    if batch % (steps * ranks):
        below = (batch // (steps * ranks) or 1) * steps * ranks
        rule = f"must be micro * accumulation({steps}) * ranks({ranks})"
        cure = f"train_batch_size {below} or {below + steps * ranks}"
        raise Stopped("train_batch_size", batch, rule, cure)
    return batch // (steps * ranks)


def _divided_by_tp(name: str, value: int, tp: int) -> int:
    """Returns a number of ranks or sequences divided by tp: DeepSpeed counts ranks of AutoTP as
    data-parallel ones. Raises Stopped where tp does not divide it. `name` is the name of the
    number in that message."""
    if value % tp:
        rule = f"must divide {name}({value}), in which DeepSpeed counts its ranks"
        cure = f"tensor_parallel.autotp_size {in_words(divisors(value)[:_MOST_VALUES])}"
        raise Stopped("tensor_parallel.autotp_size", tp, rule, cure)
    return value // tp
