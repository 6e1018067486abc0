"""Megatron's arguments as texts by name, dumped or typed, and the values that they stand for. A
*dump* is the list of all arguments that a run prints at its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.errors import Invalid, Unsupported
from service.formats.megatron.flags import kind_of_argument, table
from service.formats.settings.field import KINDS, Field
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stopped
from service.formats.shell.faults import PATH, shortened

DUMP_PATH = "log.arguments"


class Arguments(Settings):
    """Arguments by name, as texts. An absent argument and "None" are the same.

    `flags` maps each argument to its flag on a command line. It is None for a dump, so that errors
    name the argument in the log.
    """

    def __init__(self, texts: Mapping[str, str], flags: Mapping[str, str] | None = None) -> None:
        super().__init__(table(), texts)
        self.flags = flags

    def text(self, name: str) -> str | None:
        """Returns the text of an argument; None where it is absent or "None"."""
        text: str = self.given.get(name, "").strip()
        return text if text not in ("", "None") else None

    def value(self, name: str) -> Any:
        """Returns the value of an argument by its type; None where it is absent. Raises Invalid
        for a text of another type."""
        text = self.text(name)
        if text is None:
            return None
        kind = kind_of_argument(name)
        try:
            return Field(name=name, kind=kind).parse(text)
        except Invalid:
            raise self.invalid(name, f"must be {KINDS[kind]}") from None

    def required(self, name: str, least: int = 1) -> int:
        """Returns a whole number of at least `least`. Raises Invalid where it is missing or
        smaller."""
        value = self.integer(name, least)
        if value is None:
            raise self.invalid(name, f"is required{'' if self.flags is None else ': write it too'}")
        return value

    def replaced(self, **texts: str) -> Arguments:
        """Returns the arguments with other texts for some of them, so that reading can go on after
        a value that Megatron refuses."""
        return Arguments({**self.given, **texts}, self.flags)

    def require_any(self, *names: str, part: str) -> None:
        """Raises Invalid unless the dump has one of these arguments, even as None. An argument
        that is missing from a dump may have been cut off. `part` is what the request can give
        instead."""
        if not any(name in self.given for name in names):
            rule = (
                "is not in the dump of arguments, and an absent argument is not one that is off:"
                f" send the whole dump, or give {part} in the request"
            )
            raise Invalid(f"{DUMP_PATH}.{names[0]}", None, rule)

    def called(self, name: str) -> str:
        """Returns an argument by the name that the user sees: its flag, or its own name in a
        dump."""
        return name if self.flags is None else self.flags.get(name, name)

    def invalid(self, name: str, rule: str) -> Invalid:
        return Invalid(self._path(name), self._as_given(name), rule)

    def unsupported(self, name: str, missing: str) -> Unsupported:
        return Unsupported(self._path(name), self._as_given(name), missing)

    def stopped(self, name: str, rule: str, cure: str = "") -> Invalid:
        """Returns the error for a value that Megatron's parser accepts and its later checks
        refuse. A job that printed a dump has passed those checks, so there the error is Invalid."""
        if self.flags is None:
            return self.invalid(name, rule)
        return Stopped(self.called(name), self.shortened(name), rule, cure)

    def below(self, name: str, least: int) -> Invalid:
        """Returns the error for a number below `least`."""
        rule = f"must be a whole number of at least {least}"
        return self.stopped(name, rule, f"{self.called(name)} {least}")

    def shortened(self, name: str) -> str | None:
        """Returns an argument as an answer repeats it; None where it is absent."""
        value = self.text(name)
        return None if value is None else shortened(value)

    def _path(self, name: str) -> str:
        """Returns the field of the request that an error about this argument names."""
        return f"{DUMP_PATH}.{name}" if self.flags is None else PATH

    def _as_given(self, name: str) -> str | None:
        """Returns a value as it was written: alone in a dump, with its flag where it was typed."""
        value = self.shortened(name)
        if self.flags is None:
            return value
        return " ".join(filter(None, (self.called(name), value)))
