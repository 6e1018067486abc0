"""Lower bounds, for the search, of what a pipeline takes for its passes and holds of activations:
sums over the parts of a model (layer kinds, embedding and head). They are worked out once for every
chain, which is pp with a number of micro-batches, and every schedule.

The time of a schedule is that of its longest path (models.cost.pipeline.bubble). The sum here
follows one of these paths: the one that would take longest by FLOPs. It takes forward and backward
of each part so many times with weight gradients, and so many times without. Memory is that of the
mean stage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.pipeline.bubble import ends_together, in_flight, weighted_sum
from models.cost.rows import Row, StageTables
from models.cost.stages import Workspace
from models.spec.layout import AFAB, DUALPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE

_WITHOUT_WEIGHTS = 2 / 3
"""The share of a part's FLOPs that is left without weight gradients: forward and input gradients
are one product each, as weight gradients are."""


class Chains(NamedTuple):
    """Holds n chains: the numbers of stages and of micro-batches of each, (n,). For each of s
    schedules, `legal` says whether a chain may have it, and `partition` has the number of the
    partition by which its layers are then split over stages, (n, s)."""

    pp: Array
    micro_batches: Array
    legal: Array
    partition: Array


class LeastPasses(NamedTuple):
    """Holds the least that each of n chains takes in time and holds in memory."""

    with_wgrad: Array
    """The number of times that a schedule takes forward and all of backward of each part, (n, s,
    parts)."""
    without_wgrad: Array
    """The number of times that a schedule takes only forward and input gradients of each part, (n,
    s, parts)."""
    kept: Array
    """The least number of times that the mean stage holds the activations of each part, under any
    schedule, (n, parts)."""
    decisive: Array
    """Numbers of the schedules one of which is fastest, whatever the parts take, (n, s). Only the
    first `decisive_count` mean something."""
    decisive_count: Array
    """The number of decisive schedules, (n,)."""


def least_passes(
    chains: Chains, schedules: Array, flops: Array, tables: StageTables
) -> LeastPasses:
    """Return the sums that bound the time and memory of n chains under s schedules from below, and
    the `decisive` schedules of each chain, one of which is fastest. `schedules` are records of Row
    (s,). `flops` (parts,) has the FLOPs of each part of the model, by which the longest path is
    chosen. `tables` has the partitions."""
    n, s = chains.legal.shape
    with_wgrad, without_wgrad = np.zeros((2, n, s, len(flops)))
    kept = np.zeros((n, len(flops)))
    decisive, decisive_count = np.zeros((n, s), np.int64), np.zeros(n, np.int64)
    least = LeastPasses(with_wgrad, without_wgrad, kept, decisive, decisive_count)
    _fill(chains, schedules, flops, tables, np.zeros((2, len(flops))), least)
    return least


@inlined
def least_seconds_under(
    workspace: Workspace, least: LeastPasses, chain: int, schedule: int
) -> float:
    """Return a lower bound of the seconds that all passes of a step take under one schedule.
    `chain` (pp with a number of micro-batches) and `schedule` are numbers. `workspace.part_both`
    and `workspace.weights` must hold the exposed seconds of the parts (`expose_parts`)."""
    seconds = 0.0
    for part in range(len(workspace.counts)):
        # Forward and backward of the part. `weights` is what weight gradients add to them.
        both = workspace.part_both[part]
        seconds += least.with_wgrad[chain, schedule, part] * both
        seconds += least.without_wgrad[chain, schedule, part] * (both - workspace.weights[part])
    return seconds


@inlined
def least_seconds(workspace: Workspace, least: LeastPasses, chain: int) -> float:
    """Return a lower bound of the seconds that all passes of a step take under any legal schedule.
    `chain` is the number of a chain (pp with a number of micro-batches). `workspace.part_both` and
    `workspace.weights` must hold the exposed seconds of the parts (`expose_parts`)."""
    seconds = np.inf
    # However long the parts take, one of the `decisive` schedules takes least: no other is tried.
    for i in range(least.decisive_count[chain]):
        schedule = least.decisive[chain, i]
        seconds = min(seconds, least_seconds_under(workspace, least, chain, schedule))
    return seconds


@compiled
def _fill(
    chains: Chains,
    schedules: Array,
    flops: Array,
    tables: StageTables,
    scratch: Array,
    least: LeastPasses,
) -> None:
    """Write the sums of each chain under its legal schedules into `least`, whose arrays must be 0.
    `flops` (parts,) has the FLOPs of each part of the model. `scratch` (2, parts) is
    overwritten."""
    for chain in range(len(chains.pp)):
        pp, m = chains.pp[chain], chains.micro_batches[chain]
        least.kept[chain] = np.inf
        for schedule in range(len(schedules)):
            if not chains.legal[chain, schedule]:
                continue
            row, partition = schedules[schedule], chains.partition[chain, schedule]
            _set_path(
                row=row,
                pp=pp,
                m=m,
                partition=partition,
                flops=flops,
                tables=tables,
                scratch=scratch,
                with_wgrad=least.with_wgrad[chain, schedule],
                without_wgrad=least.without_wgrad[chain, schedule],
            )
            _lower_kept(
                row=row,
                pp=pp,
                m=m,
                partition=partition,
                tables=tables,
                held=scratch[0],
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
    scratch: Array,
    with_wgrad: Array,
    without_wgrad: Array,
) -> None:
    """Write how often one path through a pipeline of `pp` stages with `m` micro-batches takes
    forward and backward of each part of the model: with weight gradients to `with_wgrad` (parts,),
    and without to `without_wgrad` (parts,), which must both be 0. Of the paths that bound the
    schedule's time, the one with most FLOPs is taken. `scratch` (2, parts) is overwritten."""
    # Amounts of each part (layers of each kind, embedding, head) in the whole model, and in the
    # stages before the present one.
    whole, before = scratch[0], scratch[1]
    # The tables have one entry for all stages that are equal: that of number distinct[stage].
    distinct = tables.distinct[partition]
    whole[:] = 0.0
    before[:] = 0.0
    for stage in range(pp):
        _add(1.0, tables.amounts[partition, distinct[stage]], whole)
    # Where stages do not end together, the mean stage bounds the step: its work and its idle time.
    if pp > 1 and not ends_together(row.schedule):
        _add(m / pp, whole, with_wgrad)
        _add(_idle_of_mean_stage(row.schedule, pp, m), whole, without_wgrad)
        return
    _add(_on_mean_stage(row.schedule, pp, m), whole, with_wgrad)
    # FLOPs stand for seconds: how long the parts take is not known yet.
    longest = weighted_sum(with_wgrad, flops)
    for stage in range(pp):
        own = tables.amounts[partition, distinct[stage]]
        for path in range(2):
            # How often the path takes the whole model, the stages before, and this stage.
            of_whole, of_before, of_own = _path(row.schedule, pp, m, stage, path)
            seconds = of_whole * weighted_sum(whole, flops)
            seconds += of_before * weighted_sum(before, flops)
            seconds += of_own * weighted_sum(own, flops)
            if seconds > longest:
                longest = seconds
                with_wgrad[:] = 0.0
                _add(of_whole, whole, with_wgrad)
                _add(of_before, before, with_wgrad)
                _add(of_own, own, with_wgrad)
        # An interleaved path passes only the first chunk of each stage before the one it stays on.
        passed = tables.first if row.schedule == INTERLEAVED else tables.amounts
        _add(1.0, passed[partition, distinct[stage]], before)
    # One more path under ZB-H1 stays on the last stage, whose weight gradients of up to pp - 1
    # micro-batches come after the path's end.
    if pp > 1 and row.schedule == ZERO_BUBBLE:
        own, postponed = tables.amounts[partition, distinct[pp - 1]], min(m, pp) - 1
        own_flops = weighted_sum(own, flops)
        seconds = _WITHOUT_WEIGHTS * (weighted_sum(whole, flops) + postponed * own_flops)
        if seconds + (m - 1 - postponed) * own_flops > longest:
            with_wgrad[:] = 0.0
            _add(m - 1 - postponed, own, with_wgrad)
            _add(1.0, whole, without_wgrad)
            _add(postponed, own, without_wgrad)


