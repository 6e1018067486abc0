"""Maximum a posteriori estimates of profile terms from logs of positive quantities.

With θ the terms on their unbounded scale, prior N(μ, diag σ²), and r_i(θ) = log target_i - log predicted_i(θ), the
estimate minimises Σ ((θ-μ)/σ)² + Σ w_i ρ(r_i / s_i), ρ the Student-t loss with ν degrees of freedom: a run five
spreads away pulls less than one that is two away. s_i is the noise of the run's source, estimated along the way. A
target may be one-sided (a run that ran out of memory needed at least the capacity): r_i is then zero on its good side.

Gauss-Newton with Levenberg's damping and iterated reweighting; Jacobians by central differences, all terms of a
problem's runs in one vectorised prediction. The posterior is Laplace's: the inverse of the weighted normal matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from models.array import Array
from models.layout import Layout, Layouts
from models.problem import Problem
from models.profile import Profile
from models.step import Predictions, predict

DEGREES_OF_FREEDOM = 4.0
_ITERATIONS = 14
_REWEIGHTINGS = 12
_STEP = 1e-3
_CLOSE = 0.02  # prior spreads: a smaller move ends the search
_POOLED = 10  # runs' worth of the common noise in each source's own

Side = Literal["equal", "at_least", "at_most"]
Quantity = Callable[[Predictions], Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a prediction is held against. `weight` scales its say; targets of one `source` share a level of noise."""

    key: str
    problem: Problem
    layout: Layout
    value: float
    side: Side = "equal"
    weight: float = 1.0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Linear:
    """Log predictions (runs,) and their Jacobian (runs, terms) around `theta`."""

    theta: Array
    predicted: Array
    jacobian: Array

    def at(self, theta: Array) -> Array:
        return self.predicted + self.jacobian @ (theta - self.theta)


@dataclass(frozen=True, slots=True)
class Estimate:
    """`spread` is the common residual spread, `noise` (runs,) that of each run's source."""

    linear: Linear
    covariance: Array
    spread: float
    noise: Array

    @property
    def theta(self) -> Array:
        return self.linear.theta


