"""The tools whose settings are translated into those of accelerate and the Trainer, so that one
reader serves all of them, each with its table of fields. *Unread* settings are those that no
translation uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from service.formats.launch.trainer import axolotl, llama_factory, llama_factory_v1, ms_swift
from service.formats.launch.trainer.arguments import with_switched_off
from service.formats.launch.trainer.launched import Launched
from service.formats.launch.trainer.trainer_settings import Invocation, TrainerSettings, Translate
from service.formats.settings.field_table import FieldTable, field_table, longest_first
from service.formats.settings.settings import NOTHING_UNREAD, Settings, UnreadSettings


@dataclass(frozen=True, slots=True)
class Dialect:
    """A tool with settings of its own."""

    table: str
    """The file of its fields."""
    translate: Translate


DIALECTS: Mapping[str, Dialect] = {
    "axolotl": Dialect("axolotl", axolotl.translate),
    "llama_factory": Dialect("llama_factory", llama_factory.translate),
    "llama_factory_v1": Dialect("llama_factory_v1", llama_factory_v1.translate),
    "ms_swift": Dialect("ms_swift", ms_swift.translate),
}
"""By name. Other launches have the names of transformers itself."""


def in_names_of_trainer(
    launched: Launched, version: str | None
) -> tuple[TrainerSettings, UnreadSettings]:
    """Returns the settings of a launch under the names of accelerate and the Trainer, and the
    settings of the tool that nothing reads. A launch that uses these names itself has no such
    settings."""
    dialect = DIALECTS.get(launched.dialect)
    on_by_default: list[str] = field_table("transformers").facts["on_by_default"]
    if dialect is None:
        settings_of_trainer = with_switched_off(launched.settings, on_by_default)
        return TrainerSettings(settings=settings_of_trainer), NOTHING_UNREAD
    # A setting that is null counts as not given.
    values = {name: value for name, value in launched.settings.items() if value is not None}
    table = field_table(dialect.table)
    own_switches = table.facts.get("on_by_default", [])
    settings = Settings(table, with_switched_off(values, [*on_by_default, *own_switches]))
    settings.is_other_release = version not in (None, table.release)
    invocation = Invocation(launched.num_devices, version, launched.objective)
    trainer = dialect.translate(settings, invocation)
    return trainer, settings.unread()


@cache
def trainer_table(dialect: str) -> FieldTable:
    """Returns the fields of accelerate and the Trainer as one table. TRL refuses names that are
    in neither; other scripts may have arguments of their own."""
    accelerate = field_table("accelerate")
    transformers = field_table("transformers")
    is_trl = dialect == "trl"
    return replace(
        accelerate,
        framework="TRL" if is_trl else accelerate.framework,
        release=transformers.facts["trl_release"] if is_trl else accelerate.release,
        fields={**transformers.fields, **accelerate.fields},
        patterns=longest_first({**transformers.patterns, **accelerate.patterns}),
        facts={**accelerate.facts, **transformers.facts},
        # The reaction to an unknown name: a stop, or a program of the caller's may read it.
        unknown="stops" if is_trl else "open",
    )
