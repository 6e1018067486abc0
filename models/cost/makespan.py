"""Makespans of pipelines: the longest path through operations that wait for each other, in closed
form.

An operation waits for the one before it on its stage, and for the operation of a neighbouring stage
that gives it its input. The makespan is the length of the longest path through these waits, and
only few paths can be the longest. The length of each is piecewise linear in the stages where it
turns, so it is largest where a stretch of equal stages begins or ends, or where a count of
micro-batches changes. Therefore only those stages are given: arrays have shape (s, n), stages in
their order, and the times of a stage are also those of the stages between it and the one given
before it. Numbers of stages and of micro-batches have shape (n,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.columns import Array, take_at


def turns(pp: Array, micro_batches: Array, corners: Array) -> Array:
    """The stages at which the paths of a pipeline with fewer micro-batches than stages can turn;
    shape (3s, n). Stretches of equal stages begin and end at `corners` (s, n)."""
    few = pp - micro_batches
    more = (np.clip(corners + by, 0, pp - 1) for by in (-few, few))
    return np.sort(np.concatenate([corners, *more]), axis=0)


def turns_of_rounds(pp: Array, micro_batches: Array, corners: Array) -> Array:
    """The same for an interleaved pipeline whose micro-batches are one group: its late stages
    alternate forward and backward, its early stages do not."""
    turn = pp - 1 - micro_batches // 2
    return np.sort(np.concatenate([corners, np.clip([turn, turn + 1], 0, pp - 1)]), axis=0)


def one_f_one_b(
    pp: Array, micro_batches: Array, stage: Array, forward: Array, backward: Array
) -> Array:
    """Seconds of pipelines under 1F1B, (n,).

    The longest path stays on one stage while that alternates. Until then, with k micro-batches
    ahead (pp less the stage's number, m at most), a stage waits for its own k forwards, or for k
    forwards of a later one and what the first backward takes from there; of forwards for those of
    every stage up to it, and k - 1 more of the slowest of them. From its last forward on it is the
    same with time turned round. Where all m go ahead, one of both ways leads through other stages.
    """
    ahead = np.minimum(pp - stage, micro_batches)
    steps = np.diff(stage, axis=0, prepend=-1)
    forwards, backwards = _sums(steps * forward), _sums(steps * backward)
    own_start, start = _before_alternating(forwards, forward, backwards, ahead)
    own_end, end = _before_alternating(backwards, backward, forwards, ahead)
    alternating = start + (micro_batches - ahead) * (forward + backward) + end
    one_way = np.maximum(own_start + end, start + own_end)
    return np.asarray(np.where(micro_batches > ahead, alternating, one_way).max(axis=0))


@dataclass(frozen=True, slots=True)
class Chunks:
    """Seconds of one kind of pass on all chunks of a stage, and on those of the first and of the
    last round, (s, n)."""

    whole: Array
    first: Array
    last: Array

    def less(self, others: Chunks) -> Chunks:
        return Chunks(self.whole - others.whole, self.first - others.first, self.last - others.last)


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds of a micro-batch on chunks that are dealt out in rounds, (n,) but for those of
    stages: both passes on a path from stage to stage that alternates; and on one where all forwards
    come first, which ends at stage `last`. Neither where they stay on one stage."""

    forward: Chunks
    backward: Chunks
    steady: Array
    ahead: Array
    last: Array

    def at(self, kind: Array, rows: Array) -> Rounds:
        """Of some rows, with stages (s, rows) of these kinds."""
        forward, backward = (
            Chunks(*(take_at(values, kind, rows) for values in (of.whole, of.first, of.last)))
            for of in (self.forward, self.backward)
        )
        paths = (values.take(rows) for values in (self.steady, self.ahead, self.last))
        return Rounds(forward, backward, *paths)


def interleaved(
    pp: Array, micro_batches: Array, rounds: Array, group: Array, stage: Array, seconds: Rounds
) -> Array:
    """Seconds of pipelines with chunks dealt out in rounds, of which each passes a group of
    micro-batches before the next one, (n,).

    It is 1F1B of chunks, with twice as many more forwards ahead for every stage that follows, and
    all but the last round of a group. Before it alternates, a stage waits for its own forwards, for
    as many of one before it, or for what the first backward takes from a later one; from its last
    forward on it is the same with time turned round. With every group that alternates the path may
    leave a stage, where that is longer (_leaving). Where rounds differ from stage to stage, it
    wanders to those that have more in them (models.cost.stage_partition.Steady), the first and the
    last group's as where all forwards come first; that it waits for half of the first round before
    it is typical.
    """
    m, g, left, forward, backward = (
        micro_batches,
        group,
        pp - 1 - stage,
        seconds.forward,
        seconds.backward,
    )
    ahead = np.minimum(2 * left + (rounds - 1) * g + 1, m * rounds)
    late = (
        ahead - (rounds - 1) * g
    )  # of which so many are of the last round, or of the next group's first one
    counts = (g, np.minimum(late, g), np.maximum(late - g, 0))
    steps = np.diff(stage, axis=0, prepend=-1)
    forwards, backwards = (
        (_sums(steps * of.first) - of.first, _sums(steps * of.last)) for of in (forward, backward)
    )  # first rounds of all before a stage, last rounds of all up to it
    begun, own_start = _rounds_ahead(counts, *forwards, forward)
    ended, own_end = _rounds_ahead(counts, *backwards, backward)
    start, end = _back_from_later(begun, backwards[1]), _back_from_later(ended, forwards[1])
    groups, whole = m / g, m * (forward.whole + backward.whole)
    head, (early, leaving, later) = _leaving(
        g, groups, left, stage, forward, backward, forwards[1] + backwards[1]
    )
    alternating = (
        np.maximum(np.maximum(begun, start), forwards[0] + own_start + early)
        + (whole - own_start - own_end)
        + np.maximum(groups - 2, 0.0) * np.maximum(leaving, 0.0)
        + np.maximum(np.maximum(ended, end), backwards[0] + own_end + later)
    )
    filled = forwards[0] + backwards[0]
    waits = filled[-1] * np.where(groups > 1, 0.5, seconds.last / (pp - 1))
    wanders = np.where(seconds.ahead > 0, g * seconds.ahead + (m - g) * seconds.steady + waits, 0.0)
    if not (some := np.flatnonzero(groups <= 1)).size:
        return np.asarray(np.maximum(alternating.max(axis=0), wanders))
    one_way = np.maximum(begun + end, start + ended)
    once = whole + filled + np.maximum(head, 0.0)
    found = np.where(m * rounds > ahead, alternating, one_way)
    found[:, some] = np.maximum(found, once)[:, some]
    return np.asarray(np.maximum(found.max(axis=0), wanders))


def zero_bubble(
    pp: Array, micro_batches: Array, stage: Array, forward: Array, to_input: Array, weight: Array
) -> Array:
    """Seconds of pipelines under ZB-H1, (n,), which is 1F1B of forwards and input gradients, with
    the weight gradients of every micro-batch after the input gradients of a later one: as many
    later as the stage's number.

    Before its first weight gradients a stage alternates, or waits for another one that does
    (_until_weights); a path then stays on one stage until the last forward; from there, or from a
    later stage that this forward goes on to, input gradients go up, on the slowest stage as many
    times as are left, and the stage where they end has as many weight gradients left as its number
    (_after_forwards).
    """
    m, f, i, w = micro_batches, forward, to_input, weight
    steps = np.diff(stage, axis=0, prepend=-1)
    forwards, inputs = _sums(steps * f), _sums(steps * i)
    begun = _until_weights(pp, m, stage, f, i, forwards, inputs)
    ending = _after_forwards(pp, m, stage, i, w, inputs - i)
    steady = begun + np.maximum(m - pp, 0) * (f + i + w)
    passed_on = np.where(m > pp, _largest_so_far(steady - i - forwards) + forwards + i, steady)
    return np.asarray((passed_on + ending).max(axis=0))


def zero_bubble_v(pp: Array, micro_batches: Array) -> Array:
    """Of pipelines of equal chunks in a V, how many more forwards, input and weight gradients of a
    chunk than one stage has the longest paths take, (paths, 3, n): whatever those take, one of
    these paths is the longest.

    Found by walking the longest path through the operations of ScheduleZBVZeroBubble for random
    times of the three. With as many micro-batches as stages, or fewer, few begin before all have to
    wait for the first to come back; with twice as many, or more, stages alternate once they are
    `full`, which more of them does not change.
    """
    others, none = pp - 1, np.zeros_like(pp)
    n, full = np.minimum(micro_batches, pp) - 1, np.clip(micro_batches - pp, 0, pp - 1)
    short = others - full
    few = (
        (2 * (others - n), 2 * others, none),
        (2 * others - n, 2 * others - n, none),
        (2 * others, 2 * (others - n), -2 * n),
        (2 * others, 2 * others - 3 * n, -n),
    )
    many = (
        (none, 2 * others, -2 * full),
        (none, 2 * short, none),
        (none, others + short, -short),
        (none, short + 1, full - 1),
        (short + 1, none, full - 1),
        (short, short, none),
        (others + full - 1, 1 - full, none),
        (others + full - 1, short + 1, -2 * full),
        (others + full - 1, short - full + 1, -short),
        (others + full, -full, none - 1),
        (others + full, short, -2 * full - 1),
        (others + full, short - full, -full),
        (others + full, short - full, -short - 1),
        (2 * others, none, -2 * others - 1),
        (2 * others, -others, -np.minimum(others, 2 * short + 1)),
        (2 * others, -full, -np.minimum(2 * others - full, 3 * short + 1)),
    )
    padded = np.array([*few, *few[-1:] * (len(many) - len(few))])
    return np.where(micro_batches > pp, np.array(many), padded)


def _until_weights(
    pp: Array,
    micro_batches: Array,
    stage: Array,
    forward: Array,
    to_input: Array,
    forwards: Array,
    inputs: Array,
) -> Array:
    """When stages have done what comes before their first weight gradients, (s, n); `forwards` and
    `inputs`: of all stages up to each. One waits for a later one that alternates as long as there
    are forwards and then has only input gradients, as have those on the way back; or for an earlier
    one, of which the last forward comes down to the later one."""
    ahead, due = np.minimum(pp - stage, micro_batches), np.minimum(stage, micro_batches - 1)
    alternating, both, up = (
        np.minimum(pp, micro_batches) - ahead,
        forward + to_input,
        inputs - to_input,
    )
    own, start = _before_alternating(forwards, forward, inputs, ahead)
    comes_down = np.where(alternating > 0, start + alternating * both, own) - forwards
    found, earlier = np.full_like(own, -np.inf), np.full_like(own[0], -np.inf)
    for at in range(len(stage)):
        some, largest = (
            np.minimum(due[: at + 1], alternating[at]),
            _largest_so_far(to_input[at::-1])[::-1],
        )
        by_itself = start[at] + some * both[at]
        by_earlier = np.where(due[: at + 1] >= alternating[at], earlier + forwards[at], -np.inf)
        on_the_way = to_input[at] + (due[: at + 1] - some) * largest + up[at] - up[: at + 1]
        found[: at + 1] = np.maximum(
            found[: at + 1], np.maximum(by_itself, by_earlier) + on_the_way
        )
        earlier = np.maximum(earlier, comes_down[at])
    return found


def _after_forwards(
    pp: Array, micro_batches: Array, stage: Array, to_input: Array, weight: Array, up: Array
) -> Array:
    """What comes after the first weight gradients but for what takes turns with forwards, (s, n);
    `up`: input gradients of all stages before each."""
    left, both = np.maximum(np.minimum(pp, micro_batches) - 1 - stage, 0), to_input + weight
    at_end = np.minimum(stage + 1, micro_batches) * weight
    found = np.zeros_like(both)
    for at in range(len(stage)):
        ending = left[at:] * _largest_so_far(both[at:]) + up[at:] - up[at] + at_end[at]
        found[at:] = np.maximum(found[at:], ending)
    return found


def _before_alternating(
    firsts: Array, first: Array, thens: Array, ahead: Array
) -> tuple[Array, Array]:
    """When stages have done their own first passes, and when they may go on with the other kind,
    (s, n); `firsts`, `thens`: of all stages up to each."""
    own = firsts + (ahead - 1) * _largest_so_far(first)
    return own, _back_from_later(own, thens)


def _rounds_ahead(
    counts: tuple[Array, Array, Array], before: Array, upto: Array, passes: Chunks
) -> tuple[Array, Array]:
    """When stages have done the passes that come before they alternate, or one before them as many,
    and what those are of their own, (s, n): so many of every round but the last, of the last, and
    of the first again; `before`, `upto`: the first rounds of all stages before each, the last
    rounds of all up to it."""
    every, late, again = counts
    earlier = every * (passes.whole - passes.last)
    own = earlier + late * passes.last + again * passes.first
    found = before + own
    for at in range(len(found) - 1):
        then = (
            before[at]
            + earlier[at]
            - upto[at]
            + late[at + 1 :] * passes.last[at]
            + again[at + 1 :] * passes.first[at]
        )
        np.maximum(found[at + 1 :], then + upto[at + 1 :], out=found[at + 1 :])
    return found, own


def _back_from_later(done: Array, back: Array) -> Array:
    """When stages may go on with what comes back from whichever is done, (s, n); `back`: of all
    stages up to each."""
    return _largest_so_far((done + back)[::-1])[::-1] - back


def _leaving(
    group: Array,
    groups: Array,
    left: Array,
    stage: Array,
    forward: Chunks,
    backward: Chunks,
    passed: Array,
) -> tuple[Array, tuple[Array, Array, Array]]:
    """What a path takes more, (s, n), that leaves a stage for the chunks of the last one that have
    the head, without what it misses meanwhile of the next group's first round; and with that as
    often as it may: in the first group, in those after it, where a path may go round instead as one
    of the stages does, and in the last one. `passed`: chunks of the last round of all stages up to
    each."""
    first, last = forward.first + backward.first, forward.last + backward.last
    head = np.where(
        left > 0, group * last[-1] + passed[-1] - last[-1] - passed - (group - 1) * last, 0.0
    )
    returns = (groups > 1) & (2 * left <= group)  # before that round is over
    early, between, later = (
        np.where(returns, head - 2 * left * missed, 0.0)
        for missed in (forward.first, first, backward.first)
    )
    each = group * (forward.whole + backward.whole)
    around = (each + _going_round(group, stage, first, last, passed)).max(axis=0) - each
    return head, (early, np.maximum(between, around), np.minimum(groups - 1, 1) * later)


def _going_round(group: Array, stage: Array, first: Array, last: Array, passed: Array) -> Array:
    """What a path takes more with every group that goes on from the last stage to an early one, for
    its first round of the next group, and from the first stage back, so that it sees first rounds
    more often and no last one, (s, n); `passed`: chunks of the last round of all stages up to
    each."""
    found = np.full_like(first, -np.inf)
    for at in range(min(len(first), EARLY)):
        beyond = stage - stage[at]
        seen = (
            group * first[at]
            + 2 * (beyond - group) * first
            + passed[-1]
            - passed
            + passed[at]
            - last[at]
        )
        found = np.maximum(found, np.where(2 * beyond >= group, seen - (group - 1) * last, -np.inf))
    return found


EARLY = 3
"""Of the stages that are given so many that a path may go round to: the first, and one or two of
those that follow."""


def _sums(values: Array) -> Array:
    """np.cumsum, which takes longer over few rows."""
    found = values.copy()
    for before, row in zip(found, found[1:], strict=False):
        row += before
    return found


def _largest_so_far(values: Array) -> Array:
    """np.maximum.accumulate, which takes longer over few rows."""
    found = values.copy()
    for before, row in zip(found, found[1:], strict=False):
        np.maximum(before, row, out=row)
    return found
