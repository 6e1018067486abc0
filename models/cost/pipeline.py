"""Pipeline schedules: what is in flight, and the bubble.

Closed forms, with F, B, W the forward, full backward and weight-gradient seconds a micro-batch
spends on a stage, m micro-batches and p stages. A discrete-event simulation of the same schedules
agrees (tests): for any stages under afab, 1f1b and zero_bubble, for equal chunks under dualpipe and
zero_bubble_v, and closely for others. Interleaved ones agree where chunks are alike but for the
embedding and the head, and for 97% of random stages of equal chunks; others are near, nearest where
layers of one kind follow each other. A V and DualPipe fill and drain the pipeline with the mean of
the other stages, or with those of the other half (docs/model.md has how near that is).

Idle seconds of stage s, besides m (F+B) of work, by schedule:

afab            ΣF + (m-1) max F + ΣB + (m-1) max B - m (F+B)
                GPipe, arXiv 1811.06965
1f1b            what one_f_one_b of models.cost.makespan takes, less m (F+B);
                with equal stages (p-1)(F+B); arXiv 2006.09503
interleaved     the same of interleaved there; with equal stages (p-1)(F+B)/v;
                arXiv 2104.04473 §2.2
zero_bubble     the same of zero_bubble there, with as many micro-batches in flight on every stage
                as on the first; with equal stages, m >= p and W at most F and B-W (p-1)(F+B-2W);
                arXiv 2401.10241 table 2 (ZB-H1)
zero_bubble_v   the longest path of zero_bubble_v there, of chunks that take what those of the other
                stages take in the mean; ScheduleZBVZeroBubble of torch.distributed.pipelining
dualpipe        max(2F, F+I-F1) + max(I-W, 0), with F, I and W of all the other stages of a half and
                F1 their mean F; with equal stages and F = I it is (p/2-1)(F+B + B-3W);
                arXiv 2412.19437 table 2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np

from models.columns import Array, take_at, total
from models.cost import makespan
from models.cost.stage_partition import Order
from models.spec.layout import AFAB, DUALPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, ZERO_BUBBLE_V

FORWARD = 1 / 3
"""Of both passes, as matrix products have it: one, and two in backward."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds that a micro-batch takes on the stages of n pipelines. Only the s stages of a
    pipeline that differ are given, in arrays of shape (s, n)."""

    forward: Array
    """Forward on each stage, (s, n)."""
    backward: Array
    """Backward on each stage, weight gradients included, (s, n)."""
    weight: Array | float
    """Weight gradients on each stage, (s, n); may be 0 where no schedule moves them."""
    total_forward: Array
    """Forward on all stages together, (n,)."""
    total: Array
    """Forward and backward on all stages together, (n,)."""
    total_weight: Array | float
    """Weight gradients on all stages together, (n,)."""
    order: Order
    """In which order the different stages follow each other, for each partition."""
    partition: Array
    """The row of `order` that each pipeline has, (n,)."""
    rounds: makespan.Rounds | None = None
    """Of the interleaved pipelines among the n, what each round of chunks takes."""


def micro_batch_group(pp: Array | int, micro_batches: Array | int) -> Array:
    """How many micro-batches pass one chunk of a stage before its next chunk, under an interleaved
    schedule: the fewest, from pp on, that leave no remainder or one of pp or more, so that no stage
    waits (Megatron-Core schedules.py, get_schedule_table; pp in arXiv 2104.04473 §2.2)."""
    pp, m = np.broadcast_arrays(pp, np.maximum(micro_batches, pp))
    shape, pp, m = pp.shape, pp.ravel(), m.ravel()
    group, left = pp.copy(), np.arange(pp.size)
    while len(left):
        rest = m[left] % group[left]
        left = left[(rest > 0) & (rest < pp[left])]
        group[left] += 1
    return group.reshape(shape)


def in_flight(
    schedule: Array, stage: Array, pp: Array, virtual_stages: Array, micro_batches: Array
) -> Array:
    """How many micro-batches' activations a stage holds at its fullest. An interleaved stage holds
    single chunks of some; these count as parts of a micro-batch."""

    def interleaved() -> Array:
        chunks = (
            2 * (pp - stage - 1) + (virtual_stages - 1) * micro_batch_group(pp, micro_batches) + 1
        )
        return np.asarray(np.minimum(chunks, micro_batches * virtual_stages) / virtual_stages)

    others: dict[int, Callable[[], Array]] = {
        AFAB: lambda: micro_batches,
        INTERLEAVED: interleaved,
        ZERO_BUBBLE: lambda: np.minimum(pp, micro_batches),
        ZERO_BUBBLE_V: lambda: np.minimum(pp, micro_batches),
        DUALPIPE: lambda: np.minimum(pp + 1, micro_batches),
    }
    return _by_schedule(schedule, np.minimum(pp - stage, micro_batches).astype(float), others)


def holds_equal_micro_batches(schedule: Array) -> Array:
    """Whether every stage of a schedule with one chunk a stage holds as many micro-batches as the
    first. (Under 1F1B later stages hold fewer.)"""
    return (schedule == AFAB) | (schedule == ZERO_BUBBLE)


def ends_together(schedule: Array) -> Array:
    """Whether stages are taken to do what comes once a step when the last of them has done its
    passes."""
    return (
        (schedule == ONE_F_ONE_B) | (schedule == INTERLEAVED) | holds_equal_micro_batches(schedule)
    )


def passes_alike(pp: Array, virtual_stages: Array, micro_batches: Array) -> Array:
    """The length of a step in passes of one stage, for stages that are alike: m micro-batches and
    the bubble."""
    return np.asarray(micro_batches + (pp - 1) / virtual_stages)


def moves_weight_gradients(schedule: Array) -> bool:
    """Whether some of the schedules fill their bubble with weight gradients."""
    return any((schedule == code).any() for code in (ZERO_BUBBLE, ZERO_BUBBLE_V, DUALPIPE))


def bubble(
    schedule: Array, pp: Array, virtual_stages: Array, micro_batches: Array, times: StageTimes
) -> Array:
    """The seconds that each stage is idle in a step, shape (s, n); 0 without a pipeline.

    Where stages end together (`ends_together`), the time is counted until the last of them has done
    its passes. The closed form of each schedule is in the docstring of this module. Those of 1F1B,
    interleaving and ZB-H1 are longest paths of models.cost.makespan, less the stage's own work.
    """
    t, m1 = times, micro_batches - 1
    both = t.forward + t.backward
    if (pp == 1).all():
        return np.zeros_like(both)

    def afab() -> Array:
        slowest = t.forward.max(axis=0) + t.backward.max(axis=0)
        return np.asarray(t.total + m1 * slowest - micro_batches * both)

    def plain() -> Array:
        return np.asarray(
            _seconds(schedule, pp, virtual_stages, micro_batches, t) - micro_batches * both
        )

    def zero_v() -> Array:
        others = np.array([part / np.maximum(2 * (pp - 1), 1) for part in _of_others(t, 1)])
        paths = makespan.zero_bubble_v(pp, micro_batches)
        return np.asarray(reduce(np.maximum, (total(path[:, None] * others) for path in paths)))

    def dual() -> Array:
        forward, to_input, weight = (others / 2 for others in _of_others(t, 2))
        one = forward / np.maximum(pp / 2 - 1, 1)
        return np.asarray(
            np.maximum(2 * forward, forward + to_input - one) + np.maximum(to_input - weight, 0.0)
        )

    others: dict[int, Callable[[], Array]] = {
        AFAB: afab,
        ONE_F_ONE_B: plain,
        INTERLEAVED: plain,
        ZERO_BUBBLE: plain,
        ZERO_BUBBLE_V: zero_v,
        DUALPIPE: dual,
    }
    return np.where(pp > 1, _by_schedule(schedule, np.zeros_like(both), others), 0.0)


def _of_others(times: StageTimes, alike: int) -> tuple[Array, Array, Array]:
    """The seconds of forward, input gradients and weight gradients on all other stages, each (s,
    n): of all stages together, less `alike` stages like this one."""
    t = times
    both, weight = (
        t.total - alike * (t.forward + t.backward),
        np.asarray(t.total_weight - alike * t.weight),
    )
    forward = t.total_forward - alike * t.forward
    return forward, both - forward - weight, weight


def _seconds(
    schedule: Array, pp: Array, virtual_stages: Array, micro_batches: Array, times: StageTimes
) -> Array:
    """The seconds that pipelines under 1F1B, interleaving and ZB-H1 take for all micro-batches,
    (n,); 0 for other schedules."""
    found, several = np.zeros(len(pp)), schedule == INTERLEAVED
    group = micro_batch_group(pp, micro_batches) if several.any() else pp
    number = np.cumsum(several) - 1
    few = micro_batches < np.where(several, group + 1, pp)
    for code, are_few in product((ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE), (True, False)):
        some = np.flatnonzero((schedule == code) & (pp > 1) & (few == are_few))
        if not len(some):
            continue
        count, m, partition = pp[some], micro_batches[some], times.partition[some]
        stage = times.order.corners_of(partition)
        if are_few:
            turns = makespan.turns_of_rounds if code == INTERLEAVED else makespan.turns
            stage = turns(count, m, stage)
        kind = take_at(times.order.kind, stage, partition)
        if code == INTERLEAVED:
            if times.rounds is None:
                raise ValueError("interleaved pipelines are given without their rounds")
            rounds = times.rounds.at(kind, number[some])
            found[some] = makespan.interleaved(
                count, m, virtual_stages[some], group[some], stage, rounds
            )
            continue
        forward, backward = (
            take_at(values, kind, some) for values in (times.forward, times.backward)
        )
        if code == ONE_F_ONE_B:
            found[some] = makespan.one_f_one_b(count, m, stage, forward, backward)
        else:
            weight = take_at(np.asarray(times.weight), kind, some)
            found[some] = makespan.zero_bubble(count, m, stage, forward, backward - weight, weight)
    return found


def _by_schedule(schedule: Array, usual: Array, others: Mapping[int, Callable[[], Array]]) -> Array:
    """`usual`, and for the schedules that occur among the rows what those have instead."""
    for code, value in others.items():
        mine = schedule == code
        if mine.any():
            usual = np.where(mine, value(), usual)
    return usual
