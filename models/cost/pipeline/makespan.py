"""Makespans of pipelines in closed form: the longest path through operations that wait for each
other.

An operation waits for the one before it on its stage, and for the operation of a neighbouring stage
that gives it its input. The makespan is the length of the longest path through these waits, and
only few paths can be the longest. A path *turns* where it changes from forwards to backwards or to
another stage. ZB-H1 is the zero-bubble schedule that is 1F1B with weight gradients run apart from
input gradients (arXiv 2401.10241).

The length of each path is piecewise linear in the stages where it turns, so it is largest where a
stretch of equal stages begins or ends, or where a count of micro-batches changes. Only those
TurningStages are looked at. The times of a stage are also those of the stages between it and the
one listed before it.

For each of them and each kind of pass, `upto` is the time of one pass on every stage up to it,
`done` the time when it has done the passes that precede its alternation of forwards and backwards,
and `ready` the time when it may begin to alternate (StagePasses).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import inlined
from models.cost.facts import record_type


class StagePasses(NamedTuple):
    """Seconds of one kind of pass, forward or backward, on a stage at which a path may turn."""

    # set by the caller: what a micro-batch takes
    per_micro_batch: float
    """A micro-batch's pass on the stage. Under ZB-H1 backward is that of input gradients alone."""
    weight: float
    """The weight gradients of a micro-batch on the stage, beside the input gradients of ZB-H1."""
    first: float
    """The part of `per_micro_batch` for chunks of the first round, under interleaving."""
    last: float
    """The part of `per_micro_batch` for chunks of the last round, under interleaving."""
    # worked out here, and overwritten for every pipeline
    upto: float
    """A pass of every stage up to this one; under interleaving a pass of the last round."""
    before: float
    """A pass of every stage before this one in the first round, under interleaving."""
    done: float
    """The time when the stage has done all passes of this kind that come before it alternates."""
    ready: float
    """The time when the stage may go on with the other kind of pass (`set_ready`)."""
    arrived: float
    """The time when the last forward of an earlier stage has come down to this one, under ZB-H1."""


PASSES = record_type(StagePasses)


class TurningStages(NamedTuple):
    """Holds the stages at which the longest path through a pipeline may turn, that is, change from
    forwards to backwards or to another stage. Arrays have an entry for each of these stages."""

    stage: Array
    """Numbers of these stages, ascending."""
    forward: Array
    """Records of StagePasses."""
    backward: Array
    """Records of StagePasses. Under ZB-H1 they are of input gradients."""


@inlined
def list_turning_stages(pp: int, micro_batches: int, stretch_ends: Array, stage: Array) -> int:
    """Write to `stage`, in ascending order, the stages at which the longest path through a pipeline
    can turn, and return their number. They are `stretch_ends`, the stages where a stretch of equal
    stages begins or ends. Where there are n more stages than micro-batches, the stages n before and
    n after each of these are listed too, since counts of micro-batches change there."""
    missing = pp - micro_batches
    count = 0
    for stretch_end in stretch_ends:
        count = insert_ascending(stage, count, stretch_end)
        if missing > 0:
            count = insert_ascending(stage, count, max(stretch_end - missing, 0))
            count = insert_ascending(stage, count, min(stretch_end + missing, pp - 1))
    return count


@inlined
def insert_ascending(ascending: Array, count: int, value: int) -> int:
    """Insert a value into the first `count` entries of an array, which ascend, unless it is among
    them. Return the new count."""
    place = count
    while place > 0 and ascending[place - 1] > value:
        place -= 1
    if place > 0 and ascending[place - 1] == value:
        return count
    for later in range(count, place, -1):
        ascending[later] = ascending[later - 1]
    ascending[place] = value
    return count + 1


@inlined
def one_f_one_b(pp: int, micro_batches: int, turning: TurningStages) -> float:
    """Return the seconds of a pipeline under 1F1B. The longest path turns at one of the stages in
    `turning`, of whose records the fields that are not given (`upto` to `ready`) are filled here.

    A stage does k = min(pp - stage, m) forwards before its first backward. These take one forward
    of every stage up to it, and k - 1 more of the slowest of these stages. The first backward also
    waits for the forwards of later stages and its way back from there. The stage then alternates,
    and the longest path stays on it. The end of the step mirrors its start, with backwards for
    forwards. A stage that does all m forwards first never alternates. Its path then waits for later
    stages on one side of the turn only, before it or after it.
    """
    _set_passes_ahead(pp, micro_batches, turning.stage, turning.forward)
    _set_passes_ahead(pp, micro_batches, turning.stage, turning.backward)
    set_ready(turning.forward, turning.backward)
    set_ready(turning.backward, turning.forward)
    longest = 0.0
    for i in range(len(turning.stage)):
        f = turning.forward[i]
        b = turning.backward[i]
        alternating = micro_batches - _forwards_ahead(pp, micro_batches, turning.stage[i])
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
    """Set the fields `upto` and `done` of the records `passes`, one for each stage listed in
    `stage`. The first pass takes the time of every stage up to that one. The others that the stage
    does before it alternates follow at the pace of the slowest of these stages."""
    upto = slowest = 0.0
    previous = -1
    for i in range(len(stage)):
        # Stages between two that are listed are equal to the second.
        seconds = passes[i].per_micro_batch
        upto += (stage[i] - previous) * seconds
        slowest = max(slowest, seconds)
        passes[i].upto = upto
        passes[i].done = upto + (_forwards_ahead(pp, micro_batches, stage[i]) - 1) * slowest
        previous = stage[i]


