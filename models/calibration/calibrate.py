"""Fit a profile to measured runs: a new profile, its joint posterior, what moved and how well it
predicts runs that it did not see.

A *coefficient* is a number of the cost model that no data sheet gives, such as the share of peak
that matrix products reach. A *term* is what a scope, such as one chip or stack, adds to a
coefficient; in a scope other than "all" it is an *offset*. A term is *identified* where the runs
made it clearly surer than its prior. A *fleet* is the machines of one deployment, as opposed to
published runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.calibration.between_sources import between_sources
from models.calibration.cross_validation import (
    ProfileComparison,
    cross_validate,
    median_error,
)
from models.calibration.influences import influences
from models.calibration.map_fit import Estimate, Fit
from models.calibration.observation import Observation
from models.calibration.posterior import Posterior
from models.calibration.residual_spreads import is_identified, outliers
from models.calibration.time_and_memory_fits import (
    MEMORY_QUANTITIES,
    memory_fit,
    solve_time_fit,
)
from models.columns import Array
from models.prediction.coverage import FittedRun, with_coverage
from models.spec.profile import Profile, Term, TermKey, to_natural

# A share of the prior's spread: a smaller shift moves no prediction by a tenth of a percent.
_VISIBLE_SHIFT = 0.02
# A share of an offset's prior spread. An offset that moved by less, and became no surer, is not
# stored, since it is off by some twelve times as much anyway.
_STORED_SHIFT = 0.08
# A term is in the joint posterior where its posterior spread is below this share of its prior's.
# Other terms are as independent as their priors.
_INFORMED_SHARE = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class TermChange:
    """A term that moved, or that became surer.

    `before` and `after` are on the natural scale: values of the coefficient for scope "all", and
    ratios of odds or of values for narrower scopes. `shift_in_spreads` is in standard deviations of
    the prior. The spreads are on the unbounded scale.
    """

    coefficient: str
    scope: str
    before: float
    after: float
    shift_in_spreads: float
    spread_before: float
    spread_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A fitted profile and the evidence behind it.

    Errors are medians of |predicted / measured - 1| over the runs that measured a step time, or
    memory. The fit saw all of these runs; errors are None where there were none. `held_out` and
    `held_out_memory` compare predictions of runs that a fit did not see, and are None where there
    are too few runs to hold any out. `outliers` holds keys of observations.
    """

    profile: Profile
    posterior: Posterior
    moved: tuple[TermChange, ...]
    unidentified: tuple[TermKey, ...]
    outliers: tuple[str, ...]
    error_before: float | None
    error_after: float | None
    memory_error_before: float | None
    memory_error_after: float | None
    held_out: ProfileComparison | None
    held_out_memory: ProfileComparison | None
    observations: int


def calibrate(
    profile: Profile,
    observations: Sequence[Observation],
    made_by: str = "calibration",
    posterior: Posterior | None = None,
    *,
    published: bool = False,
) -> Calibration:
    """Fit a new profile, with the given one and its joint posterior as prior. The order of the
    observations does not matter.

    With `published`, the runs are of many sources, and how far runs of every kind scatter is
    estimated from them alone. Otherwise they are of one fleet, whose machines the profile may never
    have seen. `made_by` says in words what made the profile.
    """
    known = posterior or Posterior.independent()
    time, time_estimate, contradicted = solve_time_fit(
        profile, observations, known, new_fleet=not published
    )
    memory = memory_fit(profile, observations, known, new_fleet=not published)
    memory_estimate = memory.solve()

    changed = {**_fitted_terms(time, time_estimate), **_fitted_terms(memory, memory_estimate)}
    # The profile that a fit begins with also has the offsets of mean zero that it may move.
    before = {**time.profile.by_key, **memory.profile.by_key}
    moved = [
        _term_change(before[key], term)
        for key, term in changed.items()
        if is_identified(before[key], term) or _shift(before[key], term) > _VISIBLE_SHIFT
    ]
    # A fit may have further terms, which move only with terms that the runs depend on.
    in_scope = {term.key for fit in (time, memory) for term in fit.terms_in_scope}
    unidentified = [key for key in in_scope if not is_identified(before[key], changed[key])]
    outlier_keys = [
        *contradicted,  # runs whose measured parts do not go with their own step times
        *outliers(time, time_estimate),
        *outliers(memory, memory_estimate),
    ]

    stored = _stored_terms(profile, before, changed)
    # Influences tell a fleet which of its reports moved its profile.
    fitted = profile.with_terms(
        stored,
        residual_spread=time_estimate.spread,
        made_by=made_by,
        influences=None if published else influences(time, time_estimate, observations, stored),
    )
    # Cross-validation also estimates how far runs of each kind scatter, and sets it in `fitted`.
    # An observation without a group is one by itself.
    groups = {o.key: o.group or o.key for o in observations}
    fitted, held_out = cross_validate(profile, fitted, time, time_estimate, groups, of_memory=False)
    fitted, held_out_memory = cross_validate(
        profile, fitted, memory, memory_estimate, groups, of_memory=True
    )
    if published:
        names = {o.key: o.organisation or o.source for o in observations}
        fitted = replace(
            fitted,
            between_sources=between_sources(time, time_estimate, names, ("step_time",)),
            memory_between_sources=between_sources(
                memory, memory_estimate, names, MEMORY_QUANTITIES
            ),
        )
    return Calibration(
        profile=with_coverage(fitted, [fitted_run(o) for o in observations]),
        posterior=_joint_posterior(time, time_estimate, known).joined(
            _joint_posterior(memory, memory_estimate, known)
        ),
        moved=tuple(sorted(moved, key=lambda change: -abs(change.shift_in_spreads))),
        unidentified=tuple(sorted(unidentified)),
        outliers=tuple(dict.fromkeys(outlier_keys)),
        error_before=_error(time, time.log_predictions(time.prior_mean)),
        error_after=_error(time, time_estimate.linear.predicted),
        memory_error_before=_error(memory, memory.log_predictions(memory.prior_mean)),
        memory_error_after=_error(memory, memory_estimate.linear.predicted),
        held_out=held_out,
        held_out_memory=held_out_memory,
        observations=len(observations),
    )


