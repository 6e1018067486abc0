"""Reads a DeepSpeed document, with the defaults of deepspeed 0.19.8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from models.errors import Invalid
from models.layouts.factors import divisors
from service.formats.launch.deepspeed.writer import NAME, RELEASE
from service.formats.launch.job import in_words
from service.formats.launch.switch_settings import values_of_switches
from service.formats.settings.field import shown
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stop, Stopped, Stops
from service.formats.shell.faults import PATH

SOURCE = f"deepspeed {RELEASE}: runtime/config.py, DeepSpeedConfig"
_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "muon": "muon", "sgd": "sgd_momentum"}
_ON_HOST = ("cpu", "nvme")
_MOST_VALUES = 4  # that a cure names
BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_PARAMETERS = "zero_optimization.offload_param.device"
_DATA_TYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


@dataclass(slots=True)
class Said:
    """A document as parts of a reading."""

    layout: dict[str, Any]
    workload: dict[str, Any]
    steps: int | None
    """Micro-batches of a step, where they are said."""
    default_origins: dict[str, str] = field(default_factory=dict)


def read_document_settings(settings: Settings, stops: Stops, *, has_trainer: bool) -> Said:
    """The layout and the workload of a document. Its block for checkpointing says that the model's
    code uses it, unless the Trainer of transformers is what decides."""
    default_origins: dict[str, str] = {}
    layout = _mesh(settings)
    workload = _precision(settings, stops, default_origins)
    workload |= _optimizer(settings)
    layout |= _sharding(settings)
    layout |= _recompute(settings, layout["pp"], layout["tp"], has_trainer=has_trainer)
    takes_one = sum(name in settings.given for name in BATCH_KEYS) == 1
    steps = settings.integer("gradient_accumulation_steps")
    workload |= _batch(settings, layout, steps, stops)
    if takes_one and "global_batch" in workload:
        steps = 1
        default_origins["num_micro_batches"] = "the default of gradient_accumulation_steps"
    stop_at_unknown(settings)
    return Said(layout, workload, steps, default_origins)


def num_devices(layout: Mapping[str, Any]) -> int | None:
    ranks: int | None = layout.get("dp_shard") or layout.get("dp_replicate")
    return ranks and ranks * layout["pp"] * layout["cp"] * layout["tp"]


def check_reduction(settings: Settings, switches: Mapping[str, Any]) -> None:
    """Gradients are taken to be reduced in the format that they are added up in; another is
    reserved."""
    name = "communication_data_type"
    written = settings.text(name)
    if written is None or settings.is_auto(name):
        return
    if _DATA_TYPE_BYTES.get(written) != switches.get("gradient_bytes"):
        reason = "gradients are counted as sent in the format that they are added up in"
        cure = "give stack.reduce_bytes"
        settings.reserve(name, reason, cure, answered_by="stack.reduce_bytes")


def stop_at_unknown(settings: Settings) -> None:
    """Note where DeepSpeed stops: at names that the objects of its document do not have (runtime/
    config_utils.py, extra="forbid"). At the top level it passes over them."""
    strict = settings.table.facts["strict"]
    for name in [*settings.given]:
        if name.partition(".")[0] in strict and settings.table.field(name) is None:
            near = settings.nearest(name)
            rule = f"is no setting of DeepSpeed {settings.table.release}, which stops at it"
            rule += f": did you mean {near}?" if near else ": leave it out"
            settings.stops.append(
                Stop(
                    setting=name,
                    value=settings.given.pop(name),
                    rule=rule,
                    source=settings.table.facts["parser"],
                    cure=near or "",
                    meant=near or "",
                    is_of_name=True,
                )
            )


def _mesh(settings: Settings) -> dict[str, Any]:
    """The degrees other than those of data parallelism."""
    enabled = settings.boolean("expert_parallel.enabled")
    ep = settings.integer("expert_parallel.autoep_size")
    etp = settings.integer("expert_parallel.expert_tensor_parallel_size")
    stages = settings.given.get("pipeline.stages")
    if stages is not None and stages != "auto":
        settings.put("pipeline.stages", _whole(stages))
    mesh: dict[str, Any] = {
        "pp": settings.integer("pipeline.stages") or 1,
        "cp": settings.integer("sequence_parallel_size") or 1,
        "tp": settings.integer("tensor_parallel.autotp_size", least=0) or 1,
        "ep": (ep if enabled else None) or 1,
        "etp": (etp if enabled else None) or 1,
    }
    if settings.text("pipeline.partition") == "uniform" and mesh["pp"] > 1:
        mesh["balanced"] = False
    if mesh["pp"] > 1:
        mesh["schedule"] = "1f1b"
    return mesh


def _whole(written: Any) -> Any:
    return int(written) if isinstance(written, str) and written.isdigit() else written


def _precision(settings: Settings, stops: Stops, default_origins: dict[str, str]) -> dict[str, Any]:
    names = [f"{name}.enabled" for name in ("bf16", "bfloat16", "fp16")]
    is_open = any(map(settings.is_auto, names))
    if not any(name in settings for name in names):
        default_origins["workload.precision"] = "what DeepSpeed trains in without bf16 and fp16"
    said = [settings.boolean(f"{name}.enabled") for name in ("bf16", "bfloat16")]
    bf16 = any(said)
    fp16 = settings.boolean("fp16.enabled")
    if fp16 and bf16:
        rule = "does not go with bf16.enabled: DeepSpeed stops where both are true"
        stops.found.append(
            Stop(setting="fp16.enabled", value=True, rule=rule, source=SOURCE, cure="drop one")
        )
    if is_open and not (bf16 or fp16):
        return {}
    fields: dict[str, Any] = {"precision": "bf16" if bf16 else "fp16" if fp16 else "fp32"}
    has_narrow_states = [
        settings.boolean(f"bf16.{name}")
        for name in ("bf16_master_weights_and_grads", "bf16_optimizer_states")
    ]
    if bf16 and all(has_narrow_states):
        fields["master_weights"] = False
    elif any(has_narrow_states):
        reason = "16-bit master weights without 16-bit states, or the reverse, are not modelled"
        settings.reserve("bf16.bf16_master_weights_and_grads", reason, "set both, or neither")
    return fields


def _optimizer(settings: Settings) -> dict[str, Any]:
    written = settings.value("optimizer.type")
    if written is None or settings.is_auto("optimizer.type"):
        return {}
    optimizer = _OPTIMIZERS.get(str(written).lower())
    if optimizer is None:
        reason = "how much this optimizer keeps of a parameter is not described"
        cure = "give workload.optimizer in place of it"
        settings.reserve("optimizer.type", reason, cure, answered_by="workload.optimizer")
        return {}
    return {"optimizer": optimizer}


def _sharding(settings: Settings) -> dict[str, Any]:
    stage = settings.integer("zero_optimization.stage", least=0) or 0
    if stage > 3:
        raise Invalid(PATH, shown("zero_optimization.stage", stage), "must be 0, 1, 2 or 3")
    device = settings.text("zero_optimization.offload_optimizer.device")
    if settings.boolean("zero_optimization.cpu_offload"):  # as it was written before 0.3.16
        device = "cpu"
    parameters = settings.text(_PARAMETERS)
    if device == "nvme":
        name = "zero_optimization.offload_optimizer.device"
        settings.reserve(name, "reads and writes of NVMe are not described", "judge it with cpu")
    if settings.boolean("zero_optimization.cpu_offload_param"):
        parameters = "cpu"
        settings.put(_PARAMETERS, parameters)
    if parameters in _ON_HOST:
        _reserve_parameters(settings, str(parameters), is_alone=device not in _ON_HOST)
    return {"zero_stage": stage, "offload_optimizer": device in _ON_HOST}


def _reserve_parameters(settings: Settings, device: str, *, is_alone: bool) -> None:
    """Reserve parameters on the host where they are not what the stack's switch describes."""
    if _PARAMETERS not in values_of_switches(NAME):
        cure = "judge it with none, which takes more memory"
        settings.reserve(_PARAMETERS, "parameters on the host are not described", cure)
    elif is_alone:
        reason = "parameters on the host without the optimizer are not described"
        settings.reserve(_PARAMETERS, reason, "offload the optimizer too")
    elif device == "nvme":
        reason = "reads and writes of NVMe are not described"
        settings.reserve(_PARAMETERS, reason, "judge it with cpu")


