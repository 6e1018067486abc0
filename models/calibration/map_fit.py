"""Maximum a posteriori (MAP) estimates of a profile's terms from measurements of positive
quantities.

θ are the terms on their unbounded scale, with the prior N(μ, P⁻¹), and r_i(θ) = log target_i - log
predicted_i(θ) are the residuals. The estimate minimises (θ-μ)ᵀP(θ-μ) + Σ w_i ρ(r_i / s_i), where ρ
is the Student-t loss and s_i the noise of the target's source, which is estimated along the way.

Two kinds of targets are treated otherwise. A bound (a run that ran out of memory needed at least
what the device has) has no residual on its right side; where the machines are new to the profile,
whose memory may never have been measured, it has a logistic loss (models.calibration.losses). And
all runs of one sparse model may be off alike, which is a random effect that is integrated out
(models.calibration.random_effects).

The method is Gauss-Newton with Levenberg's damping. Each step minimises the linearised problem by
iteratively reweighted least squares (IRLS), which is faster here than what scipy.optimize offers
(pyproject.toml has figures). Jacobians are central differences, for which all terms of a problem
are shifted in one vectorised prediction. The posterior is Laplace's approximation: its covariance
is the inverse of the weighted normal matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from models.calibration.losses import BoundLoss, student_t_loss, student_t_weight
from models.calibration.posterior import Posterior
from models.calibration.random_effects import RandomEffects
from models.columns import Array
from models.cost.predictions import LayoutRows, Predictions, predict
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem, number_by_problem
from models.spec.profile import Profile, TermKey

# Each is a new Jacobian, in which nearly all the time of a fit goes.
_GAUSS_NEWTON_STEPS = 14
_IRLS_STEPS = 12
# Rounds in which the weights of runs and the effects of their models are found from each other.
_EFFECT_ROUNDS = 4
# A step of no more than this, in prior spreads of every term, ends an iteration.
_CONVERGED_SPREADS = 0.02
# Of the central differences, on the unbounded scale: their error is of its square, and rounding
# adds about 1e-16 over it.
_DIFFERENCE = 1e-3
# Each source's noise is pooled with the common one as if that had been seen in so many runs more.
_NOISE_POOLING_RUNS = 10
_LEAST_NOISE = 0.01
# The standard deviation of a normal distribution over its median absolute deviation.
_SPREAD_OVER_MEDIAN = 1.4826

Side = Literal["equal", "at_least", "at_most"]
_SIGNS: dict[Side, int] = {"equal": 0, "at_least": 1, "at_most": -1}
Quantity = Callable[[Predictions], Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A measured `value`, or a bound on it, for the `quantity` of a prediction to meet.

    `weight` is how many runs it counts for. Targets of one `source` share a level of noise, and
    those of one sparse `model` a random effect.
    """

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
class Linearisation:
    """Log predictions to first order around `theta`.

    Runs that are predicted alike share a row, however many they are: `logs` (rows,) and `jacobian`
    (rows, terms) hold the rows, and `row` (runs,) says which of them each run has.
    """

    theta: Array
    logs: Array
    jacobian: Array
    row: Array

    @property
    def predicted(self) -> Array:
        """The log prediction of each run at `theta`; shape (runs,)."""
        return np.asarray(self.logs[self.row])

    def at(self, theta: Array) -> Linearisation:
        """The same first-order predictions, moved to other terms."""
        return replace(self, theta=theta, logs=self.logs + self.jacobian @ (theta - self.theta))

    def gradient(self, slope: Array) -> Array:
        """Jᵀs: the slope of a sum over runs in each term, from its slope `slope` (runs,) in each
        run's log prediction."""
        return np.asarray(self.jacobian.T @ self._row_sums(slope))

    def normal_matrix(self, irls_weight: Array) -> Array:
        """JᵀSJ over all runs, where S holds their IRLS weights; shape (terms, terms)."""
        row_weight = self._row_sums(irls_weight)
        return np.asarray(self.jacobian.T @ (row_weight[:, None] * self.jacobian))

    def prediction_variance(self, term_variance: Array) -> Array:
        """The variance of each run's log prediction if the terms vary independently."""
        return np.asarray((self.jacobian**2 @ term_variance)[self.row])

    def _row_sums(self, values: Array) -> Array:
        return np.bincount(self.row, values, len(self.logs))


