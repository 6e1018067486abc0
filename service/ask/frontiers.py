"""Over which fabrics, sizes and models a pipeline is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from models.advice.frontier import crossings, frontier, rows_along
from models.advice.sweep import Point
from service.ask.oom_history import least_that_failed, left_out, out_of_memory
from service.resolve.answer_basis import grounds
from service.resolve.profiles import wanted_profile
from service.resolve.resolution import Resolver
from service.runtime.deadline import Deadline, nobody
from service.schemas.frontier import CrossingAnswer, FrontierAnswer, FrontierRequest, PointAnswer
from service.store import Store


class Frontiers:
    def __init__(self, store: Store) -> None:
        self._store = store

    def draw(
        self, request: FrontierRequest, require_client: Callable[[], None] = nobody
    ) -> dict[str, Any]:
        with self._store.reading() as rows:
            resolved = Resolver(rows).problem(request)
            profile = wanted_profile(rows, request.profile)
        grid, should_continue = request.grid.axes(), Deadline(request.time_limit_s, require_client)
        constraints = request.constraints.build()
        failed = out_of_memory(self._store, resolved.problem, profile)
        points = frontier(
            resolved.problem, profile, constraints, grid, should_continue, least_that_failed(failed)
        )
        without = [f"{line}, wherever anything else fits" for line in left_out(0.0, failed)]
        answer = FrontierAnswer(
            points=[PointAnswer.of(point, request.tolerance) for point in points],
            crossings=[
                CrossingAnswer.of(crossing)
                for crossing in crossings(points, grid, request.tolerance)
            ],
            reasons=[*_reasons(points, grid, request.tolerance), *without],
            **grounds(request, resolved, profile),
        )
        sized = {"num_chips", "domain"} & grid.keys()
        if "scale_out" in grid and not sized and not resolved.problem.cluster.scales_out.any():
            answer.assumptions.append(
                "grid.scale_out has no effect: the scale-up links join all chips"
            )
        answer.request.update(
            grid=request.grid.model_dump(mode="json", exclude_none=True),
            constraints=request.constraints.model_dump(mode="json", exclude_none=True),
            tolerance=request.tolerance,
            time_limit_s=request.time_limit_s,
        )
        return answer.model_dump(mode="json")


def _reasons(points: Sequence[Point], grid: dict[str, list[float]], tolerance: float) -> list[str]:
    answered = [point for point in points if point.is_answered]
    simple = [point for point in answered if point.is_simple(tolerance)]
    reasons = [
        f"without a pipeline {len(simple)} of {len(answered)} points are within {tolerance:.0%} of"
        " the best"
    ]
    for axis, how in (
        ("num_chips", "{:g} chips"),
        ("layers", "{:g} times the layers"),
    ):  # for how long it holds
        if axis in grid and simple:
            reasons.append(
                f"the largest of those has {how.format(max(point.at[axis] for point in simple))}"
            )
    if "domain" in grid and _slower_in_larger(answered, grid):
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


def _slower_in_larger(points: Sequence[Point], grid: dict[str, list[float]]) -> bool:
    """Whether, with all else the same, the best step takes longer in some larger domain."""

    def best(point: Point) -> float:
        return min(seconds for seconds in (point.without_s, point.with_s) if seconds is not None)

    return any(
        best(b) > best(a) for _, row in rows_along("domain", points, grid) for a, b in pairwise(row)
    )
