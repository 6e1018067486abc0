"""The steps of a log, and the attempts between restarts that they belong to.

A *dialect* is the form in which one framework prints its steps; its module fills `Findings`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Literal

from service.formats.logs.lines import Line, Log, Unread, parse_timestamp

MemoryKind = Literal["reserved", "allocated"]

_RANKS_APART = timedelta(seconds=10)
"""Ranks print a step within seconds of each other. A restart, which loads a checkpoint, takes
longer."""
_SAME_SPEED = 0.1  # of a step's time, by which ranks differ that wait for each other
_MAX_UNREAD = 20  # enough to see what the lines have in common
_MAX_STEP_S = 1e9  # thirty years: longer ones are no times
_MAX_GIB = 1e6  # a thousand times what a device has: larger ones are no memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step, or the mean of the steps since the last line, as a log prints it."""

    number: int
    line: int
    """The line of the log that it is printed in, from 1."""
    value: float
    """In the unit of the log."""
    time: float
    """Grows with the step time, whatever the unit."""
    finite: bool = True
    """Neither the value nor the loss is NaN or infinite."""
    is_start: bool = False
    """The start of a run is in it."""
    is_ramp_up: bool = False
    """The log says that its batch is still growing."""
    batch: int | None = None
    """Sequences, if printed."""
    tokens: float | None = None
    """The tokens of one device, if known."""
    flops_per_token: float | None = None
    """FLOPs of the model for a token, if printed rates tell."""
    label: str = ""
    """The label of the rank or pod that printed it."""
    clock: float | None = None
    """Seconds at which it was printed, from any origin."""
    timestamp: datetime | None = None
    """The date and time printed beside it."""

    @classmethod
    def printed(cls, line: Line, head: str, *, seconds: float, **fields: Any) -> Step:
        """Returns the step that a line prints with its time in seconds. `head` is the part of the
        line in front of the time, in which a timestamp may stand. `fields` are other fields of the
        step, its number among them."""
        return cls(
            line=line.number,
            value=seconds,
            time=seconds,
            label=line.label,
            timestamp=parse_timestamp(head),
            **fields,
        )

    @property
    def is_believable(self) -> bool:
        """Returns True where loss and time are finite, and the time is one that a step can take."""
        return self.finite and math.isfinite(self.time) and self.time < _MAX_STEP_S


@dataclass(slots=True)
class StepHistory:
    """The steps of a log in attempts: a new one starts where the step number goes back, as after a
    restart from a checkpoint."""

    attempts: list[list[Step]] = field(default_factory=list)
    repeated: int = 0
    """Steps that an attempt printed again, perhaps by another rank."""
    _last_number: dict[str, int] = field(default_factory=dict)
    """The number of the attempt's last step by its label: lines of one label alone are in order."""
    _seen: dict[int, Step] = field(default_factory=dict)
    """The attempt's steps by number."""

    def add(self, step: Step) -> None:
        """Adds a step to the last attempt. A step number that goes back begins a new attempt,
        and one that has been seen counts as repeated."""
        # A label names the rank that prints. Ranks print out of step with each other, so a number
        # is compared only with the last one of its own rank.
        last_number = self._last_number.get(step.label, 0)
        if self._is_of_another_rank(step, last_number):
            self.repeated += 1
            return
        if not self.attempts or step.number < last_number:
            self.attempts.append([])
            self._last_number = {}
            self._seen = {}
        self._last_number[step.label] = step.number
        if step.number in self._seen:
            self.repeated += 1
        else:
            self.attempts[-1].append(step)
            self._seen[step.number] = step

    def _is_of_another_rank(self, step: Step, last_number: int) -> bool:
        """Returns whether a step without a label was printed by another rank than the same step
        before it, and not after a restart, whose first step is slow: it is as fast, and printed at
        the same time of day, or, where that is not known, one step late."""
        earlier = self._seen.get(step.number)
        if step.label or earlier is None or step.number >= last_number:
            return False
        if abs(step.time - earlier.time) > _SAME_SPEED * earlier.time:
            return False
        if step.timestamp is None or earlier.timestamp is None:
            return step.number == last_number - 1
        # Clocks of one log have the same zone, even where only some lines print it.
        later_by = step.timestamp.replace(tzinfo=None) - earlier.timestamp.replace(tzinfo=None)
        return abs(later_by) <= _RANKS_APART

    def scale(self, factor: float) -> None:
        """Multiplies the time of every step by a factor: by the samples of a step, where the log
        prints the time of one sample."""
        self.attempts = [
            [replace(step, value=step.value * factor, time=step.time * factor) for step in attempt]
            for attempt in self.attempts
        ]

    @property
    def steps(self) -> Iterator[Step]:
        return chain.from_iterable(self.attempts)

    @property
    def count(self) -> int:
        """Returns the number of steps found, repeated ones included."""
        return sum(map(len, self.attempts)) + self.repeated

    @property
    def is_reversed(self) -> bool:
        """Returns True where step numbers only fall, because the log has its newest lines first.
        Every step then begins an attempt. Two steps may do so by a restart between them."""
        return len(self.attempts) == self.count > 2


@dataclass(slots=True)
class Findings:
    """Findings of one dialect in a log: steps, lines that it could not read, and peaks of memory in
    GiB."""

    history: StepHistory = field(default_factory=StepHistory)
    unread: list[Unread] = field(default_factory=list)
    peaks: dict[MemoryKind, float] = field(default_factory=dict)
    in_samples: bool = False
    """Steps have the time of one sample, since the log does not say how many a step has."""
    used_memory_share: float | None = None
    """The largest share of its memory that a device had in use, where that alone is printed."""
    earlier_runs: int = 0
    """The number of runs in the log before the one that the steps are of."""

    def add_unread(self, line: Line, reason: str) -> None:
        """Notes a line that looks like a step and could not be read; only the first few are
        kept."""
        if len(self.unread) < _MAX_UNREAD:
            self.unread.append(Unread.of(line, reason))

    def update_peak(self, kind: MemoryKind, gib: float) -> None:
        """Raises the peak of this kind of memory to `gib`. Impossible values are ignored."""
        if 0 < gib < _MAX_GIB:
            self.peaks[kind] = max(gib, self.peaks.get(kind, 0.0))

    def find_peaks(
        self,
        log: Log,
        mark: str,
        value: re.Pattern[str],
        kind: MemoryKind,
        *,
        per_gib: float = 1,
    ) -> None:
        """Raises the peak of this kind of memory to the largest value behind a `mark`. `per_gib`
        is the number of printed units in a GiB."""
        for _, _, after in log.around(mark):
            if match := value.match(after):
                self.update_peak(kind, float(match[1]) / per_gib)

    def update_used_memory_share(self, share: float) -> None:
        """Raises the used share of the device's memory. Impossible values are ignored."""
        if 0 < share <= 1:
            self.used_memory_share = max(share, self.used_memory_share or 0.0)
