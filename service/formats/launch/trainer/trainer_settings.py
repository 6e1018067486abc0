"""Settings of a tool in the names of accelerate and transformers.

A *tool* is a program around the Trainer of transformers that has names of its own for settings,
such as axolotl.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

from service.formats.launch.job import OwnName
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stop

OBJECTIVE, TRAINED, MOMENT_RANK, REFERENCE_MODEL, CONTEXT = (
    f"told:{name}" for name in ("objective", "trained", "moment_rank", "reference_model", "context")
)
"""Names for decisions of tools that TrainingArguments have no names for. Nobody can type such names
as flags."""

FIELD_OF_SETTING = {
    "max_length": "workload.seq_len",
    "per_device_train_batch_size": "layout.micro_batch",
    "gradient_accumulation_steps": "num_micro_batches",
    "bf16": "workload.precision",
}
"""By setting of the Trainer whose default differs between tools, the field that it decides."""
_SAME = ("learning_rate", "max_grad_norm", "weight_decay", "adam_beta1", "adam_beta2",
    "adam_epsilon")  # fmt: skip
"""Settings that every tool has under the name of TrainingArguments. They change neither time nor
memory, but the Trainer compares them with a document of DeepSpeed."""


@dataclass(slots=True)
class TrainerSettings:
    """The settings of a tool, such as axolotl, in the names of accelerate and the Trainer."""

    settings: dict[str, Any] = field(default_factory=dict)
    """By the names of accelerate's document and of TrainingArguments."""
    source_names: dict[str, str] = field(default_factory=dict)
    """The tool's own names for settings, by the names in `settings` that they stand for:
    {"max_length": "sequence_len"}."""
    assumed: list[str] = field(default_factory=list)
    """Sentences about settings that are counted as something else."""
    framework: str | None = None
    """The tool; None where a launch has these names itself."""
    release: str | None = None
    """The release of the tool; None where that of the framework beneath it counts."""
    own_names: dict[str, OwnName] = field(default_factory=dict)
    """The names that the tool has for settings that may be changed."""

    def put(self, name: str, value: Any, *, source_name: str | None = None) -> None:
        """Sets a value, and remembers the tool's own name for that setting, `source_name`, where
        it differs."""
        self.settings[name] = value
        if source_name is not None and source_name != name:
            self.source_names[name] = source_name

    def in_name_of_tool(self, setting: str) -> str:
        """Returns a setting with the name that the tool has for it: "sequence_len = 4096" for
        "max_length = 4096"."""
        name, equals, value = setting.partition(" = ")
        return f"{self.source_names.get(name, name)}{equals}{value}"

    def default_origins(self, given: Container[str]) -> dict[str, str]:
        """Returns sentences for the answer that say which of the tool's defaults a value comes
        from, by the field of the request. Settings that are `given` have none."""
        return {
            field: f"the default of {self.in_name_of_tool(name)} in {self.framework}"
            for name, field in FIELD_OF_SETTING.items()
            if name in self.settings and self.in_name_of_tool(name) not in given
        }


@dataclass(frozen=True, slots=True)
class Invocation:
    """The facts of a launch, beside its settings, that decide how a tool takes them."""

    num_devices: int | None = None
    version: str | None = None
    """The release of the tool; None for the newest that is known."""
    command: str | None = None
    """The tool's command, such as rlhf."""


Translate = Callable[[Settings, Invocation], TrainerSettings]
"""Translates the settings of a tool into those of the Trainer."""


def renamed(settings: Settings) -> TrainerSettings:
    """Returns the settings that the tool merely calls otherwise, under the names of accelerate
    and the Trainer: the tool's table has {"renamed": {"sequence_len": "max_length"}}."""
    table = settings.table
    trainer = TrainerSettings(framework=table.package, release=table.release)
    for tool_name, name in table.facts["renamed"].items():
        trainer.own_names.setdefault(name, OwnName(tool_name))
        value = settings.given.get(tool_name)
        if value is not None:
            trainer.put(name, value, source_name=tool_name)
    for name in _SAME:
        if settings.given.get(name) is not None:
            trainer.put(name, settings.given[name])
    # Settings that other functions translate, with the tool's names and values for them.
    for name, own_name in table.facts.get("said_as", {}).items():
        trainer.own_names[name] = OwnName(*own_name)
    return trainer


def note_stop(settings: Settings, name: str, rule: str, file: str, cure: str = "") -> None:
    """Notes that the tool refuses the setting `name`, by `rule`, in this file of its source."""
    release = f"{settings.table.package} {settings.table.release}"
    settings.stops.append(
        Stop(
            setting=name,
            value=settings.given.get(name),
            rule=f"{release} stops at it: {rule}",
            source=f"{release}: {file}",
            cure=cure,
        )
    )


def put_fsdp(trainer: TrainerSettings, settings: Settings, version: int) -> None:
    """Sets FSDP of this version, 1 or 2, as the way of sharding in `trainer`, with every key of
    fsdp_config, whether or not it is written with the prefix fsdp_."""
    trainer.put("distributed_type", "FSDP")
    trainer.put("fsdp_config.fsdp_version", version)
    for name, value in settings.given.items():
        config, _, key = name.partition(".")
        if config == "fsdp_config" and key and value is not None:
            bare = key.removeprefix("fsdp_")
            trainer.put(f"fsdp_config.fsdp_{bare}", value, source_name=name)
