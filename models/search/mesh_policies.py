"""The policies of a mesh, one after the other: every sharding and memory policy, then every
schedule.

What is fixed so far gives a partial sum (models.search.partial_sums). A policy that cannot be in an
answer is left out as soon as that shows.
"""

from __future__ import annotations

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.fit import fits_memory
from models.cost.memory_terms import write_memory_terms
from models.cost.rows import Row
from models.cost.stages import expose_parts, fill_stages, reset, set_kept
from models.cost.step import same_regime, set_mesh
from models.cost.time_terms import write_time_terms
from models.search.compiled_tables import CompiledTables, Found, Meshes, PolicyTables, SearchCounts
from models.search.least_passes import least_seconds, seconds_of
from models.search.limits import Limits, consider
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
    infinity where none may. Once a plain variant (no recompute, no offload) may fit, variants that
    are not plain are skipped, since they only add work."""
    row, policies = meshes.rows[mesh], tables.policies
    set_mesh(tables.question, row, tables.coefficients[0], tables.least, tables.buffers)
    seconds, keeps_all = np.inf, False
    for variant in range(len(policies.variants)):
        plain = policies.plain[variant]
        if meshes.legal[mesh, variant] and (plain or not keeps_all):
            bound = bound_variant(tables, meshes.chain[mesh], variant, row)
            seconds = min(seconds, bound)
            keeps_all = bound < np.inf if plain else keeps_all
    return seconds


@inlined
def bound_variant(tables: CompiledTables, chain: int, variant: int, row: Row) -> float:
    """Return a lower bound of the seconds of a step under a variant and any schedule, or infinity
    where it cannot fit. The variant is written into `row`. Where it leaves open how many layers are
    recomputed, the row gets the smallest number that may fit."""
    question = tables.question
    coefficients = tables.coefficients[0]
    workspace = tables.buffers.workspace
    facts = question.facts[0]
    held_layers = tables.passes.kept[chain]
    capacity = tables.margin.capacity
    set_variant(tables.policies, row, variant)
    set_kept(facts, question.policies, row, workspace)
    if least_memory(facts, row, coefficients, workspace, held_layers) > capacity:
        return np.inf
    # Memory falls with every layer that is recomputed, so that bisection finds the fewest.
    if tables.policies.open_layers[variant]:
        low, high = 1, -(-facts.num_layers // row.pp)
        while low < high:
            row.recompute_layers = (low + high) // 2
            set_kept(facts, question.policies, row, workspace)
            if least_memory(facts, row, coefficients, workspace, held_layers) > capacity:
                low = row.recompute_layers + 1
            else:
                high = row.recompute_layers
        row.recompute_layers = low
    return bound_schedules(tables, chain, row)


@inlined
def bound_schedules(tables: CompiledTables, chain: int, row: Row) -> float:
    """Return a lower bound of the seconds of a step for a row under any schedule that its chain may
    have (`chain` is the number of its pipeline)."""
    expose(tables, row)
    workspace = tables.buffers.workspace
    passes = least_seconds(workspace, tables.passes, chain)
    return least_step(tables.question.facts[0], row, tables.coefficients[0], workspace, passes)


@inlined
def bound_schedule(tables: CompiledTables, chain: int, schedule: int, row: Row) -> float:
    """Return a lower bound of the seconds of a step for a row under one schedule, given by its
    number. The row has that schedule's fields already."""
    expose(tables, row)
    workspace = tables.buffers.workspace
    passes = seconds_of(workspace, tables.passes, chain, schedule)
    return least_step(tables.question.facts[0], row, tables.coefficients[0], workspace, passes)


@inlined
def step_seconds(tables: CompiledTables, row: Row) -> float:
    """Return the seconds of a step of a layout. Its parts must have been exposed (`expose`)."""
    question = tables.question
    buffers = tables.buffers
    time = tables.scratch.time
    fill_stages(question, row, tables.stages, buffers.workspace, buffers.stages)
    write_time_terms(question, row, tables.coefficients[0], tables.stages, buffers, time)
    return time.sum()


