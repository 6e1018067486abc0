"""The model that a launch names, where the catalogue has it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from models.spec import catalogue
from service.formats.launch.documents import read_document
from service.formats.shell.faults import undefined_variables
from service.formats.shell.files import NO_FILES, LaunchFiles

_QUANTIZED = re.compile(
    r"-(?:unsloth-)?(?:bnb-(?P<bnb>[48])bit|AQLM-(?P<aqlm>\d)bit\S*"
    r"|(?:GPTQ|AWQ)(?:-Int(?P<int>[48]))?|Int(?P<plain>[48])"
    r"|(?P<four>bnb-nf4(?:-bf16)?|NVFP4|MXFP4)|(?P<eight>FP8))(?=-|$)",
    re.ASCII | re.IGNORECASE,
)
"""The part of a checkpoint's name that gives the bits of its weights."""
_TUNED = re.compile(r"-(?:instruct|chat|it)$", re.ASCII)
"""Words in the name of a checkpoint that say how it was tuned, and nothing of its shape."""
_BITS = {"four": 4, "eight": 8}
_USUAL_BITS = 4  # of GPTQ and AWQ
MODEL_NAMES = ("model_name_or_path", "model_id")
"""The settings of the Trainer's programs that name a model."""
_PATH_MARKS = ("/", ".", "~")
_CONFIG = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model by the name that a launch has for it."""

    id: str | None
    """Its name in the catalogue; None where that has no such model."""
    bits: int | None = None
    """The bits of its weights, where its name says that they are quantized."""
    problem: str | None = None
    """Why the model is not known, and what to send."""
    config: Mapping[str, Any] | None = None
    """Its config.json, where that was sent."""


def first_named_model(settings: Mapping[str, Any], names: Iterable[str]) -> NamedModel:
    """Returns the model that the first of the settings `names` names which is given; one without
    an `id` where none is."""
    setting = next((name for name in names if settings.get(name)), None)
    return NamedModel(id=None) if setting is None else named_model(setting, str(settings[setting]))


def named_model(setting: str, name: str, files: LaunchFiles = NO_FILES) -> NamedModel:
    """Returns the model that a setting names, with or without its organisation and in either
    case: unsloth/Llama-3-8B-bnb-4bit is llama-3-8b with weights of 4 bits. A config.json that
    was sent goes before the catalogue. The result says what is wrong where neither has the
    model."""
    quantization = _QUANTIZED.search(name)
    bits = None if quantization is None else _bits_in(quantization)
    bare = _bare_name(_QUANTIZED.sub("", name))
    ids = _ids_by_bare_name()
    # The model that this one was tuned from has the same shape.
    known = ids.get(bare) or ids.get(_TUNED.sub("", bare))
    config = _sent_config(name, files)
    if config is not None:
        return NamedModel(id=None, bits=bits, config=config)
    if undefined_variables(name):
        rule = f"{setting} = {name[:80]} is a variable whose value was not sent"
    elif name[:1] in _PATH_MARKS or name.count("/") > 1:
        rule = f"{setting} = {name[:80]} is a folder, and what is in it was not sent"
    elif known is not None:
        return NamedModel(id=known, bits=bits)
    else:
        rule = f"{setting} = {name[:80]} is not in the catalogue"
    cure = 'send its config.json as model, or as launch.files["config.json"]'
    return NamedModel(id=None, bits=bits, problem=f"{rule}: {cure}")


def _sent_config(name: str, files: LaunchFiles) -> dict[str, Any] | None:
    """Returns the config.json that was sent for the model; None where there is none, or it is not a
    model's."""
    # `find` takes the config.json whose folders are most like the model's: also the only one sent,
    # whatever its folder.
    text = files.find(f"{name.rstrip('/')}/{_CONFIG}")
    if text is None:
        return None
    document = read_document(text)
    return document if "model_type" in document else None


def _bits_in(quantization: re.Match[str]) -> int:
    """Returns the bits of a weight that a quantization's name implies: 8 for GPTQ-Int8 and for
    FP8."""
    group = quantization.lastgroup
    if group is None:  # GPTQ alone
        return _USUAL_BITS
    return _BITS[group] if group in _BITS else int(quantization[group])  # FP8, or Int4


@cache
def _ids_by_bare_name() -> dict[str, str]:
    return {_bare_name(name): model.name for name, model in catalogue.architectures().items()}


def _bare_name(name: str) -> str:
    """Returns a model's name in lower case without its organisation: "llama-3-8b" for
    "meta-llama/Llama-3-8B"."""
    return name.rstrip("/").rpartition("/")[2].lower().replace("_", "-")