@inlined
def set_ready(passes: Array, others: Array) -> None:
    """Set the field `ready` of the records `passes`: the time when a stage and all later ones have
    done the passes that precede their alternation, and the first pass of the other kind has come
    back to the stage from each of them. `others` are the records of that other kind."""
    # The way from a later stage j back to stage i takes others[j].upto - others[i].upto.
    latest = 0.0
    for i in range(len(passes) - 1, -1, -1):
        latest = max(latest, passes[i].done + others[i].upto)
        passes[i].ready = latest - others[i].upto


@inlined
def zero_bubble(pp: int, micro_batches: int, turning: TurningStages) -> float:
    """Return the seconds of a pipeline under ZB-H1: 1F1B of forwards and input gradients, where the
    weight gradients of micro-batch i - stage follow the input gradients of micro-batch i. The
    longest path turns at stages in `turning`, of whose records the fields that are not given
    (`upto` to `arrived`) are filled here.

    Until its first weight gradients a stage alternates, or waits for another stage that does
    (_time_before_weights). The path then stays on one stage until its last forward. From there, or
    from a later stage to which this forward goes on, the input gradients that are left go up the
    stages at the pace of the slowest. The stage where they end does its last weight gradients
    (_time_after_forwards).
    """
    _set_passes_ahead(pp, micro_batches, turning.stage, turning.forward)
    _set_passes_ahead(pp, micro_batches, turning.stage, turning.backward)
    set_ready(turning.forward, turning.backward)
    _set_arrivals(pp, micro_batches, turning)
    longest = 0.0
    passed_on = -np.inf
    for i in range(len(turning.stage)):
        f = turning.forward[i]
        b = turning.backward[i]
        begun = _time_before_weights(pp, micro_batches, turning, i)
        # Each forward after the first pp comes with an input gradient and a weight gradient.
        steady = begun + max(micro_batches - pp, 0) * (
            f.per_micro_batch + b.per_micro_batch + b.weight
        )
        # With more micro-batches than stages, a stage may also wait for the last forward of an
        # earlier one, which has come down to it. `steady` ends with the input gradient after the
        # last forward, so that forward ends b.per_micro_batch before.
        if micro_batches > pp:
            passed_on = max(passed_on, steady - b.per_micro_batch - f.upto)
            steady = passed_on + f.upto + b.per_micro_batch
        ending = _time_after_forwards(pp, micro_batches, turning, i)
        longest = max(longest, steady + ending)
    return longest


@inlined
def _alternations(pp: int, micro_batches: int, stage: int) -> int:
    """Return how many pairs of a forward and an input gradient a stage of ZB-H1 runs after its
    first forwards and before its first weight gradients."""
    # Every stage has done pp forwards, or all, when its first weight gradients come.
    return min(pp, micro_batches) - _forwards_ahead(pp, micro_batches, stage)


@inlined
def _set_arrivals(pp: int, micro_batches: int, turning: TurningStages) -> None:
    """Set the field `arrived` of the forwards in `turning`, under ZB-H1: the time when the last
    forward of the slowest earlier stage has come down to a stage."""
    # The way from an earlier stage j down to stage i takes upto of i less upto of j.
    latest = -np.inf
    for i in range(len(turning.stage)):
        f = turning.forward[i]
        b = turning.backward[i]
        f.arrived = latest + f.upto
        alternating = _alternations(pp, micro_batches, turning.stage[i])
        done = f.done
        # A stage that alternates runs its other forwards between input gradients.
        if alternating > 0:
            done = f.ready + alternating * (f.per_micro_batch + b.per_micro_batch)
        latest = max(latest, done - f.upto)


@inlined
def _time_before_weights(pp: int, micro_batches: int, turning: TurningStages, i: int) -> float:
    """Return the time when the i-th stage in `turning` has done all that precedes its first weight
    gradients, under ZB-H1.

    It is the latest over this stage and all later ones. Each alternates forwards and input
    gradients while it has forwards, and then does input gradients alone at the pace of the slowest
    stage on the way back. It may have to wait for the last forward of an earlier stage (`arrived`).
    """
    latest = slowest = 0.0
    own = turning.backward[i]
    # The first weight gradients follow the input gradients of micro-batch `stage`, counted from 0.
    # `due` is how many input gradients the stage does before those.
    due = min(turning.stage[i], micro_batches - 1)
    for later in range(i, len(turning.stage)):
        f = turning.forward[later]
        b = turning.backward[later]
        slowest = max(slowest, b.per_micro_batch)
        alternating = _alternations(pp, micro_batches, turning.stage[later])
        paired = min(due, alternating)
        begun = f.ready + paired * (f.per_micro_batch + b.per_micro_batch)
        if due >= alternating:
            begun = max(begun, f.arrived)
        way_back = own.per_micro_batch + b.upto - own.upto
        latest = max(latest, begun + (due - paired) * slowest + way_back)
    return latest


