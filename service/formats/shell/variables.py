"""The variables of a launch script (the *text*) while it is read, which is not run: their values,
and the doubts about these.
A branch is *undecided* where the text does not tell whether it runs. While it is followed, its
assignments are *pending*; behind it they are *doubts*: assignments that may not have run.
"""

from __future__ import annotations

import re
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

    @property
    def first(self) -> str:
        """Returns the value of $X, which for an array is its first element."""
        if not self.is_array:
            return self.text
        return self.words[0] if self.words else ""

    def element(self, index: str | None) -> str | None:
        """Returns the element of an array at an index or key; None where there is none. The
        index "@" or "*" means all elements, joined by spaces, and None the value of $X."""
        if index is None:
            return self.first
        if index in ("@", "*"):
            return self.text
        key = f"[{index}]="  # as an associative array is written
        keyed = next((word for word in self.words if word.startswith(key)), None)
        if keyed is not None:
            return keyed.removeprefix(key)
        if not re.fullmatch(r"-?\d{1,6}", index):
            return None
        place = int(index)
        return self.words[place] if -len(self.words) <= place < len(self.words) else None


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
        """Returns the exported variables, with which a command is started."""
        return {name: self.values[name].text for name in self.exported if name in self.values}

    def merge(self, branches: Sequence[Variables], *, one_ran: bool, is_inside: bool) -> None:
        """Sets each variable to what it may be after undecided branches, of which at most one has
        run, and with `one_ran` exactly one.

        A value on which all branches agree is known. A value from before that some branch leaves
        unchanged is kept, in doubt. `is_inside` says that the branches are themselves inside of an
        undecided branch.
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
            merged = _merged(name, before, after, one_ran=one_ran, is_inside=is_inside)
            # Outside of undecided branches nothing is pending.
            self.values[name] = merged if is_inside else replace(merged, pending=())
        for branch in branches:
            self.exported |= branch.exported


def _merged(
    name: str,
    before: Value | None,
    after: Sequence[Value | None],
    *,
    one_ran: bool,
    is_inside: bool,
) -> Value:
    """Returns the value of a variable after undecided branches. `before` is its value before
    them, and `after` its value at the end of each, None where it has none. Where these differ,
    assignments in the branches become doubts: the value is then `before` if a branch may leave
    that, empty if it may be and branches only add flags, and otherwise unknown. With `is_inside`
    the branches are part of another undecided branch, in which their assignments stay pending."""
    # Unless one surely ran, all branches may have been passed over: the old value is possible too.
    possible = after if one_ran else [before, *after]
    values = [value for value in possible if value is not None]
    changed = [value for value in values if value is not before]
    pending = [doubt for value in changed for doubt in value.pending]
    if before is not None and is_inside:
        pending = [*before.pending, *pending]
    pending_doubts = _distinct(pending)
    doubts = _distinct(doubt for value in values for doubt in value.doubts)
    # The branches agree if none leaves the variable unset, and all leave the same words.
    agree = len(values) == len(possible) and len({value.words for value in values}) == 1
    if agree:
        return replace(values[0], doubts=doubts, pending=pending_doubts)
    doubts = _distinct([*doubts, *pending_doubts])
    # The old value is kept where a branch leaves it: the doubts say that another may hold.
    if before is not None and any(value is before for value in values):
        return replace(before, doubts=doubts, pending=pending_doubts)
    # Flags that a branch may add are left out, as if it had not run.
    filled = [value for value in changed if value.text.strip()]
    may_be_empty = not one_ran or len(filled) < len(changed)
    if may_be_empty and all(value.text.lstrip().startswith("-") for value in filled):
        # That a branch leaves it empty is no doubt.
        clearing = {doubt for value in changed if value not in filled for doubt in value.pending}
        doubts = tuple(doubt for doubt in doubts if doubt not in clearing)
        return Value((), is_array=True, doubts=doubts, pending=pending_doubts)
    lines = ", ".join(str(line) for line in sorted({doubt.line for doubt in pending_doubts})[:5])
    reason = f"whether line {lines} sets it is not decided by the text"
    if one_ran and len(values) == len(possible):
        reason = f"one of line {lines} sets it, and the text does not decide which"
    return Value((f"${name}",), reason=reason, pending=pending_doubts)


def _distinct(doubts: Iterable[Doubt]) -> tuple[Doubt, ...]:
    return tuple(dict.fromkeys(doubts))[:_MOST_DOUBTS]


def sent_variables(environment: Mapping[str, str]) -> Variables:
    """Returns the variables that the request sends. All are exported, and the text does not
    override them."""
    values = {name: Value((value,)) for name, value in environment.items()}
    return Variables(values, set(values), frozenset(values))  # exported, and fixed against the text
