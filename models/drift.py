"""Whether a series of residuals changed its level, and where: Pettitt's test, and again on either side of a change.

Pettitt, A non-parametric approach to the change-point problem, Applied Statistics 28 (1979): it looks at ranks only, so
that an outlier is one run and not a change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.array import Array

FEWEST = 6  # runs before and after a change, at least
SIGNIFICANT = 0.01


@dataclass(frozen=True, slots=True)
class Change:
    """The level differs by `shift` from the run at `index` on; `p_value`: how often chance alone does as much."""

    index: int
    shift: float
    p_value: float


def changes(residuals: Array, significant: float = SIGNIFICANT) -> list[Change]:
    """Of residuals in order of time, the first change first."""
    return sorted(_within(np.asarray(residuals), 0, significant), key=lambda change: change.index)


def _within(residuals: Array, start: int, significant: float) -> list[Change]:
    if len(residuals) < 2 * FEWEST:
        return []
    at, p_value = _pettitt(residuals)
    if p_value >= significant:
        return []
    before, after = residuals[:at], residuals[at:]
    shift = float(np.median(after) - np.median(before))
    return [
        *_within(before, start, significant),
        Change(start + at, shift, p_value),
        *_within(after, start + at, significant),
    ]


def _pettitt(residuals: Array) -> tuple[int, float]:
    """The likeliest first run after a change, and the p-value of there being none."""
    n = len(residuals)
    order = np.argsort(residuals, kind="stable")
    rank = np.empty(n)
    rank[order] = np.arange(1, n + 1)
    for value in np.unique(residuals[_repeated(residuals)]):  # ties share their mean rank
        rank[residuals == value] = rank[residuals == value].mean()
    count = np.arange(1, n)
    distance = np.abs(2 * np.cumsum(rank)[:-1] - count * (n + 1))
    allowed = (count >= FEWEST) & (count <= n - FEWEST)
    at = int(np.argmax(np.where(allowed, distance, -1.0)))
    p_value = 2 * float(np.exp(-6 * distance[at] ** 2 / (n**3 + n**2)))
    return at + 1, min(p_value, 1.0)


def _repeated(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse] > 1)
