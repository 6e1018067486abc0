"""Pipeline schedules: what is in flight, and the bubble.

Closed forms, with F, B, W the forward, full backward and weight-gradient seconds a micro-batch spends on a stage,
m micro-batches and p stages. A discrete-event simulation of the same schedules agrees (tests): for any stages under
afab, 1f1b and zero_bubble, for equal chunks under interleaved, dualpipe and zero_bubble_v, and closely for others; with
unequal stages interleaved is an upper bound, or nearly, since a slow early stage hides part of its fill behind warm-up
forwards. Interleaved chunks that differ fill and drain the pipeline with those of the first round, and wait for each
other in one of two ways, whichever takes longer. Stages are in step: a round lasts as long as its longest chunk, and
what that takes over all rounds beyond the work of the slowest stage is idle time. Or what the last stage has done wraps
around to the first one's next chunk, which began about as many steps before as there are stages, and back: with every
group of g micro-batches a path through both sees the longer chunks once more and skips the shorter ones, but for the
groups that fill and drain the pipeline. Where it takes longer the path goes to the first stage with a backward pass
through all stages instead. With chunks as models.partition deals them out the simulation takes 4% less to 1% more for
models as they are; where layers are few and the head is worth several of them up to two fifths less, and 3% more at
most (tests), but up to a fifth where few layers are of two kinds. A V and DualPipe fill and drain the pipeline with the
mean of the other stages, or with those of the other half (docs/model.md has how near that is).

schedule      idle time of stage s, besides m (F+B) of work                       source
afab          ΣF + (m-1) max F + ΣB + (m-1) max B - m (F+B)                       GPipe, arXiv 1811.06965
1f1b          what one_f_one_b of models.makespan takes less m (F+B): with equal  arXiv 2006.09503
              stages (p-1)(F+B)
interleaved   Σ(F+B)/v over the other stages, or Σ(F+B) of their chunks of the    arXiv 2104.04473 §2.2
              first round; and m (Σ over rounds of max(F+B) - max of stages), or
              (m/g - 2)((2p-2-g) c - (g-1) d) with c the mean F+B of chunks of the
              first round and d that of the last round, and, each if more than 0,
              m/g - 2 times (g+1-p) B of c less (2p-1-g) F of d, and, from the second
              group on, p-1 times (B of c less d) less F of d
zero_bubble   the same of its zero_bubble: with equal stages, m >= p and W at     arXiv 2401.10241 table 2 (ZB-H1)
              most F and B-W (p-1)(F+B-2W); as many micro-batches in flight on
              every stage as on the first
zero_bubble_v the longest path of its zero_bubble_v, of chunks that take what     ScheduleZBVZeroBubble of PyTorch
              those of the other stages take in the mean                          (torch.distributed.pipelining)
dualpipe      with F, I and W of all the other stages of a half and F1 their  arXiv 2412.19437 table 2
              mean F, max(2F, F+I - F1) + max(I-W, 0): with equal ones and F = I
              (p/2-1)(F+B + B-3W)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np

from models.array import Array, picked, total
from models.layout import AFAB, DUALPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, ZERO_BUBBLE_V
from models.makespan import one_f_one_b, turns, zero_bubble, zero_bubble_v
from models.partition import Order


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of a micro-batch: forward, backward and its weight gradients on the different stages, (s, n); forward,
    both passes, and weight gradients of all stages, (n,). Weight gradients may be 0 where no schedule moves them.
    `order`, `partition`: how stages follow each other, and whose order each is (`code` of models.partition.Stages). Of
    chunks dealt out in rounds, both passes of all in the first round, of the slowest of every round, and of the slowest
    of the last round but the head's, (n,); 0 where chunks are alike."""

    forward: Array
    backward: Array
    weight: Array | float
    total_forward: Array
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
        ZERO_BUBBLE: lambda: np.minimum(pp, micro_batches),
        ZERO_BUBBLE_V: lambda: np.minimum(pp, micro_batches),
        DUALPIPE: lambda: np.minimum(pp + 1, micro_batches),
    }
    return _by_schedule(schedule, np.minimum(pp - stage, micro_batches).astype(float), others)


