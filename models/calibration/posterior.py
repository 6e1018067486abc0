"""The joint posterior of a profile's terms, as a precision matrix.

A *term* is what a scope, such as one stack, adds to a coefficient, and an *offset* is a term of a
scope narrower than "all" (models.spec.profile).

Marginal spreads alone forget that a sum is known better than its parts. A stack's runs fix the
common term plus the stack's offset. With the precision kept, runs of another stack move the common
term and this stack's offset against each other, and leave their sum where it was.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.columns import Array
from models.package_data import read_json
from models.spec.profile import TermKey


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """The `precision` (k, k) of the terms `keys`, on their unbounded scale. Other terms are
    independent, with the spread that the profile says."""

    keys: tuple[TermKey, ...]
    precision: Array

    @classmethod
    def independent(cls) -> Posterior:
        """Return the posterior in which every term is independent."""
        return cls((), np.zeros((0, 0)))

    @classmethod
    def of(cls, keys: Sequence[TermKey], covariance: Array) -> Posterior:
        """Return the posterior of the terms `keys` with this covariance."""
        precision = np.linalg.inv(covariance)
        return cls(tuple(keys), (precision + precision.T) / 2)  # symmetric in spite of rounding

    def joined(self, other: Posterior) -> Posterior:
        """Return the posterior of the terms of both, such as those of the fits of time and of
        memory. The two have no term in common and are independent of each other."""
        n = len(self.keys)
        precision = np.zeros((n + len(other.keys),) * 2)
        precision[:n, :n] = self.precision
        precision[n:, n:] = other.precision
        return Posterior(self.keys + other.keys, precision)

    def with_added_variance(self, variance: Mapping[TermKey, float]) -> Posterior:
        """Return the posterior with this variance, by key, added to its terms: their true values
        may have drifted since the runs that it was learnt from."""
        if not variance.keys() & {*self.keys}:  # spares two inversions
            return self
        added = np.diag([variance.get(key, 0.0) for key in self.keys])
        return Posterior.of(self.keys, np.linalg.inv(self.precision) + added)

    def precision_of(self, keys: Sequence[TermKey], spread: Array) -> Array:
        """Return the precision (n, n) of these terms, in their order. Terms that are not in the
        posterior have their `spread` (n,). Terms of the posterior that are not asked for are
        integrated out."""
        asked_position = {key: i for i, key in enumerate(keys)}
        result = np.diag(1 / spread**2)
        asked = [i for i, key in enumerate(self.keys) if key in asked_position]
        if not asked:
            return result
        precision = self.precision
        if len(asked) < len(self.keys):
            # Terms are integrated out by dropping their rows and columns from the covariance.
            precision = np.linalg.inv(np.linalg.inv(precision)[np.ix_(asked, asked)])
        positions = [asked_position[self.keys[i]] for i in asked]
        result[np.ix_(positions, positions)] = precision
        return result

    def to_json(self) -> dict[str, Any]:
        """Return the keys and the lower Cholesky factor of the precision, row by row, as
        little-endian 32-bit floats in base64. The product of the factor with its transpose stays
        positive definite when the factor is rounded; a rounded precision might not."""
        rows = np.tril_indices(len(self.keys))
        factor = np.linalg.cholesky(self.precision)[rows] if self.keys else np.zeros(0)
        return {
            "keys": [list(key) for key in self.keys],
            "factor": base64.b64encode(factor.astype("<f4").tobytes()).decode(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Posterior:
        keys = tuple((coefficient, scope) for coefficient, scope in data["keys"])
        factor = np.zeros((len(keys), len(keys)))
        factor[np.tril_indices(len(keys))] = np.frombuffer(base64.b64decode(data["factor"]), "<f4")
        return cls(keys, factor @ factor.T)


def shipped_posterior() -> Posterior:
    """Return the joint posterior of the shipped profile (data/posterior.json)."""
    return Posterior.from_json(read_json("models", "data/posterior.json"))
