"""How the devices of a cluster are numbered: from the inside outwards, and on a torus along its dims in any order,
through one block of it after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from models.array import Array
from models.layout import TORUS_AXES, TORUS_BLOCKS

Piece = tuple[int, int, int]  # a dim, how many devices along it, and the distance between them


@dataclass(frozen=True, eq=False)
class Numbering:
    """For every filling of a torus, the order of its dims times the length of blocks (models.layout), the places from
    the inside out: `domains` (fillings, places), how many devices the places so far join; `dims` and `steps`
    (fillings, places), along which dim of the cluster, and how far apart neighbours are. `different`: the fillings that
    are not alike, as rows of (order, block); without a torus all are. `usual` (dims,): the domains of the cluster's
    dims; `lengths` (dims,): how many of the next smaller ones each joins."""

    domains: Array
    dims: Array
    steps: Array
    different: Array
    usual: Array
    lengths: Array

    @property
    def is_open(self) -> bool:
        return len(self.different) > 1

    @classmethod
    def of(cls, domains: Sequence[int], rings: Mapping[str, tuple[int, bool]]) -> Numbering:
        """From the domains of a cluster's dims, and of those that are rings, by name, where they stand and whether
        they close."""
        lengths = [domain // inside for domain, inside in zip(domains, [1, *domains], strict=False)]
        closes = dict(rings.values())
        fillings, first = [], dict[tuple[tuple[int, int, bool], ...], tuple[int, int]]()
        for code, order in enumerate(TORUS_AXES):
            along = [rings[name][0] for name in order if name in rings]
            for block in TORUS_BLOCKS:
                pieces = list(_pieces(lengths, along, block))
                fillings.append(pieces)
                alike = tuple((lengths[dim], number, closes.get(dim, False)) for dim, number, _ in pieces if number > 1)
                if all(lengths[dim] <= block or lengths[dim] % block == 0 for dim in along):
                    first.setdefault(alike, (code, block))
        dims, numbers, steps = np.moveaxis(np.array(fillings, dtype=np.int64), 2, 0)
        different, usual = np.array(list(first.values())), np.array(domains, dtype=np.int64)
        return cls(np.cumprod(numbers, axis=1), dims, steps, different, usual, np.array(lengths))


def _pieces(lengths: Sequence[int], along: Sequence[int], block: int) -> Iterator[Piece]:
    """Of every dim from the inside out; those of a torus within a block, then from block to block."""
    for dim, length in enumerate(lengths):
        if dim not in along:
            yield dim, length, 1
        elif dim == min(along):
            for one in along:
                yield one, min(block, lengths[one]), 1
            for one in along:
                within = min(block, lengths[one])
                yield one, -(-lengths[one] // within), within


def filling(torus_axes: Array, torus_block: Array) -> Array:
    """The codes of orders and lengths of blocks as one."""
    return torus_axes * len(TORUS_BLOCKS) + np.searchsorted(TORUS_BLOCKS, torus_block)
