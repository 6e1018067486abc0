"""A value of a request that breaks a rule, as errors show it: its field, its JSON Pointer, the
value and the rule."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from math import isfinite
from numbers import Integral
from typing import Any

from pydantic import ValidationError

from models.errors import Invalid
from service.errors import NotFound, Refused, Unreadable
from service.json_pointers import (
    TAG_PREFIX,
    field_of,
    location_of,
    name_of,
    pointer_of,
    without_tags,
)
from service.known_fields import known_fields, places_of
from shardwright.secrets import MASK, mask_items, mask_secrets, names_secret

MAX_VALUE_CHARACTERS = 200  # enough to find the value again in what was sent
_MAX_READ_CHARACTERS = 10 * MAX_VALUE_CHARACTERS  # in which secrets are looked for
MAX_RULE_CHARACTERS = 1600  # enough for the names of all fields of a stack
_MAX_JSON_INTEGER = 2**53  # JSON readers lose digits of larger ones (RFC 8259 §6)
_READ_AS_WHOLE = ("arguments", "log")
"""Members that hold a text or a document of another program. An error about a part of it shows that
part, and not the whole."""
_MAX_PRINTED_BITS = 128  # an integer of more bits is not printed in full
_IN_THOUSANDS = re.compile(r"(\d{1,6})\s*([kKmM])", re.ASCII)
_MISSPELT = 0.85
"""Least similarity, of 1, at which an unknown name is taken for a known one misspelt."""
_OF_MANY = ("id", "name", "version")
"""Names that several parts of a request have. Other places with such a name are no useful hint."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A value that breaks a rule. It has a JSON Pointer only where it lies in a body."""

    location: Sequence[str | int]
    value: object
    rule: str
    in_body: bool

    @property
    def field(self) -> str:
        return field_of(self._location) or "body"

    @property
    def _location(self) -> list[str | int]:
        """Returns the location with long names cut off."""
        return [
            truncate(step, MAX_VALUE_CHARACTERS) if isinstance(step, str) else step
            for step in self.location
        ]

    def entry(self) -> dict[str, Any]:
        """Returns the violation as an item of `errors` in a problem document."""
        pointer = pointer_of(self._location) if self.in_body else None
        return {
            "field": self.field,
            "pointer": pointer,
            "value": self._echoed_value,
            "rule": truncate(mask_secrets(self.rule), MAX_RULE_CHARACTERS),
        }

    def sentence(self) -> str:
        """Returns the violation in words, such as "layout.tp = 3: must divide …". The value is left
        out where it is an object or a list."""
        is_composite = isinstance(self.value, (Mapping, list, tuple))
        if self.value is None or is_composite:
            return f"{self.field}: {mask_secrets(self.rule)}"
        return f"{self.field} = {self._echoed_value!r}: {mask_secrets(self.rule)}"

    @property
    def _echoed_value(self) -> object:
        """Returns the value as an error repeats it, masked where its field has the name of a
        secret."""
        name = self.location[-1] if self.location else None
        is_secret = isinstance(self.value, str) and isinstance(name, str) and names_secret(name)
        return MASK if is_secret else echoed_value(self.value)


def violation_of_pydantic(
    item: Mapping[str, Any],
    form: Any,
    location: Sequence[str | int],
    *,
    root: Sequence[str | int] = (),
    in_body: bool,
) -> FieldViolation:
    """Returns the violation that `item`, one of pydantic's errors, is about. `location` counts from
    `root`, the place in the body that should hold a value of type `form`."""
    value = None if item["type"] == "missing" else item["input"]
    rule = _RULES.get(item["type"], item["msg"].removeprefix("Value error, "))
    if item["type"] == "extra_forbidden":
        rule += _hints(form, location, root)
    if item["type"] in ("int_type", "int_parsing"):
        rule += _written_out(value)
    # The field takes a name or an object, and pydantic's own message tells only of the name.
    if item["type"] == "string_type" and location and location[-1] == f"{TAG_PREFIX}name":
        rule = "must be a name or an object"
    return FieldViolation([*root, *location], value, rule, in_body=in_body)


