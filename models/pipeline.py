"""Pipeline schedules: what is in flight, and the bubble.

Closed forms, with F, B, W the forward, full backward and weight-gradient seconds a micro-batch spends on a stage,
m micro-batches and p stages. A discrete-event simulation of the same schedules agrees (tests): for any stages
under afab and 1f1b, for equal stages under interleaved, (F = W, as in its paper) zero_bubble, (W <= I <= F) dualpipe
and (m >= 2p-1, W <= F <= I) zero_bubble_v, and closely for others; with unequal stages interleaved is an upper bound,
or nearly, since a slow early stage hides part of its fill behind warm-up forwards. Interleaved chunks that differ fill
and drain the pipeline with those of the first round, and wait for each other in one of two ways, whichever
takes longer. Stages are in step: a round lasts as long as its longest chunk, and what that takes over all rounds beyond
the work of the slowest stage is idle time. Or what the last stage has done wraps around to the first one's next chunk,
which began about as many steps before as there are stages, and back: with every group of g micro-batches a path through
both sees the longer chunks once more and skips the shorter ones, but for the groups that fill and drain the pipeline.
Where it takes longer the path goes to the first stage with a backward pass through all stages instead. With chunks as
models.partition deals them out the simulation takes 4% less to 1% more for models as they are; where layers are few and
the head is worth several of them up to a quarter less, and 3% more at most (tests). zero_bubble is its paper's; stages
that are alike and take what they can start first take up to 13% longer with as many micro-batches as stages, others up
to 22% (docs/model.md).

schedule      idle time of stage s, besides m (F+B) of work                       source
afab          ΣF + (m-1) max F + ΣB + (m-1) max B - m (F+B)                       GPipe, arXiv 1811.06965
1f1b          that of one_f_one_b less m (F+B): with equal stages (p-1)(F+B)       arXiv 2006.09503
interleaved   Σ(F+B)/v over the other stages, or Σ(F+B) of their chunks of the    arXiv 2104.04473 §2.2
              first round; and m (Σ over rounds of max(F+B) - max of stages), or
              (m/g - 2)((2p-2-g) c - (g-1) d) with c the mean F+B of chunks of the
              first round and d that of the last round, and, each if more than 0,
              m/g - 2 times (g+1-p) B of c less (2p-1-g) F of d, and, from the second
              group on, p-1 times (B of c less d) less F of d
zero_bubble   Σ(F+B-W) over the other stages (ZB-H1: no stage waits for W), less  arXiv 2401.10241 table 2
              the p-1 W of its own that fill the bubble, with fewer than p
              micro-batches m-1; memory as 1f1b
zero_bubble_v with I = B-W, of a whole stage, half of                             ScheduleZBVZeroBubble of PyTorch
              2(p-1)(F+I) - (min(m,p)-1)(F + min(F,I)) - 2W max(m-p,0), or of     (torch.distributed.pipelining)
              (p-1) max(I, 2I-2W, 2F-I) if that is more
dualpipe      (p/2-1)(F+B-2W + max(F,I)), which is (p/2-1)(F+B + B - 3W) where    arXiv 2412.19437 table 2
              I is no less than F
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from models.array import Array, picked
from models.layout import AFAB, DUALPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, ZERO_BUBBLE_V
from models.partition import Order


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of a micro-batch: forward, backward and its weight gradients on the different stages, (s, n); both
    passes, and weight gradients, of all stages, (n,). Weight gradients may be 0 where no schedule moves them.
    `order`, `partition`: how stages follow each other, and whose order each is (`code` of models.partition.Stages). Of
    chunks dealt out in rounds, both passes of all in the first round, of the slowest of every round, and of the slowest
    of the last round but the head's, (n,); 0 where chunks are alike."""

    forward: Array
    backward: Array
    weight: Array | float
    total: Array
    total_weight: Array | float
    order: Order
    partition: Array
    first_round: Array | float = 0.0
    slowest: Array | float = 0.0
    last_round: Array | float = 0.0


def micro_batch_group(pp: Array | int, micro_batches: Array | int) -> Array:
    """Of an interleaved schedule, how many micro-batches pass a chunk of a stage before its next one: the fewest, from
    pp on, that leave no remainder or one of pp or more, so that no stage waits (Megatron-Core schedules.py,
    get_schedule_table; pp in arXiv 2104.04473 §2.2)."""
    pp, m = np.broadcast_arrays(pp, np.maximum(micro_batches, pp))
    shape, pp, m = pp.shape, pp.ravel(), m.ravel()
    group, left = pp.copy(), np.arange(pp.size)
    while len(left):
        rest = m[left] % group[left]
        left = left[(rest > 0) & (rest < pp[left])]
        group[left] += 1
    return group.reshape(shape)


