"""Divisors of a number, and the ways to write it as a product."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from models.columns import Array

# Factorisations that are kept. Many questions are about the same few numbers of devices; the number
# bounds memory.
_CACHED = 64


def divisors(n: int) -> list[int]:
    """Return the divisors of n in ascending order."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def num_ordered_factorisations(n: int, parts: int) -> int:
    """Return the number of ways to write n as an ordered product of `parts` factors.

    The factors share out each prime power p^k of n independently, in C(k + parts - 1, parts - 1)
    ways: the result is the product of these binomial coefficients.
    """
    count = 1
    rest = n
    prime = 2
    while rest > 1:
        power = 0
        while rest % prime == 0:
            rest //= prime
            power += 1
        count *= math.comb(power + parts - 1, parts - 1)
        prime += 1
        if prime * prime > rest > 1:  # The rest has no smaller factor, and is a prime itself.
            prime = rest
    return count


@lru_cache(_CACHED)
def factorisations(n: int, parts: int) -> Array:
    """Return every ordered product of `parts` factors that is n; shape (ways, parts). The array is
    shared through a cache: nobody may write to it."""
    factors = np.array(divisors(n))
    products = np.array([[n]])
    for _ in range(parts - 1):
        # Split the last column into a factor and what it leaves.
        row, factor = np.nonzero(products[:, -1:] % factors == 0)
        rest = products[row, -1] // factors[factor]
        products = np.column_stack([products[row, :-1], factors[factor], rest])
    return products
