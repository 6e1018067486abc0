"""Draws over which fabrics, sizes and models a pipeline is needed.

A *frontier* is a grid of *points* around one question. Each point changes link speeds, domain size,
chips or layers, and has the best layouts with and without a pipeline. A *crossing* is a place
between two points at which going without a pipeline begins to cost more than the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Literal

from models.advice.frontier import crossings, frontier, rows_along
from models.advice.sweep import LINK_AXES, Point
from models.layouts.rules import first_broken
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.ask.oom_history import least_failed_gib, left_out_reasons, out_of_memory_runs
from service.resolve.answer_basis import grounds
from service.resolve.profiles import requested_profile
from service.resolve.resolution import ResolvedQuestion, Resolver
from service.runtime.deadline import Deadline, no_client
from service.schemas.frontier import CrossingAnswer, FrontierAnswer, FrontierRequest, PointAnswer
from service.schemas.prediction import OutOfMemoryRun
from service.store import UseCase


@dataclass(frozen=True, slots=True)
class FrontierPart:
    """A part of a frontier that is sent by itself: some `points`, or the whole `answer`."""

    kind: Literal["points", "answer"]
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _ResolvedRequest:
    """A request with its names resolved."""

    request: FrontierRequest
    resolved: ResolvedQuestion
    profile: Profile
    failed: list[OutOfMemoryRun]
    """Reported runs of this model, chip and stack that ran out of memory."""

    def points(self, grid: dict[str, list[float]], deadline: Deadline) -> list[Point]:
        """Searches the best layouts with and without a pipeline for every combination of the values
        of a grid. The grid has a list of values by the name of each axis."""
        return frontier(
            self.resolved.problem,
            self.profile,
            self.request.constraints.build(),
            grid,
            deadline,
            least_failed_gib(self.failed),
        )

    def point_answers(self, points: Sequence[Point]) -> list[PointAnswer]:
        """Returns points as answers show them."""
        on_torus = self.resolved.problem.cluster.is_torus
        return [
            PointAnswer.of(point, self.request.tolerance, on_torus=on_torus) for point in points
        ]


class Frontiers(UseCase):
    def draw(
        self, request: FrontierRequest, require_client: Callable[[], None] = no_client
    ) -> dict[str, Any]:
        """Returns the frontier over the grid of the request. `require_client` raises once the
        client has hung up."""
        question = self._resolve(request)
        deadline = Deadline(request.time_limit_s, require_client)
        points = question.points(request.grid.axes(), deadline)
        return _frontier_answer(question, points).model_dump(mode="json")

    def draw_in_parts(
        self, request: FrontierRequest, require_client: Callable[[], None] = no_client
    ) -> Iterator[FrontierPart]:
        """Yields the points some at a time, as they are found, and finally the whole answer. It is
        the answer of `draw`, unless the time limit cuts a search short."""
        question = self._resolve(request)
        deadline = Deadline(request.time_limit_s, require_client)
        grid = request.grid.axes()
        points_by_values: dict[tuple[float, ...], Point] = {}  # blocks come in another order
        for block in _blocks(grid):
            points = question.points(block, deadline)
            points_by_values |= {tuple(point.at[name] for name in grid): point for point in points}
            answers = [answer.model_dump(mode="json") for answer in question.point_answers(points)]
            yield FrontierPart("points", {"points": answers})
        ordered = [points_by_values[values] for values in product(*grid.values())]
        yield FrontierPart("answer", _frontier_answer(question, ordered).model_dump(mode="json"))

    def _resolve(self, request: FrontierRequest) -> _ResolvedRequest:
        with self._store.reading() as rows:
            resolved = Resolver(rows).resolve(request)
            profile = requested_profile(rows, request.profile)
        failed = out_of_memory_runs(self._store, resolved.problem, profile)
        return _ResolvedRequest(request, resolved, profile, failed)


def _blocks(grid: dict[str, list[float]]) -> Iterator[dict[str, list[float]]]:
    """Yields parts of the grid that together take about as long as the whole. Points that differ
    only in the speed of links share a search, so each part has all speeds of links. A grid of
    nothing but link speeds is cut by the speed of its first kind of link."""
    cut_axes = [name for name in grid if name not in LINK_AXES] or [*grid][:1]
    for values in product(*(grid[name] for name in cut_axes)):
        yield {**grid, **{name: [value] for name, value in zip(cut_axes, values, strict=True)}}


def _frontier_answer(question: _ResolvedRequest, points: Sequence[Point]) -> FrontierAnswer:
    """Returns the answer: points and crossings, with reasons and assumptions."""
    request, problem = question.request, question.resolved.problem
    grid = request.grid.axes()
    # 0 GiB: some point of the grid may have left out layouts as large as any failed run.
    left_out = [
        f"{line}, wherever anything else fits" for line in left_out_reasons(0.0, question.failed)
    ]
    layout = _layout_of_question(problem, points)
    rests_on = grounds(request, question.resolved, question.profile, layout)
    changes_size = {"num_chips", "domain"} & grid.keys()
    scales_out = problem.cluster.scale_out_mask.any()
    # Every point has the chips and domains of the request, and no traffic there leaves a domain.
    if "scale_out" in grid and not changes_size and not scales_out:
        rests_on["assumptions"].append(
            "grid.scale_out has no effect: the scale-up links join all chips"
        )
    rests_on["request"] |= {
        "grid": request.grid.model_dump(mode="json", exclude_none=True),
        "constraints": request.constraints.model_dump(mode="json", exclude_none=True),
        "tolerance": request.tolerance,
        "time_limit_s": request.time_limit_s,
    }
    return FrontierAnswer(
        points=question.point_answers(points),
        crossings=[
            CrossingAnswer.from_attributes(crossing)
            for crossing in crossings(points, grid, request.tolerance)
        ],
        reasons=[*_reasons(points, grid, request.tolerance), *left_out],
        **rests_on,
    )


def _reasons(points: Sequence[Point], grid: dict[str, list[float]], tolerance: float) -> list[str]:
    """Returns sentences on how many points need no pipeline, how large they are, and which points
    are not sure. `tolerance` is the share of a step that may be lost for the sake of no
    pipeline."""
    answered = [point for point in points if point.is_answered]
    without_pipeline = [point for point in answered if point.needs_no_pipeline(tolerance)]
    reasons = [
        f"without a pipeline {len(without_pipeline)} of {len(answered)} points are within"
        f" {tolerance:.0%} of the best"
    ]
    if without_pipeline:
        reasons += _largest_point_reasons(without_pipeline, grid)
    if undecided := sum(point.need(tolerance) == "undecided" for point in answered):
        reasons.append(
            f"at {undecided} points it is undecided whether a pipeline is needed: by the 80%"
            f" interval, going without may cost less or more than {tolerance:.0%}"
        )
    if "domain" in grid and _is_slower_in_larger_domain(answered, grid):
        reasons.append(
            "a larger domain is slower at some points: what divides it decides too"
            " (chips_per_domain of each point)"
        )
    if late := sum(not point.exact for point in points):
        reasons.append(
            f"the time limit ended the searches of {late} points: these are the best so far, and"
            " not counted"
        )
    return reasons


def _layout_of_question(problem: Problem, points: Sequence[Point]) -> Layout | None:
    """Returns the layout for which the answer states its assumptions: the first of the points that
    is legal on the cluster and model of the request, without the changes of the grid. None where
    there is none."""
    layouts = [
        layout
        for point in points
        for layout in (point.without, point.with_pp)
        if layout is not None
    ]
    if not layouts:
        return None
    broken = first_broken(problem, Layouts.of(layouts))  # -1 where no rule is broken
    return next(
        (candidate for candidate, rule in zip(layouts, broken, strict=True) if rule < 0), None
    )


def _largest_point_reasons(points: Sequence[Point], grid: dict[str, list[float]]) -> list[str]:
    """Returns sentences on how far cluster and model can grow while no pipeline is needed. `points`
    are those that need none."""
    reasons = list[str]()
    for axis, size in (("num_chips", "{:g} chips"), ("layers", "{:g} times the layers")):
        if axis in grid:
            largest = max(point.at[axis] for point in points)
            reasons.append(f"the largest of those has {size.format(largest)}")
    return reasons


def _is_slower_in_larger_domain(points: Sequence[Point], grid: dict[str, list[float]]) -> bool:
    """Returns whether the best step takes longer in some larger domain, with all else equal."""

    def best_s(point: Point) -> float:
        return min(seconds for seconds in (point.without_s, point.with_s) if seconds is not None)

    return any(
        best_s(larger) > best_s(smaller)
        for _, row in rows_along("domain", points, grid)  # points that differ in it alone
        for smaller, larger in pairwise(row)
    )
