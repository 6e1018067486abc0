"""Pipeline schedules: the micro-batches in flight on each stage, and the bubble, which is the time
that a stage is idle while the pipeline fills and drains.

A *partition* is a split of layers over stages. Its stages that have equal layers are worked out
once, as one *distinct* stage; a *stretch* is a number of equal stages in a row. A *path* is a chain
of operations that wait for each other, and the longest one is the length of the schedule. A path
*turns* where it changes from forwards to backwards or to another stage
(models.cost.pipeline.makespan).

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
from models.cost.pipeline.makespan import PASSES, ChunkSeconds, TurningStages
from models.cost.rows import Row, StageTables
from models.spec.layout import AFAB, DUALPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, ZERO_BUBBLE_V

FORWARD = 1 / 3
"""The share of forward in both passes, as matrix products have it: one product, and two in
backward."""


class StageTimes(NamedTuple):
    """Seconds that a micro-batch takes on the stages of a pipeline, and on the parts of a model: a
    layer of each kind, the embedding and the head."""

    forward: Array
    """Forward on each distinct stage, (s,)."""
    backward: Array
    """Backward on each distinct stage, weight gradients included, (s,)."""
    weight: Array
    """Weight gradients on each distinct stage, (s,). They are read where the schedule moves
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


def scratch_for(tables: StageTables) -> TurningStages:
    """Return arrays with room for the stages at which the longest path may turn, for any of these
    partitions."""
    # A path may turn where a stretch of equal stages ends, and at two stages at a distance from it.
    most = 3 * tables.stretch_ends.shape[1]
    return TurningStages(np.empty(most, np.int64), np.empty(most, PASSES), np.empty(most, PASSES))


@inlined
def micro_batch_group(pp: int, micro_batches: int) -> int:
    """Return how many micro-batches pass one chunk of a stage before its next chunk, under an
    interleaved schedule (Megatron-Core schedules.py, get_schedule_table; arXiv 2104.04473 §2.2 has
    groups of pp). Stages would wait in a group of fewer than pp. The size is therefore the smallest
    from pp on that leaves no such group at the end."""
    group = pp  # Fewer micro-batches than pp are one group.
    while 0 < max(micro_batches, pp) % group < pp:
        group += 1
    return group


@inlined
def in_flight(schedule: int, stage: int, pp: int, virtual_stages: int, micro_batches: int) -> float:
    """Return the most micro-batches whose activations a stage holds at one time. `schedule` is an
    index of SCHEDULES. An interleaved stage may hold single chunks of a micro-batch; each counts as
    1 / virtual_stages."""
    # A stage's forwards before its first backward: one for itself and for each later stage.
    if schedule == ONE_F_ONE_B:
        return float(min(pp - stage, micro_batches))
    # The chunks before its first backward: a group's in all rounds but the last, and two for each
    # later stage, which a chunk passes on its way forward and again on its way back.
    if schedule == INTERLEAVED:
        group = micro_batch_group(pp, micro_batches)
        chunks = 2 * (pp - stage - 1) + (virtual_stages - 1) * group + 1
        return min(chunks, micro_batches * virtual_stages) / virtual_stages
    if schedule == AFAB:
        return float(micro_batches)
    if schedule == DUALPIPE:  # arXiv 2412.19437 table 2
        return float(min(pp + 1, micro_batches))
    # ZB-H1 and the V: weight gradients come late, so every stage holds as many as the first.
    return float(min(pp, micro_batches))


@inlined
def holds_equal_micro_batches(schedule: int) -> bool:
    """Say whether all stages hold the activations of equally many micro-batches, under a schedule
    with one chunk a stage. (Under 1F1B later stages hold fewer.)"""
    return schedule in (AFAB, ZERO_BUBBLE)


@inlined
def ends_together(schedule: int) -> bool:
    """Say whether all stages wait for the last one to finish its passes before they begin what
    comes once a step, such as the reduction of gradients."""
    return schedule not in (ZERO_BUBBLE_V, DUALPIPE)


@inlined
def moves_weight_gradients(schedule: int) -> bool:
    """Say whether a schedule fills its bubble with weight gradients."""
    return schedule in (ZERO_BUBBLE, ZERO_BUBBLE_V, DUALPIPE)


