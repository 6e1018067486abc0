"""A sweep searches exactly at many *places*, which are values that the fabric, the cluster or the
model could have. It makes a *point* of each: the best layouts there without and with a pipeline.

Where only the speed of links differs, the same layouts are legal and fit, and with faster links no
layout is slower, within _SLACK. So a block of such places needs few searches. The best layouts at
its slowest links take a certain time there, and the best at any other place takes no longer than
that. All layouts that take no longer at the fastest links are found in one search, and at every
other place they have only to be predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from models.advice.pipelining import Need, is_above, need_by_gap
from models.advice.safe_fit import solve_avoiding_oom
from models.columns import Array
from models.errors import Infeasible, Invalid, OutOfTime
from models.layouts.space import Space
from models.search.enumeration import finds_any, search, search_all, search_on
from models.search.incumbent import Incumbent
from models.search.infeasibility import none_legal
from models.search.result import Goal, SearchAnswer, ShouldContinue, run_to_completion
from models.search.tables import NoLegalLayout, SearchTables
from models.spec.constraints import Constraints
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile

LINK_AXES = ("scale_up", "scale_out")

# A block is searched as a whole where its best layouts gain less than this factor from its fastest
# links. It took longer with 1.05 and with 1.4 (docs/lab/verdicts.md). The factor falls where it
# left too many layouts.
_WHOLE_BLOCK_SPEEDUP = 1.3

# Faster links make a layout slower by 0.1% at most (tests), where unlike stages take turns in being
# the last.
_SLACK = 1.01

_MAX_LAYOUTS = 100_000  # a block's possible winners: where there are more, it is halved
_FEW_LAYOUTS = 2_000  # predicted at every place; with more, half of a block needs fewer of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The best layouts without and with a pipeline at one place of a grid, and their step times;
    None where no layout is legal and fits.

    `gap` is the step time without a pipeline over that with one, less 1. It is infinite where only
    layouts with a pipeline fit, and -1 where only layouts without one do. `gap_spread` is the
    standard deviation of log(1 + gap), where it was worked out. `refused` says why there is neither
    layout. `chips_per_domain` is the number of chips of each switched scale-up domain that are
    used.
    """

    at: dict[str, float]
    without_s: float | None = None
    with_s: float | None = None
    without: Layout | None = None
    with_pp: Layout | None = None
    gap: float | None = None
    exact: bool
    gap_spread: float = 0.0
    refused: str | None = None
    chips_per_domain: int | None = None

    @property
    def is_answered(self) -> bool:
        """Return whether there are layouts, and the best of them are proved."""
        return self.exact and self.gap is not None

    def needs_no_pipeline(self, tolerance: float) -> bool:
        """Return whether there are layouts, and a pipeline is predicted to be worth no more than
        the tolerance."""
        return self.gap is not None and not is_above(self.gap, tolerance)

    def need(self, tolerance: float) -> Need:
        """Return whether a pipeline is needed, given the spread of the gap; "unknown" where the
        search found nothing or was stopped."""
        if self.gap is None or not self.exact:
            return "unknown"
        return need_by_gap(self.gap, self.gap_spread, tolerance)

    @classmethod
    def of(cls, at: Mapping[str, float], answer: SearchAnswer) -> Point:
        """Return the point of a place from the answer of its search."""
        without_s, without = _time_and_layout(answer, answer.without)
        with_s, with_pp = _time_and_layout(answer, answer.with_pp)
        cluster = answer.tables.problem.cluster
        return cls(
            at=dict(at),
            without_s=without_s,
            with_s=with_s,
            without=without,
            with_pp=with_pp,
            gap=_gap(without_s, with_s),
            exact=answer.certificate.exact,
            # `domain` is None where there are no switched domains, or one that joins every chip;
            # scale_up_domain_chips is always a number.
            chips_per_domain=cluster.fabric.domain and cluster.scale_up_domain_chips,
        )

    @classmethod
    def out_of_time(cls, at: Mapping[str, float]) -> Point:
        return cls(at=dict(at), exact=False, refused="time ran out before this point")


