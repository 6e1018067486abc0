"""The costliest paths through the chunks of an interleaved pipeline, where the rounds of a stage
differ.

A *round* is one chunk of layers on every stage. A *path* is a chain of operations that wait for
each other, and the longest one is the length of a step (models.cost.pipeline.makespan). The bubble
is that of these paths where they are longer than those that stay on one stage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled
from models.cost.pipeline.bubble import weighted_sum
from models.cost.pipeline.layer_split import Layers, Shape
from models.cost.rows import StageTables


class ChunkScratch(NamedTuple):
    """Buffers for the chunks of a partition, and for a path through them."""

    held: Array
    """Layers of each kind that a chunk has, and which of the ends, (chunks, parts)."""
    cost: Array
    """FLOPs of each chunk, (chunks,)."""
    best: Array
    """The cost of the longest path to each stage before each round, (2 * rounds + 1, stages)."""
    previous: Array
    """The stage from which the longest path to a stage comes, (2 * rounds, stages)."""
    paths: Array
    """The stages of the longest paths, (2, rounds)."""


@compiled
def set_paths(
    layers: Layers, shape: Shape, scratch: ChunkScratch, tables: StageTables, i: int
) -> None:
    """Write to row i of `tables` the two costliest paths through the chunks of an interleaved
    pipeline. A path is one stage in each round: `alternating` while stages alternate forwards and
    backwards, and `ahead` where all forwards come first. Write nothing where both stay on one
    stage, since such paths are counted anyway (models.cost.pipeline.interleaved).

    The first path pays for every stage that it moves down: a chunk of average size, once in every
    group of pp micro-batches. The second may only move down, at no cost.
    """
    pp = shape.pp
    rounds = shape.virtual_stages
    costs = layers.costs
    held = scratch.held
    alternating = scratch.paths[0, :rounds]
    ahead = scratch.paths[1, :rounds]
    chunks = pp * rounds
    for chunk in range(chunks):
        scratch.cost[chunk] = weighted_sum(held[chunk], costs)
    stays = _set_longest_path(
        pp=pp, rounds=rounds, rounds_walked=rounds, down=0.0, up=np.inf, scratch=scratch, path=ahead
    )
    for chunk in range(chunks):
        # Both passes, of which backward is taken to be two thirds.
        both = 0.0
        for part in range(len(costs)):
            forward, backward = _amounts_at_step(held, pp, rounds, chunk, part)
            both += (forward + 2 * backward) * costs[part]
        scratch.cost[chunk] = both / 3
    # A chunk of average size, once in every group of pp micro-batches.
    missed = (layers.flops_before[-1] + layers.head) / chunks / pp
    stays_alternating = _set_longest_path(
        pp=pp,
        rounds=rounds,
        rounds_walked=2 * rounds,
        down=missed,
        up=0.0,
        scratch=scratch,
        path=alternating,
    )
    if stays_alternating and stays:
        return
    tables.path_last[i] = ahead[-1]
    for round_ in range(rounds):
        # A group's first round follows the last round of the group before, which index -1 reads.
        tables.path_moves[i] += max(alternating[round_] - alternating[round_ - 1], 0)
        for part in range(len(costs)):
            step = round_ * pp + alternating[round_]
            forward, backward = _amounts_at_step(held, pp, rounds, step, part)
            tables.path_out[i, part] += forward
            tables.path_back[i, part] += backward
            tables.path_ahead[i, part] += held[round_ * pp + ahead[round_], part]


@compiled
def _amounts_at_step(
    held: Array, pp: int, rounds: int, step: int, part: int
) -> tuple[float, float]:
    """Return how much of a part a stage runs forward and backward at one step, while it alternates
    the two: how many layers of one kind, or whether an end of the model. `held` (chunks, parts) has
    these amounts of each chunk. A path's length is the sum of its steps.

    At `step` = k * pp + stage the stage's backwards are those of the k-th round from the last. Its
    forwards are ahead of these by all rounds but one, and by two passes for every stage that
    follows, which may end within a round: then two rounds share them, by time
    (models.cost.pipeline.schedules).
    """
    round_, stage = divmod(step, pp)
    # Two passes for every later stage, in whole rounds and the rest of one.
    whole, rest = divmod(2 * (pp - 1 - stage), pp)
    early = held[(round_ - 1 + whole) % rounds * pp + stage, part]
    later = held[(round_ + whole) % rounds * pp + stage, part]
    share = rest / pp
    return (1 - share) * early + share * later, held[(rounds - 1 - round_) * pp + stage, part]


@compiled
def _set_longest_path(
    pp: int,
    rounds: int,
    rounds_walked: int,
    down: float,
    up: float,
    scratch: ChunkScratch,
    path: Array,
) -> bool:
    """Write to `path` (rounds,) the stage in each round of the costliest path through chunks, whose
    costs are in `scratch.cost`. Return whether it stays on one stage.

    The path walks `rounds_walked` rounds, and its last `rounds` are written: walking them twice
    makes the path settle into a cycle. Each stage that it moves down or up takes `down` or `up`
    from its cost.
    """
    # Dynamic programming: best[w, s] is the cost of the costliest path of w rounds to stage s, and
    # previous[w, s] the stage in the round before.
    best = scratch.best
    previous = scratch.previous
    best[0, :pp] = 0.0
    for walked in range(rounds_walked):
        for stage in range(pp):
            longest = -np.inf
            for other in range(pp):
                # Where no stage changes, `up` must not be used: it may be infinite, and infinity
                # times 0 is no number.
                lost = (stage - other) * down if other <= stage else (other - stage) * up
                if best[walked, other] - lost > longest:
                    longest = best[walked, other] - lost
                    previous[walked, stage] = other
            # Chunk k * pp + stage is what the stage has in round k.
            best[walked + 1, stage] = longest + scratch.cost[walked % rounds * pp + stage]
    end = stage = int(best[rounds_walked, :pp].argmax())
    stays = True
    for walked in range(rounds_walked - 1, rounds_walked - 1 - rounds, -1):
        path[walked % rounds] = stage
        stays = stays and stage == end
        stage = previous[walked, stage]
    return stays