@inlined
def length_of_equal_stages(pp: int, virtual_stages: int, micro_batches: int) -> float:
    """Return the length of a step whose stages all take equally long, as a multiple of the time
    that one micro-batch takes on a stage: the micro-batches plus the bubble."""
    return micro_batches + (pp - 1) / virtual_stages


@inlined
def bubble(
    row: Row,
    micro_batches: int,
    tables: StageTables,
    times: StageTimes,
    idle: Array,
    scratch: TurningStages,
) -> None:
    """Write the seconds that stages are idle in a step to `idle`, 0 without a pipeline. Like the
    arrays in `times`, it has an entry for each distinct stage of the layout's partition.

    Under schedules whose stages all end together (`ends_together`), a stage also idles until the
    last stage has done its passes. This module's docstring has the closed form of each schedule.
    """
    stages = tables.distinct_count[row.partition]
    if row.pp == 1:
        idle[:stages] = 0.0
    elif ends_together(row.schedule):
        length = _length(row, micro_batches, tables, times, scratch)
        for stage in range(stages):
            idle[stage] = length - micro_batches * (times.forward[stage] + times.backward[stage])
    else:
        for stage in range(stages):
            idle[stage] = _idle_between_others(row, micro_batches, times, stage)


@inlined
def _idle_between_others(row: Row, micro_batches: int, times: StageTimes, stage: int) -> float:
    """Return the seconds that a stage is idle under zero_bubble_v, from its own passes and the mean
    of the other stages' passes, or under dualpipe, from the sum of the other stages' passes."""
    own_forward = times.forward[stage]
    own_backward = times.backward[stage]
    own_weight = times.weight[stage]
    # The passes of all other stages. DualPipe has each chunk on two stages: both are left out.
    copies = 2 if row.schedule == DUALPIPE else 1
    forward = times.all_forward - copies * own_forward
    weight = times.all_weight - copies * own_weight
    to_input = times.all_both - copies * (own_forward + own_backward) - forward - weight
    if row.schedule == DUALPIPE:
        # The two stages with equal chunks share their work, one in either half of the pipeline.
        return _dualpipe(row.pp, forward / 2, to_input / 2, weight / 2)
    chunks = 2 * (row.pp - 1)  # a V has two on each of the other stages
    others = ChunkSeconds(forward / chunks, to_input / chunks, weight / chunks)
    # The mean of the stage's own two chunks.
    own = ChunkSeconds(own_forward / 2, (own_backward - own_weight) / 2, own_weight / 2)
    return makespan.zero_bubble_v(row.pp, micro_batches, own, others)


@inlined
def _dualpipe(pp: int, forward: float, to_input: float, weight: float) -> float:
    """Return the seconds that a stage is idle under DualPipe. `forward`, `to_input` (input
    gradients) and `weight` are the seconds of a micro-batch on all other stages of one half of the
    pipeline together. This module's docstring has the formula."""
    # Each half has pp / 2 - 1 other stages. With pp 2 there are none, and `forward` is 0.
    mean_forward = forward / max(pp / 2 - 1, 1.0)
    return max(2 * forward, forward + to_input - mean_forward) + max(to_input - weight, 0.0)


@inlined
def _length(
    row: Row, micro_batches: int, tables: StageTables, times: StageTimes, scratch: TurningStages
) -> float:
    """Return the seconds that a pipeline takes for all micro-batches, under a schedule whose stages
    all end together (`ends_together`). `scratch` is overwritten with the stages at which the
    longest path may turn."""
    if row.schedule == AFAB:
        stages = tables.distinct_count[row.partition]
        # One micro-batch passes all stages; the others follow at the pace of the slowest stage.
        slowest = _largest(times.forward, stages) + _largest(times.backward, stages)
        return times.all_both + (micro_batches - 1) * slowest
    count = _set_turning_stages(row, micro_batches, tables, times, scratch)
    turning = TurningStages(
        scratch.stage[:count], scratch.forward[:count], scratch.backward[:count]
    )
    if row.schedule == INTERLEAVED:
        return _interleaved(row, micro_batches, tables, times, turning)
    if row.schedule == ONE_F_ONE_B:
        return makespan.one_f_one_b(row.pp, micro_batches, turning)
    return makespan.zero_bubble(row.pp, micro_batches, turning)


