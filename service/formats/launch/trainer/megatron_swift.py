"""The arguments of `megatron sft` of ms-swift 4.6.0, which trains with Megatron-Core, in the flags
of Megatron-LM. A *flag* is typed, --seq-length, and sets an *argument*, seq_length."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.formats.launch.job import Changes, LaunchReading
from service.formats.launch.megatron import reader as megatron_reader
from service.formats.launch.trainer.adapters import read_adapters
from service.formats.launch.trainer.launched import Launched
from service.formats.launch.trainer.models import NamedModel, named_model
from service.formats.launch.trainer.ms_swift import objective_of
from service.formats.launch.trainer.objectives import (
    count_in_sequences,
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
_OFF_VALUES = (False, "false", "False", None)


def read_megatron(launched: Launched, version: str | None, changes: Changes) -> LaunchReading:
    """Returns the reading of `megatron sft` or `megatron rlhf`. Arguments that Megatron-LM has
    too are read as its flags, the others by ms-swift's own table."""
    table = field_table(_TABLE)
    arguments = {**table.facts["defaults"], **launched.settings}
    flags = flag_of_argument()
    of_megatron = {name: value for name, value in arguments.items() if name in flags}
    of_swift = {name: value for name, value in arguments.items() if name not in flags}
    # Samples are packed into sequences of packing_length, where it is given.
    length = of_swift.get("packing_length") or of_swift.get("max_length")
    if length is not None:
        of_megatron["seq_length"] = length
    text = shlex.join(_words(of_megatron))
    reading = megatron_reader.read(text, version, changes=changes)
    settings = Settings(table, of_swift)
    settings.is_other_release = version not in (None, table.release)
    assumed: list[str] = []
    adapters = _adapters(settings, assumed)
    workload = {**reading.workload, **adapters}
    layout = dict(reading.layout)
    # The method of rlhf, such as dpo, is read as other tools' objectives are.
    preferences = Settings(field_table("transformers"))
    counting_notes: dict[str, str] = {}
    if launched.objective == "rlhf":
        preferences.put(OBJECTIVE, objective_of(settings))
        # Messages are to show the setting by the name that the sender wrote.
        preferences.written[OBJECTIVE] = shown("rlhf_type", settings.value("rlhf_type"))
        objective = read_objective(preferences)
        workload |= workload_of(objective, preferences, assumed, has_adapters=bool(adapters))
        counting_notes = count_in_sequences(objective, layout, workload)
    unread = settings.unread()
    setting = next((name for name in _MODEL_NAMES if name in of_swift), None)
    model = NamedModel(id=None)
    if setting is not None:
        model = named_model(setting, str(of_swift[setting]))
    return replace(
        reading,
        model=reading.model if model.id is None else {"name": model.id},
        unresolved_parts={"model": model.problem} if model.problem else {},
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
    """Returns settings as the words of Megatron-LM's command line. Flags that are off are left
    out."""
    words: list[str] = []
    for name, value in settings.items():
        flag = flag_of_argument()[name]
        if not takes_value(flag):
            words += [] if value in _OFF_VALUES else [flag]
        elif value is not None:
            values = value if isinstance(value, list) else [value]
            words += [flag, *map(str, values)]
    return words


def _adapters(settings: Settings, assumed: list[str]) -> dict[str, Any]:
    """Returns the adapters of --tuner_type lora as fields of a workload; none for other tuners.
    Earlier releases called it train_type."""
    kind = settings.given.get("tuner_type", settings.given.get("train_type"))
    if str(kind) != "lora":
        return {}
    peft_arguments = {
        "use_peft": True,
        "lora_r": settings.value("lora_rank"),
        "lora_target_modules": settings.given.get("target_modules", "all-linear"),
    }
    peft_settings = Settings(field_table("transformers"), peft_arguments)
    adapters = read_adapters(peft_settings, assumed)
    for reservation in peft_settings.reservations:
        settings.note(reservation)
    return adapters