@inlined
def price_policies(
    tables: CompiledTables, meshes: Meshes, mesh: int, limits: Limits, counts: SearchCounts
) -> bool:
    """Write to the scratch the seconds of a step under every policy of a mesh that fits and may be
    in the answer, over the least links of any placement; infinity for others. Write also how many
    layers each recomputes. Return whether any policy is left.

    Where the plain variant of a sharding (no recompute, no offload) fits under a schedule, or takes
    too long, the schedule is settled: other variants only add work and are skipped.
    """
    policies = tables.policies
    settled = tables.scratch.settled
    least = tables.scratch.least
    row, chain = meshes.rows[mesh], meshes.chain[mesh]
    with_pipeline = 1 if row.pp > 1 else 0
    longest, any_left = limits.longest[with_pipeline], False
    quickest = tables.scratch.quickest
    least[:] = np.inf
    quickest[:] = np.inf
    for variant in range(len(policies.variants)):
        if policies.first[variant]:
            settled[:] = False
        if not meshes.legal[mesh, variant] or all_settled(policies, chain, settled):
            continue
        plain, points = policies.plain[variant], meshes.points[mesh] + policies.points[variant]
        seconds = bound_variant(tables, chain, variant, row)
        tables.scratch.fewest[variant] = row.recompute_layers
        if seconds > longest[points]:
            counts.closing_bound = min(counts.closing_bound, seconds)
            if plain and seconds < np.inf:
                settled[:] = True
            continue
        for schedule in range(len(policies.schedules)):
            if not policies.legal[chain, schedule] or settled[schedule]:
                continue
            set_schedule(policies, chain, row, schedule)
            row.recompute_layers = fewest_layers(policies) if policies.open_layers[variant] else 0
            limit = longest[points + with_pipeline * policies.schedule_points[schedule]]
            seconds = bound_schedule(tables, chain, schedule, row)
            if seconds <= limit:
                if not recompute_until_it_fits(tables, row, variant, schedule, counts):
                    continue
                expose(tables, row)
                seconds = step_seconds(tables, row)
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
def has_promising_policy(
    tables: CompiledTables,
    meshes: Meshes,
    mesh: int,
    points: int,
    limits: Limits,
    counts: SearchCounts,
) -> bool:
    """Say whether a mesh in its present placement may be in the answer under any of the policies
    that `price_policies` left. `points` is the mesh's complexity there."""
    row, chain = meshes.rows[mesh], meshes.chain[mesh]
    longest = limits.longest[1 if row.pp > 1 else 0]
    for variant in range(len(tables.policies.variants)):
        own = points + tables.policies.points[variant]
        if tables.scratch.quickest[variant] > longest[own]:
            continue
        set_variant(tables.policies, row, variant)
        row.recompute_layers = tables.scratch.fewest[variant]
        seconds = bound_schedules(tables, chain, row)
        if seconds <= longest[own]:
            return True
        counts.closing_bound = min(counts.closing_bound, seconds)
    return False


@inlined
def evaluate_policies(
    tables: CompiledTables,
    meshes: Meshes,
    mesh: int,
    points: int,
    limits: Limits,
    counts: SearchCounts,
    found: Found,
) -> bool:
    """Evaluate the policies that `price_policies` left for a mesh in its present placement, and
    write the layouts that may be in the answer to `found`. `points` is the mesh's complexity there.
    Return false where `found` was full."""
    policies, least = tables.policies, tables.scratch.least
    row, chain = meshes.rows[mesh], meshes.chain[mesh]
    with_pipeline = 1 if row.pp > 1 else 0
    longest = limits.longest[with_pipeline]
    for variant in range(len(policies.variants)):
        if tables.scratch.quickest[variant] == np.inf:
            continue
        for schedule in range(len(policies.schedules)):
            own = (
                points
                + policies.points[variant]
                + with_pipeline * policies.schedule_points[schedule]
            )
            seconds = least[variant, schedule]
            if seconds <= longest[own]:
                set_variant(policies, row, variant)
                set_schedule(policies, chain, row, schedule)
                row.recompute_layers = tables.scratch.layers[variant, schedule]
                seconds = bound_schedule(tables, chain, schedule, row)
            if seconds <= longest[own]:
                seconds = step_seconds(tables, row)
                counts.evaluated += 1
            if seconds > longest[own]:
                counts.closing_bound = min(counts.closing_bound, seconds)
                continue
            if counts.found == len(found.seconds):
                return False
            if consider(limits, row, seconds, own):
                found.rows[counts.found] = row
                found.variant[counts.found] = variant
                found.schedule[counts.found] = schedule
                found.seconds[counts.found] = seconds
                found.points[counts.found] = own
                counts.found += 1
    return True


