"""Divisors and ordered factorisations."""

from __future__ import annotations

import numpy as np

from models.columns import Array


def divisors(n: int) -> list[int]:
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def ordered_factorisations(n: int, parts: int) -> int:
    """Ways to write n as an ordered product of `parts` factors: a product of binomials over its
    prime powers."""
    count, rest, prime = 1, n, 2
    while rest > 1:
        power = 0
        while rest % prime == 0:
            rest //= prime
            power += 1
        for i in range(parts - 1):
            count = count * (power + i + 1)
        divisor = 1
        for i in range(parts - 1):
            divisor *= i + 1
        count //= divisor
        prime += 1
        if prime * prime > rest > 1:
            prime = rest
    return count


def factorisations(n: int, parts: int) -> Array:
    """Ordered factorisations of n, (any number, parts)."""
    factors, found = np.array(divisors(n)), np.array([[n]])
    for _ in range(parts - 1):
        row, factor = np.nonzero(found[:, -1:] % factors == 0)
        rest = found[row, -1] // factors[factor]
        found = np.column_stack([found[row, :-1], factors[factor], rest])
    return found