def with_published_terms(profile: Profile, observations: Sequence[Observation]) -> Profile:
    """Return the profile with terms fitted to published runs. It is a first fit: where a source
    leaves a layout open, one is chosen by this profile's predictions, and `calibrate` then fits
    again. It skips cross-validation, which says how far runs of each kind scatter: that takes long
    and chooses no layout."""
    priors = Posterior.independent()  # no earlier fit has made terms depend on each other
    time, time_estimate, _ = solve_time_fit(profile, observations, priors, new_fleet=False)
    memory = memory_fit(profile, observations, priors)
    fitted, _ = apply_estimate(profile, memory, memory.solve())
    # Time comes last, because its estimate sets the profile's residual spread, that of step times.
    return apply_estimate(fitted, time, time_estimate)[0]


def apply_estimate(profile: Profile, fit: Fit, estimate: Estimate) -> tuple[Profile, Posterior]:
    """Return the profile with the terms of an estimate, and the joint posterior of these terms."""
    stored = _stored_terms(profile, fit.profile.by_key, _fitted_terms(fit, estimate))
    fitted = profile.with_terms(stored, residual_spread=estimate.spread)
    # No earlier fit has made terms joint, so the posterior has those that these runs informed.
    return fitted, _joint_posterior(fit, estimate, Posterior.independent())


def fitted_run(o: Observation) -> FittedRun:
    """Return an observation as a run for coverage, a profile's record of the runs that it was
    fitted to (models.prediction.coverage)."""
    return FittedRun(
        o.problem,
        o.layout,
        has_step_time=o.step_time_s is not None,
        has_memory=o.memory_bytes is not None,
        source=o.source,
    )


def _joint_posterior(fit: Fit, estimate: Estimate, known: Posterior) -> Posterior:
    """Return the posterior of the terms that runs informed, in this fit or in an earlier one, whose
    posterior is `known`. Other terms are left out: they are as independent as their priors."""
    keys = [term.key for term in fit.terms]
    is_informed = np.sqrt(np.diag(estimate.covariance)) < _INFORMED_SHARE * fit.prior_spread
    kept = [i for i, key in enumerate(keys) if is_informed[i] or key in known.keys]
    return Posterior.of([keys[i] for i in kept], estimate.covariance[np.ix_(kept, kept)])


def _fitted_terms(fit: Fit, estimate: Estimate) -> dict[TermKey, Term]:
    """Return the terms with their estimated means and spreads. The `runs` of a term that the data
    identified also count the targets in its scope."""
    spreads = np.sqrt(np.diag(estimate.covariance))
    targets = _targets_in_scope(fit)
    fitted = {}
    for i, term in enumerate(fit.terms):
        # By rounding, Laplace's covariance may come out wider than the prior's.
        spread = float(min(spreads[i], term.spread))
        new = replace(term, mean=float(estimate.theta[i]), spread=spread)
        if is_identified(term, new):
            new = replace(new, runs=term.runs + int(targets[i]))
        fitted[term.key] = new
    return fitted


def _targets_in_scope(fit: Fit) -> Array:
    """Return the number of targets in the scope of each term; shape (terms,)."""
    counts = np.zeros(len(fit.terms), dtype=np.int64)
    for batch in fit.batches:
        for term in fit.profile.terms_in(batch.problem.scopes):
            if term.key in fit.column:
                counts[fit.column[term.key]] += len(batch.targets)
    return counts


def _stored_terms(
    profile: Profile, before: Mapping[TermKey, Term], fitted: Mapping[TermKey, Term]
) -> dict[TermKey, Term]:
    """Return the fitted terms that the new profile stores: terms that `profile` has, and offsets
    that the runs narrow or shift noticeably. Other offsets need not be stored, because
    Profile.with_offsets adds them with mean zero and the spread of their scope."""
    return {
        key: term
        for key, term in fitted.items()
        if key in profile.by_key
        or term.spread < _INFORMED_SHARE * before[key].spread
        or _shift(before[key], term) > _STORED_SHIFT
    }


def _shift(before: Term, after: Term) -> float:
    """Return the distance of two means of a term, in standard deviations of the prior."""
    return abs(after.mean - before.mean) / before.spread


def _error(fit: Fit, predicted: Array) -> float | None:
    """Return the median error of predictions over whole runs: of their step times, or of their
    peaks of memory. None stands for no measured run."""
    quantities = ("step_time", *MEMORY_QUANTITIES)
    is_of_run = np.array([target.quantity in quantities for target in fit.targets], dtype=bool)
    measured = (fit.sign == 0) & is_of_run  # sign 0: a value and not a bound
    return median_error(predicted[measured], fit.value[measured]) if measured.any() else None


def _term_change(before: Term, after: Term) -> TermChange:
    """Return a term's change on the natural scale, in the form of TermChange."""

    def natural(term: Term) -> float:
        """Return the value of a coefficient or, for an offset, the factor by which it multiplies
        the coefficient or its odds."""
        if term.scope == "all":
            return float(to_natural(term.coefficient, term.mean))
        return float(np.exp(term.mean))

    return TermChange(
        coefficient=before.coefficient,
        scope=before.scope,
        before=natural(before),
        after=natural(after),
        shift_in_spreads=(after.mean - before.mean) / before.spread,
        spread_before=before.spread,
        spread_after=after.spread,
    )
