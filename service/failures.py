"""Runs that were reported out of memory, beside layouts that are predicted for the same machines."""

from __future__ import annotations

import math
from collections.abc import Mapping

from models.problem import Problem
from models.profile import Profile
from service.observations import Observations, needed_gib
from service.schemas.layout import LayoutFields
from service.schemas.prediction import OutOfMemoryRun, PredictedLayout
from service.store import Rows
from service.store.reports import ReportFilter
from service.tables import ReportRow

_LOOKED_AT = 100  # of the newest reports
_ROUNDING = 0.005


def out_of_memory(rows: Rows, problem: Problem, profile: Profile) -> list[OutOfMemoryRun]:
    """On the same chip and stack, of the same model: the newest report of every layout, newest first, but for those
    that a later run disproves, which is predicted to need as much and ended well."""
    found, observations = list[OutOfMemoryRun](), Observations(rows)
    failed = _newest(rows, observations, problem, profile, "out_of_memory")
    ended = _newest(rows, observations, problem, profile, "ok") if failed else []
    for row, needed in failed:
        layout = LayoutFields.model_validate(row.document["prediction"]["layout"])
        disproved = any(other >= needed - _ROUNDING and later.id > row.id for later, other in ended)
        if not disproved and all((layout, needed) != (run.layout, run.needed_gib) for run in found):
            run = OutOfMemoryRun(report_id=row.id, measured_at=row.measured_at, layout=layout, needed_gib=needed)
            found.append(run)
    return found


def least_that_failed(runs: list[OutOfMemoryRun]) -> float:
    """GiB that a run was predicted to need and ran out of memory."""
    return min((run.needed_gib for run in runs), default=math.inf)


def warnings(predictions: Mapping[str, PredictedLayout], runs: list[OutOfMemoryRun]) -> list[str]:
    """What to know before one of some layouts, by name, is launched."""
    worst = {name: _as_much(prediction, runs) for name, prediction in predictions.items()}
    return [_warning(name, predictions[name], run) for name, run in worst.items() if run is not None]


def _as_much(prediction: PredictedLayout, runs: list[OutOfMemoryRun]) -> OutOfMemoryRun | None:
    """The run of the layout itself, or of those that needed no more the one that needed most."""
    alike = [run for run in runs if run.needed_gib <= prediction.needed_gib + _ROUNDING]
    return max(alike, key=lambda one: (one.layout == prediction.layout, one.needed_gib), default=None)


def _warning(name: str, prediction: PredictedLayout, run: OutOfMemoryRun) -> str:
    what = "this layout" if run.layout == prediction.layout else "a layout"
    usable, reserve = prediction.usable_gib, prediction.usable_gib - run.needed_gib
    return (
        f"{name} is predicted to need {prediction.needed_gib:.1f} of {usable:.1f} GiB, but {what}, predicted to need "
        f"{run.needed_gib:.1f}, was reported out of memory (report {run.report_id}): a recommendation with "
        f"constraints.memory_reserve_gib above {reserve:.2f} leaves out what needs as much"
    )


def _newest(
    rows: Rows, observations: Observations, problem: Problem, profile: Profile, outcome: str
) -> list[tuple[ReportRow, float]]:
    """Reports, with the GiB that the profile has their runs need."""
    alike = ReportFilter(
        outcome=outcome,
        chip=problem.cluster.chip.id,
        stack=problem.stack.id,
        architecture=problem.architecture.name,
    )
    ran, _ = observations.of(rows.reports.newest(alike, _LOOKED_AT))
    needed = needed_gib([run for _, run in ran], profile).tolist()
    return [(row, gib) for (row, _), gib in zip(ran, needed, strict=True)]
