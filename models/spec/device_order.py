"""The numbering of the devices of a cluster, which decides over which links a group of consecutive
devices communicates.

A *dim* of the cluster is a dimension of its torus or a level of switched links. Numbers grow from
the innermost dim outwards. A torus can be filled in several ways: along its dims in any order, and
through one block of it after the other. Together, the order of the dims and the length of the
blocks are a *filling* of the torus.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from models.columns import Array
from models.spec.layout import TORUS_AXES, TORUS_BLOCKS

Step = tuple[int, int, int]
"""A step along a dim: the index of the dim, the number of devices that it joins, and their
distance."""
_CACHED = 64  # clusters, so that one with several questions is numbered once


@dataclass(frozen=True, eq=False)
class DeviceOrders:
    """The order of a cluster's devices under every filling of its torus.

    A filling takes the devices in *steps* from the inside out, each along one dim of the cluster.
    The rows of `domains`, `dims` and `strides` are all fillings, in the order of
    :func:`filling_code`.
    """

    domains: Array
    """Devices that the steps so far join, of shape (fillings, steps)."""
    dims: Array
    """The dim of the cluster that each step goes along, of shape (fillings, steps)."""
    strides: Array
    """The distance of the devices that a step joins, along its dim, of shape (fillings, steps)."""
    fillings: Array
    """The fillings whose blocks divide the torus, as rows of (order of the dims, length of blocks),
    of shape (n, 2). The default is the first."""
    kinds: Array
    """A number for each of `fillings`, of shape (n,). Fillings that are alike have the same
    number."""
    default_domains: Array
    """Devices that each dim of the cluster joins with those inside it, of shape (dims,)."""
    lengths: Array
    """The number of the next smaller domains that each dim joins, of shape (dims,)."""

    @cached_property
    def distinct_fillings(self) -> Array:
        """The ways to number the torus that join devices differently, as rows of (order of the
        dims, side of the blocks). Those with one number in `kinds` are alike; the one with the
        smallest block stands for them."""
        return self.fillings_with_blocks(TORUS_BLOCKS)

    def fillings_with_blocks(self, blocks: Collection[int]) -> Array:
        """Return the distinct fillings (ways to number the torus) with blocks of these sides, as
        rows of (order of the dims, block). Of fillings that join devices alike, the one with the
        smallest block is returned."""
        rows = np.flatnonzero(np.isin(self.fillings[:, 1], list(blocks)))
        # The filling with the smallest blocks is the simplest, and stands for all that are alike.
        rows = rows[np.argsort(self.fillings[rows, 1], kind="stable")]
        # Equal `kinds` are alike: the first row of each has the smallest block.
        _, first = np.unique(self.kinds[rows], return_index=True)
        return np.asarray(self.fillings[rows[np.sort(first)]])

    @property
    def has_choice(self) -> bool:
        return len(self.fillings) > 1 and len(self.distinct_fillings) > 1


@lru_cache(_CACHED)
def orders_of(domains: tuple[int, ...], rings: tuple[tuple[str, int, bool], ...]) -> DeviceOrders:
    """Return the order of a cluster's devices under every filling of its torus.

    `domains` has the number of devices that each dim joins, those of inner dims included. `rings`
    has a row for each dim of a torus: its name, its position among the dims and whether it closes.
    """
    dim_of = {name: dim for name, dim, _ in rings}  # "x" -> the position of that dim
    closes = {dim: wraps for _, dim, wraps in rings}
    # Domains of 4, 16 and 64 devices: each dim joins 4 of the next smaller domain.
    lengths = [domain // inside for domain, inside in zip(domains, [1, *domains], strict=False)]
    steps = list[list[Step]]()
    fillings = list[tuple[int, int]]()
    signatures = list[tuple[tuple[int, int, bool], ...]]()
    for code, order in enumerate(TORUS_AXES):
        torus_dims = [dim_of[name] for name in order if name in dim_of]
        for block in TORUS_BLOCKS:
            filling_steps = list(_steps(lengths, torus_dims, block))
            steps.append(filling_steps)
            # A dim must consist of whole blocks, or be no longer than a block. Without a torus, all
            # fillings are the same and the first is enough.
            divides = all(lengths[dim] <= block or lengths[dim] % block == 0 for dim in torus_dims)
            if divides and (rings or not fillings):
                fillings.append((code, block))
                # Fillings are alike where their steps join as many devices along dims of the
                # same length that both close, or both do not.
                joining = [(dim, number) for dim, number, _ in filling_steps if number > 1]
                signatures.append(
                    tuple((lengths[dim], number, closes.get(dim, False)) for dim, number in joining)
                )
    # (fillings, steps, 3) is split into three arrays (fillings, steps).
    dims, numbers, strides = np.moveaxis(np.array(steps, dtype=np.int64), 2, 0)
    kind_of = {signature: i for i, signature in enumerate(dict.fromkeys(signatures))}
    return DeviceOrders(
        domains=np.cumprod(numbers, axis=1),
        dims=dims,
        strides=strides,
        fillings=np.array(fillings),
        kinds=np.array([kind_of[signature] for signature in signatures]),
        default_domains=np.array(domains, dtype=np.int64),
        lengths=np.array(lengths),
    )


def _steps(lengths: Sequence[int], torus_dims: Sequence[int], block: int) -> Iterator[Step]:
    """Yield the steps in which devices are numbered, from the inside out, as rows of (dim, number
    of devices or blocks, stride). `lengths` are those of the cluster's dims, and `torus_dims` lists
    the dims of the torus in the order of the filling. The dims of the torus are filled together, at
    the place of the innermost: first within a block of side `block`, then from block to block."""
    for dim, length in enumerate(lengths):
        if dim not in torus_dims:
            yield dim, length, 1  # a level of switched links
        elif dim == min(torus_dims):  # the innermost stands for all of them
            sides = {torus_dim: min(block, lengths[torus_dim]) for torus_dim in torus_dims}
            for torus_dim, side in sides.items():
                yield torus_dim, side, 1
            for torus_dim, side in sides.items():
                blocks = -(-lengths[torus_dim] // side)  # rounded up
                yield torus_dim, blocks, side


def filling_code(torus_axes: Array, torus_block: Array) -> Array:
    """Return the numbers of n fillings, (n,), which are their rows in DeviceOrders.domains.
    `torus_axes` (n,) are indices into TORUS_AXES, and `torus_block` (n,) sides of blocks."""
    return torus_axes * len(TORUS_BLOCKS) + np.searchsorted(TORUS_BLOCKS, torus_block)


def filling_of(code: Array) -> tuple[Array, Array]:
    """Return the fillings with these numbers (n,), as indices into TORUS_AXES and sides of blocks,
    each (n,). It inverts filling_code."""
    axes, block = np.divmod(code, len(TORUS_BLOCKS))
    return axes, np.array(TORUS_BLOCKS)[block]
