"""What a step takes at least of every part of a model, where that depends on how a pipeline is
split.

Bounds of models.search.bounds that hold for any split leave out most where there are few
micro-batches, and those that hold for any weight gradients where little of a pass is weight
gradients. What each stage has is known, and what of it a layer's weight gradients are: a step is no
shorter than a few ways through the pipeline, each so many passes of every part, some of them
without weight gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from models.columns import Array, take_at, total
from models.cost.makespan import EARLY
from models.cost.pipeline import micro_batch_group
from models.cost.stage_partition import Stages
from models.spec.layout import DUALPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, ZERO_BUBBLE_V

_COUNT = 4
_HALVINGS = 12
_SHARES = 0.0, 0.1, 0.25, 0.5, 1.0
"""Of two ways that a step takes no less than, any mean is one too."""

Way = tuple[Array, Array]
"""Passes of every part, and how many of them are without weight gradients."""


@dataclass(frozen=True, slots=True)
class Split:
    """Pipelines with m micro-batches, and of every part (parts, n) what all stages have, the first,
    that with most, and the last m - 1. models.search.bounds has why the ways of each schedule,
    _COUNT of them, are no longer than a step."""

    pp: Array
    m: Array
    whole: Array
    first: Array
    most: Array
    late: Array

    @classmethod
    def of(cls, stages: Stages, weights: Array, code: Array, pp: Array, m: Array) -> Split:
        """`stages` are those of partitions, the heaviest of which has most by `weights` of parts;
        `code`: whose each pipeline has."""
        heaviest = np.tensordot(weights, stages.amounts, axes=1).argmax(axis=0)
        each = np.take_along_axis(stages.amounts, stages.order.kind[None, :, stages.code], axis=1)
        upto = np.cumsum(np.pad(each, ((0, 0), (1, 0), (0, 0))), axis=1)
        whole, most = take_at(upto, pp, code), take_at(stages.amounts, heaviest[code], code)
        late = whole - take_at(upto, np.maximum(pp - m + 1, 0), code)
        return cls(pp, m, whole, upto[:, 1].take(code, axis=1), most, late)

    def take(self, rows: Array) -> Split:
        pp, m, *parts = (getattr(self, name) for name in self.__slots__)
        return Split(pp[rows], m[rows], *(part[:, rows] for part in parts))

    @property
    def mean(self) -> Array:
        return np.asarray(self.whole / self.pp)

    def few(self) -> list[Way]:
        """Under 1F1B and ZB-H1 with m <= pp: one micro-batch goes down and up, and the last m - 1
        stages are passed once more; or all others' first or second passes of one stage are, m - 1
        times half of both or more; or what a stage does by itself. Under ZB-H1 ways down and up end
        with weight gradients of the first stage."""
        passed = (self.late, (self.m - 1) / 2 * self.most, (self.m - 1) / 2 * self.first)
        ways = [(self.whole + more, self.whole + more - self.first) for more in passed]
        return [*ways, (self.m * self.most, 0.0 * self.most)]

    def zero_bubble(self) -> list[Way]:
        """Under ZB-H1 with m > pp: twice down and up, less what the first stage has only once, and
        m - pp times all of any one stage: of the mean of them and once of the first, of the
        heaviest, of the first; or what a stage does by itself."""
        twice, without = 2 * self.whole, 2 * (self.whole - self.first)
        of_one = (self.m - self.pp) * self.most - self.first, (self.m - self.pp - 1) * self.first
        ways = [(twice + alone, without) for alone in ((self.m - self.pp - 1) * self.mean, *of_one)]
        return [*ways, (self.m * self.most, 0.0 * self.most)]

    def zero_bubble_v(self) -> list[Way]:
        """Of the mean stage, then of the heaviest, in two ways each, with what it idles for the
        others."""
        others = np.maximum(self.pp - 1, 1)
        begun, late = (
            (np.minimum(self.m, self.pp) - 1) / 2,
            np.clip(self.m - self.pp, 0, self.pp - 1),
        )
        idles = (0.25, 0.25), (1 - begun / others, 1 - begun / others + late / others)
        stages = self.mean, self.most
        return [
            (self.m * own + of_pass * (self.whole - own), of_weight * (self.whole - own))
            for own in stages
            for of_pass, of_weight in idles
        ]

    def dualpipe(self) -> list[Way]:
        """Of the mean stage, then of the heaviest: with what it idles for the others of its half,
        or without."""
        both = 1 + (self.pp - 2) / (2 * np.maximum(self.pp - 1, 1))
        ways = []
        for own in (self.mean, self.most):
            others = self.whole / 2 - own
            ways += [(self.m * own + both * others, (both + 1) * others), (self.m * own, 0.0 * own)]
        return ways


@dataclass(frozen=True, slots=True)
class Dealt:
    """Pipelines with m micro-batches whose chunks are dealt out in rounds, each of which `group` of
    them pass; at stages (s, n) where stretches of stages begin and end, of every part (parts, s,
    n): what the stage has, in the first and in the last round, and what all before it have in the
    first round, all up to it in the last one."""

    pp: Array
    m: Array
    group: Array
    stage: Array
    amounts: Array
    first: Array
    last: Array
    before: Array
    upto: Array

    @classmethod
    def of(cls, stages: Stages, code: Array, pp: Array, m: Array) -> Dealt:
        """`stages` are those of partitions; `code`: whose each pipeline has."""
        of = stages.code[code]
        stage, kinds = stages.order.corners_of(of), stages.order.kind
        kind = take_at(kinds, stage, of)
        amounts, (first, last) = (
            take_at(stages.amounts, kind, code),
            take_at(stages.rounds, kind, of),
        )
        each = np.take_along_axis(stages.rounds, kinds[None, None], axis=2)
        before, upto = take_at(np.cumsum(each, axis=2), stage, of)
        return cls(
            pp, m, micro_batch_group(pp, m), stage, amounts, first, last, before - first, upto
        )

    def ways(self, weights: Array, mean: Array) -> list[Array]:
        """Passes of every part, (parts, n), of which the mean stage has so many: of one stage with
        the first round of those before it, most of whichever part they have least; and, by such
        `weights` of parts, the longest of those, with what a path takes beside the head, and with
        what it takes going round (models.cost.makespan.interleaved)."""
        alone = self.m * self.amounts + self.before
        groups, left = self.m / self.group, self.pp - 1 - self.stage
        head = (self.group - 1) * (self.last[:, -1:] - self.last) + self.upto[:, -1:] - self.upto
        skipped = np.where(groups > 1, np.maximum(groups - 1, 1), 0) * 2 * left * self.first
        beside = alone + ((left > 0) & ((groups <= 1) | (2 * left <= self.group))) * (
            groups * head - skipped
        )
        between = np.where(2 * (self.pp - 1) >= self.group, np.maximum(groups - 2, 0), 0)
        around = alone + between * (self._going_round(weights)[:, None] - self.group * self.amounts)
        ways = [_longest(of, weights) for of in (alone, beside, around)]
        layers = _longest(alone, np.append(weights[:-2], (0.0, 0.0)))
        return [_evenly(alone[:, 0] / mean, layers / mean, alone[:, -1] / mean) * mean, *ways]

    def _going_round(self, weights: Array) -> Array:
        """What a group of micro-batches takes on the path that goes round and is the longest,
        (parts, n)."""
        ways = []
        for early in range(min(len(self.stage), EARLY)):
            beyond = self.stage - self.stage[early]
            seen = (
                self.group * (self.first[:, early, None] - 2 * self.first) + 2 * beyond * self.first
            )
            passed = self.upto[:, -1:] - self.upto + (self.upto - self.last)[:, early, None]
            ways.append(self.group * (self.amounts - self.last) + self.last + seen + passed)
        every = np.concatenate(ways, axis=1)
        beyond = self.stage - self.stage[: len(ways), None]
        return _longest(every, weights, 2 * beyond.reshape(-1, len(self.m)) >= self.group)


def _longest(ways: Array, weights: Array, some: Array | bool = True) -> Array:
    """Of some ways (parts, w, n) those that are the longest by such weights of parts, (parts,
    n)."""
    at = np.where(some, np.tensordot(weights, ways, axes=1), -np.inf).argmax(axis=0)
    return np.take_along_axis(ways, at[None, None], axis=1)[:, 0]


def _evenly(first: Array, middle: Array, last: Array) -> Array:
    """A mean of three ways (parts, n) that has nearly as much as can be of the part of which it has
    least: by halving, as much of the first and of the last one as the parts need that they have
    more of."""
    low, high = np.zeros_like(middle[0]), middle.max(axis=0)
    early = first >= last
    more = np.maximum(np.where(early, first, last) - middle, 1e-9)
    found = middle
    for _ in range(_HALVINGS):
        least = (low + high) / 2
        needed = np.maximum((least - middle) / more, 0.0)
        a, c = (np.where(of, needed, 0.0).max(axis=0) for of in (early, ~early))
        fits = a + c <= 1
        tried = (
            middle
            + np.where(fits, a, 0.0) * (first - middle)
            + np.where(fits, c, 0.0) * (last - middle)
        )
        better = fits & (tried.min(axis=0) >= least * (1 - 1e-9))
        found = np.where(better, tried, found)
        low, high = np.where(better, least, low), np.where(better, high, least)
    return found


@dataclass(frozen=True)
class Ways:
    """Of n pipelines, (ways, parts, n): `passes` of every part, by itself, that together take no
    longer than a step, and how many of them are `without` weight gradients. Where stages end
    `together` all of them are ways of all stages; else the first two of the mean stage, the others
    of the heaviest. `mean` (parts, n): what the mean stage has."""

    passes: Array
    without: Array
    mean: Array
    together: Array

    @classmethod
    def of(
        cls, schedule: Array, stages: Stages, weights: Array, code: Array, pp: Array, m: Array
    ) -> Ways:
        """Under schedules for which there are such ways (has_ways); `stages` are those of
        partitions, `code`: whose each pipeline has; `weights`: of every part, by which stages and
        ways are told that may be the longest."""
        split = Split.of(stages, weights, code, pp, m)
        passes = np.empty((_COUNT, *split.whole.shape))
        without = np.zeros_like(passes)
        few = split.m <= split.pp
        passed, zero = np.isin(schedule, (ONE_F_ONE_B, ZERO_BUBBLE)), schedule == ZERO_BUBBLE
        dealt = schedule == INTERLEAVED
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
        if dealt.any():
            own = Dealt.of(stages, code[dealt], pp[dealt], m[dealt])
            passes[:, :, dealt] = np.stack(own.ways(weights, split.mean[:, dealt]))
        return cls(
            passes, np.where(schedule == ONE_F_ONE_B, 0.0, without), split.mean, passed | dealt
        )

    def mean_passes(self, shares: Array, most: Array) -> Array:
        """Of the mean stage, that a step is no shorter than if weight gradients are such shares of
        that, (shares, n), and at `most` (parts,) of a pass of each part."""
        found = np.full((len(shares), len(self.together)), -np.inf)
        for (passes, without), may in self._of_mean():
            passes, without = passes / self.mean, without / self.mean
            usual = without[:-2].max(axis=0)
            least = (passes - np.maximum(without - usual, 0.0) * most[:, None]).min(axis=0)
            found = np.where(may, np.maximum(found, least - usual * shares[:, None]), found)
        return found

    def seconds(self, number: Array, both: Array, weights: Array) -> Array:
        """At least, of pipelines by their number with passes and weight gradients of every part,
        (parts, n)."""
        found = np.full(len(number), -np.inf)
        for passes, without in zip(self.passes, self.without, strict=True):
            way = passes.take(number, axis=1) * both - without.take(number, axis=1) * weights
            found = np.maximum(found, total(way))
        return found

    def _of_mean(self) -> Iterator[tuple[Way, Array]]:
        """Ways beside which all stages have on average what they have once a step, and of which
        pipelines."""
        for number in range(1, len(self.passes)):
            may = self.together | (number == 1)
            for share in _SHARES:
                yield (
                    tuple(
                        share * of[number] + (1 - share) * of[0]
                        for of in (self.passes, self.without)
                    ),
                    may,
                )


def has_ways(schedule: Array, pp: Array, m: Array) -> Array:
    """Where a split is known to bound more: few micro-batches under 1F1B, all whose weight
    gradients are moved, and all with chunks dealt out in rounds."""
    always = np.isin(schedule, (INTERLEAVED, ZERO_BUBBLE, ZERO_BUBBLE_V, DUALPIPE))
    return (pp > 1) & (always | ((schedule == ONE_F_ONE_B) & (m <= pp)))
