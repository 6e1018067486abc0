"""TrainingArguments of transformers, and what TRL and others add to them, as a workload and as
parts of a layout.

`assumed` collects sentences about settings that are counted as something else, and
`default_origins` those about values that the launch does not set.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from service.formats.launch.trainer.adapters import read_adapters
from service.formats.launch.trainer.objectives import read_objective, workload_of
from service.formats.launch.trainer.trainer_settings import MOMENT_RANK, TRAINED
from service.formats.settings.field import shown
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stop
from service.formats.shell.faults import invalid_launch

_RANK = re.compile(r"\brank=(\d{1,6})\b", re.ASCII)
_HALF_PRECISIONS = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16"}
Fp32Copy = Literal["never", "in_mixed_precision", "always"]
"""When what shards a model keeps an fp32 copy of parameters that are loaded in 16 bits."""
_SEQUENCE_LENGTHS = (
    "block_size", "cutoff_len", "seq_length", "model_max_length", "max_seq_length", "max_length",
)  # fmt: skip
"""The names that scripts have for the length of a sequence. Of those given, the last one here
counts."""


def read_workload(
    settings: Settings, assumed: list[str], default_origins: dict[str, str], *, fp32_copy: Fp32Copy
) -> dict[str, Any]:
    """Returns the fields of a workload that arguments decide. `fp32_copy` says when FSDP or
    DeepSpeed keeps an fp32 copy of parameters that are loaded in 16 bits. Fills `assumed` and
    `default_origins` with sentences about what is counted otherwise, or by default."""
    workload = _precision(settings, default_origins) | _optimizer(settings, assumed)
    adapters = read_adapters(settings, assumed)
    if not adapters:  # beside adapters the model's own parameters are frozen
        _read_model_format(settings, workload, fp32_copy)
        if settings.given.get(TRAINED):
            workload["trained"] = settings.given[TRAINED]
    workload |= adapters
    objective = read_objective(settings)
    workload |= workload_of(objective, settings, assumed, has_adapters="lora" in adapters)
    for name in _SEQUENCE_LENGTHS:
        length = settings.integer(name)
        if length:
            workload["seq_len"] = length
    if settings.boolean("packing"):
        assumed.append(
            "sequences are packed, and attention is counted over whole sequences:"
            " workload.packing says how long documents are"
        )
    return workload


def checkpoints_activations(settings: Settings) -> bool:
    """Returns True where activation checkpointing recomputes every layer in backward."""
    # Tools name it in two ways. Both are asked for, so that neither counts as not read.
    of_gradients = settings.boolean("gradient_checkpointing")
    of_activations = settings.boolean("activation_checkpointing")
    return of_gradients or of_activations


def accumulation_steps(settings: Settings) -> int | None:
    """Returns the number of micro-batches that a rank accumulates in a step; None where no
    argument sets it."""
    names = (
        "gradient_accumulation_steps",
        "deepspeed_config.gradient_accumulation_steps",
        "megatron_lm_config.megatron_lm_num_micro_batches",
    )
    counts = [settings.integer(name) for name in names if not settings.is_auto(name)]
    return next(filter(None, counts), None)


def _precision(settings: Settings, default_origins: dict[str, str]) -> dict[str, Any]:
    """Returns the precision of a workload, which TrainingArguments set, or else the launcher.
    Raises Invalid for an unknown one."""
    if not any(name in settings for name in ("mixed_precision", "bf16", "fp16", "fp8")):
        default_origins["workload.precision"] = "the default of mixed_precision"
    precision = settings.text("mixed_precision") or "no"
    formats = [name for name in ("bf16", "fp16", "fp8") if settings.boolean(name)]
    if {"bf16", "fp16"} <= {*formats}:
        settings.stops.append(
            Stop(
                setting="fp16",
                value=True,
                rule="does not go with bf16: transformers stops where both are true",
                source="transformers 5.24.0: training_args.py, _validate_args",
                cure="drop one",
            )
        )
    if formats:
        precision = formats[-1]
    if precision not in ("no", "bf16", "fp16", "fp8"):
        rule = "must be no, bf16, fp16 or fp8"
        raise invalid_launch(shown("mixed_precision", precision), rule)
    return {"precision": "fp32" if precision == "no" else precision}


def _optimizer(settings: Settings, assumed: list[str]) -> dict[str, Any]:
    """Returns the optimizer of --optim as fields of a workload; none where it is not set, or
    unknown, which is recorded as a reservation."""
    name = settings.text("optim")
    if name is None:
        return {}
    optimizer_and_notes = settings.table.facts["optimizers"].get(name)
    if optimizer_and_notes is None:
        reason = "how much this optimizer keeps of a parameter is not described"
        cure = "give workload.optimizer in place of it"
        settings.add_reservation("optim", reason, cure, answered_by="workload.optimizer")
        return {}
    optimizer, *notes = optimizer_and_notes
    assumed += [f"optim {name}: {note}" for note in notes]
    return {"optimizer": optimizer, **_projection_rank(settings, name, assumed)}


def _projection_rank(settings: Settings, optimizer: str, assumed: list[str]) -> dict[str, Any]:
    """Returns the rank to which an optimizer such as GaLore projects gradients, {"moment_rank":
    128}; none for other optimizers. The launch may give the rank in --optim_args rank=128
    (transformers trainer_optimizer.py)."""
    usual_ranks = settings.table.facts["projection_ranks"]
    kind = next((kind for kind in usual_ranks if kind in optimizer), None)
    if kind is None:
        return {}
    rank_in_text = _RANK.search(str(settings.given.get("optim_args") or ""))
    rank = settings.integer(MOMENT_RANK) or settings.integer("optim_args.rank")
    if rank is None:
        rank = int(rank_in_text.group(1)) if rank_in_text else usual_ranks[kind]
    assumed.append(
        f"{kind}: gradients are counted whole, and the decompositions that find the projection not"
        " at all"
    )
    return {"moment_rank": rank}


def _read_model_format(settings: Settings, workload: dict[str, Any], fp32_copy: Fp32Copy) -> None:
    """Sets precision and master_weights in a workload by the dtype in which the model is loaded.
    Raises Invalid for an unknown dtype."""
    dtype = settings.text("dtype") or settings.text("torch_dtype")
    # Parameters of 32 bits are what a workload has by default; those of "auto" are not known.
    if dtype in (None, "auto", "float32", "fp32", "none"):
        return
    if dtype not in _HALF_PRECISIONS:
        rule = "must be auto, float32, bfloat16 or float16"
        raise invalid_launch(shown("dtype", dtype), rule)
    # Without mixed precision the model computes in the format that it is loaded in.
    is_mixed = workload["precision"] != "fp32"
    if not is_mixed:
        workload["precision"] = _HALF_PRECISIONS[str(dtype)]
    has_copy = fp32_copy == "always" or (is_mixed and fp32_copy == "in_mixed_precision")
    if not has_copy:
        workload["master_weights"] = False
