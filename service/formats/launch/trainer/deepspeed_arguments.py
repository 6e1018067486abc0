"""TrainingArguments and settings of accelerate beside a DeepSpeed document (transformers 5.24.0,
integrations/deepspeed.py; accelerate 1.15.0, utils/dataclasses.py, DeepSpeedPlugin).

A *stop* is a setting with which the Trainer refuses to start. A *reservation* is a remark that a
setting could matter and is not taken into account.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.formats.launch.documents import read_settings, sent_settings
from service.formats.launch.trainer.training import accumulation_steps
from service.formats.settings.reservation import Reservation
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stop, Stops
from service.formats.shell.files import LaunchFiles

_AUTO = "auto"
_SETTING_OF_PLUGIN = {
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
}
"""By setting of accelerate's deepspeed_config, the setting of the document that it becomes."""
_USUAL_STAGE = 2  # of DeepSpeedPlugin
_MICRO_BATCH = "train_micro_batch_size_per_gpu"
_STEPS = "gradient_accumulation_steps"
_BATCH = "train_batch_size"
_ARGUMENTS = {_MICRO_BATCH: "per_device_train_batch_size", _STEPS: _STEPS}
"""The TrainingArguments that say the same as settings of the document."""
_FINALIZE = "transformers 5.24.0: integrations/deepspeed.py, trainer_config_finalize"


def document_of(
    arguments: dict[str, Any], files: LaunchFiles, reservations: list[Reservation]
) -> dict[str, Any] | None:
    """Removes the DeepSpeed document from the arguments of a launch, and returns its settings.
    It is a file or JSON (--deepspeed ds.json), single settings
    (deepspeed.zero_optimization.stage), or the document that accelerate makes of its settings in
    deepspeed_config. Returns None where DeepSpeed does not run."""
    prefix = "deepspeed."
    inline = {
        name.removeprefix(prefix): arguments.pop(name)
        for name in [*arguments]
        if name.startswith(prefix)
    }
    document = arguments.pop("deepspeed", None)
    of_launcher = arguments.pop("deepspeed_config", None)
    of_accelerate = arguments.pop("deepspeed_config.deepspeed_config_file", None)
    # These switch DeepSpeed on or off, and name no document.
    if str(document).lower() in ("true", "none", "false", ""):
        document = None
    document = document or of_launcher or of_accelerate
    if document is not None:
        return {**_read_document(str(document), files, reservations), **inline}
    if inline:
        return inline
    if str(arguments.get("distributed_type")).upper() == "DEEPSPEED":
        return _document_of_plugin(arguments)
    return None


def _read_document(
    document: str, files: LaunchFiles, reservations: list[Reservation]
) -> dict[str, Any]:
    """Returns the settings of a document that is given as JSON, or as the name of a file. Adds a
    reservation for a file that was not sent."""
    if document.lstrip().startswith("{"):
        return read_settings(document)
    return sent_settings(document, f"deepspeed {document}", files, reservations)


def _document_of_plugin(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the DeepSpeed document that accelerate makes of deepspeed_config, by default with
    ZeRO 2: {"zero_optimization.stage": 2, …}."""
    document: dict[str, Any] = {"zero_optimization.stage": _USUAL_STAGE}
    for name, setting in _SETTING_OF_PLUGIN.items():
        value = arguments.get(f"deepspeed_config.{name}")
        if value is not None:
            document[setting] = value
    return document


def with_trainer_values(
    document: Mapping[str, Any], arguments: Settings, stops: Stops
) -> dict[str, Any]:
    """Returns the document as the Trainer completes it: a value that is "auto" or missing comes
    from TrainingArguments. Notes a stop for each value that contradicts these."""
    completed = dict(document)
    of_trainer = {
        _MICRO_BATCH: arguments.integer("per_device_train_batch_size"),
        _STEPS: accumulation_steps(arguments),
        **_number_formats(arguments),
    }
    for name, value in of_trainer.items():
        in_document = completed.get(name)
        if value is None:
            if in_document == _AUTO and name.endswith(".enabled"):
                completed[name] = False  # the default of TrainingArguments
        elif in_document in (None, _AUTO):
            completed[name] = value
        elif str(in_document).lower() != str(value).lower():
            argument = _ARGUMENTS.get(name, name.partition(".")[0])
            rule = f"is not {value}, which --{argument} of TrainingArguments says"
            stops.noted.append(
                Stop(
                    setting=name,
                    value=in_document,
                    rule=f"{rule}: transformers stops",
                    source=_FINALIZE,
                    cure=f'"{_AUTO}"',
                )
            )
    is_unset = {
        name: completed.get(name) in (None, _AUTO) for name in (_MICRO_BATCH, _STEPS, _BATCH)
    }
    if is_unset[_STEPS] and is_unset[_BATCH] and not is_unset[_MICRO_BATCH]:
        completed[_STEPS] = 1  # the default of TrainingArguments
    if completed.get(_BATCH) == _AUTO:
        del completed[_BATCH]
    # transformers fills in the sizes of ZeRO's buckets by the width of the model, which is not
    # known here: they count as not set. Devices are no such sizes.
    automatic = [name for name, value in completed.items() if value == _AUTO]
    for name in automatic:
        if name.startswith("zero_optimization.") and "device" not in name:
            del completed[name]
    return completed


def _number_formats(arguments: Settings) -> dict[str, bool | None]:
    """Returns whether TrainingArguments or accelerate switch bf16 and fp16 on: {"bf16.enabled":
    True, "fp16.enabled": False}. None where neither sets it."""
    mixed_precision = arguments.text("mixed_precision")
    formats: dict[str, bool | None] = {}
    for name in ("bf16", "fp16"):
        is_set = name in arguments.given or mixed_precision is not None
        is_on = arguments.boolean(name) or mixed_precision == name
        formats[f"{name}.enabled"] = is_on if is_set else None
    return formats
