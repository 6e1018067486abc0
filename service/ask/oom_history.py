"""Runs that were reported out of memory, as a caution for layouts that are predicted for the same
machines.

The *need* of a run or a layout is the memory that it is predicted to need, in GiB on one device. A
layout with at least the need of a run that failed is warned of, or left out of a search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from threading import Lock

from cachetools import LRUCache

from models.spec.problem import Problem
from models.spec.profile import Profile
from service.resolve.calibration_targets import needed_gib
from service.resolve.stored_runs import StoredRun, StoredRuns
from service.schemas.layout import LayoutFields
from service.schemas.prediction import OutOfMemoryRun, PredictedLayout
from service.store import Rows, Store
from service.store.reports import ReportFilter

_MAX_RUNS = 10_000  # different runs, of those that were measured last
_TOLERANCE_GIB = 0.005  # needs that differ by less count as equal

_needs = LRUCache[tuple[str, int, str], tuple[LayoutFields, float] | None](2 * _MAX_RUNS)
"""The layout of a run and the GiB that it needs, by profile, its version and the first report of
the run. None of these change, and a prediction beside many reports costs little. None where the
models can no longer predict the run."""
_needs_lock = Lock()


@dataclass(frozen=True, slots=True, order=True)
class RunKind:
    """The model, chip and stack of a run, by name."""

    chip: str
    stack: str
    architecture: str

    @classmethod
    def of(cls, problem: Problem) -> RunKind:
        return cls(problem.cluster.chip.id, problem.stack.id, problem.architecture.name)


def out_of_memory_runs(store: Store, problem: Problem, profile: Profile) -> list[OutOfMemoryRun]:
    """Returns the runs of this model, chip and stack whose last report says that they ran out of
    memory, latest first, and only one for each layout and need.

    A run is left out if another disproves it: a later run that trained some steps and is predicted
    to need at least as much memory.
    """
    with store.reading() as rows:
        return out_of_memory_runs_of_kind(rows, RunKind.of(problem), profile)


def out_of_memory_runs_of_kind(
    rows: Rows, run_kind: RunKind, profile: Profile
) -> list[OutOfMemoryRun]:
    """Returns runs that ran out of memory, selected as `out_of_memory_runs` does, for the names of
    a model, chip and stack."""
    if not rows.reports.any_out_of_memory(**asdict(run_kind)):
        return []
    failed = _last_reports(rows, run_kind, profile, did_fit=False)
    if not failed:
        return []
    fitted = _last_reports(rows, run_kind, profile, did_fit=True)
    standing: list[OutOfMemoryRun] = []  # the failed runs that no later run disproves
    for run in failed:
        is_disproved = any(_disproves(other, run) for other in fitted)
        is_repeated = any(
            (run.needed_gib, run.layout) == (other.needed_gib, other.layout) for other in standing
        )
        if not is_disproved and not is_repeated:
            standing.append(run)
    return standing


def _disproves(fitted: OutOfMemoryRun, failed: OutOfMemoryRun) -> bool:
    """Returns whether a run that fitted is later than a failed one, and needs at least as much
    memory: so much then fits after all."""
    later = (fitted.measured_at, fitted.report_id) > (failed.measured_at, failed.report_id)
    return later and fitted.needed_gib >= failed.needed_gib - _TOLERANCE_GIB


def least_failed_gib(runs: list[OutOfMemoryRun]) -> float:
    """Returns the smallest predicted need, in GiB, of any of these runs, which all ran out of
    memory; infinity without runs."""
    return min((run.needed_gib for run in runs), default=math.inf)


def oom_warnings(
    predictions: Mapping[str, PredictedLayout], runs: list[OutOfMemoryRun]
) -> list[str]:
    """Returns a warning for each layout that needs at least as much memory as a run that failed.
    `predictions` are by the name of the layout in the warning."""
    worst = {name: _most_telling_run(prediction, runs) for name, prediction in predictions.items()}
    return [
        _warning(name, predictions[name], run) for name, run in worst.items() if run is not None
    ]


def left_out_reasons(most_gib: float, runs: list[OutOfMemoryRun]) -> list[str]:
    """Returns a sentence if an answer left out layouts because runs that need as much memory
    failed. `most_gib` is the largest need among the layouts in the answer: where that is as large
    as a failed run's, nothing was left out."""
    if not runs or most_gib >= least_failed_gib(runs):
        return []
    least = min(runs, key=lambda run: run.needed_gib)
    return [
        f"left out: what is predicted to need {least.needed_gib:.1f} GiB or more, as a layout that"
        f" was reported out of memory (report {least.report_id})"
    ]


