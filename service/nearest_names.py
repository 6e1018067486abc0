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
_SHORT_WORD = 3  # letters below which a word is not taken for a misspelt one
_LONG_WORD = 5  # letters from which on a word may have two misspelt
_LETTERS_AND_NUMBERS = re.compile(r"\d+|[^\W\d_]+", re.ASCII)
_WORD = re.compile(r"[a-z0-9]+")
_COUNT = re.compile(r"\b\d{1,4}x(?=[a-z])|(?<=\d)x\d{1,4}\b", re.ASCII)
"""A count of chips stands in front or behind, as in 8xH100 and GB200x72."""
_LONG_NUMBER = re.compile(r"\d{3}", re.ASCII)
_MOST_CHARACTERS = 120  # of a name that is compared: longer ones are no names
_MOST_COMPARED = 40  # names by their parts: more than enough for the first three to be among them
_SAME_PART = 0.1
"""Likeness, of 1, that a name with the same letters gains, and one with the same numbers too: H10
is nearer to H100 than to A10."""
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
    """Returns an error that suggests what an unknown name may have meant: known names of which it
    is a misspelling, or else the nearest ones. `cure` says what else can be given, and `what` is
    what the value should name, such as "a chip"."""
    error = UnknownName(field, value, known)
    if near := misspelt(value, known):
        error.near = near
        hint = f"; did you mean {', '.join(near)}?" + (f" Else {cure}" if cure else "")
    else:
        error.near = nearest(value, known)
        hint = f" of {what}" if what else ""
        if error.near:
            hint += f"; the nearest known are {', '.join(error.near)}"
        if cure:
            hint += f"; {cure}"
    return with_hint(error, hint)


def with_hint(error: UnknownName, hint: str) -> UnknownName:
    """Changes the message of an error to "unknown name" and a hint, and returns the error."""
    error.rule = f"unknown name{hint}"
    # The text of an exception is its arguments.
    error.args = (f"{error.field} = {error.value!r}: {error.rule}",)
    return error


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Returns the three known names that take the fewest edits, nearest first, one of each
    spelling. However far the nearest is, it is returned."""
    spellings = _by_spelling(known, _normalized_name)
    return _nearest_spellings(_normalized_name(name), spellings, _MOST_COMPARED)[:_MOST_OFFERED]


def nearest_setting(name: str, known: Iterable[str]) -> str | None:
    """Returns the known setting that is spelt most like `name` and has a similar subject:
    "--lora-rank" is no misspelling of "--q-lora-rank". None where there is none. Dashes count as
    underscores."""
    spelling_given = _normalized_setting(name)
    spellings = _by_spelling(known, _normalized_setting)
    for candidate in _nearest_spellings(spelling_given, spellings, _MOST_TRIED):
        spelling = _normalized_setting(candidate)
        if _likeness(spelling_given, spelling) < _LIKE_A_SETTING:
            return None
        if _is_about_the_same(spelling_given, spelling):
            return candidate
    return None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns the end of a sentence, such as ": did you mean --tp?"; empty where no setting is
    near."""
    near = nearest_setting(name, known)
    return f": did you mean {near}?" if near else ""


def _by_spelling(known: Iterable[str], normalize: Callable[[str], str]) -> dict[str, str]:
    """Returns the known names by their normalized spelling. Of several with one spelling the first
    is kept."""
    spellings: dict[str, str] = {}
    for candidate in known:
        spellings.setdefault(normalize(candidate), candidate)
    return spellings


def _nearest_spellings(name: str, spellings: Mapping[str, str], most: int) -> list[str]:
    """Returns at most `most` known names whose spelling is nearest to `name`, nearest first.
    `spellings` maps normalised spellings to names."""
    compared = extract(name, [*spellings], scorer=OSA.normalized_similarity, limit=most)
    likeness = {spelling: _likeness(name, spelling) for spelling, _, _ in compared}
    return [
        spellings[spelling]
        for spelling in sorted(likeness, key=lambda spelling: (-likeness[spelling], spelling))
    ]


def _normalized_setting(name: str) -> str:
    """Returns the normalised spelling of a setting: "--Seq-Length" becomes "seq_length"."""
    return name[:_MOST_CHARACTERS].lstrip("-").lower().replace("-", "_")