def level(schedule: Array) -> Array:
    """Whether every stage holds as many micro-batches as the first, of schedules with a chunk a stage."""
    return (schedule == AFAB) | (schedule == ZERO_BUBBLE)


def ends_together(schedule: Array) -> Array:
    """Whether stages are taken to do what comes once a step when the last of them has done its passes."""
    return (schedule == ONE_F_ONE_B) | level(schedule)


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
    return any((schedule == code).any() for code in (ZERO_BUBBLE, ZERO_BUBBLE_V, DUALPIPE))


def bubble(
    schedule: Array, pp: Array, virtual_stages: Array, micro_batches: Array, times: StageTimes, waits: Array
) -> Array:
    """Seconds that each stage is idle in a step, (s, n), with what it `waits` for longer chunks (waiting). Where they
    end together until the last of them has done its passes; without a pipeline nowhere."""
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

    def plain() -> Array:
        return np.asarray(_makespan(pp, micro_batches, t, schedule) - micro_batches * both)

    def zero_v() -> Array:
        others = np.array([part / np.maximum(2 * (pp - 1), 1) for part in _of_others(t, 1)])
        paths = zero_bubble_v(pp, micro_batches)
        return np.asarray(reduce(np.maximum, (total(path[:, None] * others) for path in paths)))

    def dual() -> Array:
        forward, to_input, weight = (others / 2 for others in _of_others(t, 2))
        one = forward / np.maximum(pp / 2 - 1, 1)
        return np.asarray(np.maximum(2 * forward, forward + to_input - one) + np.maximum(to_input - weight, 0.0))

    others: dict[int, Callable[[], Array]] = {
        AFAB: afab,
        ONE_F_ONE_B: plain,
        INTERLEAVED: interleaved,
        ZERO_BUBBLE: plain,
        ZERO_BUBBLE_V: zero_v,
        DUALPIPE: dual,
    }
    return np.where(pp > 1, _by_schedule(schedule, np.zeros_like(both), others), 0.0)


def _of_others(times: StageTimes, alike: int) -> tuple[Array, Array, Array]:
    """Forward, input and weight gradients of all stages but so many that are like each, (s, n)."""
    t = times
    both, weight = t.total - alike * (t.forward + t.backward), np.asarray(t.total_weight - alike * t.weight)
    forward = t.total_forward - alike * t.forward
    return forward, both - forward - weight, weight


def _makespan(pp: Array, micro_batches: Array, times: StageTimes, schedule: Array) -> Array:
    """Of pipelines under 1F1B and ZB-H1 their seconds, (n,); 0 of others."""
    found = np.zeros(len(pp))
    for code, few in product((ONE_F_ONE_B, ZERO_BUBBLE), (True, False)):
        some = np.flatnonzero((schedule == code) & (pp > 1) & ((micro_batches < pp) == few))
        if not len(some):
            continue
        count, m, partition = pp[some], micro_batches[some], times.partition[some]
        stage = times.order.corners.take(partition, axis=1)
        stage = turns(count, m, stage) if few else stage
        kind = picked(times.order.kind, stage, partition)
        forward, backward = (picked(values, kind, some) for values in (times.forward, times.backward))
        if code == ONE_F_ONE_B:
            found[some] = one_f_one_b(count, m, stage, forward, backward)
        else:
            weight = picked(np.asarray(times.weight), kind, some)
            found[some] = zero_bubble(count, m, stage, forward, backward - weight, weight)
    return found


def _by_schedule(schedule: Array, usual: Array, others: Mapping[int, Callable[[], Array]]) -> Array:
    """`usual`, and for the schedules that occur among the rows what those have instead."""
    for code, value in others.items():
        mine = schedule == code
        if mine.any():
            usual = np.where(mine, value(), usual)
    return usual
