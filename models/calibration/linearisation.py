"""Log predictions to first order in the terms of a profile.

A fit asks for the slopes of many predictions at once. Coefficients of the cost model are sums of
terms on their unbounded scale, the log or the log-odds: one term for each scope, such as one chip
or stack. So the slope of a log prediction in a term is its slope in the coefficient that the term
is a part of. A few coefficients stand for many terms: problems with the same scopes make a *block*,
in which the same terms are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from models.columns import Array


class Block(NamedTuple):
    """A block is a range of rows whose coefficients are sums of the same terms."""

    rows: slice
    terms: Array
    """Every term that is part of some coefficient, once, of shape (parts,)."""
    coefficients: Array
    """The coefficient that each of `terms` is a part of, of shape (parts,)."""

    def sums(self, term_values: Array, num_coefficients: int) -> Array:
        """Return for each coefficient the sum of `term_values` over the terms that are a part of
        it; shape (num_coefficients,)."""
        return np.bincount(self.coefficients, term_values[self.terms], num_coefficients)


@dataclass(frozen=True, slots=True)
class Linearisation:
    """Log predictions to first order around `theta`.

    Runs that are predicted alike share a row, however many they are. `logs` (rows,) and `slopes`
    (rows, coefficients) hold the rows, each of which is in one block, and `row` (runs,) is the row
    of each run. The Jacobian J has the slope of every run's log prediction in every term.
    """

    theta: Array
    logs: Array
    slopes: Array
    blocks: Sequence[Block]
    row: Array

    @property
    def predicted(self) -> Array:
        """Return the log prediction of each run at `theta`; shape (runs,)."""
        return np.asarray(self.logs[self.row])

    def at(self, theta: Array) -> Linearisation:
        """Return these first-order predictions at other values `theta` of the terms."""
        logs = np.empty_like(self.logs)
        moved = theta - self.theta
        for block in self.blocks:
            rows, slopes = block.rows, self.slopes[block.rows]
            # A coefficient moves by the sum of the moves of its terms.
            logs[rows] = self.logs[rows] + slopes @ block.sums(moved, slopes.shape[1])
        return replace(self, theta=theta, logs=logs)

    def gradient(self, slope: Array) -> Array:
        """Return Jᵀs, the slope in each term of a sum over runs, from its slope s = `slope` (runs,)
        in each run's log prediction."""
        return np.asarray(self.gradients(np.bincount(self.row, slope, len(self.logs))[None])[0])

    def gradients(self, slope_of_rows: Array) -> Array:
        """Return the slopes of several sums over runs, such as losses, in each term; shape (sums,
        terms). It is the chain rule: `slope_of_rows` (sums, rows) are the slopes of the sums in the
        log prediction of each row."""
        result = np.zeros((len(slope_of_rows), len(self.theta)))
        for block in self.blocks:
            in_coefficients = slope_of_rows[:, block.rows] @ self.slopes[block.rows]
            result[:, block.terms] += in_coefficients[:, block.coefficients]
        return result

    def normal_matrix(self, irls_weight: Array) -> Array:
        """Return JᵀSJ over all runs; shape (terms, terms). J has the slopes of their log
        predictions in the terms, and S their IRLS weights."""
        # Runs that share a row have equal slopes, so their weights are added up first.
        weight = np.bincount(self.row, irls_weight, len(self.logs))
        result = np.zeros((len(self.theta),) * 2)
        for block in self.blocks:
            slopes = self.slopes[block.rows]
            in_coefficients = slopes.T @ (weight[block.rows, None] * slopes)
            # A term has the slopes of the coefficient that it is a part of.
            in_terms = in_coefficients[block.coefficients][:, block.coefficients]
            result[np.ix_(block.terms, block.terms)] += in_terms
        return result

    def prediction_variance(self, term_variance: Array) -> Array:
        """Return the variance of each run's log prediction if the terms vary independently; shape
        (runs,)."""
        variance = np.empty_like(self.logs)
        for block in self.blocks:
            slopes = self.slopes[block.rows]
            # The variance of a coefficient is the sum of those of its terms.
            variance[block.rows] = slopes**2 @ block.sums(term_variance, slopes.shape[1])
        return np.asarray(variance[self.row])
