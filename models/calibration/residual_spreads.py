"""The scatter of runs around predictions: outliers, and the spread of residuals by kind of run.

Kinds are nested, widest first (Problem.neighbourhood_scopes). Each kind's spread is pooled with
that of the kind around it, so that a kind of few runs inherits what its relatives show. A *scope*
is the name of a kind, such as "all/sparse". A *target* is one measurement of a run that a fit
should meet, and a *residual* the log of its measured over its predicted value. A *fleet* is the
machines of one deployment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from models.calibration.map_fit import Estimate, Fit
from models.columns import Array
from models.prediction.coverage import quantities
from models.spec.profile import Z80, Neighbourhood, Profile, Term, is_of_fleet

OUTLIER_SPREADS = 4.0  # a run farther off than so many spreads is an outlier
# The spread of the wider kind counts as so many runs in that of a narrower kind.
POOLING_RUNS = 10
# A group's runs err together, so they count for no more than so many independent ones.
_RUNS_OF_A_GROUP = 3
# A term is identified where its posterior spread is below this share of its prior's. With 0.9 a
# term that runs had shrunk by 5 to 10% counted as unseen, and widened intervals of its own runs
# (docs/lab/intervals.md).
_IDENTIFIED_SHARE = 0.95
# The log of the factor from which on a fleet's step time is taken for a slip, such as milliseconds
# for seconds, though its runs agree. No source of published runs lies three times from the others.
_LARGEST_PLAUSIBLE = float(np.log(5))


def is_identified(before: Term, after: Term) -> bool:
    """Return whether the data identified a term: its posterior is clearly narrower than its
    prior."""
    return after.spread < _IDENTIFIED_SHARE * before.spread


def outliers(fit: Fit, estimate: Estimate) -> list[str]:
    """Return the keys of runs whose measurement lies far from the estimate. In the fit of a new
    fleet, these include runs reported out of memory that need far less than the device has, and
    runs whose step time is implausible under the profile before the fit."""
    residuals = fit.residual(estimate.linear.predicted)
    # Outliers raise the noise that the fit estimates; runs that scatter little lie below the
    # expected noise. So the smaller of the two decides.
    limits = OUTLIER_SPREADS * np.minimum(estimate.common_noise, fit.prior_noise)
    is_outlier = np.abs(residuals) > limits
    if fit.is_new_fleet:
        is_step_time = np.array([t.quantity == "step_time" for t in fit.targets], dtype=bool)
        before = fit.log_predictions(fit.prior_mean, is_step_time)  # NaN for the others
        is_outlier |= np.abs(fit.residual(before)) > _LARGEST_PLAUSIBLE
    return [
        target.key
        for target, is_out in zip(fit.targets, is_outlier.tolist(), strict=True)
        if is_out and (target.side == "equal" or (fit.is_new_fleet and target.side == "at_least"))
    ]


def weight_without_outliers(fit: Fit, estimate: Estimate) -> Array:
    """Return the weights of a fit's targets, 0 for outliers; shape (targets,)."""
    excluded = set(outliers(fit, estimate))
    return np.where([target.key in excluded for target in fit.targets], 0.0, fit.weight)


def residual_spreads(
    fit: Fit,
    estimate: Estimate,
    held_out: Array,
    groups: Mapping[str, str],
    weight: Array | None = None,
    known: Mapping[str, Neighbourhood] | None = None,
    widening: Array | float = 1.0,
    quantities: Collection[str] = ("step_time",),
) -> tuple[Neighbourhood, ...]:
    """Return the spread of the residuals of each kind of run. `held_out` (targets,) are log
    predictions by fits that did not see the run.

    `known` has spreads by scope that the profile holds already. With it, only the spreads of the
    fleet's own pairs of chip and stack are estimated, and the others are passed on. `widening` is
    the factor by which a run scatters more than its kind, because it lies where no other run has
    been. `groups` names the group of each key. Only measurements of these `quantities` and with a
    `weight` count; by default the weights are the fit's.
    """
    weight = fit.weight if weight is None else weight
    is_measured = [t.quantity in quantities and t.side == "equal" for t in fit.targets]
    weight = np.where(is_measured, weight, 0.0)
    distance = np.abs(fit.value - held_out) / widening
    unidentified = unidentified_variance(fit, estimate)
    rows_by_scope = _rows_by_scope(fit, weight, only_fleet=known is not None)
    spreads: dict[str, Neighbourhood] = {**(known or {})}
    # Narrower kinds are pooled with wider ones, which the alphabet happens to put first: "all",
    # "all/dense", "stack:...".
    for scope in sorted(rows_by_scope):
        rows = np.array(rows_by_scope[scope])
        # The spread of the normal distribution with the same central 80%: outliers do not widen it.
        spread = _distance_of_80_percent(distance[rows], weight[rows]) / Z80
        if pooled_with := _pooling_spread(fit, rows[0], scope, spreads):
            group_count = len({groups[fit.targets[i].key] for i in rows})
            # Runs of one group err together, so many of them tell little.
            runs = min(len(rows), _RUNS_OF_A_GROUP * group_count)
            pooled = runs * spread**2 + POOLING_RUNS * pooled_with.spread**2
            spread = float(np.sqrt(pooled / (runs + POOLING_RUNS)))
        typical_variance = np.average(unidentified[rows], weights=weight[rows])
        runs_before = known[scope].runs if known and scope in known else 0
        spreads[scope] = Neighbourhood(
            scope=scope,
            spread=spread,
            unidentified=float(np.sqrt(typical_variance)),
            runs=runs_before + len(rows),
        )
    return tuple(spreads.values())


