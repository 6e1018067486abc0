"""Layouts whose placement alone is left open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.columns import Array
from models.cost.rows import ROW
from models.search.mesh_policies import Found
from models.search.tables import SearchTables


@dataclass(frozen=True)
class Leaves:
    """Of some meshes: which each is on, its variant of sharding and memory policy, its schedule,
    all of it as the compiled functions read it, and its step time over the best links that a
    placement might give it; arrays of shape (n,)."""

    mesh: Array
    variant: Array
    schedule: Array
    rows: Array
    seconds: Array

    @classmethod
    def of(cls, found: Found, count: int, first_mesh: int) -> Leaves:
        """The first of what was found on meshes from one on."""
        mesh, *others = (values[:count].copy() for values in found)
        return cls(mesh + first_mesh, *others)

    def __len__(self) -> int:
        return len(self.mesh)

    @property
    def piped(self) -> Array:
        return np.asarray(self.rows["pp"] > 1)

    def points(self, tables: SearchTables, of_meshes: Array) -> Array:
        """Points of complexity but for those of a placement."""
        return of_meshes[self.mesh] + self.policy_points(tables)

    def policy_points(self, tables: SearchTables) -> Array:
        """Those of the policy alone."""
        schedule = self.piped * tables.schedule_points[self.schedule]
        return np.asarray(tables.variant_points[self.variant] + schedule)

    def take(self, at: Array) -> Leaves:
        return Leaves(
            self.mesh[at], self.variant[at], self.schedule[at], self.rows[at], self.seconds[at]
        )


def room_for_found(count: int) -> Found:
    mesh, variant, schedule = np.empty((3, count), dtype=np.int64)
    return Found(mesh, variant, schedule, np.empty(count, dtype=ROW), np.empty(count))
