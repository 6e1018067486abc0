"""TrainingArguments and settings of accelerate beside a DeepSpeed document (transformers 5.24.0,
integrations/deepspeed.py; accelerate 1.15.0, utils/dataclasses.py, DeepSpeedPlugin)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.formats.launch.documents import read_settings, sent_settings
from service.formats.launch.trainer.training import accumulation_steps, micro_batch
from service.formats.settings.reservation import Reservation
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stop, Stops
from service.formats.shell.files import LaunchFiles

_AUTO = "auto"
_PLUGIN = {
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
}
_STAGE = 2  # of the plugin where nobody says it
_MICRO = "train_micro_batch_size_per_gpu"
_STEPS = "gradient_accumulation_steps"
_BATCH = "train_batch_size"


def document_of(
    given: dict[str, Any], files: LaunchFiles, reservations: list[Reservation]
) -> dict[str, Any] | None:
    """Returns the DeepSpeed document of a launch, whose settings leave `given`; None where another
    shards the model."""
    prefix = "deepspeed."
    inline = {
        name.removeprefix(prefix): given.pop(name) for name in [*given] if name.startswith(prefix)
    }
    named = given.pop("deepspeed", None)
    beside = given.pop("deepspeed_config", None)
    file = given.pop("deepspeed_config.deepspeed_config_file", None)
    if str(named).lower() in ("true", "none", "false", ""):
        named = None
    named = named or beside or file
    if named is not None:
        return {**_sent(str(named), files, reservations), **inline}
    if inline:
        return inline
    if str(given.get("distributed_type")).upper() == "DEEPSPEED":
        return of_plugin(given)
    return None


def _sent(name: str, files: LaunchFiles, reservations: list[Reservation]) -> dict[str, Any]:
    """Returns the document that a setting holds, or names."""
    if name.lstrip().startswith("{"):
        return read_settings(name)
    return sent_settings(name, f"deepspeed {name}", files, reservations)


def of_plugin(given: Mapping[str, Any]) -> dict[str, Any]:
    """The document that accelerate makes of its own settings."""
    document: dict[str, Any] = {"zero_optimization.stage": _STAGE}
    for name, own in _PLUGIN.items():
        value = given.get(f"deepspeed_config.{name}")
        if value is not None:
            document[own] = value
    return document


def filled(
    document: Mapping[str, Any], arguments: Settings, ranks: int | None, stops: Stops
) -> dict[str, Any]:
    """The document with the values of TrainingArguments for those that are "auto" or missing, on
    so many data-parallel ranks where that is known. Stops at values that are not the same."""
    said = {
        _MICRO: micro_batch(arguments),
        _STEPS: accumulation_steps(arguments),
        **_formats(arguments),
    }
    full = dict(document)
    for name, value in said.items():
        written = full.get(name)
        if value is None:
            if written == _AUTO and name.endswith(".enabled"):
                full[name] = False  # the default of TrainingArguments
            continue
        if written in (None, _AUTO):
            full[name] = value
        elif _differs(written, value):
            own = _NAMES.get(name, name.partition(".")[0])
            rule = f"is not {value}, which --{own} of TrainingArguments says: transformers stops"
            cure = f'"{_AUTO}"'
            stops.found.append(
                Stop(setting=name, value=written, rule=rule, source=_FINALIZE, cure=cure)
            )
    if _is_open(full, _STEPS) and not _is_open(full, _MICRO) and _is_open(full, _BATCH):
        full[_STEPS] = 1  # the default of TrainingArguments
    if full.get(_BATCH) == _AUTO:
        del full[_BATCH]
    if ranks is not None and _BATCH not in full and not _is_open(full, _MICRO):
        full[_BATCH] = int(full[_MICRO]) * int(full[_STEPS]) * ranks
    return {name: value for name, value in full.items() if not _is_size_of_bucket(name, value)}


_FINALIZE = "transformers 5.24.0: integrations/deepspeed.py, trainer_config_finalize"
_NAMES = {
    _MICRO: "per_device_train_batch_size",
    _STEPS: "gradient_accumulation_steps",
}


def _formats(arguments: Settings) -> dict[str, bool | None]:
    """The blocks of number formats that TrainingArguments or accelerate fill in."""
    mixed = arguments.text("mixed_precision")
    formats: dict[str, bool | None] = {}
    for name in ("bf16", "fp16"):
        is_said = name in arguments.given or mixed is not None
        is_on = bool(arguments.boolean(name)) or mixed == name
        formats[f"{name}.enabled"] = is_on if is_said else None
    return formats


def _is_open(document: Mapping[str, Any], name: str) -> bool:
    return document.get(name) in (None, _AUTO)


def _differs(written: Any, value: Any) -> bool:
    return str(written).lower() != str(value).lower()


def _is_size_of_bucket(name: str, value: Any) -> bool:
    """Returns True where transformers fills in a size of ZeRO's buckets by the width of the
    model."""
    return value == _AUTO and name.startswith("zero_optimization.") and "device" not in name
