"""A weight matrix of a mixer (attention or a recurrence), and the way in which tensor parallelism
cuts it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

Cut = Literal["columns", "kv", "rows", "whole"]
"""The side of a matrix that tensor parallelism divides. "columns" are its outputs, "rows" its
inputs. "kv" are the outputs of key-value heads, which are repeated where devices outnumber them.
With "whole" every device has the whole matrix, and multiplies its own tokens with it."""


class Projection(NamedTuple):
    """A matrix from `n_in` to `n_out` elements of a token. With several `groups` it is
    block-diagonal, with one block for each group."""

    name: str
    n_in: int
    n_out: int
    cut: Cut
    groups: int = 1
    fused: bool = False
    """The matrix is computed in one product with the other fused ones of its mixer."""

    @property
    def parameters(self) -> int:
        return self.n_in * self.n_out // self.groups


def parameters_of(projections: Iterable[Projection]) -> int:
    return sum(projection.parameters for projection in projections)


def whole_parameters_of(projections: Iterable[Projection]) -> int:
    """Return the parameters of the matrices that every tensor-parallel rank has whole."""
    return parameters_of(projection for projection in projections if projection.cut == "whole")
