"""NeMo 1 and 2: `train_step_timing in s`, of the DLL lines if there are any, else of the others.

What is printed is the mean over the last `buffer_size` steps of the timer
(`exp_manager.step_timing_kwargs`), and while there are fewer, over all so far. By default that is
1, the step's own time; recipes for benchmarks set 5, and then the slow first step is in the first
five values: 44.9, 24.8, 18.1, 14.7, 12.7, 4.68. The window is found from the values: the sums k *
mean(k) grow by the step's own time as long as the window fills, and fall when the first step leaves
it. This is believed only if the own times that follow lie closer, by a factor of two, to the clock
of the DLL lines than the printed values do; where there is no clock, to their own median.

Own times are derived from the DLL lines, which print every digit. The others print three or four,
whose rounding would add up: there the values of the filling window are left out as warm-up and the
rest are taken as they are.

`peak_memory_usage` is the most ever reserved, in bytes; `memory_allocated`, what tensors take just
then, is no peak.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from statistics import fmean, median

from service.formats.logs.lines import NUMBER, Line, Log, is_finite, is_whole, stamp
from service.formats.logs.steps import Found, Step

_MARK = "train_step_timing in s"
_PEAK = "peak_memory_usage"
_VALUE = re.compile(rf"\s{{0,20}}[:=]\s{{0,20}}({NUMBER})(?=[\s,|\]\"\\]|$)(?!,\d)", re.IGNORECASE)
_DLL = re.compile(r"DLL (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?) - (\d{1,12})\s")
_LINE = re.compile(r"\bglobal_step: (\d{1,12})\s")
_BAR = re.compile(r"(\d{1,12})/(?:\d{1,12}|\?) \[\d{1,6}:")
_LOSS = re.compile(rf"reduced_train_loss\s{{0,20}}[:=]\s{{0,20}}({NUMBER})", re.IGNORECASE)
_BATCH = re.compile(r"\bglobal_batch_size\s{0,20}[:=]\s{0,20}(\d{1,12})\b")
_LIST = re.compile(r"\s{0,20}[:=]\s{0,20}\[([^\]]*)(\]?)")


@dataclass(slots=True)
class _Prints:
    """By the form in which they are printed, the most exact first."""

    dll: list[Step] = field(default_factory=list)
    line: list[Step] = field(default_factory=list)
    bar: list[Step] = field(default_factory=list)
    summary: list[Step] = field(default_factory=list)


def find(log: Log) -> Found:
    found, prints = Found(), _Prints()
    for line in log.lines(_MARK):
        for before, after in line.around(_MARK):
            _read(line, before, after, prints, found)
    for line in log.lines(_PEAK):
        for _, after in line.around(_PEAK):
            if peak := _VALUE.match(after):
                found.note_peak("reserved", float(peak.group(1)) / 2**30)
    for step in prints.dll or prints.line or prints.bar or prints.summary:
        found.runs.add(step)
    own = _derived if prints.dll else _settled
    found.runs.stretches = [own(stretch, _window(stretch)) for stretch in found.runs.stretches]
    return found


def _read(line: Line, before: str, after: str, prints: _Prints, found: Found) -> None:
    if values := _LIST.match(after):
        prints.summary = prints.summary or _listed(values)
        return
    value = _VALUE.match(after)
    if not value or not is_whole(value.group(1), after[value.end() :]):
        found.miss(line, "its timing is no number, or cut off")
        return
    seconds, loss, batch = float(value.group(1)), _LOSS.search(before), _last(_BATCH, before)
    step = Step(
        number=0,
        value=seconds,
        time=seconds,
        finite=is_finite(loss and loss.group(1)),
        batch=int(batch.group(1)) if batch else None,
        label=line.label,
        stamp=stamp(before),
    )
    if printed := _last(_DLL, before):
        prints.dll.append(
            replace(_numbered(step, int(printed.group(2))), clock=_clock(printed.group(1)))
        )
    elif index := _last(_LINE, before):
        prints.line.append(_numbered(step, int(index.group(1))))
    elif bar := _last(_BAR, before):
        _update(prints.bar, _numbered(step, int(bar.group(1)) - 1))
    else:
        found.miss(line, "it has no step number")


def _numbered(step: Step, index: int) -> Step:
    return replace(step, number=index, starting=index == 0)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = list(pattern.finditer(text))
    return found[-1] if found else None


def _update(bar: list[Step], step: Step) -> None:
    """A bar that advances is drawn first with the values of the step before, then with its own."""
    if bar and bar[-1].number == step.number:
        bar.pop()
    bar.append(step)


def _listed(values: re.Match[str]) -> list[Step]:
    """The list that closes a run; the last value is dropped where the list is cut off."""
    printed = values.group(1).split(",")[: None if values.group(2) else -1]
    if not all(re.fullmatch(rf"\s*(?:{NUMBER})\s*", value, re.IGNORECASE) for value in printed):
        return []
    times = enumerate(map(float, printed))
    return [Step(number=index, value=time, time=time, starting=index == 0) for index, time in times]


def _clock(printed: str) -> float | None:
    try:
        return (datetime.fromisoformat(printed) - datetime.min).total_seconds()
    except ValueError:
        return None


def _derived(stretch: Sequence[Step], window: int) -> list[Step]:
    times = _undone([step.time for step in stretch], window)
    return [replace(step, value=time, time=time) for step, time in zip(stretch, times, strict=True)]


def _settled(stretch: Sequence[Step], window: int) -> list[Step]:
    filling = window if window > 1 else 0
    return [
        replace(step, starting=step.starting or index < filling)
        for index, step in enumerate(stretch)
    ]


def _window(stretch: Sequence[Step]) -> int:
    """Steps that a printed value is the mean of."""
    means, clocks = [step.time for step in stretch], [step.clock for step in stretch]
    consecutive = all(later.number == step.number + 1 for step, later in pairwise(stretch))
    if not consecutive or not all(step.is_believable for step in stretch):
        return 1
    falls = (k - 1 for k in range(2, len(means) + 1) if k * means[k - 1] <= (k - 1) * means[k - 2])
    window = next(falls, len(means))
    return window if _error(_undone(means, window), clocks) < _error(means, clocks) / 2 else 1


def _undone(means: Sequence[float], window: int) -> list[float]:
    """The values whose means over the last `window` these are."""
    if window == 1:
        return list(means)
    own: list[float] = []
    total = 0.0
    for index, mean in enumerate(means):
        before, total = total, mean * min(index + 1, window)
        own.append(total - before + (own[index - window] if index >= window else 0.0))
    return own


def _error(times: Sequence[float], clocks: Sequence[float | None]) -> float:
    """How far the times after the first are from the clock; where there is none, from their
    median."""
    between = [
        later - clock
        for clock, later in pairwise(clocks)
        if clock is not None and later is not None
    ]
    rest = times[1:]
    if not rest or len(between) < len(rest) < 2:
        return math.inf
    expected = between if len(between) == len(rest) else [median(rest)] * len(rest)
    return fmean(abs(time - reference) for time, reference in zip(rest, expected, strict=True))
