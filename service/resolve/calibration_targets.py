"""Turns stored runs into observations, which a calibration fits the profile to, and compares runs
with what a profile predicts of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from models.calibration.observation import Observation
from models.columns import Array
from models.cost.compute import implied_imbalance
from models.cost.predictions import Predictions, predict
from models.spec.hardware import GIB
from models.spec.layout import Layouts
from models.spec.profile import Profile
from service.resolve.stored_runs import StoredRun

Run = StoredRun | Observation
"""A layout that ran, with what was measured of it."""


def observation(run: StoredRun) -> Observation:
    """Returns the run as an observation for the fit. All runs of a tenant count as one source, and
    runs of one model on one chip and stack are held out together in cross-validation (`group`)."""
    return Observation(
        key=run.report_id,
        problem=run.problem,
        layout=run.layout,
        step_time_s=run.step_time_s,
        memory_bytes=run.reserved_bytes,
        out_of_memory=run.out_of_memory,
        exposed_s=run.exposed_communication_s,
        coefficients=_measured_coefficients(run),
        source=run.tenant or run.source or "",  # without API keys there are no tenants
        group=f"{run.architecture}/{run.chip}/{run.stack}",
    )


def _measured_coefficients(run: StoredRun) -> dict[str, float]:
    """Returns the coefficient `imbalance` if the report has a measured imbalance of experts; else
    nothing."""
    # 0 stands for a run that measured none: it then implies no coefficient.
    imbalance = implied_imbalance(run.problem, run.layout.ep, run.expert_imbalance or 0.0)
    return {"imbalance": imbalance} if imbalance else {}


def log_residuals(runs: Sequence[Run], profile: Profile) -> Array:
    """Returns the natural logarithm of measured over predicted step time under this profile; shape
    (runs,), NaN where none was measured."""
    measured = np.log([run.step_time_s or np.nan for run in runs])
    predicted = np.log(
        _predicted_figures(runs, profile, lambda predictions: predictions.step_time_s)
    )
    return np.asarray(measured - predicted)


def log_memory_residuals(runs: Sequence[StoredRun], profile: Profile) -> Array:
    """Returns the natural logarithm of measured over predicted reserved memory under this profile;
    shape (runs,), NaN where none was measured."""
    measured = np.log([run.reserved_bytes or np.nan for run in runs])
    predicted = np.log(
        _predicted_figures(runs, profile, lambda predictions: predictions.reserved_bytes)
    )
    return np.asarray(measured - predicted)


def needed_gib(runs: Sequence[Run], profile: Profile) -> Array:
    """Returns the memory, in GiB, that a device must have for each run under this profile; shape
    (runs,)."""
    return _predicted_figures(runs, profile, lambda predictions: predictions.needed_bytes) / GIB


def _predicted_figures(
    runs: Sequence[Run], profile: Profile, figure: Callable[[Predictions], Array]
) -> Array:
    """Returns one figure of each run's prediction, picked by `figure`; shape (runs,). Runs whose
    problem is one object, as of equal questions, are predicted in one batch, which is far cheaper
    than one by one."""
    indices_by_problem: dict[int, list[int]] = {}
    for i, run in enumerate(runs):
        indices_by_problem.setdefault(id(run.problem), []).append(i)
    figures = np.empty(len(runs))
    for indices in indices_by_problem.values():
        problem = runs[indices[0]].problem
        layouts = Layouts.of([runs[i].layout for i in indices])
        coefficients = profile.coefficients(problem.scopes)
        figures[indices] = figure(predict(problem, layouts, coefficients))
    return figures
