"""How the devices of a cluster are numbered: from the inside outwards, along the dims of a torus in any order."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from models.array import Array
from models.layout import TORUS_AXES


@dataclass(frozen=True, eq=False)
class Numbering:
    """For every order of a torus' dims (models.layout.TORUS_AXES), from the inside out: `domains` (orders, dims), how
    many devices the dims so far join, and `dims` (orders, dims), which they are; `different`, those of the orders that
    are not alike. Without a torus all orders are. `lengths` (dims,): how many inner domains each dim joins."""

    domains: Array
    dims: Array
    different: Array
    lengths: Array

    @property
    def is_open(self) -> bool:
        return len(self.different) > 1

    @classmethod
    def of(cls, domains: Sequence[int], rings: Mapping[str, tuple[int, Hashable]]) -> Numbering:
        """From the domains of a cluster's dims, and of those that are rings, by name, where they stand and what tells
        them apart."""
        inside = np.array([1, *domains[:-1]], dtype=np.int64)
        lengths = np.array(domains, dtype=np.int64) // inside
        usual = [at for at, _ in rings.values()]
        dims = np.tile(np.arange(len(domains)), (len(TORUS_AXES), 1))
        first: dict[tuple[Hashable, ...], int] = {}
        for code, order in enumerate(TORUS_AXES):
            names = [name for name in order if name in rings]
            dims[code, usual] = [rings[name][0] for name in names]
            first.setdefault(tuple(rings[name][1] for name in names), code)
        cumulative = np.tile(np.array(domains, dtype=np.int64), (len(TORUS_AXES), 1))
        if rings:
            cumulative[:, usual] = inside[usual[0]] * np.cumprod(lengths[dims[:, usual]], axis=1)
        return cls(cumulative, dims, np.array(list(first.values())), lengths)
