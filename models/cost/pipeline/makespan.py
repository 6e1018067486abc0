"""Makespans of pipelines in closed form: the longest path through operations that wait for each
other.

An operation waits for the one before it on its stage, and for the operation of a neighbouring stage
that gives it its input. The makespan is the length of the longest path through these waits, and
only few paths can be the longest.

The length of each path is piecewise linear in the stages where it turns, so it is largest where a
stretch of equal stages begins or ends, or where a count of micro-batches changes. Only those stages
are looked at: `stage` has their numbers, ascending, and `forward` and `backward` a record of
StagePasses for each. The times of a stage are also those of the stages between it and the one
listed before it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import inlined
from models.cost.facts import record_type


class StagePasses(NamedTuple):
    """Seconds of one kind of pass, forward or backward, on a stage at which a path may turn."""

    # given: what a micro-batch takes
    per_micro_batch: float
    """A micro-batch's pass on the stage. Under ZB-H1 backward is that of input gradients alone."""
    weight: float
    """The weight gradients of a micro-batch on the stage, beside the input gradients of ZB-H1."""
    first: float
    """The part of `per_micro_batch` for chunks of the first round, under interleaving."""
    last: float
    """The part of `per_micro_batch` for chunks of the last round, under interleaving."""
    # worked out
    upto: float
    """A pass of every stage up to this one; under interleaving a pass of the last round."""
    before: float
    """A pass of every stage before this one in the first round, under interleaving."""
    done: float
    """The time when the stage has done all passes of this kind that come before it alternates."""
    ready: float
    """The time when the stage may go on with the other kind of pass."""
    arrived: float
    """The time when the last forward of an earlier stage has come down to this one, under ZB-H1."""


PASSES = record_type(StagePasses)


@inlined
def turning_stages(pp: int, micro_batches: int, stretch_ends: Array, stage: Array) -> int:
    """Write the stages at which the paths of a pipeline can turn, and return their number. They are
    the `stretch_ends` where a stretch of equal stages begins or ends. With n more stages than
    micro-batches, they are also the stages n before and n after one of those."""
    few = pp - micro_batches
    count = 0
    for stretch_end in stretch_ends:
        count = insert(stage, count, stretch_end)
        if few > 0:
            count = insert(stage, count, max(stretch_end - few, 0))
            count = insert(stage, count, min(stretch_end + few, pp - 1))
    return count


@inlined
def insert(ascending: Array, count: int, value: int) -> int:
    """Insert a value where it is not among the first `count` yet. Return the new count."""
    at = count
    while at > 0 and ascending[at - 1] > value:
        at -= 1
    if at > 0 and ascending[at - 1] == value:
        return count
    for place in range(count, at, -1):
        ascending[place] = ascending[place - 1]
    ascending[at] = value
    return count + 1


@inlined
def one_f_one_b(
    pp: int, micro_batches: int, stage: Array, forward: Array, backward: Array
) -> float:
    """Return the seconds of a pipeline under 1F1B.

    The longest path stays on one stage while that alternates. Before that, a stage has k
    micro-batches ahead (pp less the stage's number, m at most). It waits for its own k forwards, or
    for k forwards of a later stage and what the first backward takes from there. Its k forwards
    take one forward of every stage up to it, and k - 1 more of the slowest of them. From the
    stage's last forward on, all this holds with time turned round. Where all m micro-batches go
    ahead, the path leads through other stages on one side only, before the turn or after it.
    """
    _set_passes_ahead(pp, micro_batches, stage, forward)
    _set_passes_ahead(pp, micro_batches, stage, backward)
    set_ready(forward, backward)
    set_ready(backward, forward)
    longest = 0.0
    for i in range(len(stage)):
        f = forward[i]
        b = backward[i]
        alternating = micro_batches - _forwards_ahead(pp, micro_batches, stage[i])
        if alternating > 0:
            path = f.ready + alternating * (f.per_micro_batch + b.per_micro_batch) + b.ready
        else:
            path = max(f.done + b.ready, f.ready + b.done)
        longest = max(longest, path)
    return longest


@inlined
def _forwards_ahead(pp: int, micro_batches: int, stage: int) -> int:
    """Return the number of forwards that a stage does before its first backward, under 1F1B."""
    return min(pp - stage, micro_batches)


