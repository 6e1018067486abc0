"""The nearest known name to one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LIKENESS = 0.75  # of 0 to 1: below it, suggestions are other settings and no slips of the pen
_MOST_CHARACTERS = 80  # difflib takes the square of the length, and no setting has a longer name


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is spelt most like `name`; None where none is like it. Dashes count as
    underscores."""
    by_spelling = {_spelling(each): each for each in known}
    near = difflib.get_close_matches(
        _spelling(name[:_MOST_CHARACTERS]), by_spelling, n=1, cutoff=_LIKENESS
    )
    return by_spelling[near[0]] if near else None


def _spelling(name: str) -> str:
    return name.lower().replace("-", "_")
