"""The YAML files of MaxText's own package: those of its models, and the configurations that scripts
name by their place in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from service.formats.launch.facts import facts

TABLE = "maxtext_configs_0.2.5"
_FOLDER = "configs"
_BASE = "base.yml"


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A file of the package; its name is behind `configs/`."""

    name: str
    settings: Mapping[str, Any]
    is_moved: bool = False
    """The launch has it by another path, which earlier releases had."""


def package_file(path: str) -> PackageFile | None:
    """Returns the file of MaxText's package at a path such as src/MaxText/configs/base.yml. A
    file that this release has in another folder is found by its name. None for other paths, and
    for a file that trains nothing."""
    steps = [step for step in path.split("/") if step]
    if steps == [_BASE] or steps[-2:] == [_FOLDER, _BASE]:
        return PackageFile(_BASE, {})  # it sets the defaults, which count in any case
    if _FOLDER not in steps[:-1]:
        return None
    # The steps behind the last `configs` of the path.
    in_folder = steps[len(steps) - steps[::-1].index(_FOLDER) :]
    name = "/".join(in_folder)
    files: Mapping[str, Mapping[str, Any]] = facts(TABLE)["files"]
    if name in files:
        return PackageFile(name, files[name])
    namesakes = [file for file in files if file.rpartition("/")[2] == in_folder[-1]]
    if len(namesakes) != 1:  # which of several is meant cannot be told
        return None
    return PackageFile(namesakes[0], files[namesakes[0]], is_moved=True)


def model_file(name: str) -> Mapping[str, Any]:
    """Returns the settings in the file of a model; none where the release has no such file."""
    values: Mapping[str, Any] = facts(TABLE)["files"].get(f"models/{name}.yml", {})
    return values


def default_file(program: str | None) -> PackageFile:
    """Returns the configuration that a program reads where its command names none: base.yml,
    unless the table has another one for the program."""
    name = facts(TABLE)["programs"].get(module_name(program), _BASE)
    return PackageFile(name, facts(TABLE)["files"].get(name, {}))


def module_name(program: str | None) -> str:
    """Returns the last part of a program's name: train_rl for MaxText/train_rl.py and for
    MaxText.train_rl."""
    return (program or "").removesuffix(".py").replace("/", ".").rpartition(".")[2]


@cache
def rl_settings() -> frozenset[str]:
    """Returns the names of settings that only reinforcement learning has."""
    return frozenset(facts(TABLE)["rl_settings"])
