"""The settings that one release of a framework has, from its own source.

A table is a file of JSON:

    {"package": "deepspeed", "version": "0.19.8", "source": "deepspeed 0.19.8: runtime/config.py",
     "unknown": "passes",
     "open": ["optimizer.*"],
     "fields": {"zero_optimization.stage": ["int", 0, "read"]},
     "choices": {"zero_optimization.stage": [0, 1, 2, 3]},
     "as_predicted": {"fp16.loss_scale": [1]},
     "default_matters": ["hidden_dropout"],
     "no_account": ["tensorboard.*", "wandb.*"],
     "not_described": {"lora.*": ["why it matters", "how to say it", "workload.lora"]},
     "otherwise": ["why it matters", "how to say it"]}

A row has the type, with a question mark where there may be no value, the default, and the use. The
names of `no_account` and `not_described` may be patterns; a row goes before a name of these, a name
before a pattern with an asterisk, and the longest pattern before the others. The words of
`not_described` hold for rows too; the third, which may be missing, is the member of the request
that says the same. Rows that are not described and have no words there take those of `otherwise`.
Values in `as_predicted` change as little as the default, unless the name is in `default_matters`:
then predictions assume the first of them, and not the default. Names of a pattern in `open` may be
known to a program of the caller's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache, cached_property
from typing import Any, Literal, TypeVar

from service.formats.launch.facts import facts
from service.formats.settings.field import USES, Field

Value = TypeVar("Value")
Unknown = Literal["stops", "passes", "open", "misspelt"]


FirstMatch = Callable[[str], str | None]
"""Finds the first pattern that a name matches; None where there is none."""


@dataclass(frozen=True, kw_only=True)  # without slots, for the cached properties
class FieldTable:
    """All settings of a release."""

    package: str
    framework: str
    """Sentences call the package this."""
    release: str
    unknown: Unknown
    """The framework's reaction to a name that it does not have: it `stops`, or ignores the name
    (`passes`), or a program of the caller's own may read the name (`open`). `misspelt` is for
    frameworks with forks: a name spelt like a known one stops it, any other name is `open`."""
    open: tuple[str, ...]
    """Patterns of names that a program of the caller's own may have, whatever `unknown` says."""
    prefix: str
    """Stands in front of a name where it is typed, such as dashes."""
    fields: Mapping[str, Field]
    patterns: Mapping[str, Field]
    """Fields of which the name is a pattern, the longest first."""
    facts: Mapping[str, Any]
    """Whatever else the file holds."""

    def field(self, name: str) -> Field | None:
        """Returns the field of this name, or of the first pattern that matches it; None where
        the release has none."""
        # A name may be that of a pattern itself, such as "wandb.*".
        field = self.fields.get(name) or self.patterns.get(name)
        if field is not None:
            return field
        pattern = self._first_pattern(name)
        return None if pattern is None else self.patterns[pattern]

    def is_of_no_account(self, name: str) -> bool:
        """Returns True for a known setting that changes neither time nor memory."""
        field = self.field(name)
        return field is not None and field.use == "no_account"

    def reaction_to_unknown(self, name: str) -> Unknown:
        """Returns the framework's reaction to a name that the table lacks, such as "stops". It is
        "open" for the patterns in `open`, whose names a program of the caller's own may read."""
        return "open" if self._first_open(name) else self.unknown

    @cached_property
    def _first_pattern(self) -> FirstMatch:
        return _first_match(name for name in self.patterns if "*" in name)

    @cached_property
    def _first_open(self) -> FirstMatch:
        return _first_match(self.open)

    def defaults(self) -> dict[str, Any]:
        return {name: field.default for name, field in self.fields.items()}


@cache
def field_table(file: str) -> FieldTable:
    """Returns the table of settings in fields/FILE.json. Facts beyond the fields stay in
    `facts`."""
    document = dict(facts(file))
    choices = document.pop("choices", {})
    predicted = document.pop("as_predicted", {})
    default_matters = document.pop("default_matters", ())
    otherwise = document.pop("otherwise", ())
    words = longest_first(document.pop("not_described", {}))
    pattern_of_words = _first_match(words)
    fields: dict[str, Field] = {}
    for name, row in document.pop("fields", {}).items():
        pattern = pattern_of_words(name)
        fields[name] = _field_of_row(
            name,
            row,
            words=otherwise if pattern is None else words[pattern],
            choices=choices.get(name, ()),
            as_predicted=predicted.get(name, ()),
            default_matters=name in default_matters,
        )
    # Of names of no account the table has no type: any value will do, or none ("any?").
    patterns = {
        name: _field_of_row(name, ("any?", None, "no_account"))
        for name in document.pop("no_account", ())
    }
    patterns |= {
        name: _field_of_row(name, ("any?", None, "not_described"), reason_and_cure)
        for name, reason_and_cure in words.items()
        if name not in fields
    }
    package = document.pop("package")
    return FieldTable(
        package=package,
        framework=document.pop("framework", package),
        release=document.pop("version"),
        unknown=document.pop("unknown", "stops"),
        open=tuple(document.pop("open", ())),
        prefix=document.pop("prefix", ""),
        fields=fields,
        patterns=longest_first(patterns),
        facts=document,
    )


def _field_of_row(
    name: str,
    row: Sequence[Any],
    words: Sequence[str] = (),
    choices: Sequence[Any] = (),
    as_predicted: Sequence[Any] = (),
    default_matters: bool = False,
) -> Field:
    """Returns the field of a table's row: its type, default and use. `words` are the reason, the
    cure and the answering field for settings that are not described; each that is missing has
    the default of Field."""
    kind, default, use = row
    if use not in USES:
        raise ValueError(f"{name} has the use {use}, which is none of {', '.join(USES)}")
    return Field(
        name=name,
        kind=kind.rstrip("?"),
        is_optional=kind.endswith("?"),
        default=default,
        use=use,
        choices=tuple(choices),
        as_predicted=tuple(as_predicted),
        default_matters=default_matters,
        **dict(zip(("reason", "cure", "answered_by"), words, strict=False)),
    )


def longest_first(by_pattern: Mapping[str, Value]) -> dict[str, Value]:
    """Returns the patterns sorted by length, so that the most specific one matches first."""
    return dict(sorted(by_pattern.items(), key=lambda item: -len(item[0])))


def _first_match(patterns: Iterable[str]) -> FirstMatch:
    """Returns a function from a name to the first pattern that matches it, None where none does.
    One expression holds all patterns: a launch may have tens of thousands of names, and trying
    pattern after pattern takes a fifth of a millisecond a name."""
    in_order = [*patterns]
    # Group n is the n-th pattern. Without patterns, (?!) matches nothing.
    expression = re.compile("|".join(f"({translate(pattern)})" for pattern in in_order) or "(?!)")

    def first_match(name: str) -> str | None:
        """Returns the first pattern that matches the name; `lastindex` is the number of its group
        in the expression of all patterns."""
        match = expression.match(name)
        return None if match is None or match.lastindex is None else in_order[match.lastindex - 1]

    return first_match
