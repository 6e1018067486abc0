"""A weight matrix of a mixer, and how tensor parallelism cuts it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

Cut = Literal["columns", "kv", "rows", "whole"]
"""What tensor parallelism divides: the outputs; those of key-value heads, which are repeated where
there are fewer of them than devices; the inputs; or nothing, where every device has the whole
matrix and multiplies its own tokens with it."""


class Projection(NamedTuple):
    """A matrix from `n_in` to `n_out` elements of a token. With several `groups` it has as many
    blocks on its diagonal, and nothing beside them."""

    name: str
    n_in: int
    n_out: int
    cut: Cut
    groups: int = 1
    fused: bool = False
    """It is computed in one product with the others of its mixer that are fused."""

    @property
    def parameters(self) -> int:
        return self.n_in * self.n_out // self.groups


def parameters_of(projections: Iterable[Projection]) -> int:
    return sum(each.parameters for each in projections)
