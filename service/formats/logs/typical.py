"""Which steps say how long a step takes, and why the others do not.

Left out are what is not finite, steps of another batch size than is asked for (a ramp-up), the
first step of a run and of each restart, and what lies far from the median of its level (levels.py):
steps of less than half of it (the clock ran ahead of the device), and steps above it by a fifth and
by five robust standard deviations (a checkpoint, an evaluation, a pause). Slow steps that lead a
run are its warm-up; so is all that comes before a clock which ran ahead among the first few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from statistics import median
from typing import Literal

from service.formats.logs.levels import stretches
from service.formats.logs.steps import Runs, Step

Reason = Literal["not_finite", "other_batch", "warm_up", "slow", "too_fast"]
Verdicts = list[Reason | None]

_FEW = 5
_TOO_FAST = 0.5
_SLOW = 0.2
_DEVIATIONS = (
    5 * 1.4826
)  # a median absolute deviation is a standard deviation of normal noise / 1.4826


@dataclass(frozen=True, slots=True)
class Selection:
    """`batch`: sequences of the steps used, where they are printed."""

    used: tuple[Step, ...]
    left_out: Mapping[str, int]
    batch: int | None


@dataclass(frozen=True, slots=True)
class _Usual:
    fastest: float
    slowest: float

    @classmethod
    def among(cls, times: Sequence[float]) -> _Usual:
        middle = median(times)
        deviation = median(abs(time - middle) for time in times)
        return cls(_TOO_FAST * middle, middle + max(_DEVIATIONS * deviation, _SLOW * middle))

    def verdict(self, step: Step) -> Reason | None:
        if step.time < self.fastest:
            return "too_fast"
        return "slow" if step.time > self.slowest else None


def select(runs: Runs, asked: int | None = None) -> Selection:
    """`asked`: sequences of the steps that are wanted; without it, or where no step has as many,
    those of most."""
    batch = _batch(runs, asked)
    judged = [
        list(_evident(stretch, index > 0, batch)) for index, stretch in enumerate(runs.stretches)
    ]
    usual = _usual([step.time for step, verdict in _pairs(runs, judged) if verdict is None])
    judged = [
        _settled(stretch, verdicts, usual)
        for stretch, verdicts in zip(runs.stretches, judged, strict=True)
    ]
    used = tuple(step for step, verdict in _pairs(runs, judged) if verdict is None)
    left_out = Counter[str](verdict for _, verdict in _pairs(runs, judged) if verdict)
    left_out["repeated"] = runs.repeated
    return Selection(used, {reason: count for reason, count in left_out.items() if count}, batch)


def _pairs(runs: Runs, judged: Sequence[Verdicts]) -> Iterator[tuple[Step, Reason | None]]:
    return zip(runs.steps, chain.from_iterable(judged), strict=True)


def _batch(runs: Runs, asked: int | None) -> int | None:
    """None where none is printed."""
    sizes = Counter(step.batch for step in runs.steps if step.batch is not None)
    if asked in sizes:
        return asked
    return sizes.most_common(1)[0][0] if sizes else None


def _usual(times: Sequence[float]) -> Iterator[_Usual]:
    """For each step what is usual at its level."""
    for level in stretches(times) if times else ():
        yield from repeat(_Usual.among(times[level]), level.stop - level.start)


def _evident(
    stretch: Sequence[Step], restarted: bool, batch: int | None
) -> Iterator[Reason | None]:
    """What can be said of each step without the others."""
    for index, step in enumerate(stretch):
        if not step.is_believable:
            yield "not_finite"
        elif step.batch not in (None, batch):
            yield "other_batch"
        elif step.starting or (restarted and index == 0):
            yield "warm_up"
        else:
            yield "too_fast" if step.time <= 0 else None


def _settled(stretch: Sequence[Step], evident: Verdicts, usual: Iterator[_Usual]) -> Verdicts:
    """With what the others tell: slow steps that lead are warm-up, and so is all before the clock
    came to rest."""
    verdicts = [
        verdict or next(usual).verdict(step) for step, verdict in zip(stretch, evident, strict=True)
    ]
    early = [index for index, verdict in enumerate(verdicts[:_FEW]) if verdict == "too_fast"]
    rested = early[-1] + 1 if early and None in verdicts[early[-1] :] else 0
    begun = next(
        (index for index in range(rested, len(verdicts)) if verdicts[index] is None), len(verdicts)
    )
    warm: Verdicts = [
        "warm_up" if verdict in (None, "slow") else verdict for verdict in verdicts[:begun]
    ]
    return warm + verdicts[begun:]
