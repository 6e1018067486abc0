"""The arguments of `megatron sft` of ms-swift 4.6.0, which trains with Megatron-Core, in the flags
of Megatron-LM."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.formats.launch.job import Changes, LaunchReading
from service.formats.launch.megatron import reader as megatron_reader
from service.formats.launch.trainer.adapters import read_adapters
from service.formats.launch.trainer.launched import Launched
from service.formats.launch.trainer.models import named_model
from service.formats.launch.trainer.ms_swift import objective_of
from service.formats.launch.trainer.objectives import (
    in_sequences,
    read_objective,
    workload_of,
)
from service.formats.launch.trainer.trainer_settings import OBJECTIVE
from service.formats.megatron.flags import flag_of_argument, takes_value
from service.formats.settings.field import shown
from service.formats.settings.field_table import field_table
from service.formats.settings.settings import Settings

_TABLE = "megatron_swift"
_MODEL_NAMES = ("model", "model_id_or_path")
_OFF = (False, "false", "False", None)


def read_megatron(launched: Launched, version: str | None, changes: Changes) -> LaunchReading:
    """Returns what the arguments say. Arguments that Megatron has too are read as its own."""
    table = field_table(_TABLE)
    given = {**table.facts["defaults"], **launched.settings}
    own = {name: value for name, value in given.items() if name not in flag_of_argument()}
    length = own.get("packing_length") or own.get("max_length")
    theirs = {name: value for name, value in given.items() if name not in own}
    if length is not None:
        theirs["seq_length"] = length
    text = shlex.join(_words(theirs))
    reading = megatron_reader.read(text, version, changes=changes)
    settings = Settings(table, own)
    assumed: list[str] = []
    adapters = _adapters(settings, assumed)
    workload = {**reading.workload, **adapters}
    layout = dict(reading.layout)
    preferences = Settings(field_table("transformers"))
    counting_notes: dict[str, str] = {}
    if launched.objective == "rlhf":
        preferences.put(OBJECTIVE, objective_of(settings))
        preferences.written[OBJECTIVE] = shown("rlhf_type", settings.value("rlhf_type"))
        objective = read_objective(preferences)
        workload |= workload_of(objective, preferences, assumed, has_adapters=bool(adapters))
        counting_notes = in_sequences(objective, layout, workload)
    unread = settings.unread()
    name = next((candidate for candidate in _MODEL_NAMES if candidate in own), None)
    model = None if name is None else named_model(name, str(own[name]))
    return replace(
        reading,
        model=reading.model if model is None or model.id is None else {"name": model.id},
        unresolved_parts={"model": model.problem} if model is not None and model.problem else {},
        workload=workload,
        layout=layout,
        counting_notes=counting_notes,
        num_devices=launched.num_devices,
        stops=(*reading.stops, *unread.stops),
        reservations=(
            *launched.reservations,
            *reading.reservations,
            *preferences.reservations,
            *unread.reservations,
        ),
        ignored=(*reading.ignored, *unread.no_account),
        assumed=tuple(assumed),
    )


def _words(settings: Mapping[str, Any]) -> list[str]:
    """Settings as a command line of Megatron-LM, on which a flag that is off is left out."""
    words: list[str] = []
    for name, value in settings.items():
        flag = flag_of_argument()[name]
        if takes_value(flag):
            listed = value if isinstance(value, list) else [value]
            words += [] if value is None else [flag, *map(str, listed)]
        elif value not in _OFF:
            words.append(flag)
    return words


def _adapters(settings: Settings, assumed: list[str]) -> dict[str, Any]:
    name = next(
        (candidate for candidate in ("tuner_type", "train_type") if candidate in settings.given),
        None,
    )
    if name is None or str(settings.given[name]) != "lora":
        return {}
    given = {
        "use_peft": True,
        "lora_r": settings.value("lora_rank"),
        "lora_target_modules": settings.given.get("target_modules", "all-linear"),
    }
    own = Settings(field_table("transformers"), given)
    adapters = read_adapters(own, assumed)
    for reservation in own.reservations:
        settings.note(reservation)
    return adapters