@inlined
def _time_after_forwards(pp: int, micro_batches: int, turning: TurningStages, i: int) -> float:
    """Return the seconds from the last forward on the i-th stage in `turning` to the end, under
    ZB-H1. The input gradients that are left go up to an earlier stage, at the pace of the stage on
    the way that takes longest for input and weight gradients together. The stage where they end
    then does its remaining weight gradients. The end that comes last counts."""
    longest = slowest = 0.0
    own = turning.backward[i]
    # After its last forward, and the input gradient that follows it, the stage has another input
    # gradient left for every later stage.
    left = max(min(pp, micro_batches) - 1 - turning.stage[i], 0)
    for earlier in range(i, -1, -1):
        b = turning.backward[earlier]
        slowest = max(slowest, b.per_micro_batch + b.weight)
        way_up = (own.upto - own.per_micro_batch) - (b.upto - b.per_micro_batch)
        # Weight gradients lag behind input gradients by `stage` micro-batches: after the last input
        # gradient, stage + 1 of them are left.
        weights = min(turning.stage[earlier] + 1, micro_batches) * b.weight
        longest = max(longest, left * slowest + way_up + weights)
    return longest


class ChunkSeconds(NamedTuple):
    """Seconds of the passes of one micro-batch through one chunk of a V."""

    forward: float
    to_input: float
    weight: float


@inlined
def zero_bubble_v(pp: int, micro_batches: int, own: ChunkSeconds, others: ChunkSeconds) -> float:
    """Return the seconds that a stage is idle in a V-shaped zero-bubble pipeline: the length of the
    longest path beyond the stage's own work. `own` has the mean times of the stage's two chunks,
    and `others` those of the chunks of all other stages.

    Each line below is one path. Where all chunks are equal, one of them is the longest, whatever
    the three passes take. They were found by walking the longest path through the operations of
    ScheduleZBVZeroBubble for random times.
    """
    more = pp - 1
    # With at most pp micro-batches, stages run out of forwards and wait for the first to come back.
    if micro_batches <= pp:
        n = micro_batches - 1
        return max(
            _seconds_beyond_own(own, others, 2 * (more - n), 2 * more, 0),
            _seconds_beyond_own(own, others, 2 * more - n, 2 * more - n, 0),
            _seconds_beyond_own(own, others, 2 * more, 2 * (more - n), -2 * n),
            _seconds_beyond_own(own, others, 2 * more, 2 * more - 3 * n, -n),
        )
    # The V is full with pp - 1 micro-batches more than stages; those beyond lengthen the steady
    # state alone. Of the pp - 1, `full` are there and `short` are missing.
    full = min(micro_batches - pp, more)
    short = more - full
    return max(
        _seconds_beyond_own(own, others, 0, 2 * more, -2 * full),
        _seconds_beyond_own(own, others, 0, 2 * short, 0),
        _seconds_beyond_own(own, others, 0, more + short, -short),
        _seconds_beyond_own(own, others, 0, short + 1, full - 1),
        _seconds_beyond_own(own, others, short + 1, 0, full - 1),
        _seconds_beyond_own(own, others, short, short, 0),
        _seconds_beyond_own(own, others, more + full - 1, 1 - full, 0),
        _seconds_beyond_own(own, others, more + full - 1, short + 1, -2 * full),
        _seconds_beyond_own(own, others, more + full - 1, short - full + 1, -short),
        _seconds_beyond_own(own, others, more + full, -full, -1),
        _seconds_beyond_own(own, others, more + full, short, -(2 * full + 1)),
        _seconds_beyond_own(own, others, more + full, short - full, -full),
        _seconds_beyond_own(own, others, more + full, short - full, -(short + 1)),
        _seconds_beyond_own(own, others, 2 * more, 0, -(2 * more + 1)),
        _seconds_beyond_own(own, others, 2 * more, -more, -min(more, 2 * short + 1)),
        _seconds_beyond_own(own, others, 2 * more, -full, -min(2 * more - full, 3 * short + 1)),
    )


@inlined
def _seconds_beyond_own(
    own: ChunkSeconds, others: ChunkSeconds, forwards: int, to_inputs: int, weights: int
) -> float:
    """Return the seconds by which a path exceeds the work of its stage. The path has so many more
    passes through a chunk than the stage: `forwards`, `to_inputs` (input gradients) and `weights`.
    Additional passes run on other stages and take their times. A negative count is of passes of the
    stage itself that the path skips, and takes the stage's own times. A pass that takes longer then
    never makes the pipeline shorter."""
    seconds = forwards * (others.forward if forwards > 0 else own.forward)
    seconds += to_inputs * (others.to_input if to_inputs > 0 else own.to_input)
    return seconds + weights * (others.weight if weights > 0 else own.weight)
