"""What a step takes at least of every part of a model, where that depends on how a pipeline is split.

Bounds of models.bounds that hold for any split leave out most where there are few micro-batches, and those that hold
for any weight gradients where little of a pass is weight gradients. What each stage has is known, and what of it a
layer's weight gradients are: a step is no shorter than a few ways through the pipeline, each so many passes of every
part, some of them without weight gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from models.array import Array, picked, total
from models.layout import DUALPIPE, ONE_F_ONE_B, ZERO_BUBBLE, ZERO_BUBBLE_V
from models.partition import Stages

_COUNT = 4
_SHARES = 0.0, 0.1, 0.25, 0.5, 1.0
"""Of two ways that a step takes no less than, any mean is one too."""

Way = tuple[Array, Array]
"""Passes of every part, and how many of them are without weight gradients."""


@dataclass(frozen=True, slots=True)
class Split:
    """Pipelines with m micro-batches, and of every part (parts, n) what all stages have, the first, that with most, and
    the last m - 1. models.bounds has why the ways of each schedule, _COUNT of them, are no longer than a step."""

    pp: Array
    m: Array
    whole: Array
    first: Array
    most: Array
    late: Array

    @classmethod
    def of(cls, stages: Stages, heaviest: Array, code: Array, pp: Array, m: Array) -> Split:
        """`stages`, of which the `heaviest` has most, are those of partitions; `code`: whose each pipeline has."""
        each = np.take_along_axis(stages.amounts, stages.order.kind[None, :, stages.code], axis=1)
        upto = np.cumsum(np.pad(each, ((0, 0), (1, 0), (0, 0))), axis=1)
        whole, most = picked(upto, pp, code), picked(stages.amounts, heaviest[code], code)
        late = whole - picked(upto, np.maximum(pp - m + 1, 0), code)
        return cls(pp, m, whole, upto[:, 1].take(code, axis=1), most, late)

    def take(self, rows: Array) -> Split:
        pp, m, *parts = (getattr(self, name) for name in self.__slots__)
        return Split(pp[rows], m[rows], *(part[:, rows] for part in parts))

    @property
    def mean(self) -> Array:
        return np.asarray(self.whole / self.pp)

    def few(self) -> list[Way]:
        """Under 1F1B and ZB-H1 with m <= pp: one micro-batch goes down and up, and the last m - 1 stages are passed
        once more; or all others' first or second passes of one stage are, m - 1 times half of both or more; or what a
        stage does by itself. Under ZB-H1 ways down and up end with weight gradients of the first stage."""
        passed = (self.late, (self.m - 1) / 2 * self.most, (self.m - 1) / 2 * self.first)
        ways = [(self.whole + more, self.whole + more - self.first) for more in passed]
        return [*ways, (self.m * self.most, 0.0 * self.most)]

    def zero_bubble(self) -> list[Way]:
        """Under ZB-H1 with m > pp: twice down and up, less what the first stage has only once, and m - pp times all of
        any one stage: of the mean of them and once of the first, of the heaviest, of the first; or what a stage does by
        itself."""
        twice, without = 2 * self.whole, 2 * (self.whole - self.first)
        of_one = (self.m - self.pp) * self.most - self.first, (self.m - self.pp - 1) * self.first
        ways = [(twice + alone, without) for alone in ((self.m - self.pp - 1) * self.mean, *of_one)]
        return [*ways, (self.m * self.most, 0.0 * self.most)]

    def zero_bubble_v(self) -> list[Way]:
        """Of the mean stage, then of the heaviest, in two ways each, with what it idles for the others."""
        others = np.maximum(self.pp - 1, 1)
        begun, late = (np.minimum(self.m, self.pp) - 1) / 2, np.clip(self.m - self.pp, 0, self.pp - 1)
        idles = (0.25, 0.25), (1 - begun / others, 1 - begun / others + late / others)
        stages = self.mean, self.most
        return [
            (self.m * own + of_pass * (self.whole - own), of_weight * (self.whole - own))
            for own in stages
            for of_pass, of_weight in idles
        ]

    def dualpipe(self) -> list[Way]:
        """Of the mean stage, then of the heaviest: with what it idles for the others of its half, or without."""
        both = 1 + (self.pp - 2) / (2 * np.maximum(self.pp - 1, 1))
        ways = []
        for own in (self.mean, self.most):
            others = self.whole / 2 - own
            ways += [(self.m * own + both * others, (both + 1) * others), (self.m * own, 0.0 * own)]
        return ways


@dataclass(frozen=True)
class Ways:
    """Of n pipelines, (ways, parts, n): `passes` of every part, by itself, that together take no longer than a step,
    and how many of them are `without` weight gradients. Where stages end `together` all of them are ways of all stages;
    else the first two of the mean stage, the others of the heaviest. `mean` (parts, n): what the mean stage has."""

    passes: Array
    without: Array
    mean: Array
    together: Array

    @classmethod
    def of(cls, schedule: Array, split: Split) -> Ways:
        """Under schedules for which there are such ways (has_ways)."""
        passes = np.empty((_COUNT, *split.whole.shape))
        without = np.zeros_like(passes)
        few = split.m <= split.pp
        passed, zero = np.isin(schedule, (ONE_F_ONE_B, ZERO_BUBBLE)), schedule == ZERO_BUBBLE
        kinds = (
            (passed & few, Split.few),
            (zero & ~few, Split.zero_bubble),
            (schedule == ZERO_BUBBLE_V, Split.zero_bubble_v),
            (schedule == DUALPIPE, Split.dualpipe),
        )
        for some, ways in kinds:
            if some.any():
                passes[:, :, some], without[:, :, some] = (
                    np.stack(of) for of in zip(*ways(split.take(some)), strict=True)
                )
        return cls(passes, np.where(schedule == ONE_F_ONE_B, 0.0, without), split.mean, passed)

    def mean_passes(self, shares: Array, most: Array) -> Array:
        """Of the mean stage, that a step is no shorter than if weight gradients are such shares of that, (shares, n),
        and at `most` (parts,) of a pass of each part."""
        found = np.full((len(shares), len(self.together)), -np.inf)
        for (passes, without), may in self._of_mean():
            passes, without = passes / self.mean, without / self.mean
            usual = without[:-2].max(axis=0)
            least = (passes - np.maximum(without - usual, 0.0) * most[:, None]).min(axis=0)
            found = np.where(may, np.maximum(found, least - usual * shares[:, None]), found)
        return found

    def seconds(self, number: Array, both: Array, weights: Array) -> Array:
        """At least, of pipelines by their number with passes and weight gradients of every part, (parts, n)."""
        found = np.full(len(number), -np.inf)
        for passes, without in zip(self.passes, self.without, strict=True):
            way = passes.take(number, axis=1) * both - without.take(number, axis=1) * weights
            found = np.maximum(found, total(way))
        return found

    def _of_mean(self) -> Iterator[tuple[Way, Array]]:
        """Ways beside which all stages have on average what they have once a step, and of which pipelines."""
        for number in range(1, len(self.passes)):
            may = self.together | (number == 1)
            for share in _SHARES:
                yield tuple(share * of[number] + (1 - share) * of[0] for of in (self.passes, self.without)), may


def has_ways(schedule: Array, pp: Array, m: Array) -> Array:
    """Where a split is known to bound more: few micro-batches under 1F1B, and all whose weight gradients are moved."""
    moved = np.isin(schedule, (ZERO_BUBBLE, ZERO_BUBBLE_V, DUALPIPE))
    return (pp > 1) & (moved | ((schedule == ONE_F_ONE_B) & (m <= pp)))