def _written_out(value: object) -> str:
    """Returns the whole numbers that a text such as "128k" may stand for, as the end of a rule;
    empty for other values."""
    match = _IN_THOUSANDS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return ""
    number, power = int(match[1]), "km".index(match[2].lower()) + 1
    return f"; written out, {value} is {number * 1000**power} or {number * 1024**power}"


def _hints(form: Any, location: Sequence[str | int], root: Sequence[str | int]) -> str:
    """Returns words on what an unknown field may have meant, such as ", did you mean
    workload.seq_len?", and the fields that are known in its place. A name that is not misspelt may
    belong in another part of the request."""
    above = f"{field_of(root)}." if root else ""
    known = known_fields(form, location)
    name = name_of(location)
    places = get_close_matches(name, known, n=1, cutoff=_MISSPELT)
    if not places and name not in _OF_MANY:
        places = [above + place for place in places_of(form, location)]
    hint = f", did you mean {' or '.join(places)}?" if places else ""
    return f"{hint}; known here: {', '.join(known)}" if known else hint


def violations_of(
    error: Exception, root: Sequence[str | int], form: Any = None, *, limit: int
) -> list[FieldViolation]:
    """Returns the first violations, at most `limit`, of an error of pydantic, of the models or of
    the service. The error is about the part of a body at `root`, which should have the type
    `form`."""
    if isinstance(error, ValidationError):
        items = error.errors(include_url=False)[:limit]
        return [
            violation_of_pydantic(item, form, item["loc"], root=root, in_body=True)
            for item in items
        ]
    if isinstance(error, Refused):
        violations = [violations_of(inner, root, limit=limit) for inner in error.errors]
        return list(chain.from_iterable(violations))[:limit]
    if isinstance(error, Invalid):
        location = [*root, *location_of(error.field)]
        return [FieldViolation(location, error.value, error.rule, in_body=True)]
    if isinstance(error, Unreadable):
        return [FieldViolation([*root, *error.location], error.value, error.rule, in_body=True)]
    if isinstance(error, NotFound):
        return [FieldViolation([*root, f"{error.what}_id"], error.name, str(error), in_body=True)]
    return [FieldViolation(root, None, str(error), in_body=True)]


def submitted_value(body: Any, location: Sequence[str | int], otherwise: object) -> object:
    """Returns the value that the caller sent at this location; `otherwise` where there is none.
    Models convert values, and an error has to show what was sent.

    In a field of _READ_AS_WHOLE the caller sent a whole text, and `otherwise` is the part that the
    error is about: that part is returned.
    """
    value = body
    # Pydantic adds the tags of unions to a location, and callers do not send them.
    for step in without_tags(location):
        is_member = isinstance(value, dict) and step in value
        is_item = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if not (is_member or is_item):
            return otherwise
        value = value[step]
    is_read_as_whole = bool(location) and location[-1] in _READ_AS_WHOLE
    return otherwise if is_read_as_whole and otherwise is not None else value


def echoed_value(value: object) -> object:
    """Returns a value as an error repeats it. Short values are shown in full but for secrets, and
    others by their kind and size."""
    if isinstance(value, str):
        return truncate(mask_secrets(value[:_MAX_READ_CHARACTERS]), MAX_VALUE_CHARACTERS)
    if isinstance(value, Mapping):
        return f"an object with {len(value)} member{'' if len(value) == 1 else 's'}"
    if isinstance(value, Sequence):
        items = [echoed_value(item) for item in mask_items(value[:8])]
        short = len(value) <= 8 and len(str(items)) <= MAX_VALUE_CHARACTERS
        return items if short else f"a list of {len(value)} items"
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Integral):
        return _echoed_integer(int(value))
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(value)
    return type(value).__name__


def _echoed_integer(value: int) -> int | str:
    """Returns the integer, as text where JSON readers would round it, or its size where it is too
    long to print."""
    if abs(value) <= _MAX_JSON_INTEGER:
        return value
    if value.bit_length() <= _MAX_PRINTED_BITS:
        return str(value)
    return f"an integer of {value.bit_length()} bits"


_RULES = {
    "extra_forbidden": "unknown field",
    "missing": "is required",
    "model_type": "must be an object",
    "union_tag_invalid": "must be an object of one of the documented forms; a name is none here",
    "model_attributes_type": "must be an object",
}


def truncate(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
