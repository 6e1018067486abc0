"""Pipeline schedules: what is in flight, and the bubble.

The closed forms below have m micro-batches and p stages. F, B and W are the seconds of forward,
full backward and weight gradients that a micro-batch spends on a stage, and I = B - W.

A discrete-event simulation of the same schedules checks them in the tests. It agrees for any stages
under afab, 1f1b and zero_bubble, and for equal chunks under dualpipe and zero_bubble_v. Interleaved
pipelines agree where chunks are alike but for the head, and for 97% of random stages of equal
chunks; others are near, nearest where layers of one kind follow each other. Unequal chunks of a V
and of DualPipe are near too: the pipeline is filled and drained with the mean of the other stages,
or with the stages of the other half (docs/model.md says how near that is).

Under the first four schedules all stages end together, after

afab            ΣF + (m-1) max F + ΣB + (m-1) max B
                GPipe, arXiv 1811.06965
1f1b            makespan.one_f_one_b; with equal stages (m+p-1)(F+B); arXiv 2006.09503
interleaved     interleaved.interleaved; with equal stages m (F+B) + (p-1)(F+B)/v;
                arXiv 2104.04473 §2.2
zero_bubble     makespan.zero_bubble, with as many micro-batches in flight on every stage as on the
                first; with equal stages, m >= p and W at most F and I, m (F+B) + (p-1)(F+B-2W);
                arXiv 2401.10241 table 2 (ZB-H1)

A stage is then idle for that time less its own work, m (F+B). Under the others it is idle for

zero_bubble_v   makespan.zero_bubble_v, from the mean of its own chunks and of those of the other
                stages; ScheduleZBVZeroBubble of torch.distributed.pipelining
dualpipe        max(2F, F+I-F1) + max(I-W, 0), with F, I and W of all the other stages of a half and
                F1 their mean F; with equal stages and F = I it is (p/2-1)(F+B + B-3W);
                arXiv 2412.19437 table 2
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import inlined
from models.cost.pipeline import interleaved, makespan
from models.cost.pipeline.makespan import PASSES, ChunkSeconds
from models.cost.rows import StageTables
from models.spec.layout import AFAB, DUALPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, ZERO_BUBBLE_V

FORWARD = 1 / 3
"""The share of forward in both passes, as matrix products have it: one product, and two in
backward."""


class StageTimes(NamedTuple):
    """Seconds that a micro-batch takes on the stages of a pipeline, and on the parts of a model: a
    layer of each kind, the embedding and the head."""

    forward: Array
    """Forward on each stage that differs, (s,)."""
    backward: Array
    """Backward on each stage that differs, weight gradients included, (s,)."""
    weight: Array
    """Weight gradients on each stage that differs, (s,). They are read where the schedule moves
    them."""
    all_forward: float
    """Forward on all stages together."""
    all_both: float
    """Forward and backward on all stages together."""
    all_weight: float
    """Weight gradients on all stages together."""
    part_counts: Array
    """Layers of each kind in the whole model, and one of each end, (parts,)."""
    part_forward: Array
    """Forward of each part, (parts,)."""
    part_both: Array
    """Forward and backward of each part, (parts,)."""


class PathScratch(NamedTuple):
    """Holds the stages at which the longest path through one pipeline may turn, that is, change
    from forwards to backwards or to another stage. Arrays are as long as the most such stages."""

    stage: Array
    """Numbers of these stages, ascending."""
    forward: Array
    """Records of models.cost.pipeline.makespan.StagePasses."""
    backward: Array
    """Records of models.cost.pipeline.makespan.StagePasses."""


def scratch_for(tables: StageTables) -> PathScratch:
    """Return arrays with room for the turning stages of any of these partitions."""
    # turning_stages lists each stretch end, and up to two stages at a distance from it.
    most = 3 * tables.stretch_ends.shape[1]
    return PathScratch(np.empty(most, np.int64), np.empty(most, PASSES), np.empty(most, PASSES))


@inlined
def micro_batch_group(pp: int, micro_batches: int) -> int:
    """Return how many micro-batches pass one chunk of a stage before its next chunk, under an
    interleaved schedule. The group is the smallest number from pp on that divides the micro-batches
    without a remainder, or with one of at least pp, so that no stage waits (Megatron-Core
    schedules.py, get_schedule_table; arXiv 2104.04473 §2.2 has groups of pp)."""
    group = pp
    while 0 < max(micro_batches, pp) % group < pp:
        group += 1
    return group


@inlined
def in_flight(schedule: int, stage: int, pp: int, virtual_stages: int, micro_batches: int) -> float:
    """Return the most micro-batches whose activations a stage holds at one time. `schedule` is an
    index of SCHEDULES. An interleaved stage may hold single chunks of a micro-batch; each counts as
    1 / virtual_stages."""
    if schedule == ONE_F_ONE_B:
        return float(min(pp - stage, micro_batches))
    if schedule == INTERLEAVED:
        group = micro_batch_group(pp, micro_batches)
        chunks = 2 * (pp - stage - 1) + (virtual_stages - 1) * group + 1
        return min(chunks, micro_batches * virtual_stages) / virtual_stages
    if schedule == AFAB:
        return float(micro_batches)
    if schedule == DUALPIPE:
        return float(min(pp + 1, micro_batches))
    return float(min(pp, micro_batches))


@inlined
def holds_equal_micro_batches(schedule: int) -> bool:
    """Say whether all stages hold the activations of equally many micro-batches, under a schedule
    with one chunk a stage. (Under 1F1B later stages hold fewer.)"""
    return schedule in (AFAB, ZERO_BUBBLE)


@inlined
def ends_together(schedule: int) -> bool:
    """Say whether every stage waits until all stages have done their passes, before it does what
    comes once a step, such as the reduction of gradients."""
    return schedule not in (ZERO_BUBBLE_V, DUALPIPE)


@inlined
def moves_weight_gradients(schedule: int) -> bool:
    """Say whether a schedule fills its bubble with weight gradients."""
    return schedule in (ZERO_BUBBLE, ZERO_BUBBLE_V, DUALPIPE)


@inlined
def passes_alike(pp: int, virtual_stages: int, micro_batches: int) -> float:
    """Return the length of a step where all stages take equally long, as a multiple of the time
    that one micro-batch takes on a stage: the micro-batches plus the bubble."""
    return micro_batches + (pp - 1) / virtual_stages


@inlined
def bubble(
    schedule: int,
    pp: int,
    virtual_stages: int,
    micro_batches: int,
    partition: int,
    tables: StageTables,
    times: StageTimes,
    idle: Array,
    scratch: PathScratch,
) -> None:
    """Write the seconds that stages are idle in a step to `idle`, 0 without a pipeline. It has an
    entry for each of the different stages in row `partition` of `tables`, as `times` has.

    Under schedules whose stages all end together (`ends_together`), a stage also idles until the
    last stage has done its passes. This module's docstring has the closed form of each schedule.
    """
    t = times
    stages = tables.different[partition]
    if pp == 1:
        for stage in range(stages):
            idle[stage] = 0.0
    elif ends_together(schedule):
        length = _seconds(
            schedule=schedule,
            pp=pp,
            virtual_stages=virtual_stages,
            micro_batches=micro_batches,
            partition=partition,
            tables=tables,
            times=times,
            scratch=scratch,
        )
        for stage in range(stages):
            idle[stage] = length - micro_batches * (t.forward[stage] + t.backward[stage])
    else:
        for stage in range(stages):
            idle[stage] = _idle_between_others(schedule, pp, micro_batches, t, stage)


@inlined
def _idle_between_others(
    schedule: int, pp: int, micro_batches: int, times: StageTimes, stage: int
) -> float:
    """Return the seconds that a stage is idle under zero_bubble_v or dualpipe. They depend on the
    stage's own passes and on the mean or sum of those of all other stages."""
    t = times
    # DualPipe has each chunk on two stages, so that two stages are left out of the others.
    alike = 2 if schedule == DUALPIPE else 1
    forward = t.all_forward - alike * t.forward[stage]
    weight = t.all_weight - alike * t.weight[stage]
    to_input = t.all_both - alike * (t.forward[stage] + t.backward[stage]) - forward - weight
    if schedule == DUALPIPE:
        return _dualpipe(pp, forward / 2, to_input / 2, weight / 2)
    chunks = 2 * (pp - 1)
    others = ChunkSeconds(forward / chunks, to_input / chunks, weight / chunks)
    own = ChunkSeconds(
        t.forward[stage] / 2, (t.backward[stage] - t.weight[stage]) / 2, t.weight[stage] / 2
    )
    return makespan.zero_bubble_v(pp, micro_batches, own, others)


