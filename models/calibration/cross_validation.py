"""Cross-validation says what a fit is worth on runs that it did not see.

Runs of one model, chip and stack are held out together, because what they have in common would give
away the answer. Where there are too few such groups, stretches of time are held out. A *target* is
one measurement of a run that a fit should meet. *Spreads* are standard deviations of the log of
measured over predicted values, by kind of run. A *new fleet* is the machines of one deployment;
otherwise runs are published ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from models.calibration.map_fit import Estimate, Fit
from models.calibration.residual_spreads import (
    lies_outside_others,
    residual_spreads,
    weight_without_outliers,
    widening_outside,
)
from models.calibration.time_and_memory_fits import MEMORY_QUANTITIES, RUN_QUANTITIES
from models.columns import Array
from models.spec.profile import Z80, Profile

# Limits on the number of folds. Each fold of a fleet's fit is solved again, which bounds them
# above. With fewer than three, a fold would hold out half of the runs.
_MAX_FOLDS = 8
_MIN_FOLDS = 3
# An error by kind says something only from so many runs of that kind on.
MIN_RUNS_TO_JUDGE = 5


@dataclass(frozen=True, kw_only=True)
class ProfileComparison:
    """Runs beside their predictions by two profiles. The later predictions are made by a profile,
    or by a fit to the other runs, that did not see these runs.

    `measured`, `before` and `after` are logs of step times or of memory, and `spread` the standard
    deviations that the later profile expects, all of shape (runs,). `kinds` names the chip and the
    stack of each run, or other kinds by which its error is to be told.
    """

    measured: Array
    before: Array
    after: Array
    spread: Array
    kinds: tuple[tuple[str, ...], ...]

    @property
    def error_before(self) -> float:
        """Return the median of |predicted / measured - 1| under the earlier profile."""
        return median_error(self.before, self.measured)

    @property
    def error_after(self) -> float:
        return median_error(self.after, self.measured)

    @property
    def coverage(self) -> float:
        """Return the share of the runs that lie in the 80% interval of the later profile."""
        return float(np.mean(np.abs(self.after - self.measured) <= Z80 * self.spread))

    @cached_property
    def by_kind(self) -> dict[str, tuple[int, float, float]]:
        """Return (number of runs, error before, error after) of each kind that has enough runs."""
        counts = Counter(kind for kinds in self.kinds for kind in kinds)
        result = {}
        for kind in sorted(kind for kind, count in counts.items() if count >= MIN_RUNS_TO_JUDGE):
            is_of_kind = np.array([kind in kinds for kinds in self.kinds])
            before = median_error(self.before[is_of_kind], self.measured[is_of_kind])
            after = median_error(self.after[is_of_kind], self.measured[is_of_kind])
            result[kind] = int(is_of_kind.sum()), before, after
        return result


def median_error(predicted: Array, measured: Array) -> float:
    """Return the median of |predicted / measured - 1|, from logs of both."""
    return float(np.median(np.abs(np.expm1(predicted - measured))))


def cross_validate(
    before: Profile,
    fitted: Profile,
    fit: Fit,
    estimate: Estimate,
    groups: Mapping[str, str],
    *,
    of_memory: bool,
) -> tuple[Profile, ProfileComparison | None]:
    """Return the fitted profile with spreads of step times, or of peaks of memory, estimated on
    held-out runs, and a comparison of both profiles on these. Return the profile unchanged, and
    None, if there are too few runs to hold any out. `groups` names the group of each key, whose
    runs are held out together."""
    folds = _folds(fit, groups)
    if folds is None:
        return fitted, None
    held_out = fit.held_out_predictions(folds, estimate)
    quantities = MEMORY_QUANTITIES if of_memory else ("step_time",)
    # How much worse unusual runs are predicted is estimated for published step times only.
    if fit.is_new_fleet or of_memory:
        # None: all weights of the fit count, and the spreads of all kinds are estimated.
        weight, known_spreads = None, None
        if fit.is_new_fleet:  # the fleet's reports leave the spreads of published runs as they are
            weight = weight_without_outliers(fit, estimate)
            spreads_before = before.memory_neighbourhoods if of_memory else before.neighbourhoods
            known_spreads = {spread.scope: spread for spread in spreads_before}
        spreads = residual_spreads(
            fit, estimate, held_out, groups, weight, known_spreads, quantities=quantities
        )
        if of_memory:
            fitted = replace(fitted, memory_neighbourhoods=spreads)
        else:
            fitted = replace(fitted, neighbourhoods=spreads)
    else:
        fitted = with_published_spreads(fitted, fit, estimate, held_out, groups)
    neighbourhood = fitted.memory_neighbourhood if of_memory else fitted.neighbourhood
    expected = [neighbourhood(target.problem.neighbourhood_scopes).total for target in fit.targets]
    return fitted, _comparison(fit, quantities, held_out, np.array(expected))


def with_published_spreads(
    fitted: Profile,
    fit: Fit,
    estimate: Estimate,
    held_out: Array,
    groups: Mapping[str, str],
    weight: Array | None = None,
) -> Profile:
    """Return the profile with spreads of published runs, estimated from `held_out` predictions.
    `weight` (targets,) is the fit's by default. Runs outside the range of all others are predicted
    worse, by a common factor. The factor is found with the spreads of all runs. Then the residuals
    of the runs outside are divided by it, and the spreads are estimated again."""
    weight = fit.weight if weight is None else weight
    outside = lies_outside_others(fit, np.array([groups[target.key] for target in fit.targets]))
    spreads = residual_spreads(fit, estimate, held_out, groups, weight)
    fitted = replace(fitted, neighbourhoods=spreads)
    widening = widening_outside(fitted, fit, held_out, outside, weight)
    widenings = np.where(outside, widening, 1.0)
    spreads = residual_spreads(fit, estimate, held_out, groups, weight, widening=widenings)
    return replace(fitted, neighbourhoods=spreads, unseen_widening=widening)


def _folds(fit: Fit, groups: Mapping[str, str]) -> Array | None:
    """Return the number of each target's fold; None where there are too few runs.

    Every group is a fold of its own. In the fit of a new fleet, groups are dealt out to at most
    _MAX_FOLDS folds, because each costs a solution of its own. Where there are too few groups,
    stretches of time are folds (keys sort by time). All measurements of a run are held out with it,
    and all micro-benchmarks are a fold of their own (-1).
    """
    keys = list(dict.fromkeys(t.key for t in fit.targets if t.quantity in RUN_QUANTITIES))
    numbers = {name: i for i, name in enumerate(dict.fromkeys(groups[key] for key in keys))}
    if len(numbers) >= _MIN_FOLDS:
        folds = {key: numbers[groups[key]] for key in keys}
        if fit.is_new_fleet:
            folds = {key: number % _MAX_FOLDS for key, number in folds.items()}
    elif len(keys) >= MIN_RUNS_TO_JUDGE:
        # Consecutive keys, a third of them in each fold.
        folds = {key: i * _MIN_FOLDS // len(keys) for i, key in enumerate(keys)}
    else:
        return None
    # Micro-benchmarks have no key among those of runs.
    return np.array([folds.get(target.key, -1) for target in fit.targets])


def _comparison(
    fit: Fit, quantities: Collection[str], held_out: Array, spread: Array
) -> ProfileComparison | None:
    """Compare the profile that a fit began with to the held-out predictions, on the runs that
    measured one of these quantities. Return None where these are too few."""
    # Bounds are no measurements.
    is_measured = np.array([t.quantity in quantities and t.side == "equal" for t in fit.targets])
    if is_measured.sum() < MIN_RUNS_TO_JUDGE:
        return None
    problems = [fit.targets[i].problem for i in np.flatnonzero(is_measured).tolist()]
    return ProfileComparison(
        measured=fit.value[is_measured],
        before=fit.log_predictions(fit.prior_mean)[is_measured],
        after=held_out[is_measured],
        spread=spread[is_measured],
        kinds=tuple(
            (f"chip:{p.cluster.chip.id}", f"stack:{p.stack.calibrated_as}") for p in problems
        ),
    )
