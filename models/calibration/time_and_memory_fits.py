"""The two fits of a calibration: step times and memory, each to the coefficients that it depends on
(models.calibration.map_fit).

A *target* is a measured value that a prediction should equal, or a *bound* that it should keep. A
*new fleet* is the machines of one deployment; otherwise runs are published ones. An *offset* is
what one scope, such as a fleet's chip, adds to a coefficient.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from models.calibration.map_fit import Estimate, Fit, Quantity, Side, Target
from models.calibration.observation import Observation
from models.calibration.posterior import Posterior
from models.calibration.residual_diagnosis import exposed_s
from models.columns import Array
from models.spec.problem import Problem, number_by_problem
from models.spec.profile import KINDS, MEMORY_COEFFICIENTS, Neighbourhood, Profile, is_of_fleet

# The spread of the random effect of a sparse model that one organisation ran. Medians of published
# sparse models, predicted by fits that had not seen them, spread by 0.07 (middle half) to 0.16
# (middle 80%).
_RANDOM_EFFECT_SPREAD = 0.12
# Published runs count as so many runs of a new fleet where they tell how far its runs scatter.
_NOISE_PRIOR_RUNS = 1.0
# Measured parts of a step contradict its step time where they move the fitted one away from it by
# more than this share of the noise of unseen runs.
_CONTRADICTION = 0.25
# Exposed communication must have a logarithm, so it is taken to be no less than this share of a
# step.
_LEAST_EXPOSED = 1e-3


def _measured_coefficient(name: str) -> Quantity:
    """Return the quantity that reads a coefficient itself, for coefficients that were measured
    directly."""
    return lambda costs: np.broadcast_to(costs.coefficients[name], len(costs))


_TIME_QUANTITIES: dict[str, Quantity] = {
    "step_time": lambda costs: costs.step_time_s,
    "exposed": lambda costs: np.maximum(exposed_s(costs.time), _LEAST_EXPOSED * costs.step_time_s),
    **{name: _measured_coefficient(name) for name in KINDS.keys() - MEMORY_COEFFICIENTS},
}
_MEMORY_QUANTITIES: dict[str, Quantity] = {
    "allocated": lambda costs: costs.allocated_bytes,
    "reserved": lambda costs: costs.reserved_bytes,
    "needed": lambda costs: costs.needed_bytes,
}
MEMORY_QUANTITIES = tuple(_MEMORY_QUANTITIES)
RUN_QUANTITIES = ("step_time", "exposed", *MEMORY_QUANTITIES)
"""The quantities that are measured in runs; the others may come from micro-benchmarks."""


def time_fit(
    profile: Profile,
    observations: Sequence[Observation],
    posterior: Posterior,
    *,
    new_fleet: bool = False,
) -> Fit:
    """Return the fit of step times and of measured parts of them. With `new_fleet`, the runs are of
    machines that the profile may not have seen."""
    targets = [target for o in _by_key(observations) for target in _time_targets(o)]
    noise, inflation = None, 1.0  # published runs: noise is estimated from residuals
    if new_fleet:
        # Sparse and dense runs scatter differently, and so are two sources of noise.
        targets = [replace(t, source=f"{t.source}/{t.problem.density}") for t in targets]
        noise = np.array([step_time_noise(profile, target.problem) for target in targets])
        inflation = _noise_inflation(profile.neighbourhoods, targets)
    return Fit(
        profile,
        targets,
        frozenset(KINDS) - MEMORY_COEFFICIENTS,
        _TIME_QUANTITIES,
        posterior,
        new_fleet_noise=noise,
        noise_inflation=inflation,
        # A fleet has offsets for its sparse models instead.
        random_effect_spread=0.0 if new_fleet else _RANDOM_EFFECT_SPREAD,
    )


def memory_fit(
    profile: Profile,
    observations: Sequence[Observation],
    posterior: Posterior,
    *,
    new_fleet: bool = False,
) -> Fit:
    """Return the fit of peaks of memory, and of bounds: runs that did not fit needed at least the
    device's memory, and all others at most. With `new_fleet`, the runs are of machines that the
    profile may not have seen.

    A published run with a measured peak gives no bound, because the peak says more. In a new fleet
    it gives one all the same, which weighs against runs of an equal layout that are said not to
    have fitted.
    """
    targets = [target for o in _by_key(observations) for target in _memory_targets(o, new_fleet)]
    noise, inflation = None, 1.0  # published runs: noise is estimated from residuals
    if new_fleet:
        # Scopes go from the widest on. The first two are all published runs, and those that are
        # sparse or dense like this one; narrower scopes say less of machines that nobody has seen.
        # Noise begins at the spread of these runs and not of the fleet's residuals, which may all
        # lie on one side: that is an offset and no noise.
        kinds = [target.problem.neighbourhood_scopes[:2] for target in targets]
        noise = np.array([profile.memory_neighbourhood(scopes).spread for scopes in kinds])
        # A few runs tell little of how far a fleet scatters, so they move the terms less.
        inflation = _noise_inflation(profile.memory_neighbourhoods, targets)
    return Fit(
        profile,
        _with_repeated_bounds_as_one(targets),
        MEMORY_COEFFICIENTS,
        _MEMORY_QUANTITIES,
        posterior,
        new_fleet_noise=noise,
        noise_inflation=inflation,
    )


def solve_time_fit(
    profile: Profile, observations: Sequence[Observation], posterior: Posterior, *, new_fleet: bool
) -> tuple[Fit, Estimate, list[str]]:
    """Return the fit of step times, its estimate, and the keys of runs whose measured parts
    contradict their own step times. The fit leaves these parts out, because the length of a step is
    surer than its parts.

    Only reports of a new fleet come with parts that nobody has checked.
    """
    fit = time_fit(profile, observations, posterior, new_fleet=new_fleet)
    estimate = fit.solve()
    # Without parts, or where people have checked them, nothing can contradict.
    without_parts = [o.without_parts() for o in observations]
    if not new_fleet or without_parts == [*observations]:
        return fit, estimate, []
    contradicted = _contradicted_runs(fit, estimate, observations, posterior)
    if not contradicted:
        return fit, estimate, []
    kept = [o.without_parts() if o.key in contradicted else o for o in observations]
    fit = time_fit(profile, kept, posterior, new_fleet=True)
    return fit, fit.solve(), sorted(contradicted)


def _contradicted_runs(
    fit: Fit, estimate: Estimate, observations: Sequence[Observation], posterior: Posterior
) -> set[str]:
    """Return the keys of runs whose measured parts contradict their step times: a fit that leaves
    out the parts of all runs comes closer to the measured step time than `fit`, by more than is
    tolerated."""
    without_parts = [o.without_parts() for o in observations]
    fit_without = time_fit(fit.profile, without_parts, posterior, new_fleet=True)
    distances = _step_time_distances(fit, estimate)
    distances_without = _step_time_distances(fit_without, fit_without.solve())
    tolerated = _by_key_of_run(fit, _CONTRADICTION * fit.prior_noise)
    # A run that equals itself without parts has none to contradict its step time.
    return {
        o.key
        for o, run_alone in zip(observations, without_parts, strict=True)
        if o != run_alone and distances[o.key] > distances_without[o.key] + tolerated[o.key]
    }


def _step_time_distances(fit: Fit, estimate: Estimate) -> dict[str, float]:
    """Return the distance of each run's measured step time from the fitted one, as a logarithm, by
    key."""
    return _by_key_of_run(fit, np.abs(fit.residual(estimate.linear.predicted)))


def _by_key_of_run(fit: Fit, values: Array) -> dict[str, float]:
    """Return the value of each target that is a step time, by the key of its run, from the values
    (targets,) of all targets."""
    return {
        target.key: value
        for target, value in zip(fit.targets, values.tolist(), strict=True)
        if target.quantity == "step_time"
    }


def step_time_noise(profile: Profile, problem: Problem) -> float:
    """Return the standard deviation of log step times on unseen machines, from published runs that
    are equally sparse or dense. Narrower kinds say less of other machines, since a stack's runs are
    mostly those of the organisation that wrote it. The random effect of a sparse model is taken
    off, down to half of the spread, because a fleet has offsets for it."""
    # The two widest kinds: all runs, and those that are sparse or dense like this one.
    spread = profile.neighbourhood(problem.neighbourhood_scopes[:2]).spread
    if not problem.architecture.is_moe:
        return spread
    return math.sqrt(max(spread**2 - _RANDOM_EFFECT_SPREAD**2, (spread / 2) ** 2))


def _noise_inflation(known: Sequence[Neighbourhood], targets: Sequence[Target]) -> float:
    """Return the factor by which a new fleet's runs are taken to be noisier while there are few of
    them, because few runs hardly tell how far the fleet's runs scatter. Each of `targets` counts as
    a run. `known` are the profile's neighbourhoods, some of them of the fleet's earlier runs."""
    earlier_runs = sum(kind.runs for kind in known if is_of_fleet(kind.scope))
    fleet_runs = len(targets) + earlier_runs
    return float(np.sqrt(1 + _NOISE_PRIOR_RUNS / max(fleet_runs, 1)))


def _by_key(observations: Sequence[Observation]) -> list[Observation]:
    return sorted(observations, key=lambda o: o.key)


def _time_targets(o: Observation) -> list[Target]:
    """Return the targets of a run: its step time, then measured parts of it. Each part has a noise
    of its own."""
    targets = [] if o.step_time_s is None else [_target(o, "step_time", o.step_time_s)]
    exposed = {} if o.exposed_s is None else {"exposed": o.exposed_s}
    for name, value in [*exposed.items(), *sorted(o.coefficients.items())]:
        # A source of its own gives each kind of part a level of noise of its own.
        targets.append(replace(_target(o, name, value), source=f"{o.source}/{name}"))
    return targets


def _memory_targets(o: Observation, new_fleet: bool) -> list[Target]:
    """Return the targets of a run's memory: its measured peak, and a bound by the device's memory,
    which it exceeded or not. A measured peak makes the bound superfluous, but not in a new fleet,
    whose reports may contradict each other (memory_fit)."""
    if o.is_benchmark:
        return []
    targets = list[Target]()
    if o.memory_bytes is not None:
        targets.append(_target(o, o.memory_kind, o.memory_bytes))
    if o.memory_bytes is None or new_fleet:
        # A run that fitted needed at most what the device has, one that did not at least that.
        side: Side = "at_least" if o.out_of_memory else "at_most"
        targets.append(_target(o, "needed", float(o.problem.cluster.usable_bytes), side))
    return targets


def _target(o: Observation, quantity: str, value: float, side: Side = "equal") -> Target:
    """Return the target of one measurement of a run; `side` tells whether it is a value or a
    bound."""
    return Target(
        key=o.key,
        problem=o.problem,
        layout=o.layout,
        value=value,
        quantity=quantity,
        side=side,
        weight=o.weight,
        source=o.source,
        effect_group=o.effect_group,
    )


def _with_repeated_bounds_as_one(targets: Sequence[Target]) -> list[Target]:
    """Return the targets with lower weights for bounds that a source repeats for one layout. They
    weigh no more than one run together, since the need of a layout is the same every time."""
    problems = number_by_problem([target.problem for target in targets])
    bounds = [
        None if t.side == "equal" else (problem, t.layout, t.side, t.source)
        for problem, t in zip(problems, targets, strict=True)
    ]
    total: defaultdict[object, float] = defaultdict(float)
    for bound, target in zip(bounds, targets, strict=True):
        total[bound] += target.weight
    # Bounds that together weigh less than one run keep their weights.
    return [
        target if bound is None else replace(target, weight=target.weight / max(total[bound], 1.0))
        for bound, target in zip(bounds, targets, strict=True)
    ]
