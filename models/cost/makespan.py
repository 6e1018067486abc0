"""Makespans of pipelines: the longest path through operations that wait for each other, in closed
form.

An operation waits for the one before it on its stage, and for the operation of a neighbouring stage
that gives it its input. The makespan is the length of the longest path through these waits, and
only few paths can be the longest. The length of each is piecewise linear in the stages where it
turns, so it is largest where a stretch of equal stages begins or ends, or where a count of
micro-batches changes. Therefore only those stages are looked at: `stage` has their numbers,
ascending, and `forward` and `backward` a record of Passes for each. The times of a stage are also
those of the stages between it and the one listed before it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import inlined
from models.cost.facts import record_type

EARLY = 3
"""Of the stages that are given so many that a path may go round to: the first, and one or two of
those that follow."""


class Passes(NamedTuple):
    """One kind of pass, forward or backward, on a stage at which a path may turn, in seconds."""

    # given: what a micro-batch takes
    each: float
    """On the stage. Under ZB-H1 backward is that of input gradients alone."""
    weight: float
    """Weight gradients, beside the input gradients of ZB-H1."""
    first: float
    """Of `each` the chunks of the first round, under interleaving."""
    last: float
    """Those of the last round."""
    # worked out
    upto: float
    """A pass of every stage up to this one; under interleaving in the last round."""
    before: float
    """A pass of every stage before this one in the first round, under interleaving."""
    done: float
    """When the stage has done all passes of this kind that come before it alternates."""
    ready: float
    """When the stage may go on with the other kind of pass."""
    arrived: float
    """When the last forward of an earlier stage has come down to this one, under ZB-H1."""


PASSES = record_type(Passes)


@inlined
def turns(pp: int, micro_batches: int, corners: Array, stage: Array) -> int:
    """Writes the stages at which the paths of a pipeline can turn, and returns how many there are.
    These are the `corners` where a stretch of equal stages begins or ends, and with fewer
    micro-batches than stages also those as many stages before and after one as there are stages
    more than micro-batches."""
    few = pp - micro_batches
    count = 0
    for corner in corners:
        count = _insert(stage, count, corner)
        if few > 0:
            count = _insert(stage, count, max(corner - few, 0))
            count = _insert(stage, count, min(corner + few, pp - 1))
    return count


@inlined
def turns_of_rounds(pp: int, micro_batches: int, group: int, corners: Array, stage: Array) -> int:
    """The same for an interleaved pipeline. Where its micro-batches are one group, late stages
    alternate forward and backward and early stages do not, so that paths turn between them too."""
    count = 0
    for corner in corners:
        count = _insert(stage, count, corner)
    if micro_batches <= group:
        turn = max(pp - 1 - micro_batches // 2, 0)
        count = _insert(stage, count, turn)
        count = _insert(stage, count, min(turn + 1, pp - 1))
    return count


@inlined
def _insert(ascending: Array, count: int, value: int) -> int:
    """Inserts a value where it is not among the first `count` yet. Returns how many there are."""
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
    """Seconds of a pipeline under 1F1B.

    The longest path stays on one stage while that alternates. Until then, with k micro-batches
    ahead (pp less the stage's number, m at most), a stage waits for its own k forwards, or for k
    forwards of a later one and what the first backward takes from there; of forwards for those of
    every stage up to it, and k - 1 more of the slowest of them. From its last forward on it is the
    same with time turned round. Where all m go ahead, one of both ways leads through other stages.
    """
    _go_ahead(pp, micro_batches, stage, forward)
    _go_ahead(pp, micro_batches, stage, backward)
    _wait_for_later(forward, backward)
    _wait_for_later(backward, forward)
    longest = 0.0
    for i in range(len(stage)):
        f = forward[i]
        b = backward[i]
        alternating = micro_batches - _ahead(pp, micro_batches, stage[i])
        if alternating > 0:
            path = f.ready + alternating * (f.each + b.each) + b.ready
        else:
            path = max(f.done + b.ready, f.ready + b.done)
        longest = max(longest, path)
    return longest


@inlined
def _ahead(pp: int, micro_batches: int, stage: int) -> int:
    """How many forwards a stage does before its first backward, under 1F1B."""
    return min(pp - stage, micro_batches)


@inlined
def _go_ahead(pp: int, micro_batches: int, stage: Array, passes: Array) -> None:
    """Sets `upto` and `done`: the first of the passes ahead comes through all stages up to each,
    the others follow as the slowest of these lets them."""
    upto = slowest = 0.0
    before = -1
    for i in range(len(stage)):
        each = passes[i].each
        upto += (stage[i] - before) * each
        slowest = max(slowest, each)
        passes[i].upto = upto
        passes[i].done = upto + (_ahead(pp, micro_batches, stage[i]) - 1) * slowest
        before = stage[i]


@inlined
def _wait_for_later(passes: Array, others: Array) -> None:
    """Sets `ready`: a stage, or a later one, has done the passes ahead, and the first of the other
    kind has come back from there."""
    latest = 0.0
    for i in range(len(passes) - 1, -1, -1):
        latest = max(latest, passes[i].done + others[i].upto)
        passes[i].ready = latest - others[i].upto


@inlined
def interleaved(
    pp: int, micro_batches: int, group: int, stage: Array, forward: Array, backward: Array
) -> float:
    """Seconds of a pipeline with chunks dealt out in rounds, of which each passes a group of
    micro-batches before the next one. There are as many micro-batches as stages, or more.

    It is 1F1B of chunks, with twice as many more forwards ahead for every stage that follows, and
    all but the last round of a group. Before it alternates, a stage waits for its own forwards, for
    as many of one before it, or for what the first backward takes from a later one; from its last
    forward on it is the same with time turned round.
    """
    _go_rounds_ahead(pp, micro_batches, group, stage, forward)
    _go_rounds_ahead(pp, micro_batches, group, stage, backward)
    _wait_for_later(forward, backward)
    _wait_for_later(backward, forward)
    if micro_batches > group:
        return _several_groups(pp, micro_batches, group, stage, forward, backward)
    return _one_group(pp, micro_batches, stage, forward, backward)


@inlined
def _late(pp: int, micro_batches: int, stage: int) -> int:
    """How many passes a stage does of the last round, and then of the next group's first one,
    before it alternates. It has done the other rounds of a group by then."""
    return min(2 * (pp - 1 - stage) + 1, micro_batches)


@inlined
def _rounds_ahead(passes: Passes, group: int, late: int) -> float:
    """Seconds of a group's passes on a stage in all rounds but the last, and of so many late
    ones."""
    earlier = group * (passes.each - passes.last)
    return earlier + min(late, group) * passes.last + max(late - group, 0) * passes.first


@inlined
def _go_rounds_ahead(pp: int, micro_batches: int, group: int, stage: Array, passes: Array) -> None:
    """Sets `before`, `upto` and `done`: a stage, or one before it from where the last of them comes
    down, has done as many passes as the stage has ahead."""
    first = last = 0.0
    before = -1
    for i in range(len(stage)):
        steps = stage[i] - before
        first += steps * passes[i].first
        last += steps * passes[i].last
        passes[i].before = first - passes[i].first
        passes[i].upto = last
        before = stage[i]
        late = _late(pp, micro_batches, stage[i])
        done = 0.0
        for j in range(i + 1):
            down = last - passes[j].upto
            done = max(done, passes[j].before + _rounds_ahead(passes[j], group, late) + down)
        passes[i].done = done


@inlined
def _one_group(pp: int, micro_batches: int, stage: Array, forward: Array, backward: Array) -> float:
    """Of micro-batches that are one group. (A path that leaves a stage for the head is one of those
    through the last stage.)"""
    longest = 0.0
    for i in range(len(stage)):
        f = forward[i]
        b = backward[i]
        late = _late(pp, micro_batches, stage[i])
        if micro_batches > late:
            work = micro_batches * (f.each + b.each)
            ahead = _rounds_ahead(f, micro_batches, late) + _rounds_ahead(b, micro_batches, late)
            path = f.ready + (work - ahead) + b.ready
        else:
            path = max(f.done + b.ready, f.ready + b.done)
        longest = max(longest, path)
    return longest


@inlined
def _several_groups(
    pp: int, micro_batches: int, group: int, stage: Array, forward: Array, backward: Array
) -> float:
    """Of more micro-batches than one group. With every group a path may leave its stage, where that
    is longer: for the head (_to_head), where it is back before the next group's first round is
    over, of which it misses the passes meanwhile; forwards in the first group, backwards in the
    last one, and both in those between. There it may go round instead (_group_going_round)."""
    longest = 0.0
    groups = micro_batches / group
    around = _group_going_round(group, stage, forward, backward)
    for i in range(len(stage)):
        f = forward[i]
        b = backward[i]
        away = 2 * (pp - 1 - stage[i])
        ahead = _rounds_ahead(f, group, away + 1)
        behind = _rounds_ahead(b, group, away + 1)
        early = between = later = 0.0
        if away <= group:
            head = _to_head(group, f, b, forward[-1], backward[-1])
            early = head - away * f.first
            between = head - away * (f.first + b.first)
            later = min(groups - 1, 1.0) * (head - away * b.first)
        between = max(between, around - group * (f.each + b.each), 0.0)
        path = (
            max(f.ready, f.before + ahead + early)
            + (micro_batches * (f.each + b.each) - ahead - behind)
            + max(groups - 2, 0.0) * between
            + max(b.ready, b.before + behind + later)
        )
        longest = max(longest, path)
    return longest


@inlined
def _to_head(group: int, f: Passes, b: Passes, f_end: Passes, b_end: Passes) -> float:
    """What a path takes more that leaves a stage for the chunks of the last one that have the head
    (`f_end`, `b_end`): the stage's last round but for one pass of each kind is done there, and what
    is on the way there and back is passed."""
    more = f_end.last + b_end.last - f.last - b.last
    on_the_way = f_end.upto + b_end.upto - f.upto - b.upto
    return (group - 1) * more + on_the_way


@inlined
def _group_going_round(group: int, stage: Array, forward: Array, backward: Array) -> float:
    """The most that a path takes with every group that goes on from the last stage to an early one,
    for its first round of the next group, and from the first stage back, so that it sees first
    rounds more often and no last one; 0 where none can."""
    longest = 0.0
    end = forward[-1].upto + backward[-1].upto
    for at in range(min(len(stage), EARLY)):
        f = forward[at]
        b = backward[at]
        early = group * (f.first + b.first) + f.upto + b.upto - f.last - b.last
        for i in range(len(stage)):
            beyond = stage[i] - stage[at]
            if 2 * beyond >= group:
                f = forward[i]
                b = backward[i]
                own = group * (f.each + b.each) + 2 * (beyond - group) * (f.first + b.first)
                own -= (group - 1) * (f.last + b.last) + f.upto + b.upto
                longest = max(longest, early + own + end)
    return longest


@inlined
def wandering(
    pp: int,
    micro_batches: int,
    group: int,
    steady: float,
    ahead: float,
    last: float,
    forward: Array,
    backward: Array,
) -> float:
    """Seconds of a path of an interleaved pipeline that wanders with every round to the stage that
    has more in it, where rounds differ from stage to stage (models.cost.stage_partition).

    For all micro-batches but a group it takes `steady` seconds each, on a path that alternates. For
    the first and the last group, of which either has one kind of pass, it takes `ahead`, as where
    all forwards come first; that path ends at stage `last`. That it waits for half of the first
    round before it is typical; where there is one group, it waits for what comes before that
    stage.
    """
    waits = 0.5 if micro_batches > group else last / (pp - 1)
    before = forward[-1].before + backward[-1].before
    return group * ahead + (micro_batches - group) * steady + waits * before


@inlined
def zero_bubble(
    pp: int, micro_batches: int, stage: Array, forward: Array, to_input: Array
) -> float:
    """Seconds of a pipeline under ZB-H1, which is 1F1B of forwards and input gradients, with the
    weight gradients of every micro-batch after the input gradients of a later one: as many later as
    the stage's number.

    Before its first weight gradients a stage alternates, or waits for another one that does
    (_until_weights); a path then stays on one stage until the last forward; from there, or from a
    later stage that this forward goes on to, input gradients go up, on the slowest stage as many
    times as are left, and the stage where they end has as many weight gradients left as its number
    (_after_forwards).
    """
    _go_ahead(pp, micro_batches, stage, forward)
    _go_ahead(pp, micro_batches, stage, to_input)
    _wait_for_later(forward, to_input)
    _come_down(pp, micro_batches, stage, forward, to_input)
    longest = 0.0
    passed_on = -np.inf
    for i in range(len(stage)):
        f = forward[i]
        b = to_input[i]
        begun = _until_weights(pp, micro_batches, stage, forward, to_input, i)
        steady = begun + max(micro_batches - pp, 0) * (f.each + b.each + b.weight)
        if micro_batches > pp:
            passed_on = max(passed_on, steady - b.each - f.upto)
            steady = passed_on + f.upto + b.each
        ending = _after_forwards(pp, micro_batches, stage, to_input, i)
        longest = max(longest, steady + ending)
    return longest


@inlined
def _alternating(pp: int, micro_batches: int, stage: int) -> int:
    """How many times a stage of ZB-H1 alternates forwards and input gradients."""
    return min(pp, micro_batches) - _ahead(pp, micro_batches, stage)


@inlined
def _come_down(pp: int, micro_batches: int, stage: Array, forward: Array, to_input: Array) -> None:
    """Sets `arrived`: an earlier stage has alternated as long as there are forwards, and the last
    one of these has come down to the stage."""
    latest = -np.inf
    for i in range(len(stage)):
        f = forward[i]
        f.arrived = latest + f.upto
        alternating = _alternating(pp, micro_batches, stage[i])
        done = f.done
        if alternating > 0:
            done = f.ready + alternating * (f.each + to_input[i].each)
        latest = max(latest, done - f.upto)


@inlined
def _until_weights(
    pp: int, micro_batches: int, stage: Array, forward: Array, to_input: Array, i: int
) -> float:
    """When stage i has done what comes before its first weight gradients. It waits for itself or a
    later one that alternates as long as there are forwards and then has only input gradients, as
    have those on the way back; or for an earlier one, of which the last forward comes down to the
    later one."""
    latest = slowest = 0.0
    due = min(stage[i], micro_batches - 1)
    for at in range(i, len(stage)):
        f = forward[at]
        b = to_input[at]
        slowest = max(slowest, b.each)
        alternating = _alternating(pp, micro_batches, stage[at])
        some = min(due, alternating)
        begun = f.ready + some * (f.each + b.each)
        if due >= alternating:
            begun = max(begun, f.arrived)
        way_back = to_input[i].each + b.upto - to_input[i].upto
        latest = max(latest, begun + (due - some) * slowest + way_back)
    return latest


@inlined
def _after_forwards(pp: int, micro_batches: int, stage: Array, to_input: Array, i: int) -> float:
    """What comes after the last forward on stage i: the input gradients that are left, with weight
    gradients, on the slowest stage on the way up to any where they end, and the weight gradients
    that are left there."""
    longest = slowest = 0.0
    left = max(min(pp, micro_batches) - 1 - stage[i], 0)
    before = to_input[i].upto - to_input[i].each
    for at in range(i, -1, -1):
        b = to_input[at]
        slowest = max(slowest, b.each + b.weight)
        way_up = before - (b.upto - b.each)
        weights = min(stage[at] + 1, micro_batches) * b.weight
        longest = max(longest, left * slowest + way_up + weights)
    return longest


@inlined
def zero_bubble_v(
    pp: int, micro_batches: int, forward: float, to_input: float, weight: float
) -> float:
    """Seconds that the longest path through a pipeline of equal chunks in a V takes beyond the work
    of one stage, by those of a chunk.

    Whatever the three operations take, one of these paths is the longest. They were found by
    walking it through the operations of ScheduleZBVZeroBubble for random times. With as many
    micro-batches as stages, or fewer, few begin before all have to wait for the first to come back;
    with twice as many, or more, stages alternate once they are `full`, which more of them does not
    change.
    """
    f = forward
    i = to_input
    w = weight
    others = pp - 1
    if micro_batches <= pp:
        n = micro_batches - 1
        return max(
            2 * (others - n) * f + 2 * others * i,
            (2 * others - n) * f + (2 * others - n) * i,
            2 * others * f + 2 * (others - n) * i - 2 * n * w,
            2 * others * f + (2 * others - 3 * n) * i - n * w,
        )
    full = min(micro_batches - pp, others)
    short = others - full
    return max(
        2 * others * i - 2 * full * w,
        2 * short * i,
        (others + short) * i - short * w,
        (short + 1) * i + (full - 1) * w,
        (short + 1) * f + (full - 1) * w,
        short * f + short * i,
        (others + full - 1) * f + (1 - full) * i,
        (others + full - 1) * f + (short + 1) * i - 2 * full * w,
        (others + full - 1) * f + (short - full + 1) * i - short * w,
        (others + full) * f - full * i - w,
        (others + full) * f + short * i - (2 * full + 1) * w,
        (others + full) * f + (short - full) * i - full * w,
        (others + full) * f + (short - full) * i - (short + 1) * w,
        2 * others * f - (2 * others + 1) * w,
        2 * others * f - others * i - min(others, 2 * short + 1) * w,
        2 * others * f - full * i - min(2 * others - full, 3 * short + 1) * w,
    )
