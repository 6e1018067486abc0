"""The settings that one release of a framework has, from its own source.

A table is a file of JSON:

    {"package": "deepspeed", "version": "0.19.8", "source": "deepspeed 0.19.8: runtime/config.py",
     "unknown": "passes",
     "open": ["optimizer.*"],
     "fields": {"zero_optimization.stage": ["int", 0, "read"]},
     "choices": {"zero_optimization.stage": [0, 1, 2, 3]},
     "no_account": ["tensorboard.*", "wandb.*"],
     "not_described": {"zero_optimization.zero_hpz_partition_size": ["why it matters", "cure"]}}

A row has the type, with a question mark where there may be no value, the default, and the use. The
names of `no_account` and `not_described` may be patterns; a row goes before a pattern, and the
longest pattern before the others. The words of `not_described` hold for rows too. Names of a
pattern in `open` may be known to a program of the caller's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Literal

from service.formats.launch.facts import facts
from service.formats.settings.field import Field, Use
from service.formats.settings.reservation import COULD_MATTER, GIVE_FIELDS

Unknown = Literal["stops", "passes", "open"]
_USES: Mapping[str, Use] = {
    "read": "read",
    "ignored": "no_account",
    "matters": "not_described",
    "no_account": "no_account",
    "not_described": "not_described",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldTable:
    """All settings of a release."""

    framework: str
    release: str
    unknown: Unknown
    """What becomes of a name that is in no table: the framework `stops` at it, or takes no notice
    of it (`passes`), or a program of the caller's own may have it (`open`)."""
    open: tuple[str, ...]
    """Patterns of names that a program of the caller's own may have, whatever `unknown` says."""
    prefix: str
    """What stands in front of a name where it is typed, such as dashes."""
    fields: Mapping[str, Field]
    patterns: Mapping[str, Field]
    """Fields of which the name is a pattern, the longest first."""
    facts: Mapping[str, Any]
    """Whatever else the file holds."""

    def field(self, name: str) -> Field | None:
        """The field of a name; None where the release has none."""
        if name in self.fields:
            return self.fields[name]
        pattern = _first_match(name, self.patterns)
        return None if pattern is None else self.patterns[pattern]

    def unknown_as(self, name: str) -> Unknown:
        """What becomes of a name that is in no table."""
        return "open" if _first_match(name, self.open) else self.unknown

    def defaults(self) -> dict[str, Any]:
        return {name: field.default for name, field in self.fields.items()}


@cache
def field_table(file: str) -> FieldTable:
    """The table in a file of the folder `fields`."""
    document = dict(facts(file))
    choices = document.pop("choices", {})
    reasons = dict(
        sorted(document.pop("not_described", {}).items(), key=lambda item: -len(item[0]))
    )
    fields = {
        name: _field(name, row, choices, reasons) for name, row in document.pop("fields").items()
    }
    patterns = {name: _pattern(name, "no_account") for name in document.pop("no_account", ())}
    for name, words in reasons.items():
        if name not in fields:
            patterns[name] = _pattern(name, "not_described", *words)
    package = document.pop("package")
    return FieldTable(
        framework=document.pop("framework", package),
        release=document.pop("version"),
        unknown=document.pop("unknown", "stops"),
        open=tuple(document.pop("open", ())),
        prefix=document.pop("prefix", ""),
        fields=fields,
        patterns=dict(sorted(patterns.items(), key=lambda item: -len(item[0]))),
        facts=document,
    )


def _field(
    name: str, row: list[Any], choices: Mapping[str, Any], reasons: Mapping[str, Any]
) -> Field:
    kind, default, use = row
    pattern = _first_match(name, reasons)
    reason, cure = (COULD_MATTER, GIVE_FIELDS) if pattern is None else reasons[pattern]
    return Field(
        name=name,
        kind=kind.rstrip("?"),
        is_optional=kind.endswith("?"),
        default=default,
        use=_USES[use],
        choices=tuple(choices.get(name, ())),
        reason=reason,
        cure=cure,
    )


def _first_match(name: str, patterns: Iterable[str]) -> str | None:
    return next((each for each in patterns if fnmatchcase(name, each)), None)


def _pattern(name: str, use: Use, reason: str = COULD_MATTER, cure: str = GIVE_FIELDS) -> Field:
    return Field(name=name, kind="any", is_optional=True, use=use, reason=reason, cure=cure)
