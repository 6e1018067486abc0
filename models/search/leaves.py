"""Layouts whose placement alone is left open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.columns import Array, expand_ranges, growing_slices
from models.cost.rows import ROW
from models.search.mesh_policies import Found
from models.search.tables import SearchTables

_SIDES: tuple[Literal["left"], Literal["right"]] = "left", "right"


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

    def points(self, tables: SearchTables) -> Array:
        """Points of complexity of the policy alone."""
        schedule = self.piped * tables.schedule_points[self.schedule]
        return np.asarray(tables.variant_points[self.variant] + schedule)

    def by_mesh(self, first: int, most: int) -> Iterator[Leaves]:
        """The fastest leaf of each of the first few meshes, then all others of some meshes after
        the other; meshes in the order of their fastest leaves."""
        order = np.lexsort((self.seconds, self.mesh))
        fastest = order[np.diff(self.mesh[order], prepend=-1) > 0]
        fastest = fastest[np.argsort(self.seconds[fastest], kind="stable")]
        yield self.take(fastest[:first])
        others = np.delete(np.arange(len(self)), fastest[:first])
        start, end = (
            np.searchsorted(self.mesh[others], self.mesh[fastest], side) for side in _SIDES
        )
        for some, _ in growing_slices(np.arange(len(fastest)), first, most):
            yield self.take(others[expand_ranges(start[some], (end - start)[some])[1]])

    def take(self, at: Array) -> Leaves:
        return Leaves(
            self.mesh[at], self.variant[at], self.schedule[at], self.rows[at], self.seconds[at]
        )


def room_for_found(count: int) -> Found:
    mesh, variant, schedule = np.empty((3, count), dtype=np.int64)
    return Found(mesh, variant, schedule, np.empty(count, dtype=ROW), np.empty(count))
