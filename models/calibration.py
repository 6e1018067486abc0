"""Fit a profile to measured runs: a robust maximum a posteriori estimate over its terms.

With θ the terms on their unbounded scale, prior N(μ, diag σ²), and r_i(θ) = log measured_i - log predicted_i(θ), the
fit minimises Σ ((θ-μ)/σ)² + Σ ρ(r_i / s), ρ the Student-t loss with ν degrees of freedom: a run five residual
spreads away pulls less than one that is two away. Gauss-Newton with iterated reweighting; Jacobians by central
differences, all terms of a run in one vectorised prediction. The posterior is Laplace's: the inverse of the weighted
normal matrix. Offsets of a scope without runs have a zero column and stay at their prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.array import Array
from models.layout import Layout, Layouts
from models.problem import Problem
from models.profile import Profile, Term, to_natural
from models.step import predict

DEGREES_OF_FREEDOM = 4.0
OUTLIER_SPREADS = 4.0
_ITERATIONS = 12
_STEP = 1e-3
_VISIBLE = 0.02  # of the prior's spread: a smaller shift moves no prediction by a tenth of a percent
_IDENTIFIED = 0.9  # a posterior spread below this share of the prior's: the data said something

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A measured run. `weight` scales its say (one source must not drown the others)."""

    key: str
    problem: Problem
    layout: Layout
    step_time_s: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A term that changed: values of the coefficient's term on the natural scale for scope "all", ratios of odds or
    of values for narrower scopes; `shift_in_spreads` in prior standard deviations."""

    coefficient: str
    scope: str
    before: float
    after: float
    shift_in_spreads: float
    spread_before: float
    spread_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The fitted profile and what it rests on. Errors are medians of |predicted / measured - 1| over the runs."""

    profile: Profile
    moved: tuple[Moved, ...]
    unidentified: tuple[Key, ...]
    outliers: tuple[str, ...]
    error_before: float
    error_after: float
    observations: int


def calibrate(profile: Profile, observations: Sequence[Observation], made_by: str = "calibration") -> Calibration:
    """A new profile from runs. The order of the observations does not matter."""
    fit = _Fit(profile, sorted(observations, key=lambda o: o.key))
    theta, covariance, spread = fit.solve()
    return fit.report(theta, covariance, spread, made_by)


