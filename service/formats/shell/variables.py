"""The variables of a shell while a text is read: values, and the doubts about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

_MOST_DOUBTS = 100
"""Doubts that are kept of a value; more would not be read by anybody."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """An assignment that may or may not have run, because the text does not decide it."""

    name: str
    written: str
    line: int
    replaces: bool
    """It would take the place of a value that the text gives otherwise."""


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a variable: one word, or the words of an array."""

    words: tuple[str, ...]
    is_array: bool = False
    doubts: tuple[Doubt, ...] = ()
    """Assignments that may have given it another value."""
    pending: tuple[Doubt, ...] = ()
    """Assignments of the undecided branch that is being read, which are doubts outside it."""
    reason: str = ""
    """Why nobody can know it; empty where it is known."""
    defaults: tuple[str, ...] = ()
    """Variables that nothing sets and whose defaults are part of it: TP=4."""

    @property
    def text(self) -> str:
        return " ".join(self.words)


@dataclass(slots=True)
class Variables:
    """The variables at one point of a text."""

    values: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    fixed: frozenset[str] = frozenset()
    """Names whose values the request sends: they go before those of the text."""

    def copied(self) -> Variables:
        return Variables(dict(self.values), set(self.exported), self.fixed)

    def environment(self) -> dict[str, str]:
        """Returns what a command is started with."""
        return {name: self.values[name].text for name in self.exported if name in self.values}

    def merge(self, branches: Sequence[Variables], *, is_whole: bool, is_inside: bool) -> None:
        """Takes over what branches of which one at most has run leave behind.

        One of them has run where `is_whole`. Where they agree on a value it is known. A value from
        before stays where a branch leaves it, and is in doubt. `is_inside` says that the branches
        are in an undecided branch themselves.
        """
        changed = {
            name
            for branch in branches
            for name, value in branch.values.items()
            if value is not self.values.get(name)
        }
        for name in sorted(changed):
            before = self.values.get(name)
            after = [branch.values.get(name) for branch in branches]
            self.values[name] = _merged(name, before, after, is_whole, is_inside)
        for branch in branches:
            self.exported |= branch.exported


def _merged(
    name: str,
    before: Value | None,
    after: Iterable[Value | None],
    is_whole: bool,
    is_inside: bool,
) -> Value:
    possible = [*after] if is_whole else [before, *after]
    known = [value for value in possible if value is not None]
    earlier = before.pending if before is not None and is_inside else ()
    changes = (doubt for value in known if value is not before for doubt in value.pending)
    pending = _distinct([*earlier, *changes])
    kept = _distinct(doubt for value in known for doubt in value.doubts)
    if len(known) == len(possible) and len({value.words for value in known}) == 1:
        return replace(known[0], doubts=kept, pending=pending if is_inside else ())
    doubts = _distinct([*kept, *pending])
    if any(value is before for value in possible) and before is not None:
        return replace(before, doubts=doubts, pending=pending if is_inside else ())
    changed = [value for value in known if value is not before]
    if not is_whole and all(value.text.lstrip().startswith("-") for value in changed):
        return Value((), is_array=True, doubts=doubts, pending=pending if is_inside else ())
    lines = ", ".join(str(line) for line in sorted({doubt.line for doubt in pending})[:5])
    reason = f"whether line {lines} sets it is not decided by the text"
    return Value((f"${name}",), reason=reason, pending=pending if is_inside else ())


def _distinct(doubts: Iterable[Doubt]) -> tuple[Doubt, ...]:
    return tuple(dict.fromkeys(doubts))[:_MOST_DOUBTS]


def of_environment(environment: Mapping[str, str]) -> Variables:
    """Returns the variables that the request sends, all of which are exported."""
    values = {name: Value((value,)) for name, value in environment.items()}
    return Variables(values, set(values), frozenset(values))
