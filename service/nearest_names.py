"""This module finds the known name that an unknown one may have meant, be it of a chip, a machine,
a model, a stack or a family, or of a setting of a framework.

The number in the name of a chip or a model tells one thing from another: B300 is no misspelt B200,
and A10G no A100. So a name of which only letters are misspelt is told from names that are merely
the nearest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise

from rapidfuzz.distance import OSA
from rapidfuzz.process import extract

from models.errors import UnknownName

_MOST_OFFERED = 3  # among more, people have to search
_LONG_WORD = 5  # letters from which on a word may have two misspelt
_LETTERS_AND_NUMBERS = re.compile(r"\d+|[^\W\d_]+", re.ASCII)
_WORD = re.compile(r"[a-z0-9]+")
_COUNT = re.compile(r"\b\d{1,4}x(?=[a-z])|(?<=\d)x\d{1,4}\b", re.ASCII)
"""A count of chips stands in front or behind, as in 8xH100 and GB200x72."""
_LONG_NUMBER = re.compile(r"\d{3}", re.ASCII)
_MOST_CHARACTERS = 120  # of a name that is compared: longer ones are no names
_MOST_COMPARED = 40  # names by their parts: more than enough for the first three to be among them
_SAME_PART = 0.1
"""A name with the same letters is so much nearer, of 1, and one with the same numbers too: H10 is
nearer to H100 than to A10."""
_TUNED = re.compile(r"[-_.](?:instruct|chat|base|it|hf|sft|dpo|fp8|awq|gptq|int4|bf16)(?=[-_.]|$)")
"""Repositories put this behind the name of a model for a variant that has its shape."""
_LIKE_A_SETTING = 0.65
"""A word may be missing, as in dispatcher for dispatcher_type. Below this likeness, of 1,
suggestions are other settings and no slips of the pen."""
_LIKE_A_SUBJECT = 0.5  # of 1, of the words that say what two settings are about: "tokn", "token"
_MOST_TRIED = 10  # settings spelt alike, of which the first is taken that is about the same
_BESIDE_SUBJECTS = frozenset(
    {"use", "no", "not", "enable", "disable", "num", "is", "with", "max", "min"}
)
"""Words in front of the name of a setting that do not say what it is about."""


def unknown_name(
    field: str, value: str, known: Collection[str], cure: str = "", *, what: str = ""
) -> UnknownName:
    """Returns an error that says what an unknown name may have meant: known names that it is a
    misspelling of, else the nearest ones. `cure` says what else can be given; `what` says what it
    should name, as in "of a chip"."""
    error = UnknownName(field, value, known)
    if near := misspelt(value, known):
        error.near = near
        hint = f"; did you mean {', '.join(near)}?" + (f" Else {cure}" if cure else "")
    else:
        error.near = nearest(value, known)
        named = f" of {what}" if what else ""
        hint = f"{named}; the nearest known are {', '.join(error.near)}"
        hint = (hint if error.near else named) + (f"; {cure}" if cure else "")
    error.rule = f"unknown name{hint}"
    error.args = (f"{field} = {value!r}: {error.rule}",)
    return error


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Returns the three known names that take the fewest changes of a letter, one of each spelling,
    the nearest first. There is always one, however far."""
    return _alike(_plain(name), _spelt(known, _plain), _MOST_COMPARED)[:_MOST_OFFERED]


