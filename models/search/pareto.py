"""What is given up for what: the layouts that no other beats in time, complexity and free memory at
once."""

from __future__ import annotations

import numpy as np

from models.columns import Array, distinct

ROUNDED = 1 + 1e-12  # times that differ by less are the same
STEPS = (
    20  # of free memory: a difference of less than one in so many parts of what is usable is none
)


def steps_of(free: Array, usable: float) -> Array:
    """Free bytes in whole steps."""
    return np.maximum(np.floor(free / usable * STEPS), 0).astype(np.int64)


def staircase(times: Array, points: Array) -> list[int]:
    """Positions of those that are faster than every simpler one, the simplest first."""
    order = np.lexsort((times, points))
    before = np.concatenate([[np.inf], np.minimum.accumulate(times[order])[:-1]])
    return [int(row) for row in order[times[order] * ROUNDED < before]]


def pareto_front(times: Array, points: Array, free: Array) -> list[int]:
    """Positions of those that no other beats in one and equals in the rest: fewer seconds, fewer
    points of complexity, more steps of free memory. Fastest first."""
    order = np.lexsort((np.arange(len(times)), times))[::-1]
    first, _ = distinct(
        points[order], free[order]
    )  # of each pair the last it meets, hence the first of the fastest
    rows = order[first]
    rows = rows[np.lexsort((rows, points[rows], -free[rows], times[rows]))]
    kept: list[int] = []
    for row in rows.tolist():
        if not any(points[k] <= points[row] and free[k] >= free[row] for k in kept):
            kept.append(row)
    return kept
