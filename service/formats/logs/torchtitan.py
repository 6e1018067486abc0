"""torchtitan: `tps` is tokens per second and device since the last such line; `memory` is the most
ever reserved."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from service.formats.logs.lines import NUMBER, Line, Log, is_finite, stamp
from service.formats.logs.steps import Found, Step

_MARK = "step:"
_BEGIN = re.compile(
    rf"\s{{0,20}}(\d{{1,12}})\s{{1,20}}loss:\s{{0,20}}({NUMBER})(?=\s|$)", re.IGNORECASE
)
_LOOKS_SO = re.compile(r"\s{0,20}\d{1,12}\s{1,20}loss:")
_RATE = re.compile(r"tps:\s{0,20}([\d,]{1,30}(?:\.\d{1,9})?|nan|inf)(?=[\s\"\\]|$)", re.IGNORECASE)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})*(?:\.\d+)?|\d+(?:\.\d+)?|nan|inf", re.IGNORECASE)
_MEMORY = re.compile(r"memory:\s{0,20}(\d{1,9}(?:\.\d{1,9})?)([GM])iB")
_EVALUATION = "validate "


def find(log: Log) -> Found:
    found = Found()
    for line in log.lines(_MARK):
        for before, after in line.around(_MARK):
            if not before.endswith(_EVALUATION):
                _read(line, before, after, found)
    return found


def _read(line: Line, before: str, after: str, found: Found) -> None:
    begin, rate, memory = _BEGIN.match(after), _RATE.search(after), _MEMORY.search(after)
    if begin and rate and _THOUSANDS.fullmatch(rate.group(1)):
        speed = float(rate.group(1).replace(",", ""))
        found.runs.add(
            replace(_step(line, int(begin.group(1)), begin.group(2), speed), stamp=stamp(before))
        )
        if memory:
            found.note_peak(
                "reserved", float(memory.group(1)) / (1024 if memory.group(2) == "M" else 1)
            )
    elif _LOOKS_SO.match(after):
        found.miss(line, "it has no tps, or it is cut off")


def _step(line: Line, index: int, loss: str, rate: float) -> Step:
    return Step(
        number=index,
        value=rate,
        time=1 / rate if rate else math.inf,
        finite=is_finite(loss) and 0 < rate < math.inf,
        starting=index == 1,
        label=line.label,
    )
