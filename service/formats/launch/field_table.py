"""The fields of one release of a framework: their types, defaults and choices, from its own source
(fields/*.json), and what readers make of each."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from models.errors import Invalid
from models.spec.switches import releases
from service.formats.launch.facts import facts
from service.formats.launch.job import Stop
from service.formats.shell.faults import PATH, require_defined, undefined_variables

Use = Literal["read", "matters", "ignored"]
_TRUE = ("true", "yes", "on")
_FALSE = ("false", "no", "off")
_NONE = ("none", "null", "~", "")
_MOST_SHOWN = 60
_LARGEST = 10**15
_LIKENESS = 0.75
"""Of names that are spelt alike, from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One setting of a framework."""

    name: str
    kind: str
    """int, float, bool, str, list, lists (of lists) or any."""
    default: Any
    is_optional: bool = False
    use: Use = "read"
    """Whether readers understand it; if they do not, whether it could change time or memory."""
    choices: tuple[Any, ...] = ()

    def parse(self, written: str) -> Any:
        """The value that a text has. Raises Invalid where it is of another type, or no choice. Of a
        field that is ignored it may be a variable that the text does not define."""
        if self._may_be_undefined(written):
            return written
        require_defined(self.name, written)
        if self.is_optional and written.lower() in _NONE:
            return None
        return self.checked(self._typed(written))

    def _may_be_undefined(self, value: Any) -> bool:
        """Whether it does not matter that a value is a variable, which the text does not define."""
        return self.use == "ignored" and isinstance(value, str) and bool(undefined_variables(value))

    def _typed(self, written: str) -> Any:
        try:
            if self.kind == "int":
                return int(written.replace("_", ""))
            if self.kind == "float":
                return float(written)
        except ValueError:
            raise self._invalid(written, f"must be {_KINDS[self.kind]}") from None
        if self.kind == "bool":
            return self._truth(written)
        if self.kind == "list":
            return [part.strip(" '\"") for part in written.strip("[]").split(",") if part]
        return written

    def _truth(self, written: str) -> bool:
        if written.lower() not in (*_TRUE, *_FALSE):
            raise self._invalid(written, "must be true or false")
        return written.lower() in _TRUE

    def checked(self, value: Any) -> Any:
        """A value of a document. Raises Invalid where it is of another type, or no choice."""
        if value is None and (self.is_optional or self.kind == "any"):
            return None
        if self._may_be_undefined(value):
            return value
        if isinstance(value, str) and self.kind in ("int", "float", "bool"):
            return self.parse(value)
        if self.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            value = float(value) if abs(value) <= _LARGEST else math.inf
        is_number = self.kind in ("int", "float") and isinstance(value, (int, float))
        if is_number and not abs(value) <= _LARGEST:
            raise self._invalid(value, f"must be a number up to {_LARGEST:g}")
        expected = _TYPES.get(self.kind)
        is_mistaken_truth = isinstance(value, bool) and self.kind != "bool"
        if expected and (not isinstance(value, expected) or is_mistaken_truth):
            raise self._invalid(value, f"must be {_KINDS[self.kind]}")
        if self.choices and value not in self.choices:
            known = ", ".join(str(choice) or '""' for choice in self.choices)
            raise self._invalid(value, f"must be one of {known}")
        return value

    def _invalid(self, value: Any, rule: str) -> Invalid:
        return Invalid(PATH, shown(self.name, value), rule)


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a word",
    "list": "a list",
    "lists": "a list of lists",
}
_TYPES: Mapping[str, type] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "list": list,
    "lists": list,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldTable:
    """All fields of a release."""

    release: str
    fields: Mapping[str, Field]
    facts: Mapping[str, Any]
    """What else the file holds."""

    def defaults(self) -> dict[str, Any]:
        return {name: field.default for name, field in self.fields.items()}

    def unknown(self, name: str, written: str) -> str:
        """An unread setting that the release does not have, with names that are spelt alike."""
        return written + suggestion(name, self.fields)

    def sorted_out(self, given: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Of the fields that are given and not read, those that could change time or memory, and
        those that change neither. A field that has its default changes nothing."""
        unread = list[str]()
        ignored = list[str]()
        for name, value in given.items():
            field = self.fields[name]
            if field.use != "read":
                matters = field.use == "matters" and value != field.default
                (unread if matters else ignored).append(shown(name, value))
        return unread, ignored


@cache
def field_table(file: str) -> FieldTable:
    """The table in a file of the folder `fields`. Each row there has the type, with a question mark
    where there may be no value, the default and the use."""
    document = dict(facts(file))
    rows = document.pop("fields")
    choices = document.pop("choices")
    fields = {
        name: Field(
            name=name,
            kind=kind.rstrip("?"),
            is_optional=kind.endswith("?"),
            default=default,
            use=use,
            choices=tuple(choices.get(name, ())),
        )
        for name, (kind, default, use) in rows.items()
    }
    return FieldTable(release=document.pop("version"), fields=fields, facts=document)


def known_release(stack_id: str, version: str | None, unread: list[str]) -> str | None:
    """The release that is asked for, where its date is known, and else None, which is the newest.
    One that is not known is listed as unread."""
    known = releases(stack_id)
    if version is not None and version not in known:
        unread.append(f"version={version} (read as the newest of {', '.join(known)})")
    return version if version in known else None


def shown(name: str, value: object) -> str:
    """A setting as pairs are written, cut where it is long."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return f"{name}={text if len(text) <= _MOST_SHOWN else f'{text[:_MOST_SHOWN]}…'}"


def unknown_setting(written: str, value: object, known: Iterable[str], framework: str) -> Stop:
    """A setting that a release does not have, at which its parser stops. `written` may have dashes
    in front, as its cure then has."""
    dashes = "--" * written.startswith("--")
    near = difflib.get_close_matches(written.removeprefix("--"), list(known), n=1, cutoff=_LIKENESS)
    rule = f"is no setting of {framework}, which stops at it"
    if not near:
        return Stop(setting=written, value=value, rule=f"{rule}: leave it out")
    meant = f"{dashes}{near[0]}"
    return Stop(setting=written, value=value, rule=f"{rule}: did you mean {meant}?", cure=meant)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Which known names are spelt like one that is not known; empty where none is."""
    near = difflib.get_close_matches(name, list(known), n=2, cutoff=_LIKENESS)
    return f" (unknown; did you mean {' or '.join(near)}?)" if near else " (unknown)"
