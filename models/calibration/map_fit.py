"""Maximum a posteriori estimates of profile terms from logs of positive quantities.

With θ the terms on their unbounded scale, prior N(μ, P⁻¹), and r_i(θ) = log target_i - log
predicted_i(θ), the estimate minimises (θ-μ)ᵀP(θ-μ) + Σ w_i ρ(r_i / s_i), ρ the Student-t loss with
ν degrees of freedom: a run five spreads away pulls less than one that is two away. s_i is the noise
of the run's source, estimated along the way. A target may be a bound (a run that ran out of memory
needed at least the capacity): r_i is then zero on its good side. Of a fleet's own runs, whose
memory may not have been measured, its loss is that of a logistic regression with as much noise, l =
log(1 + exp(±r_i π / √3 s_i)), as 2c log(1 + l / c): ten that failed where the prediction just fits
say more than that, and one that failed where it needs a fifth of what there is, for whatever
reason, little. All runs of one sparse model may be off alike, which is integrated out
(models.calibration.random_effects).

Gauss-Newton with Levenberg's damping and iterated reweighting; Jacobians by central differences,
all terms of a problem's runs in one vectorised prediction. The posterior is Laplace's: the inverse
of the weighted normal matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from models.calibration.posterior import Posterior
from models.calibration.random_effects import RandomEffects
from models.columns import Array
from models.cost.step import Predictions, predict
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem, number_by_problem
from models.spec.profile import Profile

DEGREES_OF_FREEDOM = 4.0
_ITERATIONS = 14
# rounds in which runs' weights and what their models have in common are found from each other
_SETTLING = 4
_REWEIGHTINGS = 12
_STEP = 1e-3
_CLOSE = 0.02  # prior spreads: a smaller move ends the search
_POOLED = 10  # runs' worth of the common noise in each source's own

_LOGISTIC = 3**0.5 / np.pi  # width of the logistic distribution of standard deviation 1
_FAR, _TINY = 30.0, 1e-6
# c of the loss of bounds: beyond some such widths a run is more likely to be of something else
_GROSS = 3.0

Side = Literal["equal", "at_least", "at_most"]
_SIGNS: dict[Side, int] = {"equal": 0, "at_least": 1, "at_most": -1}
Quantity = Callable[[Predictions], Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the `quantity` of a prediction is held against. `weight` scales its say; targets of one
    `source` share a level of noise, those of one sparse `model` what is odd about it."""

    key: str
    problem: Problem
    layout: Layout
    value: float
    quantity: str
    side: Side = "equal"
    weight: float = 1.0
    source: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Linear:
    """Log predictions around `theta` and their Jacobian (rows, terms). `row` (runs,): of each run;
    runs that are predicted alike share one, however many they are."""

    theta: Array
    logs: Array
    jacobian: Array
    row: Array

    @property
    def predicted(self) -> Array:
        """(runs,)"""
        return np.asarray(self.logs[self.row])

    def at(self, theta: Array) -> Linear:
        return replace(self, theta=theta, logs=self.logs + self.jacobian @ (theta - self.theta))

    def pull(self, force: Array) -> Array:
        """On the terms, of a force on each run's log prediction."""
        return np.asarray(self.jacobian.T @ self._of_rows(force))

    def normal(self, say: Array) -> Array:
        """JᵀSJ of all runs, for their weights."""
        return np.asarray(self.jacobian.T @ (self._of_rows(say)[:, None] * self.jacobian))

    def variance(self, of_terms: Array) -> Array:
        """Of each run's log prediction, from independent terms."""
        return np.asarray((self.jacobian**2 @ of_terms)[self.row])

    def _of_rows(self, of_runs: Array) -> Array:
        return np.bincount(self.row, of_runs, len(self.logs))


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


@dataclass(frozen=True, slots=True)
class Group:
    """Targets of one quantity of one problem: which they are, the layouts among them, and which one
    each has. `first`: the row of its first layout in a Jacobian."""

    problem: Problem
    quantity: Quantity
    runs: Array
    layouts: Layouts
    code: Array
    first: int