@inlined
def _dualpipe(pp: int, forward: float, to_input: float, weight: float) -> float:
    """Return the seconds that a stage is idle under DualPipe. `forward`, `to_input` (input
    gradients) and `weight` are the seconds of a micro-batch on all other stages of one half of the
    pipeline together. This module's docstring has the formula."""
    mean_forward = forward / max(pp / 2 - 1, 1.0)
    return max(2 * forward, forward + to_input - mean_forward) + max(to_input - weight, 0.0)


@inlined
def _seconds(
    schedule: int,
    pp: int,
    virtual_stages: int,
    micro_batches: int,
    partition: int,
    tables: StageTables,
    times: StageTimes,
    scratch: PathScratch,
) -> float:
    """Return the seconds that a pipeline takes for all micro-batches, under a schedule whose stages
    all end together. `partition` is the row of `tables` for its split of layers. `scratch` is
    overwritten with the stages at which the longest path may turn, and their times."""
    t = times
    m = micro_batches
    stages = tables.different[partition]
    if schedule == AFAB:
        slowest = _largest(t.forward, stages) + _largest(t.backward, stages)
        return t.all_both + (m - 1) * slowest
    if schedule == INTERLEAVED:
        return _interleaved(
            pp=pp,
            virtual_stages=virtual_stages,
            micro_batches=m,
            partition=partition,
            tables=tables,
            times=times,
            scratch=scratch,
        )
    stretch_ends = tables.stretch_ends[partition, : tables.stretch_end_count[partition]]
    count = makespan.turning_stages(pp, m, stretch_ends, scratch.stage)
    stage = scratch.stage[:count]
    forward = scratch.forward[:count]
    backward = scratch.backward[:count]
    for i in range(count):
        kind = tables.kind[partition, stage[i]]
        # 1F1B runs weight gradients within backward; ZB-H1 runs them apart.
        weight = t.weight[kind] if schedule == ZERO_BUBBLE else 0.0
        forward[i].per_micro_batch = t.forward[kind]
        backward[i].per_micro_batch = t.backward[kind] - weight
        backward[i].weight = weight
    if schedule == ONE_F_ONE_B:
        return makespan.one_f_one_b(pp, m, stage, forward, backward)
    return makespan.zero_bubble(pp, m, stage, forward, backward)