def in_flight(schedule: Array, stage: Array, pp: Array, virtual_stages: Array, micro_batches: Array) -> Array:
    """Micro-batches whose activations a stage holds at its fullest, in units of all the layers it holds."""

    def interleaved() -> Array:
        chunks = 2 * (pp - stage - 1) + (virtual_stages - 1) * micro_batch_group(pp, micro_batches) + 1
        return np.asarray(np.minimum(chunks, micro_batches * virtual_stages) / virtual_stages)

    others: dict[int, Callable[[], Array]] = {
        AFAB: lambda: micro_batches,
        INTERLEAVED: interleaved,
        ZERO_BUBBLE_V: lambda: np.minimum(pp, micro_batches),
        DUALPIPE: lambda: np.minimum(pp + 1, micro_batches),
    }
    return _by_schedule(schedule, np.minimum(pp - stage, micro_batches).astype(float), others)


def ends_together(schedule: Array) -> Array:
    """Whether stages are taken to do what comes once a step when the last of them has done its passes."""
    return np.isin(schedule, (ONE_F_ONE_B, AFAB))


def waiting(schedule: Array, pp: Array, micro_batches: Array, times: StageTimes) -> Array:
    """Seconds of a micro-batch in which the slowest stage waits for longer chunks, of other stages or of other rounds,
    (n,), under an interleaved schedule. Others count no such time."""

    def interleaved() -> Array:
        longer = times.slowest - (times.forward + times.backward).max(axis=0)
        group = micro_batch_group(pp, micro_batches)
        forward, backward = times.forward.max(axis=0), times.backward.max(axis=0)
        share = backward / (forward + backward)
        seen, skipped = times.first_round / pp, times.last_round
        begun, skipped_forward = share * seen - skipped, (1 - share) * skipped
        wrapped = (2 * pp - 2 - group) * seen - (group - 1) * skipped
        down = (group + 1 - pp) * share * seen - (2 * pp - 1 - group) * skipped_forward
        groups = micro_batches / group
        path = np.maximum(groups - 2, 0.0) * np.maximum(wrapped + np.maximum(down, 0.0), 0.0)
        path += np.minimum(groups - 1, 1.0) * np.maximum((pp - 1) * begun - skipped_forward, 0.0)
        return np.maximum(np.maximum(longer, path / micro_batches), 0.0)

    return _by_schedule(schedule, np.zeros(len(schedule)), {INTERLEAVED: interleaved})


def moves_weight_gradients(schedule: Array) -> bool:
    """Whether some of the schedules fill their bubble with weight gradients."""
    return bool(np.isin(schedule, (ZERO_BUBBLE, ZERO_BUBBLE_V, DUALPIPE)).any())


def one_f_one_b(pp: Array, micro_batches: Array, stage: Array, forward: Array, backward: Array) -> Array:
    """Seconds of pipelines under 1F1B, (n,), of which some stages are given, (s, n) in their order: their number and
    times, which are also those of the ones between a stage and the one given before it. They have to be the first and
    the last of every stretch of stages that are alike; a stretch ends as well with the last stage ahead of which all
    micro-batches go.

    A step lasts as long as the longest path through operations that wait for each other, which stays on one stage
    while that alternates. Until then, with k micro-batches ahead (pp less the stage's number, m at most), a stage waits
    for its own k forwards, or for k forwards of a later one and what the first backward takes from there; of forwards
    for those of every stage up to it, and k - 1 more of the slowest of them. From its last forward on it is the same
    with time turned round. Where all m go ahead, one of both ways leads through other stages. All that is linear from
    stage to stage that is alike, or the larger of what is, so that it is largest at an end.
    """
    ahead = np.minimum(pp - stage, micro_batches)
    steps = np.diff(stage, axis=0, prepend=-1)
    forwards, backwards = np.cumsum(steps * forward, axis=0), np.cumsum(steps * backward, axis=0)
    own_start, start = _before_alternating(forwards, forward, backwards, ahead)
    own_end, end = _before_alternating(backwards, backward, forwards, ahead)
    alternating = start + (micro_batches - ahead) * (forward + backward) + end
    one_way = np.maximum(own_start + end, start + own_end)
    return np.asarray(np.where(micro_batches > ahead, alternating, one_way).max(axis=0))


