"""How far one source of runs lies from another that a fit has not seen.

An organisation's runs have machines, settings and ways of measuring in common, and so a part of
their residuals. A user's cluster is such a source, so that this part belongs into its intervals
until its own runs tell it (models.spec.profile.Neighbourhood).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from models.calibration.map_fit import Estimate, Fit
from models.columns import Array

# Runs of one organisation and stack whose median says where the source lies.
_MIN_RUNS = 3
# Sources that have to be there to say how far they lie from each other.
_MIN_SOURCES = 5
# The share of sources, the nearest, whose distances tell the spread. Sources farther away than a
# normal distribution has it have chips or software of which the fit has no run, for which the terms
# without runs account.
_NEAREST = 0.8


def between_sources(
    fit: Fit, estimate: Estimate, organisations: Mapping[str, str], quantities: tuple[str, ...]
) -> float:
    """The standard deviation of what the runs of a source have in common, of the log of one of
    these quantities, by the medians of the sources' residuals under fits that saw no run of their
    organisation: that of a normal distribution whose nearest four fifths have their mean square.

    A source is an organisation with one stack. `organisations` names that of each key. A stack that
    no other organisation ran is left out: it is new to such a fit, which the terms without runs
    account for. 0 where there are too few sources to tell.
    """
    names = np.array([organisations[target.key] for target in fit.targets])
    _, folds = np.unique(names, return_inverse=True)
    residuals = fit.value - fit.held_out_predictions(folds, estimate)
    return spread_of_sources(fit, residuals, names, quantities)


def spread_of_sources(
    fit: Fit, residuals: Array, names: Array, quantities: tuple[str, ...]
) -> float:
    """The same, of residuals (targets,) by fits that saw no run of the organisation, whose names
    are (targets,). Where a residual is not a number, its run does not count."""
    members: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    organisations: defaultdict[str, set[str]] = defaultdict(set)
    for i, target in enumerate(fit.targets):
        is_measured = target.quantity in quantities and target.side == "equal"
        if is_measured and not np.isnan(residuals[i]):
            stack = target.problem.stack.calibrated_as
            members[stack, str(names[i])].append(i)
            organisations[stack].add(str(names[i]))
    medians = sorted(
        abs(float(np.median(residuals[rows])))
        for (stack, _), rows in members.items()
        if len(rows) >= _MIN_RUNS and len(organisations[stack]) > 1
    )
    if len(medians) < _MIN_SOURCES:
        return 0.0
    nearest = np.array(medians[: round(_NEAREST * len(medians))])
    return round(float(np.sqrt(np.mean(nearest**2) / _mean_square_of_nearest())), 4)


def _mean_square_of_nearest() -> float:
    """Of a standard normal distribution cut off beyond its nearest share."""
    normal = NormalDist()
    end = normal.inv_cdf((1 + _NEAREST) / 2)
    return 1 - 2 * end * normal.pdf(end) / _NEAREST
