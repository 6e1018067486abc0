"""Megatron's arguments as texts by name, dumped or typed, and the values that they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from models.errors import Invalid, Unsupported
from service.formats.settings.stop import Stopped

DUMP_PATH = "log.arguments"
_TYPED_PATH = "launch.arguments"
WHOLE = re.compile(r"[-+]?\d{1,12}", re.ASCII)
NUMBER = re.compile(r"[-+]?(\d{1,12}\.?\d{0,20}|\.\d{1,20})([eE][-+]?\d{1,2})?", re.ASCII)


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
        value = self.word(name)
        if value not in (None, "True", "False"):
            raise self.invalid(name, "must be True or False")
        return value == "True"

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.optional(name, least)
        if value is not None:
            return value
        if default is None:
            raise self.invalid(name, f"is required{'' if self.flags is None else ': write it too'}")
        return default

    def optional(self, name: str, least: int = 1) -> int | None:
        value = self.word(name)
        if value is None:
            return None
        rule = f"must be a whole number of at least {least}"
        if not WHOLE.fullmatch(value):
            raise self.invalid(name, rule)
        if int(value) < least:
            raise self.stopped(name, rule, f"{self.called(name)} {least}")
        return int(value)

    def number(self, name: str) -> float | None:
        value = self.word(name)
        if value is None:
            return None
        if not NUMBER.fullmatch(value):
            raise self.invalid(name, "must be a number")
        return float(value)

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
        return Invalid(_TYPED_PATH, self._as_typed(name), rule)

    def stopped(self, name: str, rule: str, cure: str = "") -> Invalid:
        """An error of a value that the parser takes and Megatron stops at. No run that printed a
        dump has one, so that of a dump it is as invalid as any."""
        if self.flags is None:
            return self.invalid(name, rule)
        return Stopped(self.called(name), self.shown(name), rule, cure)

    def unsupported(self, name: str, missing: str) -> Unsupported:
        if self.flags is None:
            return Unsupported(f"{DUMP_PATH}.{name}", self.shown(name), missing)
        return Unsupported(_TYPED_PATH, self._as_typed(name), missing)

    def _as_typed(self, name: str) -> str:
        """The flag and its value; the flag alone where it has none."""
        return " ".join(filter(None, (self.called(name), self.shown(name))))

    def shown(self, name: str) -> str | None:
        value = self.word(name)
        return value if value is None or len(value) <= 80 else value[:80] + "…"
