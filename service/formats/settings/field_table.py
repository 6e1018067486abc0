"""The settings that one release of a framework has, from its own source.

A table is a file of JSON:

    {"package": "deepspeed", "version": "0.19.8", "source": "deepspeed 0.19.8: runtime/config.py",
     "unknown": "passes",
     "open": ["optimizer.*"],
     "fields": {"zero_optimization.stage": ["int", 0, "read"]},
     "choices": {"zero_optimization.stage": [0, 1, 2, 3]},
     "as_predicted": {"fp16.loss_scale": [1]},
     "no_account": ["tensorboard.*", "wandb.*"],
     "not_described": {"lora.*": ["why it matters", "how to say it", "workload.lora"]},
     "otherwise": ["why it matters", "how to say it"]}

A row has the type, with a question mark where there may be no value, the default, and the use. The
names of `no_account` and `not_described` may be patterns; a row goes before a pattern, and the
longest pattern before the others. The words of `not_described` hold for rows too; the third, which
may be missing, is the member of the request that says the same. Rows that are not described and
have no words there take those of `otherwise`. Names of a pattern in `open` may be known to a
program of the caller's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache, cached_property
from typing import Any, Literal

from service.formats.launch.facts import facts
from service.formats.settings.field import USES, Field, Use
from service.formats.settings.reservation import COULD_MATTER, GIVE_FIELDS

Unknown = Literal["stops", "passes", "open", "misspelt"]


@dataclass(frozen=True, kw_only=True)  # without slots, for the cached property
class FieldTable:
    """All settings of a release."""

    package: str
    framework: str
    """What the package is called in sentences."""
    release: str
    unknown: Unknown
    """What becomes of a name that is in no table: the framework `stops` at it, or takes no notice
    of it (`passes`), or a program of the caller's own may have it (`open`). Where forks have names
    of their own, it stops at one that is spelt like a known one (`misspelt`), and another is
    `open`."""
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
        if not self._matches_any(name):
            return None
        pattern = _first_match(name, self.patterns)
        return None if pattern is None else self.patterns[pattern]

    @cached_property
    def _matches_any(self) -> Callable[[str], object]:
        """Whether a name matches one of the patterns: a launch may have tens of thousands of names,
        and trying hundreds of patterns one by one takes a fifth of a millisecond for each."""
        return re.compile("|".join(map(translate, self.patterns)) or "(?!)").match

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
    predicted = document.pop("as_predicted", {})
    otherwise = document.pop("otherwise", ())
    fields = {
        name: _field(name, row, choices, reasons, predicted, otherwise)
        for name, row in document.pop("fields", {}).items()
    }
    patterns = {name: _pattern(name, "no_account") for name in document.pop("no_account", ())}
    for name, words in reasons.items():
        if name not in fields:
            patterns[name] = _pattern(name, "not_described", words)
    package = document.pop("package")
    return FieldTable(
        package=package,
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
    name: str,
    row: list[Any],
    choices: Mapping[str, Any],
    reasons: Mapping[str, Any],
    as_predicted: Mapping[str, Any],
    otherwise: Sequence[str],
) -> Field:
    kind, default, use = row
    if use not in USES:
        raise ValueError(f"{name} has the use {use}, which is none of {', '.join(USES)}")
    pattern = _first_match(name, reasons)
    reason, cure, answered_by = _words(otherwise if pattern is None else reasons[pattern])
    return Field(
        name=name,
        kind=kind.rstrip("?"),
        is_optional=kind.endswith("?"),
        default=default,
        use=use,
        choices=tuple(choices.get(name, ())),
        as_predicted=tuple(as_predicted.get(name, ())),
        reason=reason,
        cure=cure,
        answered_by=answered_by,
    )


def _words(given: Sequence[str]) -> tuple[str, str, str]:
    """Why a setting matters, how to say it, and the member of the request that does."""
    reason, cure, answered_by = [*given, *(COULD_MATTER, GIVE_FIELDS, "")[len(given) :]]
    return reason, cure, answered_by


def _first_match(name: str, patterns: Iterable[str]) -> str | None:
    return next((each for each in patterns if _matcher(each)(name)), None)


@cache
def _matcher(pattern: str) -> Callable[[str], object]:
    """A pattern of a table, compiled for good: fnmatch itself keeps fewer than a table has."""
    return re.compile(translate(pattern)).match


def _pattern(name: str, use: Use, words: Sequence[str] = ()) -> Field:
    reason, cure, answered_by = _words(words)
    return Field(
        name=name,
        kind="any",
        is_optional=True,
        use=use,
        reason=reason,
        cure=cure,
        answered_by=answered_by,
    )
