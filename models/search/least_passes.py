"""The least that a pipeline takes for its passes, and holds of activations: sums over the parts of
a model, worked out once for every chain and schedule (models.layouts.space.Trunks).

The time of a schedule is that of its longest path (models.cost.pipeline.bubble). The sum here
follows one of these paths: the one that would take longest by FLOPs. It takes both passes of each
part so many times, and both without weight gradients so many times. Memory is that of the mean
stage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.pipeline.bubble import ends_together, in_flight, weighed
from models.cost.rows import Row, StageTables
from models.cost.stages import Workspace
from models.spec.layout import AFAB, DUALPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE

_WITHOUT_WEIGHTS = 2 / 3
"""The share of both passes that is left without weight gradients, by FLOPs."""


class Chains(NamedTuple):
    """Pipelines: the number of stages and micro-batches of each (n,), the schedules that it may
    have, and the partition by which its layers are split then (n, s)."""

    pp: Array
    micro_batches: Array
    legal: Array
    partition: Array


class LeastPasses(NamedTuple):
    """Holds the least that each of n chains takes and holds."""

    both: Array
    """The number of times that a schedule takes both passes of each part, (n, s, parts)."""
    without: Array
    """The number of times that a schedule takes both passes of each part without weight gradients,
    (n, s, parts)."""
    kept: Array
    """The number of times that the mean stage holds the activations of each part at least, under
    any schedule, (n, parts)."""
    decisive: Array
    """Schedules of which one takes least, whatever parts take, (n, s). Only the first
    `decisive_count` mean something."""
    decisive_count: Array
    """The number of decisive schedules, (n,)."""


def least_passes(
    chains: Chains, schedules: Array, flops: Array, tables: StageTables
) -> LeastPasses:
    """Return the sums that bound the time and memory of n chains under s schedules from below.
    `schedules` are records of Row (s,). `flops` (parts,) is what each part of the model takes; it
    chooses the path through the pipeline that is followed. `tables` has the partitions."""
    n, s = chains.legal.shape
    both, without = np.zeros((2, n, s, len(flops)))
    least = LeastPasses(
        both, without, np.zeros((n, len(flops))), np.zeros((n, s), np.int64), np.zeros(n, np.int64)
    )
    _fill(chains, schedules, flops, tables, np.zeros((2, len(flops))), least)
    return least


@inlined
def seconds_of(workspace: Workspace, least: LeastPasses, chain: int, schedule: int) -> float:
    """Return a lower bound of the seconds that a pipeline's passes take under one schedule. `chain`
    is the number of the pipeline; the workspace holds the exposed seconds of the parts."""
    seconds = 0.0
    for part in range(len(workspace.counts)):
        both = workspace.part_both[part]
        without_weights = both - workspace.weights[part]
        seconds += least.both[chain, schedule, part] * both
        seconds += least.without[chain, schedule, part] * without_weights
    return seconds


@inlined
def least_seconds(workspace: Workspace, least: LeastPasses, chain: int) -> float:
    """Return a lower bound of the seconds that a pipeline's passes take under any of its schedules.
    `chain` is its number; the workspace holds the exposed seconds of the parts."""
    seconds = np.inf
    for i in range(least.decisive_count[chain]):
        seconds = min(seconds, seconds_of(workspace, least, chain, least.decisive[chain, i]))
    return seconds


@compiled
def _fill(
    chains: Chains,
    schedules: Array,
    flops: Array,
    tables: StageTables,
    sums: Array,
    least: LeastPasses,
) -> None:
    """Write the sums of each chain under its legal schedules into `least`, whose arrays are all 0.
    `flops` (parts,) is what each part of the model takes, and `sums` (2, parts) is scratch."""
    for chain in range(len(chains.pp)):
        pp, m = chains.pp[chain], chains.micro_batches[chain]
        least.kept[chain] = np.inf
        for schedule in range(len(schedules)):
            if not chains.legal[chain, schedule]:
                continue
            row, partition = schedules[schedule], chains.partition[chain, schedule]
            both, without = least.both[chain, schedule], least.without[chain, schedule]
            _set_path(
                row=row,
                pp=pp,
                m=m,
                partition=partition,
                flops=flops,
                tables=tables,
                sums=sums,
                both=both,
                without=without,
            )
            _lower_kept(
                row=row,
                pp=pp,
                m=m,
                partition=partition,
                tables=tables,
                held=sums[0],
                kept=least.kept[chain],
            )
            _insert_decisive(least, chain, schedule)


@inlined
def _set_path(
    row: Row,
    pp: int,
    m: int,
    partition: int,
    flops: Array,
    tables: StageTables,
    sums: Array,
    both: Array,
    without: Array,
) -> None:
    """Write how often one path through the pipeline takes each part of the model: both passes
    (`both`, (parts,)), and both without weight gradients (`without`, (parts,)). Of the paths that
    bound the schedule's time, the one with most FLOPs is taken. `sums` (2, parts) is scratch; its
    first row is left with the whole model."""
    whole, before = sums[0], sums[1]  # amounts of each part in the model, and before a stage
    kind = tables.kind[partition]
    whole[:] = 0.0
    before[:] = 0.0
    for stage in range(pp):
        _add(1.0, tables.amounts[partition, kind[stage]], whole)
    # Where stages do not end together, the mean stage bounds the step: its work and its idle time.
    if pp > 1 and not ends_together(row.schedule):
        _add(m / pp, whole, both)
        _add(_beside_others(row.schedule, pp, m), whole, without)
        return
    _add(_on_mean_stage(row.schedule, pp, m), whole, both)
    longest = weighed(both, flops)
    for stage in range(pp):
        own = tables.amounts[partition, kind[stage]]
        rounds = tables.first if row.schedule == INTERLEAVED else tables.amounts
        for number in range(2):
            of_whole, of_before, of_own = _path(row.schedule, pp, m, stage, number)
            seconds = of_whole * weighed(whole, flops) + of_before * weighed(before, flops)
            seconds += of_own * weighed(own, flops)
            if seconds > longest:
                longest = seconds
                both[:] = 0.0
                _add(of_whole, whole, both)
                _add(of_before, before, both)
                _add(of_own, own, both)
        _add(1.0, rounds[partition, kind[stage]], before)
    # One more path under ZB-H1 stays on the last stage, whose weight gradients of up to pp - 1
    # micro-batches come after the path's end.
    if pp > 1 and row.schedule == ZERO_BUBBLE:
        own, postponed = tables.amounts[partition, kind[pp - 1]], min(m, pp) - 1
        seconds = _WITHOUT_WEIGHTS * (weighed(whole, flops) + postponed * weighed(own, flops))
        if seconds + (m - 1 - postponed) * weighed(own, flops) > longest:
            both[:] = 0.0
            _add(m - 1 - postponed, own, both)
            _add(1.0, whole, without)
            _add(postponed, own, without)


@inlined
def _on_mean_stage(schedule: int, pp: int, m: int) -> float:
    """Return how often the path through the slowest stage takes both passes of the whole model,
    where that stage counts as a mean one, 1/pp of the model.

    Under afab the first micro-batch passes all stages, and the others the slowest of them. The same
    holds under 1F1B with more micro-batches than stages: of the paths in
    models.cost.pipeline.makespan, the one that stays on the slowest stage takes no less. With fewer
    micro-batches, one path passes all stages and has the others' forwards on the slowest, and
    another one their backwards. The longer of the two has half of both or more.
    """
    if schedule == AFAB or (schedule == ONE_F_ONE_B and m > pp):
        return (m + pp - 1) / pp
    return (pp + (m - 1) / 2) / pp if schedule == ONE_F_ONE_B else m / pp


@inlined
def _path(schedule: int, pp: int, m: int, stage: int, number: int) -> tuple[float, float, float]:
    """Return one of two paths through a pipeline of `pp` stages with `m` micro-batches that stay on
    a stage, as three numbers: how often it takes both passes of the whole model, of the stages
    before (under interleaving, of their first round), and of the stage itself. `number` is 0 or 1;
    some schedules have one path only."""
    if schedule == AFAB:
        return 1.0, 0.0, m - 1.0
    if schedule == ZERO_BUBBLE:
        return 0.0, 0.0, float(m)
    if schedule == INTERLEAVED or number == 0:
        return 0.0, 1.0, float(m)
    if m > pp - stage:  # This path also passes the stages after this one, twice.
        return 2.0, -1.0, m - pp + stage - 1.0
    return 1.0, 0.0, (m - 1) / 2


@inlined
def _beside_others(schedule: int, pp: int, m: int) -> float:
    """Return the idle time of the mean stage under zero_bubble_v or dualpipe, at least, in forwards
    and input gradients of the whole model (models.cost.pipeline.bubble has the paths)."""
    others = pp - 1
    if schedule == DUALPIPE:
        # A mean of the paths 2F and F + I - F1, with weights that give it as much of F as of I.
        weight = 1 / max(pp / 2 - 1, 1.0)
        return 2 / (2 + weight) * (1 / 2 - 1 / pp)
    if m <= pp:
        return (2 * others - (m - 1)) / (2 * pp)
    missing = max(2 * pp - 1 - m, 0)  # below the 2 · pp - 1 of a full V
    return (missing if missing > 0 else others / 2) / (2 * pp)


@inlined
def _add(times: float, amounts: Array, to: Array) -> None:
    """Add times · amounts to `to`, part by part."""
    for part in range(len(to)):
        to[part] += times * amounts[part]


@inlined
def _lower_kept(
    row: Row, pp: int, m: int, partition: int, tables: StageTables, held: Array, kept: Array
) -> None:
    """Lower `kept` (parts,), how often the mean of `pp` stages holds the activations of each part,
    to what it is under a row's schedule with `m` micro-batches where that is less. `held` (parts,)
    is scratch."""
    held[:] = 0.0
    for stage in range(pp):
        kind = tables.kind[partition, stage]
        first = tables.first_alike[partition, kind]
        micro_batches_in_flight = in_flight(row.schedule, first, pp, row.virtual_stages, m)
        _add(micro_batches_in_flight / pp, tables.amounts[partition, kind], held)
    for part in range(len(held)):
        kept[part] = min(kept[part], held[part])


@inlined
def _insert_decisive(least: LeastPasses, chain: int, schedule: int) -> None:
    """Add a schedule to the decisive ones of a pipeline (`chain` is its number), of which one takes
    least whatever the parts take. It is not added where one of these never takes more, and drops
    those that never take less."""
    count = 0
    for i in range(least.decisive_count[chain]):
        other = least.decisive[chain, i]
        if _takes_no_more(least, chain, other, schedule):
            return
        if not _takes_no_more(least, chain, schedule, other):
            least.decisive[chain, count] = other
            count += 1
    least.decisive[chain, count] = schedule
    least.decisive_count[chain] = count + 1


@inlined
def _takes_no_more(least: LeastPasses, chain: int, schedule: int, other: int) -> bool:
    """Say whether a schedule takes no more than another for any seconds of the parts. Weight
    gradients may be any share of both passes, so both ends of that range are compared."""
    for part in range(least.both.shape[2]):
        saved = least.both[chain, other, part] - least.both[chain, schedule, part]
        without = least.without[chain, schedule, part]
        if saved < 0 or saved + least.without[chain, other, part] < without:
            return False
    return True
