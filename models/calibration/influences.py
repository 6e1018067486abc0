"""The influence of measurements on a fit: the part of the way from prior to estimate that each
group of them causes.

A *shift* is how far a fit moves the terms of a profile, which are what scopes, such as one stack,
add to a coefficient. A *group* is the measurements of one model on one chip and stack.

With J the slopes of log predictions at the estimate θ̂, S the IRLS weights and P the precision of
the prior N(μ, P⁻¹), the estimate solves (P + JᵀSJ) (θ̂ - μ) = JᵀS z. Here z = r(θ̂) + J (θ̂ - μ) are
the residuals that the measurements have at the prior, to first order. The right side is a sum over
measurements, so θ̂ - μ is one too. A measurement that the prior predicted exactly has no part in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from models.calibration.map_fit import Estimate, Fit
from models.calibration.observation import Observation
from models.columns import Array
from models.spec.influences import Influence, Influences
from models.spec.profile import TermKey

# A version is stored with so many groups, which take some 40 KB, a third of a profile. Answers
# predict a step without each of them, which took 0.2 ms for 25 groups, and 1.8 ms for 40 on a
# loaded machine.
_MOST_GROUPS = 40
# Keys that are kept for each group: enough to look at what was reported last.
_MOST_LATEST = 3
# A share of a term's spread: a smaller shift moves no prediction by a tenth of a percent.
_VISIBLE_SHIFT = 0.02
# Decimals of a shift. Twenty coefficients that are all rounded move a step by 0.01%.
_DECIMALS = 5


def influences(
    fit: Fit, estimate: Estimate, observations: Sequence[Observation], terms: Collection[TermKey]
) -> Influences | None:
    """Return the influence of each group of observations on those of `terms` that moved visibly.
    Groups with the largest shifts come first, and those beyond _MOST_GROUPS are joined. Shifts
    add up to the whole only for a `fit` without random effects and bounds. Return None for a fit
    without targets."""
    measured = {target.key for target in fit.targets}
    groups = _groups([o for o in observations if o.key in measured])
    if not groups:
        return None
    shifts = group_shifts(fit, estimate, [[o.key for o in group] for group in groups])
    total_shift = estimate.theta - fit.prior_mean
    largest_shift = np.abs(np.vstack([total_shift, shifts])).max(axis=0)
    is_visible = largest_shift > _VISIBLE_SHIFT * fit.prior_spread
    in_fit = [fit.column[key] for key in terms if key in fit.column]
    columns = [column for column in in_fit if is_visible[column]]
    shifts = shifts[:, columns]
    # A group is as large as its shifts together, each in spreads of the prior.
    size = np.square(shifts / fit.prior_spread[columns]).sum(axis=1)
    largest_first = np.argsort(-size, kind="stable").tolist()
    by_size = [_influence(groups[i], shifts[i]) for i in largest_first]
    small = by_size[_MOST_GROUPS:]
    return Influences(
        against_version=fit.profile.version,
        terms=tuple(fit.terms[column].key for column in columns),
        shift=_rounded(total_shift[columns]),
        groups=(*by_size[:_MOST_GROUPS], *([joined(small)] if small else [])),
    )


def group_shifts(fit: Fit, estimate: Estimate, groups: Sequence[Collection[str]]) -> Array:
    """Return how far each group of observations shifts each term; shape (groups, terms). A group is
    given by the keys of its observations, and every target must be of one group."""
    linear = estimate.linear
    group_of_key = {key: group for group, keys in enumerate(groups) for key in keys}
    group_of_target = np.array([group_of_key[target.key] for target in fit.targets])
    residual_at_prior = fit.value - linear.at(fit.prior_mean).predicted
    # IRLS weight times residual at the prior, summed over the targets of each group and row.
    pulls = np.zeros((len(groups), len(linear.logs)))
    np.add.at(pulls, (group_of_target, linear.row), estimate.irls_weight * residual_at_prior)
    # All groups share one normal matrix, so that their shifts add up to the whole shift.
    normal = fit.prior_precision + linear.normal_matrix(estimate.irls_weight)
    return np.asarray(np.linalg.solve(normal, linear.gradients(pulls).T).T)


def joined(groups: Sequence[Influence]) -> Influence:
    """Return the influence of several groups together, with the keys of their latest observations
    only. Chip, stack, model and parameters are None where the groups differ in them."""
    latest = sorted((key for group in groups for key in group.latest), reverse=True)

    def shared(name: str) -> Any:
        """Return the value of a field if all groups have the same one; None otherwise."""
        values = {getattr(group, name) for group in groups}
        return values.pop() if len(values) == 1 else None

    return Influence(
        chip=shared("chip"),
        stack=shared("stack"),
        model=shared("model"),
        parameters=shared("parameters"),
        runs=sum(group.runs for group in groups),
        benchmarks=sum(group.benchmarks for group in groups),
        latest=tuple(latest[:_MOST_LATEST]),
        shift=_rounded(np.sum([group.shift for group in groups], axis=0)),
    )


def _groups(observations: Sequence[Observation]) -> list[list[Observation]]:
    """Return the observations by chip, stack and model, sorted by these. Each group is oldest
    first."""
    groups = defaultdict[tuple[str, str, str, int], list[Observation]](list)
    for o in sorted(observations, key=lambda o: o.key):
        model, parameters = _model_of(o) or ("", 0)
        groups[o.problem.cluster.chip.id, o.problem.stack.id, model, parameters].append(o)
    return [groups[name] for name in sorted(groups)]


def _model_of(o: Observation) -> tuple[str, int] | None:
    """Return the name and the number of parameters of a run's model; None for a benchmark, whose
    problem has only a placeholder."""
    architecture = o.problem.architecture
    return None if o.is_benchmark else (architecture.name, architecture.parameters.total)


def _influence(group: Sequence[Observation], shift: Array) -> Influence:
    """Return the influence of a group, which shifts the terms by `shift` (terms,). It keeps the
    keys of the latest observations alone, which are enough to look the group up."""
    problem = group[0].problem
    model, parameters = _model_of(group[0]) or (None, None)
    benchmarks = sum(o.is_benchmark for o in group)
    return Influence(
        chip=problem.cluster.chip.id,
        stack=problem.stack.id,
        model=model,
        parameters=parameters,
        runs=len(group) - benchmarks,
        benchmarks=benchmarks,
        latest=tuple(o.key for o in reversed(group[-_MOST_LATEST:])),
        shift=_rounded(shift),
    )


def _rounded(shift: Array) -> tuple[float, ...]:
    return tuple(np.round(shift, _DECIMALS).tolist())
