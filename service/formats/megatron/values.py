"""Megatron's arguments as texts by name, dumped or typed, and the values that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import Invalid, Unsupported
from service.formats.settings.field import Field
from service.formats.settings.stop import Stopped
from service.formats.shell.faults import PATH, shortened

DUMP_PATH = "log.arguments"
_WHOLE = Field(name="", kind="int")
_NUMBER = Field(name="", kind="float")
_TRUTH = Field(name="", kind="bool")


@dataclass(frozen=True, slots=True)
class Arguments:
    """Texts of arguments, read as values. An absent argument and "None" are the same."""

    values: Mapping[str, str]
    flags: Mapping[str, str] | None = None
    """Of arguments as they are typed, what each is called there; None of dumped ones."""

    def word(self, name: str) -> str | None:
        value = self.values.get(name, "").strip()
        return value if value not in ("", "None") else None

    def flag(self, name: str) -> bool:
        return bool(self._value(name, _TRUTH, "must be True or False"))

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.optional(name, least)
        if value is not None:
            return value
        if default is None:
            raise self.invalid(name, f"is required{'' if self.flags is None else ': write it too'}")
        return default

    def optional(self, name: str, least: int = 1) -> int | None:
        rule = f"must be a whole number of at least {least}"
        value = self._value(name, _WHOLE, rule)
        if value is None:
            return None
        if value < least:
            raise self.stopped(name, rule, f"{self.called(name)} {least}")
        return int(value)

    def number(self, name: str) -> float | None:
        value = self._value(name, _NUMBER, "must be a number")
        return None if value is None else float(value)

    def _value(self, name: str, kind: Field, rule: str) -> Any:
        """The value of an argument, by the kind that it has; None where it has none. Raises Invalid
        for what is of another kind."""
        word = self.word(name)
        try:
            return None if word is None else kind.parse(word)
        except Invalid:
            raise self.invalid(name, rule) from None

    def replaced(self, **values: str) -> Arguments:
        """The arguments with other values of some."""
        return Arguments({**self.values, **values}, self.flags)

    def require_any(self, *names: str, part: str) -> None:
        """Raises Invalid unless the dump has one of the arguments, be it None."""
        if not any(name in self.values for name in names):
            rule = (
                "is not in the dump of arguments, and an absent argument is not one that is off:"
                f" send the whole dump, or give {part} in the request"
            )
            raise Invalid(f"{DUMP_PATH}.{names[0]}", None, rule)

    def called(self, name: str) -> str:
        """What an argument is called where it is given."""
        return name if self.flags is None else self.flags.get(name, name)

    def invalid(self, name: str, rule: str) -> Invalid:
        if self.flags is None:
            return Invalid(f"{DUMP_PATH}.{name}", self.shown(name), rule)
        return Invalid(PATH, self._as_typed(name), rule)

    def stopped(self, name: str, rule: str, cure: str = "") -> Invalid:
        """An error of a value that the parser takes and Megatron stops at. No run that printed a
        dump has one, so that of a dump it is as invalid as any."""
        if self.flags is None:
            return self.invalid(name, rule)
        return Stopped(self.called(name), self.shown(name), rule, cure)

    def unsupported(self, name: str, missing: str) -> Unsupported:
        if self.flags is None:
            return Unsupported(f"{DUMP_PATH}.{name}", self.shown(name), missing)
        return Unsupported(PATH, self._as_typed(name), missing)

    def _as_typed(self, name: str) -> str:
        """The flag and its value; the flag alone where it has none."""
        return " ".join(filter(None, (self.called(name), self.shown(name))))

    def shown(self, name: str) -> str | None:
        value = self.word(name)
        return None if value is None else shortened(value)
