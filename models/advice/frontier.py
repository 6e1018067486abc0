"""Where a pipeline is needed: exact searches over a grid of what the fabric, the cluster or the
model could be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from models.advice.sweep import LINKS, Block, FrontierSweep, Point, changed, late
from models.errors import Invalid
from models.search.result import ShouldContinue, run_to_completion
from models.spec.constraints import Constraints
from models.spec.problem import Problem
from models.spec.profile import Profile

AXES = (*LINKS, "domain", "num_chips", "layers")
"""Times the bandwidth within a scale-up domain, and between them; chips in a domain; chips, the
batch as it is; times the layers of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Between two neighbours along an `axis`, at one place of the others, the gap crosses the
    tolerance: `above` the one and `below` the other. Both are exact searches; `estimate` is in
    proportion to their gaps, or halfway where one of them lacks layouts with or without a
    pipeline."""

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
    failed_gib: float = math.inf,
) -> list[Point]:
    """A point for every combination of the grid's values, the last axis fastest. Once `should_continue` says
    no, points are the best so far and not exact. `failed_gib`: with which a run like these has run
    out of memory."""
    for name in grid:
        if name not in AXES:
            raise Invalid("grid", name, f"must be one of {', '.join(AXES)}")
    if "domain" in grid:
        problem.cluster.fabric.require_domain("grid.domain", list(grid["domain"]))
    if (pp := constraints.allowed.get("pp")) and len({degree > 1 for degree in pp}) == 1:
        raise Invalid(
            "constraints.pp",
            list(pp),
            "leaves one side: a frontier lies between pipelines and none",
        )
    survey = FrontierSweep(problem, profile, constraints, should_continue, failed_gib)
    found: dict[tuple[float, ...], Point] = {}
    before: list[Point] = []
    for block in _blocks(grid):
        if before and not should_continue():
            points = [late(place) for place in block.places]
        else:
            points = _again(problem, block, before) or [*survey.points(block)]
        before = sorted(points, key=lambda point: tuple(point.at.values()))
        for point in points:
            at = {name: point.at[name] for name in grid}
            found[tuple(at.values())] = replace(point, at=at)
    return [found[values] for values in product(*grid.values())]


def _again(problem: Problem, block: Block, before: Sequence[Point]) -> list[Point]:
    """The points of the block before this one, where all are answered and links join the same chips
    here: domains may be larger than a job fills. Nothing where they do not."""
    places = block.places
    if len(before) != len(places) or not all(point.is_answered for point in before):
        return []
    pairs = list(zip(places, before, strict=True))
    try:
        alike = all(
            _alike(changed(problem, place), changed(problem, point.at)) for place, point in pairs
        )
    except Invalid:  # which a search will say
        return []
    return [replace(point, at=place) for place, point in pairs] if alike else []


def _alike(here: Problem, there: Problem) -> bool:
    return (
        here.cluster.has_same_links(there.cluster) and replace(here, cluster=there.cluster) == there
    )


def _blocks(grid: Mapping[str, Sequence[float]]) -> Iterator[Block]:
    """Of places that differ in how fast links are only; number of chips and layers are changed
    last."""
    others = [name for name in reversed(AXES) if name in grid and name not in LINKS]
    factors = {name: tuple(sorted(set(grid[name]))) for name in LINKS if name in grid}
    for values in product(*(sorted(set(grid[name])) for name in others)):
        yield Block(dict(zip(others, values, strict=True)), factors)


def crossings(
    points: Sequence[Point], grid: Mapping[str, Sequence[float]], tolerance: float
) -> list[Crossing]:
    """Where the gap crosses the tolerance, along each axis in turn."""
    return [crossing for axis in grid for crossing in _along(axis, points, grid, tolerance)]


def _along(
    axis: str, points: Sequence[Point], grid: Mapping[str, Sequence[float]], tolerance: float
) -> Iterator[Crossing]:
    for at, row in rows_along(axis, points, grid):
        for a, b in pairwise(row):
            if not (a.exact and b.exact) or a.gap is None or b.gap is None:
                continue
            if a.is_simple(tolerance) == b.is_simple(tolerance):
                continue
            one_sided = None in (a.without_s, a.with_s, b.without_s, b.with_s)
            share = 0.5 if one_sided else (tolerance - a.gap) / (b.gap - a.gap)
            above, below = a.at[axis], b.at[axis]
            estimate = above + share * (below - above)
            yield Crossing(axis=axis, at=at, above=above, below=below, estimate=estimate)


def rows_along(
    axis: str, points: Sequence[Point], grid: Mapping[str, Sequence[float]]
) -> Iterator[tuple[dict[str, float], list[Point]]]:
    """For every place of the other axes, the points along one, from its least value to its
    largest."""
    rest = [name for name in grid if name != axis]
    for values in product(*(dict.fromkeys(grid[name]) for name in rest)):
        place = dict(zip(rest, values, strict=True))
        row = [point for point in points if place.items() <= point.at.items()]
        yield place, sorted(row, key=lambda point: point.at[axis])