def _time_and_layout(answer: SearchAnswer, row: int | None) -> tuple[float | None, Layout | None]:
    """Return the step time and the layout of a row of the answer; (None, None) for no row."""
    if row is None:
        return None, None
    return float(answer.times[row]), answer.layouts[row]


def _gap(without_s: float | None, with_s: float | None) -> float:
    """Return the step time without a pipeline over that with one, less 1. It is infinite where only
    layouts with a pipeline exist, and -1 where only layouts without one do."""
    if without_s is None:
        return math.inf
    return -1.0 if with_s is None else without_s / with_s - 1


@dataclass(frozen=True, slots=True)
class LinkBlock:
    """Places of a grid that differ only in the speed of links. They share the values `at`.
    `factors` has the factors on the speed of each axis of links, in ascending order, and every
    combination of them is a place."""

    at: dict[str, float]
    factors: dict[str, tuple[float, ...]]

    def __len__(self) -> int:
        return math.prod(map(len, self.factors.values()))

    @property
    def places(self) -> list[dict[str, float]]:
        """Return the places, from the slowest links to the fastest."""
        return [
            self.at | dict(zip(self.factors, values, strict=True))
            for values in product(*self.factors.values())
        ]

    @property
    def slowest(self) -> dict[str, float]:
        return self.places[0]

    @property
    def fastest(self) -> dict[str, float]:
        return self.places[-1]

    def halves(self, axis: str) -> tuple[LinkBlock, LinkBlock]:
        """Return the block in two parts along one axis: the slower half of its links, and the
        faster half."""
        values = self.factors[axis]
        middle = len(values) // 2
        slow = LinkBlock(self.at, self.factors | {axis: values[:middle]})
        fast = LinkBlock(self.at, self.factors | {axis: values[middle:]})
        return slow, fast


