"""Logs of ms-swift, of its Trainer (swift/trainers/patcher.py) and of Megatron-SWIFT
(swift/megatron/callbacks/print.py). Each line has the step, `train_speed(s/it)`, which is the mean
of all steps since the run began, and the most memory that was reserved. Earlier releases print the
inverse, `train_speed(iter/s)`.

The step's own time is how much the product of the number of steps and their mean has grown since
the line before. A run that was resumed counts its steps from where it began, which is told by the
time that has gone by.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from service.formats.logs.lines import NUMBER, Line, Log, is_finite
from service.formats.logs.progress import span_s
from service.formats.logs.steps import Findings, Step

_MARK = "train_speed("
_SPEED = re.compile(rf"(s/it|iter/s)\)['\"]: ['\"]?({NUMBER})(?=['\",\s}}]|$)", re.IGNORECASE)
_NUMBER = re.compile(
    r"['\"](?:global_step/max_steps|iteration)['\"]: ['\"](\d{1,12})/\d{1,12}['\"]"
)
_ELAPSED = re.compile(r"['\"]elapsed_time['\"]: ['\"]([^'\"]{1,40})['\"]")
_LOSS = re.compile(rf"['\"](?:lm )?loss['\"]: ['\"]?({NUMBER})", re.IGNORECASE)
_MEMORY_MARK = "memory(GiB)"
_MEMORY = re.compile(rf"['\"]: ['\"]?({NUMBER})", re.IGNORECASE)
_RESUMED_SHARE = 0.02
"""A run counts as resumed where elapsed time / mean time gives fewer steps than the step number, by
more than this share. The rounding of both times makes up less."""


@dataclass(frozen=True, slots=True)
class _Printed:
    """A line with the mean time of the steps so far."""

    line: Line
    number: int
    mean_s: float
    elapsed_s: float | None
    finite: bool

    @property
    def resumed_from(self) -> int:
        """Returns the step from which the run was resumed; 0 for a run from the start. The
        printed mean covers only the steps since then."""
        if not self.elapsed_s or not self.mean_s:
            return 0
        # A run that was resumed has done fewer steps in its time than its step number says.
        steps = self.elapsed_s / self.mean_s
        return round(self.number - steps) if steps < self.number * (1 - _RESUMED_SHARE) else 0


def find(log: Log) -> Findings:
    """Returns the steps of an ms-swift log, and its memory peaks. Each line prints the mean over
    all steps so far, from which the mean between two lines is computed."""
    findings = Findings()
    printed = list[_Printed]()
    for line, before, after in log.around(_MARK):
        number = _NUMBER.search(before + after)
        speed = _SPEED.match(after)
        if number is None or speed is None:
            findings.add_unread(line, "it has no step and speed, or they are cut off")
        elif float(speed[2]) > 0:  # a speed of 0 tells no time
            printed.append(_read_printed(line, int(number[1]), speed, before))
    findings.find_peaks(log, _MEMORY_MARK, _MEMORY, "reserved")
    if printed:  # the mean of the first line has the slow first step in it
        findings.history.add(_step(printed[0], printed[0].mean_s, is_start=True))
    for earlier, later in pairwise(printed):
        findings.history.add(_own_step(earlier, later))
    return findings


def _read_printed(line: Line, number: int, speed: re.Match[str], before: str) -> _Printed:
    """Returns what a line prints: its step number and the mean step time, in seconds, up to it."""
    value = float(speed[2])
    elapsed = _ELAPSED.search(before)
    return _Printed(
        line=line,
        number=number,
        mean_s=value if speed[1].lower() == "s/it" else 1 / value,
        elapsed_s=span_s(elapsed[1]) if elapsed else None,
        finite=is_finite(_LOSS.search(before)),
    )


def _own_step(earlier: _Printed, later: _Printed) -> Step:
    """Returns the mean of the steps between two lines. A step number that does not grow shows a
    restart; the mean that the later line prints is then taken as it is."""
    steps = later.number - earlier.number
    if steps <= 0:
        return _step(later, later.mean_s, is_start=True)
    start = later.resumed_from
    # A printed mean is over all steps since `start`: times their number, it is seconds so far.
    until_later_s = (later.number - start) * later.mean_s
    until_earlier_s = (earlier.number - start) * earlier.mean_s
    return _step(later, (until_later_s - until_earlier_s) / steps)


def _step(printed: _Printed, seconds: float, *, is_start: bool = False) -> Step:
    """Returns a step of `seconds` with the number, label and timestamp of its line. A timestamp
    stands in the first characters."""
    return Step.printed(
        printed.line,
        printed.line.text[:200],
        seconds=seconds,
        number=printed.number,
        finite=printed.finite,
        is_start=is_start,
    )
