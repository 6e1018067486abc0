"""The nearest known name to one that is not known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_LIKENESS = 0.75  # of 0 to 1: below it, suggestions are other settings and no slips of the pen
_LIKENESS_OF_WORDS = 0.6  # of the words that say what two settings are about: "tokn", "token"
_MOST_CHARACTERS = 80  # difflib takes the square of the length, and no setting has a longer name
_MOST_TRIED = 5  # names that are spelt alike, of which the first is taken that is about the same
_WORD = re.compile(r"[a-z]+|\d+", re.ASCII)
_PREFIXES = frozenset({"use", "no", "not", "enable", "disable", "num", "is", "with", "max", "min"})
"""Words in front of a name that do not say what it is about."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is spelt most like `name`, and is about the same: --lora-rank is no slip
    of the pen for --q-lora-rank. None where none is. Dashes count as underscores."""
    by_spelling = {_spelling(each): each for each in known}
    written = _spelling(name[:_MOST_CHARACTERS])
    near = difflib.get_close_matches(written, by_spelling, n=_MOST_TRIED, cutoff=_LIKENESS)
    found = next((each for each in near if _is_about_the_same(written, each)), None)
    return None if found is None else by_spelling[found]


def suggestion(name: str, known: Iterable[str]) -> str:
    """The known name that may be meant, as the end of a sentence; empty where there is none."""
    near = nearest(name, known)
    return f": did you mean {near}?" if near else ""


def _spelling(name: str) -> str:
    return name.lower().replace("-", "_")


def _is_about_the_same(name: str, other: str) -> bool:
    """Whether the words that say what two settings are about are spelt alike, at each step of a
    dotted name."""
    steps, others = name.split("."), other.split(".")
    if len(steps) != len(others):
        return False
    subjects = zip(map(_subject, steps), map(_subject, others), strict=True)
    return all(_are_alike(one, two) for one, two in subjects)


def _subject(step: str) -> str:
    """The first word of a name that says what it is about."""
    words = _WORD.findall(step)
    return next((word for word in words if word not in _PREFIXES), words[0] if words else "")


def _are_alike(word: str, other: str) -> bool:
    ratio = difflib.SequenceMatcher(None, word, other).ratio()
    return word == other or ratio >= _LIKENESS_OF_WORDS