def _most_telling_run(
    prediction: PredictedLayout, runs: list[OutOfMemoryRun]
) -> OutOfMemoryRun | None:
    """Returns the failed run to warn of: a run of this very layout, or else the one that needs
    most. Only runs that need no more memory than the layout count, since a larger need says nothing
    of a smaller one. None where there is none."""
    comparable = [run for run in runs if run.needed_gib <= prediction.needed_gib + _TOLERANCE_GIB]
    return max(
        comparable, key=lambda run: (run.layout == prediction.layout, run.needed_gib), default=None
    )


def _warning(name: str, prediction: PredictedLayout, run: OutOfMemoryRun) -> str:
    """Returns the warning that a run with an equal or smaller need ran out of memory. `name` names
    the layout."""
    failed_layout = "this layout" if run.layout == prediction.layout else "a layout"
    usable = prediction.usable_gib
    return (
        f"{name} is predicted to need {prediction.needed_gib:.1f} of {usable:.1f} GiB, but"
        f" {failed_layout}, predicted to need {run.needed_gib:.1f}, was reported out of memory"
        f" (report {run.report_id}): a recommendation leaves out what needs as much, if anything"
        " else fits"
    )


def _last_reports(
    rows: Rows, run_kind: RunKind, profile: Profile, *, did_fit: bool
) -> list[OutOfMemoryRun]:
    """Returns the last report of each of the last _MAX_RUNS runs, latest first: of runs that
    trained some steps (`did_fit`), or else of runs that ran out of memory. Runs that the models can
    no longer predict are left out. Predicted needs are kept in `_needs`."""
    selection = ReportFilter(
        outcome=() if did_fit else ("out_of_memory",),  # (): whatever it was
        did_fit=did_fit,
        chip=(run_kind.chip,),
        stack=(run_kind.stack,),
        architecture=(run_kind.architecture,),
    )
    # A need depends on the profile and the run, which the id of the run's first report tells.
    last = {
        (profile.id, profile.version, report.first_id): report
        for report in rows.reports.last_of_each_run(selection, _MAX_RUNS)
    }
    if not last:
        return []
    with _needs_lock:
        needs = {key: _needs[key] for key in last if key in _needs}
    # Only runs without a kept need are read in full, which is slow, and predicted.
    not_predicted = {key: report.id for key, report in last.items() if key not in needs}
    if not_predicted:
        # The second result is why other runs cannot be read: they get no need, and are left out.
        runs, _ = StoredRuns(rows).read(rows.reports.by_ids([*not_predicted.values()]))
        predicted = _predicted_needs(runs, profile)
        new = {key: predicted.get(report_id) for key, report_id in not_predicted.items()}
        with _needs_lock:
            _needs.update(new)
        needs |= new
    latest: list[OutOfMemoryRun] = []
    for key, report in last.items():
        if (need := needs[key]) is not None:
            layout, gib = need
            run = OutOfMemoryRun.from_attributes(
                report, report_id=report.id, layout=layout, needed_gib=gib
            )
            latest.append(run)
    return latest


def _predicted_needs(
    runs: Sequence[StoredRun], profile: Profile
) -> dict[str, tuple[LayoutFields, float]]:
    """Returns (layout, needed GiB) of each run by the id of its report. Layouts have the fields of
    this release, whichever release stored them."""
    needs = dict[str, tuple[LayoutFields, float]]()
    for run, gib in zip(runs, needed_gib(runs, profile).tolist(), strict=True):
        layout = run.predicted_layout().build()
        shown = LayoutFields.shown(layout, on_torus=run.problem.cluster.is_torus)
        needs[run.report_id] = shown, gib
    return needs