@dataclass(frozen=True, slots=True)
class Estimate:
    """The terms that a fit found, with predictions around them, and their posterior covariance.

    `spread` is the standard deviation of the residuals of all sources together and `noise` (runs,)
    that of each run's source.
    """

    linear: Linearisation
    covariance: Array
    spread: float
    noise: Array

    @property
    def theta(self) -> Array:
        return self.linear.theta


@dataclass(frozen=True, slots=True)
class Batch:
    """Targets of one quantity of one problem, which are predicted together.

    `targets` are their indices and `layouts` the distinct layouts among them, with their `rows`;
    `layout_index` says which of those each target has. A Jacobian has a row for each layout, from
    `first_row` on.
    """

    problem: Problem
    quantity: Quantity
    targets: Array
    layouts: Layouts
    rows: LayoutRows
    layout_index: Array
    first_row: int


class Fit:
    """A set of targets and the terms of a profile that are to meet them."""

    def __init__(
        self,
        profile: Profile,
        targets: Sequence[Target],
        coefficients: frozenset[str],
        quantities: Mapping[str, Quantity],
        posterior: Posterior,
        *,
        new_fleet_noise: float | None = None,
        noise_inflation: float = 1.0,
        random_effect_spread: float = 0.0,
    ) -> None:
        """The terms are those of `coefficients`; `quantities` computes each target's quantity from
        predictions.

        Where the targets are of a new fleet, `new_fleet_noise` is how far runs of unseen machines
        scatter. Noise then begins there and not at the residuals, which may all lie on one side: a
        fleet that is slower than published ones is an offset to learn and no noise.
        `noise_inflation` is how many times as noisy runs are taken to be where terms move towards
        them; the posterior covariance is computed without it. `random_effect_spread` is the
        standard deviation of what all runs of a sparse model have in common.
        """
        self.is_new_fleet = new_fleet_noise is not None
        self.prior_noise = profile.residual_spread if new_fleet_noise is None else new_fleet_noise
        self.noise_inflation = noise_inflation
        self.profile = profile
        self.targets = targets
        self.quantities = quantities

        # Terms that no target depends on move too if the prior knows them together with one of
        # those that do.
        scopes = {scope for target in targets for scope in ("all", *target.problem.scopes)}
        joint = {*posterior.keys}
        candidates = [term for term in profile.terms if term.coefficient in coefficients]
        self.terms = [t for t in candidates if t.scope in scopes or t.key in joint]
        self.terms_in_scope = [t for t in candidates if t.scope in scopes]
        self.column = {term.key: i for i, term in enumerate(self.terms)}
        self.prior_mean = np.array([term.mean for term in self.terms])
        self.prior_spread = np.array([term.spread for term in self.terms])
        self.prior_precision = posterior.precision_of(
            [term.key for term in self.terms], self.prior_spread
        )

        self.value = np.log([target.value for target in targets])
        self.weight = np.array([target.weight for target in targets])
        self.source = np.unique([target.source for target in targets], return_inverse=True)[1]
        self.sign = np.array([_SIGNS[target.side] for target in targets])
        self.random_effects = _random_effects(targets, random_effect_spread)
        self.batches = self._batches()
        self.row = np.empty(len(targets), dtype=np.int64)
        for batch in self.batches:
            self.row[batch.targets] = batch.first_row + batch.layout_index

    def _batches(self) -> list[Batch]:
        """Targets by problem and quantity; a layout that ran often is predicted once."""
        members: dict[tuple[int, str], list[int]] = {}
        for i, number in enumerate(number_by_problem([t.problem for t in self.targets])):
            members.setdefault((number, self.targets[i].quantity), []).append(i)
        batches = list[Batch]()
        first_row = 0
        for (_, quantity), targets in members.items():
            distinct: dict[Layout, int] = {}
            index = [distinct.setdefault(self.targets[i].layout, len(distinct)) for i in targets]
            problem, layouts = self.targets[targets[0]].problem, Layouts.of(list(distinct))
            batch = Batch(
                problem=problem,
                quantity=self.quantities[quantity],
                targets=np.array(targets),
                layouts=layouts,
                rows=LayoutRows.of(problem, layouts),
                layout_index=np.array(index),
                first_row=first_row,
            )
            batches.append(batch)
            first_row += len(distinct)
        return batches

    def log_predictions(self, theta: Array, wanted: Array | None = None) -> Array:
        """Log predictions under these terms of all targets, or of those in the mask `wanted`; the
        others are NaN."""
        profile = self.with_terms(theta)
        result = np.full(len(self.targets), np.nan)
        for batch in self.batches:
            if wanted is None:
                mine = np.ones(len(batch.targets), dtype=bool)
            else:
                mine = wanted[batch.targets]
            if mine.any():
                coefficients = profile.coefficients(batch.problem.scopes)
                predictions = predict(batch.problem, batch.layouts, coefficients, batch.rows)
                logs = np.log(batch.quantity(predictions))
                result[batch.targets[mine]] = logs[batch.layout_index[mine]]
        return result

    def linearise(self, theta: Array) -> Linearisation:
        """Log predictions and their Jacobian at these terms."""
        profile = self.with_terms(theta)
        logs = np.empty(self.row.max(initial=-1) + 1)
        jacobian = np.zeros((len(logs), len(self.terms)))
        for batch in self.batches:
            terms = [t for t in profile.terms_in(batch.problem.scopes) if t.key in self.column]
            shifted = self._shifted_predictions(batch, profile, [term.key for term in terms])
            k = len(terms)
            rows = slice(batch.first_row, batch.first_row + len(batch.layouts))
            columns = [self.column[term.key] for term in terms]
            jacobian[rows, columns] = ((shifted[:k] - shifted[k : 2 * k]) / (2 * _DIFFERENCE)).T
            logs[rows] = shifted[-1]
        return Linearisation(theta, logs, jacobian, self.row)

    def _shifted_predictions(
        self, batch: Batch, profile: Profile, keys: Sequence[TermKey]
    ) -> Array:
        """Log predictions of a batch's layouts with each term shifted up, each shifted down, and
        none shifted; shape (2 * terms + 1, layouts)."""
        n, k = len(batch.layouts), len(keys)
        offsets = {}
        for j, key in enumerate(keys):
            shift = np.zeros((2 * k + 1, n))
            shift[j] = _DIFFERENCE
            shift[k + j] = -_DIFFERENCE
            offsets[key] = shift.ravel()
        coefficients = profile.coefficients(batch.problem.scopes, offsets)
        rows = np.tile(np.arange(n), 2 * k + 1)
        repeated, known = batch.layouts.take(rows), batch.rows.take(rows)
        predictions = predict(batch.problem, repeated, coefficients, known)
        return np.asarray(np.log(batch.quantity(predictions)).reshape(2 * k + 1, n))

    def solve(self) -> Estimate:
        """The estimate, searched for from the profile's own terms."""
        weight = self.weight
        linear = self.linearise(self.prior_mean.copy())
        damping = 0.0
        noise = np.full(len(self.targets), self.prior_noise)
        for iteration in range(_GAUSS_NEWTON_STEPS):
            _, noise = self._estimated_noise(
                self._residual_less_effects(linear, weight, noise), weight
            )
            if self.is_new_fleet and not iteration:
                noise = np.full(len(self.targets), self.prior_noise)
            noise = self.noise_inflation * noise
            theta = self._linearised_minimum(linear, weight, noise, damping)
            moved = self.linearise(theta)
            if self._loss(moved, weight, noise) > self._loss(linear, weight, noise) + 1e-9:
                # The linearisation does not hold so far out: try again, nearer.
                damping = max(4 * damping, 1.0)
                continue
            step = theta - linear.theta
            linear = moved
            damping = damping / 4
            if damping < 1 and self._is_converged(step):
                break
        return self._laplace(linear, weight, noise)

    def solve_reweighted(self, weight: Array, estimate: Estimate) -> Array:
        """The terms that would have been estimated if the targets had had these weights, to first
        order around an estimate."""
        linear = estimate.linear
        _, noise = self._estimated_noise(
            self._residual_less_effects(linear, weight, estimate.noise), weight
        )
        return self._linearised_minimum(linear, weight, self.noise_inflation * noise, 0.0)

    def without(self, dropped: Array, estimate: Estimate) -> Estimate:
        """The estimate from all targets but those in the mask `dropped`, to first order around
        another."""
        weight = np.where(dropped, 0.0, self.weight)
        theta = self.solve_reweighted(weight, estimate)
        return self._laplace(estimate.linear.at(theta), weight, estimate.noise)

    def held_out_predictions(self, folds: Array, estimate: Estimate) -> Array:
        """Cross-validation: log predictions of every target by an estimate that saw no target of
        its fold; `folds` (targets,) numbers them."""
        predicted = np.empty(len(self.targets))
        for fold in np.unique(folds):
            held_out = folds == fold
            weight = np.where(held_out, 0.0, self.weight)
            theta = self.solve_reweighted(weight, estimate)
            predicted[held_out] = self.log_predictions(theta, held_out)[held_out]
        return predicted

    def residual(self, predicted: Array) -> Array:
        """The log of each target over its prediction; zero where a bound is kept."""
        distance = self.value - predicted
        return np.where(self.sign * distance < 0, 0.0, distance)

    def with_terms(self, theta: Array) -> Profile:
        """The profile with the means of the fit's terms replaced."""
        changed = {t.key: replace(t, mean=float(v)) for t, v in zip(self.terms, theta, strict=True)}
        return self.profile.with_terms(changed)

    def _is_converged(self, step: Array) -> bool:
        largest = np.abs(step / self.prior_spread).max(initial=0.0)
        return bool(largest < _CONVERGED_SPREADS)

    def _linearised_minimum(
        self, linear: Linearisation, weight: Array, noise: Array, damping: float
    ) -> Array:
        """The terms that minimise the linearised problem at this noise, by IRLS. Levenberg's
        damping is in units of the prior: `damping` times its precision holds every term to where
        the linearisation was made."""
        theta = linear.theta
        damped = damping * np.diag(self.prior_precision)
        for _ in range(_IRLS_STEPS):
            predicted = linear.at(theta).predicted
            effect = self._model_effect(predicted, weight, noise)
            residual, irls_weight = self._irls(predicted + effect, weight, noise)
            residual = residual + effect
            # With the random effects integrated out, one linear system of the size of the terms.
            unexplained = residual - self.random_effects.means(residual, irls_weight)
            prior_pull = self.prior_precision @ (theta - self.prior_mean)
            prior_pull = prior_pull + damped * (theta - linear.theta)
            normal = self.prior_precision + np.diag(damped)
            normal = normal + self._normal_matrix(linear, irls_weight)
            gradient = linear.gradient(irls_weight * unexplained) - prior_pull
            step = np.linalg.solve(normal, gradient)
            theta = theta + step
            if self._is_converged(step):
                break
        return np.asarray(theta)

    def _model_effect(self, predicted: Array, weight: Array, noise: Array) -> Array:
        """The random effect of each run's model; shape (runs,). It depends on the weights of the
        runs, which depend on their residuals less the effect: each is found from the other in
        turn."""
        effect = np.zeros_like(predicted)
        if not self.random_effects.spread.any():
            return effect
        residual = self.residual(predicted)
        for _ in range(_EFFECT_ROUNDS):
            irls_weight = self._student_t_weight(self.residual(predicted + effect), weight, noise)
            effect = self.random_effects.means(residual, irls_weight)
        return effect

    def _residual_less_effects(self, linear: Linearisation, weight: Array, noise: Array) -> Array:
        """Residuals less the random effects of their models."""
        effect = self._model_effect(linear.predicted, weight, noise)
        return self.residual(linear.predicted + effect)

    def _normal_matrix(self, linear: Linearisation, irls_weight: Array) -> Array:
        lost = self.random_effects.lost_information(linear.jacobian, linear.row, irls_weight)
        return linear.normal_matrix(irls_weight) - lost

    def _irls(self, predicted: Array, weight: Array, noise: Array) -> tuple[Array, Array]:
        """The residuals and the weights of their squares whose weighted least squares have the
        minimum of the losses."""
        residual = self.residual(predicted)
        irls_weight = self._student_t_weight(residual, weight, noise)
        if not self.is_new_fleet:
            return residual, irls_weight
        bound = self._bound_loss(predicted, noise)
        is_value = self.sign == 0
        return (
            np.where(is_value, residual, bound.irls_residual()),
            np.where(is_value, irls_weight, bound.irls_weight(weight)),
        )

    def _student_t_weight(self, residual: Array, weight: Array, noise: Array) -> Array:
        """IRLS weights of the Student-t loss; none where a bound is kept."""
        is_kept = (self.sign != 0) & (residual == 0)
        return np.where(is_kept, 0.0, student_t_weight(residual, weight, noise))

    def _bound_loss(self, predicted: Array, noise: Array) -> BoundLoss:
        return BoundLoss.of(self.sign, self.value - predicted, noise)

    def _information(self, predicted: Array, weight: Array, noise: Array) -> Array:
        """What each target tells of its log prediction: its IRLS weight, or the curvature of the
        loss of a bound."""
        irls_weight = self._student_t_weight(self.residual(predicted), weight, noise)
        if not self.is_new_fleet:
            return irls_weight
        curvature = self._bound_loss(predicted, noise).information(weight)
        return np.where(self.sign == 0, irls_weight, curvature)

    def _loss(self, linear: Linearisation, weight: Array, noise: Array) -> float:
        """Twice the negative log posterior, up to a constant."""
        effect = self._model_effect(linear.predicted, weight, noise)
        data = student_t_loss(self.residual(linear.predicted + effect), noise)
        if self.is_new_fleet:
            bounds = self._bound_loss(linear.predicted, noise).loss()
            data = np.where(self.sign == 0, data, bounds)
        away = linear.theta - self.prior_mean
        prior = away @ self.prior_precision @ away + self.random_effects.loss(effect)
        return float((weight * data).sum() + prior)

    def _estimated_noise(self, residual: Array, weight: Array) -> tuple[float, Array]:
        """The spread of all residuals, and (runs,) that of each run's source. Both are median
        absolute deviations, which outliers do not widen; each source's is pooled with the common
        one, and that with the prior noise. Bounds tell nothing of noise."""
        used = (weight > 0) & (self.sign == 0)
        spread = max(_pooled_spread(residual[used], weight[used], self.prior_noise), _LEAST_NOISE)
        noise = np.full(len(residual), spread)
        for source in np.unique(self.source[used]):
            mine = used & (self.source == source)
            own = _pooled_spread(residual[mine], weight[mine], spread)
            noise[self.source == source] = max(own, _LEAST_NOISE)
        return spread, noise

    def _laplace(self, linear: Linearisation, weight: Array, noise: Array) -> Estimate:
        """The estimate at a linearisation's terms, with Laplace's covariance. Random effects are
        found at `noise`; the noise that the estimate has is made of the residuals without them."""
        effect = self._model_effect(linear.predicted, weight, noise)
        spread, noise = self._estimated_noise(self.residual(linear.predicted + effect), weight)
        information = self._information(linear.predicted + effect, weight, noise)
        normal = self.prior_precision + self._normal_matrix(linear, information)
        return Estimate(linear, np.linalg.inv(normal), spread, noise)


def _random_effects(targets: Sequence[Target], spread: float) -> RandomEffects:
    """One effect for each named model, with this spread for sparse ones and none for dense ones."""
    names, model = np.unique([target.model for target in targets], return_inverse=True)
    is_sparse = np.zeros(len(names), dtype=bool)
    is_sparse[model] = [bool(t.model) and t.problem.architecture.is_moe for t in targets]
    return RandomEffects(model, np.where(is_sparse, spread, 0.0))


def _pooled_spread(residual: Array, weight: Array, prior: float) -> float:
    """The spread of weighted residuals, from their weighted median absolute deviation, pooled with
    a `prior` spread as if that had been seen in _NOISE_POOLING_RUNS more."""
    if not len(residual):
        return prior
    away = np.abs(residual)
    order = np.argsort(away, kind="stable")
    runs = float(weight.sum())
    middle = order[np.searchsorted(np.cumsum(weight[order]), runs / 2)]
    spread = _SPREAD_OVER_MEDIAN * float(away[middle])
    pooled = runs * spread**2 + _NOISE_POOLING_RUNS * prior**2
    return float(np.sqrt(pooled / (runs + _NOISE_POOLING_RUNS)))
