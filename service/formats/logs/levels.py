"""Where a run changed its speed for good: long stretches of steps that keep another one than those
beside them.

Changes are those of models.calibration.drift, by 3% or more and less than tenfold (a clock that
runs ahead of the device is no speed). A stretch is a level where three quarters of its steps lie
within a fifth of their median, its halves within 5% of each other, and where it has ten steps or a
tenth of all: pauses between steps make none, nor does a warm-up that falls from step to step. Those
belong to the level before them, or to the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from models.calibration.drift import changes
from models.columns import Array

_MOST_POINTS = 2000
_LEAST, _MOST = np.log1p(0.03), np.log(10)
_LONG, _SHARE = 10, 0.1  # of all points
_ALIKE, _NEAR = 75, 0.2  # percent of points, and how near to their median
_HALVES = 0.05


def stretches(values: Sequence[float]) -> list[slice]:
    """One for each level, in order, of positive times or rates; long logs are looked at a few steps
    at a time."""
    together = max(1, -(-len(values) // _MOST_POINTS))
    logs = np.log(np.array(values))
    points = np.array(
        [np.median(logs[start : start + together]) for start in range(0, len(logs), together)]
    )
    starts = [start * together for start in _starts(points)]
    return [slice(start, end) for start, end in pairwise([0, *starts, len(logs)])]


def _starts(points: Array) -> Iterator[int]:
    """Of all levels but the first."""
    level: Array | None = None
    for start, end in pairwise(_cuts(points)):
        piece = points[start:end]
        if not _is_level(piece, len(points)):
            continue
        if level is None:
            level = piece
        elif _LEAST <= abs(np.median(piece) - np.median(level)) < _MOST:
            level = piece
            yield start


def _cuts(points: Array) -> list[int]:
    """Changes, each moved to where the steps on either side are nearest to their medians: ranks
    place it roughly."""
    cuts = [0, *(change.index for change in changes(points)), len(points)]
    for at in range(1, len(cuts) - 1):
        start, cut, end = cuts[at - 1 : at + 2]
        before, after = (
            np.abs(points[start:end] - np.median(side))
            for side in (points[start:cut], points[cut:end])
        )
        cuts[at] = start + 1 + int(np.argmin(np.cumsum(before - after)[:-1]))
    return cuts


def _is_level(piece: Array, count: int) -> bool:
    away = np.abs(np.expm1(piece - np.median(piece)))
    first, second = (
        float(np.median(half)) for half in (piece[: -(-len(piece) // 2)], piece[len(piece) // 2 :])
    )
    is_long = len(piece) >= min(_LONG, _SHARE * count)
    return is_long and abs(second - first) <= _HALVES and bool(np.percentile(away, _ALIKE) <= _NEAR)
