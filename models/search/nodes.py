"""The levels that a search opens, one within the other: cores, meshes, meshes with a placement, and
leaves."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from models.columns import Array, Columns, take_at
from models.cost.mesh_costs import MeshCosts
from models.layouts.complexity import points_of_degrees
from models.search.memory_bounds import Memory
from models.spec.layout import Layouts


@dataclass(frozen=True)
class Cores:
    """Cores with dp undivided: which trunk and shard each has, and its bound."""

    layouts: Layouts
    trunk: Array
    shard: Array
    bound: Array

    @cached_property
    def points(self) -> Array:
        """Of complexity."""
        return points_of_degrees(self.layouts)

    @property
    def piped(self) -> Array:
        return np.asarray(self.layouts.pp > 1)

    def take(self, rows: Array) -> Cores:
        return Cores(
            self.layouts.take(rows),
            self.trunk.take(rows),
            self.shard.take(rows),
            self.bound.take(rows),
        )

    @classmethod
    def joined(cls, parts: list[Cores]) -> Cores:
        return cls(
            Layouts.concatenate([p.layouts for p in parts]),
            *(
                np.concatenate([getattr(p, name) for p in parts])
                for name in ("trunk", "shard", "bound")
            ),
        )


@dataclass(frozen=True)
class Meshes:
    """Meshes with their groups as close as can be, or placed: costs, which of those not placed yet
    each is, its chain, points of complexity, and a bound whatever the policy."""

    costs: MeshCosts
    unplaced: Array
    chain: Array
    points: Array
    bound: Array

    def __len__(self) -> int:
        return len(self.chain)

    @property
    def layouts(self) -> Layouts:
        return self.costs.layouts

    @property
    def piped(self) -> Array:
        return np.asarray(self.layouts.pp > 1)

    def take(self, rows: Array) -> Meshes:
        return Meshes(
            self.costs.take(rows),
            self.unplaced.take(rows),
            self.chain.take(rows),
            self.points.take(rows),
            self.bound.take(rows),
        )


@dataclass(frozen=True)
class Room:
    """Memory of meshes under every variant (shardings·policies, n): `fits` those that are legal and
    may fit. Placement is nothing to memory: `of` says for every placed mesh which it is."""

    memory: Memory
    fits: Array
    of: Array

    def fit(self, variant: Array, mesh: Array, more: Array, at_most: float) -> Array:
        """Whether variants of placed meshes may with so many more micro-batches in flight than the
        least."""
        layers, each = (
            take_at(of, variant, self.of[mesh]) for of in (self.memory.layers, self.memory.each)
        )
        return np.asarray(layers + more * each <= at_most)


@dataclass(frozen=True, slots=True)
class Leaves(Columns):
    """Layouts that may be evaluated: the placed mesh of each, its schedule, and its sharding with
    memory policy; whether it has a pipeline, all its points of complexity, and a bound."""

    mesh: Array
    schedule: Array
    variant: Array
    piped: Array
    points: Array
    bound: Array

    def __len__(self) -> int:
        return len(self.mesh)


@dataclass(frozen=True)
class Outcome:
    """Of leaves: whether each is evaluated, with how many layers recomputed; and how many of the
    layouts that it stands for are too large, recompute more layers than have to be, and more than
    there are."""

    evaluated: Array
    recompute_layers: Array
    over_memory: Array
    dominated: Array
    illegal: Array

    def take(self, rows: Array) -> Outcome:
        return Outcome(*(getattr(self, f.name).take(rows) for f in fields(self)))