@inlined
def _on_mean_stage(schedule: int, pp: int, m: int) -> float:
    """Return how often the path through the slowest of `pp` stages takes forward and backward of
    the whole model for `m` micro-batches. The slowest stage counts as a mean one, with 1/pp of the
    model, since it is no faster."""
    # The first micro-batch passes all stages, and the others stay on the slowest. Under 1F1B with
    # more micro-batches than stages a path in models.cost.pipeline.makespan takes no less.
    if schedule == AFAB or (schedule == ONE_F_ONE_B and m > pp):
        return (m + pp - 1) / pp
    # Under 1F1B with fewer micro-batches, the first passes all stages, and the others have either
    # their forwards or their backwards on the slowest: half of both or more, on the longer of these
    # two paths. Under other schedules all micro-batches stay on the slowest stage.
    return (pp + (m - 1) / 2) / pp if schedule == ONE_F_ONE_B else m / pp


@inlined
def _path(schedule: int, pp: int, m: int, stage: int, path: int) -> tuple[float, float, float]:
    """Return one of two paths through a pipeline of `pp` stages with `m` micro-batches that stay on
    a stage, as three numbers: how often it takes forward and backward of the whole model, of the
    stages before (under interleaving, of their first chunks), and of the stage itself. `path` is 0
    or 1, and only 1F1B has two different ones."""
    # The first micro-batch passes all stages, and the others stay on this one.
    if schedule == AFAB:
        return 1.0, 0.0, m - 1.0
    # All micro-batches stay on this stage.
    if schedule == ZERO_BUBBLE:
        return 0.0, 0.0, float(m)
    # The first micro-batch comes through the stages before, and all stay on this one.
    if schedule == INTERLEAVED or path == 0:
        return 0.0, 1.0, float(m)
    # This path passes the stages before once, and this stage and those after it twice: two whole
    # models less the stages before. The m - (pp - stage) pairs that alternate are on this stage;
    # one of them is in the two models already.
    if m > pp - stage:
        return 2.0, -1.0, m - pp + stage - 1.0
    # One micro-batch passes all stages, and the others have half of their passes on this one.
    return 1.0, 0.0, (m - 1) / 2


