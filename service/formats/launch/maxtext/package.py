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
    """The name that was asked for is another, which earlier releases had."""


def package_file(path: str) -> PackageFile | None:
    """The file that a path in the package names; None where the path is elsewhere, or no such file
    trains. A file that lies elsewhere in this release is found by its own name."""
    steps = [step for step in path.split("/") if step]
    if steps == [_BASE] or steps[-2:] == [_FOLDER, _BASE]:
        return PackageFile(_BASE, {})
    if _FOLDER not in steps[:-1]:
        return None
    behind = steps[len(steps) - steps[::-1].index(_FOLDER) :]
    name = "/".join(behind)
    files: Mapping[str, Mapping[str, Any]] = facts(TABLE)["files"]
    if name in files:
        return PackageFile(name, files[name])
    moved = [known for known in files if known.rpartition("/")[2] == behind[-1]]
    return PackageFile(moved[0], files[moved[0]], is_moved=True) if len(moved) == 1 else None


def model_file(name: str) -> Mapping[str, Any]:
    """The settings in the file of a model; none where the release has no such file."""
    values: Mapping[str, Any] = facts(TABLE)["files"].get(f"models/{name}.yml", {})
    return values


def default_file(program: str | None) -> PackageFile:
    """The file that a program starts from where its command names none."""
    own = (program or "").removesuffix(".py").replace("/", ".").rpartition(".")[2]
    name = facts(TABLE)["programs"].get(own, _BASE)
    return PackageFile(name, facts(TABLE)["files"].get(name, {}))


@cache
def rl_settings() -> frozenset[str]:
    """The names of settings that only reinforcement learning has."""
    return frozenset(facts(TABLE)["rl_settings"])