class FrontierSweep:
    """Searches places of a grid for the best layouts without and with a pipeline, one place after
    the other. Each search starts from the best layouts of the one before, if only links differ."""

    def __init__(
        self,
        problem: Problem,
        profile: Profile,
        constraints: Constraints,
        should_continue: ShouldContinue = run_to_completion,
        oom_gib: float = math.inf,
    ) -> None:
        """Set up the searches. Layouts that need `oom_gib` or more, at which a run of this model,
        chip and stack ran out of memory, are left out."""
        self.problem = problem
        self.profile = profile
        self.constraints = constraints
        self.should_continue = should_continue
        self.oom_gib = oom_gib
        self._previous: SearchAnswer | None = None  # the next search starts from it
        # Blocks that gain less from faster links are searched as a whole (_points_but_slowest).
        self._whole_block_speedup = _WHOLE_BLOCK_SPEEDUP

    def point(self, place: Mapping[str, float]) -> Point:
        """Return the point of a place, with its layouts or the reason why there are none."""
        answer = self._answer_or_refusal(place)
        return answer if isinstance(answer, Point) else Point.of(place, answer)

    def verdict_at(self, place: Mapping[str, float], tolerance: float) -> tuple[bool | None, bool]:
        """Return (whether no pipeline is needed at a place, whether that is proved). The first is
        None where there are no layouts.

        If only links differ from the place before, the best layouts found there give the verdict. A
        search then only has to rule out that any other layout is fast enough to change it.
        """
        previous = self._previous
        tables = previous and previous.tables.with_links_of(problem_at(self.problem, place))
        if previous and tables and previous.without is not None and previous.with_pp is not None:
            best = previous.layouts.take(_best_rows(previous))
            without_s, with_s = tables.predict(best).step_time_s.tolist()
            needs_none = not is_above(_gap(without_s, with_s), tolerance)
            # "No pipeline is needed" is wrong only if some layout with a pipeline is as fast as its
            # limit; "needed" is wrong only if some layout without one is. No layout is searched on
            # the other side, where a faster one would only confirm the verdict.
            no_layout = -np.inf
            without_limit_s = no_layout if needs_none else with_s * (1 + tolerance)
            with_limit_s = without_s / (1 + tolerance) if needs_none else no_layout
            limits = np.array([without_limit_s, with_limit_s]) * (1 + 1e-9)  # for rounding
            if finds_any(tables, limits, self.should_continue) is False:
                return needs_none, True
        point = self.point(place)
        needs_none_or_unknown = None if point.gap is None else point.needs_no_pipeline(tolerance)
        return needs_none_or_unknown, point.exact

    def points(self, block: LinkBlock) -> Iterator[Point]:
        """Yield the point of every place of a block, in any order."""
        first, *others = block.places  # the slowest links come first
        answer = self._answer_or_refusal(first)
        point = answer if isinstance(answer, Point) else Point.of(first, answer)
        yield point
        if isinstance(answer, SearchAnswer) and point.exact:
            yield from self._points_but_slowest(block, answer)
        elif point.exact:  # no links change this refusal
            yield from (replace(point, at=place) for place in others)
        else:
            yield from map(Point.out_of_time, others)

    def _points_but_slowest(self, block: LinkBlock, slowest: SearchAnswer) -> Iterator[Point]:
        """Yield the points of all places but the one with the slowest links, whose answer is
        `slowest`. They are found together if its layouts gain little from faster links, and else by
        halves of the block."""
        slowest_place, *others = block.places
        if not (others and self.should_continue()):
            yield from map(Point.out_of_time, others)
            return
        speedups = {axis: self._speedup(block, axis, slowest) for axis in block.factors}
        axis = max(speedups, key=lambda axis: speedups[axis])
        speedup = speedups[axis]
        if speedup < self._whole_block_speedup and len(others) > 1:
            if winners := self._possible_winners(block, slowest):
                for point in self._points_among(block, *winners, slowest):
                    if point.at != slowest_place:
                        yield point
                return
            # The block had too many layouts to be searched as a whole. Later blocks are so only if
            # they gain less than half as much.
            self._whole_block_speedup = 1 + (speedup - 1) / 2
        # The slow half has the same slowest place, and so the same answer there.
        slow, fast = block.halves(axis)
        yield from self._points_but_slowest(slow, slowest)
        if self.should_continue():
            yield from self.points(fast)
        else:
            yield from map(Point.out_of_time, fast.places)

    def _speedup(self, block: LinkBlock, axis: str, slowest: SearchAnswer) -> float:
        """Return the largest factor by which one of the best layouts at the slowest links becomes
        faster if one axis of links is at its fastest. It is 0 for an axis with a single factor,
        along which the block cannot be split."""
        if len(block.factors[axis]) == 1:
            return 0.0
        rows = _best_rows(slowest)
        place = block.slowest | {axis: block.factors[axis][-1]}
        times = self._times(slowest, place, slowest.layouts.take(rows))
        return float((slowest.times[rows] / times).max())

    def _possible_winners(
        self, block: LinkBlock, slowest: SearchAnswer
    ) -> tuple[Layouts, Array] | None:
        """Return all layouts that may be the best somewhere in a block, and their complexities:
        those which at the fastest links are no slower than the best at the slowest. None where they
        are more than _MAX_LAYOUTS."""
        rows = _best_rows(slowest)
        limits = _limits(slowest.layouts.pp[rows] > 1, slowest.times[rows])
        tables = self._tables_at(block.fastest, slowest)
        return search_all(tables, limits, _MAX_LAYOUTS, self.should_continue)

    def _points_among(
        self, block: LinkBlock, layouts: Layouts, complexities: Array, slowest: SearchAnswer
    ) -> Iterator[Point]:
        """Yield the points of a block, whose best layouts are all among `layouts`. A block with
        many layouts is halved, because fewer of them may be the best in each half. `slowest` is the
        answer at the slowest links, whose tables serve all places."""
        if len(block) > 2 and len(layouts) > _FEW_LAYOUTS:
            # A layout cannot win if it is slower at the fastest links than the best of its side
            # (without or with a pipeline) is at the slowest.
            longest_times = self._times(slowest, block.slowest, layouts)
            shortest_times = self._times(slowest, block.fastest, layouts)
            with_pipeline = layouts.pp > 1
            limits = _limits(with_pipeline, longest_times)
            may_win = shortest_times <= limits.take(with_pipeline.astype(int))  # of its own side
            layouts = layouts.take(may_win).materialised()
            complexities = complexities[may_win]
            if len(layouts) > _FEW_LAYOUTS:
                longest_axis = max(block.factors, key=lambda axis: len(block.factors[axis]))
                for half in block.halves(longest_axis):
                    yield from self._points_among(half, layouts, complexities, slowest)
                return
        for place in block.places:
            if not self.should_continue():
                yield Point.out_of_time(place)
                continue
            incumbent = Incumbent(Goal(both_sides=True))
            incumbent.add(layouts, self._times(slowest, place, layouts), complexities)
            # (): no meshes are left open, as a search may leave some.
            yield Point.of(place, incumbent.answer(slowest.certificate, slowest.tables, ()))

    def _times(self, answer: SearchAnswer, place: Mapping[str, float], layouts: Layouts) -> Array:
        """Return the step times of layouts at a place; shape (n,). The place may differ from the
        answer's only in its links."""
        return self._tables_at(place, answer).predict(layouts).step_time_s

    def _tables_at(self, place: Mapping[str, float], answer: SearchAnswer) -> SearchTables:
        """Return the search tables of an answer at a place, which may differ from the answer's only
        in its links."""
        tables = answer.tables.with_links_of(problem_at(self.problem, place))
        if tables is None:
            raise ValueError(f"{place} differs in more than how fast links are")
        return tables

    def _answer_or_refusal(self, place: Mapping[str, float]) -> SearchAnswer | Point:
        """Return the answer at a place, or the point that says why there is none."""
        try:
            problem = problem_at(self.problem, place)
            return self._answer(problem)
        except NoLegalLayout:
            why = str(none_legal(Space(problem, self.constraints)))
            return Point(at=dict(place), exact=True, refused=why)
        except (Infeasible, Invalid) as error:
            is_proved = not isinstance(error, OutOfTime)
            return Point(at=dict(place), exact=is_proved, refused=str(error))

    def _answer(self, problem: Problem) -> SearchAnswer:
        """Return the answer to a problem. The previous answer is returned again if both problems
        have the same links, such as with two domains that are larger than the job. If only links
        differ, the search starts from the best layouts of the previous answer. Otherwise the
        problem is searched anew."""
        goal = Goal(both_sides=True)  # the best layouts without and with a pipeline
        previous = self._previous
        # None where the problems differ in more than their links.
        tables = previous and previous.tables.with_links_of(problem)
        if previous and tables:
            cluster = previous.tables.problem.cluster
            if previous.certificate.exact and problem.cluster.has_same_links(cluster):
                return previous
            known = previous.layouts.take(_best_rows(previous))
            answer = search_on(tables, goal, self.should_continue, known)
        else:
            answer = solve_avoiding_oom(
                self.oom_gib,
                Space(problem, self.constraints),
                lambda space: search(space, self.profile, goal, self.should_continue),
            )
        self._previous = answer
        return answer


