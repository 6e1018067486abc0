"""Drift is a change of level in a series of residuals. Pettitt's test finds one, and is applied
again on either side of each change that it finds (binary segmentation).

Pettitt, A non-parametric approach to the change-point problem, Applied Statistics 28 (1979). The
test looks at ranks only, so that an outlier is one run and no change. Residuals are a number for
each run, such as log measured over predicted step time. A *level* is the median of the residuals
between two changes, and a *split* the index of the first run after a change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.columns import Array

# The least number of runs on either side of a change; the levels are their medians.
MIN_RUNS = 6
SIGNIFICANCE = 0.01  # one false alarm in a hundred series
_POLISH_ROUNDS = 3  # rounds of the median polish
# A split by distances must be better than one by ranks by this share of the shift. Closer together,
# chance alone tells runs of one level from those of another.
_CLEAR_GAIN = 0.5


@dataclass(frozen=True, slots=True)
class Change:
    """A change of level: from the run at `index` on, residuals are higher by `shift`. `p_value` is
    the probability that chance alone does as much."""

    index: int
    shift: float
    p_value: float


def level_changes(residuals: Array, significance: float = SIGNIFICANCE) -> list[Change]:
    """Return the changes of level in residuals that are in order of time, the first change first.
    `shift` is the level after a change minus the one before it."""
    residuals = np.asarray(residuals)
    splits = _segmented(residuals, 0, significance)
    # In a series with several changes, the first splits are misplaced. So each is found again
    # between its neighbours, or left out where it is no longer significant, until all stay where
    # they are.
    for _ in range(len(splits) + 1):
        refined = _refined(residuals, splits, significance)
        if refined == splits:
            break
        splits = refined
    return _changes_at(residuals, splits)


def level_changes_among_kinds(residuals: Array, kinds: Array) -> list[Change]:
    """Return the changes of level in residuals of several kinds, each of which may have a level of
    its own. A change in how often a kind runs is then no change of level. The levels of kinds, and
    those of the stretches of time between changes, are subtracted in turn, as medians (Tukey's
    median polish)."""
    residuals = np.asarray(residuals)
    changes = list[Change]()
    level_of_time = np.zeros(len(residuals))
    for _ in range(_POLISH_ROUNDS):
        level_of_kind = _levels_of_kinds(residuals - level_of_time, kinds)
        changes = level_changes(residuals - level_of_kind)
        starts = [change.index for change in changes]
        # For each run the number of changes up to it, which numbers its stretch.
        stretch = np.searchsorted(starts, np.arange(len(residuals)), side="right")
        level_of_time = _group_medians(residuals - level_of_kind, stretch)
    return changes


def _levels_of_kinds(residuals: Array, kinds: Array) -> Array:
    """Return the median residual of each run's kind; shape (runs,). Kinds of too few runs are taken
    together, because a level of their own would hide any change in them."""
    names, code, counts = np.unique(kinds, return_inverse=True, return_counts=True)
    # Codes are 0 to len(names) - 1; kinds with too few runs share the next number.
    return _group_medians(residuals, np.where(counts[code] < 2 * MIN_RUNS, len(names), code))


def _group_medians(residuals: Array, groups: Array) -> Array:
    """Return the median of each run's group; shape (runs,)."""
    medians = np.empty(len(residuals))
    for group in np.unique(groups):
        medians[groups == group] = np.median(residuals[groups == group])
    return medians


def _segmented(residuals: Array, start: int, significance: float) -> list[int]:
    """Return the indices of the runs that begin a new level, counted in the whole series, of which
    `residuals` begin at index `start`. Both sides of a change are searched in turn."""
    split, p_value = _pettitt(residuals)
    if p_value >= significance:
        return []
    before = _segmented(residuals[:split], start, significance)
    after = _segmented(residuals[split:], start + split, significance)
    return [*before, start + split, *after]


def _refined(residuals: Array, splits: list[int], significance: float) -> list[int]:
    """Return the splits, each found again between the split before it and the next one, because it
    was first found in a stretch that other changes may have blurred. A split that is then no longer
    significant is left out."""
    refined: list[int] = []
    next_splits = [*splits[1:], len(residuals)]
    for _, end in zip(splits, next_splits, strict=False):
        start = refined[-1] if refined else 0
        split, p_value = _pettitt(residuals[start:end])
        if p_value < significance:
            refined.append(start + split)
    return refined


def _changes_at(residuals: Array, splits: list[int]) -> list[Change]:
    """Return the change at each split, the index of the first run after it. Its shift is that of
    the median from the stretch of runs since the split before to the stretch until the next."""
    bounds = [0, *splits, len(residuals)]
    changes = []
    for before, split, after in zip(bounds, splits, bounds[2:], strict=False):
        shift = float(np.median(residuals[split:after])) - float(np.median(residuals[before:split]))
        _, p_value = _pettitt(residuals[before:after])
        changes.append(Change(split, shift, p_value))
    return changes


def _pettitt(residuals: Array) -> tuple[int, float]:
    """Return the likeliest first run after a change, and Pettitt's approximate p-value of there
    being no change. The p-value is 1 where there are too few runs."""
    n = len(residuals)
    if n < 2 * MIN_RUNS:
        return 0, 1.0
    rank = _mean_ranks(residuals)
    count = np.arange(1, n)
    # At i, twice the distance of the first i + 1 runs' sum of ranks from its mean without change.
    statistic = np.abs(2 * np.cumsum(rank)[:-1] - count * (n + 1))
    is_allowed = (count >= MIN_RUNS) & (count <= n - MIN_RUNS)
    largest = int(np.argmax(np.where(is_allowed, statistic, -1.0)))
    p_value = 2 * float(np.exp(-6 * statistic[largest] ** 2 / (n**3 + n**2)))
    return _nearest_split(residuals, largest + 1), min(p_value, 1.0)


def _mean_ranks(residuals: Array) -> Array:
    """Return ranks from 1 on; ties share the mean of theirs: [0.5, 0.1, 0.5] has [2.5, 1, 2.5]."""
    _, value_of_run, counts = np.unique(residuals, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(counts)
    # Tied runs have the `counts` ranks up to last_rank; their mean is (counts - 1) / 2 below it.
    return np.asarray((last_rank - (counts - 1) / 2)[value_of_run])


def _nearest_split(residuals: Array, rank_split: int) -> int:
    """Return the index of the run that begins a new level, with runs as close as possible to the
    level on their side. `rank_split` is the index that ranks give, which a single odd run may have
    moved. It is returned unchanged unless another is clearly better."""
    before = float(np.median(residuals[:rank_split]))
    after = float(np.median(residuals[rank_split:]))
    # The sum of distances to the levels with a split behind each run, up to a constant.
    distance = np.cumsum(np.abs(residuals - before) - np.abs(residuals - after))
    # distance[i] is that of a split at index i + 1, which leaves MIN_RUNS runs on either side.
    best = MIN_RUNS + int(np.argmin(distance[MIN_RUNS - 1 : len(residuals) - MIN_RUNS]))
    gain = distance[rank_split - 1] - distance[best - 1]
    return best if gain > _CLEAR_GAIN * abs(after - before) else rank_split
