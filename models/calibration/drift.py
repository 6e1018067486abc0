"""Whether a series of residuals changed its level, and where: Pettitt's test, and again on either
side of a change.

Pettitt, A non-parametric approach to the change-point problem, Applied Statistics 28 (1979): it
looks at ranks only, so that an outlier is one run and not a change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.columns import Array

FEWEST = 6  # runs before and after a change, at least
SIGNIFICANT = 0.01
_POLISHED = 3
_CLEARLY = (
    0.5  # of a shift: closer together, runs of one level and another are told apart by chance
)


@dataclass(frozen=True, slots=True)
class Change:
    """The level differs by `shift` from the run at `index` on; `p_value`: how often chance alone
    does as much."""

    index: int
    shift: float
    p_value: float


def changes(residuals: Array, significant: float = SIGNIFICANT) -> list[Change]:
    """Of residuals in order of time, the first change first; each with the shift from the level
    before it to the next.

    A split of the whole series lies badly where there are several changes: each is found again
    between its neighbours, and left out if it is none there, until all stay.
    """
    residuals = np.asarray(residuals)
    splits = _splits(residuals, 0, significant)
    for _ in range(len(splits) + 1):
        settled = _between_neighbours(residuals, splits, significant)
        if settled == splits:
            break
        splits = settled
    return _shifts(residuals, splits)


def changes_among(residuals: Array, kinds: Array) -> list[Change]:
    """The same of residuals of several kinds, which may each have a level of their own: that more
    of one than of another are run is no change. Levels of kinds and of stretches of time in turn,
    by medians (Tukey's median polish).
    """
    residuals = np.asarray(residuals)
    found, of_time = list[Change](), np.zeros(len(residuals))
    for _ in range(_POLISHED):
        of_kind = _levels(residuals - of_time, kinds)
        found = changes(residuals - of_kind)
        stretch = np.searchsorted(
            [change.index for change in found], np.arange(len(residuals)), side="right"
        )
        of_time = _medians(residuals - of_kind, stretch)
    return found


def _levels(residuals: Array, kinds: Array) -> Array:
    """The median of each run's kind, where it has enough runs, or of all others."""
    names, code, counts = np.unique(kinds, return_inverse=True, return_counts=True)
    return _medians(residuals, np.where(counts[code] < 2 * FEWEST, len(names), code))


def _medians(residuals: Array, groups: Array) -> Array:
    level = np.empty(len(residuals))
    for group in np.unique(groups):
        level[groups == group] = np.median(residuals[groups == group])
    return level


def _splits(residuals: Array, start: int, significant: float) -> list[int]:
    at, p_value = _pettitt(residuals)
    if p_value >= significant:
        return []
    before, after = residuals[:at], residuals[at:]
    return [
        *_splits(before, start, significant),
        start + at,
        *_splits(after, start + at, significant),
    ]


def _between_neighbours(residuals: Array, splits: list[int], significant: float) -> list[int]:
    found: list[int] = []
    for end in [*splits[1:], len(residuals)][: len(splits)]:
        start = found[-1] if found else 0
        at, p_value = _pettitt(residuals[start:end])
        if p_value < significant:
            found.append(start + at)
    return found


def _shifts(residuals: Array, splits: list[int]) -> list[Change]:
    ends = [0, *splits, len(residuals)]
    levels = [
        float(np.median(residuals[a:b])) for a, b in zip(ends, ends[1:], strict=False) if b > a
    ]
    return [
        Change(at, levels[i + 1] - levels[i], _pettitt(residuals[ends[i] : ends[i + 2]])[1])
        for i, at in enumerate(splits)
    ]


def _pettitt(residuals: Array) -> tuple[int, float]:
    """The likeliest first run after a change, and the p-value of there being none: 1 of too few
    runs."""
    n = len(residuals)
    if n < 2 * FEWEST:
        return 0, 1.0
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
    return _between_levels(residuals, at + 1), min(p_value, 1.0)


def _between_levels(residuals: Array, at: int) -> int:
    """The split that leaves runs closest to the levels on either side of one by ranks, which an odd
    run may move; that one where it is hardly better."""
    before, after = (float(np.median(side)) for side in np.split(residuals, [at]))
    away = np.cumsum(np.abs(residuals - before) - np.abs(residuals - after))
    best = FEWEST + int(np.argmin(away[FEWEST - 1 : len(residuals) - FEWEST]))
    return best if away[at - 1] - away[best - 1] > _CLEARLY * abs(after - before) else at


def _repeated(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse] > 1)