@inlined
def _idle_of_mean_stage(schedule: int, pp: int, m: int) -> float:
    """Return the least idle time of the mean of `pp` stages under zero_bubble_v or dualpipe with
    `m` micro-batches, as a multiple of the time that forward (F) and input gradients (I) of the
    whole model take together. It is therefore taken from paths of models.cost.pipeline.bubble, or
    means of paths, that have as much of F as of I."""
    others = pp - 1
    if schedule == DUALPIPE:
        # The paths 2F and F + I - F1, of the other stages of a half (F1 is their mean F), weighed
        # so that their mean has as much of F as of I. These stages are 1/2 - 1/pp of the model.
        weight = 1 / max(pp / 2 - 1, 1.0)
        return 2 / (2 + weight) * (1 / 2 - 1 / pp)
    # A stage has two chunks, each 1 / (2 · pp) of the model. One path of makespan.zero_bubble_v has
    # 2 · others - (m - 1) chunks of F and as many of I; with m above pp, one has `missing` of each.
    if m <= pp:
        return (2 * others - (m - 1)) / (2 * pp)
    missing = max(2 * pp - 1 - m, 0)  # micro-batches below the 2 · pp - 1 that fill the V
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
    """Lower `kept` (parts,), the least number of times that the mean of `pp` stages holds the
    activations of each part, to that under the row's schedule with `m` micro-batches where it is
    less. `held` (parts,) is overwritten."""
    held[:] = 0.0
    for stage in range(pp):
        distinct = tables.distinct[partition, stage]
        # As in a prediction, equal stages count as the first of them.
        first = tables.first_alike[partition, distinct]
        micro_batches_in_flight = in_flight(row.schedule, first, pp, row.virtual_stages, m)
        _add(micro_batches_in_flight / pp, tables.amounts[partition, distinct], held)
    for part in range(len(held)):
        kept[part] = min(kept[part], held[part])


@inlined
def _insert_decisive(least: LeastPasses, chain: int, schedule: int) -> None:
    """Add a schedule to the decisive ones of a chain, unless one of these is never slower than it,
    and drop those that are never faster than it. One of the decisive schedules is then fastest,
    whatever the parts take. `chain` and `schedule` are numbers."""
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
    """Say whether a schedule takes no longer than another, however long the parts take. `chain`,
    `schedule` and `other` are numbers."""
    # The difference of the two is linear in the share of a part's time that weight gradients take,
    # so only the ends of this share are tested. At 1 passes without weight gradients take no time;
    # at 0 they take as long as passes with them.
    for part in range(least.with_wgrad.shape[2]):
        fewer = least.with_wgrad[chain, other, part] - least.with_wgrad[chain, schedule, part]
        without_wgrad = least.without_wgrad[chain, schedule, part]
        if fewer < 0 or fewer + least.without_wgrad[chain, other, part] < without_wgrad:
            return False
    return True