@inlined
def _set_passes_ahead(pp: int, micro_batches: int, stage: Array, passes: Array) -> None:
    """Set `upto` and `done`. The first of the passes ahead comes through all stages up to each one;
    the others follow as the slowest of these lets them."""
    upto = slowest = 0.0
    before = -1
    for i in range(len(stage)):
        each = passes[i].per_micro_batch
        upto += (stage[i] - before) * each
        slowest = max(slowest, each)
        passes[i].upto = upto
        passes[i].done = upto + (_forwards_ahead(pp, micro_batches, stage[i]) - 1) * slowest
        before = stage[i]


@inlined
def set_ready(passes: Array, others: Array) -> None:
    """Set `ready` of each stage: when it and all later stages are done with their passes ahead, and
    the first pass of the other kind has come back from each of them."""
    latest = 0.0
    for i in range(len(passes) - 1, -1, -1):
        latest = max(latest, passes[i].done + others[i].upto)
        passes[i].ready = latest - others[i].upto


@inlined
def zero_bubble(
    pp: int, micro_batches: int, stage: Array, forward: Array, to_input: Array
) -> float:
    """Return the seconds of a pipeline under ZB-H1. It is 1F1B of forwards and input gradients. The
    weight gradients of every micro-batch come after the input gradients of a later one: as many
    later as the stage's number.

    Before its first weight gradients a stage alternates, or waits for another stage that does
    (_time_before_weights). The path then stays on one stage until its last forward. From there, or
    from a later stage to which this forward goes on, input gradients go up, and the slowest stage
    on the way does all that are left. The stage where they end has as many weight gradients left as
    its number (_time_after_forwards).
    """
    _set_passes_ahead(pp, micro_batches, stage, forward)
    _set_passes_ahead(pp, micro_batches, stage, to_input)
    set_ready(forward, to_input)
    _set_arrivals(pp, micro_batches, stage, forward, to_input)
    longest = 0.0
    passed_on = -np.inf
    for i in range(len(stage)):
        f = forward[i]
        b = to_input[i]
        begun = _time_before_weights(pp, micro_batches, stage, forward, to_input, i)
        steady = begun + max(micro_batches - pp, 0) * (
            f.per_micro_batch + b.per_micro_batch + b.weight
        )
        if micro_batches > pp:
            passed_on = max(passed_on, steady - b.per_micro_batch - f.upto)
            steady = passed_on + f.upto + b.per_micro_batch
        ending = _time_after_forwards(pp, micro_batches, stage, to_input, i)
        longest = max(longest, steady + ending)
    return longest


@inlined
def _alternations(pp: int, micro_batches: int, stage: int) -> int:
    """Return how many times a stage of ZB-H1 alternates forwards and input gradients."""
    return min(pp, micro_batches) - _forwards_ahead(pp, micro_batches, stage)


@inlined
def _set_arrivals(
    pp: int, micro_batches: int, stage: Array, forward: Array, to_input: Array
) -> None:
    """Set `arrived`. An earlier stage has alternated as long as there are forwards, and the last of
    these has come down to the stage."""
    latest = -np.inf
    for i in range(len(stage)):
        f = forward[i]
        f.arrived = latest + f.upto
        alternating = _alternations(pp, micro_batches, stage[i])
        done = f.done
        if alternating > 0:
            done = f.ready + alternating * (f.per_micro_batch + to_input[i].per_micro_batch)
        latest = max(latest, done - f.upto)


@inlined
def _time_before_weights(
    pp: int, micro_batches: int, stage: Array, forward: Array, to_input: Array, i: int
) -> float:
    """Return when stage i has done all that comes before its first weight gradients.

    It waits for itself, or for a later stage. That stage alternates as long as there are forwards,
    and then has only input gradients, as have the stages on the way back. Or the later stage waits
    for an earlier one, whose last forward comes down to it.
    """
    latest = slowest = 0.0
    due = min(stage[i], micro_batches - 1)
    for at in range(i, len(stage)):
        f = forward[at]
        b = to_input[at]
        slowest = max(slowest, b.per_micro_batch)
        alternating = _alternations(pp, micro_batches, stage[at])
        some = min(due, alternating)
        begun = f.ready + some * (f.per_micro_batch + b.per_micro_batch)
        if due >= alternating:
            begun = max(begun, f.arrived)
        way_back = to_input[i].per_micro_batch + b.upto - to_input[i].upto
        latest = max(latest, begun + (due - some) * slowest + way_back)
    return latest