def _rows_by_scope(fit: Fit, weight: Array, *, only_fleet: bool) -> dict[str, list[int]]:
    """Return the indices of targets with a weight, by scope. With `only_fleet`, the scopes are the
    fleet's own pairs of chip and stack; otherwise they are all others."""
    rows: dict[str, list[int]] = {}
    for i in np.flatnonzero(weight > 0).tolist():
        # The narrowest scope is the fleet's: "fleet:h100/megatron".
        *published, pair = fit.targets[i].problem.neighbourhood_scopes
        for scope in [pair] if only_fleet else published:
            rows.setdefault(scope, []).append(i)
    return rows


def _pooling_spread(
    fit: Fit, row: int, scope: str, spreads: Mapping[str, Neighbourhood]
) -> Neighbourhood | None:
    """Return the spread to pool a scope's own with: what was known of the scope before, or else the
    spread of the narrowest scope around it. None for the widest scope. `row` is one target of the
    scope."""
    if scope in spreads:
        return spreads[scope]
    scopes_widest_first = fit.targets[row].problem.neighbourhood_scopes
    wider = [spreads[name] for name in scopes_widest_first if name in spreads]
    return wider[-1] if wider else None


def lies_outside_others(fit: Fit, labels: Array) -> Array:
    """Return a mask of the targets that have some quantity, such as tp or the number of chips,
    outside the range of targets with other labels; shape (targets,). Such targets are extrapolated
    to when their group is held out. `labels` (targets,) name the groups of like runs. The range is
    over targets on the same generation of chips, or over all where only this label has it."""
    values = np.array(
        [list(quantities(target.problem, target.layout).values()) for target in fit.targets]
    )
    generations = np.array([target.problem.cluster.chip.generation for target in fit.targets])
    outside = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        has_label = labels == label
        for generation in np.unique(generations[has_label]):
            of_generation = generations == generation
            group = of_generation & has_label
            relatives = of_generation & ~has_label
            others = values[relatives] if relatives.any() else values[~has_label]
            if len(others):  # where all targets have this label, none lies outside
                above_least = values[group] >= others.min(axis=0)
                below_most = values[group] <= others.max(axis=0)
                outside[group] = ~(above_least & below_most).all(axis=1)
    return outside


def widening_outside(
    profile: Profile, fit: Fit, held_out: Array, outside: Array, weight: Array
) -> float:
    """Return the factor by which intervals must be wider for runs outside the range of all others:
    their distance from predictions over that of runs inside, each in spreads of the run's kind. It
    is at least 1, and 1 where there are too few runs to tell. `outside` is a mask, and only targets
    with a `weight` count."""
    spreads = [
        profile.neighbourhood(target.problem.neighbourhood_scopes).spread for target in fit.targets
    ]
    distance = np.abs(fit.value - held_out) / np.array(spreads)
    weight = np.where([target.quantity == "step_time" for target in fit.targets], weight, 0.0)
    is_outside = outside & (weight > 0)
    is_inside = ~outside & (weight > 0)
    if is_outside.sum() < POOLING_RUNS or not is_inside.any():
        return 1.0
    far = _distance_of_80_percent(distance[is_outside], weight[is_outside])
    near = _distance_of_80_percent(distance[is_inside], weight[is_inside])
    return round(max(far / near, 1.0), 4)


def unidentified_variance(fit: Fit, estimate: Estimate) -> Array:
    """Return the variance of each run's log prediction that comes from terms that the data did not
    identify; shape (targets,). Spreads of residuals contain it, and predictions of such runs must
    not add it twice. Offsets of a fleet are left out, because they count as part of how far its
    runs scatter."""
    variance = np.diag(estimate.covariance)
    is_published = np.array([not is_of_fleet(term.scope) for term in fit.terms])
    is_unidentified = np.sqrt(variance) >= _IDENTIFIED_SHARE * fit.prior_spread
    kept = np.where(is_unidentified & is_published, variance, 0.0)
    return estimate.linear.prediction_variance(kept)


def _distance_of_80_percent(distance: Array, weight: Array) -> float:
    """Return the distance within which 80% of the weight lies. Outliers beyond do not move it."""
    order = np.argsort(distance)
    share = np.cumsum(weight[order]) / weight.sum()
    return float(distance[order][np.searchsorted(share, 0.8)])
