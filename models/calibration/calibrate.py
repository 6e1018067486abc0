"""Fit a profile to measured runs: step times and memory, each to the coefficients it depends on
(models.calibration.map_fit).

What a fit is worth is judged on runs that it did not see: those of one model, chip and stack are
left out together, or, where there are too few of those, a stretch of time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from models.calibration.map_fit import Estimate, Fit, Quantity, Side, Target
from models.calibration.posterior import Posterior
from models.calibration.residual_diagnosis import exposed_s
from models.columns import Array
from models.prediction.coverage import Ran, having_seen, quantities
from models.spec.layout import Layout
from models.spec.problem import Problem, number_by_problem
from models.spec.profile import (
    KINDS,
    MEMORY_COEFFICIENTS,
    Z80,
    Neighbourhood,
    Profile,
    Term,
    TermKey,
    is_of_fleet,
    to_natural,
)

OUTLIER_SPREADS = 4.0
HELD = 10  # runs' worth of the wider neighbourhood in each one's spread
MOST_OF_A_SOURCE = 50.0  # no source counts for more runs than this
FEW = 10.0  # runs that a source may count for however few the others have
FOLDS = 8  # at most: each is a fit of its own
FEWEST_FOLDS = 3
JUDGED = 5  # runs of a kind, at least, for its error to say something
_CARRIED = (
    0.25  # of the scatter of unseen runs: parts that make a step time worse by more contradict it
)
# spread of medians of published sparse models, unseen: 0.07 (middle half) to 0.16 (middle 80%)
_ODDITY = 0.12
_UNSURE = 3.0  # runs that tell as much of how far others scatter as all that was published
_VISIBLE = (
    0.02  # of the prior's spread: a smaller shift moves no prediction by a tenth of a percent
)
_TOUCHED = 0.98  # below this share: the term is one of the joint posterior
_IDENTIFIED = 0.95  # a posterior spread below this share of the prior's: the data said something

_STEP: dict[str, Quantity] = {
    "step_time": lambda found: found.step_time_s,
    "exposed": lambda found: np.maximum(exposed_s(found.time), 1e-3 * found.step_time_s),
}


def _coefficient(name: str) -> Quantity:
    return lambda found: getattr(found.meshes.c, name) * np.ones(len(found.layouts))


_STEP |= {name: _coefficient(name) for name in KINDS.keys() - MEMORY_COEFFICIENTS}
_MEMORY: dict[str, Quantity] = {
    "reserved": lambda found: found.reserved_bytes,
    "needed": lambda found: found.needed_bytes,
}


_OF_RUNS = ("step_time", "exposed", *_MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A run: what it took, as far as known. `weight` scales its say (one source must not drown the
    others); runs of one `source` share a level of noise. Keys sort by time. Runs of one `group` are
    alike (one model on one chip and stack): a fit is judged on groups that it did not see. What is
    odd about a sparse `model` all its runs may have in common, where published ones are fitted.

    `memory_bytes` was reserved by the framework on the fullest device. `out_of_memory` says that it
    did not fit, and so needed at least what the device has. `exposed_s` is communication that
    nothing hid. `coefficients` were measured by themselves: what the busiest device's experts had
    to do beyond the mean, or by a benchmark of a part.
    """

    key: str
    problem: Problem
    layout: Layout
    step_time_s: float | None = None
    memory_bytes: float | None = None
    out_of_memory: bool = False
    exposed_s: float | None = None
    coefficients: Mapping[str, float] = field(default_factory=dict)
    weight: float = 1.0
    source: str = ""
    group: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A term that changed: values of the coefficient's term on the natural scale for scope "all",
    ratios of odds or of values for narrower scopes; `shift_in_spreads` in prior standard
    deviations."""

    coefficient: str
    scope: str
    before: float
    after: float
    shift_in_spreads: float
    spread_before: float
    spread_after: float


@dataclass(frozen=True, kw_only=True)
class Unseen:
    """Step times of runs beside predictions by the profile before, and by fits that did not see
    them. `kinds`: chips and stacks among them."""

    measured: Array
    before: Array
    after: Array
    spread: Array
    kinds: tuple[tuple[str, ...], ...]

    @property
    def error_before(self) -> float:
        """Medians of |predicted / measured - 1|."""
        return _median_error(self.before, self.measured)

    @property
    def error_after(self) -> float:
        return _median_error(self.after, self.measured)

    @property
    def coverage(self) -> float:
        """Share of the runs inside the 80% interval of the new profile."""
        return float(np.mean(np.abs(self.after - self.measured) <= Z80 * self.spread))

    @cached_property
    def by_kind(self) -> dict[str, tuple[int, float, float]]:
        """Runs, error before and error after, of kinds of which there are enough."""
        counts = Counter(kind for kinds in self.kinds for kind in kinds)
        found = {}
        for kind in sorted(kind for kind, count in counts.items() if count >= JUDGED):
            mine = np.array([kind in kinds for kinds in self.kinds])
            before, after = (
                _median_error(logs[mine], self.measured[mine]) for logs in (self.before, self.after)
            )
            found[kind] = int(mine.sum()), before, after
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The fitted profile and what it rests on. Errors are medians of |predicted / measured - 1|
    over the runs that measured step time, and memory; None where none did. `unseen` and
    `unseen_memory` are None where there are too few runs to leave out."""

    profile: Profile
    posterior: Posterior
    moved: tuple[Moved, ...]
    unidentified: tuple[TermKey, ...]
    outliers: tuple[str, ...]
    error_before: float | None
    error_after: float | None
    memory_error_before: float | None
    memory_error_after: float | None
    unseen: Unseen | None
    unseen_memory: Unseen | None
    observations: int


