"""Logs of NeMo 1 and 2, which print `train_step_timing in s`: in lines of the DLL logger, in lines
of their own, in a progress bar, or as one list at the end. The first of these forms that a log has
is read, since it is the most exact.

What is printed is the mean over the last `buffer_size` steps of the timer
(`exp_manager.step_timing_kwargs`), or over all steps so far while there are fewer. By default
`buffer_size` is 1, so that a step's own time is printed. Recipes for benchmarks set 5, and then the
slow first step is in the first five values: 44.9, 24.8, 18.1, 14.7, 12.7, 4.68. The window is found
from the values. As long as it fills, the sums k * mean(k) grow by the step's own time, and they
fall when the first step leaves it. This is believed only if the own times that follow lie closer,
by a factor of two, to the clock of the DLL lines than the printed values do; where there is no
clock, to their own median.

Own times are derived from DLL lines only, which print every digit. The other forms print three or
four, whose rounding would add up: there the values of the filling window are left out as warm-up,
and the rest are taken as they are.

`peak_memory_usage` and `max_memory_reserved` are the most that was ever reserved, in bytes, and
`max_memory_allocated` the most that tensors took. `memory_allocated` is what they take just then,
which is no peak.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from statistics import fmean, median

from service.formats.logs.lines import NUMBER, Line, Log, is_finite, is_printed_in_full
from service.formats.logs.steps import Findings, MemoryKind, Step

_MARK = "train_step_timing in s"
_PEAKS: dict[str, MemoryKind] = {
    "peak_memory_usage": "reserved",
    "max_memory_reserved": "reserved",
    "max_memory_allocated": "allocated",
}
_VALUE = re.compile(rf"\s{{0,20}}[:=]\s{{0,20}}({NUMBER})(?=[\s,|\]\"\\]|$)(?!,\d)", re.IGNORECASE)
_DLL = re.compile(r"DLL (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?) - (\d{1,12})\s")
_LINE = re.compile(r"\bglobal_step: (\d{1,12})\s")
_BAR = re.compile(r"(\d{1,12})/(?:\d{1,12}|\?) \[\d{1,6}:")
_LOSS = re.compile(rf"reduced_train_loss\s{{0,20}}[:=]\s{{0,20}}({NUMBER})", re.IGNORECASE)
_BATCH = re.compile(r"\bglobal_batch_size\s{0,20}[:=]\s{0,20}(\d{1,12})\b")
_LIST = re.compile(r"\s{0,20}[:=]\s{0,20}\[([^\]]*)(\]?)")


@dataclass(slots=True)
class _Prints:
    """The steps by the form in which they are printed, the most exact first."""

    dll: list[Step] = field(default_factory=list)
    line: list[Step] = field(default_factory=list)
    bar: list[Step] = field(default_factory=list)
    summary: list[Step] = field(default_factory=list)


def find(log: Log) -> Findings:
    """Returns the steps of a NeMo log, in the most exact form in which it prints them, and its
    memory peaks."""
    findings = Findings()
    prints = _Prints()
    for line, before, after in log.around(_MARK):
        _read(line, before, after, prints, findings)
    for mark, kind in _PEAKS.items():
        findings.find_peaks(log, mark, _VALUE, kind, per_gib=2**30)  # printed in bytes
    for step in prints.dll or prints.line or prints.bar or prints.summary:
        findings.history.add(step)
    # Only DLL lines print every digit, from which a step's own time can be derived.
    adjust = _with_own_times if prints.dll else _with_marked_warm_up
    history = findings.history
    history.attempts = [adjust(attempt, _window_size(attempt)) for attempt in history.attempts]
    return findings


def _read(line: Line, before: str, after: str, prints: _Prints, findings: Findings) -> None:
    """Adds a printed step time to the list in `prints` of the form that its line has, such as the
    bar of "Epoch 0: 3/50 [00:12<03:10, reduced_train_loss=9.8, train_step_timing in s=4.68]". Notes
    that a line could not be read."""
    if values := _LIST.match(after):  # the times of all steps, at the end of the run
        prints.summary = prints.summary or _listed_steps(line, values)
        return
    value = _VALUE.match(after)
    if not value or not is_printed_in_full(value.group(1), after[value.end() :]):
        findings.add_unread(line, "its timing is no number, or cut off")
        return
    seconds = float(value.group(1))
    batch = _last_match(_BATCH, before)
    step = Step.printed(
        line,
        before,
        seconds=seconds,
        number=0,  # each form prints it elsewhere: see below
        finite=is_finite(_LOSS.search(before)),
        batch=int(batch.group(1)) if batch else None,
    )
    if printed := _last_match(_DLL, before):
        prints.dll.append(
            replace(_numbered(step, int(printed.group(2))), clock=_clock_s(printed.group(1)))
        )
    elif index := _last_match(_LINE, before):
        prints.line.append(_numbered(step, int(index.group(1))))
    elif bar := _last_match(_BAR, before):
        # A bar counts finished steps, the other forms count from 0.
        _add_bar_step(prints.bar, _numbered(step, int(bar.group(1)) - 1))
    else:
        findings.add_unread(line, "it has no step number")


def _numbered(step: Step, index: int) -> Step:
    return replace(step, number=index, is_start=index == 0)


def _last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    matches = list(pattern.finditer(text))
    return matches[-1] if matches else None


def _add_bar_step(bar: list[Step], step: Step) -> None:
    """Adds a step of a progress bar, in place of one with its number: an advancing bar is drawn
    first with the values of the step before, then with its own. The step keeps its first line,
    since a bar is also drawn once more when its process ends."""
    if bar and bar[-1].number == step.number:
        step = replace(step, line=bar.pop().line)
    bar.append(step)


def _listed_steps(line: Line, values: re.Match[str]) -> list[Step]:
    """Returns the steps of the list at the end of a run, "train_step_timing in s: [44.9, 4.7,
    4.7]". The last value of a list that is cut off may be cut too, and is dropped."""
    # Group 1 is the list, and group 2 the bracket that closes it.
    printed = values.group(1).split(",")[: None if values.group(2) else -1]
    if not all(re.fullmatch(rf"\s*(?:{NUMBER})\s*", value, re.IGNORECASE) for value in printed):
        return []
    times = enumerate(map(float, printed))
    return [
        Step(number=index, line=line.number, value=time, time=time, is_start=index == 0)
        for index, time in times
    ]


