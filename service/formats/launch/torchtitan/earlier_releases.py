"""Settings of torchtitan before 0.3.0, which were sections of a TOML file or flags of the same
names (torchtitan 0.2.2 config/job_config.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.errors import Invalid
from models.spec import catalogue
from service.formats.launch.torchtitan.writer import RECOMPUTE, TABLE
from service.formats.launch.torchtitan.writer import RELEASE as WRITTEN
from service.formats.settings.field import Field, shown
from service.formats.settings.field_table import FieldTable, field_table
from service.formats.settings.release import known_release
from service.formats.settings.reservation import GIVE_FIELDS, Reservation
from service.formats.settings.settings import MOST_HINTS
from service.formats.settings.settings import Settings as SettingsOfToday
from service.formats.shell.faults import PATH
from service.nearest_names import suggestion

RELEASE = "0.2.2"
_MODES = {
    "selective": "selective",
    "full": "full",
    "none": "none",
    "memory_budget": "memory-budget",
}
"""Unknown settings for which a known one is looked up."""
_CONVERTERS = {"float8": "fp8", "mx": "mxfp8"}


def is_earlier(name: str) -> bool:
    """Whether a setting is one that only releases before 0.3.0 have."""
    facts = field_table(TABLE).facts["earlier"]
    return name in facts["renamed"] or name in facts["read"] or name.startswith("job.")


def words_of_today(name: str, value: Any) -> str:
    """What 0.3.0 is told instead of a flag; empty where it has no such flag."""
    now = field_table(TABLE).facts["earlier"]["renamed"].get(name, "")
    if now == RECOMPUTE:
        return f"{now.replace('_', '-')}:{_mode(value)}"
    return f"--{now} {value}" if now else ""


def name_in(name: str, release: str | None) -> str:
    """What a release calls a setting of 0.3.0."""
    if release is None or known_release("torchtitan", release) == WRITTEN:
        return name
    return str(field_table(TABLE).facts["earlier"]["named"].get(name, name))


@dataclass(slots=True)
class Settings:
    """The settings of a file, by their names in 0.3.0."""

    release: str = RELEASE
    given: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    """What a config function is in 0.3.0: the model, its precision and its optimizer."""
    reservations: list[Reservation] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    older: dict[str, Any] = field(default_factory=dict)
    """Settings without a name in 0.3.0."""

    @classmethod
    def of(cls, settings: Mapping[str, Any], table: FieldTable) -> Settings:
        facts = table.facts["earlier"]
        found = cls()
        read = {
            name: Field(name=name, kind=kind.rstrip("?"), default=default)
            for name, (kind, default) in facts["read"].items()
        }
        for name, value in settings.items():
            now = facts["renamed"].get(name, name)
            if now == RECOMPUTE:
                found.given[now] = _mode(value)
            elif name in read:
                found.older[name] = _typed(read[name], value)
            elif now in table.fields:
                found.given[now] = _typed(table.fields[now], value)
            elif _is_ignored(name, facts["ignored"]):
                found.ignored.append(shown(name, value))
            else:
                known = [*read, *table.fields] if len(found.reservations) < MOST_HINTS else ()
                reason = f"torchtitan {RELEASE} has no such setting{suggestion(name, known)}"
                found.reserve(name, value, reason, "leave it out if it changes nothing")
        found.older = {name: found.older.get(name, one.default) for name, one in read.items()}
        found._read_config(facts["flavors"])
        return found

    def _read_config(self, flavors: Mapping[str, Mapping[str, str]]) -> None:
        name, flavor = self.older["model.name"], self.older["model.flavor"]
        model = flavors.get(name, {}).get(flavor)
        self.config = {"model": model}
        if model:
            self.config["layers"] = catalogue.architecture(model).num_layers
        elif name is not None:
            reason = "this flavor is not in the catalogue"
            self.reserve("model.flavor", f"{name} {flavor}", reason, "describe the model", "model")
        formats = [_CONVERTERS[one] for one in self.older["model.converters"] if one in _CONVERTERS]
        others = [one for one in self.older["model.converters"] if one not in _CONVERTERS]
        if self.older["float8.enable_float8_linear"]:
            formats.append("fp8")
        if formats:
            self.config["precision"] = formats[0]
        if others:
            self.reserve("model.converters", others, "what they make of layers is not known")
        name = "optimizer.name"
        if self.older[name] not in ("AdamW", "Adam"):
            self.reserve(name, self.older[name], "the state of this optimizer is not described")

    def reserve(
        self,
        name: str,
        value: Any,
        reason: str,
        cure: str = GIVE_FIELDS,
        answered_by: str = "",
    ) -> None:
        """Notes that a setting is not taken into account."""
        written = shown(name, value)
        self.reservations.append(
            Reservation(setting=written, reason=reason, cure=cure, answered_by=answered_by)
        )

    def layout(self, values: Mapping[str, Any], settings: SettingsOfToday) -> dict[str, Any]:
        """The knobs that are said otherwise than in 0.3.0."""
        knobs: dict[str, Any] = {"etp": self.older["parallelism.expert_tensor_parallel_degree"]}
        option = self.older["activation_checkpoint.selective_ac_option"]
        if values[RECOMPUTE] == "selective" and option != "op":
            knobs["recompute"] = "full"
            if option != "1":
                settings.note(
                    Reservation(
                        setting=shown("activation_checkpoint.selective_ac_option", option),
                        reason="every layer of so many is recomputed, and all are read as such",
                        cure="use op, or 1",
                    )
                )
        return knobs


def _mode(value: Any) -> str:
    if value not in _MODES:
        rule = f"must be one of {', '.join(_MODES)}"
        raise Invalid(PATH, shown("activation_checkpoint.mode", value), rule)
    return _MODES[value]


def _typed(field_: Field, value: Any) -> Any:
    """A value of a flag, which is text, or of TOML, where a number may stand for a word."""
    if isinstance(value, str):
        return field_.parse(value)
    return str(value) if field_.kind == "str" else field_.checked(value)


def _is_ignored(name: str, sections: list[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in sections)