def time_fit(
    profile: Profile,
    observations: Sequence[Observation],
    posterior: Posterior,
    *,
    fresh: bool = False,
) -> Fit:
    targets = [target for o in _sorted(observations) for target in _of_time(o)]
    scatter = profile.neighbourhood(("all",)).spread if fresh else None
    caution = _caution(profile.neighbourhoods, targets) if fresh else 1.0
    coefficients = frozenset(KINDS) - MEMORY_COEFFICIENTS
    oddity = 0.0 if fresh else _ODDITY
    return Fit(
        profile,
        targets,
        coefficients,
        _STEP,
        posterior,
        scatter=scatter,
        caution=caution,
        oddity=oddity,
    )


def memory_fit(
    profile: Profile,
    observations: Sequence[Observation],
    posterior: Posterior,
    *,
    fresh: bool = False,
) -> Fit:
    """Measured peaks; runs that did not fit needed at least the device's memory, the others at
    most: said once of a layout, however often it ran. Of published runs a measured peak says
    enough; of a fleet's own one that fitted is beside it the answer to those that are said not to
    have."""
    targets = []
    for o in _sorted(observations):
        if o.step_time_s is None and o.memory_bytes is None and not o.out_of_memory:
            continue  # a benchmark of a part
        if o.memory_bytes is not None:
            targets.append(_target(o, "reserved", o.memory_bytes))
        if o.memory_bytes is None or fresh:
            side: Side = "at_least" if o.out_of_memory else "at_most"
            targets.append(_target(o, "needed", float(o.problem.cluster.usable_bytes), side))
    scatter = profile.memory_neighbourhood(("all",)).spread if fresh else None
    caution = _caution(profile.memory_neighbourhoods, targets) if fresh else 1.0
    targets = _said_once(targets)
    return Fit(
        profile, targets, MEMORY_COEFFICIENTS, _MEMORY, posterior, scatter=scatter, caution=caution
    )


def _said_once(targets: Sequence[Target]) -> list[Target]:
    """Bounds that a source repeats of one layout weigh together no more than one run does: what a
    layout needs is the same every time."""
    alike = [
        None if t.side == "equal" else (number, t.layout, t.side, t.source)
        for number, t in zip(number_by_problem([t.problem for t in targets]), targets, strict=True)
    ]
    together: defaultdict[object, float] = defaultdict(float)
    for key, target in zip(alike, targets, strict=True):
        together[key] += target.weight
    pairs = zip(alike, targets, strict=True)
    return [
        t if key is None else replace(t, weight=t.weight / max(together[key], 1.0))
        for key, t in pairs
    ]


