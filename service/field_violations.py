"""A value that breaks a rule, as errors tell of it: the field, where it is, what it was and the
rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Integral
from typing import Any

from pydantic import ValidationError

from models.errors import Invalid
from service.errors import NotFound, Refused, Unreadable
from service.json_pointers import TAG, field_of, location_of, pointer_of, written
from service.known_fields import known_fields

MAX_SHOWN = 200
MAX_TOLD = 1600  # room for the names of all the fields of a stack
_JSON_INTEGER = 2**53  # beyond it JSON readers lose digits (RFC 8259 §6)
_PRINTED_BITS = 128  # of a larger one


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A value that breaks a rule. Only what is in a body has a JSON Pointer."""

    location: Sequence[str | int]
    value: object
    rule: str
    in_body: bool

    @property
    def field(self) -> str:
        return field_of(self._location) or "body"

    @property
    def _location(self) -> list[str | int]:
        return [cut(step, MAX_SHOWN) if isinstance(step, str) else step for step in self.location]

    def entry(self) -> dict[str, Any]:
        pointer = pointer_of(self._location) if self.in_body else None
        rule = cut(self.rule, MAX_TOLD)
        return {"field": self.field, "pointer": pointer, "value": shown(self.value), "rule": rule}

    def sentence(self) -> str:
        whole = self.value is None or isinstance(self.value, (Mapping, list, tuple))
        return (
            f"{self.field}: {self.rule}"
            if whole
            else f"{self.field} = {shown(self.value)!r}: {self.rule}"
        )


def of_pydantic(
    item: Mapping[str, Any],
    form: Any,
    location: Sequence[str | int],
    *,
    root: Sequence[str | int] = (),
    in_body: bool,
) -> FieldViolation:
    """An error of pydantic's, at this location of something of this form (a type), which lies at
    `root`."""
    value = None if item["type"] == "missing" else item["input"]
    rule = _RULES.get(item["type"], item["msg"].removeprefix("Value error, "))
    if item["type"] == "extra_forbidden" and (known := known_fields(form, location)):
        rule = f"{rule}; known here: {', '.join(known)}"
    if item["type"] == "string_type" and location and location[-1] == f"{TAG}name":
        rule = "must be a name or an object"
    return FieldViolation([*root, *location], value, rule, in_body=in_body)


def of_refusal(
    error: Exception, root: Sequence[str | int], form: Any = None, *, most: int
) -> list[FieldViolation]:
    """Of a part of a body that lies at `root` and should have this form: what pydantic, the models
    or the service say of it, up to the first so many."""
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False)[:most]
        return [of_pydantic(item, form, item["loc"], root=root, in_body=True) for item in found]
    if isinstance(error, Refused):
        return [fault for each in error.errors for fault in of_refusal(each, root, most=most)][
            :most
        ]
    if isinstance(error, Invalid):
        return [
            FieldViolation(
                [*root, *location_of(error.field)], error.value, error.rule, in_body=True
            )
        ]
    if isinstance(error, Unreadable):
        return [FieldViolation([*root, *error.location], error.value, error.rule, in_body=True)]
    if isinstance(error, NotFound):
        return [FieldViolation([*root, f"{error.what}_id"], error.name, str(error), in_body=True)]
    return [FieldViolation(root, None, str(error), in_body=True)]


def given(body: Any, location: Sequence[str | int], otherwise: object) -> object:
    """What the caller wrote at this place: the models know it in their own form, or not at all."""
    value = body
    for step in written(location):
        known = isinstance(value, dict) and step in value
        if not known and not (
            isinstance(value, list) and isinstance(step, int) and step < len(value)
        ):
            return otherwise
        value = value[step]
    return value


def shown(value: object) -> object:
    """What an error echoes of a value: all of a short one, of others what they are."""
    if isinstance(value, str):
        return cut(value, MAX_SHOWN)
    if isinstance(value, Mapping):
        return f"an object with {len(value)} member{'s' * (len(value) != 1)}"
    if isinstance(value, Sequence):
        items = [shown(item) for item in value[:8]]
        short = len(value) <= 8 and len(str(items)) <= MAX_SHOWN
        return items if short else f"a list of {len(value)} items"
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Integral):
        return _whole(int(value))
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(value)
    return type(value).__name__


def _whole(value: int) -> int | str:
    if abs(value) <= _JSON_INTEGER:
        return value
    return (
        str(value)
        if value.bit_length() <= _PRINTED_BITS
        else f"an integer of {value.bit_length()} bits"
    )


_RULES = {
    "extra_forbidden": "unknown field",
    "missing": "is required",
    "model_type": "must be an object",
    "union_tag_invalid": "must be an object of one of the documented forms; a name is none here",
    "model_attributes_type": "must be an object",
}


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
