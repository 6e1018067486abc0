"""Fit a profile to measured runs: step times and memory, each to the coefficients it depends on (models.fit)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.array import Array
from models.fit import Estimate, Fit, Side, Target
from models.layout import Layout
from models.problem import Problem
from models.profile import KINDS, MEMORY_COEFFICIENTS, Z80, Neighbourhood, Profile, Term, to_natural
from models.provenance import Ran, having_seen

OUTLIER_SPREADS = 4.0
HELD = 10  # runs' worth of the wider neighbourhood in each one's spread
_VISIBLE = 0.02  # of the prior's spread: a smaller shift moves no prediction by a tenth of a percent
_IDENTIFIED = 0.9  # a posterior spread below this share of the prior's: the data said something

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A run: what it took, as far as known. `weight` scales its say (one source must not drown the others); runs of
    one `source` share a level of noise. Runs of one `group` are alike (one model on one chip and stack): what is
    left over is judged on groups that a fit did not see. Without groups it is not judged.

    `memory_bytes` was reserved on the fullest device. `out_of_memory` says that it did not fit, and so needed at
    least what the device has.
    """

    key: str
    problem: Problem
    layout: Layout
    step_time_s: float | None = None
    memory_bytes: float | None = None
    out_of_memory: bool = False
    weight: float = 1.0
    source: str = ""
    group: str = ""


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
    """The fitted profile and what it rests on. Errors are medians of |predicted / measured - 1| over the runs that
    measured step time, and memory; None where none did."""

    profile: Profile
    moved: tuple[Moved, ...]
    unidentified: tuple[Key, ...]
    outliers: tuple[str, ...]
    error_before: float | None
    error_after: float | None
    memory_error_before: float | None
    memory_error_after: float | None
    observations: int


def time_fit(profile: Profile, observations: Sequence[Observation]) -> Fit:
    targets = [
        _target(o, o.step_time_s) for o in sorted(observations, key=lambda o: o.key) if o.step_time_s is not None
    ]
    return Fit(profile, targets, frozenset(KINDS) - MEMORY_COEFFICIENTS, lambda found: found.step_time_s)


def memory_fit(profile: Profile, observations: Sequence[Observation]) -> Fit:
    """Measured peaks; runs that did not fit needed at least the device's memory, the others at most."""
    targets = []
    for o in sorted(observations, key=lambda o: o.key):
        if o.memory_bytes is not None:
            targets.append(_target(o, o.memory_bytes))
        else:
            side: Side = "at_least" if o.out_of_memory else "at_most"
            targets.append(_target(o, float(o.problem.cluster.usable_bytes), side))
    return Fit(profile, targets, MEMORY_COEFFICIENTS, lambda found: found.reserved_bytes)


def _target(o: Observation, value: float, side: Side = "equal") -> Target:
    return Target(
        key=o.key, problem=o.problem, layout=o.layout, value=value, side=side, weight=o.weight, source=o.source
    )


def calibrate(profile: Profile, observations: Sequence[Observation], made_by: str = "calibration") -> Calibration:
    """A new profile from runs. The order of the observations does not matter."""
    time, memory = time_fit(profile, observations), memory_fit(profile, observations)
    timed, held = time.solve(), memory.solve()
    changed = {**_terms(time, timed), **_terms(memory, held)}
    moved = [_moved(profile.by_key[key], term) for key, term in changed.items() if _visible(profile.by_key[key], term)]
    fitted = profile.with_terms(changed, residual_spread=timed.spread, made_by=made_by)
    groups = {o.key: o.group for o in observations}
    if all(groups.values()):
        unseen = time.left_out(np.array([groups[t.key] for t in time.targets]), timed)
        fitted = replace(fitted, neighbourhoods=neighbourhoods(time, timed, unseen, groups))
    ran = [
        Ran(o.problem, o.layout, timed=o.step_time_s is not None, weighed=o.memory_bytes is not None)
        for o in observations
    ]
    return Calibration(
        profile=having_seen(fitted, ran),
        moved=tuple(sorted(moved, key=lambda m: -abs(m.shift_in_spreads))),
        unidentified=tuple(key for key, term in changed.items() if not _identified(profile.by_key[key], term)),
        outliers=tuple(_outliers(time, timed)),
        error_before=_error(time, time.predicted(time.mean)),
        error_after=_error(time, timed.linear.predicted),
        memory_error_before=_error(memory, memory.predicted(memory.mean)),
        memory_error_after=_error(memory, held.linear.predicted),
        observations=len(observations),
    )