def nearest_setting(name: str, known: Iterable[str]) -> str | None:
    """Returns the known setting that is spelt most like `name`, and is about the same: --lora-rank
    is no slip of the pen for --q-lora-rank. None where none is. Dashes count as underscores."""
    asked = _setting(name)
    for candidate in _alike(asked, _spelt(known, _setting), _MOST_TRIED):
        spelling = _setting(candidate)
        if _likeness(asked, spelling) < _LIKE_A_SETTING:
            return None
        if _is_about_the_same(asked, spelling):
            return candidate
    return None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns the end of a sentence with the setting that may be meant; empty where none is."""
    near = nearest_setting(name, known)
    return f": did you mean {near}?" if near else ""


def _spelt(known: Iterable[str], spelling: Callable[[str], str]) -> dict[str, str]:
    """Returns the first known name of each spelling."""
    spellings: dict[str, str] = {}
    for candidate in known:
        spellings.setdefault(spelling(candidate), candidate)
    return spellings


def _alike(asked: str, spellings: Mapping[str, str], most: int) -> list[str]:
    """Returns at most so many known names, by their spelling, the nearest first."""
    compared = extract(asked, [*spellings], scorer=OSA.normalized_similarity, limit=most)
    likeness = {spelling: _likeness(asked, spelling) for spelling, _, _ in compared}
    return [spellings[name] for name in sorted(likeness, key=lambda name: (-likeness[name], name))]


def _setting(name: str) -> str:
    return name[:_MOST_CHARACTERS].lstrip("-").lower().replace("-", "_")


def _is_about_the_same(name: str, other: str) -> bool:
    """Tells whether the words that say what two settings are about are spelt alike, at each step of
    a dotted name."""
    steps, others = name.split("."), other.split(".")
    if len(steps) != len(others):
        return False
    subjects = zip(map(_subject, steps), map(_subject, others), strict=True)
    return all(
        first == second or _likeness(first, second) >= _LIKE_A_SUBJECT for first, second in subjects
    )


def _subject(step: str) -> str:
    """Returns the first word of a name that says what it is about."""
    words = _LETTERS_AND_NUMBERS.findall(step.replace("_", " "))
    return next((word for word in words if word not in _BESIDE_SUBJECTS), words[0] if words else "")


def _likeness(asked: str, spelling: str) -> float:
    likeness = float(OSA.normalized_similarity(asked, spelling))
    for kind in (r"[a-z]+", r"\d+"):
        if (parts := re.findall(kind, asked)) and parts == re.findall(kind, spelling):
            likeness += _SAME_PART
    return likeness


def _plain(name: str) -> str:
    """Returns a name without its organisation, its variant, and what stands between its words."""
    own = name[:_MOST_CHARACTERS].lower().rstrip("/").rpartition("/")[2]
    return "".join(_WORD.findall(_TUNED.sub("", own)))


def misspelt(name: str, known: Iterable[str]) -> list[str]:
    """Returns up to three known names that this one is a near misspelling of, the nearest
    first."""
    asked = words(name)
    distances: dict[str, int] = {}
    for candidate in known:
        distance = _distance(asked, words(candidate))
        if distance is not None:
            distances[candidate] = distance
    nearest_first = sorted(distances, key=lambda candidate: (distances[candidate], candidate))
    return nearest_first[:_MOST_OFFERED]


def words(name: str) -> list[str]:
    """Returns the words of a name, a count of chips apart."""
    return _WORD.findall(_COUNT.sub(lambda count: f" {count[0]} ", name.lower()))


def _distance(asked: list[str], known: list[str]) -> int | None:
    """Returns how many letters differ, counting two that are swapped as one, where that is a near
    misspelling; None where it is another name."""
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
    """Returns how many letters of two words differ. Words with numbers are near only where a digit
    or letter is doubled by mistake, or long words of letters stand beside the same number."""
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
        distance = OSA.distance(our_part, their_part)
        if distance > most:
            return None
        total += distance
    return total


def _without_a_doubled_character(asked: str, known: str) -> bool:
    """Tells whether a character was typed twice. Not a digit of a short number: H200 is no H20."""
    if len(asked) != len(known) + 1:
        return False
    return any(
        character == following
        and asked[:index] + asked[index + 1 :] == known
        and (not character.isdigit() or _LONG_NUMBER.search(known) is not None)
        for index, (character, following) in enumerate(pairwise(asked))
    )
