"""Predictions of runs by fits that did not see them: cross-validation and recalibration on a few
runs."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from models.calibration.between_sources import spread_of_sources
from models.calibration.calibrate import apply_estimate, fitted_run
from models.calibration.cross_validation import with_published_spreads
from models.calibration.map_fit import Estimate, Fit
from models.calibration.observation import Observation
from models.calibration.posterior import Posterior
from models.calibration.residual_spreads import residual_spreads
from models.calibration.time_and_memory_fits import MEMORY_QUANTITIES, memory_fit, time_fit
from models.prediction.coverage import with_ranges
from models.spec.profile import Profile, priors, shipped_profile
from service.tools.fit_profile import group_key, observations, organisation
from tests.benchmarks.scores import Scored

SEEDS = 20
STEPS = 3
"""Steps of a fit that leaves runs out, with the first. 14 take four times as long; of six
organisations left out they moved one by 6 points and the others by 2 or less."""
ENOUGH = 15  # scored runs of a family to be recalibrated

Row = dict[str, Any]


class _LeavingOut:
    """A fit to all runs, and what it says of runs that were left out.

    Leaving many sets of runs out one by one is done to first order around the estimate from all of
    them. It serves only the spreads of intervals.
    """

    def __init__(self, fit: Fit, rows: dict[str, Row]) -> None:
        self.fit = fit
        self.estimate: Estimate = fit.solve()
        self.keys = np.array([target.key for target in fit.targets])
        self.groups = {key: group_key(rows[key]) for key in self.keys}
        self.organisations = np.array([organisation(rows[key]) for key in self.keys])

    @cached_property
    def without_group(self) -> np.ndarray:
        return self._held_out([self.groups[key] for key in self.keys])

    @cached_property
    def without_organisation(self) -> np.ndarray:
        return self._held_out(self.organisations)

    def _held_out(self, labels: Sequence[str] | np.ndarray) -> np.ndarray:
        folds = np.unique(labels, return_inverse=True)[1]
        return self.fit.held_out_predictions(folds, self.estimate)

    def dropped(self, keys: frozenset[str]) -> np.ndarray:
        return np.array([key in keys for key in self.keys])

    def estimate_without(self, dropped: np.ndarray) -> Estimate:
        """The estimate without the targets in a mask, in a few steps from the estimate with all.

        The first step is taken whatever the loss says of it. A fit that finds no better place than
        where all runs put it would predict those left out as if it had seen them.
        """
        weight = np.where(dropped, 0.0, self.fit.weight)
        first = self.fit.solve_reweighted(weight, self.estimate)
        return self.fit.solve_from(self.fit.linearise(first), weight, STEPS - 1)

    def between_sources(self, dropped: np.ndarray, quantities: tuple[str, ...]) -> float:
        """How far sources lie from each other, by those that were not dropped."""
        residuals = self.fit.value - self.without_organisation
        kept = np.where(dropped, np.nan, residuals)
        return spread_of_sources(self.fit, kept, self.organisations, quantities)


_of_process: list[Unseen] = []
"""The fits of a forked process, one in each."""


def _begin(unseen: Unseen) -> None:
    threadpool_limits(1)  # a process has one core
    _of_process[:] = [unseen]


def _fitted_without(keys: frozenset[str]) -> tuple[Profile, Posterior]:
    (unseen,) = _of_process
    return unseen.without(keys)


class Unseen:
    """What fits that left some runs out would have predicted of these."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = {row["id"]: row for row in rows}
        self.observations: list[Observation] = observations(rows, shipped_profile())
        timed = [o for o in self.observations if o.step_time_s is not None]
        independent = Posterior.independent()
        self.time = _LeavingOut(time_fit(priors(), timed, independent), self.rows)
        self.memory = _LeavingOut(memory_fit(priors(), self.observations, independent), self.rows)
        self.fit, self.estimate = self.time.fit, self.time.estimate
        self.keys = self.time.keys
        self._without = dict[frozenset[str], tuple[Profile, Posterior]]()

    @property
    def free_coefficients(self) -> float:
        """Terms the data moved: trace of the posterior's shrinkage, the effective number of
        parameters."""
        return float((1 - np.diag(self.estimate.covariance) / self.fit.prior_spread**2).sum())

    def left_out(self, scored: Sequence[Scored], label: Callable[[Row], str]) -> list[Scored]:
        """The same runs, each predicted by a profile that saw no run with the same label."""
        labels = {key: label(row) for key, row in self.rows.items()}
        names = sorted({labels[s.row["id"]] for s in scored})
        left_out = [frozenset(key for key in self.rows if labels[key] == name) for name in names]
        self._fit_without_each(left_out)
        result = []
        for keys in left_out:
            profile, _ = self.without(keys)
            mine = (s for s in scored if s.row["id"] in keys)
            result += [Scored.of(s.row, s.run, s.layout, profile) for s in mine]
        return result

    def _fit_without_each(self, left_out: Iterable[frozenset[str]]) -> None:
        """Fit without each set of runs, a set on each core. A family that is its organisation is
        fitted without once."""
        missing = [keys for keys in dict.fromkeys(left_out) if keys not in self._without]
        # What fits without runs take from the fit to all is found once, before the processes part.
        _ = self.time.without_group, self.memory.without_group
        _ = self.time.without_organisation, self.memory.without_organisation
        # Forked processes have the runs, and what was computed of them, without being sent it.
        forking = multiprocessing.get_context("fork")
        with forking.Pool(initializer=_begin, initargs=(self,)) as processes:
            fitted = processes.map(_fitted_without, missing, chunksize=1)
        self._without |= dict(zip(missing, fitted, strict=True))

    def without(self, keys: frozenset[str]) -> tuple[Profile, Posterior]:
        """The profile that a fit to all runs but these would make, and the joint posterior of what
        it says of step times."""
        if keys not in self._without:
            self._without[keys] = self._fitted_without(keys)
        return self._without[keys]

    def _fitted_without(self, keys: frozenset[str]) -> tuple[Profile, Posterior]:
        time, memory = self.time, self.memory
        no_time, no_memory = time.dropped(keys), memory.dropped(keys)
        profile, _ = apply_estimate(
            memory.fit.profile, memory.fit, memory.estimate_without(no_memory)
        )
        profile, posterior = apply_estimate(profile, time.fit, time.estimate_without(no_time))
        weight = np.where(no_time, 0.0, time.fit.weight)
        profile = with_published_spreads(
            profile, time.fit, time.estimate, time.without_group, time.groups, weight
        )
        of_memory = residual_spreads(
            memory.fit,
            memory.estimate,
            memory.without_group,
            memory.groups,
            np.where(no_memory, 0.0, memory.fit.weight),
            quantities=MEMORY_QUANTITIES,
        )
        profile = replace(
            profile,
            memory_neighbourhoods=of_memory,
            between_sources=time.between_sources(no_time, ("step_time",)),
            memory_between_sources=memory.between_sources(no_memory, MEMORY_QUANTITIES),
        )
        seen = (fitted_run(o) for o in self.observations if o.key not in keys)
        return with_ranges(profile, seen), posterior

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
        known = {self.time.groups[self.keys[i]] for i in chosen}
        rest = [i for i in mine if self.time.groups[self.keys[i]] not in known] or [
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
