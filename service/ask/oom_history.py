"""Runs that were reported out of memory, beside layouts that are predicted for the same
machines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from models.calibration.calibrate import Observation
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.resolve.observations import Observations, needed_gib
from service.runtime.lru_cache import LruCache
from service.schemas.layout import LayoutFields
from service.schemas.prediction import OutOfMemoryRun, PredictedLayout
from service.store import Store
from service.store.reports import ReportFilter
from service.store.tables import ReportRow

_MOST = 10_000  # different runs, of those that were measured last
_ROUNDING = 0.005

_runs = LruCache[tuple[str, int, str], tuple[LayoutFields, float] | None](2 * _MOST)
"""Layout and GiB needed, by profile, version and first report of a run, none of which change:
predictions beside many reports cost little. None where a run no longer means anything to the
models."""


def out_of_memory(store: Store, problem: Problem, profile: Profile) -> list[OutOfMemoryRun]:
    """On the same chip and stack, of the same model: the last report of every layout, the latest
    first, but for those that a run disproves which was measured later, is predicted to need as much
    and had steps."""
    found = list[OutOfMemoryRun]()
    failed = _last(store, problem, profile, ended=False)
    ended = _last(store, problem, profile, ended=True) if failed else []
    for run in failed:
        if not any(_disproves(one, run) for one in ended) and all(
            (run.needed_gib, run.layout) != (one.needed_gib, one.layout) for one in found
        ):
            found.append(run)
    return found


def _disproves(ended: OutOfMemoryRun, failed: OutOfMemoryRun) -> bool:
    later = (ended.measured_at, ended.report_id) > (failed.measured_at, failed.report_id)
    return later and ended.needed_gib >= failed.needed_gib - _ROUNDING


def least_that_failed(runs: list[OutOfMemoryRun]) -> float:
    """GiB that a run was predicted to need and ran out of memory."""
    return min((run.needed_gib for run in runs), default=math.inf)


def warnings(predictions: Mapping[str, PredictedLayout], runs: list[OutOfMemoryRun]) -> list[str]:
    """What to know before one of some layouts, by name, is launched."""
    worst = {name: _as_much(prediction, runs) for name, prediction in predictions.items()}
    return [
        _warning(name, predictions[name], run) for name, run in worst.items() if run is not None
    ]


def left_out(needed_gib: float, runs: list[OutOfMemoryRun]) -> list[str]:
    """What a recommendation that needs so much at most has left out."""
    if not runs or needed_gib >= least_that_failed(runs):
        return []
    worst = min(runs, key=lambda run: run.needed_gib)
    return [
        f"left out: what is predicted to need {worst.needed_gib:.1f} GiB or more, as a layout that"
        f" was reported out of memory (report {worst.report_id})"
    ]


def _as_much(prediction: PredictedLayout, runs: list[OutOfMemoryRun]) -> OutOfMemoryRun | None:
    """The run of the layout itself, or of those that needed no more the one that needed most."""
    alike = [run for run in runs if run.needed_gib <= prediction.needed_gib + _ROUNDING]
    return max(
        alike, key=lambda one: (one.layout == prediction.layout, one.needed_gib), default=None
    )


def _warning(name: str, prediction: PredictedLayout, run: OutOfMemoryRun) -> str:
    what = "this layout" if run.layout == prediction.layout else "a layout"
    usable = prediction.usable_gib
    return (
        f"{name} is predicted to need {prediction.needed_gib:.1f} of {usable:.1f} GiB, but {what},"
        f" predicted to need {run.needed_gib:.1f}, was reported out of memory (report"
        f" {run.report_id}): a recommendation leaves out what needs as much, if anything else fits"
    )


def _last(store: Store, problem: Problem, profile: Profile, *, ended: bool) -> list[OutOfMemoryRun]:
    """Of every run the last report that it fitted, or that it did not; the latest first."""
    alike = ReportFilter(
        outcome=None if ended else "out_of_memory",
        ended=ended,
        chip=problem.cluster.chip.id,
        stack=problem.stack.id,
        architecture=problem.architecture.name,
    )
    with store.reading() as rows:
        last = {
            (profile.id, profile.version, one.first_id): one
            for one in rows.reports.last_of_each_run(alike, _MOST)
        }
        runs = _runs.among(last)
        missing = {key: one.id for key, one in last.items() if key not in runs}
        usable, _ = Observations(rows).of(rows.reports.named([*missing.values()]))
    if missing:
        predicted = _predicted(usable, profile)
        new = {key: predicted.get(id_) for key, id_ in missing.items()}
        _runs.add(new)
        runs |= new
    return [
        OutOfMemoryRun(
            report_id=one.id, measured_at=one.measured_at, layout=run[0], needed_gib=run[1]
        )
        for key, one in last.items()
        if (run := runs[key]) is not None
    ]


def _predicted(
    usable: Sequence[tuple[ReportRow, Observation]], profile: Profile
) -> dict[str, tuple[LayoutFields, float]]:
    """By report: the layout, and GiB that it needs."""
    needed = needed_gib([observation for _, observation in usable], profile).tolist()
    return {
        row.id: (LayoutFields.model_validate(row.document["prediction"]["layout"]), gib)
        for (row, _), gib in zip(usable, needed, strict=True)
    }
