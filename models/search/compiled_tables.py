"""What the compiled functions of a search read, and what they write."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.cost.facts import Question, record_type
from models.cost.least_links import LeastLinks
from models.cost.rows import ROW, StageTables
from models.cost.step import Room
from models.search.fit import Margin
from models.search.least_passes import LeastPasses
from models.search.placements import Places


class PolicyTables(NamedTuple):
    """The policies that meshes may have."""

    variants: Array
    """(v,) of Row: shardings with memory policies, those of a sharding one after the other."""
    first: Array
    """(v,): whether a variant is the first of its sharding,"""
    plain: Array
    """(v,): and whether it is so without recompute and offload."""
    open_layers: Array
    """(v,): whether it is open how many layers of a chunk a variant recomputes."""
    points: Array
    """(v,): points of complexity."""
    schedules: Array
    """(s,) of Row."""
    balanced: Array
    """(s,): whether chunks need not have equal numbers of layers."""
    schedule_points: Array
    """(s,): points of complexity, in a pipeline."""
    legal: Array
    """(chains, s): which schedules a pipeline may have."""
    partition: Array
    """(chains, s): how it splits its layers then."""
    layers: Array
    """How many layers of a chunk may be recomputed where that is open, but for all; ascending."""
    all_layers: bool
    """Whether all of them may be."""
    hides_most: int
    """A schedule that hides no less than any that is offered."""


class Scratch(NamedTuple):
    """Where a search works on one mesh after the other."""

    time: Array
    """(terms,) of a step; as is the next."""
    memory: Array
    settled: Array
    """(s,): schedules under which no further memory policy of a sharding is worth a try."""
    fewest: Array
    """(v,): how many layers of a chunk each variant recomputes at least;"""
    layers: Array
    """(v, s): and how many it does to fit, under every schedule."""
    least: Array
    """(v, s): seconds of a step over the least links; infinite for what is left out."""
    quickest: Array
    """(v,): the least of those."""
    links: Array
    """(places, 16 · dims): what every axis crosses in the places looked at so far."""


class CompiledTables(NamedTuple):
    """Of a space and a profile."""

    question: Question
    stages: StageTables
    coefficients: Array
    least: LeastLinks
    passes: LeastPasses
    policies: PolicyTables
    places: Places
    margin: Margin
    room: Room
    scratch: Scratch


class Meshes(NamedTuple):
    """Meshes that are not placed yet."""

    rows: Array
    """(n,) of Row."""
    chain: Array
    """(n,): which pipeline each has."""
    legal: Array
    """(n, v): which variants it may have."""
    bound: Array
    """(n,): the least step time under any policy that may fit; infinite where none may."""
    points: Array
    """(n,): points of complexity."""
    first_order: Array
    """(n,): where the placements begin that it may have,"""
    order_count: Array
    """(n,): and how many they are."""


def taken(meshes: Meshes, at: Array | slice) -> Meshes:
    """Those at some positions."""
    return Meshes(*(values[at] for values in meshes))


class Found(NamedTuple):
    """Room for layouts that may be in the answer, arrays of the same length."""

    rows: Array
    """Of Row."""
    variant: Array
    """Which variant each has, and which schedule."""
    schedule: Array
    seconds: Array
    points: Array
    """Points of complexity."""


def room_for_found(count: int) -> Found:
    variant, schedule, points = np.empty((3, count), dtype=np.int64)
    return Found(np.empty(count, dtype=ROW), variant, schedule, np.empty(count), points)


class Tally:
    """What a search has looked at, in layouts."""

    cores: int
    """Cores, each as often as its data parallelism divides."""
    found: int
    """Those in Found."""
    evaluated: int
    over_memory: int
    """Those that do not fit, wherever they are placed;"""
    dominated: int
    """and those that recompute more layers than have to be."""
    steps: int
    """Meshes and places that were bounded."""
    closing_bound: float
    """The least bound of what was left out."""


TALLY = record_type(Tally)


def new_tally() -> Array:
    tally = np.zeros(1, dtype=TALLY)
    tally["closing_bound"] = np.inf
    return tally
