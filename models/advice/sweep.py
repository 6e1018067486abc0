"""Exact searches at many places: what the fabric, the cluster or the model could be.

Between other links the same layouts are legal and fit, and with faster ones none is slower, within
_SLACK. So where the slowest links of a block of places have an answer, no place in it has one that
takes longer at the fastest: all layouts that take no longer than that there are found in one
search, and at every other place they have only to be predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from models.advice.pipelining import is_needed
from models.advice.safe_fit import avoiding
from models.columns import Array
from models.errors import Infeasible, Invalid, OutOfTime
from models.layouts.space import Space
from models.search.branch_and_bound import finds_any, search, search_all, search_on
from models.search.incumbent import Incumbent
from models.search.infeasibility import none_legal
from models.search.result import Answer, Goal, ShouldContinue, run_to_completion
from models.search.tables import NoLegalLayout, SearchTables
from models.spec.constraints import Constraints
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile

LINKS = "scale_up", "scale_out"
_SPREAD = 1.3  # of the times of a layout at the places of a block, less where that was too much
# faster links make a layout slower by 0.1% at most (tests), where unlike stages take turns in being
# last
_SLACK = 1.01
_MOST = 100_000  # looked at for those that may be the best somewhere in a block
_FEW = (
    2_000  # predicted at every place; where there are more, the half of a block needs fewer of them
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The best without and with a pipeline at one place; None where none is legal and fits,
    `refused` why. `gap`: time without / time with - 1; infinite where only a pipeline will do, -1
    where none will. `chips_per_domain`: of each switched scale-up domain, that they use."""

    at: dict[str, float]
    without_s: float | None
    with_s: float | None
    without: Layout | None
    with_pp: Layout | None
    gap: float | None
    exact: bool
    refused: str | None = None
    chips_per_domain: int | None = None

    @property
    def is_answered(self) -> bool:
        """There are layouts, and the best of them are proved."""
        return self.exact and self.gap is not None

    def is_simple(self, tolerance: float) -> bool:
        """There are layouts, and no pipeline is needed."""
        return self.gap is not None and not is_needed(self.gap, tolerance)

    @classmethod
    def of(cls, at: Mapping[str, float], answer: Answer) -> Point:
        rows = answer.without, answer.with_pp
        without_s, with_s = (None if row is None else float(answer.times[row]) for row in rows)
        without, with_pp = (None if row is None else answer.layouts[row] for row in rows)
        cluster = answer.ground.problem.cluster
        return cls(
            at=dict(at),
            without_s=without_s,
            with_s=with_s,
            without=without,
            with_pp=with_pp,
            gap=_gap(without_s, with_s),
            exact=answer.certificate.exact,
            chips_per_domain=cluster.fabric.domain and cluster.scale_up_domain_chips,
        )

    @classmethod
    def refusing(cls, at: Mapping[str, float], why: str, *, exact: bool) -> Point:
        nothing = dict.fromkeys(("without_s", "with_s", "without", "with_pp", "gap"))
        return cls(at=dict(at), **nothing, exact=exact, refused=why)


def _gap(without: float | None, with_pp: float | None) -> float:
    if without is None:
        return float("inf")
    return -1.0 if with_pp is None else without / with_pp - 1


