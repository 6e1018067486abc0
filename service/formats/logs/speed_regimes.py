"""Finds the regimes of a run's speed: long segments of steps that keep one speed, which differs
from that of their neighbours.

The change points are those of models.calibration.drift that change the speed by 3% or more, and
less than tenfold (a clock that runs ahead of the device is no speed). A segment between them is a
regime of its own only if it is steady: three quarters of its steps lie within a fifth of their
median, its halves differ by at most 5%, and it has ten steps or a tenth of all. So neither pauses
between steps nor a warm-up that falls from step to step make one. Such segments belong to the
regime before them, or to the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from models.calibration.drift import level_changes
from models.columns import Array

_MAX_POINTS = 2000  # place a change to a thousandth of the log, within a second
_MIN_LOG_CHANGE = np.log1p(0.03)
_MAX_LOG_CHANGE = np.log(10)
_MIN_STEPS, _MIN_SHARE = 10, 0.1  # whichever is less; the share is of all points
_STEADY_PERCENT, _STEADY_DISTANCE = 75, 0.2  # so many percent lie so near to the median
_MAX_LOG_DRIFT = 0.05  # between the medians of a segment's halves


def speed_regimes(values: Sequence[float]) -> list[slice]:
    """Returns the slice of each speed regime, in order, of positive step times or rates. A long
    log is reduced to medians of a few steps each."""
    steps_per_point = max(1, -(-len(values) // _MAX_POINTS))  # rounded up
    logs = np.log(np.array(values))  # a change by 3% is then the same difference at any speed
    starts = range(0, len(logs), steps_per_point)
    points = np.array([np.median(logs[start : start + steps_per_point]) for start in starts])
    regime_starts = [start * steps_per_point for start in _later_regime_starts(points)]
    return [slice(start, end) for start, end in pairwise([0, *regime_starts, len(logs)])]


def _later_regime_starts(points: Array) -> Iterator[int]:
    """Yields the index at which each regime after the first begins. `points` are logarithms of
    step times or rates."""
    regime: Array | None = None
    for start, end in pairwise(_segment_bounds(points)):
        segment = points[start:end]
        if not _is_steady(segment, len(points)):
            continue
        if regime is None:
            regime = segment
            continue
        change = abs(np.median(segment) - np.median(regime))
        # A tenfold change is an error of the clock, and no speed.
        if _MIN_LOG_CHANGE <= change < _MAX_LOG_CHANGE:
            regime = segment
            yield start


def _segment_bounds(points: Array) -> list[int]:
    """Returns the bounds of the segments: 0, the change points, and the number of points. The
    test for changes uses ranks and is imprecise, so each change point is moved to where the points
    on both sides are nearest to their medians."""
    bounds = [0, *(change.index for change in level_changes(points)), len(points)]
    for index in range(1, len(bounds) - 1):
        start, cut, end = bounds[index - 1 : index + 2]
        segment = points[start:end]
        distance_before = np.abs(segment - np.median(points[start:cut]))
        distance_after = np.abs(segment - np.median(points[cut:end]))
        # The sum falls while points are nearer to the median before the cut: it is least there.
        excess = np.cumsum(distance_before - distance_after)
        # Item i of the sum counts point i as before the cut, so that the cut comes behind it. At
        # least one point stays behind the cut.
        bounds[index] = start + 1 + int(np.argmin(excess[:-1]))
    return bounds


def _is_steady(segment: Array, num_points: int) -> bool:
    """Returns True where a segment is long, does not drift, and most of its points are near its
    median. Its points are logarithms of step times. `num_points` is the number of the whole run."""
    # The middle point of an odd number is in both halves.
    first_half = segment[: -(-len(segment) // 2)]
    second_half = segment[len(segment) // 2 :]
    log_drift = abs(float(np.median(second_half)) - float(np.median(first_half)))
    distances = np.abs(np.expm1(segment - np.median(segment)))  # as shares of the median
    is_long = len(segment) >= min(_MIN_STEPS, _MIN_SHARE * num_points)
    is_even = bool(np.percentile(distances, _STEADY_PERCENT) <= _STEADY_DISTANCE)
    return is_long and log_drift <= _MAX_LOG_DRIFT and is_even
