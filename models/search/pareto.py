"""The layouts that no other beats in time, complexity and free memory at once."""

from __future__ import annotations

import numpy as np

from models.columns import Array, distinct

# A factor for times: times that differ by less count as the same. A bound may exceed the time that
# it bounds by rounding: by 3e-18 s in a tie that brute force found (docs/lab/search-exactness.md).
ROUNDED = 1 + 1e-12
STEPS = 20  # parts of usable memory: free memory that differs by less than one part counts as equal


def steps_of(free: Array, usable: float) -> Array:
    """Return free bytes (n,) in steps, each 1 / STEPS of the usable bytes, rounded down to whole
    steps: small differences then do not count."""
    return np.maximum(np.floor(free / usable * STEPS), 0).astype(np.int64)


def staircase(times: Array, points: Array) -> list[int]:
    """Return the positions of layouts that are faster than every simpler one, the simplest first.
    `times` (n,) are seconds and `points` (n,) complexity. Of equally simple layouts only the
    fastest is returned."""
    order = np.lexsort((times, points))
    before = np.concatenate([[np.inf], np.minimum.accumulate(times[order])[:-1]])
    # ROUNDED: a gain by rounding errors alone does not count as faster.
    return [int(row) for row in order[times[order] * ROUNDED < before]]


def pareto_front(times: Array, points: Array, free: Array) -> list[int]:
    """Return the positions of layouts on the Pareto front of little time (`times`, seconds), little
    complexity (`points`) and much free memory (`free`, as from steps_of), the fastest first. Of
    equal layouts one is returned."""
    order = np.lexsort((np.arange(len(times)), times))[::-1]
    # Of layouts with equal points and free memory `distinct` returns the last, here the fastest.
    first, _ = distinct(points[order], free[order])
    rows = order[first]
    rows = rows[np.lexsort((rows, points[rows], -free[rows], times[rows]))]
    kept: list[int] = []
    for row in rows.tolist():
        # Rows ascend by time: every kept one is at least as fast as this.
        if not any(points[k] <= points[row] and free[k] >= free[row] for k in kept):
            kept.append(row)
    return kept