def _timed(
    profile: Profile, observations: Sequence[Observation], posterior: Posterior, *, fresh: bool
) -> tuple[Fit, Estimate, list[str]]:
    """The fit of step times, and the runs whose parts it leaves out: those that carry it away from
    the step times that were measured beside them. Parts are there to say what makes a step long,
    and its length is surer."""
    fit = time_fit(profile, observations, posterior, fresh=fresh)
    estimate = fit.solve()
    bare = [_bare(o) for o in observations]
    if not fresh or bare == [*observations]:
        return fit, estimate, []
    away, without = _away(fit, estimate), time_fit(profile, bare, posterior, fresh=True)
    most = {
        key: least + _CARRIED * fit.scatter
        for key, least in _away(without, without.solve()).items()
    }
    odd = {
        o.key
        for o, plain in zip(observations, bare, strict=True)
        if o != plain and away[o.key] > most[o.key]
    }
    if not odd:
        return fit, estimate, []
    fit = time_fit(
        profile, [_bare(o) if o.key in odd else o for o in observations], posterior, fresh=True
    )
    return fit, fit.solve(), sorted(odd)


def _bare(o: Observation) -> Observation:
    """Without the parts of its step."""
    has_parts = o.step_time_s is not None and (o.exposed_s is not None or o.coefficients)
    return replace(o, exposed_s=None, coefficients={}) if has_parts else o


def _away(fit: Fit, estimate: Estimate) -> dict[str, float]:
    """How far the step time of each run is from what it is fitted to."""
    residual = np.abs(fit.residual(estimate.linear.predicted)).tolist()
    return {
        t.key: r for t, r in zip(fit.targets, residual, strict=True) if t.quantity == "step_time"
    }


def _caution(kinds: Sequence[Neighbourhood], targets: Sequence[Target]) -> float:
    """By how much runs of machines of one's own are trusted less as long as there are few, which do
    not tell how far they scatter: as far as published ones, or more."""
    seen = len(targets) + sum(one.runs for one in kinds if is_of_fleet(one.scope))
    return float(np.sqrt(1 + _UNSURE / max(seen, 1)))


def _sorted(observations: Sequence[Observation]) -> list[Observation]:
    return sorted(observations, key=lambda o: o.key)


def _of_time(o: Observation) -> list[Target]:
    """The step time first; parts of it are a source of noise of their own."""
    found = [] if o.step_time_s is None else [_target(o, "step_time", o.step_time_s)]
    if o.exposed_s is not None:
        found.append(replace(_target(o, "exposed", o.exposed_s), source=f"{o.source}/exposed"))
    for name, value in sorted(o.coefficients.items()):
        found.append(replace(_target(o, name, value), source=f"{o.source}/{name}"))
    return found


def _target(o: Observation, quantity: str, value: float, side: Side = "equal") -> Target:
    return Target(
        key=o.key,
        problem=o.problem,
        layout=o.layout,
        value=value,
        quantity=quantity,
        side=side,
        weight=o.weight,
        source=o.source,
        model=o.model,
    )


def by_source(observations: Sequence[Observation]) -> list[Observation]:
    """Weighted so that no source counts for more runs than MOST_OF_A_SOURCE, nor, where there are
    others, for more than the next largest or FEW: a flood drags nobody else's profile."""
    sizes = Counter(o.source for o in observations)
    others = sorted(sizes.values())[:-1]
    most = min(MOST_OF_A_SOURCE, max(others[-1], FEW)) if others else MOST_OF_A_SOURCE
    return [replace(o, weight=o.weight * min(1.0, most / sizes[o.source])) for o in observations]


def calibrate(
    profile: Profile,
    observations: Sequence[Observation],
    made_by: str = "calibration",
    posterior: Posterior | None = None,
    *,
    grouped: bool = False,
) -> Calibration:
    """A new profile from runs, with the profile and its joint posterior as prior. Their order does
    not matter.

    `grouped`: runs of many sources, with groups enough to judge kinds of runs by those alone,
    whatever the profile said of them; otherwise they are of machines that the profile may not have
    seen.
    """
    known = posterior or Posterior.nothing()
    time, timed, contradicted = _timed(profile, observations, known, fresh=not grouped)
    memory = memory_fit(profile, observations, known, fresh=not grouped)
    held = memory.solve()
    changed = {**_terms(time, timed), **_terms(memory, held)}
    moved = [
        _moved(profile.by_key[key], term)
        for key, term in changed.items()
        if _visible(profile.by_key[key], term)
    ]
    fitted = profile.with_terms(changed, residual_spread=timed.spread, made_by=made_by)
    groups = {o.key: o.group or o.key for o in observations}
    fitted, unseen = _judged(profile, fitted, time, timed, groups, grouped)
    fitted, unseen_memory = _weighed(profile, fitted, memory, held, groups, grouped)
    behind = {term.key for fit in (time, memory) for term in fit.concerned}
    return Calibration(
        profile=having_seen(fitted, [_ran(o) for o in observations]),
        posterior=_posterior(time, timed, known).joined(_posterior(memory, held, known)),
        moved=tuple(sorted(moved, key=lambda m: -abs(m.shift_in_spreads))),
        unidentified=tuple(
            key for key in behind if not _identified(profile.by_key[key], changed[key])
        ),
        outliers=tuple(
            dict.fromkeys([*contradicted, *_outliers(time, timed), *_outliers(memory, held)])
        ),
        error_before=_error(time, time.predicted(time.mean)),
        error_after=_error(time, timed.linear.predicted),
        memory_error_before=_error(memory, memory.predicted(memory.mean)),
        memory_error_after=_error(memory, held.linear.predicted),
        unseen=unseen,
        unseen_memory=unseen_memory,
        observations=len(observations),
    )