def _limits(with_pipeline: Array, times: Array) -> Array:
    """Return the limits of step time without and with a pipeline, above which no layout is the best
    anywhere in a block; shape (2,). They are the best of `times` at the slowest links, with slack.
    A side without layouts has the limit -inf. `with_pipeline` is a mask of the layouts with a
    pipeline."""
    best = np.array([times[with_pipeline == side].min(initial=np.inf) for side in (False, True)])
    return np.where(np.isfinite(best), best * _SLACK, -np.inf)


def _best_rows(answer: SearchAnswer) -> Array:
    """Return the rows of the best layout without a pipeline and of the best with one, if they
    exist."""
    return np.array([row for row in (answer.without, answer.with_pp) if row is not None])


def problem_at(problem: Problem, place: Mapping[str, float]) -> Problem:
    """Return the problem changed to a place of a grid, such as {"scale_out": 0.5, "num_chips": 64}.
    Axes that the place does not name stay as they are."""
    cluster = problem.cluster.with_changes(
        scale_up=place.get("scale_up", 1.0),
        scale_out=place.get("scale_out", 1.0),
        domain=int(place["domain"]) if "domain" in place else None,
        num_chips=int(place["num_chips"]) if "num_chips" in place else None,
    )
    architecture = problem.architecture
    if "layers" in place:
        architecture = architecture.with_depth_scaled(place["layers"])
    return replace(problem, cluster=cluster, architecture=architecture)
