"""Patterns of the shell: *, ? and sets of characters. A script cuts values by them, ${X%.*}, and
compares words with them in `case` and [[ ]]."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache

_MOST_STARS = 8
"""Stars of a pattern that are tried: matching takes a time that grows with each."""
MAX_CHARACTERS = 512
"""Characters of a value that is matched against a pattern. Each cut tries every place in it, so the
time grows with their square."""
_SET = re.compile(r"\?|\[[!^]?[\w\s.:/,=@-]{1,99}\]", re.ASCII)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Returns a pattern of the shell as a regular expression; None where it could take too long
    to match."""
    if pattern.count("*") > _MOST_STARS or len(pattern) > MAX_CHARACTERS:
        return None
    try:
        return re.compile(translate(pattern.replace("[^", "[!")))  # fnmatch negates sets by !
    except re.error:
        return None


def matches(text: str, pattern: str) -> bool | None:
    """Returns whether a whole text matches a pattern of the shell; None where that could take
    too long."""
    if not set(pattern) & set("*?["):
        return text == pattern
    compiled = _compiled(pattern)
    if compiled is None or len(text) > MAX_CHARACTERS:
        return None
    return compiled.match(text) is not None  # its end is that of the text: fnmatch adds \Z


def cut(text: str, pattern: str, operator: str) -> str | None:
    """Returns a text without its beginning (`operator` # or ##) or end (% or %%) that matches a
    pattern: doubled operators cut the longest match. None where that could take too long."""
    if len(text) > MAX_CHARACTERS:
        return None
    is_front = operator[0] == "#"
    places = range(len(text) + 1)
    # A cut near the front removes little from the front, and much from the end.
    shortest_first = places if is_front else reversed(places)
    order = shortest_first if len(operator) == 1 else reversed([*shortest_first])
    for cut_at in order:
        is_match = matches(text[:cut_at] if is_front else text[cut_at:], pattern)
        if is_match is None:
            return None
        if is_match:
            return text[cut_at:] if is_front else text[:cut_at]
    return text


def replaced(text: str, pattern: str, instead: str, operator: str) -> str | None:
    """Returns the value of ${X/pattern/instead}: a text with the first match of a pattern
    replaced. `operator` // replaces every match, /# only one at the start, /% only one at the end.
    None for a pattern with a star, or with a set among other characters."""
    if not pattern:
        return text
    if set(pattern) & set("*?["):
        return _with_set_replaced(text, pattern, instead, operator)
    if operator == "/#":
        return instead + text.removeprefix(pattern) if text.startswith(pattern) else text
    if operator == "/%":
        return text.removesuffix(pattern) + instead if text.endswith(pattern) else text
    return text.replace(pattern, instead, -1 if operator == "//" else 1)


def _with_set_replaced(text: str, pattern: str, instead: str, operator: str) -> str | None:
    """Returns the value of ${X//[^0-9]/-}: `text` with `instead` for each character of one set, or
    for any character (?). `operator` / replaces only the first. None for other patterns."""
    if not _SET.fullmatch(pattern) or operator not in ("/", "//"):
        return None
    try:
        compiled = re.compile(pattern.replace("[!", "[^").replace("?", "."))
    except re.error:
        return None
    return compiled.sub(lambda _: instead, text, count=0 if operator == "//" else 1)