@inlined
def _interleaved(
    pp: int,
    virtual_stages: int,
    micro_batches: int,
    partition: int,
    tables: StageTables,
    times: StageTimes,
    scratch: PathScratch,
) -> float:
    """Return the seconds that an interleaved pipeline takes for all micro-batches: the longer of
    two paths. One stays on a stage. The other moves with each round to the stage with most work in
    it; only partitions whose rounds differ have such a path.

    `partition` is the row of `tables` for the split of layers. `scratch` is overwritten with the
    seconds of a micro-batch on each stage where a path may turn: in all rounds, the first and the
    last.
    """
    t = times
    m = micro_batches
    group = micro_batch_group(pp, m)
    stretch_ends = tables.stretch_ends[partition, : tables.stretch_end_count[partition]]
    count = interleaved.turning_stages_of_rounds(pp, m, group, stretch_ends, scratch.stage)
    stage = scratch.stage[:count]
    forward = scratch.forward[:count]
    backward = scratch.backward[:count]
    for i in range(count):
        kind = tables.kind[partition, stage[i]]
        first = tables.first[partition, kind]
        last = tables.last[partition, kind]
        f = forward[i]
        b = backward[i]
        f.per_micro_batch = t.forward[kind]
        b.per_micro_batch = t.backward[kind]
        f.first = weighed(first, t.part_forward)
        f.last = weighed(last, t.part_forward)
        b.first = weighed(first, t.part_both) - f.first
        b.last = weighed(last, t.part_both) - f.last
    staying = interleaved.interleaved(pp, m, group, stage, forward, backward)
    ahead = weighed(tables.path_ahead[partition], t.part_both)
    # Where rounds do not differ, the tables have no second path and this sum is 0.
    if ahead == 0:
        return staying
    steady = _steady(pp, virtual_stages, group, partition, tables, times)
    last_stage = tables.path_last[partition]
    return max(
        staying,
        interleaved.moving_path(
            pp=pp,
            micro_batches=m,
            group=group,
            steady=steady,
            ahead=ahead,
            last=last_stage,
            forward=forward,
            backward=backward,
        ),
    )


@inlined
def _steady(
    pp: int, virtual_stages: int, group: int, partition: int, tables: StageTables, times: StageTimes
) -> float:
    """Return the mean seconds of a micro-batch on the path that moves from stage to stage while
    stages alternate forwards and backwards. `partition` is the row of `tables` for its split.

    For each stage that the path moves down, it skips a chunk of average size once in a group of
    `group` micro-batches. The skipped amount of each part (a layer kind or an end of the model) is
    capped at what the path has of it, so that a slower part never makes the path shorter.
    """
    seconds = 0.0
    missed = tables.path_moves[partition] / (group * pp * virtual_stages)
    for part in range(len(times.part_counts)):
        count = missed * times.part_counts[part]
        forwards = max(tables.path_out[partition, part] - count, 0.0)
        backwards = max(tables.path_back[partition, part] - count, 0.0)
        forward = times.part_forward[part]
        seconds += forwards * forward + backwards * (times.part_both[part] - forward)
    return seconds


@inlined
def weighed(amounts: Array, seconds: Array) -> float:
    """Return Σ amount·seconds over parts of the model. Both arrays have shape (parts,)."""
    total = 0.0
    for part in range(len(seconds)):
        total += amounts[part] * seconds[part]
    return total


@inlined
def _largest(seconds: Array, count: int) -> float:
    """Return the largest of the first `count` values; 0 where none is above 0."""
    largest = 0.0
    for i in range(count):
        largest = max(largest, seconds[i])
    return largest