def learnt(profile: Profile, fit: Fit, estimate: Estimate) -> tuple[Profile, Posterior]:
    """The profile with the terms of an estimate, and what is known of them together."""
    return profile.with_terms(_terms(fit, estimate)), _posterior(fit, estimate, Posterior.nothing())


def _ran(o: Observation) -> Ran:
    return Ran(
        o.problem, o.layout, timed=o.step_time_s is not None, weighed=o.memory_bytes is not None
    )


def _posterior(fit: Fit, estimate: Estimate, known: Posterior) -> Posterior:
    """Of the terms that runs said something about, now or before."""
    keys = [term.key for term in fit.terms]
    touched = np.sqrt(np.diag(estimate.covariance)) < _TOUCHED * fit.spread
    kept = [i for i, key in enumerate(keys) if touched[i] or key in known.keys]
    return Posterior.of([keys[i] for i in kept], estimate.covariance[np.ix_(kept, kept)])


def _judged(
    before: Profile,
    fitted: Profile,
    fit: Fit,
    estimate: Estimate,
    groups: Mapping[str, str],
    grouped: bool,
) -> tuple[Profile, Unseen | None]:
    """The profile with the spreads of what it could not see, and how it did there."""
    folds = _folds(fit, groups, merged=not grouped)
    if folds is None:
        return fitted, None
    logs = fit.left_out(folds, estimate)
    if grouped:
        outside = outside_of_others(fit, np.array([groups[target.key] for target in fit.targets]))
        fitted = replace(fitted, neighbourhoods=neighbourhoods(fit, estimate, logs, groups))
        fitted = replace(fitted, unseen_widening=beyond(fitted, fit, logs, outside))
        widened = np.where(outside, fitted.unseen_widening, 1.0)
        fitted = replace(
            fitted, neighbourhoods=neighbourhoods(fit, estimate, logs, groups, widened=widened)
        )
    else:
        known = {one.scope: one for one in before.neighbourhoods}
        found = neighbourhoods(fit, estimate, logs, groups, _clean(fit, estimate), known)
        fitted = replace(fitted, neighbourhoods=found)
    spreads = [
        fitted.neighbourhood(target.problem.neighbourhood_scopes).spread for target in fit.targets
    ]
    return fitted, _unseen(fit, "step_time", logs, np.array(spreads))


def _unseen(fit: Fit, quantity: str, logs: Array, spread: Array) -> Unseen | None:
    """How predictions that did not see them do on runs that measured a quantity; None of too
    few."""
    mine = np.array([target.quantity == quantity for target in fit.targets])
    if mine.sum() < JUDGED:
        return None
    problems = [fit.targets[i].problem for i in np.flatnonzero(mine).tolist()]
    return Unseen(
        measured=fit.value[mine],
        before=fit.predicted(fit.mean)[mine],
        after=logs[mine],
        spread=spread[mine],
        kinds=tuple(
            (f"chip:{p.cluster.chip.id}", f"stack:{p.stack.calibrated_as}") for p in problems
        ),
    )


