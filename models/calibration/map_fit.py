"""Maximum a posteriori (MAP) estimates of a profile's terms from measurements of positive
quantities.

A *coefficient* is a number of the cost model that no data sheet gives, such as the share of peak
that matrix products reach. A *term* is what a scope, such as one chip or stack, adds to it, on an
unbounded scale: the log of a positive coefficient, or the log-odds of a fraction. A *target* is a
measured value that a prediction should equal, or a bound that it should keep. A *new fleet* is the
machines of one deployment, which the profile may not have seen.

θ are the terms, with the prior N(μ, P⁻¹), and r_i(θ) = log target_i - log predicted_i(θ) are the
residuals. The estimate minimises (θ-μ)ᵀP(θ-μ) + Σ w_i ρ(r_i / s_i), where ρ is the Student-t loss
and s_i the noise of the target's source, which is estimated along the way.

Two kinds of targets are treated otherwise. A bound (a run that ran out of memory needed at least
what the device has) has no residual on its right side. Where the machines are new to the profile,
whose memory may never have been measured, it has a logistic loss (models.calibration.losses). And
the runs of one effect group, such as one sparse model that one organisation ran, may be off alike,
which is a random effect that is integrated out (models.calibration.random_effects).

The method is Gauss-Newton with Levenberg's damping. Each step minimises the linearised problem by
iteratively reweighted least squares (IRLS), which is faster here than the methods of scipy.optimize
(pyproject.toml has figures). Slopes are central differences in the coefficients, which are all
shifted in one call of the cost model for each problem (models.calibration.linearisation). The
posterior is Laplace's approximation: its covariance is the inverse of the weighted normal matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.calibration.linearisation import Block, Linearisation
from models.calibration.losses import BoundLoss, student_t_loss, student_t_weight
from models.calibration.posterior import Posterior
from models.calibration.random_effects import RandomEffects
from models.columns import Array
from models.cost.facts import COEFFICIENTS, coefficient_records
from models.cost.predictions import LayoutRows, StepCosts, step_costs_under_each
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem, number_by_problem
from models.spec.profile import KINDS, Profile

# Each step is a new linearisation, which takes most of the time of a fit.
_GAUSS_NEWTON_STEPS = 14
_IRLS_STEPS = 12  # at most, in each of those steps; beside a linearisation they are cheap
# Rounds in which the weights of runs and the effects of their groups are found from each other.
_EFFECT_ROUNDS = 4
# An iteration ends with a step of no more than this in every term, in prior spreads.
_CONVERGED_SPREADS = 0.02
# The step of the central differences, on the unbounded scale. Their error is of its square, and
# rounding adds about 1e-16 over it.
_DIFFERENCE = 1e-3
# Each source's noise is pooled with the common noise as if that had been seen in so many runs more.
_NOISE_POOLING_RUNS = 10
_LEAST_NOISE = 0.01  # runs that agree to the last digit would otherwise carry the fit
# Scopes that name no single thing, but all in-house stacks and all unnamed fabrics. What their runs
# have in common is what all runs have, so these scopes get no offsets.
_LIKE_ALL = {"stack:generic", "fabric:custom"}
# The standard deviation of a normal distribution over its median absolute deviation.
_SPREAD_OVER_MEDIAN = 1.4826

Side = Literal["equal", "at_least", "at_most"]
_SIGNS: dict[Side, int] = {"equal": 0, "at_least": 1, "at_most": -1}
Quantity = Callable[[StepCosts], Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A measured `value`, or a bound on it, for the `quantity` of a prediction to meet.

    `weight` is the number of runs that the target counts for. Targets of one `source` share a level
    of noise, and those of one named `effect_group` a random effect.
    """

    key: str
    problem: Problem
    layout: Layout
    value: float
    quantity: str
    side: Side = "equal"
    weight: float = 1.0
    source: str = ""
    effect_group: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The terms that a fit found, with predictions around them, and their posterior covariance.

    `common_noise` (runs,) is the noise expected of each run times one factor, which all sources
    share. `noise` (runs,) has the factor of the run's own source. `spread` is the median of
    `common_noise`. `irls_weight` (runs,) has the weights of squared residuals in the step that led
    to these terms.
    """

    linear: Linearisation
    covariance: Array
    spread: float
    common_noise: Array
    noise: Array
    irls_weight: Array

    @property
    def theta(self) -> Array:
        return self.linear.theta


@dataclass(frozen=True, slots=True)
class Batch:
    """Targets of one quantity of one problem, which are predicted together.

    `targets` are their indices, `rows` the distinct layouts among them, and `row_of_target` the
    layout of each target. A linearisation has a row for each layout, from `first_row` on.
    `coefficients` (1,) are those of the profile that the fit begins with, and `block` is the index
    of the batch's block in the linearisation.
    """

    problem: Problem
    quantity: Quantity
    targets: Array
    rows: LayoutRows
    row_of_target: Array
    coefficients: Array
    block: int
    first_row: int

    def log_predictions(self, columns: Array, values: Array) -> Array:
        """Return log predictions of each layout under n sets of `values` (n, columns) of the
        coefficients in these columns of a record; shape (layouts, n). Other coefficients keep the
        values of the profile."""
        # A record is a row of floats, one for each coefficient.
        coefficients = np.repeat(self.coefficients, len(values))
        coefficients.view(np.float64).reshape(len(values), -1)[:, columns] = values
        costs = step_costs_under_each(self.rows, coefficients)
        # Costs come layout by layout, each under all n sets of values.
        return np.asarray(np.log(self.quantity(costs)).reshape(-1, len(values)))


class Fit:
    """A set of targets and the terms of a profile that are to meet them. The `sign` of a target is
    0 for a measured value, 1 for a bound from below on its prediction, -1 for one from above."""

    def __init__(
        self,
        profile: Profile,
        targets: Sequence[Target],
        coefficients: frozenset[str],
        quantities: Mapping[str, Quantity],
        posterior: Posterior,
        *,
        new_fleet_noise: Array | None = None,
        noise_inflation: float = 1.0,
        random_effect_spread: float = 0.0,
    ) -> None:
        """Set up the fit of the terms of `coefficients`; `quantities` computes each target's
        quantity from predictions.

        Where the targets are of a new fleet, `new_fleet_noise` (runs,) is how far runs like each of
        them scatter on unseen machines. The estimate of noise then starts from it instead of from
        the residuals, which may all lie on one side: a fleet that is slower than published ones is
        an offset to learn and no noise. `noise_inflation` is the factor by which runs are taken to
        be noisier where terms move towards them; the posterior covariance is computed without it.
        `random_effect_spread` is the standard deviation of what the runs of an effect group have in
        common.
        """
        self.is_new_fleet = new_fleet_noise is not None
        if new_fleet_noise is None:
            new_fleet_noise = np.full(len(targets), profile.residual_spread)
        self.prior_noise = new_fleet_noise
        self.noise_inflation = noise_inflation
        scopes = {scope for target in targets for scope in target.problem.scopes}
        # Scopes of _LIKE_ALL, such as in-house stacks, name no single thing that could differ.
        self.profile = profile = profile.with_offsets(scopes - _LIKE_ALL)
        self.targets = targets
        self.quantities = quantities

        # Terms that no target depends on move too where the prior correlates them with a term that
        # some target depends on.
        joint = {*posterior.keys}
        candidates = [term for term in profile.terms if term.coefficient in coefficients]
        in_scope = scopes | {"all"}
        self.terms_in_scope = [term for term in candidates if term.scope in in_scope]
        self.terms = [t for t in candidates if t.scope in in_scope or t.key in joint]
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
        self.names = [name for name in KINDS if name in coefficients]
        # The columns of these coefficients in a record, for Batch.log_predictions.
        self.in_record = np.array([(COEFFICIENTS.names or ()).index(name) for name in self.names])
        self.is_fraction = np.array([KINDS[name] == "fraction" for name in self.names])
        self.batches, self.blocks = self._batches_and_blocks()
        # The row of each target in a linearisation.
        self.row = np.empty(len(targets), dtype=np.int64)
        self.batch_of_target = np.empty(len(targets), dtype=np.int64)
        for i, batch in enumerate(self.batches):
            self.row[batch.targets] = batch.first_row + batch.row_of_target
            self.batch_of_target[batch.targets] = i

    def _batches_and_blocks(self) -> tuple[list[Batch], list[Block]]:
        """Return the targets grouped into batches, one for each problem and quantity, which the
        cost model predicts in one call. Batches whose coefficients have the same terms follow each
        other and make a block, so that one matrix product turns slopes in coefficients into slopes
        in terms. A layout that ran often is predicted once."""
        problem_numbers = number_by_problem([target.problem for target in self.targets])
        # The targets of each block by its terms, and of each batch by its problem and quantity.
        targets_of_blocks: dict[tuple[int, ...], dict[tuple[int, str], list[int]]] = {}
        for i, (target, number) in enumerate(zip(self.targets, problem_numbers, strict=True)):
            in_scope = self.profile.terms_in(target.problem.scopes)
            terms = tuple(self.column[term.key] for term in in_scope if term.key in self.column)
            targets_of_batches = targets_of_blocks.setdefault(terms, {})
            targets_of_batches.setdefault((number, target.quantity), []).append(i)
        batches = list[Batch]()
        blocks = list[Block]()
        end = 0  # the rows of the linearisation that the batches so far have
        for terms, targets_of_batches in targets_of_blocks.items():
            begin = end
            for targets in targets_of_batches.values():
                batches.append(self._batch(targets, len(blocks), end))
                end += len(batches[-1].rows.records)
            coefficients = [self.names.index(self.terms[term].coefficient) for term in terms]
            blocks.append(Block(slice(begin, end), np.array(terms), np.array(coefficients)))
        return batches, blocks

    def _batch(self, targets: Sequence[int], block: int, first_row: int) -> Batch:
        """Return the batch of these targets, which are of one problem and quantity. Targets of one
        layout share a row. `block` is the index of its block, the batches whose coefficients are
        sums of the same terms, and `first_row` its first row in the linearisation."""
        row_of_layout: dict[Layout, int] = {}
        row_of_target = [
            row_of_layout.setdefault(self.targets[i].layout, len(row_of_layout)) for i in targets
        ]
        target = self.targets[targets[0]]
        problem = target.problem
        return Batch(
            problem=problem,
            quantity=self.quantities[target.quantity],
            targets=np.array(targets),
            rows=LayoutRows.of(problem, Layouts.of(list(row_of_layout))),
            row_of_target=np.array(row_of_target),
            coefficients=coefficient_records(self.profile.coefficients(problem.scopes)),
            block=block,
            first_row=first_row,
        )

    def log_predictions(self, theta: Array, selected: Array | None = None) -> Array:
        """Return the log prediction of each target at the terms `theta`; shape (targets,). With a
        mask `selected`, other targets are NaN."""
        if selected is None:
            selected = np.ones(len(self.targets), dtype=bool)
        result = np.full(len(self.targets), np.nan)
        for i in np.unique(self.batch_of_target[selected]).tolist():
            batch = self.batches[i]  # the layouts of one problem, predicted in one call
            values = self._natural(self._unbounded(batch.block, theta))
            # One set of coefficients, so one column of predictions.
            logs = batch.log_predictions(self.in_record, values[None])[:, 0]
            result[batch.targets] = logs[batch.row_of_target]
        return np.where(selected, result, np.nan)

    def linearise(self, theta: Array) -> Linearisation:
        """Return log predictions and their slopes at these terms."""
        n = len(self.names)
        logs = np.empty(self.row.max(initial=-1) + 1)
        slopes = np.empty((len(logs), n))
        values = [self._shifted(self._unbounded(block, theta)) for block in range(len(self.blocks))]
        for batch in self.batches:
            shifted = batch.log_predictions(self.in_record, values[batch.block])
            rows = slice(batch.first_row, batch.first_row + len(shifted))
            # Each coefficient shifted up, each shifted down, and none shifted (_shifted).
            slopes[rows] = (shifted[:, :n] - shifted[:, n : 2 * n]) / (2 * _DIFFERENCE)
            logs[rows] = shifted[:, -1]
        return Linearisation(theta, logs, slopes, self.blocks, self.row)

    def _unbounded(self, block: int, theta: Array) -> Array:
        """Return the coefficients of a block under these terms, on their unbounded scale."""
        return self.blocks[block].sums(theta, len(self.names))

    def _natural(self, unbounded: Array) -> Array:
        """Return coefficients on their natural scale, from those on their unbounded scale, which is
        the logit of a fraction and the logarithm of other values."""
        exponential = np.exp(np.where(self.is_fraction, -unbounded, unbounded))
        return np.where(self.is_fraction, 1 / (1 + exponential), exponential)

    def _shifted(self, unbounded: Array) -> Array:
        """Return the natural values of n coefficients that central differences need: with each
        shifted up by _DIFFERENCE on its unbounded scale, each shifted down, and none shifted; shape
        (2n + 1, n)."""
        n = len(unbounded)
        values = np.tile(self._natural(unbounded), (2 * n + 1, 1))
        # Row i has coefficient i shifted up, row n + i has it shifted down; the last has none.
        np.fill_diagonal(values, self._natural(unbounded + _DIFFERENCE))
        np.fill_diagonal(values[n:], self._natural(unbounded - _DIFFERENCE))
        return values

    def solve(self) -> Estimate:
        """Return the estimate, searched for from the profile's own terms."""
        return self.solve_from(self.linearise(self.prior_mean.copy()), self.weight)

    def solve_from(
        self, linear: Linearisation, weight: Array, steps: int = _GAUSS_NEWTON_STEPS
    ) -> Estimate:
        """Return the estimate that at most `steps` Gauss-Newton steps reach from a linearisation.
        `weight` (targets,) is 0 for targets to leave out. Noise is estimated anew in every step."""
        damping = 0.0
        noise = self.prior_noise
        for iteration in range(steps):
            is_first_of_new_fleet = self.is_new_fleet and not iteration
            if is_first_of_new_fleet:
                # These residuals may all lie on one side, which is an offset and no noise.
                noise = self.prior_noise
            else:
                residual = self._residual_less_effects(linear, weight, noise)
                _, noise = self._estimated_noise(residual, weight)
            noise = self.noise_inflation * noise
            theta = self._linearised_minimum(linear, weight, noise, damping)
            moved = self.linearise(theta)
            # A loss is worse where it is by more than rounding.
            if self._loss(moved, weight, noise) > self._loss(linear, weight, noise) + 1e-9:
                # The linearisation does not hold so far out: the next step is shorter.
                damping = max(4 * damping, 1.0)
                continue
            step = theta - linear.theta
            linear = moved
            damping = damping / 4
            # A strongly damped step is short wherever it is taken, and so says nothing.
            if damping < 1 and self._is_converged(step):
                break
        return self._laplace(linear, weight, noise)

    def solve_reweighted(self, weight: Array, estimate: Estimate) -> Array:
        """Return the terms that targets with these weights would give, to first order around an
        estimate. Cross-validation calls it for every fold, in place of a fit of its own."""
        linear = estimate.linear
        residual = self._residual_less_effects(linear, weight, estimate.noise)
        _, noise = self._estimated_noise(residual, weight)
        return self._linearised_minimum(linear, weight, self.noise_inflation * noise, damping=0.0)

    def held_out_predictions(self, folds: Array, estimate: Estimate) -> Array:
        """Return the log predictions of cross-validation: every target is predicted by an estimate
        that saw no target of its fold. `folds` (targets,) numbers the folds."""
        predicted = np.empty(len(self.targets))
        for fold in np.unique(folds):
            held_out = folds == fold
            weight = np.where(held_out, 0.0, self.weight)
            theta = self.solve_reweighted(weight, estimate)
            predicted[held_out] = self.log_predictions(theta, held_out)[held_out]
        return predicted

    def residual(self, predicted: Array) -> Array:
        """Return the log of each target's value over its prediction; zero for a bound that the
        prediction keeps. Shape (targets,)."""
        # Sign 1 asks for a prediction above the value, and sign -1 for one below it.
        distance = self.value - predicted
        return np.where(self.sign * distance < 0, 0.0, distance)

    def _is_converged(self, step: Array) -> bool:
        """Return whether a step moves every term by less than _CONVERGED_SPREADS of its prior's
        spread."""
        largest = np.abs(step / self.prior_spread).max(initial=0.0)
        return bool(largest < _CONVERGED_SPREADS)

    def _linearised_minimum(
        self, linear: Linearisation, weight: Array, noise: Array, damping: float
    ) -> Array:
        """Return the terms that minimise the linearised problem at this noise, by IRLS. `damping`
        holds each term to its value at the linearisation, with so many times the precision of its
        prior (Levenberg)."""
        theta = linear.theta
        damped = damping * np.diag(self.prior_precision)
        damped_prior = self.prior_precision + np.diag(damped)
        for _ in range(_IRLS_STEPS):
            predicted = linear.at(theta).predicted
            # Weights are those at the prediction with the random effects of models added. The
            # residual is that without them, because the next line takes off their new means.
            effect = self._random_effect(predicted, weight, noise)
            residual, irls_weight = self._irls(predicted + effect, weight, noise)
            residual = residual + effect
            # Integrated-out random effects leave one linear system of the size of the terms.
            unexplained = residual - self.random_effects.means(residual, irls_weight)
            prior_pull = self.prior_precision @ (theta - self.prior_mean)
            prior_pull = prior_pull + damped * (theta - linear.theta)
            normal = damped_prior + self._normal_matrix(linear, irls_weight)
            gradient = linear.gradient(irls_weight * unexplained) - prior_pull
            step = np.linalg.solve(normal, gradient)
            theta = theta + step
            if self._is_converged(step):
                break
        return np.asarray(theta)

    def _random_effect(self, predicted: Array, weight: Array, noise: Array) -> Array:
        """Return the random effect of each run's group; shape (runs,). It depends on the weights of
        the runs, and these depend on the residuals less the effect, so each is found from the other
        in turn."""
        effect = np.zeros_like(predicted)
        if not self.random_effects.spread.any():
            return effect
        residual = self.residual(predicted)
        for _ in range(_EFFECT_ROUNDS):
            # Predictions are logs, as effects are.
            irls_weight = self._student_t_weight(self.residual(predicted + effect), weight, noise)
            effect = self.random_effects.means(residual, irls_weight)
        return effect

    def _residual_less_effects(self, linear: Linearisation, weight: Array, noise: Array) -> Array:
        """Return residuals less the random effects of their groups."""
        effect = self._random_effect(linear.predicted, weight, noise)
        return self.residual(linear.predicted + effect)

    def _normal_matrix(self, linear: Linearisation, irls_weight: Array) -> Array:
        """Return JᵀSJ without the information that unknown random effects take off; shape (terms,
        terms)."""
        lost = self.random_effects.lost_information(linear, irls_weight)
        return linear.normal_matrix(irls_weight) - lost

    def _irls(self, predicted: Array, weight: Array, noise: Array) -> tuple[Array, Array]:
        """Return residuals and IRLS weights whose weighted least squares have the minimum of the
        losses; both of shape (targets,)."""
        residual = self.residual(predicted)
        irls_weight = self._student_t_weight(residual, weight, noise)
        # Bounds of published runs have the Student-t loss too, on their wrong side.
        if not self.is_new_fleet:
            return residual, irls_weight
        bound = self._bound_loss(predicted, noise)
        is_value = self.sign == 0
        return (
            np.where(is_value, residual, bound.irls_residual()),
            np.where(is_value, irls_weight, bound.irls_weight(weight)),
        )

    def _student_t_weight(self, residual: Array, weight: Array, noise: Array) -> Array:
        """Return IRLS weights of the Student-t loss, which are zero where a bound is kept: such a
        run has no residual, and should not pull the fit towards the bound."""
        is_kept = (self.sign != 0) & (residual == 0)
        return np.where(is_kept, 0.0, student_t_weight(residual, weight, noise))

    def _bound_loss(self, predicted: Array, noise: Array) -> BoundLoss:
        return BoundLoss.of(self.sign, self.value - predicted, noise)

    def _information(self, predicted: Array, weight: Array, noise: Array) -> Array:
        """Return how much each target tells of its log prediction (Fisher information, an inverse
        variance): its IRLS weight, or in a new fleet the curvature of the loss of a bound."""
        irls_weight = self._student_t_weight(self.residual(predicted), weight, noise)
        if not self.is_new_fleet:
            return irls_weight
        curvature = self._bound_loss(predicted, noise).information(weight)
        # The sign of measured values is 0, and that of bounds 1 or -1.
        return np.where(self.sign == 0, irls_weight, curvature)

    def _loss(self, linear: Linearisation, weight: Array, noise: Array) -> float:
        """Return twice the negative log posterior, up to a constant."""
        effect = self._random_effect(linear.predicted, weight, noise)
        data = student_t_loss(self.residual(linear.predicted + effect), noise)
        if self.is_new_fleet:  # there bounds have a logistic loss, elsewhere a one-sided Student-t
            bounds = self._bound_loss(linear.predicted, noise).loss()
            data = np.where(self.sign == 0, data, bounds)
        away = linear.theta - self.prior_mean
        prior = away @ self.prior_precision @ away + self.random_effects.loss(effect)
        return float((weight * data).sum() + prior)

    def _estimated_noise(self, residual: Array, weight: Array) -> tuple[Array, Array]:
        """Return the noise of each run under one factor for all sources, and under the factor of
        its own source; both of shape (runs,). A factor multiplies the noise that was expected.
        Factors are median absolute deviations, which outliers do not widen. The factor of a source
        is pooled with the common one, and the common one with the prior noise. Bounds tell nothing
        of noise."""
        is_value = (weight > 0) & (self.sign == 0)
        relative = residual / self.prior_noise
        # 1.0: as if further runs had scattered just as expected.
        common_factor = _pooled_spread(relative[is_value], weight[is_value], 1.0)
        factor = np.full(len(residual), common_factor)
        for source in np.unique(self.source[is_value]):
            is_of_source = self.source == source
            values = is_value & is_of_source
            factor[is_of_source] = _pooled_spread(relative[values], weight[values], common_factor)
        return (
            np.maximum(common_factor * self.prior_noise, _LEAST_NOISE),
            np.maximum(factor * self.prior_noise, _LEAST_NOISE),
        )

    def _laplace(self, linear: Linearisation, weight: Array, noise: Array) -> Estimate:
        """Return the estimate at a linearisation's terms, with Laplace's covariance. Random effects
        are found at `noise` and taken off the residuals, which then give the estimate's noise."""
        effect = self._random_effect(linear.predicted, weight, noise)
        residual = self.residual(linear.predicted + effect)
        irls_weight = self._student_t_weight(residual, weight, noise)
        common_noise, noise = self._estimated_noise(residual, weight)
        information = self._information(linear.predicted + effect, weight, noise)
        normal = self.prior_precision + self._normal_matrix(linear, information)
        # A fit without targets keeps the spread of residuals that the profile has.
        spread = float(np.median(common_noise)) if len(residual) else self.profile.residual_spread
        covariance = np.linalg.inv(normal)
        return Estimate(linear, covariance, spread, common_noise, noise, irls_weight)


def _random_effects(targets: Sequence[Target], spread: float) -> RandomEffects:
    """Return one effect with this spread for each named group, and one of zero for targets without
    a group."""
    names, group = np.unique([target.effect_group for target in targets], return_inverse=True)
    return RandomEffects(group, np.where(names == "", 0.0, spread))


def _pooled_spread(residual: Array, weight: Array, prior: float) -> float:
    """Return the spread of weighted residuals from their weighted median absolute deviation. It is
    pooled with a `prior` spread, as if _NOISE_POOLING_RUNS further runs had shown that one."""
    if not len(residual):
        return prior
    away = np.abs(residual)
    order = np.argsort(away, kind="stable")
    runs = float(weight.sum())
    middle = order[np.searchsorted(np.cumsum(weight[order]), runs / 2)]
    # A normal distribution has 1.48 times its median absolute deviation as standard deviation.
    spread = _SPREAD_OVER_MEDIAN * float(away[middle])
    pooled = runs * spread**2 + _NOISE_POOLING_RUNS * prior**2
    return float(np.sqrt(pooled / (runs + _NOISE_POOLING_RUNS)))
