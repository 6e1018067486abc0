"""Symptoms: lines of a log in which the software or a device itself says that something makes the
run slow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from models.package_data import read_json
from service.formats.logs.lines import Log, printable
from shardwright.secrets import mask_secrets

SymptomKind = Literal[
    "allocator_retries",
    "sockets",
    "network_faults",
    "network_warnings",
    "collective_timeouts",
    "device_faults",
    "throttling",
    "stragglers",
    "data_waits",
    "profiling",
]
_PATTERNS: dict[SymptomKind, list[re.Pattern[str]]] = {
    entry["kind"]: [re.compile(mark) for mark in entry["marks"]]
    for entry in read_json(__package__, "symptoms.json")
}
"""Each begins with plain text, which is found much faster than a choice of texts."""
_MAX_QUOTED = 200  # a line or two of a terminal


@dataclass(frozen=True, slots=True)
class Symptom:
    """Lines that say one thing: how many there are, and the first of them, shortened."""

    kind: SymptomKind
    count: int
    line: int
    """From 1."""
    text: str


def symptoms(text: str) -> list[Symptom]:
    """Returns the symptoms that a log shows, such as a throttled device: one for each kind, with
    its first line."""
    plain = Log(text).text
    candidates = (_symptom(plain, kind, patterns) for kind, patterns in _PATTERNS.items())
    return [symptom for symptom in candidates if symptom is not None]


def _symptom(text: str, kind: SymptomKind, patterns: list[re.Pattern[str]]) -> Symptom | None:
    """Returns the number of lines that match one of the patterns, with the first of them; None
    where none does."""
    starts = sorted(match.start() for pattern in patterns for match in pattern.finditer(text))
    if not starts:
        return None
    line_starts = {text.rfind("\n", 0, start) for start in starts}  # each line counts once
    first = starts[0]
    line_start = text.rfind("\n", 0, first) + 1
    # A line may be thousands of characters long: the part around the match is quoted.
    around = text[max(line_start, first - _MAX_QUOTED) : first + _MAX_QUOTED]
    quoted = around.splitlines()[0].strip()
    return Symptom(
        kind=kind,
        count=len(line_starts),
        line=text.count("\n", 0, first) + 1,
        text=printable(mask_secrets(quoted)[:_MAX_QUOTED]),
    )
