"""The policies of a mesh, one after the other: every sharding and memory policy, then every
schedule.

What is fixed so far gives a lower bound, a partial sum (models.search.partial_sums). A policy that
cannot be in an answer is left out as soon as that shows.

A *variant* is a sharding with a memory policy. A *chain* is pp with a number of micro-batches,
which decides the legal schedules. `row` is the record of one mesh, into which its policies are
written in turn. The *workspace* has intermediate results for the row as it was set last. `longest`
has the most seconds that a layout of each complexity (in points) may take and still be in an
answer. The *closing bound* is the least bound of all that was left out.
"""

from __future__ import annotations

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.fit import fits_memory
from models.cost.memory_terms import write_memory_terms
from models.cost.rows import Row
from models.cost.stages import expose_parts, fill_stages, reset, set_regime_and_kept
from models.cost.step import same_regime, set_mesh
from models.cost.time_terms import write_time_terms
from models.search.compiled_tables import (
    CompiledTables,
    Meshes,
    PolicyTables,
    Progress,
    SearchCounts,
)
from models.search.least_passes import least_seconds, least_seconds_under
from models.search.limits import consider
from models.search.partial_sums import least_memory, least_step


@compiled
def bound_meshes(tables: CompiledTables, meshes: Meshes) -> None:
    """Write the lower bound of each mesh's seconds to `meshes.bound`."""
    reset(tables.buffers)
    for mesh in range(len(meshes.rows)):
        meshes.bound[mesh] = bound_mesh(tables, meshes, mesh)


@inlined
def bound_mesh(tables: CompiledTables, meshes: Meshes, mesh: int) -> float:
    """Return a lower bound of the seconds of a step on one mesh under any policy that may fit, or
    infinity where none may. Where the plain variant of a sharding (no recompute, no offload) may
    fit, its other variants are skipped, since they only add work."""
    row, policies = meshes.rows[mesh], tables.policies
    set_mesh(tables.question, row, tables.coefficients[0], tables.least, tables.buffers)
    seconds, plain_may_fit = np.inf, False
    for variant in range(len(policies.variants)):
        plain = policies.plain[variant]
        if not meshes.legal[mesh, variant] or (plain_may_fit and not plain):
            continue
        bound = bound_variant(tables, meshes.chain[mesh], variant, row)
        seconds = min(seconds, bound)
        # The variants of one sharding follow each other, the plain one first.
        if plain:
            plain_may_fit = bound < np.inf
    return seconds


