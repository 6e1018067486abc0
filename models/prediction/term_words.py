"""Words for the terms of a step time and of memory, as sentences for people name them."""

from __future__ import annotations

from collections.abc import Sequence

from models.cost.predictions import TERMS, in_gib

_FOUR_DIGITS = 999.5  # rounds to a thousand, which three digits would show with an exponent
TIME_WORDS: dict[str, str] = {name: term["words"] for name, term in TERMS["time"].items()}
MEMORY_WORDS: dict[str, str] = {
    in_gib(name): term["words"] for name, term in TERMS["memory"].items()
}


def in_words(names: Sequence[str]) -> str:
    """Return names as a sentence lists them: "a", "a and b", "a, b and c"; "" for none."""
    *others, last = names or [""]
    return f"{', '.join(others)} and {last}" if others else last


def rounded(number: float) -> str:
    """Return a number in three significant digits, or as a whole number from a thousand on: "2.05",
    "54.2", "2,548"."""
    return f"{number:.3g}" if abs(number) < _FOUR_DIGITS else f"{number:,.0f}"