class Fit:
    """Targets, and the terms of the coefficients that their quantities depend on."""

    def __init__(
        self,
        profile: Profile,
        targets: Sequence[Target],
        coefficients: frozenset[str],
        quantities: Mapping[str, Quantity],
        posterior: Posterior,
        *,
        scatter: float | None = None,
        caution: float = 1.0,
        oddity: float = 0.0,
    ) -> None:
        """`scatter`: of machines that the profile has not seen, how unseen runs did; they may all
        lie to one side of their predictions, which is no noise. `caution`: how many times as noisy
        runs are taken to be where terms move towards them; how sure these then are is said without.
        `oddity`: the spread of what all runs of a sparse model have in common."""
        self.fresh = scatter is not None
        self.scatter = profile.residual_spread if scatter is None else scatter
        self.caution = caution
        self.profile, self.targets, self.quantities = profile, targets, quantities
        scopes, joint = (
            {scope for t in targets for scope in ("all", *t.problem.scopes)},
            {*posterior.keys},
        )
        ours = [t for t in profile.terms if t.coefficient in coefficients]
        self.terms = [t for t in ours if t.scope in scopes or t.key in joint]
        self.concerned = [t for t in ours if t.scope in scopes]
        self.position = {term.key: i for i, term in enumerate(self.terms)}
        self.mean = np.array([term.mean for term in self.terms])
        self.spread = np.array([term.spread for term in self.terms])
        self.precision = posterior.of_terms([term.key for term in self.terms], self.spread)
        self.value = np.log([t.value for t in targets])
        self.weight = np.array([t.weight for t in targets])
        self.source = np.unique([t.source for t in targets], return_inverse=True)[1]
        self.sign = np.array([_SIGNS[t.side] for t in targets])
        self.oddities = _oddities(targets, oddity)
        self.groups = self._groups()
        self.row = np.empty(len(targets), dtype=np.int64)
        for group in self.groups:
            self.row[group.runs] = group.first + group.code

    def _groups(self) -> list[Group]:
        """Targets of one problem are predicted together, and a layout that ran often once."""
        members: dict[tuple[int, str], list[int]] = {}
        for i, number in enumerate(number_by_problem([target.problem for target in self.targets])):
            members.setdefault((number, self.targets[i].quantity), []).append(i)
        groups, first = list[Group](), 0
        for (_, quantity), runs in members.items():
            place: dict[Layout, int] = {}
            code = [place.setdefault(self.targets[i].layout, len(place)) for i in runs]
            problem, layouts = self.targets[runs[0]].problem, Layouts.of(list(place))
            groups.append(
                Group(
                    problem,
                    self.quantities[quantity],
                    np.array(runs),
                    layouts,
                    np.array(code),
                    first,
                )
            )
            first += len(place)
        return groups

    def predicted(self, theta: Array, wanted: Array | None = None) -> Array:
        """Log predictions under these terms, of the `wanted` targets (a mask) or all; the others
        are NaN."""
        profile = self.with_terms(theta)
        result = np.full(len(self.targets), np.nan)
        for group in self.groups:
            mine = np.ones(len(group.runs), dtype=bool) if wanted is None else wanted[group.runs]
            if mine.any():
                coefficients = profile.coefficients(group.problem.scopes)
                found = predict(group.problem, group.layouts, coefficients)
                result[group.runs[mine]] = np.log(group.quantity(found))[group.code[mine]]
        return result

    def linearised(self, theta: Array) -> Linear:
        profile = self.with_terms(theta)
        logs = np.empty(self.row.max(initial=-1) + 1)
        jacobian = np.zeros((len(logs), len(self.terms)))
        for group in self.groups:
            scopes, layouts = group.problem.scopes, group.layouts
            active = [term for term in profile.terms_in(scopes) if term.key in self.position]
            n, k = len(layouts), len(active)
            offsets = {}
            for j, term in enumerate(active):
                shift = np.zeros((2 * k + 1, n))
                shift[j], shift[k + j] = _STEP, -_STEP
                offsets[term.key] = shift.ravel()
            coefficients = profile.coefficients(scopes, offsets)
            repeated = layouts.take(np.tile(np.arange(n), 2 * k + 1))
            found = np.log(group.quantity(predict(group.problem, repeated, coefficients))).reshape(
                2 * k + 1, n
            )
            mine, columns = (
                slice(group.first, group.first + n),
                [self.position[term.key] for term in active],
            )
            jacobian[mine, columns] = ((found[:k] - found[k : 2 * k]) / (2 * _STEP)).T
            logs[mine] = found[-1]
        return Linear(theta, logs, jacobian, self.row)

    def solve(self) -> Estimate:
        """The estimate, from the profile's terms on."""
        weight, linear, damping = self.weight, self.linearised(self.mean.copy()), 0.0
        noise = np.full(len(self.targets), self.scatter)
        for iteration in range(_ITERATIONS):
            _, noise = self._noise(self._own(linear.predicted, weight, noise), weight)
            if self.fresh and not iteration:
                noise = np.full(len(self.targets), self.scatter)
            noise = self.caution * noise
            theta = self._minimum(linear, weight, noise, damping)
            moved = self.linearised(theta)
            if self._loss(moved, weight, noise) > self._loss(linear, weight, noise) + 1e-9:
                damping = max(4 * damping, 1.0)
                continue
            step, linear, damping = theta - linear.theta, moved, damping / 4
            if damping < 1 and np.abs(step / self.spread).max(initial=0.0) < _CLOSE:
                break
        return self._estimate(linear, weight, noise)

    def reweighted(self, weight: Array, estimate: Estimate) -> Array:
        """Terms of the estimate had the targets had these weights, to first order around it."""
        _, noise = self._noise(self._own(estimate.linear.predicted, weight, estimate.noise), weight)
        return self._minimum(estimate.linear, weight, self.caution * noise, 0.0)

    def without(self, dropped: Array, estimate: Estimate) -> Estimate:
        """The estimate had the targets of a mask not been there, to first order around it."""
        weight = np.where(dropped, 0.0, self.weight)
        theta = self.reweighted(weight, estimate)
        linear = estimate.linear
        return self._estimate(linear.at(theta), weight, estimate.noise)

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
        return np.where(self.sign * away < 0, 0.0, away)

    def with_terms(self, theta: Array) -> Profile:
        changed = {t.key: replace(t, mean=float(v)) for t, v in zip(self.terms, theta, strict=True)}
        return self.profile.with_terms(changed)

    def _minimum(self, linear: Linear, weight: Array, noise: Array, damping: float) -> Array:
        """The minimum of the linearised problem at this noise."""
        theta, damped = linear.theta, damping * np.diag(self.precision)
        for _ in range(_REWEIGHTINGS):
            predicted = linear.at(theta).predicted
            common = self._common(predicted, weight, noise)
            residual, say = self._pull(predicted + common, weight, noise)
            residual = residual + common
            normal = self.precision + np.diag(damped) + self._normal(linear, say)
            pull = self.precision @ (theta - self.mean) + damped * (theta - linear.theta)
            own = residual - self.oddities.common(residual, say)
            step = np.linalg.solve(normal, linear.pull(say * own) - pull)
            theta = theta + step
            if np.abs(step / self.spread).max(initial=0.0) < _CLOSE:
                break
        return np.asarray(theta)

    def _common(self, predicted: Array, weight: Array, noise: Array) -> Array:
        """What the runs of each one's model have in common, at the weights that they then have."""
        common = np.zeros_like(predicted)
        if not self.oddities.spread.any():
            return common
        residual = self.residual(predicted)
        for _ in range(_SETTLING):
            say = self._say(self.residual(predicted + common), weight, noise)
            common = self.oddities.common(residual, say)
        return common

    def _own(self, predicted: Array, weight: Array, noise: Array) -> Array:
        """Residuals, less what their models have in common."""
        return self.residual(predicted + self._common(predicted, weight, noise))

    def _normal(self, linear: Linear, say: Array) -> Array:
        return linear.normal(say) - self.oddities.normal(linear.jacobian, linear.row, say)

    def _pull(self, predicted: Array, weight: Array, noise: Array) -> tuple[Array, Array]:
        """Residuals, and weights of their squares, that have the minimum of the losses; of bounds
        such that no step goes too far (Jaakkola & Jordan 2000, doi:10.1023/A:1008932416310)."""
        residual = self.residual(predicted)
        say = self._say(residual, weight, noise)
        if not self.fresh:
            return residual, say
        width = noise * _LOGISTIC
        wrong, share, pull = self._beyond_bound(predicted, width)
        curve = np.where(
            wrong > _TINY, np.tanh(wrong / 2) / (2 * np.maximum(wrong, _TINY)), share * (1 - share)
        )
        residual = np.where(self.sign == 0, residual, self.sign * width * share / curve)
        return residual, np.where(self.sign == 0, say, weight * pull * curve / width**2)

    def _say(self, residual: Array, weight: Array, noise: Array) -> Array:
        """Weights of the squared residuals that have the Student-t loss's minimum."""
        idle = (self.sign != 0) & (residual == 0)
        nu = DEGREES_OF_FREEDOM
        return np.where(idle, 0.0, weight * (nu + 1) / (nu + (residual / noise) ** 2) / noise**2)

    def _beyond_bound(self, predicted: Array, width: Array) -> tuple[Array, Array, Array]:
        """How far a prediction is on the wrong side of a bound, in widths; how likely it makes the
        side on which the run was not; and what is left of the run's pull so far out."""
        wrong = np.clip(self.sign * (self.value - predicted) / width, -_FAR, _FAR)
        return wrong, 1 / (1 + np.exp(-wrong)), 1 / (1 + np.logaddexp(0.0, wrong) / _GROSS)

    def _information(self, predicted: Array, weight: Array, noise: Array) -> Array:
        """Of each target about its prediction: what it weighs, but of a bound the curvature of its
        loss."""
        say = self._say(self.residual(predicted), weight, noise)
        if not self.fresh:
            return say
        width = noise * _LOGISTIC
        _, share, pull = self._beyond_bound(predicted, width)
        return np.where(self.sign == 0, say, weight * pull * share * (1 - share) / width**2)

    def _loss(self, linear: Linear, weight: Array, noise: Array) -> float:
        common = self._common(linear.predicted, weight, noise)
        nu, residual = DEGREES_OF_FREEDOM, self.residual(linear.predicted + common)
        data = (nu + 1) * np.log1p((residual / noise) ** 2 / nu)
        if self.fresh:
            wrong, _, _ = self._beyond_bound(linear.predicted, noise * _LOGISTIC)
            far = 2 * _GROSS * np.log1p(np.logaddexp(0.0, wrong) / _GROSS)
            data = np.where(self.sign == 0, data, far)
        away = linear.theta - self.mean
        prior = away @ self.precision @ away + self.oddities.loss(common)
        return float((weight * data).sum() + prior)

    def _noise(self, residual: Array, weight: Array) -> tuple[float, Array]:
        """Spread of all residuals, and of each source's own, by median absolute deviation."""
        used = (weight > 0) & (self.sign == 0)
        spread = max(_pooled(residual[used], weight[used], self.scatter), 0.01)
        noise = np.full(len(residual), spread)
        for source in np.unique(self.source[used]):
            mine = used & (self.source == source)
            noise[self.source == source] = max(_pooled(residual[mine], weight[mine], spread), 0.01)
        return spread, noise

    def _estimate(self, linear: Linear, weight: Array, noise: Array) -> Estimate:
        """`noise` to begin with."""
        common = self._common(linear.predicted, weight, noise)
        spread, noise = self._noise(self.residual(linear.predicted + common), weight)
        information = self._information(linear.predicted + common, weight, noise)
        normal = self.precision + self._normal(linear, information)
        return Estimate(linear, np.linalg.inv(normal), spread, noise)


def _oddities(targets: Sequence[Target], spread: float) -> RandomEffects:
    """Sparse models of a name may be; all others are as they seem."""
    names, model = np.unique([t.model for t in targets], return_inverse=True)
    sparse = np.zeros(len(names), dtype=bool)
    sparse[model] = [bool(t.model) and t.problem.architecture.is_moe for t in targets]
    return RandomEffects(model, np.where(sparse, spread, 0.0))


def _pooled(residual: Array, weight: Array, prior: float) -> float:
    """Spread of residuals that count for so much each, held to a prior spread as if it were _POOLED
    more."""
    if not len(residual):
        return prior
    away = np.abs(residual)
    order, runs = np.argsort(away, kind="stable"), float(weight.sum())
    middle = order[np.searchsorted(np.cumsum(weight[order]), runs / 2)]
    typical = 1.4826 * float(away[middle])
    return float(np.sqrt((runs * typical**2 + _POOLED * prior**2) / (runs + _POOLED)))
