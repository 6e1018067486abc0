"""The model that a launch names, where the catalogue has it."""

from __future__ import annotations

import re
from collections.abc import Mapping
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


def named_model(setting: str, name: str, files: LaunchFiles = NO_FILES) -> NamedModel:
    """The model that a setting names by its name at Hugging Face, with or without the organisation,
    in upper or lower case; or by the folder of a config.json that was sent, which goes before the
    catalogue."""
    mark = _QUANTIZED.search(name)
    bits = None if mark is None else _bits_in(mark)
    plain = _QUANTIZED.sub("", name)
    own = _bare(plain)
    config = _sent_config(name, files)
    if config is not None:
        return NamedModel(id=None, bits=bits, config=config)
    if undefined_variables(name):
        rule = f"{setting} = {name[:80]} is a variable whose value was not sent"
    elif name[:1] in _PATH_MARKS or name.count("/") > 1:
        rule = f"{setting} = {name[:80]} is a folder, and what is in it was not sent"
    elif (known := _known_as(own)) is not None:
        return NamedModel(id=known, bits=bits)
    else:
        rule = f"{setting} = {name[:80]} is not in the catalogue"
    cure = 'send its config.json as model, or as launch.files["config.json"]'
    return NamedModel(id=None, bits=bits, problem=f"{rule}: {cure}")


def _sent_config(name: str, files: LaunchFiles) -> dict[str, Any] | None:
    """The config.json of the folder that a model is in, or the only one that was sent. Other kinds
    of documents may have that name too."""
    text = files.find(f"{name.rstrip('/')}/{_CONFIG}")
    if text is None:
        return None
    document = read_document(text)
    return document if "model_type" in document else None


def _bits_in(mark: re.Match[str]) -> int:
    mark_and_bits = next(((name, text) for name, text in mark.groupdict().items() if text), None)
    if mark_and_bits is None:
        return _USUAL_BITS
    name, text = mark_and_bits
    return _BITS[name] if name in _BITS else int(text)


def _known_as(name: str) -> str | None:
    """The id of a model by its bare name, or by that of the model that it was tuned from, whose
    shape it has."""
    return _known().get(name) or _known().get(_TUNED.sub("", name))


@cache
def _known() -> dict[str, str]:
    """The ids of models by their names without the organisation, in lower case."""
    return {_bare(name): model.name for name, model in catalogue.architectures().items()}


def _bare(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower().replace("_", "-")