def _weighed(
    before: Profile,
    fitted: Profile,
    fit: Fit,
    estimate: Estimate,
    groups: Mapping[str, str],
    grouped: bool,
) -> tuple[Profile, Unseen | None]:
    """The profile with the spreads of memory that it could not see, and how it did there."""
    folds = _folds(fit, groups, merged=not grouped)
    if folds is None:
        return fitted, None
    known = None if grouped else {one.scope: one for one in before.memory_neighbourhoods}
    logs, weight = fit.left_out(folds, estimate), None if grouped else _clean(fit, estimate)
    found = neighbourhoods(fit, estimate, logs, groups, weight, known, quantity="reserved")
    fitted = replace(fitted, memory_neighbourhoods=found)
    spreads = [
        fitted.memory_neighbourhood(target.problem.neighbourhood_scopes).spread
        for target in fit.targets
    ]
    return fitted, _unseen(fit, "reserved", logs, np.array(spreads))


def _folds(fit: Fit, groups: Mapping[str, str], *, merged: bool) -> Array | None:
    """What is left out together: groups, at most FOLDS of them if `merged`; stretches of time where
    groups are few; None where runs are. Whatever a run measured is left out with it; benchmarks of
    a part (-1) by themselves."""
    runs = list(dict.fromkeys(target.key for target in fit.targets if target.quantity in _OF_RUNS))
    names = {name: i for i, name in enumerate(dict.fromkeys(groups[key] for key in runs))}
    if len(names) >= FEWEST_FOLDS:
        labels = {key: names[groups[key]] % FOLDS if merged else names[groups[key]] for key in runs}
    elif len(runs) >= JUDGED:
        labels = {key: i * FEWEST_FOLDS // len(runs) for i, key in enumerate(runs)}
    else:
        return None
    return np.array([labels.get(target.key, -1) for target in fit.targets])


def neighbourhoods(
    fit: Fit,
    estimate: Estimate,
    unseen: Array,
    groups: Mapping[str, str],
    weight: Array | None = None,
    known: Mapping[str, Neighbourhood] | None = None,
    widened: Array | float = 1.0,
    quantity: str = "step_time",
) -> tuple[Neighbourhood, ...]:
    """Spreads of the residuals of `unseen` log predictions, by kind of run; each kind held to what
    was known of it, or to the one around it. With `known` ones, of published runs, only those of
    the fleet's own chips and stacks change.

    `widened`: how many times each prediction is wider than its kind, for lying where no other run
    has been. With `weight` other than the fit's; runs without weight do not count, nor do targets
    of another `quantity`.
    """
    weight = fit.weight if weight is None else weight
    weight = np.where([target.quantity == quantity for target in fit.targets], weight, 0.0)
    away = np.abs(fit.value - unseen) / widened
    unknown = unidentified_variance(fit, estimate)
    members: dict[str, list[int]] = {}
    for i in np.flatnonzero(weight > 0).tolist():
        target = fit.targets[i]
        *published, pair = target.problem.neighbourhood_scopes
        for scope in published if known is None else (pair,):
            members.setdefault(scope, []).append(i)
    found: dict[str, Neighbourhood] = {**(known or {})}
    for scope in sorted(members, key=lambda scope: (scope != "all", scope)):
        rows = np.array(members[scope])
        wider = [
            found[name]
            for name in fit.targets[rows[0]].problem.neighbourhood_scopes
            if name in found
        ]
        around = found.get(scope) or (wider[-1] if wider else None)
        say = min(
            len(rows), 3 * len({groups[fit.targets[i].key] for i in rows})
        )  # a group's runs err together
        spread = _central(away[rows], weight[rows]) / Z80
        if around:
            spread = float(np.sqrt((say * spread**2 + HELD * around.spread**2) / (say + HELD)))
        typical = float(np.sqrt(np.average(unknown[rows], weights=weight[rows])))
        before = known[scope].runs if known and scope in known else 0
        found[scope] = Neighbourhood(
            scope=scope, spread=spread, unidentified=typical, runs=before + len(rows)
        )
    return tuple(found.values())


def outside_of_others(fit: Fit, labels: Array) -> Array:
    """Whether each run has some quantity beyond those of all runs of other labels on its
    generation, or on any if there is none."""
    values = np.array(
        [list(quantities(target.problem, target.layout).values()) for target in fit.targets]
    )
    generations = np.array([target.problem.cluster.chip.generation for target in fit.targets])
    outside = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        mine = labels == label
        for generation in np.unique(generations[mine]):
            here = generations == generation
            others = values[here & ~mine] if (here & ~mine).any() else values[~mine]
            if len(others):
                reached = (values[here & mine] >= others.min(axis=0)) & (
                    values[here & mine] <= others.max(axis=0)
                )
                outside[here & mine] = ~reached.all(axis=1)
    return outside


def beyond(profile: Profile, fit: Fit, unseen: Array, outside: Array) -> float:
    """How many times farther from its prediction a run is that lies outside of others, in spreads
    of its kind."""
    kinds = [target.problem.neighbourhood_scopes for target in fit.targets]
    away = np.abs(fit.value - unseen) / np.array(
        [profile.neighbourhood(kind).spread for kind in kinds]
    )
    weight = np.where([target.quantity == "step_time" for target in fit.targets], fit.weight, 0.0)
    there, here = outside & (weight > 0), ~outside & (weight > 0)
    if there.sum() < HELD or not here.any():
        return 1.0
    farther = _central(away[there], weight[there]) / _central(away[here], weight[here])
    return round(max(farther, 1.0), 4)


def unidentified_variance(fit: Fit, estimate: Estimate) -> Array:
    """Of each run's log prediction, from the terms that the data said nothing about."""
    variance, published = (
        np.diag(estimate.covariance),
        np.array([not is_of_fleet(term.scope) for term in fit.terms]),
    )
    unidentified = (np.sqrt(variance) >= _IDENTIFIED * fit.spread) & published
    return estimate.linear.variance(np.where(unidentified, variance, 0.0))


def _central(away: Array, weight: Array) -> float:
    """The distance within which 80% of the weight lies."""
    order = np.argsort(away)
    share = np.cumsum(weight[order]) / weight.sum()
    return float(away[order][np.searchsorted(share, 0.8)])


def _terms(fit: Fit, estimate: Estimate) -> dict[TermKey, Term]:
    """Terms as estimated, with the number of runs behind those the data identified."""
    sigma, runs = np.sqrt(np.diag(estimate.covariance)), _runs_behind(fit)
    changed = {}
    for i, term in enumerate(fit.terms):
        new = replace(term, mean=float(estimate.theta[i]), spread=float(min(sigma[i], term.spread)))
        changed[term.key] = (
            replace(new, runs=term.runs + int(runs[i])) if _identified(term, new) else new
        )
    return changed


def _runs_behind(fit: Fit) -> Array:
    counts = np.zeros(len(fit.terms), dtype=np.int64)
    for group in fit.groups:
        for term in fit.profile.terms_in(group.problem.scopes):
            if term.key in fit.position:
                counts[fit.position[term.key]] += len(group.runs)
    return counts


def _identified(before: Term, after: Term) -> bool:
    return after.spread < _IDENTIFIED * before.spread


def _visible(before: Term, after: Term) -> bool:
    return _identified(before, after) or abs(after.mean - before.mean) > _VISIBLE * before.spread


def _outliers(fit: Fit, estimate: Estimate) -> list[str]:
    """What was measured and lies far off, or was reported out of memory and needs far less."""
    residual, most = (
        fit.residual(estimate.linear.predicted),
        OUTLIER_SPREADS * min(estimate.spread, fit.scatter),
    )
    return [
        target.key
        for target, r in zip(fit.targets, residual, strict=True)
        if abs(r) > most
        and (target.quantity != "needed" or (fit.fresh and target.side == "at_least"))
    ]


def _clean(fit: Fit, estimate: Estimate) -> Array:
    """The fit's weights, none for outliers."""
    odd = set(_outliers(fit, estimate))
    return np.where([target.key in odd for target in fit.targets], 0.0, fit.weight)


def _error(fit: Fit, predicted: Array) -> float | None:
    whole = np.array(
        [target.quantity in ("step_time", "reserved", "needed") for target in fit.targets],
        dtype=bool,
    )
    measured = (fit.sign == 0) & whole
    return _median_error(predicted[measured], fit.value[measured]) if measured.any() else None


def _median_error(predicted: Array, measured: Array) -> float:
    """Of |predicted / measured - 1|, from their logs."""
    return float(np.median(np.abs(np.expm1(predicted - measured))))


def _moved(before: Term, after: Term) -> Moved:
    def natural(term: Term) -> float:
        return float(
            to_natural(term.coefficient, term.mean) if term.scope == "all" else np.exp(term.mean)
        )

    return Moved(
        coefficient=before.coefficient,
        scope=before.scope,
        before=natural(before),
        after=natural(after),
        shift_in_spreads=(after.mean - before.mean) / before.spread,
        spread_before=before.spread,
        spread_after=after.spread,
    )
