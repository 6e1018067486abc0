"""The levels that a search opens, one within the other: cores, meshes, meshes with a placement, and leaves."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from models.array import Array
from models.bounds import Times
from models.layout import Layouts
from models.memory_bounds import Memory
from models.mesh_costs import MeshCosts


@dataclass(frozen=True)
class Cores:
    """Cores with dp undivided: which trunk and shard each has, and its bound."""

    layouts: Layouts
    trunk: Array
    shard: Array
    bound: Array

    def take(self, rows: Array) -> Cores:
        return Cores(self.layouts.take(rows), self.trunk[rows], self.shard[rows], self.bound[rows])

    @classmethod
    def joined(cls, parts: list[Cores]) -> Cores:
        return cls(
            Layouts.concatenate([p.layouts for p in parts]),
            *(np.concatenate([getattr(p, name) for p in parts]) for name in ("trunk", "shard", "bound")),
        )


@dataclass(frozen=True)
class Meshes:
    """Meshes to be placed, with their `costs` as close as can be: `fits` (shardings·savers, n) are legal, may fit, and
    may be of use; with no more than `needless` micro-batches in flight a variant only adds work to one that fits.
    `times` bounds them, `bound` is the least of that, of which `apart` is taken by what a placement may still make
    worse.
    """

    costs: MeshCosts
    trunk: Array
    fits: Array
    bound: Array
    apart: Array
    times: Times
    memory: Memory
    needless: Array

    @property
    def layouts(self) -> Layouts:
        return self.costs.layouts

    def take(self, rows: Array) -> Meshes:
        return Meshes(
            self.costs.take(rows),
            self.trunk[rows],
            self.fits[:, rows],
            self.bound[rows],
            self.apart[rows],
            self.times.take(rows),
            self.memory.take(rows),
            self.needless[:, rows],
        )


@dataclass(frozen=True)
class Placed:
    """Meshes with their placement: costs, which of some meshes each is without it, chain and points of complexity;
    `time`: a bound of every variant so far."""

    costs: MeshCosts
    unplaced: Array
    chain: Array
    points: Array
    time: Array

    @property
    def piped(self) -> Array:
        return np.asarray(self.costs.layouts.pp > 1)

    def take(self, rows: Array) -> Placed:
        return Placed(
            self.costs.take(rows), self.unplaced[rows], self.chain[rows], self.points[rows], self.time[:, rows]
        )


@dataclass(frozen=True)
class Leaves:
    """Layouts that may be evaluated: the placed mesh of each, its schedule, and its sharding with saver; a bound, and
    all its points of complexity."""

    mesh: Array
    schedule: Array
    variant: Array
    bound: Array
    points: Array

    def take(self, rows: Array) -> Leaves:
        return Leaves(*(getattr(self, f.name)[rows] for f in fields(self)))


@dataclass(frozen=True)
class Outcome:
    """Of leaves: whether each is evaluated, with how many layers recomputed; and how many of the layouts that it stands
    for are too large, only add work to one that fits, and have more layers recomputed than there are."""

    evaluated: Array
    recompute_layers: Array
    over_memory: Array
    dominated: Array
    illegal: Array

    def take(self, rows: Array) -> Outcome:
        return Outcome(*(getattr(self, f.name)[rows] for f in fields(self)))