@inlined
def _set_turning_stages(
    row: Row, micro_batches: int, tables: StageTables, times: StageTimes, scratch: TurningStages
) -> int:
    """Write to `scratch` the stages at which the longest path may turn (from forwards to backwards,
    or to another stage), with the seconds that a micro-batch takes on each. Return their number."""
    partition = row.partition
    stretch_ends = tables.stretch_ends[partition, : tables.stretch_end_count[partition]]
    if row.schedule == INTERLEAVED:
        group = micro_batch_group(row.pp, micro_batches)
        count = interleaved.list_turning_stages(
            row.pp, micro_batches, group, stretch_ends, scratch.stage
        )
    else:
        count = makespan.list_turning_stages(row.pp, micro_batches, stretch_ends, scratch.stage)
    for i in range(count):
        distinct = tables.distinct[partition, scratch.stage[i]]
        f = scratch.forward[i]  # the record (StagePasses) of the stage's forwards
        b = scratch.backward[i]
        # ZB-H1 runs weight gradients apart; other schedules run them within backward.
        b.weight = times.weight[distinct] if row.schedule == ZERO_BUBBLE else 0.0
        f.per_micro_batch = times.forward[distinct]
        b.per_micro_batch = times.backward[distinct] - b.weight
        # An interleaved path may have more passes of the first or last round than of others.
        if row.schedule == INTERLEAVED:
            first = tables.first[partition, distinct]
            last = tables.last[partition, distinct]
            f.first = weighted_sum(first, times.part_forward)
            f.last = weighted_sum(last, times.part_forward)
            b.first = weighted_sum(first, times.part_both) - f.first
            b.last = weighted_sum(last, times.part_both) - f.last
    return count


@inlined
def _interleaved(
    row: Row, micro_batches: int, tables: StageTables, times: StageTimes, turning: TurningStages
) -> float:
    """Return the seconds that an interleaved pipeline takes for all micro-batches: the longer of
    two paths. One stays on a stage. The other moves with each round to the stage with most work in
    that round (models.cost.pipeline.round_paths); only partitions whose rounds differ have it."""
    group = micro_batch_group(row.pp, micro_batches)
    staying = interleaved.interleaved(row.pp, micro_batches, group, turning)
    # The first group's forwards and the last group's backwards run without alternation. Where
    # rounds do not differ, the tables have no second path and this sum is 0.
    not_alternating = weighted_sum(tables.path_ahead[row.partition], times.part_both)
    if not_alternating == 0:
        return staying
    # The path also waits for the first round to come down to it. That is typically half of the
    # round's time on the stages before the last (`before`); with one group it is the share of the
    # stages down to the one where the path ends.
    share = 0.5 if micro_batches > group else tables.path_last[row.partition] / (row.pp - 1)
    first_round = turning.forward[-1].before + turning.backward[-1].before
    steady = _steady(row, group, tables, times)
    moving = group * not_alternating + (micro_batches - group) * steady + share * first_round
    return max(staying, moving)


@inlined
def _steady(row: Row, group: int, tables: StageTables, times: StageTimes) -> float:
    """Return the mean seconds of a micro-batch on the path that moves from stage to stage while
    stages alternate forwards (tables.path_out, by part) and backwards (tables.path_back).

    For each stage that the path moves down, it skips a chunk of average size once in every `group`
    micro-batches. Of each part (a layer kind or an end of the model) it skips no more than it has,
    so that a slower part never makes the path shorter.
    """
    seconds = 0.0
    missed = tables.path_moves[row.partition] / (group * row.pp * row.virtual_stages)
    for part in range(len(times.part_counts)):
        count = missed * times.part_counts[part]
        forwards = max(tables.path_out[row.partition, part] - count, 0.0)
        backwards = max(tables.path_back[row.partition, part] - count, 0.0)
        forward = times.part_forward[part]
        seconds += forwards * forward + backwards * (times.part_both[part] - forward)
    return seconds


@inlined
def weighted_sum(amounts: Array, seconds: Array) -> float:
    """Return the sum of amount · seconds over parts of the model. Both arrays are (parts,)."""
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