def _is_about_the_same(name: str, other: str) -> bool:
    """Returns whether the subjects of two settings, "lora" in "use_lora", are spelt alike at each
    step of a dotted name."""
    steps, others = name.split("."), other.split(".")
    if len(steps) != len(others):
        return False
    subjects = zip(map(_subject, steps), map(_subject, others), strict=True)
    return all(
        first == second or _likeness(first, second) >= _LIKE_A_SUBJECT for first, second in subjects
    )


def _subject(step: str) -> str:
    """Returns the first word of a name that is not a prefix such as "use", "num" or "max"."""
    words = _LETTERS_AND_NUMBERS.findall(step.replace("_", " "))
    return next((word for word in words if word not in _BESIDE_SUBJECTS), words[0] if words else "")


def _likeness(asked: str, spelling: str) -> float:
    """Returns the similarity of two spellings, from 0 to 1 by edit distance, plus a bonus where
    their letters are equal and another where their numbers are."""
    likeness = float(OSA.normalized_similarity(asked, spelling))
    for kind in (r"[a-z]+", r"\d+"):
        if (parts := re.findall(kind, asked)) and parts == re.findall(kind, spelling):
            likeness += _SAME_PART
    return likeness


def _normalized_name(name: str) -> str:
    """Returns a model's or chip's name in lower case without its organisation, its variant and its
    punctuation. "Meta/Llama-3.1-8B-Instruct" becomes "llama318b"."""
    own = name[:_MOST_CHARACTERS].lower().rstrip("/").rpartition("/")[2]
    return "".join(_WORD.findall(_TUNED.sub("", own)))


def misspelt(name: str, known: Iterable[str]) -> list[str]:
    """Returns up to three known names of which this one is a likely misspelling, nearest first."""
    name_words = words(name)
    distances: dict[str, int] = {}
    for candidate in known:
        distance = _distance(name_words, words(candidate))
        if distance is not None:
            distances[candidate] = distance
    nearest_first = sorted(distances, key=lambda candidate: (distances[candidate], candidate))
    return nearest_first[:_MOST_OFFERED]


def words(name: str) -> list[str]:
    """Returns the words of a name in lower case. A count of chips, as in 8xH100, is a word of its
    own."""
    return _WORD.findall(_COUNT.sub(lambda count: f" {count[0]} ", name.lower()))


def _distance(name_words: list[str], known_words: list[str]) -> int | None:
    """Returns the number of letters in which two names differ, given as words, if one is a likely
    misspelling of the other; None otherwise. Two swapped letters count as one."""
    if "".join(name_words) == "".join(known_words):
        return 0
    if len(name_words) != len(known_words):
        return None
    total = 0
    for word, known_word in zip(name_words, known_words, strict=True):
        distance = _word_distance(word, known_word)
        if distance is None:
            return None
        total += distance
    return total


def _word_distance(word: str, known_word: str) -> int | None:
    """Returns the number of letters in which two words differ, if one is a likely misspelling of
    the other; None otherwise. Numbers tell products apart: beside a number only a run of five
    letters or more may be misspelt, or one character typed twice."""
    if word == known_word:
        return 0
    if _without_a_doubled_character(word, known_word):
        return 1
    parts, known_parts = map(_LETTERS_AND_NUMBERS.findall, (word, known_word))
    if len(parts) != len(known_parts):
        return None
    total = 0
    for part, known_part in zip(parts, known_parts, strict=True):
        if part == known_part:
            continue
        shortest = min(len(part), len(known_part))
        # Beside numbers, short letters tell products apart: GB200 is no misspelt B200.
        fewest = _SHORT_WORD if len(known_parts) == 1 else _LONG_WORD
        if part.isdigit() or known_part.isdigit() or shortest < fewest:
            return None
        distance = OSA.distance(part, known_part)
        if distance > (2 if shortest >= _LONG_WORD else 1):
            return None
        total += distance
    return total


def _without_a_doubled_character(word: str, known_word: str) -> bool:
    """Returns whether `word` is the known word with one character typed twice. A doubled digit
    counts only in a number of three digits or more: H200 is no misspelt H20."""
    if len(word) != len(known_word) + 1:
        return False
    return any(
        character == following
        and word[:index] + word[index + 1 :] == known_word
        and (not character.isdigit() or _LONG_NUMBER.search(known_word) is not None)
        for index, (character, following) in enumerate(pairwise(word))
    )
