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
    """Write the bounds of meshes."""
    reset(tables.buffers)
    for mesh in range(len(meshes.rows)):
        meshes.bound[mesh] = bound_mesh(tables, meshes, mesh)


@inlined
def bound_mesh(tables: CompiledTables, meshes: Meshes, mesh: int) -> float:
    """Return the least step time of one mesh. The first memory policy of a sharding keeps
    everything on the device. Where it may fit, no other takes less, since others only add work."""
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
    """Return the least step time of a mesh under a variant and any schedule, or infinity where it
    does not fit. Where the number of layers to recompute is open, it is the smallest that may
    fit."""
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
    """Return the least step time of a layout under any schedule."""
    expose(tables, row)
    workspace = tables.buffers.workspace
    passes = least_seconds(workspace, tables.passes, chain)
    return least_step(tables.question.facts[0], row, tables.coefficients[0], workspace, passes)


@inlined
def bound_schedule(tables: CompiledTables, chain: int, schedule: int, row: Row) -> float:
    """Return the least step time of a layout under its schedule."""
    expose(tables, row)
    workspace = tables.buffers.workspace
    passes = seconds_of(workspace, tables.passes, chain, schedule)
    return least_step(tables.question.facts[0], row, tables.coefficients[0], workspace, passes)


@inlined
def step_seconds(tables: CompiledTables, row: Row) -> float:
    """Return the step time of a layout, as its parts are exposed."""
    question = tables.question
    workspace = tables.buffers.workspace
    stages = tables.buffers.stages
    facts = question.facts[0]
    time = tables.scratch.time
    fill_stages(facts, question.layers, row, tables.stages, workspace, stages)
    write_time_terms(
        f=facts,
        row=row,
        c=tables.coefficients[0],
        tables=tables.stages,
        w=workspace,
        s=stages,
        scratch=tables.buffers.scratch,
        time=time,
    )
    return time.sum()


@inlined
def price_policies(
    tables: CompiledTables, meshes: Meshes, mesh: int, limits: Limits, counts: SearchCounts
) -> bool:
    """Write the step times of the policies of a mesh over the least links, as far as they fit and
    may be in the answer. Return false where there are none.

    Where the plain variant of a sharding fits under a schedule, or takes too long, the schedule is
    settled: other variants only add work.
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
    """Say whether a mesh of so many `points` of complexity may be in the answer under any of the
    policies that are left."""
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
    """Write the layouts of a mesh in its place that may be in the answer. The mesh in its place has
    `points` of complexity. Return false where the buffers were full."""
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
    """Make the parts of a layout run as they do under a policy that is decided, or else as they do
    at best."""
    tables.buffers.workspace.mesh[0].undecided = not decided
    tables.buffers.row[0].policy = -1


@inlined
def all_settled(policies: PolicyTables, chain: int, settled: Array) -> bool:
    """Say whether every schedule that a pipeline may have is settled."""
    for schedule in range(len(settled)):
        if policies.legal[chain, schedule] and not settled[schedule]:
            return False
    return True


@inlined
def expose(tables: CompiledTables, row: Row) -> None:
    """Work out how the parts of a layout run beside each other, unless they run as those of the
    layout before."""
    question = tables.question
    buffers = tables.buffers
    if not same_regime(row, buffers.row[0]):
        expose_parts(
            question.facts[0],
            question.layers,
            question.policies,
            row,
            tables.coefficients[0],
            buffers.workspace,
        )
        buffers.row[0] = row


@inlined
def recompute_until_it_fits(
    tables: CompiledTables, row: Row, variant: int, schedule: int, counts: SearchCounts
) -> bool:
    """Make a row recompute the fewest layers of a chunk with which it fits, where that is open:
    every layer more only adds work. Return false where it does not fit with any number."""
    fewer, legal = layer_counts(tables, row, variant, schedule)
    least = least_that_fits(tables, row, fewer, legal)
    row.recompute_layers = tables.policies.layers[least] if least < fewer else 0
    counts.over_memory += least
    counts.dominated += max(legal - least - 1, 0)
    return least < legal


@inlined
def layer_counts(tables: CompiledTables, row: Row, variant: int, schedule: int) -> tuple[int, int]:
    """Return how many numbers of layers, fewer than all of a chunk, may be recomputed; and how many
    numbers may be, all layers included. The second is 1 where that is not open."""
    policies = tables.policies
    if not policies.open_layers[variant]:
        return 0, 1
    chunk = tables.question.facts[0].num_layers // (row.pp * row.virtual_stages)
    limit = 1 if policies.balanced[schedule] else chunk
    fewer = int(np.searchsorted(policies.layers, limit))
    return fewer, fewer + (1 if policies.all_layers else 0)


@compiled
def least_that_fits(tables: CompiledTables, row: Row, fewer: int, legal: int) -> int:
    """Return the position of the least of `legal` numbers of layers with which a layout fits, or
    `legal` where it does not fit. The numbers after the `fewer` first mean all layers."""
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
    """Say whether there is enough memory for a layout."""
    on_host = set_memory(tables, row)
    return fits_memory(tables.margin, tables.scratch.memory, on_host)


@inlined
def set_memory(tables: CompiledTables, row: Row) -> float:
    """Write the memory of a layout by term. Return the bytes on the host."""
    question = tables.question
    workspace = tables.buffers.workspace
    stages = tables.buffers.stages
    facts = tables.question.facts[0]
    set_kept(facts, question.policies, row, workspace)
    fill_stages(facts, question.layers, row, tables.stages, workspace, stages)
    _, on_host = write_memory_terms(
        f=facts,
        row=row,
        c=tables.coefficients[0],
        tables=tables.stages,
        w=workspace,
        s=stages,
        memory=tables.scratch.memory,
    )
    return on_host


@inlined
def fewest_layers(policies: PolicyTables) -> int:
    return policies.layers[0] if len(policies.layers) > 0 else 0


@inlined
def set_variant(policies: PolicyTables, row: Row, number: int) -> None:
    """Write a variant into a row, under a schedule that hides no less than any."""
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
    schedule = policies.schedules[number]
    row.schedule = schedule.schedule
    row.virtual_stages = schedule.virtual_stages
    row.partition = policies.partition[chain, number]
