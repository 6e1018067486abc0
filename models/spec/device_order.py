"""How the devices of a cluster are numbered: from the inside outwards, and on a torus along its
dims in any order, through one block of it after the other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from models.columns import Array
from models.spec.layout import TORUS_AXES, TORUS_BLOCKS

Piece = tuple[int, int, int]  # a dim, how many devices along it, and the distance between them


@dataclass(frozen=True, eq=False)
class DeviceOrders:
    """For every filling of a torus, the order of its dims times the length of blocks
    (models.spec.layout), the places from the inside out: `domains` (fillings, places), how many
    devices the places so far join; `dims` and `steps` (fillings, places), along which dim of the
    cluster, and how far apart neighbours are. `fillings`: those that are whole, as rows of (order,
    block), the usual one first, and the `kinds` of them that are alike. `usual` (dims,): the
    domains of the cluster's dims; `lengths` (dims,): how many of the next smaller ones each
    joins."""

    domains: Array
    dims: Array
    steps: Array
    fillings: Array
    kinds: Array
    usual: Array
    lengths: Array

    @cached_property
    def distinct_fillings(self) -> Array:
        """Of fillings that are alike the first, as rows of (order, block)."""
        return self.fillings_with_blocks(TORUS_BLOCKS)

    def fillings_with_blocks(self, blocks: Collection[int]) -> Array:
        """The same of those with blocks of these lengths."""
        rows = np.flatnonzero(np.isin(self.fillings[:, 1], list(blocks)))
        rows = rows[
            np.argsort(self.fillings[rows, 1], kind="stable")
        ]  # the simplest of those that are alike
        _, first = np.unique(self.kinds[rows], return_index=True)
        return np.asarray(self.fillings[rows[np.sort(first)]])

    @property
    def has_choice(self) -> bool:
        return len(self.distinct_fillings) > 1

    @classmethod
    def of(cls, domains: Sequence[int], rings: Mapping[str, tuple[int, bool]]) -> DeviceOrders:
        """From the domains of a cluster's dims, and of those that are rings, by name, where they
        stand and whether they close."""
        lengths = [domain // inside for domain, inside in zip(domains, [1, *domains], strict=False)]
        closes, places = dict(rings.values()), list[list[Piece]]()
        whole, kinds = list[tuple[int, int]](), list[tuple[tuple[int, int, bool], ...]]()
        for code, order in enumerate(TORUS_AXES):
            along = [rings[name][0] for name in order if name in rings]
            for block in TORUS_BLOCKS:
                pieces = list(_pieces(lengths, along, block))
                places.append(pieces)
                divides = all(lengths[dim] <= block or lengths[dim] % block == 0 for dim in along)
                if divides and (rings or not whole):
                    whole.append((code, block))
                    several = [(dim, number) for dim, number, _ in pieces if number > 1]
                    kinds.append(
                        tuple(
                            (lengths[dim], number, closes.get(dim, False))
                            for dim, number in several
                        )
                    )
        dims, numbers, steps = np.moveaxis(np.array(places, dtype=np.int64), 2, 0)
        number_of = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        return cls(
            np.cumprod(numbers, axis=1),
            dims,
            steps,
            np.array(whole),
            np.array([number_of[kind] for kind in kinds]),
            np.array(domains, dtype=np.int64),
            np.array(lengths),
        )


def _pieces(lengths: Sequence[int], along: Sequence[int], block: int) -> Iterator[Piece]:
    """Of every dim from the inside out; those of a torus within a block, then from block to
    block."""
    for dim, length in enumerate(lengths):
        if dim not in along:
            yield dim, length, 1
        elif dim == min(along):
            for one in along:
                yield one, min(block, lengths[one]), 1
            for one in along:
                within = min(block, lengths[one])
                yield one, -(-lengths[one] // within), within


def filling_code(torus_axes: Array, torus_block: Array) -> Array:
    """The codes of orders and lengths of blocks as one."""
    return torus_axes * len(TORUS_BLOCKS) + np.searchsorted(TORUS_BLOCKS, torus_block)
