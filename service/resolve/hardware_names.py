"""What an unknown name of a chip or a machine may have meant.

The number in such a name tells one model from another: B300 is no misspelt B200, and A10G no A100.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

_MOST_OFFERED = 3
_LONG_WORD = 5  # letters from which on a word may have two misspelt
_LETTERS_AND_NUMBERS = re.compile(r"\d+|[^\W\d_]+", re.ASCII)
_WORD = re.compile(r"[a-z0-9]+")
_COUNT = re.compile(r"\b\d{1,4}x(?=[a-z])|(?<=\d)x\d{1,4}\b", re.ASCII)
"""Of chips, as in 8xH100 and GB200x72."""
_LONG_NUMBER = re.compile(r"\d{3}", re.ASCII)
_VERSION = re.compile(r"v\d")
"""Of a machine, as in Standard_ND96isr_H100_v5, though TPUs have such names too."""


def misspelt(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that this one is a near misspelling of, the nearest first."""
    words = _words(name)
    distances: dict[str, int] = {}
    for candidate in known:
        distance = _distance(words, _words(candidate))
        if distance is not None:
            distances[candidate] = distance
    return sorted(distances, key=lambda each: (distances[each], each))[:_MOST_OFFERED]


def chip_named_in(name: str, chips: Mapping[str, str]) -> str | None:
    """The chip of a known name that stands within this one, as h100 does in BM.GPU.H100.4: the
    longest such name, and the first of these. `chips` has the chip of every known name."""
    words = _words(name)
    by_words = {tuple(_words(known)): chip for known, chip in chips.items()}
    for length in range(len(words), 0, -1):
        for begin in range(len(words) - length + 1):
            part = tuple(words[begin : begin + length])
            if part in by_words and not (length == 1 and _VERSION.fullmatch(part[0])):
                return by_words[part]
    return None


def _words(name: str) -> list[str]:
    """The words of a name, a count of chips apart."""
    return _WORD.findall(_COUNT.sub(lambda count: f" {count[0]} ", name.lower()))


def _distance(asked: list[str], known: list[str]) -> int | None:
    """How many letters differ, where that is a near misspelling; None where it is another name."""
    if "".join(asked) == "".join(known):
        return 0
    if len(asked) != len(known):
        return None
    total = 0
    for ours, theirs in zip(asked, known, strict=True):
        distance = _word_distance(ours, theirs)
        if distance is None:
            return None
        total += distance
    return total


def _word_distance(asked: str, known: str) -> int | None:
    """Of words with numbers only a digit or letter that is doubled by mistake, and long words of
    letters beside the same number, are near."""
    if asked == known:
        return 0
    if _without_a_doubled_character(asked, known):
        return 1
    ours, theirs = (_LETTERS_AND_NUMBERS.findall(word) for word in (asked, known))
    if len(ours) != len(theirs):
        return None
    total = 0
    for our_part, their_part in zip(ours, theirs, strict=True):
        if our_part == their_part:
            continue
        shortest = min(len(our_part), len(their_part))
        most = 2 if shortest >= _LONG_WORD else 1
        alone = len(theirs) == 1
        if our_part.isdigit() or their_part.isdigit() or shortest < (3 if alone else _LONG_WORD):
            return None
        distance = _edit_distance(our_part, their_part, most)
        if distance > most:
            return None
        total += distance
    return total


def _without_a_doubled_character(asked: str, known: str) -> bool:
    """Whether a character was typed twice. Not a digit of a short number: H200 is no H20."""
    if len(asked) != len(known) + 1:
        return False
    return any(
        one == other
        and asked[:index] + asked[index + 1 :] == known
        and (not one.isdigit() or _LONG_NUMBER.search(known) is not None)
        for index, (one, other) in enumerate(pairwise(asked))
    )


def _edit_distance(a: str, b: str, most: int) -> int:
    """How many letters to change, insert, leave out or swap with the next one; some number above
    `most` where that is more."""
    if abs(len(a) - len(b)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        above, before = before, row
        row = [i]
        for j, other in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                cost = min(cost, above[j - 2] + 1)
            row.append(cost)
    return row[-1]
