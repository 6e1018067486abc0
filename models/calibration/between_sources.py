"""The distance of a source of runs from the others, as a fit that has not seen it finds it.

A *source* is an organisation with one stack on one generation of chips. Its runs have machines,
settings and ways of measuring in common, and so a part of their residuals. A user's cluster is such
a source, so this part widens its intervals until its own runs tell it
(models.spec.profile.Neighbourhood). A *residual* is the log of measured over predicted values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from models.calibration.map_fit import Estimate, Fit
from models.columns import Array

# A source needs so many runs for their median to say where it lies.
_MIN_RUNS = 3
# So many sources have to be there to say how far they lie from each other.
_MIN_SOURCES = 5
# The share of sources, the nearest, whose distances tell the spread. Sources farther away than in a
# normal distribution have chips or software of which the fit has no run, and the terms without runs
# account for those. A quantile at a half jumped with every change of the fit
# (docs/lab/intervals.md).
_NEAREST = 0.8


def between_sources(
    fit: Fit, estimate: Estimate, organisations: Mapping[str, str], quantities: tuple[str, ...]
) -> float:
    """Return the standard deviation of what the runs of a source have in common, in the log of
    these quantities. 0 stands for too few sources to tell.

    `organisations` names the organisation of each key. A source lies where the median of its
    residuals is, under a fit that saw no run of its organisation. The result is the standard
    deviation of a normal distribution, fitted to the four fifths of these medians nearest to 0. A
    stack that only one organisation ran on such chips is left out: its residuals come mostly from
    terms without runs, which widen intervals by themselves.
    """
    names = np.array([organisations[target.key] for target in fit.targets])
    # Each organisation is a fold, which a fit to all others predicts.
    _, folds = np.unique(names, return_inverse=True)
    residuals = fit.value - fit.held_out_predictions(folds, estimate)
    return spread_of_sources(fit, residuals, names, quantities)


def spread_of_sources(
    fit: Fit, residuals: Array, names: Array, quantities: tuple[str, ...]
) -> float:
    """Return the standard deviation between sources, as `between_sources` defines it, from
    residuals (targets,) under fits that saw no run of the target's organisation. `names` (targets,)
    are the organisations. A run whose residual is not a number does not count."""
    # A source is an organisation with a pair of chip generation and stack. A pair that only one
    # organisation ran is left out: its residuals come mostly from terms without runs.
    rows_of_source: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    organisations: defaultdict[str, set[str]] = defaultdict(set)
    for i, target in enumerate(fit.targets):
        is_measured = target.quantity in quantities and target.side == "equal"
        if is_measured and not np.isnan(residuals[i]):
            problem = target.problem
            pair = f"{problem.cluster.chip.generation}/{problem.stack.calibrated_as}"
            rows_of_source[pair, str(names[i])].append(i)
            organisations[pair].add(str(names[i]))
    medians = sorted(
        abs(float(np.median(residuals[rows])))
        for (pair, _), rows in rows_of_source.items()
        if len(rows) >= _MIN_RUNS and len(organisations[pair]) > 1
    )
    if len(medians) < _MIN_SOURCES:
        return 0.0
    nearest = np.array(medians[: round(_NEAREST * len(medians))])
    return round(float(np.sqrt(np.mean(nearest**2) / _mean_square_of_nearest())), 4)


def _mean_square_of_nearest() -> float:
    """Return the mean square of a standard normal variable, given that it lies in the central
    _NEAREST of its distribution. The mean square of the nearest medians, divided by this, estimates
    the variance of all medians."""
    normal = NormalDist()
    end = normal.inv_cdf((1 + _NEAREST) / 2)
    return 1 - 2 * end * normal.pdf(end) / _NEAREST  # variance of a truncated normal
