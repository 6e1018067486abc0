"""Lines of trainers whose logs are recognised and not read, and what to send instead of the log."""

from __future__ import annotations

import re
from dataclasses import dataclass

from models.package_data import read_json


@dataclass(frozen=True, slots=True)
class ForeignLog:
    trainer: str
    speed: str
    """The field of `measured` that its lines give, and how."""

    @property
    def rule(self) -> str:
        """Returns the sentence that says which trainer wrote the log and what to send instead."""
        return (
            f"it looks like a log of {self.trainer}, which is not read: send {self.speed} to"
            " POST /v1/reports"
        )


_LOOKED_AT = 2**19
"""Characters: all patterns together take a tenth of a second for so many."""
_PATTERNS = tuple(
    (re.compile(entry["pattern"]), ForeignLog(entry["trainer"], entry["speed"]))
    for entry in read_json(__package__, "foreign.json")
)


def recognise(text: str) -> ForeignLog | None:
    """Returns the unsupported trainer whose lines a text has; None where it has none. Only the
    beginning and the end of a long text are searched, since trainers print such lines
    throughout."""
    if len(text) > 2 * _LOOKED_AT:
        text = f"{text[:_LOOKED_AT]}\n{text[-_LOOKED_AT:]}"
    return next((known for pattern, known in _PATTERNS if pattern.search(text)), None)
