"""Selects the steps that say how long a step takes, and says why the others do not.

The *verdict* on a step is the reason to leave it out; None means that it is used. An *attempt* is
the steps between two restarts. A *speed regime* is a stretch of steps that keep one speed.

Left out are steps that are not finite, steps of a ramp-up (which the log marks, or which are of
another batch size than is asked for), the first step of a run and of each restart, and steps far
from the median of their speed regime: those that take less than half of it (the clock ran ahead of
the device), and those above it by a fifth and by five robust standard deviations (a checkpoint, an
evaluation, a pause). Slow steps at the beginning of a run are its warm-up. So are all steps before
the last of the first five steps at which the clock ran ahead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from statistics import median
from typing import Literal

from service.formats.logs.speed_regimes import speed_regimes
from service.formats.logs.steps import Step, StepHistory

Reason = Literal["not_finite", "ramp_up", "other_batch", "warm_up", "slow", "too_fast"]
Verdicts = list[Reason | None]

_FIRST_STEPS = 5  # at most so many steps after a start does the clock run ahead
_TOO_FAST = 0.5  # of the median: no step does its work in half the time of the others
_SLOW = 0.2  # of the median, at least: steadier runs than most have noise of some percent
# The median absolute deviation of normal noise is its standard deviation / 1.4826.
_DEVIATIONS = 5 * 1.4826


@dataclass(frozen=True, slots=True)
class Selection:
    used: tuple[Step, ...]
    left_out: Mapping[str, int]
    """The number of steps left out for each reason."""
    batch: int | None
    """Sequences of the steps used, where they are printed."""


@dataclass(frozen=True, slots=True)
class _NormalTimes:
    """The step times that are normal in a speed regime."""

    fastest: float
    slowest: float

    @classmethod
    def of(cls, times: Sequence[float]) -> _NormalTimes:
        """Returns the range of normal step times around the median of these times."""
        middle = median(times)
        deviation = median(abs(time - middle) for time in times)
        # Faster is an error of the clock. Slower exceeds both the noise of this run and a fifth.
        return cls(_TOO_FAST * middle, middle + max(_DEVIATIONS * deviation, _SLOW * middle))

    def verdict(self, step: Step) -> Reason | None:
        """Returns the reason why a step is not normal, "too_fast" or "slow"; None where it is."""
        if step.time < self.fastest:
            return "too_fast"
        return "slow" if step.time > self.slowest else None


def select(history: StepHistory, requested_batch: int | None = None) -> Selection:
    """Returns the steps to use, and the number of others by reason. Steps of `requested_batch`
    sequences are used, or else, without it or without such steps, those of the most frequent
    batch."""
    batch = _batch_size_to_use(history, requested_batch)
    # A verdict is the reason to leave a step out, or None. Every attempt after the first follows a
    # restart.
    verdicts = [
        list(_own_verdicts(attempt, index > 0, batch))
        for index, attempt in enumerate(history.attempts)
    ]
    # What is normal is told by steps that nothing else speaks against.
    candidates = [step for step, verdict in _with_verdicts(history, verdicts) if verdict is None]
    normal = _normal_times([step.time for step in candidates])
    verdicts = [
        _verdicts_in_context(attempt, own_verdicts, normal)
        for attempt, own_verdicts in zip(history.attempts, verdicts, strict=True)
    ]
    used = tuple(step for step, verdict in _with_verdicts(history, verdicts) if verdict is None)
    left_out = Counter[str](verdict for _, verdict in _with_verdicts(history, verdicts) if verdict)
    left_out["repeated"] = history.repeated  # these are in no attempt, and have no verdict
    return Selection(used, {reason: count for reason, count in left_out.items() if count}, batch)


def _with_verdicts(
    history: StepHistory, verdicts: Sequence[Verdicts]
) -> Iterator[tuple[Step, Reason | None]]:
    """Yields each step with its verdict. `verdicts` has a list for each attempt."""
    return zip(history.steps, chain.from_iterable(verdicts), strict=True)


def _batch_size_to_use(history: StepHistory, requested_batch: int | None) -> int | None:
    """Returns the batch size of the steps to use, in sequences: the requested one if any step has
    it, else the most frequent. None where no step prints a batch size."""
    sizes = Counter(step.batch for step in history.steps if step.batch is not None)
    if requested_batch in sizes:
        return requested_batch
    return sizes.most_common(1)[0][0] if sizes else None


def _normal_times(times: Sequence[float]) -> Iterator[_NormalTimes]:
    """Yields, for each time, the range of normal times in its speed regime."""
    for regime in speed_regimes(times) if times else ():
        yield from repeat(_NormalTimes.of(times[regime]), regime.stop - regime.start)


def _own_verdicts(
    attempt: Sequence[Step], restarted: bool, batch: int | None
) -> Iterator[Reason | None]:
    """Yields, for each step of an attempt, the reason to leave it out that shows without the
    other steps, or None. `restarted` says that the attempt follows a restart, and `batch` is the
    batch to use."""
    for index, step in enumerate(attempt):
        if not step.is_believable:
            yield "not_finite"
        elif step.is_ramp_up:
            yield "ramp_up"
        elif step.batch not in (None, batch):
            yield "other_batch"
        elif step.is_start or (restarted and index == 0):
            yield "warm_up"
        else:  # a difference of two printed means may even be negative
            yield "too_fast" if step.time <= 0 else None


def _verdicts_in_context(
    attempt: Sequence[Step], own_verdicts: Verdicts, normal_times: Iterator[_NormalTimes]
) -> Verdicts:
    """Returns the verdicts of an attempt, with other steps taken into account. Slow steps at its
    beginning become warm-up. So do all steps before the last of the first five that are too fast,
    because the clock ran ahead. `normal_times` yields an item for each step without a verdict of
    its own."""
    verdicts = [
        verdict or next(normal_times).verdict(step)
        for step, verdict in zip(attempt, own_verdicts, strict=True)
    ]
    clock_ahead = [
        index for index, verdict in enumerate(verdicts[:_FIRST_STEPS]) if verdict == "too_fast"
    ]
    search_from = 0
    # Where no usable step follows, those before the fast one are all there is.
    if clock_ahead and None in verdicts[clock_ahead[-1] :]:
        search_from = clock_ahead[-1] + 1
    usable = (index for index in range(search_from, len(verdicts)) if verdicts[index] is None)
    first_usable = next(usable, len(verdicts))
    leading: Verdicts = [
        "warm_up" if verdict in (None, "slow") else verdict for verdict in verdicts[:first_usable]
    ]
    return leading + verdicts[first_usable:]
