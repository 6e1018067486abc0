"""The arguments of `megatron sft` of ms-swift 4.6.0, which trains with Megatron-Core, in the flags
of Megatron-LM. A *flag* is typed, --seq-length, and sets an *argument*, seq_length."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.spec import catalogue
from service.formats.launch.job import Changes, LaunchReading
from service.formats.launch.megatron import reader as megatron_reader
from service.formats.launch.trainer.adapters import read_adapters
from service.formats.launch.trainer.launched import Launched
from service.formats.launch.trainer.models import NamedModel, first_named_model
from service.formats.launch.trainer.ms_swift import (
    MODEL_NAMES,
    is_classification,
    note_other_task,
    objective_of,
)
from service.formats.launch.trainer.objectives import (
    count_in_sequences,
    read_objective,
    workload_of,
)
from service.formats.launch.trainer.trainer_settings import OBJECTIVE, note_stop
from service.formats.megatron.flags import flag_of_argument, takes_value
from service.formats.settings.field import shown
from service.formats.settings.field_table import field_table
from service.formats.settings.settings import Settings
from service.formats.shell.faults import invalid_launch

_TABLE = "megatron_swift"
_LAYERS_OF_STAGE = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
_LAYERS_OF_CHUNK = "num_layers_per_virtual_pipeline_stage"  # of 3.9 and before
_VIRTUAL_STAGES = "num_virtual_stages_per_pipeline_rank"  # as Megatron-LM calls it
_STAGES = "pipeline_model_parallel_size"
_OFF_VALUES = (False, "false", "False", None)


def read_megatron(launched: Launched, version: str | None, changes: Changes) -> LaunchReading:
    """Returns the reading of `megatron sft` or `megatron rlhf`. Arguments that Megatron-LM has
    too are read as its flags, the others by ms-swift's own table."""
    table = field_table(_TABLE)
    arguments = {**table.facts["defaults"], **launched.settings}
    flags = flag_of_argument()
    # Layers of stages are Megatron-LM's too, but there they need the shape of the model.
    names = flags.keys() - {*_LAYERS_OF_STAGE, _LAYERS_OF_CHUNK}
    of_megatron = {name: value for name, value in arguments.items() if name in names}
    of_swift = {name: value for name, value in arguments.items() if name not in names}
    # Samples are packed into sequences of packing_length, where it is given.
    length = of_swift.get("packing_length") or of_swift.get("max_length")
    if length is not None:
        of_megatron["seq_length"] = length
    model = first_named_model(of_swift, MODEL_NAMES)
    of_megatron.setdefault(_VIRTUAL_STAGES, _virtual_stages(arguments, model))
    text = shlex.join(_words(of_megatron))
    reading = megatron_reader.read(text, version, changes=changes)
    settings = Settings(table, of_swift)
    settings.is_other_release = version not in (None, table.release)
    assumed: list[str] = []
    adapters = _adapters(settings, assumed)
    workload = {**reading.workload, **adapters}
    layout = dict(reading.layout)
    _put_layers_of_stages(layout, settings, model)
    # The method of rlhf, such as dpo, is read as other tools' objectives are.
    preferences = Settings(field_table("transformers"))
    counting_notes: dict[str, str] = {}
    if launched.objective == "rlhf":
        preferences.put(OBJECTIVE, objective_of(settings))
        # Messages show the setting by the name that the sender wrote.
        preferences.written[OBJECTIVE] = shown("rlhf_type", settings.value("rlhf_type"))
        objective = read_objective(preferences)
        workload |= workload_of(objective, preferences, assumed, has_adapters=bool(adapters))
        counting_notes = count_in_sequences(objective, layout, workload)
    note_other_task(settings)
    if is_classification(settings):
        workload["head"] = "score"
    unread = settings.unread()
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


def _virtual_stages(arguments: Mapping[str, Any], model: NamedModel) -> Any:
    """Returns the number of chunks of a pipeline stage, which earlier releases count by the layers
    of a chunk; None where nothing sets it. Raises Invalid where the model's layers are not known,
    or do not divide."""
    layers_of_chunk = arguments.get(_LAYERS_OF_CHUNK)
    if layers_of_chunk is None:
        return arguments.get("virtual_pipeline_model_parallel_size")
    written = shown(_LAYERS_OF_CHUNK, layers_of_chunk)
    if model.id is None:
        rule = "counts layers, and those of the model are not known: give layout.virtual_stages"
        raise invalid_launch(written, rule)
    counts = Settings(field_table(_TABLE), arguments)
    layers = catalogue.architecture(model.id).num_layers
    in_round = (counts.integer(_STAGES) or 1) * (counts.integer(_LAYERS_OF_CHUNK) or 1)
    if layers % in_round:
        raise invalid_launch(written, f"times the stages must divide {layers} layers")
    return layers // in_round


def _put_layers_of_stages(layout: dict[str, Any], settings: Settings, model: NamedModel) -> None:
    """Sets the layers of each pipeline stage in `layout` where those of the first or the last are
    given. The other stages share the rest of the model's layers, which ms-swift counts itself.
    Notes a stop where they cannot, and a reservation where the layers are not known."""
    first, last = map(settings.integer, _LAYERS_OF_STAGE)
    name = _LAYERS_OF_STAGE[0 if first else 1]
    ends = sum(count is not None for count in (first, last))
    if ends == 0:
        return
    if layout["pp"] == 1:
        rule = "needs pipeline_model_parallel_size above 1"
        note_stop(settings, name, rule, "megatron/arguments/megatron_args.py")
        return
    if model.id is None or layout.get("virtual_stages", 1) > 1:
        field = "layout.layers_per_chunk"
        reason = "how many layers the other stages have follows from the model's"
        settings.add_reservation(name, reason, f"give {field}", answered_by=field)
        return
    layers = catalogue.architecture(model.id).num_layers
    rest = layers - (first or 0) - (last or 0)
    others = layout["pp"] - ends
    if rest < others or (rest % others if others else rest):
        rule = f"leaves {rest} of {layers} layers for {others} stages, which do not divide"
        note_stop(settings, name, rule, "megatron/model/utils.py")
        return
    counts = [first, *[rest // max(others, 1)] * others, last]
    layout["layers_per_chunk"] = [count for count in counts if count is not None]
    layout["balanced"] = len({*layout["layers_per_chunk"]}) > 1


def _words(settings: Mapping[str, Any]) -> list[str]:
    """Returns settings as the words of Megatron-LM's command line. Flags that are off are left
    out."""
    words: list[str] = []
    for name, value in settings.items():
        flag = flag_of_argument()[name]
        if not takes_value(flag):
            words += [] if value in _OFF_VALUES else [flag]
        elif str(value).lower() != "none":
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