@dataclass(frozen=True, slots=True)
class Block:
    """The places with the same `at`, and links so many times as fast: every combination of
    `factors`, which ascend."""

    at: dict[str, float]
    factors: dict[str, tuple[float, ...]]

    def __len__(self) -> int:
        return math.prod(map(len, self.factors.values()))

    @property
    def places(self) -> list[dict[str, float]]:
        """From the slowest links to the fastest."""
        return [
            self.at | dict(zip(self.factors, values, strict=True))
            for values in product(*self.factors.values())
        ]

    @property
    def ends(self) -> tuple[dict[str, float], dict[str, float]]:
        """Where links are slowest, and where they are fastest."""
        first, *_, last = self.places
        return first, last

    def faster_along(self, axis: str) -> dict[str, float]:
        """The slowest place, with the fastest links of one axis."""
        return self.places[0] | {axis: self.factors[axis][-1]}

    def halves(self, axis: str) -> tuple[Block, Block]:
        values = self.factors[axis]
        parts = values[: len(values) // 2], values[len(values) // 2 :]
        slow, fast = (Block(self.at, self.factors | {axis: part}) for part in parts)
        return slow, fast


class FrontierSweep:
    """Searches for both sides of pp = 1, one after the other, each with what of the one before
    still holds."""

    def __init__(
        self,
        problem: Problem,
        profile: Profile,
        constraints: Constraints,
        should_continue: ShouldContinue = run_to_completion,
        failed_gib: float = math.inf,
    ) -> None:
        self.problem, self.profile, self.constraints = problem, profile, constraints
        self.should_continue, self.failed_gib = should_continue, failed_gib
        self._before: Answer | None = None
        self._spread = _SPREAD

    def point(self, at: Mapping[str, float]) -> Point:
        found = self._tried(at)
        return found if isinstance(found, Point) else Point.of(at, found)

    def is_simple(self, at: Mapping[str, float], tolerance: float) -> tuple[bool | None, bool]:
        """Whether no pipeline is needed at a place, None where there are no layouts, and whether
        that is proved. Where only links differ from a place that was searched, it is as the best
        layouts there say, unless others that are fast enough say otherwise."""
        problem, before = changed(self.problem, at), self._before
        ground = before and before.ground.linked(problem)
        if before and ground and before.without is not None and before.with_pp is not None:
            without, with_pp = ground.predict(
                before.layouts.take(_sides(before))
            ).step_time_s.tolist()
            simple = not is_needed(_gap(without, with_pp), tolerance)
            slower = with_pp * (1 + tolerance), without / (1 + tolerance)
            limits = np.where([simple, not simple], -np.inf, slower) * (1 + 1e-9)
            if finds_any(ground, limits, self.should_continue) is False:
                return simple, True
        point = self.point(at)
        return None if point.gap is None else point.is_simple(tolerance), point.exact

    def points(self, block: Block) -> Iterator[Point]:
        """Of every place, in any order."""
        first, *others = block.places
        found = self._tried(first)
        point = found if isinstance(found, Point) else Point.of(first, found)
        yield point
        if isinstance(found, Answer) and point.exact:
            yield from self._others(block, found)
        elif point.exact:  # refused, which no links change
            yield from (replace(point, at=place) for place in others)
        else:
            yield from map(late, others)

    def _others(self, block: Block, slowest: Answer) -> Iterator[Point]:
        """Of all places but the one where links are slowest, whose answer is known; together, or by
        halves."""
        first, *others = block.places
        if not (others and self.should_continue()):
            yield from map(late, others)
            return
        axis, spread = max(
            ((axis, self._gain(block, axis, slowest)) for axis in block.factors),
            key=lambda one: one[1],
        )
        if spread < self._spread and len(others) > 1:
            if every := self._every(block, slowest):
                yield from (
                    point for point in self._among(block, *every, slowest) if point.at != first
                )
                return
            self._spread = 1 + (spread - 1) / 2
        slow, fast = block.halves(axis)
        yield from self._others(slow, slowest)
        yield from self.points(fast) if self.should_continue() else map(late, fast.places)

    def _gain(self, block: Block, axis: str, slowest: Answer) -> float:
        """By how much the best layouts are faster where links are fastest along an axis; less than
        once where there is one factor."""
        if len(block.factors[axis]) == 1:
            return 0.0
        rows = _sides(slowest)
        faster = self._times(slowest, block.faster_along(axis), slowest.layouts.take(rows))
        return float((slowest.times[rows] / faster).max())

    def _every(self, block: Block, slowest: Answer) -> tuple[Layouts, Array] | None:
        """All layouts that may be the best somewhere in a block, and how complex they are; None if
        they are too many to find."""
        rows = _sides(slowest)
        limits = _limits(slowest.layouts.pp[rows] > 1, slowest.times[rows])
        return search_all(self._linked(slowest, block.ends[1]), limits, _MOST, self.should_continue)

    def _among(
        self, block: Block, layouts: Layouts, complexities: Array, slowest: Answer
    ) -> Iterator[Point]:
        """Of a block, among all layouts that may be the best there: fewer in its halves."""
        if len(block) > 2 and len(layouts) > _FEW:
            most, least = (self._times(slowest, place, layouts) for place in block.ends)
            piped = layouts.pp > 1
            kept = least <= _limits(piped, most).take(piped.astype(int))
            layouts, complexities = layouts.take(kept).materialised(), complexities[kept]
            if len(layouts) > _FEW:
                for half in block.halves(
                    max(block.factors, key=lambda axis: len(block.factors[axis]))
                ):
                    yield from self._among(half, layouts, complexities, slowest)
                return
        for place in block.places:
            if not self.should_continue():
                yield late(place)
                continue
            held = Incumbent(Goal(both_sides=True))
            held.add(layouts, self._times(slowest, place, layouts), complexities)
            yield Point.of(place, held.answer(slowest.certificate, slowest.ground))

    def _times(self, answer: Answer, place: Mapping[str, float], layouts: Layouts) -> Array:
        """Of a step, at a place where links are others than in an answer."""
        return self._linked(answer, place).predict(layouts).step_time_s

    def _linked(self, answer: Answer, place: Mapping[str, float]) -> SearchTables:
        """What an answer looked up, at a place with other links."""
        ground = answer.ground.linked(changed(self.problem, place))
        if ground is None:
            raise ValueError(f"{place} differs in more than how fast links are")
        return ground

    def _tried(self, at: Mapping[str, float]) -> Answer | Point:
        """The answer at a place, or that there is none."""
        try:
            problem = changed(self.problem, at)
            return self._answer(problem)
        except NoLegalLayout:
            return Point.refusing(at, str(none_legal(Space(problem, self.constraints))), exact=True)
        except (Infeasible, Invalid) as error:
            return Point.refusing(at, str(error), exact=not isinstance(error, OutOfTime))

    def _answer(self, problem: Problem) -> Answer:
        """Between other links the same layouts are legal and fit; and larger domains may be filled
        no further."""
        goal, before = Goal(both_sides=True), self._before
        ground = before and before.ground.linked(problem)
        if before and ground:
            if before.certificate.exact and problem.cluster.has_same_links(
                before.ground.problem.cluster
            ):
                return before
            answer = search_on(
                ground, goal, self.should_continue, before.layouts.take(_sides(before))
            )
        else:
            answer = avoiding(
                self.failed_gib,
                problem,
                self.constraints,
                lambda heeded: search(
                    Space(problem, heeded), self.profile, goal, self.should_continue
                ),
            )
        self._before = answer
        return answer


def _limits(piped: Array, times: Array) -> Array:
    """What the best of each side takes where links are slowest, and slack; less than anything where
    there is none."""
    best = np.array([times[piped == side].min(initial=np.inf) for side in (False, True)])
    return np.where(np.isfinite(best), best * _SLACK, -np.inf)


def _sides(answer: Answer) -> Array:
    """Where the best without and with a pipeline are."""
    return np.array([row for row in (answer.without, answer.with_pp) if row is not None])


def late(place: Mapping[str, float]) -> Point:
    """One that there was no time for."""
    return Point.refusing(place, "time ran out before this point", exact=False)


def changed(problem: Problem, at: Mapping[str, float]) -> Problem:
    """The problem at a place of a grid."""
    cluster = problem.cluster.with_changes(
        scale_up=at.get("scale_up", 1.0),
        scale_out=at.get("scale_out", 1.0),
        domain=int(at["domain"]) if "domain" in at else None,
        num_chips=int(at["num_chips"]) if "num_chips" in at else None,
    )
    architecture = problem.architecture
    if "layers" in at:
        architecture = architecture.with_depth_scaled(at["layers"])
    return replace(problem, cluster=cluster, architecture=architecture)