class Fit:
    """Targets of one quantity and the terms of the coefficients it depends on."""

    def __init__(
        self, profile: Profile, targets: Sequence[Target], coefficients: frozenset[str], quantity: Quantity
    ) -> None:
        self.profile, self.targets, self.quantity = profile, targets, quantity
        scopes = {scope for t in targets for scope in ("all", *t.problem.scopes)}
        self.terms = [t for t in profile.terms if t.scope in scopes and t.coefficient in coefficients]
        self.position = {term.key: i for i, term in enumerate(self.terms)}
        self.mean = np.array([term.mean for term in self.terms])
        self.spread = np.array([term.spread for term in self.terms])
        self.value = np.log([t.value for t in targets])
        self.weight = np.array([t.weight for t in targets])
        self.source = np.unique([t.source for t in targets], return_inverse=True)[1]
        self.side = np.array([t.side for t in targets])
        self.groups = self._groups()

    def _groups(self) -> list[tuple[Problem, Array, Layouts]]:
        """Targets of one problem are predicted together."""
        rows: dict[Problem, list[int]] = {}
        for i, target in enumerate(self.targets):
            rows.setdefault(target.problem, []).append(i)
        return [
            (problem, np.array(mine), Layouts.of([self.targets[i].layout for i in mine]))
            for problem, mine in rows.items()
        ]

    def predicted(self, theta: Array, wanted: Array | None = None) -> Array:
        """Log predictions under these terms, of the `wanted` targets (a mask) or all; the others are NaN."""
        profile = self.with_terms(theta)
        result = np.full(len(self.targets), np.nan)
        for problem, rows, layouts in self.groups:
            mine = np.ones(len(rows), dtype=bool) if wanted is None else wanted[rows]
            if mine.any():
                found = predict(problem, layouts.take(mine), profile.coefficients(problem.scopes))
                result[rows[mine]] = np.log(self.quantity(found))
        return result

    def linearised(self, theta: Array) -> Linear:
        profile = self.with_terms(theta)
        predicted = np.empty(len(self.targets))
        jacobian = np.zeros((len(self.targets), len(self.terms)))
        for problem, rows, layouts in self.groups:
            active = [term for term in profile.applying(problem.scopes) if term.key in self.position]
            n, k = len(rows), len(active)
            offsets = {}
            for j, term in enumerate(active):
                shift = np.zeros((2 * k + 1, n))
                shift[j], shift[k + j] = _STEP, -_STEP
                offsets[term.key] = shift.ravel()
            coefficients = profile.coefficients(problem.scopes, offsets)
            repeated = layouts.take(np.tile(np.arange(n), 2 * k + 1))
            logs = np.log(self.quantity(predict(problem, repeated, coefficients))).reshape(2 * k + 1, n)
            columns = np.array([self.position[term.key] for term in active])
            jacobian[np.ix_(rows, columns)] = ((logs[:k] - logs[k : 2 * k]) / (2 * _STEP)).T
            predicted[rows] = logs[-1]
        return Linear(theta, predicted, jacobian)

    def solve(self, weight: Array | None = None, start: Estimate | None = None) -> Estimate:
        """The estimate, with other weights than the targets' or from another start than the prior if given."""
        weight = self.weight if weight is None else weight
        linear = start.linear if start else self.linearised(self.mean.copy())
        damping = 0.0
        for _ in range(_ITERATIONS):
            _, noise = self._noise(self.residual(linear.predicted), weight)
            theta = self._minimum(linear, weight, noise, damping)
            moved = self.linearised(theta)
            if self._loss(moved, weight, noise) > self._loss(linear, weight, noise) + 1e-9:
                damping = max(4 * damping, 1.0)
                continue
            step, linear, damping = theta - linear.theta, moved, damping / 4
            if damping < 1 and np.abs(step / self.spread).max(initial=0.0) < _CLOSE:
                break
        return self._estimate(linear, weight)

    def reweighted(self, weight: Array, estimate: Estimate) -> Array:
        """Terms of the estimate had the targets had these weights, to first order around it."""
        _, noise = self._noise(self.residual(estimate.linear.predicted), weight)
        return self._minimum(estimate.linear, weight, noise, 0.0)

    def left_out(self, labels: Array, estimate: Estimate) -> Array:
        """Log predictions of every target by an estimate that saw none with its label."""
        unseen = np.empty(len(self.targets))
        for label in np.unique(labels):
            mine = labels == label
            weight = np.where(mine, 0.0, self.weight)
            unseen[mine] = self.predicted(self.reweighted(weight, estimate), mine)[mine]
        return unseen

    def residual(self, predicted: Array) -> Array:
        """Log target over prediction; zero on the good side of a one-sided target."""
        away = self.value - predicted
        good = ((self.side == "at_least") & (away < 0)) | ((self.side == "at_most") & (away > 0))
        return np.where(good, 0.0, away)

    def with_terms(self, theta: Array) -> Profile:
        changed = {t.key: replace(t, mean=float(v)) for t, v in zip(self.terms, theta, strict=True)}
        return self.profile.with_terms(changed)

    def _minimum(self, linear: Linear, weight: Array, noise: Array, damping: float) -> Array:
        """The minimum of the linearised problem at this noise."""
        theta, prior = linear.theta, 1 / self.spread**2
        for _ in range(_REWEIGHTINGS):
            residual = self.residual(linear.at(theta))
            say = self._say(residual, weight, noise)
            normal = np.diag(prior * (1 + damping)) + linear.jacobian.T @ (say[:, None] * linear.jacobian)
            pull = (theta - self.mean) * prior + damping * prior * (theta - linear.theta)
            step = np.linalg.solve(normal, linear.jacobian.T @ (say * residual) - pull)
            theta = theta + step
            if np.abs(step / self.spread).max(initial=0.0) < _CLOSE:
                break
        return np.asarray(theta)

    def _say(self, residual: Array, weight: Array, noise: Array) -> Array:
        """Weights of the squared residuals that have the Student-t loss's minimum."""
        idle = (self.side != "equal") & (residual == 0)
        nu = DEGREES_OF_FREEDOM
        return np.where(idle, 0.0, weight * (nu + 1) / (nu + (residual / noise) ** 2) / noise**2)

    def _loss(self, linear: Linear, weight: Array, noise: Array) -> float:
        nu, residual = DEGREES_OF_FREEDOM, self.residual(linear.predicted)
        data = weight * (nu + 1) * np.log1p((residual / noise) ** 2 / nu)
        return float(data.sum() + (((linear.theta - self.mean) / self.spread) ** 2).sum())

    def _noise(self, residual: Array, weight: Array) -> tuple[float, Array]:
        """Spread of all residuals, and of each source's own, by median absolute deviation."""
        used = (weight > 0) & (self.side == "equal")
        prior = self.profile.residual_spread
        spread = max(_pooled(residual[used], prior, float(weight[used].sum())), 0.01)
        noise = np.full(len(residual), spread)
        for source in np.unique(self.source[used]):
            mine = used & (self.source == source)
            noise[self.source == source] = max(_pooled(residual[mine], spread, float(mine.sum())), 0.01)
        return spread, noise

    def _estimate(self, linear: Linear, weight: Array) -> Estimate:
        residual = self.residual(linear.predicted)
        spread, noise = self._noise(residual, weight)
        say = self._say(residual, weight, noise)
        normal = np.diag(1 / self.spread**2) + linear.jacobian.T @ (say[:, None] * linear.jacobian)
        return Estimate(linear, np.linalg.inv(normal), spread, noise)


def _pooled(residual: Array, prior: float, n: float) -> float:
    """Spread of n residuals, held to a prior spread as if it were _POOLED more."""
    if not len(residual):
        return prior
    typical = 1.4826 * float(np.median(np.abs(residual)))
    return float(np.sqrt((n * typical**2 + _POOLED * prior**2) / (n + _POOLED)))