class _Fit:
    def __init__(self, profile: Profile, observations: Sequence[Observation]) -> None:
        self.profile, self.observations = profile, observations
        scopes = {scope for o in observations for scope in ("all", *o.problem.scopes)}
        self.terms = [term for term in profile.terms if term.scope in scopes]
        self.position = {term.key: i for i, term in enumerate(self.terms)}
        self.mean = np.array([term.mean for term in self.terms])
        self.spread = np.array([term.spread for term in self.terms])
        self.measured = np.log([o.step_time_s for o in observations])
        self.weight = np.array([o.weight for o in observations])
        self.groups = self._groups()

    def _groups(self) -> list[tuple[Problem, Array, Layouts]]:
        """Observations of one problem are predicted together."""
        rows: dict[int, list[int]] = {}
        problems: list[Problem] = []
        for i, o in enumerate(self.observations):
            for known, problem in enumerate(problems[-8:], start=max(len(problems) - 8, 0)):
                if problem is o.problem or problem == o.problem:
                    rows[known].append(i)
                    break
            else:
                rows[len(problems)] = [i]
                problems.append(o.problem)
        return [
            (problem, np.array(rows[k]), Layouts.of([self.observations[i].layout for i in rows[k]]))
            for k, problem in enumerate(problems)
        ]

    def predicted(self, theta: Array) -> Array:
        """Log step times under these terms."""
        profile = self._profile(theta)
        result = np.empty(len(self.observations))
        for problem, rows, layouts in self.groups:
            result[rows] = np.log(predict(problem, layouts, profile.coefficients(problem.scopes)).step_time_s)
        return result

    def linearised(self, theta: Array) -> tuple[Array, Array]:
        """Log step times and their Jacobian, shapes (runs,) and (runs, terms)."""
        profile = self._profile(theta)
        result = np.empty(len(self.observations))
        jacobian = np.zeros((len(self.observations), len(self.terms)))
        for problem, rows, layouts in self.groups:
            active = profile.applying(problem.scopes)
            n, k = len(rows), len(active)
            offsets = {}
            for j, term in enumerate(active):
                shift = np.zeros((2 * k + 1, n))
                shift[j], shift[k + j] = _STEP, -_STEP
                offsets[term.key] = shift.ravel()
            coefficients = profile.coefficients(problem.scopes, offsets)
            repeated = layouts.take(np.tile(np.arange(n), 2 * k + 1))
            times = np.log(predict(problem, repeated, coefficients).step_time_s).reshape(2 * k + 1, n)
            columns = np.array([self.position[term.key] for term in active])
            jacobian[np.ix_(rows, columns)] = ((times[:k] - times[k : 2 * k]) / (2 * _STEP)).T
            result[rows] = times[-1]
        return result, jacobian

    def solve(self) -> tuple[Array, Array, float]:
        """(terms, covariance, residual spread)."""
        theta, spread = self.mean.copy(), self.profile.residual_spread
        prior = np.diag(1 / self.spread**2)
        for _ in range(_ITERATIONS):
            predicted, jacobian = self.linearised(theta)
            residual = self.measured - predicted
            spread = self._residual_spread(residual)
            weight = self._weights(residual, spread) / spread**2
            normal = prior + jacobian.T @ (weight[:, None] * jacobian)
            gradient = jacobian.T @ (weight * residual) - (theta - self.mean) / self.spread**2
            step = np.linalg.solve(normal, gradient)
            step *= min(1.0, 1.0 / max(np.abs(step).max(), 1e-12))
            theta = theta + step
            if np.abs(step).max() < 1e-4:
                break
        return theta, np.linalg.inv(normal), spread

    def _residual_spread(self, residual: Array) -> float:
        """Of this fit's runs by median absolute deviation, held to the profile's as if it were ten runs more."""
        typical = 1.4826 * float(np.median(np.abs(residual)))
        n = float(self.weight.sum())
        pooled = (n * typical**2 + 10 * self.profile.residual_spread**2) / (n + 10)
        return max(float(np.sqrt(pooled)), 0.01)

    def _weights(self, residual: Array, spread: float) -> Array:
        nu = DEGREES_OF_FREEDOM
        return self.weight * (nu + 1) / (nu + (residual / spread) ** 2)

    def _profile(self, theta: Array) -> Profile:
        changed = {t.key: replace(t, mean=float(v)) for t, v in zip(self.terms, theta, strict=True)}
        return self.profile.with_terms(changed)

    def report(self, theta: Array, covariance: Array, spread: float, made_by: str) -> Calibration:
        sigma = np.sqrt(np.diag(covariance))
        identified = sigma < _IDENTIFIED * self.spread
        runs = self._runs_behind()
        changed: dict[Key, Term] = {}
        moved = []
        for i, term in enumerate(self.terms):
            spread_now = float(min(sigma[i], term.spread))
            new = replace(term, mean=float(theta[i]), spread=spread_now)
            if identified[i]:
                new = replace(new, runs=int(runs[i]))
            changed[term.key] = new
            if identified[i] or abs(new.mean - term.mean) > _VISIBLE * term.spread:
                moved.append(_moved(term, new))
        before, after = self._error(self.predicted(self.mean)), self._error(self.predicted(theta))
        residual = self.measured - self.predicted(theta)
        outliers = [
            o.key for o, r in zip(self.observations, residual, strict=True) if abs(r) > OUTLIER_SPREADS * spread
        ]
        return Calibration(
            profile=self.profile.with_terms(changed, residual_spread=spread, made_by=made_by),
            moved=tuple(sorted(moved, key=lambda m: -abs(m.shift_in_spreads))),
            unidentified=tuple(t.key for i, t in enumerate(self.terms) if not identified[i]),
            outliers=tuple(outliers),
            error_before=before,
            error_after=after,
            observations=len(self.observations),
        )

    def _runs_behind(self) -> Array:
        counts = np.zeros(len(self.terms), dtype=np.int64)
        for problem, rows, _ in self.groups:
            for term in self.profile.applying(problem.scopes):
                counts[self.position[term.key]] += len(rows)
        return counts

    def _error(self, predicted: Array) -> float:
        return float(np.median(np.abs(np.exp(predicted - self.measured) - 1)))


def _moved(before: Term, after: Term) -> Moved:
    def natural(term: Term) -> float:
        return float(to_natural(term.coefficient, term.mean) if term.scope == "all" else np.exp(term.mean))

    return Moved(
        coefficient=before.coefficient,
        scope=before.scope,
        before=natural(before),
        after=natural(after),
        shift_in_spreads=(after.mean - before.mean) / before.spread,
        spread_before=before.spread,
        spread_after=after.spread,
    )
