"""Stored reports as runs of the models of today."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from pydantic import ValidationError

from models.calibration.calibrate import Observation
from models.columns import Array
from models.cost.compute import deviation
from models.cost.step import Predictions, predict
from models.errors import DomainError, Invalid
from models.layouts.rules import require_legal
from models.spec.hardware import GIB
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.resolve.resolution import Resolver
from service.schemas.layout import LayoutFields
from service.schemas.profile import Unusable
from service.schemas.question import Question
from service.store import Rows
from service.store.tables import ReportRow


class Observations:
    """Questions that come again are resolved once."""

    def __init__(self, rows: Rows) -> None:
        self._resolver = Resolver(rows)
        self._problems: dict[str, Problem] = {}
        self._known: dict[str, tuple[Problem, Layout]] = {}

    def of(
        self, reports: Iterable[ReportRow]
    ) -> tuple[list[tuple[ReportRow, Observation]], list[Unusable]]:
        """Those that still mean something to the models, and those that do not."""
        usable, unusable = list[tuple[ReportRow, Observation]](), list[Unusable]()
        for report in reports:
            try:
                usable.append((report, self._observation(report)))
            except (DomainError, ValidationError) as error:
                reason = (
                    f"{error.field}: {error.rule}" if isinstance(error, Invalid) else str(error)
                )
                unusable.append(Unusable(report=report.id, reason=reason[:500]))
        return usable, unusable

    def _observation(self, report: ReportRow) -> Observation:
        problem, layout = self._ran(report)
        parts = report.document.get("parts") or {}
        failed = report.outcome == "out_of_memory"
        return Observation(
            key=report.id,
            problem=problem,
            layout=layout,
            step_time_s=report.step_time_s,
            memory_bytes=None
            if failed
            else _reserved_bytes(report.document),  # it had so much before it needed more
            out_of_memory=failed,
            exposed_s=parts.get("exposed_communication_s"),
            coefficients=_imbalance(problem, layout, parts),
            source=report.tenant or report.source or "",
            group=f"{report.architecture}/{report.chip}/{report.stack}",
        )

    def _ran(self, report: ReportRow) -> tuple[Problem, Layout]:
        if (key := report.run_hash) not in self._known:
            request = report.document["request"]
            problem = self._problem({name: request[name] for name in Question.model_fields})
            layout = LayoutFields.model_validate(request["layout"]).build()
            require_legal(problem, layout)
            self._known[key] = problem, layout
        return self._known[key]

    def _problem(self, question: dict[str, Any]) -> Problem:
        """One object for equal questions, so that their runs are predicted together."""
        key = json.dumps(question, sort_keys=True)
        if key not in self._problems:
            self._problems[key] = self._resolver.problem(Question.model_validate(question)).problem
        return self._problems[key]


def _reserved_bytes(document: dict[str, Any]) -> float | None:
    """What the framework held on the fullest device. Where only what tensors took was measured, it
    is that and what the report's own prediction has the allocator hold beyond it."""
    memory, predicted = document.get("memory") or {}, document["prediction"]
    if memory.get("reserved_residual") is not None:
        return float(memory["reserved_gib"] * GIB)
    if memory.get("allocated_residual") is not None:
        return float(
            memory["allocated_gib"] * GIB * predicted["reserved_gib"] / predicted["allocated_gib"]
        )
    return None


def _imbalance(problem: Problem, layout: Layout, parts: dict[str, Any]) -> dict[str, float]:
    """Where experts were out of balance at all."""
    found = deviation(problem, layout.ep, parts.get("expert_imbalance") or 0.0)
    return {"imbalance": found} if found else {}


def log_residuals(observations: Sequence[Observation], profile: Profile) -> Array:
    """Natural log(measured / predicted) of step times, under this profile."""
    measured = np.log([one.step_time_s or np.nan for one in observations])
    return np.asarray(
        measured - np.log(_predicted(observations, profile, lambda found: found.step_time_s))
    )


def needed_gib(observations: Sequence[Observation], profile: Profile) -> Array:
    """What a device must have for their runs, under this profile."""
    return _predicted(observations, profile, lambda found: found.needed_bytes) / GIB


def _predicted(
    observations: Sequence[Observation], profile: Profile, figure: Callable[[Predictions], Array]
) -> Array:
    together: dict[int, list[int]] = {}
    for i, observation in enumerate(observations):
        together.setdefault(id(observation.problem), []).append(i)
    found = np.empty(len(observations))
    for members in together.values():
        problem = observations[members[0]].problem
        layouts = Layouts.of([observations[i].layout for i in members])
        found[members] = figure(predict(problem, layouts, profile.coefficients(problem.scopes)))
    return found
