"""Megatron-LM, Megatron-Core, Bridge, Primus and Megatron-DeepSpeed.

`elapsed time per iteration (ms)` is the mean over the iterations since the last such line. Where
forks print "current/average", the first is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from service.formats.logs.lines import NUMBER, Line, Log, is_finite, is_whole, printable, stamp
from service.formats.logs.steps import Found, Step

_MARK = "elapsed time per iteration"
_ITERATION = re.compile(r"iteration\s{1,20}(\d{1,12})\s{0,20}/\s{0,20}\d{1,12}", re.IGNORECASE)
_CUT_OFF = re.compile(
    r"iteration\s{1,20}\d{1,12}\s{0,20}/\s{0,20}\d{1,12}\s{0,20}\|\s{0,20}(?:consumed|elapsed|$)"
)
_TIME = re.compile(rf"\s{{0,20}}\((ms|s)\):\s{{0,20}}({NUMBER})(?=[\s|/,]|$)", re.IGNORECASE)
_LOSS = re.compile(rf"lm loss:\s{{0,20}}({NUMBER})", re.IGNORECASE)
_LOST = re.compile(r"number of (?:skipped|nan) iterations:\s{0,20}(\d{1,12})")
_BATCH = re.compile(r"global batch size:\s{0,20}(\d{1,12})")

_MEMORY = "memory (MB)"
_RESERVED = re.compile(rf"max reserved:\s{{0,20}}({NUMBER})", re.IGNORECASE)
_ALLOCATED = re.compile(rf"max allocated:\s{{0,20}}({NUMBER})", re.IGNORECASE)
_MIB_IN_GIB = 1024

_RULER, _END = "-- arguments --", "-- end of arguments --"
_ARGUMENT = re.compile(r"(?:^|\s)([A-Za-z_]\w{0,99}) \.{1,60} (.*)", re.ASCII)
_MOST_ARGUMENTS = 4000
_VOCABULARY = "padded vocab (size:"
_PADDED = re.compile(r"new size:\s{0,20}(\d{1,12})")


def find(log: Log) -> Found:
    found = Found()
    for line in log.lines(_MARK, "iteration "):
        _read(line, found)
    if found.runs.stretches:
        _mark_start(found.runs.stretches[0])
    for line in log.lines(_MEMORY):
        for _, after in line.around(_MEMORY):
            if reserved := _RESERVED.search(after):
                found.note_peak("reserved", float(reserved.group(1)) / _MIB_IN_GIB)
            if allocated := _ALLOCATED.search(after):
                found.note_peak("allocated", float(allocated.group(1)) / _MIB_IN_GIB)
    return found


def arguments(log: Log) -> Mapping[str, str]:
    """The dump between the rulers as it is printed; of several the last.

    The padded vocabulary is known and printed only after the dump; it is added where the dump does
    not have it.
    """
    read: dict[str, str] = {}
    for line in log.section(_RULER, _END):
        match = _ARGUMENT.search(line.text[:5000])
        if match and (match.group(1) in read or len(read) < _MOST_ARGUMENTS):
            read[match.group(1)] = printable(match.group(2).strip())
    if read and read.get("padded_vocab_size", "None") == "None":
        for line in log.lines(_VOCABULARY):
            if padded := _PADDED.search(line.text[:5000]):
                read["padded_vocab_size"] = padded.group(1)
    return read


def _read(line: Line, found: Found) -> None:
    if _MARK not in line.text:
        if _CUT_OFF.search(line.text[:5000]):
            found.miss(line, "it has no elapsed time")
        return
    for before, after in line.around(_MARK):
        iterations, time = _ITERATION.findall(before), _TIME.match(after)
        if not iterations:
            found.miss(line, "it has no iteration number")
        elif not time or not is_whole(time.group(2), after[time.end() :]):
            found.miss(line, "its elapsed time is no number, or cut off")
        else:
            seconds = float(time.group(2)) / (1000 if time.group(1).lower() == "ms" else 1)
            found.runs.add(_step(line, int(iterations[-1]), seconds, before, after))


def _step(line: Line, iteration: int, seconds: float, before: str, after: str) -> Step:
    loss, batch = _LOSS.search(after), _BATCH.search(after)
    return Step(
        number=iteration,
        value=seconds,
        time=seconds,
        finite=is_finite(loss and loss.group(1)) and not any(map(int, _LOST.findall(after))),
        batch=int(batch.group(1)) if batch else None,
        label=line.label,
        stamp=stamp(before),
    )


def _mark_start(stretch: list[Step]) -> None:
    """The interval with iteration 1 holds the start of the run."""
    interval = stretch[1].number - stretch[0].number if len(stretch) > 1 else 1
    if stretch[0].number <= interval:
        stretch[0] = replace(stretch[0], starting=True)
