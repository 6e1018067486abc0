"""Runs of the same question that were reported out of memory, beside the layouts that are recommended for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from models.problem import Problem
from service.schemas.layout import LayoutFields
from service.schemas.prediction import PredictedLayout
from service.schemas.recommendation import OutOfMemoryRun, RecommendationAnswer
from service.store import Rows
from service.store.reports import ReportFilter

_LOOKED_AT = 100  # of the newest reports on the same chip, stack and model
_ASKED = ("model", "cluster", "workload", "stack")


def out_of_memory(rows: Rows, problem: Problem, request: Mapping[str, Any]) -> list[OutOfMemoryRun]:
    """The newest report of every layout, newest first; `request` as it is answered."""
    asked, found = {name: request[name] for name in _ASKED}, list[OutOfMemoryRun]()
    asked["cluster"] = {**asked["cluster"], "num_chips": problem.cluster.num_chips}  # fewer, where not all can be used
    alike = ReportFilter(
        outcome="out_of_memory",
        chip=problem.cluster.chip.id,
        stack=problem.stack.id,
        architecture=problem.architecture.name,
    )
    for row in rows.reports.newest(alike, _LOOKED_AT):
        if {name: row.document["request"][name] for name in _ASKED} == asked:
            layout = LayoutFields.model_validate(row.document["prediction"]["layout"])
            if layout not in (run.layout for run in found):
                found.append(OutOfMemoryRun(report_id=row.id, measured_at=row.measured_at, layout=layout))
    return found


def warnings(answer: RecommendationAnswer) -> list[str]:
    """What to know before a layout of the answer is launched."""
    reports = {run.layout.model_dump_json(): run.report_id for run in answer.out_of_memory}
    return [
        f"a run of the {name} was reported out of memory (report {id_}), though it is predicted to need "
        f"{prediction.needed_gib:.1f} of {prediction.usable_gib:.1f} GiB: a constraints.memory_reserve_gib "
        f"above {prediction.usable_gib - prediction.needed_gib:.2f} leaves it out"
        for name, prediction in _shown(answer)
        if (id_ := reports.get(prediction.layout.model_dump_json()))
    ]


def _shown(answer: RecommendationAnswer) -> Iterable[tuple[str, PredictedLayout]]:
    yield "fastest", answer.fastest.prediction
    if answer.simplest.prediction.layout != answer.fastest.prediction.layout:
        yield "simplest", answer.simplest.prediction