@inlined
def set_decided(tables: CompiledTables, decided: bool) -> None:
    """Set whether exposed times are those of a layout whose placement and policy are decided, or
    lower bounds where they are not. Results of the layout before are marked as stale."""
    tables.buffers.workspace.mesh[0].undecided = not decided
    tables.buffers.row[0].policy = -1


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
    """Write the exposed seconds of a layout's parts to the workspace, unless those of the layout
    before are the same."""
    buffers = tables.buffers
    if not same_regime(row, buffers.row[0]):
        expose_parts(tables.question, row, tables.coefficients[0], buffers.workspace)
        buffers.row[0] = row


@inlined
def recompute_until_it_fits(
    tables: CompiledTables, row: Row, variant: int, schedule: int, counts: SearchCounts
) -> bool:
    """Set the row's number of layers to recompute, where its variant leaves that open, to the
    fewest with which it fits, since every layer more only adds work. Count the numbers that are too
    small, and those that do more than they must. Return whether it fits with any."""
    fewer, legal = layer_counts(tables, row, variant, schedule)
    least = least_that_fits(tables, row, fewer, legal)
    row.recompute_layers = tables.policies.layers[least] if least < fewer else 0
    counts.over_memory += least
    counts.dominated += max(legal - least - 1, 0)
    return least < legal


@inlined
def layer_counts(tables: CompiledTables, row: Row, variant: int, schedule: int) -> tuple[int, int]:
    """Return how many choices a row has for the number of layers to recompute: those with fewer
    than all layers of a chunk, and those with all layers included. They are 0 and 1 where the
    variant leaves no choice."""
    policies = tables.policies
    if not policies.open_layers[variant]:
        return 0, 1
    chunk = tables.question.facts[0].num_layers // (row.pp * row.virtual_stages)
    limit = 1 if policies.balanced[schedule] else chunk
    fewer = int(np.searchsorted(policies.layers, limit))
    return fewer, fewer + (1 if policies.all_layers else 0)


@compiled
def least_that_fits(tables: CompiledTables, row: Row, fewer: int, legal: int) -> int:
    """Return the position of the first of `legal` choices with which a layout fits, or `legal`
    where it fits with none. A choice is a number of layers to recompute, ascending; those from
    position `fewer` on mean all layers."""
    low, high = 0, legal
    tried = legal - 1  # The most frugal comes first: where it does not fit, none does.
    while low < high:
        row.recompute_layers = tables.policies.layers[tried] if tried < fewer else 0
        if is_enough(tables, row):
            high = tried
        else:
            low = tried + 1
        tried = (low + high) // 2
    return low


@inlined
def is_enough(tables: CompiledTables, row: Row) -> bool:
    """Say whether a layout fits in memory, on the device and on its host."""
    on_host = set_memory(tables, row)
    return fits_memory(tables.margin, tables.scratch.memory, on_host)


@inlined
def set_memory(tables: CompiledTables, row: Row) -> float:
    """Write the bytes of a layout by term to the scratch. Return the bytes on the host."""
    question = tables.question
    buffers = tables.buffers
    set_kept(question.facts[0], question.policies, row, buffers.workspace)
    fill_stages(question, row, tables.stages, buffers.workspace, buffers.stages)
    _, on_host = write_memory_terms(
        question, row, tables.coefficients[0], tables.stages, buffers, tables.scratch.memory
    )
    return on_host


@inlined
def fewest_layers(policies: PolicyTables) -> int:
    return policies.layers[0] if len(policies.layers) > 0 else 0


@inlined
def set_variant(policies: PolicyTables, row: Row, number: int) -> None:
    """Write the sharding and memory policy of a variant into a row. Its schedule becomes one that
    hides at least as much traffic as any offered, and its layers to recompute become 0 (all)."""
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
    """Write a schedule into a row, with the partition that the row's chain has under it."""
    schedule = policies.schedules[number]
    row.schedule = schedule.schedule
    row.virtual_stages = schedule.virtual_stages
    row.partition = policies.partition[chain, number]
