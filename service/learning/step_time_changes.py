"""Changes of predicted step times from one version of a profile to the next, by chip and stack. A
*profile* has the coefficients of the cost model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import numpy as np

from models.spec.profile import Profile
from service.learning.published_sample import published_sample
from service.resolve.calibration_targets import log_residuals
from service.resolve.stored_runs import StoredRun
from service.schemas.profile import StepTimeChange
from service.store import Store


def step_time_changes(
    store: Store, reported: Sequence[StoredRun], before: Profile, after: Profile
) -> list[StepTimeChange]:
    """Returns the median change of the predicted step time for each chip and stack, the largest
    first, over the `reported` runs and a few published ones."""
    changes = defaultdict[tuple[str, str], list[float]](list)
    sample = published_sample(store, after.software_year)
    if sample.runs:
        log_before, log_after = sample.log_times([before, after])
        for problem, change in zip(sample.problems, log_after - log_before, strict=True):
            changes[problem.cluster.chip.id, problem.stack.calibrated_as].append(float(change))
    timed = [run for run in reported if run.step_time_s is not None]
    if timed:
        # The measured time cancels out, and log(predicted after / predicted before) is left.
        moved = log_residuals(timed, before) - log_residuals(timed, after)
        for run, change in zip(timed, moved, strict=True):
            changes[run.chip, run.stack].append(float(change))
    result = [
        StepTimeChange(
            chip=chip, stack=stack, runs=len(logs), step_time_change=float(np.expm1(median(logs)))
        )
        for (chip, stack), logs in changes.items()
    ]
    return sorted(
        result, key=lambda change: (-abs(change.step_time_change), change.chip, change.stack)
    )