def _recompute(settings: Settings, pp: int, tp: int, *, has_trainer: bool) -> dict[str, Any]:
    """Returns the recompute of the layout. A pipeline recomputes by a number of layers between
    checkpoints, other models every layer or none."""
    interval = settings.integer("pipeline.activation_checkpoint_interval", least=0) or 0
    names = ("activation_checkpointing", "activation_checkpointing.partition_activations")
    has_block = not has_trainer and any(name in settings for name in names)
    on_host = settings.boolean("activation_checkpointing.cpu_checkpointing") and not has_trainer
    if interval > 1:
        name = "pipeline.activation_checkpoint_interval"
        settings.reserve(name, "checkpoints of several layers are not described", "judge it with 1")
    partitioned = "activation_checkpointing.partition_activations"
    if tp > 1 and settings.boolean(partitioned) and not has_trainer:
        reason = "checkpoints cut over tensor parallelism are not described"
        settings.reserve(partitioned, reason, "judge it with false")
    is_full = has_block or (interval > 0 and pp > 1)
    return {"recompute": "full" if is_full else "none", "offload_activations": on_host}


def _batch(
    settings: Settings, layout: dict[str, Any], steps: int | None, stops: Stops
) -> dict[str, Any]:
    """The batch of a step, from the equation train_batch_size = train_micro_batch_size_per_gpu *
    gradient_accumulation_steps * ranks (runtime/config.py, _batch_assertion), whose ranks are those
    of data parallelism and of AutoTP. The data-parallel degree goes into the layout where it
    follows."""
    batch = settings.integer("train_batch_size")
    micro = settings.integer("train_micro_batch_size_per_gpu")
    said = settings.integer("data_parallel_size")
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