@inlined
def _time_after_forwards(
    pp: int, micro_batches: int, stage: Array, to_input: Array, i: int
) -> float:
    """Return the seconds after the last forward on stage i. The input gradients that are left go up
    the stages. The slowest stage on the way does all of them, with weight gradients. The stage
    where they end then does the weight gradients that are left there."""
    longest = slowest = 0.0
    left = max(min(pp, micro_batches) - 1 - stage[i], 0)
    before = to_input[i].upto - to_input[i].per_micro_batch
    for at in range(i, -1, -1):
        b = to_input[at]
        slowest = max(slowest, b.per_micro_batch + b.weight)
        way_up = before - (b.upto - b.per_micro_batch)
        weights = min(stage[at] + 1, micro_batches) * b.weight
        longest = max(longest, left * slowest + way_up + weights)
    return longest


class ChunkSeconds(NamedTuple):
    """Seconds of the passes of one micro-batch through one chunk of a V."""

    forward: float
    to_input: float
    weight: float


@inlined
def zero_bubble_v(pp: int, micro_batches: int, own: ChunkSeconds, others: ChunkSeconds) -> float:
    """Return the seconds that the longest path through a pipeline in a V takes beyond the work of
    one stage, from the mean of its own chunks and of all others.

    Where all chunks are equal, one of these paths is the longest, whatever the three passes take.
    They were found by walking the longest path through the operations of ScheduleZBVZeroBubble for
    random times. With as many micro-batches as stages, or fewer, few begin before all have to wait
    for the first to come back. With twice as many, or more, stages alternate once they are `full`,
    and further micro-batches change nothing.
    """
    more = pp - 1
    if micro_batches <= pp:
        n = micro_batches - 1
        return max(
            _beyond_own(own, others, 2 * (more - n), 2 * more, 0),
            _beyond_own(own, others, 2 * more - n, 2 * more - n, 0),
            _beyond_own(own, others, 2 * more, 2 * (more - n), -2 * n),
            _beyond_own(own, others, 2 * more, 2 * more - 3 * n, -n),
        )
    full = min(micro_batches - pp, more)
    short = more - full
    return max(
        _beyond_own(own, others, 0, 2 * more, -2 * full),
        _beyond_own(own, others, 0, 2 * short, 0),
        _beyond_own(own, others, 0, more + short, -short),
        _beyond_own(own, others, 0, short + 1, full - 1),
        _beyond_own(own, others, short + 1, 0, full - 1),
        _beyond_own(own, others, short, short, 0),
        _beyond_own(own, others, more + full - 1, 1 - full, 0),
        _beyond_own(own, others, more + full - 1, short + 1, -2 * full),
        _beyond_own(own, others, more + full - 1, short - full + 1, -short),
        _beyond_own(own, others, more + full, -full, -1),
        _beyond_own(own, others, more + full, short, -(2 * full + 1)),
        _beyond_own(own, others, more + full, short - full, -full),
        _beyond_own(own, others, more + full, short - full, -(short + 1)),
        _beyond_own(own, others, 2 * more, 0, -(2 * more + 1)),
        _beyond_own(own, others, 2 * more, -more, -min(more, 2 * short + 1)),
        _beyond_own(own, others, 2 * more, -full, -min(2 * more - full, 3 * short + 1)),
    )


@inlined
def _beyond_own(
    own: ChunkSeconds, others: ChunkSeconds, forwards: int, to_inputs: int, weights: int
) -> float:
    """Return the seconds of a path beyond the work of its stage, given how many passes through a
    chunk it has more of each kind; fewer where the number is negative. It has more on other stages,
    and misses passes of its own. So no pass that takes longer makes the pipeline shorter."""
    seconds = forwards * (others.forward if forwards > 0 else own.forward)
    seconds += to_inputs * (others.to_input if to_inputs > 0 else own.to_input)
    return seconds + weights * (others.weight if weights > 0 else own.weight)
