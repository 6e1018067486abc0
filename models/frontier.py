"""Where a pipeline is needed: exact searches over a grid of what the fabric, the cluster or the model could be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np

from models.answer import Answer, Goal, GoOn, to_the_end
from models.constraints import Constraints
from models.errors import Infeasible, Invalid, OutOfTime
from models.groundwork import NoLegalLayout
from models.layout import Layout
from models.pipelining import is_needed
from models.problem import Problem
from models.profile import Profile
from models.search import search, search_on
from models.space import Space
from models.surety import avoiding

AXES = ("scale_up", "scale_out", "domain", "num_chips", "layers")
"""Times the bandwidth within a scale-up domain, and between them; chips in a domain; chips, the batch as it is; times
the layers of the model."""

_MORE_THAN_LINKS = ("layers", "num_chips")  # changed last, since what else changes is shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The best without and with a pipeline at one place of the grid; None where none is legal and fits, `refused` why.
    `gap`: time without / time with - 1; infinite where only a pipeline will do, -1 where none will."""

    at: dict[str, float]
    without_s: float | None
    with_s: float | None
    without: Layout | None
    with_pp: Layout | None
    gap: float | None
    exact: bool
    refused: str | None = None

    def is_simple(self, tolerance: float) -> bool:
        """There are layouts, and no pipeline is needed."""
        return self.gap is not None and not is_needed(self.gap, tolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Between two neighbours along an `axis`, at one place of the others, the gap crosses the tolerance: `above` the
    one and `below` the other. Both are exact searches; `estimate` is in proportion to their gaps, or halfway where one
    of them lacks layouts with or without a pipeline."""

    axis: str
    at: dict[str, float]
    above: float
    below: float
    estimate: float


_NOTHING: dict[str, None] = dict.fromkeys(("without_s", "with_s", "without", "with_pp", "gap"))


def frontier(
    problem: Problem,
    profile: Profile,
    constraints: Constraints,
    grid: Mapping[str, Sequence[float]],
    go_on: GoOn = to_the_end,
    failed_gib: float = math.inf,
) -> list[Point]:
    """A point for every combination of the grid's values, the last axis fastest. Once `go_on` says no, points are the
    best so far and not exact. `failed_gib`: with which a run like these has run out of memory."""
    for name in grid:
        if name not in AXES:
            raise Invalid("grid", name, f"must be one of {', '.join(AXES)}")
    if "domain" in grid:
        problem.cluster.fabric.require_domain("grid.domain", list(grid["domain"]))
    if (pp := constraints.allowed.get("pp")) and len({degree > 1 for degree in pp}) == 1:
        raise Invalid("constraints.pp", list(pp), "leaves one side: a frontier lies between pipelines and none")
    places = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    survey, points = Survey(problem, profile, constraints, go_on, failed_gib), dict[int, Point]()
    for i in sorted(range(len(places)), key=lambda i: [places[i].get(name, 0.0) for name in _MORE_THAN_LINKS]):
        if points and not go_on():
            points[i] = Point(at=places[i], **_NOTHING, exact=False, refused="time ran out before this point")
        else:
            points[i] = survey.point(places[i])
    return [points[i] for i in range(len(places))]


class Survey:
    """Exact searches, one after the other, at places of a grid: each with what of the one before still holds."""

    def __init__(
        self,
        problem: Problem,
        profile: Profile,
        constraints: Constraints,
        go_on: GoOn = to_the_end,
        failed_gib: float = math.inf,
    ) -> None:
        self.problem, self.profile, self.constraints = problem, profile, constraints
        self.go_on, self.failed_gib = go_on, failed_gib
        self._before: Answer | None = None

    def point(self, at: Mapping[str, float]) -> Point:
        """For both sides of pp = 1."""
        try:
            answer = self._answer(changed(self.problem, at))
        except NoLegalLayout:
            return Point(at=dict(at), **_NOTHING, exact=True, refused="no layout is legal")
        except (Infeasible, Invalid) as error:
            return Point(at=dict(at), **_NOTHING, exact=not isinstance(error, OutOfTime), refused=str(error))
        times = [None if row is None else float(answer.times[row]) for row in (answer.without, answer.with_pp)]
        layouts = [None if row is None else answer.layouts[row] for row in (answer.without, answer.with_pp)]
        return Point(
            at=dict(at),
            without_s=times[0],
            with_s=times[1],
            without=layouts[0],
            with_pp=layouts[1],
            gap=_gap(times[0], times[1]),
            exact=answer.certificate.exact,
        )

    def _answer(self, problem: Problem) -> Answer:
        """Between other links the same layouts are legal and fit."""
        goal, before = Goal(both_sides=True), self._before
        ground = before and before.ground.linked(problem)
        if before and ground:
            rows = [row for row in (before.without, before.with_pp) if row is not None]
            answer = search_on(ground, goal, self.go_on, before.layouts.take(np.array(rows)))
        else:
            answer = avoiding(
                self.failed_gib,
                problem,
                self.constraints,
                lambda heeded: search(Space(problem, heeded), self.profile, goal, self.go_on),
            )
        self._before = answer
        return answer


def _gap(without: float | None, with_pp: float | None) -> float:
    if without is None:
        return float("inf")
    return -1.0 if with_pp is None else without / with_pp - 1


def changed(problem: Problem, at: Mapping[str, float]) -> Problem:
    """The problem at a place of a grid."""
    cluster = problem.cluster.changed(
        scale_up=at.get("scale_up", 1.0),
        scale_out=at.get("scale_out", 1.0),
        domain=int(at["domain"]) if "domain" in at else None,
        num_chips=int(at["num_chips"]) if "num_chips" in at else None,
    )
    architecture = problem.architecture
    if "layers" in at:
        architecture = architecture.with_layers(at["layers"])
    return replace(problem, cluster=cluster, architecture=architecture)


def crossings(points: Sequence[Point], grid: Mapping[str, Sequence[float]], tolerance: float) -> list[Crossing]:
    """Where the gap crosses the tolerance, along each axis in turn."""
    return [crossing for axis in grid for crossing in _along(axis, points, grid, tolerance)]


def _along(
    axis: str, points: Sequence[Point], grid: Mapping[str, Sequence[float]], tolerance: float
) -> Iterator[Crossing]:
    rest = [name for name in grid if name != axis]
    for place in product(*(grid[name] for name in rest)):
        row = [p for p in points if all(p.at[name] == value for name, value in zip(rest, place, strict=True))]
        row.sort(key=lambda p: p.at[axis])
        for a, b in pairwise(row):
            if a.gap is None or b.gap is None or a.is_simple(tolerance) == b.is_simple(tolerance):
                continue
            one_sided = None in (a.without_s, a.with_s, b.without_s, b.with_s)
            share = 0.5 if one_sided else (tolerance - a.gap) / (b.gap - a.gap)
            above, below = a.at[axis], b.at[axis]
            estimate, at = above + share * (below - above), dict(zip(rest, place, strict=True))
            yield Crossing(axis=axis, at=at, above=above, below=below, estimate=estimate)
