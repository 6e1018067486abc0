"""Compares two layouts, or the best layouts under two sets of constraints: why not this one?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models.advice.comparison import Comparison, compare
from models.spec.constraints import Constraints
from models.spec.layout import Layout
from models.spec.profile import Profile
from service.ask.oom_history import (
    least_failed_gib,
    left_out_reasons,
    oom_warnings,
    out_of_memory_runs,
)
from service.ask.predictions import require_all_legal
from service.resolve.answer_basis import grounds
from service.resolve.assumptions import empty_chunk_assumptions, layout_assumptions
from service.resolve.profiles import requested_profile
from service.resolve.resolution import ResolvedQuestion, Resolver
from service.runtime.deadline import Deadline, no_client
from service.schemas.comparison import ComparisonAnswer, ComparisonRequest, Side
from service.schemas.layout import LayoutFields
from service.schemas.prediction import OutOfMemoryRun
from service.store import Store


@dataclass(frozen=True, slots=True)
class _ResolvedRequest:
    """A request in the values that the models compute with.

    The sides that are layouts, by the name of the side: "first" or "second".
    """

    question: ResolvedQuestion
    profile: Profile
    given: dict[str, LayoutFields]
    completed: dict[str, LayoutFields]
    """The given layouts with what they leave open as the stack has it."""


class Comparisons:
    def __init__(self, store: Store) -> None:
        self._store = store

    def compare(
        self, request: ComparisonRequest, require_client: Callable[[], None] = no_client
    ) -> dict[str, Any]:
        resolved = self._resolve(request)
        deadline = Deadline(request.time_limit_s, require_client)
        failed = out_of_memory_runs(self._store, resolved.question.problem, resolved.profile)
        comparison = _compare(request, resolved, failed, deadline)
        return _explain(request, resolved, failed, comparison).model_dump(mode="json")

    def _resolve(self, request: ComparisonRequest) -> _ResolvedRequest:
        with self._store.reading() as rows:
            question = Resolver(rows).resolve(request)
            profile = requested_profile(rows, request.profile)
        sides = _sides(request)
        given = {name: side.layout for name, side in sides.items() if side.layout}
        completed = {
            name: layout.with_stack_defaults(question.problem) for name, layout in given.items()
        }
        require_all_legal(
            question.problem,
            {f"{name}.layout": layout.build() for name, layout in completed.items()},
            {f"{name}.layout": layout for name, layout in given.items()},
        )
        return _ResolvedRequest(question, profile, given, completed)


def _sides(request: ComparisonRequest) -> dict[str, Side]:
    return {"first": request.first, "second": request.second}


def _compare(
    request: ComparisonRequest,
    resolved: _ResolvedRequest,
    failed: list[OutOfMemoryRun],
    deadline: Deadline,
) -> Comparison:
    built = {
        name: _layout_or_constraints(side, resolved.completed.get(name))
        for name, side in _sides(request).items()
    }
    return compare(
        resolved.question.problem,
        resolved.profile,
        built["first"],
        built["second"],
        deadline,
        least_failed_gib(failed),
    )


def _layout_or_constraints(side: Side, completed: LayoutFields | None) -> Layout | Constraints:
    if completed is not None:
        return completed.build()
    return side.constraints.build() if side.constraints else Constraints()


def _explain(
    request: ComparisonRequest,
    resolved: _ResolvedRequest,
    failed: list[OutOfMemoryRun],
    comparison: Comparison,
) -> ComparisonAnswer:
    """The answer document: both sides, with reasons and assumptions."""
    problem = resolved.question.problem
    answer = ComparisonAnswer.of(
        comparison,
        problem.cluster,
        grounds(request, resolved.question, resolved.profile),
    )
    predictions = {"first": answer.first.prediction, "second": answer.second.prediction}
    # Only a search leaves out what needs too much memory: a layout that was given is compared.
    most_searched_gib = max(
        (found.needed_gib for name, found in predictions.items() if name not in resolved.completed),
        default=math.inf,
    )
    answer.reasons += left_out_reasons(most_searched_gib, failed)
    answer.reasons += oom_warnings(predictions, failed)
    for name, prediction in predictions.items():
        answer.assumptions += empty_chunk_assumptions(f"the {name}", prediction)
    for name, completed in resolved.completed.items():
        given = resolved.given[name]
        answer.assumptions += layout_assumptions(f"{name}.layout", given, completed, problem)
    for name, side in _sides(request).items():
        shown = Side(layout=resolved.completed[name]) if name in resolved.completed else side
        answer.request[name] = shown.model_dump(mode="json", exclude_none=True)
    return answer
