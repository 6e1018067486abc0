"""One setting of a framework, and the values that it takes.

Its *use* is what an answer does with it. It is `read`; or of no account, since it changes neither
time nor memory (`no_account`); or `not_described`, since the cost model does not know its effect.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from models.errors import Invalid
from service.formats.settings.reservation import COULD_MATTER, GIVE_FIELDS
from service.formats.shell.faults import (
    invalid_launch,
    require_defined,
    shortened,
    undefined_variables,
)

Use = Literal["read", "no_account", "not_described"]
USES: tuple[Use, ...] = get_args(Use)
TRUE_WORDS = ("true", "yes", "on", "1")
FALSE_WORDS = ("false", "no", "off", "0")
_NONE = ("none", "null", "~", "")
_LARGEST = 10**15  # no count or size of a job is larger, and floats are exact up to here
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a word",
    "list": "a list",
    "lists": "a list of lists",
}
_TYPES: Mapping[str, type] = {
    **{kind.__name__: kind for kind in (int, float, bool, str, list)},
    "lists": list,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One setting of a framework, as its own source declares it."""

    name: str
    kind: str
    """int, float, bool, str, list, lists (of lists) or any."""
    default: Any = None
    is_optional: bool = False
    use: Use = "read"
    choices: tuple[Any, ...] = ()
    as_predicted: tuple[Any, ...] = ()
    """Values beside the default with which a setting that is not described changes nothing."""
    default_matters: bool = False
    """Predictions assume the first of `as_predicted`, and not the default."""
    reason: str = COULD_MATTER
    """Why it matters, of a setting that is not described."""
    cure: str = GIVE_FIELDS
    """The way to say it otherwise, of a setting that is not described."""
    answered_by: str = ""
    """The member of the request that says it."""

    def parse(self, text: str) -> Any:
        """Returns a text as a value of the field's type: 8 for "8". Raises Invalid for a value
        of another type or outside of the choices, and for a shell variable without a value. A
        field of no account may have such a variable, and its text is returned unchanged."""
        if self._may_be_undefined(text):
            return text
        require_defined(self.name, text)
        if self.is_optional and text.lower() in _NONE:
            return None
        return self.checked(self._parse_as_type(text))

    def checked(self, value: Any) -> Any:
        """Returns a value from a document, converted to the field's type where that loses
        nothing. Raises Invalid as `parse` does."""
        if value is None and (self.is_optional or self.kind == "any"):
            return None
        if self._may_be_undefined(value):
            return value
        if isinstance(value, str) and self.kind in ("int", "float", "bool"):
            return self.parse(value)
        if self.kind == "int" and isinstance(value, float) and value.is_integer():
            value = int(value)
        if self.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            # float() of a huge integer would raise OverflowError; infinity is refused below.
            value = float(value) if abs(value) <= _LARGEST else math.inf
        is_number = self.kind in ("int", "float") and isinstance(value, (int, float))
        if is_number and not abs(value) <= _LARGEST:  # NaN, too, is not <= anything
            raise self.invalid(value, f"must be a number up to {_LARGEST:g}")
        expected = _TYPES.get(self.kind)
        is_stray_bool = isinstance(value, bool) and self.kind != "bool"
        if expected and (not isinstance(value, expected) or is_stray_bool):
            raise self.invalid(value, f"must be {KINDS[self.kind]}")
        if self.choices and value not in self.choices:
            choices = ", ".join(str(choice) or '""' for choice in self.choices)
            raise self.invalid(value, f"must be one of {choices}")
        return value

    def invalid(self, value: Any, rule: str) -> Invalid:
        """Returns an error about a value of this field."""
        return invalid_launch(shown(self.name, value), rule)

    def _may_be_undefined(self, value: Any) -> bool:
        """Returns True where the value has a shell variable that the script does not define, and
        any value will do, since the field changes neither time nor memory."""
        is_variable = isinstance(value, str) and bool(undefined_variables(value))
        return self.use == "no_account" and is_variable

    def _parse_as_type(self, text: str) -> Any:
        """Returns a text as a value of the field's type, before its choices are checked. Raises
        Invalid for a text of another type."""
        try:
            if self.kind == "int":
                return int(text.replace("_", ""))  # 1_000, as Python and TOML write it
            if self.kind == "float":
                return float(text)
        except ValueError:
            raise self.invalid(text, f"must be {KINDS[self.kind]}") from None
        if self.kind == "bool":
            return self._parse_boolean(text)
        if self.kind == "list":
            return [part.strip(" '\"") for part in text.strip("[]").split(",") if part]
        return text

    def _parse_boolean(self, text: str) -> bool:
        """Returns the truth value of a word such as "true" or "no". Raises Invalid for other
        words."""
        if text.lower() not in (*TRUE_WORDS, *FALSE_WORDS):
            raise self.invalid(text, "must be true or false")
        return text.lower() in TRUE_WORDS


def shown(name: str, value: object) -> str:
    """Returns a setting as an answer repeats it, "bf16.enabled = true", shortened where it is
    long."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return f"{shortened(name)} = {shortened(text)}"
