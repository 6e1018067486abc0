"""Stored reports as typed runs. Whatever is computed from reports reads their JSON documents
here. The *run hash* of a report is the digest of its question with the layout that ran."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from models.errors import DomainError, Invalid
from models.layouts.rules import lift_search_limits, require_legal
from models.spec.hardware import GIB
from models.spec.layout import Layout
from models.spec.problem import Problem
from service.resolve.resolution import Resolver
from service.schemas.layout import LayoutFields
from service.schemas.profile import Unusable
from service.schemas.question import Question
from service.schemas.stored import read_stored
from service.store import Rows
from service.store.tables import ReportRow

_MAX_REASON_LENGTH = 500  # each is stored with the calibration


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run as one report describes it, and its measurements.

    `chip`, `fabric`, `stack` and `architecture` are the names under which the report was stored.
    Runs of equal questions share one `problem` object, so that they can be predicted together.
    """

    report_id: str
    measured_at: datetime
    tenant: str | None
    source: str | None
    chip: str
    fabric: str
    stack: str
    architecture: str
    problem: Problem
    layout: Layout
    step_time_s: float | None
    out_of_memory: bool
    reserved_bytes: float | None
    """Memory that the framework reserved on the fullest device. It is None for a run that ran out
    of memory: what was reserved then says only how much there was before it needed more."""
    exposed_communication_s: float | None
    expert_imbalance: float | None
    predicted_layout_json: dict[str, Any]
    """The layout as the report's own prediction has it."""

    def predicted_layout(self) -> LayoutFields:
        """Returns the layout of the report's prediction. It is validated on request, as most
        callers do not need it."""
        return read_stored(LayoutFields, self.predicted_layout_json)


class StoredRuns:
    """Reads reports as runs. Equal questions and layouts are resolved once. A question is resolved
    into a *problem*: the values that the models compute with."""

    def __init__(self, rows: Rows) -> None:
        self._resolver = Resolver(rows)
        self._problems_by_question: dict[str, Problem] = {}
        self._by_run_hash: dict[str, tuple[Problem, Layout]] = {}

    def read(self, reports: Iterable[ReportRow]) -> tuple[list[StoredRun], list[Unusable]]:
        """Returns the runs of the reports, and the reasons why other reports cannot be used: an
        entry of the catalogue is gone, a layout is no longer legal, or a launch was not
        understood."""
        runs: list[StoredRun] = []
        unusable: list[Unusable] = []
        for report in reports:
            try:
                runs.append(self._run(report))
            except (DomainError, ValidationError) as error:
                reason = _unusable_reason(error)[:_MAX_REASON_LENGTH]
                unusable.append(Unusable(report=report.id, reason=reason))
        return runs, unusable

    def _run(self, report: ReportRow) -> StoredRun:
        """Returns the run of one report. Raises DomainError or ValidationError if it cannot be
        used."""
        _require_understood(report)
        problem, layout = self._problem_and_layout(report)
        document = report.document
        parts = document.get("parts") or {}
        out_of_memory = report.outcome == "out_of_memory"
        return StoredRun(
            report_id=report.id,
            measured_at=report.measured_at,
            tenant=report.tenant,
            source=report.source,
            chip=report.chip,
            fabric=report.fabric,
            stack=report.stack,
            architecture=report.architecture,
            problem=problem,
            layout=layout,
            step_time_s=report.step_time_s,
            out_of_memory=out_of_memory,
            # Memory that ran out is not what the run needed.
            reserved_bytes=None if out_of_memory else _reserved_bytes(document),
            exposed_communication_s=parts.get("exposed_communication_s"),
            expert_imbalance=parts.get("expert_imbalance"),
            predicted_layout_json=document["prediction"]["layout"],
        )

    def _problem_and_layout(self, report: ReportRow) -> tuple[Problem, Layout]:
        """Returns the problem and the layout of a report's run. Equal runs share one problem
        object. Raises DomainError if the layout is no longer legal."""
        if report.run_hash not in self._by_run_hash:
            request = report.document["request"]
            problem = self._problem({name: request[name] for name in Question.model_fields})
            layout = read_stored(LayoutFields, request["layout"]).build()
            # The limits that keep a search small do not bind a layout that has run.
            problem = lift_search_limits(problem, layout)
            require_legal(problem, layout)
            self._by_run_hash[report.run_hash] = problem, layout
        return self._by_run_hash[report.run_hash]

    def _problem(self, question: dict[str, Any]) -> Problem:
        """Returns the problem of a stored question. Equal questions get one object."""
        key = json.dumps(question, sort_keys=True)
        if key not in self._problems_by_question:
            resolved = self._resolver.resolve(read_stored(Question, question))
            self._problems_by_question[key] = resolved.problem
        return self._problems_by_question[key]


def _require_understood(report: ReportRow) -> None:
    """Raises Invalid if the run's launch had settings that were not understood: the job that ran
    may differ from the predicted one."""
    reservations = report.document.get("reservations")
    if reservations:
        setting = reservations[0]["setting"]
        raise Invalid("reservations", setting, f"{setting} of its launch was not understood")


def _unusable_reason(error: DomainError | ValidationError) -> str:
    """Returns the reason why a report cannot be used, with the field to blame if there is one."""
    if isinstance(error, Invalid):
        return f"{error.field}: {error.rule}"
    return str(error)


def _reserved_bytes(document: dict[str, Any]) -> float | None:
    """Returns the memory that the framework reserved on the fullest device; None if it was not
    measured there.

    If only the memory of tensors was measured, it is scaled by the ratio of reserved to allocated
    memory in the report's own prediction.
    """
    memory = document.get("memory") or {}
    predicted = document["prediction"]
    # A report has a residual of memory only if the fullest device was measured.
    if memory.get("reserved_residual") is not None:
        return float(memory["reserved_gib"] * GIB)
    if memory.get("allocated_residual") is not None:
        return float(
            memory["allocated_gib"] * GIB * predicted["reserved_gib"] / predicted["allocated_gib"]
        )
    return None
