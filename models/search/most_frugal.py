"""The layout of some meshes that needs the least memory, which the error names where nothing fits.

A *variant* is a sharding with a memory policy, and a *chain* is pp with a number of micro-batches,
which decides the legal schedules.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.fit import Margin, allocated_bytes, safety_factor
from models.cost.memory_terms import FRAGMENTATION, RUNTIME
from models.cost.rows import ROW
from models.cost.stages import reset
from models.cost.step import set_mesh
from models.search.compiled_tables import CompiledTables, Meshes
from models.search.mesh_policies import (
    bound_memory,
    layer_choices,
    set_memory,
    set_schedule,
    set_variant,
)
from models.spec.layout import DEFAULT_PLACEMENT

# Layouts whose memory differs by less, relatively, need as much, and the simpler one is taken.
_ROUNDING = 1e-9


class Frugal(NamedTuple):
    """Holds the layout that needs least so far, in arrays (1,)."""

    row: Array
    """A record of Row. It is not placed, since placement does not matter for memory."""
    variant: Array
    schedule: Array
    needed: Array
    """Bytes on the fullest device (`needed_bytes`); infinite where there is no layout yet."""
    points: Array
    """Points of complexity of the layout."""
    beyond_host: Array
    """True where some layout offloads more than a host has."""


def no_frugal() -> Frugal:
    """Return arrays of one entry that hold no layout yet. Compiled functions write the most frugal
    layout into them."""
    variant, schedule, points = np.zeros((3, 1), dtype=np.int64)
    return Frugal(
        row=np.zeros(1, ROW),
        variant=variant,
        schedule=schedule,
        needed=np.full(1, np.inf),
        points=points,
        beyond_host=np.zeros(1, dtype=bool),
    )


@compiled
def find_most_frugal(
    tables: CompiledTables, meshes: Meshes, counts_host: bool, frugal: Frugal
) -> None:
    """Search meshes under every policy for the layout that needs least memory, and write it to
    `frugal` where it needs less than the one there. Where a policy leaves open how many layers are
    recomputed, the largest number is taken. `counts_host` says that memory of the host counts too
    (`needed_bytes`)."""
    reset(tables.buffers)
    policies = tables.policies
    for mesh in range(len(meshes.rows)):
        row, chain = meshes.rows[mesh], meshes.chain[mesh]
        set_mesh(tables.question, row, tables.coefficients[0], tables.least, tables.buffers)
        for variant in range(len(policies.variants)):
            if not meshes.legal[mesh, variant]:
                continue
            set_variant(policies, row, variant)
            if bound_memory(tables, chain, row) >= frugal.needed[0]:
                continue
            for schedule in range(len(policies.schedules)):
                if not policies.legal[chain, schedule]:
                    continue
                set_schedule(policies, chain, row, schedule)
                partial, choices = layer_choices(tables, row, variant, schedule)
                if choices == 0:
                    continue
                # The last choice recomputes most, so it needs least memory. It is all layers
                # (written as 0) if that is allowed; else it is one of the `partial` first choices.
                row.recompute_layers = policies.layers[choices - 1] if choices <= partial else 0
                on_host = set_memory(tables, row)
                needed = needed_bytes(tables.margin, tables.scratch.memory, on_host, counts_host)
                points = meshes.points[mesh] + policies.points[variant]
                if row.pp > 1:
                    points += policies.schedule_points[schedule]
                if needed == np.inf:  # The host has less than the layout offloads.
                    frugal.beyond_host[0] = True
                elif is_more_frugal(needed, points, frugal):
                    frugal.row[0] = row
                    # Memory is the same in every placement.
                    frugal.row[0].placement, frugal.row[0].filling = DEFAULT_PLACEMENT, 0
                    frugal.variant[0] = variant
                    frugal.schedule[0] = schedule
                    frugal.needed[0] = needed
                    frugal.points[0] = points


@inlined
def is_more_frugal(needed: float, points: int, frugal: Frugal) -> bool:
    """Say whether a layout of these bytes and points of complexity beats the one in `frugal`: it
    needs less, or as much and is simpler."""
    least = frugal.needed[0]
    if needed < least * (1 - _ROUNDING):
        return True
    return needed <= least * (1 + _ROUNDING) and points < frugal.points[0]


@inlined
def needed_bytes(margin: Margin, memory: Array, on_host: float, counts_host: bool) -> float:
    """Return the bytes on the device by which layouts are compared: the sum of `memory` (terms,),
    of which the reserved part is scaled by the layout's safety factor over the least factor that
    any layout has. A layout whose memory is less certain thus counts as one that needs more.

    Return infinity where `on_host` bytes, times the safety factor, exceed the host. With
    `counts_host` a layout that fills a share of its host counts as if it filled the same share of
    its device, if that is more than it does.
    """
    runtime = memory[RUNTIME]
    reserved = allocated_bytes(memory) + memory[FRAGMENTATION]
    factor = safety_factor(margin, memory)
    if counts_host:
        share = on_host / margin.host if on_host > 0 else 0.0
        reserved = max(reserved, share * (margin.usable - runtime))
    elif factor * on_host > margin.host:
        return np.inf
    # Divided by the least safety factor, that of a layout with the measured spread alone.
    return runtime + factor * math.exp(-margin.deviations * margin.spread.measured) * reserved
