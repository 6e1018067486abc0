"""Spans of time and the bars of tqdm, as trainers print them to say how far a run is."""

from __future__ import annotations

import re
from dataclasses import dataclass

_CLOCK = re.compile(r"(?:(\d{1,4}) days?, )?(?:(\d{1,5}):)?(\d{1,2}):(\d\d(?:\.\d{1,9})?)")
_WORDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s?([dhms])\b")
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_BAR = re.compile(
    r"(?:^|[\s\]:])(?P<what>[A-Za-z][\w ]{0,40}?)?:?\s{0,9}\d{1,3}%\|[^|]{0,200}\|"
    r"\s{0,9}(?P<done>\d{1,12})/(?P<total>\d{1,12})"
    r" \[(?P<elapsed>[\d:]{4,12})<(?P<left>[\d:?]{1,12}), {1,9}"
    r"(?P<rate>\d{1,9}(?:\.\d{1,9})?)(?P<unit>s/it|it/s)"
)
"""tqdm/std.py, format_meter."""
_PLAIN_BAR = re.compile(
    r"(?P<what>)(?P<done>\d{1,12})/(?P<total>\d{1,12})"
    r" \[(?P<elapsed>[\d:]{4,12})<(?P<left>[\d:?]{1,12}), {1,9}"
    r"(?P<rate>\d{1,9}(?:\.\d{1,9})?)(?P<unit>s/it|it/s)"
)
"""The end of a bar whose beginning was cut off."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A drawing of a progress bar."""

    what: str
    """The words before it."""
    done: int
    total: int
    elapsed_s: float
    seconds: float
    """Of an iteration: a mean in which the last ones weigh most."""


def bar_in(text: str) -> Bar | None:
    """The last bar of a text that says how long an iteration takes."""
    found = [*_BAR.finditer(text)] or ([] if "%|" in text else [*_PLAIN_BAR.finditer(text)])
    if not found:
        return None
    match = found[-1]
    rate = float(match["rate"])
    if not rate > 0:
        return None
    return Bar(
        what=(match["what"] or "").strip(),
        done=int(match["done"]),
        total=int(match["total"]),
        elapsed_s=span_s(match["elapsed"]) or 0.0,
        seconds=rate if match["unit"] == "s/it" else 1 / rate,
    )


def span_s(text: str) -> float | None:
    """The seconds of a span such as `1:02:03`, `35.25`, or `1h 2m 3s`; None where it is none."""
    if clock := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    words = _WORDS.findall(text)
    if words and not _WORDS.sub("", text).strip():
        return sum(float(number) * _SECONDS[unit] for number, unit in words)
    return None
