"""Tables that the compiled functions of a search read, and those that they write.

A *variant* is a sharding (ZeRO stage and reshard) with a memory policy (recompute and offload). A
*chunk* is what a stage, or a virtual stage, has of the layers. Fewer *points* of complexity mean a
layout that is simpler to run (models.layouts.complexity).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.cost.facts import ProblemRecords, record_type
from models.cost.fit import Margin
from models.cost.least_links import LeastLinks
from models.cost.rows import ROW, StageTables
from models.cost.stages import Buffers
from models.search.least_passes import LeastPasses
from models.search.limits import Limits
from models.search.placements import Places


class PolicyTables(NamedTuple):
    """Holds the policies that meshes may have."""

    variants: Array
    """Records of Row, (v,): shardings with memory policies. The variants of one sharding follow
    each other."""
    first: Array
    """True where a variant is the first of its sharding, (v,)."""
    plain: Array
    """True where a variant is the first of its sharding and has neither recompute nor offload,
    (v,)."""
    open_layers: Array
    """True where a variant leaves open how many layers of a chunk it recomputes, (v,)."""
    points: Array
    """Points of complexity of a variant, (v,)."""
    schedules: Array
    """Records of Row, (s,)."""
    balanced: Array
    """True where chunks need not have equal numbers of layers, (s,)."""
    schedule_points: Array
    """Points of complexity of a schedule in a pipeline, (s,)."""
    legal: Array
    """True where a chain (pp with a number of micro-batches) may have a schedule, (chains, s)."""
    partition: Array
    """The number of the partition by which a chain's layers are split over stages under a schedule,
    (chains, s)."""
    layers: Array
    """The numbers of layers of a chunk that may be recomputed where a variant leaves that open:
    those below all layers of the model, ascending."""
    all_layers: bool
    """True where all layers of a chunk may be recomputed."""
    hides_most: int
    """The code of a schedule that hides no less traffic than any that is offered."""


class MeshScratch(NamedTuple):
    """Holds the arrays in which a search works on one mesh after the other."""

    time: Array
    """Seconds of a step by term, (terms,)."""
    memory: Array
    """Bytes on the fullest stage by term, (terms,)."""
    settled: Array
    """True for schedules under which no further memory policy of a sharding is worth a try,
    (s,)."""
    fewest: Array
    """The fewest layers of a chunk with which each variant may fit, by a bound of memory, (v,)."""
    layers: Array
    """The layers of a chunk that each variant recomputes to fit under each schedule, (v, s)."""
    least: Array
    """Seconds of a step over the best links of any placement; infinite for policies that are left
    out, (v, s)."""
    quickest: Array
    """The least of `least` for each variant, (v,)."""
    links: Array
    """The links that every axis crosses, in the places of a mesh looked at so far, (places, 16 ·
    dims)."""


class CompiledTables(NamedTuple):
    """Holds all that compiled functions need to know of a space under a profile."""

    question: ProblemRecords
    """The problem."""
    stages: StageTables
    """The distinct splits of layers over stages."""
    coefficients: Array
    """A record of the profile's coefficients, (1,)."""
    least: LeastLinks
    """The least that collectives cost over an axis in any placement."""
    passes: LeastPasses
    """The least that pipelines take in time and hold in memory."""
    policies: PolicyTables
    places: Places
    margin: Margin
    buffers: Buffers
    """Arrays of the cost model, in which one layout after the other is worked out."""
    scratch: MeshScratch


class Meshes(NamedTuple):
    """Holds meshes that are not placed yet."""

    rows: Array
    """Records of Row, (n,)."""
    chain: Array
    """The number of a mesh's chain (pp with a number of micro-batches), (n,)."""
    legal: Array
    """True where a mesh may have a variant, (n, v)."""
    bound: Array
    """The least step time under any policy that may fit; infinite where none may, (n,)."""
    points: Array
    """Points of complexity of a mesh, (n,)."""
    first_order: Array
    """The position in `Places.orders` of the first placement that a mesh may have, (n,)."""
    order_count: Array
    """The number of placements that a mesh may have, which follow each other there, (n,)."""


def take_meshes(meshes: Meshes, positions: Array | slice) -> Meshes:
    """Return the meshes at these positions, or in this slice."""
    return Meshes(*(values[positions] for values in meshes))


class Found(NamedTuple):
    """Holds layouts that may be in the answer, in arrays of one length."""

    rows: Array
    """Records of Row."""
    variant: Array
    """The number of the variant of each layout."""
    schedule: Array
    """The number of the schedule of each layout."""
    seconds: Array
    points: Array
    """Points of complexity of each layout."""


def empty_found(count: int) -> Found:
    """Return buffers with room for `count` layouts."""
    variant, schedule, points = np.empty((3, count), dtype=np.int64)
    return Found(np.empty(count, dtype=ROW), variant, schedule, np.empty(count), points)


class SearchCounts:
    """Counts what a search has looked at, in layouts unless a docstring says otherwise."""

    placed_meshes: int
    """Meshes in all placements that grow from the cores looked at."""
    found: int
    """Layouts in Found."""
    evaluated: int
    over_memory: int
    """Layouts that do not fit, wherever they are placed."""
    dominated: int
    """Layouts that recompute more layers than they need to fit."""
    steps: int
    """Meshes and places that were bounded."""
    closing_bound: float
    """The least bound of all that was left out, in the unit of the bounds: seconds of a step, or
    bytes where cores are bounded by memory."""


class Progress(NamedTuple):
    """Holds what a search has found and looked at so far. Compiled functions update it."""

    limits: Limits
    counts: Array
    """A record of SearchCounts, (1,)."""
    found: Found


SEARCH_COUNTS = record_type(SearchCounts)


def new_counts() -> Array:
    """Return one record of SearchCounts, (1,), before anything was looked at."""
    counts = np.zeros(1, dtype=SEARCH_COUNTS)
    counts["closing_bound"] = np.inf  # the least bound of all that was left out: nothing yet
    return counts
