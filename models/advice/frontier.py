"""A frontier says where a pipeline is needed. It is found by exact searches over a grid of values
that the fabric, the cluster or the model could have.

A *place* is one combination of such values, and a *point* has the best layouts there without and
with a pipeline. The *gap* is the step time without one over that with one, less 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from models.advice.sweep import LINK_AXES, FrontierSweep, LinkBlock, Point, problem_at
from models.cost.predictions import predict
from models.errors import Invalid
from models.prediction.prediction import log_ratio_spread
from models.search.result import ShouldContinue, run_to_completion
from models.spec.constraints import Constraints
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile

AXES = (*LINK_AXES, "domain", "num_chips", "layers")
"""The axes of a grid: factors on the bandwidth within scale-up domains and between them; chips in a
domain; chips, with the global batch as it is; and a factor on the layers of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Two neighbours along an `axis` between which the gap crosses the tolerance. `above` is the
    lower and `below` the higher of their values on it; the names fit axes of links, along which the
    gap falls. `at` has the values of the other axes.

    Both are exact searches. `estimate` lies between them in proportion to their gaps, or halfway
    where one of them lacks layouts with or without a pipeline.
    """

    axis: str
    at: dict[str, float]
    above: float
    below: float
    estimate: float


def frontier(
    problem: Problem,
    profile: Profile,
    constraints: Constraints,
    grid: Mapping[str, Sequence[float]],
    should_continue: ShouldContinue = run_to_completion,
    oom_gib: float = math.inf,
) -> list[Point]:
    """Return a point for every combination of the grid's values; the values of the last axis change
    fastest.

    Once `should_continue` says no, points are the best so far and not exact. Layouts that need
    `oom_gib` or more, at which a run of this model, chip and stack ran out of memory, are left out.
    Raise Invalid for an unknown axis, for domains that the fabric does not have, and for
    constraints that allow only pipelines or none.
    """
    _check_grid(problem, constraints, grid)
    sweep = FrontierSweep(problem, profile, constraints, should_continue, oom_gib)
    point_at: dict[tuple[float, ...], Point] = {}
    previous: list[Point] = []
    for block in _link_blocks(grid):
        # The first block is searched in any case.
        if previous and not should_continue():
            points = [Point.out_of_time(place) for place in block.places]
        else:
            points = _repeated_points(problem, block, previous) or [*sweep.points(block)]
        # In the order of block.places, which the next block is compared with.
        previous = sorted(points, key=lambda point: tuple(point.at.values()))
        for point in points:
            at = {name: point.at[name] for name in grid}  # in the order of the grid
            point_at[tuple(at.values())] = replace(point, at=at)
    points = [point_at[values] for values in product(*grid.values())]
    return [_with_gap_spread(problem, profile, point) for point in points]


def _with_gap_spread(problem: Problem, profile: Profile, point: Point) -> Point:
    """Return the point with the standard deviation of log(1 + gap), if it has layouts with and
    without a pipeline."""
    if point.without is None or point.with_pp is None:
        return point
    asked = problem_at(problem, point.at)
    pair = Layouts.of([point.without, point.with_pp])
    predictions = predict(asked, pair, profile.coefficients(asked.scopes))
    return replace(point, gap_spread=log_ratio_spread(predictions, profile))


def _check_grid(
    problem: Problem, constraints: Constraints, grid: Mapping[str, Sequence[float]]
) -> None:
    """Raise Invalid for an unknown axis, for domains that the fabric does not have, and for
    constraints that allow only pipelines or none."""
    for name in grid:
        if name not in AXES:
            raise Invalid("grid", name, f"must be one of {', '.join(AXES)}")
    if "domain" in grid:
        problem.cluster.fabric.require_domain("grid.domain", list(grid["domain"]))
    pp = constraints.allowed.get("pp")
    if pp and len({degree > 1 for degree in pp}) == 1:
        raise Invalid(
            "constraints.pp",
            list(pp),
            "leaves one side: a frontier lies between pipelines and none",
        )


def _repeated_points(problem: Problem, block: LinkBlock, previous: Sequence[Point]) -> list[Point]:
    """Return the points of this block without a search, as copies of the previous block's. That is
    possible if each place of this block poses the same problem as the previous block's place with
    the same links, such as with a domain larger than the job. Return nothing otherwise, or if the
    previous points lack an answer."""
    places = block.places
    if len(previous) != len(places) or not all(point.is_answered for point in previous):
        return []
    pairs = list(zip(places, previous, strict=True))
    try:
        repeated = all(
            _is_same_problem(problem_at(problem, place), problem_at(problem, point.at))
            for place, point in pairs
        )
    except Invalid:  # the search will say so
        return []
    return [replace(point, at=place) for place, point in pairs] if repeated else []


def _is_same_problem(one: Problem, other: Problem) -> bool:
    """Return whether two problems have the same answer: they differ in their clusters at most, and
    links join the devices of both alike."""
    has_same_links = one.cluster.has_same_links(other.cluster)
    return has_same_links and replace(one, cluster=other.cluster) == other


def _link_blocks(grid: Mapping[str, Sequence[float]]) -> Iterator[LinkBlock]:
    """Yield the grid in blocks of places that differ only in the speed of links, since a block is
    searched as a whole. From block to block the domain changes fastest, then the number of chips,
    then the layers."""
    others = [name for name in reversed(AXES) if name in grid and name not in LINK_AXES]
    factors = {name: tuple(sorted(set(grid[name]))) for name in LINK_AXES if name in grid}
    for values in product(*(sorted(set(grid[name])) for name in others)):
        yield LinkBlock(dict(zip(others, values, strict=True)), factors)


def crossings(
    points: Sequence[Point], grid: Mapping[str, Sequence[float]], tolerance: float
) -> list[Crossing]:
    """Return the places where the gap crosses the tolerance, one axis after the other."""
    return [
        crossing for axis in grid for crossing in _crossings_along(axis, points, grid, tolerance)
    ]


def _crossings_along(
    axis: str, points: Sequence[Point], grid: Mapping[str, Sequence[float]], tolerance: float
) -> Iterator[Crossing]:
    """Yield the crossings of the tolerance between neighbours along one axis. `above` is the lower
    value of the axis: with faster links the gap falls, so there it is above the tolerance. The
    estimate is interpolated between the two gaps, or halfway where one of them is infinite or -1,
    since a point lacks layouts with or without a pipeline."""
    for at, row in rows_along(axis, points, grid):
        for lower, higher in pairwise(row):
            if not (lower.exact and higher.exact) or lower.gap is None or higher.gap is None:
                continue
            if lower.needs_no_pipeline(tolerance) == higher.needs_no_pipeline(tolerance):
                continue
            above = lower.at[axis]
            below = higher.at[axis]
            one_sided = None in (lower.without_s, lower.with_s, higher.without_s, higher.with_s)
            share = 0.5 if one_sided else (tolerance - lower.gap) / (higher.gap - lower.gap)
            estimate = above + share * (below - above)
            yield Crossing(axis=axis, at=at, above=above, below=below, estimate=estimate)


def rows_along(
    axis: str, points: Sequence[Point], grid: Mapping[str, Sequence[float]]
) -> Iterator[tuple[dict[str, float], list[Point]]]:
    """Yield each place of the other axes, with its points along one axis in ascending order."""
    others = [name for name in grid if name != axis]
    for values in product(*(dict.fromkeys(grid[name]) for name in others)):
        place = dict(zip(others, values, strict=True))
        row = [point for point in points if place.items() <= point.at.items()]
        yield place, sorted(row, key=lambda point: point.at[axis])