def _before_alternating(firsts: Array, first: Array, thens: Array, ahead: Array) -> tuple[Array, Array]:
    """When stages have done their own first passes, and when they may go on with the other kind, (s, n); `firsts`,
    `thens`: of all stages up to each."""
    own = firsts + (ahead - 1) * _largest_so_far(first)
    return own, _largest_so_far((own + thens)[::-1])[::-1] - thens


def _largest_so_far(values: Array) -> Array:
    """np.maximum.accumulate, which takes longer over few rows."""
    found = values.copy()
    for before, row in zip(found, found[1:], strict=False):
        np.maximum(before, row, out=row)
    return found


def bubble(
    schedule: Array, pp: Array, virtual_stages: Array, micro_batches: Array, times: StageTimes, waits: Array
) -> Array:
    """Seconds that each stage is idle in a step, (s, n), with what it `waits` for longer chunks (waiting). Under afab
    and 1f1b until the last of them has done its passes; without a pipeline nowhere."""
    t, m1 = times, micro_batches - 1
    both = t.forward + t.backward
    if (pp == 1).all():
        return np.zeros_like(both)
    fill = t.total - both

    def afab() -> Array:
        slowest = t.forward.max(axis=0) + t.backward.max(axis=0)
        return np.asarray(t.total + m1 * slowest - micro_batches * both)

    def interleaved() -> Array:
        own = np.minimum(both / virtual_stages, t.first_round / pp)  # the head is in the last round
        filling = np.maximum(fill / virtual_stages, t.first_round - own)
        return filling + micro_batches * waits

    def zero() -> Array:
        others, own = t.total_weight - t.weight, np.minimum(m1, pp - 1) * t.weight
        return np.maximum(fill - others - own, 0.0)

    def zero_v() -> Array:
        to_input = t.backward - t.weight
        begun = (np.minimum(micro_batches, pp) - 1) * (t.forward + np.minimum(t.forward, to_input))
        few = 2 * (pp - 1) * (t.forward + to_input) - begun - 2 * t.weight * np.maximum(micro_batches - pp, 0)
        many = np.maximum(np.maximum(to_input, 2 * (to_input - t.weight)), 2 * t.forward - to_input)
        return np.asarray(np.maximum(few, (pp - 1) * many) / 2)

    def dual() -> Array:
        overlapping = both - 2 * t.weight + np.maximum(t.forward, t.backward - t.weight)
        return np.asarray(np.maximum((pp / 2 - 1) * overlapping, 0.0))

    def plain() -> Array:
        return np.asarray(_plain(pp, micro_batches, t, (schedule == ONE_F_ONE_B) & (pp > 1)) - micro_batches * both)

    others: dict[int, Callable[[], Array]] = {
        AFAB: afab,
        ONE_F_ONE_B: plain,
        INTERLEAVED: interleaved,
        ZERO_BUBBLE: zero,
        ZERO_BUBBLE_V: zero_v,
        DUALPIPE: dual,
    }
    return np.where(pp > 1, _by_schedule(schedule, np.zeros_like(both), others), 0.0)


def _plain(pp: Array, micro_batches: Array, times: StageTimes, rows: Array) -> Array:
    """Of `rows` (a mask) their seconds under 1F1B, (n,)."""
    found = np.zeros(len(pp))
    for few in (True, False):
        some = np.flatnonzero(rows & ((micro_batches < pp) == few))
        if not len(some):
            continue
        count, m, partition = pp[some], micro_batches[some], times.partition[some]
        stage = times.order.corners.take(partition, axis=1)
        if few:
            last = count - m
            stage = np.sort(np.concatenate([stage, [last, np.minimum(last + 1, count - 1)]]), axis=0)
        kind = picked(times.order.kind, stage, partition)
        passes = (picked(values, kind, some) for values in (times.forward, times.backward))
        found[some] = one_f_one_b(count, m, stage, *passes)
    return found


def _by_schedule(schedule: Array, usual: Array, others: Mapping[int, Callable[[], Array]]) -> Array:
    """`usual`, and for the schedules that occur among the rows what those have instead."""
    for code, value in others.items():
        mine = schedule == code
        if mine.any():
            usual = np.where(mine, value(), usual)
    return usual
