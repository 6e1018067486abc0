"""Predictions of runs by fits that did not see them: cross-validation and recalibration on a few
runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from models.calibration.map_fit import Estimate, Fit
from models.calibration.posterior import Posterior
from models.calibration.priors import priors
from models.calibration.residual_spreads import (
    lies_outside_others,
    residual_spreads,
    unidentified_variance,
    widening_outside,
)
from models.calibration.time_and_memory_fits import time_fit
from models.spec.profile import shipped_profile
from service.tools.fit_profile import group_key, observations
from tests.benchmarks.scores import Scored

SEEDS = 20
ENOUGH = 15  # scored runs of a family to be recalibrated


class Unseen:
    """One fit to all runs, and what it would have predicted without some of them.

    Leaving runs out re-solves the fit, linearised around the estimate from all of them, and
    predicts with the terms that gives (models.calibration.map_fit.Fit.without).
    """

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows = {row["id"]: row for row in rows}
        prior = priors()
        timed = [o for o in observations(rows, shipped_profile()) if o.step_time_s is not None]
        self.fit: Fit = time_fit(prior, timed, Posterior.independent())
        self.estimate: Estimate = self.fit.solve()
        self.keys = [target.key for target in self.fit.targets]
        self.groups = {key: group_key(self.rows[key]) for key in self.keys}
        self.unknown = unidentified_variance(self.fit, self.estimate)

    @property
    def free_coefficients(self) -> float:
        """Terms the data moved: trace of the posterior's shrinkage, the effective number of
        parameters."""
        return float((1 - np.diag(self.estimate.covariance) / self.fit.prior_spread**2).sum())

    def without_group(self, scored: Sequence[Scored]) -> list[Scored]:
        return self._left_out(scored, np.array([self.groups[key] for key in self.keys]))

    def without_family(self, scored: Sequence[Scored]) -> list[Scored]:
        return self._left_out(scored, np.array([self.rows[key]["family"] for key in self.keys]))

    def _left_out(self, scored: Sequence[Scored], labels: np.ndarray) -> list[Scored]:
        logs = self.fit.held_out_predictions(labels, self.estimate)
        outside, spreads = lies_outside_others(self.fit, labels), np.empty(len(labels))
        for label in np.unique(labels):
            mine = labels == label
            spreads[mine] = self._spreads(logs, mine, outside)
        found = {
            key: (float(np.exp(t)), float(s))
            for key, t, s in zip(self.keys, logs, spreads, strict=True)
        }
        return [
            replace(s, step_time_s=found[s.row["id"]][0], spread=found[s.row["id"]][1])
            for s in scored
            if s.row["id"] in found
        ]

    def _spreads(self, logs: np.ndarray, mine: np.ndarray, outside: np.ndarray) -> np.ndarray:
        """Of the runs in `mine`, by neighbourhoods made of the others, and wider where those have
        not been."""
        others = np.where(mine, 0.0, self.fit.weight)
        profile = replace(
            self.fit.profile,
            neighbourhoods=residual_spreads(self.fit, self.estimate, logs, self.groups, others),
        )
        widened = np.where(outside, widening_outside(profile, self.fit, logs, outside & ~mine), 1.0)
        known = residual_spreads(
            self.fit, self.estimate, logs, self.groups, others, widening=widened
        )
        profile = replace(profile, neighbourhoods=known)
        spreads = [
            profile.neighbourhood(self.fit.targets[i].problem.neighbourhood_scopes).with_variance(
                self.unknown[i]
            )
            for i in np.flatnonzero(mine)
        ]
        return np.array(spreads) * widened[mine]

    def recalibrated(self, runs: int) -> dict[str, dict[str, float]]:
        """Median error of a left-out family after learning from so many of its runs: mean over
        seeds, standard error.

        The rest is scored on other model shapes where there are any.
        """
        families = np.array([self.rows[key]["family"] for key in self.keys])
        sizes = Counter(families.tolist())
        result = {}
        for family in sorted(name for name, n in sizes.items() if n >= ENOUGH):
            mine = np.flatnonzero(families == family)
            errors = [self._after(mine, runs, seed) for seed in range(SEEDS)]
            result[family] = {
                "median_abs_error": float(np.mean(errors)),
                "standard_error": float(np.std(errors, ddof=1) / np.sqrt(SEEDS)),
            }
        return result

    def _after(self, mine: np.ndarray, runs: int, seed: int) -> float:
        chosen = np.random.default_rng(seed).choice(mine, size=runs, replace=False)
        known = {self.groups[self.keys[i]] for i in chosen}
        rest = [i for i in mine if self.groups[self.keys[i]] not in known] or [
            i for i in mine if i not in chosen
        ]
        weight = self.fit.weight.copy()
        weight[mine] = 0.0
        weight[chosen] = 1.0
        theta = self.fit.solve_reweighted(weight, self.estimate)
        wanted = np.zeros(len(self.keys), dtype=bool)
        wanted[rest] = True
        logs = self.fit.log_predictions(theta, wanted)[wanted]
        return float(np.median(np.abs(np.exp(logs - self.fit.value[wanted]) - 1)))
