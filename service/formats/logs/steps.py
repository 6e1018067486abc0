"""The steps of a log, and the stretches between restarts that they form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Literal

from service.formats.logs.lines import Line, Unread

MemoryKind = Literal["reserved", "allocated"]

_MOST_UNREAD = 20
_LONGEST_S = 1e9
_MOST_GIB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`value` is in the unit of the log and `time` grows with the step time. `finite`: neither is
    NaN, nor the loss.

    `starting`: the start of a run is in it. Where known, `batch`: sequences, `tokens`: of a device,
    `clock`: seconds at which it was printed, `stamp`: the date and time printed beside it.
    """

    number: int
    value: float
    time: float
    finite: bool = True
    starting: bool = False
    batch: int | None = None
    tokens: float | None = None
    label: str = ""
    clock: float | None = None
    stamp: datetime | None = None

    @property
    def is_believable(self) -> bool:
        return self.finite and math.isfinite(self.time) and self.time < _LONGEST_S


@dataclass(slots=True)
class Runs:
    """Stretches in which the step number only grows. `repeated` steps were printed again, by
    another rank perhaps."""

    stretches: list[list[Step]] = field(default_factory=list)
    repeated: int = 0
    _last: dict[str, int] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)

    def add(self, step: Step) -> None:
        if not self.stretches or step.number < self._last.get(step.label, 0):
            self.stretches.append([])
            self._last, self._seen = {}, set()
        self._last[step.label] = step.number
        if step.number in self._seen:
            self.repeated += 1
        else:
            self.stretches[-1].append(step)
            self._seen.add(step.number)

    @property
    def steps(self) -> Iterator[Step]:
        return chain.from_iterable(self.stretches)

    @property
    def count(self) -> int:
        """Of steps found, repeated ones too."""
        return sum(map(len, self.stretches)) + self.repeated

    @property
    def only_falls(self) -> bool:
        """Whether each step number is below the last one."""
        return len(self.stretches) == self.count > 2


@dataclass(slots=True)
class Found:
    """What a dialect finds in a log: steps, lines it could not read, peaks of memory in GiB."""

    runs: Runs = field(default_factory=Runs)
    unread: list[Unread] = field(default_factory=list)
    peaks: dict[MemoryKind, float] = field(default_factory=dict)

    def miss(self, line: Line, reason: str) -> None:
        if len(self.unread) < _MOST_UNREAD:
            self.unread.append(Unread.of(line, reason))

    def note_peak(self, kind: MemoryKind, gib: float) -> None:
        if 0 < gib < _MOST_GIB:
            self.peaks[kind] = max(gib, self.peaks.get(kind, 0.0))