def _clock_s(printed: str) -> float | None:
    """Returns a printed time as seconds since year 1, of which only differences are used; None
    where it is no time."""
    try:
        return (datetime.fromisoformat(printed) - datetime.min).total_seconds()
    except ValueError:
        return None


def _with_own_times(attempt: Sequence[Step], window: int) -> list[Step]:
    """Returns an attempt, the steps between two restarts, in which steps have their own times in
    place of means over a window."""
    times = _own_times([step.time for step in attempt], window)
    return [replace(step, value=time, time=time) for step, time in zip(attempt, times, strict=True)]


def _with_marked_warm_up(attempt: Sequence[Step], window: int) -> list[Step]:
    """Returns an attempt in which every step whose printed mean, over the last `window` steps,
    includes the slow first step is marked as a start, so that it is left out as warm-up."""
    filling = window if window > 1 else 0  # with 1 each step prints its own time
    return [
        replace(step, is_start=step.is_start or index < filling)
        for index, step in enumerate(attempt)
    ]


def _window_size(attempt: Sequence[Step]) -> int:
    """Returns the number of steps over which a printed value is the mean, as deduced from the
    values; 1 where they do not show it clearly. The module's docstring has the reasoning."""
    means = [step.time for step in attempt]
    clocks = [step.clock for step in attempt]
    consecutive = all(later.number == step.number + 1 for step, later in pairwise(attempt))
    if not consecutive or not all(step.is_believable for step in attempt):
        return 1
    # While a window fills, count * mean is the time of all steps so far, which only grows. It falls
    # once the window drops steps.
    sums = [count * mean for count, mean in enumerate(means, 1)]
    falls = (count for count, (total, later) in enumerate(pairwise(sums), 1) if later <= total)
    window = next(falls, len(means))
    error = _distance_from_clock(_own_times(means, window), clocks)
    # Noise alone may make some window fit a little better.
    return window if error < _distance_from_clock(means, clocks) / 2 else 1


def _own_times(means: Sequence[float], window: int) -> list[float]:
    """Returns the time of each single step, given `means` over the last `window` steps."""
    if window == 1:
        return list(means)
    times: list[float] = []
    total = 0.0
    for index, mean in enumerate(means):
        previous_total = total
        total = mean * min(index + 1, window)  # of the steps in the window, which fills first
        dropped = times[index - window] if index >= window else 0.0
        # The sum over the window grows by the new step, and falls by the one that left the window.
        times.append(total - previous_total + dropped)
    return times


def _distance_from_clock(times: Sequence[float], clocks: Sequence[float | None]) -> float:
    """Returns the mean distance, in seconds, of step times from the intervals of the clock, or
    from the median of the times where some step has no clock. The first step, which is slow, does
    not count. Returns infinity where there are too few times to compare."""
    intervals = [
        later - earlier
        for earlier, later in pairwise(clocks)
        if earlier is not None and later is not None
    ]
    later_times = times[1:]
    has_clock = len(intervals) == len(later_times)
    if not later_times or (len(later_times) == 1 and not has_clock):
        return math.inf
    expected = intervals if has_clock else [median(later_times)] * len(later_times)
    return fmean(abs(time - other) for time, other in zip(later_times, expected, strict=True))
