"""Pipelines with no more micro-batches than stages: what a step takes at least of every part of a model.

The bounds of models.bounds hold however layers are split. With few micro-batches that leaves much out: a step is as
long as a way through all stages, which hardly any micro-batch makes longer, and what each of them has is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.array import Array, picked
from models.partition import Stages

_SHARES = 0.0, 0.1, 0.25, 0.5, 1.0
"""Of two ways that a step takes no less than, any mean is one too."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Of n pipelines, as `passes` (ways, parts, n): so many passes of all layers of a kind, of the embedding and of the
    head, each by itself, that together take no longer than a step; `mean` (parts, n): what a mean stage has of them.
    """

    passes: Array
    mean: Array

    @classmethod
    def of(
        cls, stages: Stages, heaviest: Array, code: Array, pp: Array, m: Array, moved: Array, weights: float
    ) -> Ways:
        """Of pipelines under 1F1B, or ZB-H1 where weight gradients are `moved`; `stages`, of which the `heaviest` has
        most, are those of partitions, and `code` says whose each pipeline has. `weights`: the largest share of weight
        gradients in a pass.

        A step is no shorter than the way of one micro-batch down and up, with the passes of the last m - 1 stages once
        more; nor than that with all others' first or second passes on any one stage instead, m - 1 times half of both
        or more; nor than what a stage does itself (models.bounds). Where weight gradients are moved, ways down and up
        are without them, and end on the first stage, which then has one left.
        """
        each = np.take_along_axis(stages.amounts, stages.order.kind[None, :, stages.code], axis=1)
        upto = np.cumsum(np.pad(each, ((0, 0), (1, 0), (0, 0))), axis=1)
        most, first = picked(stages.amounts, heaviest[code], code), upto[:, 1].take(code, axis=1)
        whole = picked(upto, pp, code)
        late = whole - picked(upto, pp - m + 1, code)
        down_and_up = whole + np.stack([late, (m - 1) / 2 * most, (m - 1) / 2 * first])
        passed = (1 - moved * weights) * down_and_up + moved * weights * first
        return cls(np.concatenate([passed, (m * most)[None]]), whole / pp)

    def longer_than(self, mean_passes: Array) -> Array:
        """What every way takes of the parts beyond so many passes of the mean stage, (ways, parts, n)."""
        return np.asarray(self.passes - mean_passes * self.mean)

    @property
    def mean_passes(self) -> Array:
        """Of the mean stage, that a step is no shorter than whatever the parts take, (n,): of a mean of ways, what it
        has of the part of which it has least."""
        one, *others = self.passes
        means = [share * way + (1 - share) * one for way in others for share in _SHARES]
        return np.asarray(np.max([(way / self.mean).min(axis=0) for way in means], axis=0))