def neighbourhoods(
    fit: Fit, estimate: Estimate, unseen: Array, groups: Mapping[str, str], weight: Array | None = None
) -> tuple[Neighbourhood, ...]:
    """Spreads of the residuals of `unseen` log predictions, by kind of run; each kind held to the one around it.

    With `weight` other than the fit's; runs without weight do not count.
    """
    weight = fit.weight if weight is None else weight
    away = np.abs(fit.value - unseen)
    unknown = unidentified_variance(fit, estimate)
    members: dict[str, list[int]] = {}
    for i in np.flatnonzero(weight > 0).tolist():
        target = fit.targets[i]
        for scope in target.problem.neighbourhoods:
            members.setdefault(scope, []).append(i)
    found: dict[str, Neighbourhood] = {}
    for scope in sorted(members, key=lambda scope: (scope != "all", scope)):
        rows = np.array(members[scope])
        around = found.get(scope.rpartition("/")[0] or "all")
        say = min(len(rows), 3 * len({groups[fit.targets[i].key] for i in rows}))  # a group's runs err together
        spread = _central(away[rows], weight[rows]) / Z80
        if around:
            spread = float(np.sqrt((say * spread**2 + HELD * around.spread**2) / (say + HELD)))
        typical = float(np.sqrt(np.average(unknown[rows], weights=weight[rows])))
        found[scope] = Neighbourhood(scope=scope, spread=spread, unidentified=typical, runs=len(rows))
    return tuple(found.values())


def unidentified_variance(fit: Fit, estimate: Estimate) -> Array:
    """Of each run's log prediction, from the terms that the data said nothing about."""
    variance = np.diag(estimate.covariance)
    unidentified = np.sqrt(variance) >= _IDENTIFIED * fit.spread
    return np.asarray(estimate.linear.jacobian**2 @ np.where(unidentified, variance, 0.0))


def _central(away: Array, weight: Array) -> float:
    """The distance within which 80% of the weight lies."""
    order = np.argsort(away)
    share = np.cumsum(weight[order]) / weight.sum()
    return float(away[order][np.searchsorted(share, 0.8)])


def _terms(fit: Fit, estimate: Estimate) -> dict[Key, Term]:
    """Terms as estimated, with the number of runs behind those the data identified."""
    sigma, runs = np.sqrt(np.diag(estimate.covariance)), _runs_behind(fit)
    changed = {}
    for i, term in enumerate(fit.terms):
        new = replace(term, mean=float(estimate.theta[i]), spread=float(min(sigma[i], term.spread)))
        changed[term.key] = replace(new, runs=int(runs[i])) if _identified(term, new) else new
    return changed


def _runs_behind(fit: Fit) -> Array:
    counts = np.zeros(len(fit.terms), dtype=np.int64)
    for problem, rows, _ in fit.groups:
        for term in fit.profile.applying(problem.scopes):
            if term.key in fit.position:
                counts[fit.position[term.key]] += len(rows)
    return counts


def _identified(before: Term, after: Term) -> bool:
    return after.spread < _IDENTIFIED * before.spread


def _visible(before: Term, after: Term) -> bool:
    return _identified(before, after) or abs(after.mean - before.mean) > _VISIBLE * before.spread


def _outliers(fit: Fit, estimate: Estimate) -> list[str]:
    residual = fit.residual(estimate.linear.predicted)
    return [
        target.key
        for target, r in zip(fit.targets, residual, strict=True)
        if abs(r) > OUTLIER_SPREADS * estimate.spread
    ]


def _error(fit: Fit, predicted: Array) -> float | None:
    measured = fit.side == "equal"
    if not measured.any():
        return None
    return float(np.median(np.abs(np.exp(predicted[measured] - fit.value[measured]) - 1)))


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
