"""Runs that were reported out of memory, beside the layouts that are recommended for the same machines."""

from __future__ import annotations

from collections.abc import Iterator

from models.problem import Problem
from models.profile import Profile
from service.observations import Observations, needed_gib
from service.schemas.layout import LayoutFields
from service.schemas.prediction import PredictedLayout
from service.schemas.recommendation import OutOfMemoryRun, RecommendationAnswer
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


def warnings(answer: RecommendationAnswer) -> list[str]:
    """What to know before a layout of the answer is launched."""
    return [line for name, prediction in _shown(answer) for line in _warning(name, prediction, answer.out_of_memory)]


def _warning(name: str, prediction: PredictedLayout, runs: list[OutOfMemoryRun]) -> Iterator[str]:
    needed, usable = prediction.needed_gib, prediction.usable_gib
    alike = [run for run in runs if run.needed_gib <= needed + _ROUNDING]
    if alike:
        run = max(alike, key=lambda one: (one.layout == prediction.layout, one.needed_gib))
        what = "this layout" if run.layout == prediction.layout else "a layout"
        yield (
            f"the {name} is predicted to need {needed:.1f} of {usable:.1f} GiB, but {what}, predicted to need "
            f"{run.needed_gib:.1f}, was reported out of memory (report {run.report_id}): a "
            f"constraints.memory_reserve_gib above {usable - run.needed_gib:.2f} leaves out what needs as much"
        )


def _shown(answer: RecommendationAnswer) -> Iterator[tuple[str, PredictedLayout]]:
    yield "fastest", answer.fastest.prediction
    if answer.simplest.prediction.layout != answer.fastest.prediction.layout:
        yield "simplest", answer.simplest.prediction


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
