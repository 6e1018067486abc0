"""Spans of time as operators write them: 90d, 36h or 90m."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
_DURATION = re.compile(r"(\d{1,6})([mhd])", re.ASCII)
_LONGEST = timedelta(days=36_500)


def parse_duration(text: str) -> timedelta:
    """Returns the span of time in a text such as 90d, 36h or 90m. Raises ValueError for anything
    else, and above a century."""
    match = _DURATION.fullmatch(text)
    if match is None or (span := int(match[1]) * _UNITS[match[2]]) > _LONGEST:
        raise ValueError("must be a number of days, hours or minutes, such as 90d, 36h or 90m")
    return span
