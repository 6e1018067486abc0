"""Compares two layouts, or the best layouts under two sets of constraints: why not this one?

A *side* is one of the two: a layout, constraints under which the best layout is searched, or a
launch (a script, command line or file that starts a training) from which a layout is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from models.advice.comparison import Comparison, compare
from models.spec.constraints import Constraints
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from models.spec.stack import Stack
from service.ask.oom_history import (
    least_failed_gib,
    left_out_reasons,
    oom_warnings,
    out_of_memory_runs,
)
from service.ask.predictions import require_all_legal
from service.resolve.answer_basis import grounds
from service.resolve.assumptions import empty_chunk_assumptions, layout_assumptions
from service.resolve.launched_question import LaunchedQuestion, launched_question
from service.resolve.profiles import requested_profile
from service.resolve.resolution import ResolvedPart, ResolvedQuestion, Resolver
from service.runtime.deadline import Deadline, no_client
from service.schemas.comparison import ComparisonAnswer, ComparisonRequest, Side
from service.schemas.launch_request import LaunchedComparisonRequest, QuestionParts
from service.schemas.layout import LayoutFields
from service.schemas.prediction import OutOfMemoryRun
from service.schemas.question import PinnedQuestion
from service.schemas.reservation import ReservationAnswer
from service.schemas.stack import StackFields
from service.store import UseCase

_Request = ComparisonRequest | LaunchedComparisonRequest


@dataclass(frozen=True)
class _ResolvedRequest:
    """A request with its names resolved. Layouts are by the side, "first" or "second"; a side under
    constraints has none."""

    pinned: PinnedQuestion
    """The question as it was asked, which may name a version of the profile."""
    question: ResolvedQuestion
    """The question with the stack of the first side."""
    second_stack: ResolvedPart[Stack]
    profile: Profile
    given_layouts: dict[str, LayoutFields]
    launched: dict[str, LaunchedQuestion]
    """The sides that are launch configurations."""

    @cached_property
    def completed_layouts(self) -> dict[str, LayoutFields]:
        """Returns the given layouts, with the defaults of the stack for what they leave open."""
        return {
            name: layout.with_stack_defaults(self.problem_of(name))
            for name, layout in self.given_layouts.items()
        }

    def problem_of(self, name: str) -> Problem:
        """Returns the problem of a side, "first" or "second": the sides may differ in their
        stack."""
        problem = self.question.problem
        return problem if name == "first" else replace(problem, stack=self.second_stack.value)


class Comparisons(UseCase):
    def compare(
        self, request: _Request, require_client: Callable[[], None] = no_client
    ) -> dict[str, Any]:
        """Returns the answer to a comparison, which is not stored. `require_client` raises once the
        client has hung up."""
        resolved = self._resolve(request)
        deadline = Deadline(request.time_limit_s, require_client)
        failed = out_of_memory_runs(self._store, resolved.question.problem, resolved.profile)
        comparison = _compare(request, resolved, failed, deadline)
        return _comparison_answer(request, resolved, failed, comparison).model_dump(mode="json")

    def _resolve(self, request: _Request) -> _ResolvedRequest:
        """Resolves the names of a request and completes its layouts. Raises Refused for an illegal
        layout."""
        with self._store.reading() as rows:
            resolver = Resolver(rows)
            profile = requested_profile(rows, request.profile)
            launched = _launched_sides(resolver, request)
            pinned = _shared_question(request, launched)
            stacks = _stacks(request, launched)
            # The sides share model, cluster and workload; only their stacks may differ.
            question = resolver.resolve(pinned.model_copy(update={"stack": stacks["first"]}))
            second_stack = resolver.stack(stacks["second"])
        given_layouts = {name: side.layout for name, side in _sides(request).items() if side.layout}
        given_layouts |= {name: side.layout for name, side in launched.items()}
        resolved = _ResolvedRequest(
            pinned, question, second_stack, profile, given_layouts, launched
        )
        for name, layout in resolved.completed_layouts.items():
            place = _layout_field(resolved, name)
            side = launched.get(name)
            require_all_legal(
                resolved.problem_of(name),
                {place: layout.build()},
                {place: given_layouts[name]},
                pinned.workload,
                None if side is None else side.settings,
            )
        return resolved


def _launched_sides(resolver: Resolver, request: _Request) -> dict[str, LaunchedQuestion]:
    """Returns the sides that are launch configurations. The second side must not contradict the
    first in model, cluster and workload. It may have another stack and another padding of the
    vocabulary. Raises Invalid or Refused for a launch that cannot be read."""
    if isinstance(request, ComparisonRequest):
        return {}
    launched = dict[str, LaunchedQuestion]()
    parts: QuestionParts = request
    parts_source = "the request"
    for name, side in (("first", request.first), ("second", request.second)):
        if side.launch is not None:
            field = f"{name}.launch"
            launched[name] = launched_question(resolver, side.launch, parts, field, parts_source)
            # The second launch is read as if the request had said all that the first one says.
            parts = QuestionParts.of(launched[name].unpadded, request.stack)
            parts_source = f"the request and {field}"
    return launched


def _shared_question(request: _Request, launched: dict[str, LaunchedQuestion]) -> PinnedQuestion:
    """Returns the one question (model, cluster, workload) that both sides answer, with what their
    launches say filled in."""
    if isinstance(request, ComparisonRequest):
        return request  # which has no launch
    # A second launch was read as if the request said all that the first one says: the last has all.
    return [*launched.values()][-1].question.model_copy(update={"profile": request.profile})


def _stacks(
    request: _Request, launched: dict[str, LaunchedQuestion]
) -> dict[str, str | StackFields]:
    """Returns the stack of each side. A side that is no launch runs the stack of the request, or
    else that of the other side."""
    stacks = {name: side.question.stack for name, side in launched.items()}
    default_stack = request.stack or next(iter(stacks.values()))
    return {name: stacks.get(name, default_stack) for name in ("first", "second")}


def _sides(request: _Request) -> dict[str, Side]:
    return {"first": request.first, "second": request.second}


def _layout_field(resolved: _ResolvedRequest, name: str) -> str:
    """Returns the field of the request that has the layout of a side."""
    launched = resolved.launched.get(name)
    return f"{name}.layout" if launched is None else launched.layout_field


def _compare(
    request: _Request,
    resolved: _ResolvedRequest,
    failed: list[OutOfMemoryRun],
    deadline: Deadline,
) -> Comparison:
    """Compares the two sides. A side is a layout, or constraints under which the best layout is
    searched."""
    built = {
        name: _layout_or_constraints(side, resolved.completed_layouts.get(name))
        for name, side in _sides(request).items()
    }
    return compare(
        problem=resolved.question.problem,
        profile=resolved.profile,
        first=built["first"],
        second=built["second"],
        should_continue=deadline,
        oom_gib=least_failed_gib(failed),
        second_stack=resolved.second_stack.value,
    )


def _layout_or_constraints(side: Side, completed: LayoutFields | None) -> Layout | Constraints:
    """Returns the layout of a side, or else the constraints under which it is searched. `completed`
    is the layout that the request gives, with its defaults filled in; None where it gives none."""
    if completed is not None:
        return completed.build()
    return side.constraints.build() if side.constraints else Constraints()


def _comparison_answer(
    request: _Request,
    resolved: _ResolvedRequest,
    failed: list[OutOfMemoryRun],
    comparison: Comparison,
) -> ComparisonAnswer:
    """Returns the answer: both sides, with reasons, warnings and assumptions. `failed` are the
    reported runs of this model, chip and stack that ran out of memory."""
    answer = ComparisonAnswer.of(
        comparison,
        resolved.question.problem.cluster,
        grounds(
            resolved.pinned, resolved.question, resolved.profile, comparison.first.prediction.layout
        ),
    )
    predictions = {"first": answer.first.prediction, "second": answer.second.prediction}
    # The largest need among the layouts that a search chose: reported runs that ran out of memory
    # with less are a reason why it left out layouts. Infinite with two given layouts, where no
    # search left out any.
    most_searched_gib = max(
        (
            predicted.needed_gib
            for name, predicted in predictions.items()
            if name not in resolved.completed_layouts
        ),
        default=math.inf,
    )
    answer.reasons += left_out_reasons(most_searched_gib, failed)
    answer.reasons += oom_warnings(predictions, failed)
    for name, prediction in predictions.items():
        answer.assumptions += empty_chunk_assumptions(f"the {name}", prediction)
    for name, completed in resolved.completed_layouts.items():
        given = resolved.given_layouts[name]
        problem = resolved.problem_of(name)
        place = _layout_field(resolved, name)
        answer.assumptions += layout_assumptions(place, given, completed, problem)
    # A side that gives a layout is repeated with the defaults that were filled in.
    for name, side in _sides(request).items():
        layout = resolved.completed_layouts.get(name)
        shown = side if layout is None else Side(layout=layout)
        answer.request[name] = shown.model_dump(mode="json", exclude_none=True)
    if resolved.second_stack.value != resolved.question.problem.stack:
        answer.request["second"]["stack"] = resolved.second_stack.pinned_form
    answer.launch_read = {name: side.read for name, side in resolved.launched.items()}
    answer.reservations = {
        name: ReservationAnswer.first_of(side.reservations)
        for name, side in resolved.launched.items()
        if side.reservations
    }
    return answer