@inlined
def bound_variant(tables: CompiledTables, chain: int, variant: int, row: Row) -> float:
    """Return a lower bound of the seconds of a step under a variant (sharding with memory policy)
    and any schedule, or infinity where the variant cannot fit. The variant is written into `row`.
    Where it leaves open how many layers are recomputed, the row gets the smallest number that may
    fit. `chain` (pp with a number of micro-batches) and `variant` are numbers."""
    capacity = tables.margin.capacity
    set_variant(tables.policies, row, variant)
    if bound_memory(tables, chain, row) > capacity:
        return np.inf
    # Memory falls with every layer that is recomputed, so that bisection finds the fewest. No chunk
    # of the pipeline has more layers than num_layers / pp, rounded up.
    if tables.policies.open_layers[variant]:
        low, high = 1, -(-tables.question.facts[0].num_layers // row.pp)
        while low < high:
            row.recompute_layers = (low + high) // 2
            if bound_memory(tables, chain, row) > capacity:
                low = row.recompute_layers + 1
            else:
                high = row.recompute_layers
        row.recompute_layers = low
    return bound_schedules(tables, chain, row)


@inlined
def bound_memory(tables: CompiledTables, chain: int, row: Row) -> float:
    """Return a lower bound of the bytes on the fullest stage of all layouts that grow from a row,
    under any schedule that is legal for its chain. `chain` is the number of that chain (pp with a
    number of micro-batches)."""
    facts = tables.question.facts[0]
    workspace = tables.buffers.workspace
    set_regime_and_kept(facts, tables.question.policies, row, workspace)
    return least_memory(facts, row, tables.coefficients[0], workspace, tables.passes.kept[chain])


@inlined
def bound_schedules(tables: CompiledTables, chain: int, row: Row) -> float:
    """Return a lower bound of the seconds of a step of all layouts that grow from a row, under any
    schedule that is legal for its chain. `chain` is the number of that chain (pp with a number of
    micro-batches)."""
    expose(tables, row)
    workspace = tables.buffers.workspace
    pass_s = least_seconds(workspace, tables.passes, chain)
    return least_step(tables.question.facts[0], row, tables.coefficients[0], workspace, pass_s)


@inlined
def bound_schedule(tables: CompiledTables, chain: int, schedule: int, row: Row) -> float:
    """Return a lower bound of the seconds of a step of all layouts that grow from a row (by a
    placement and a split of layers), under the schedule with this number, which must have been
    written into the row (`set_schedule`). `chain` is the number of the row's chain (pp with a
    number of micro-batches). The exposed seconds of each part (compute, and traffic that it does
    not hide) are set first."""
    expose(tables, row)
    workspace = tables.buffers.workspace
    # the least seconds of all forward and backward passes of a pipeline
    pass_s = least_seconds_under(workspace, tables.passes, chain, schedule)
    return least_step(tables.question.facts[0], row, tables.coefficients[0], workspace, pass_s)


@inlined
def step_seconds(tables: CompiledTables, row: Row) -> float:
    """Return the seconds of a step of a layout. Call `expose` on the row before, which writes the
    times of its parts."""
    question = tables.question
    buffers = tables.buffers
    time = tables.scratch.time
    fill_stages(question, row, tables.stages, buffers.workspace, buffers.stages)
    write_time_terms(question, row, tables.coefficients[0], tables.stages, buffers, time)
    return time.sum()


@inlined
def time_policies(tables: CompiledTables, meshes: Meshes, mesh: int, progress: Progress) -> bool:
    """Write to `tables.scratch.least` the seconds of a step under every policy of a mesh, over the
    best links of any placement; infinity for policies that do not fit or cannot be in the answer.
    Write to `tables.scratch.layers` how many layers each policy recomputes. Return whether any
    policy is left.

    Where the plain variant of a sharding (no recompute, no offload) fits under a schedule, or takes
    too long, the schedule is settled: other variants of the sharding only add work and are skipped.
    """
    policies, counts = tables.policies, progress.counts[0]
    settled = tables.scratch.settled
    least = tables.scratch.least
    quickest = tables.scratch.quickest
    row, chain = meshes.rows[mesh], meshes.chain[mesh]
    with_pipeline = 1 if row.pp > 1 else 0
    longest, any_left = progress.limits.longest[with_pipeline], False
    least[:] = np.inf
    quickest[:] = np.inf
    for variant in range(len(policies.variants)):
        # The variants of one sharding follow each other, the plain one first.
        if policies.first[variant]:
            settled[:] = False
        if not meshes.legal[mesh, variant] or all_settled(policies, chain, settled):
            continue
        plain, points = policies.plain[variant], meshes.points[mesh] + policies.points[variant]
        seconds = bound_variant(tables, chain, variant, row)
        tables.scratch.fewest[variant] = row.recompute_layers
        if seconds > longest[points]:
            counts.closing_bound = min(counts.closing_bound, seconds)
            # If the plain variant is too slow, so are the others of its sharding. If it only needs
            # too much memory (infinity), they may still fit.
            if plain and seconds < np.inf:
                settled[:] = True
            continue
        for schedule in range(len(policies.schedules)):
            if not policies.legal[chain, schedule] or settled[schedule]:
                continue
            set_schedule(policies, chain, row, schedule)
            # The fewest layers give a bound for any number, since every layer more only adds work.
            row.recompute_layers = fewest_layers(policies) if policies.open_layers[variant] else 0
            # A schedule adds complexity in a pipeline only.
            limit = longest[points + with_pipeline * policies.schedule_points[schedule]]
            seconds = bound_schedule(tables, chain, schedule, row)
            if seconds <= limit:
                if not recompute_until_it_fits(tables, row, variant, schedule, counts):
                    continue
                expose(tables, row)
                seconds = step_seconds(tables, row)
            # The plain variant fits here or is too slow, so no other of its sharding is better.
            settled[schedule] = plain
            if seconds > limit:
                counts.closing_bound = min(counts.closing_bound, seconds)
                continue
            least[variant, schedule] = seconds
            quickest[variant] = min(quickest[variant], seconds)
            tables.scratch.layers[variant, schedule] = row.recompute_layers
            any_left = True
    return any_left


@inlined
def is_promising(
    tables: CompiledTables, meshes: Meshes, mesh: int, points: int, progress: Progress
) -> bool:
    """Say whether a layout of a mesh may be in the answer, by a bound over the policies that
    `time_policies` left. The mesh's row has a placement and a filling of the torus, or UNPLACED for
    the best placement. `points` is its complexity there. The workspace then holds this mesh."""
    row, chain, counts = meshes.rows[mesh], meshes.chain[mesh], progress.counts[0]
    longest = progress.limits.longest[1 if row.pp > 1 else 0]
    set_mesh(tables.question, row, tables.coefficients[0], tables.least, tables.buffers)
    set_decided(tables, False)  # `expose` then gives lower bounds, as is asked here
    counts.steps += 1
    for variant in range(len(tables.policies.variants)):
        limit = longest[points + tables.policies.points[variant]]
        if tables.scratch.quickest[variant] > limit:
            continue
        set_variant(tables.policies, row, variant)
        # The fewest recomputed layers with which the variant may fit are the fastest.
        row.recompute_layers = tables.scratch.fewest[variant]
        seconds = bound_schedules(tables, chain, row)
        if seconds <= limit:
            return True
        counts.closing_bound = min(counts.closing_bound, seconds)
    return False


@inlined
def evaluate_policies(
    tables: CompiledTables, meshes: Meshes, mesh: int, points: int, progress: Progress
) -> bool:
    """Evaluate the policies that `time_policies` left for a mesh in its present placement, and
    write the layouts that may be in the answer to `progress.found`. `points` is the mesh's
    complexity there. The workspace must hold the mesh, as `is_promising` leaves it, and be marked
    as decided (`set_decided`). Return false where the buffers of found layouts were full."""
    policies, least = tables.policies, tables.scratch.least
    counts, found = progress.counts[0], progress.found
    row, chain = meshes.rows[mesh], meshes.chain[mesh]
    with_pipeline = 1 if row.pp > 1 else 0
    longest = progress.limits.longest[with_pipeline]
    for variant in range(len(policies.variants)):
        if tables.scratch.quickest[variant] == np.inf:  # `time_policies` left the variant out.
            continue
        for schedule in range(len(policies.schedules)):
            layout_points = points + policies.points[variant]
            layout_points += with_pipeline * policies.schedule_points[schedule]
            # Bounds get closer and dearer: over the least links of any placement, over the links of
            # this one, and then the step itself.
            seconds = least[variant, schedule]
            if seconds <= longest[layout_points]:
                set_variant(policies, row, variant)
                set_schedule(policies, chain, row, schedule)
                row.recompute_layers = tables.scratch.layers[variant, schedule]
                seconds = bound_schedule(tables, chain, schedule, row)
            if seconds <= longest[layout_points]:
                seconds = step_seconds(tables, row)
                counts.evaluated += 1
            if seconds > longest[layout_points]:
                counts.closing_bound = min(counts.closing_bound, seconds)
                continue
            if counts.found == len(found.seconds):
                return False
            if consider(progress.limits, row, seconds, layout_points):
                found.rows[counts.found] = row
                found.variant[counts.found] = variant
                found.schedule[counts.found] = schedule
                found.seconds[counts.found] = seconds
                found.points[counts.found] = layout_points
                counts.found += 1
    return True


@inlined
def set_decided(tables: CompiledTables, decided: bool) -> None:
    """Set whether `expose` gives the times of a layout whose placement and policy are decided, or
    lower bounds for whatever they may be."""
    tables.buffers.workspace.mesh[0].undecided = not decided
    tables.buffers.row[0].policy = -1  # No policy has this number: times are worked out anew.


@inlined
def all_settled(policies: PolicyTables, chain: int, settled: Array) -> bool:
    """Say whether every schedule that a chain may have is settled: `settled` (schedules,) is true
    for those under which no other variant is worth a try."""
    for schedule in range(len(settled)):
        if policies.legal[chain, schedule] and not settled[schedule]:
            return False
    return True


@inlined
def expose(tables: CompiledTables, row: Row) -> None:
    """Write the seconds of a layout's parts (layer kinds, embedding and head), with the traffic
    that stays exposed, to the workspace, unless the layout before left the same there."""
    buffers = tables.buffers
    if not same_regime(row, buffers.row[0]):
        expose_parts(tables.question, row, tables.coefficients[0], buffers.workspace)
        buffers.row[0] = row


@inlined
def recompute_until_it_fits(
    tables: CompiledTables, row: Row, variant: int, schedule: int, counts: SearchCounts
) -> bool:
    """Set how many layers the row recomputes, where its variant leaves that open, to the fewest
    with which it fits, since every layer more only adds work. Layouts that recompute fewer are
    counted as over memory, and layouts that recompute more as dominated. Return whether it fits
    with any number."""
    partial, choices = layer_choices(tables, row, variant, schedule)
    # A choice is a position in the ascending numbers of layers that may be recomputed.
    fewest = least_that_fits(tables, row, partial, choices)
    # 0 stands for all layers.
    row.recompute_layers = tables.policies.layers[fewest] if fewest < partial else 0
    counts.over_memory += fewest
    counts.dominated += max(choices - fewest - 1, 0)
    return fewest < choices


@inlined
def layer_choices(tables: CompiledTables, row: Row, variant: int, schedule: int) -> tuple[int, int]:
    """Return (partial, choices): of the numbers of layers that may be recomputed, how many are less
    than all layers of a chunk, and how many there are with "all layers" included. For 1, 2, 4 or
    all of a chunk of 4 they are 2 and 3. They are 0 and 1 where the variant leaves no choice."""
    policies = tables.policies
    if not policies.open_layers[variant]:
        return 0, 1
    chunk = tables.question.facts[0].num_layers // (row.pp * row.virtual_stages)
    # `balanced` chunks may have unequal numbers of layers. Of these, all are recomputed or none,
    # and a limit of 1 leaves no number to choose.
    limit = 1 if policies.balanced[schedule] else chunk
    partial = int(np.searchsorted(policies.layers, limit))
    return partial, partial + (1 if policies.all_layers else 0)


@compiled
def least_that_fits(tables: CompiledTables, row: Row, partial: int, choices: int) -> int:
    """Return the position of the first choice with which a layout fits, or `choices`, their number,
    where it fits with none. A choice is a number of layers to recompute, ascending; choices from
    position `partial` on mean all layers."""
    low, high = 0, choices
    tried = choices - 1  # The most frugal is tried first: where it does not fit, none does.
    while low < high:
        row.recompute_layers = tables.policies.layers[tried] if tried < partial else 0
        on_host = set_memory(tables, row)
        if fits_memory(tables.margin, tables.scratch.memory, on_host):
            high = tried
        else:
            low = tried + 1
        tried = (low + high) // 2
    return low


@inlined
def set_memory(tables: CompiledTables, row: Row) -> float:
    """Write the bytes of a layout by term to `tables.scratch.memory`. Return the bytes on the
    host."""
    question = tables.question
    buffers = tables.buffers
    set_regime_and_kept(question.facts[0], question.policies, row, buffers.workspace)
    fill_stages(question, row, tables.stages, buffers.workspace, buffers.stages)
    _, on_host = write_memory_terms(
        question, row, tables.coefficients[0], tables.stages, buffers, tables.scratch.memory
    )
    return on_host


@inlined
def fewest_layers(policies: PolicyTables) -> int:
    """Return the fewest layers of a chunk that constraints allow to recompute; 0 means all."""
    # The list ascends, and is empty where only all layers are allowed.
    return policies.layers[0] if len(policies.layers) > 0 else 0


@inlined
def set_variant(policies: PolicyTables, row: Row, number: int) -> None:
    """Write the sharding and memory policy of the variant with this number into a row. For lower
    bounds, the row's schedule becomes one that hides at least as much traffic as any offered. Its
    number of layers to recompute becomes 0, which means all."""
    variant = policies.variants[number]
    row.zero_stage = variant.zero_stage
    row.reshard = variant.reshard
    row.policy = variant.policy
    row.offload_activations = variant.offload_activations
    row.offload_optimizer = variant.offload_optimizer
    row.schedule, row.virtual_stages = policies.hides_most, 1
    row.recompute_layers = 0


@inlined
def set_schedule(policies: PolicyTables, chain: int, row: Row, number: int) -> None:
    """Write the schedule with this number into a row, with the partition of layers that the row's
    chain (pp with a number of micro-batches) has under it."""
    schedule = policies.schedules[number]
    row.schedule = schedule.schedule
    row.virtual_stages = schedule.virtual_stages
    row.partition = policies.partition[chain, number]
