"""Settings of a tool in the names of accelerate and transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from service.formats.launch.job import OwnName
from service.formats.settings.settings import Settings

OBJECTIVE, TRAINED, MOMENT_RANK, REFERENCE_MODEL = (
    f"told:{name}" for name in ("objective", "trained", "moment_rank", "reference_model")
)
"""Names for decisions of tools that TrainingArguments have no names for. Nobody can type such names
as flags."""


@dataclass(slots=True)
class TrainerSettings:
    settings: dict[str, Any] = field(default_factory=dict)
    """By the names of accelerate's document and of TrainingArguments."""
    source_names: dict[str, str] = field(default_factory=dict)
    """The tool's own names for settings, by the names in `settings` that they stand for."""
    assumed: list[str] = field(default_factory=list)
    """Sentences about settings that are counted as something else."""
    framework: str = "accelerate"
    release: str | None = None
    """The release of the tool; None where that of accelerate counts."""
    own_names: dict[str, OwnName] = field(default_factory=dict)
    """The names that the tool has for settings that may be changed."""

    def put(self, name: str, value: Any, own: str | None = None) -> None:
        self.settings[name] = value
        if own is not None and own != name:
            self.source_names[name] = own


@dataclass(frozen=True, slots=True)
class Invocation:
    """The caller's words that decide how the settings of a tool are taken."""

    num_devices: int | None = None
    version: str | None = None
    """The release of the tool that was asked for."""
    command: str | None = None
    """The command that the tool was told to run, such as rlhf."""


Translate = Callable[[Settings, Invocation], TrainerSettings]
"""Says the settings of a tool in those names."""


def renamed(settings: Settings) -> TrainerSettings:
    """The settings that only have another name in the tool, by its table."""
    table = settings.table
    trainer = TrainerSettings(framework=table.package, release=table.release)
    for own, name in table.facts["renamed"].items():
        trainer.own_names.setdefault(name, OwnName(own))
    for name, own_name in table.facts.get("said_as", {}).items():
        trainer.own_names[name] = OwnName(*own_name)
    for own, name in table.facts["renamed"].items():
        if own in settings.given and settings.given[own] is not None:
            trainer.put(name, settings.given[own], own)
    return trainer


def put_fsdp(trainer: TrainerSettings, settings: Settings, version: int) -> None:
    """Says that FSDP shards, by the keys of fsdp_config with and without their prefix."""
    trainer.put("distributed_type", "FSDP")
    trainer.put("fsdp_config.fsdp_version", version)
    for name, value in settings.given.items():
        config, _, key = name.partition(".")
        if config == "fsdp_config" and key and value is not None:
            bare = key.removeprefix("fsdp_")
            trainer.put(f"fsdp_config.fsdp_{bare}", value, name)
