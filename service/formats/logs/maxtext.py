"""MaxText: `seconds` is the clock of the host from step to step, which can run ahead of the devices
at first.

`Tokens/s/device` is the tokens of a step, which are what it trains on, over these seconds.
"""

from __future__ import annotations

import re

from service.formats.logs.lines import NUMBER, Line, Log, is_finite, is_whole, stamp
from service.formats.logs.steps import Found, Step

_MARK = "completed step:"
_STEP = re.compile(
    rf"\s{{0,20}}(\d{{1,12}}),\s{{0,20}}seconds:\s{{0,20}}({NUMBER})(?=[\s,\"\\]|$)(?!,\d)",
    re.IGNORECASE,
)
_LOSS = re.compile(rf"\bloss:\s{{0,20}}({NUMBER})", re.IGNORECASE)
_RATE = re.compile(rf"Tokens/s/device:\s{{0,20}}({NUMBER})(?=[\s,\"\\]|$)", re.IGNORECASE)
_PLAN = "Total memory size:"
_TOTAL = re.compile(r"\s{0,20}(\d{1,9}(?:\.\d{1,9})?) GB")


def find(log: Log) -> Found:
    """The memory is what the compiler planned, in units of 2**30 that it prints as GB."""
    found = Found()
    for line in log.lines(_MARK):
        for before, after in line.around(_MARK):
            _read(line, before, after, found)
    for line in log.lines(_PLAN):
        for _, after in line.around(_PLAN):
            if total := _TOTAL.match(after):
                found.note_peak("allocated", float(total.group(1)))
    return found


def _read(line: Line, before: str, after: str, found: Found) -> None:
    step, loss, rate = _STEP.match(after), _LOSS.search(after), _RATE.search(after)
    if step and is_whole(step.group(2), after[step.end() :]):
        index, seconds = int(step.group(1)), float(step.group(2))
        found.runs.add(
            Step(
                number=index,
                value=seconds,
                time=seconds,
                finite=is_finite(loss and loss.group(1)),
                starting=index == 0,
                tokens=seconds * float(rate.group(1)) if rate else None,
                label=line.label,
                stamp=stamp(before),
            )
        )
    else:
        found.miss(line, "it has no step and seconds, or they are cut off")
