"""Fewer chips than there are may be the answer: where no layout uses all of them, and where some
stand in the way.

A number of chips with few ways to divide it (a prime, or ten thousand with a batch that does not
share its factors) has no layout, or only poor ones. The products of the degrees that each axis may
have tell which smaller numbers have layouts, and in how many ways. Whole scale-up domains are tried
too, and parts of them: experts may divide 64 chips of a domain, and 72 badly. None of this says
which number is the fastest. The answer is the fastest of those that were tried.

A *promising* number divides over the axes in more ways than every larger one
(models.advice.promising_counts). A *space* has the layouts on one number of chips.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from models.advice.factorizations import factorizations_by_devices
from models.advice.promising_counts import (
    FEW_DEVICES,
    most_promising_first,
    promising_spaces,
    spaces_to_try,
    whole_domains,
)
from models.advice.reason import Reason
from models.errors import Infeasible, TooLarge
from models.layouts.space import Space
from models.prediction.term_words import rounded
from models.search.enumeration import search, search_on
from models.search.infeasibility import (
    constraints_in_the_way,
    contradiction,
    none_legal,
    none_uses_all,
    rule_to_blame,
)
from models.search.result import Goal, NothingFaster, SearchAnswer, ShouldContinue
from models.search.tables import NoLegalLayout
from models.spec.constraints import Constraints
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile

_MAX_TRIED = 12  # numbers of chips, where no layout uses all; it bounds the number of searches
_MAX_TRIED_FASTER = 6  # numbers that may be faster, where some layout uses all


@dataclass(frozen=True, slots=True, kw_only=True)
class FewerChips:
    """The reason why an answer uses only `num_chips` of the chips. Either the `rule` allows no
    layout on all of them, or a step is shorter than the `all_chips_s` seconds that it takes on
    all."""

    message: str
    num_chips: int
    rule: str | None = None
    all_chips_s: float | None = None

    @property
    def reason(self) -> Reason:
        """Return the message as a reason, with its figures."""
        figures = {"num_chips": self.num_chips, "rule": self.rule, "all_chips_s": self.all_chips_s}
        return Reason("fewer_chips", self.message, figures)

    @classmethod
    def that_are_faster(
        cls, num_chips: int, of_chips: int, step_time_s: float, all_chips_s: float
    ) -> FewerChips:
        """Return the reason for an answer on `num_chips` of the `of_chips` chips, on which a step
        is faster than on all."""
        message = (
            f"{of_chips - num_chips} of the {of_chips} chips are left out, since a step takes"
            f" {rounded(step_time_s)} s on {num_chips} and {rounded(all_chips_s)} s on all of them."
            " constraints.use_all_chips = true asks for all."
        )
        return cls(message=message, num_chips=num_chips, all_chips_s=all_chips_s)


@dataclass(frozen=True, slots=True)
class FastestAnswer:
    """The answer with the fastest step among several spaces, with its space and the goal that it
    was searched for."""

    space: Space
    answer: SearchAnswer
    goal: Goal

    @property
    def step_time_s(self) -> float:
        return float(self.answer.times[0])

    def answer_to(self, goal: Goal, should_continue: ShouldContinue) -> SearchAnswer:
        """Return the answer to a goal on this space. The answer that was found serves if the goals
        differ in `faster_than` alone: the limit of its search was the best step so far, which is
        at most the limit of `goal`. Otherwise the space is searched once more."""
        if replace(goal, faster_than=self.goal.faster_than) == self.goal:
            return self.answer
        known = self.answer.layouts.take(np.array(self.answer.ranked[:1]))
        return search_on(self.answer.tables, goal, should_continue, known)


@dataclass(frozen=True, slots=True)
class AnswerOnChips:
    """The answer of a search, with its space. `fewer_chips` is the reason why the space has fewer
    chips than the question; None where it has all, or where the reason is only that no layout on
    all meets the goal. `tried_fewer` says that there was time to try fewer chips."""

    space: Space
    answer: SearchAnswer
    fewer_chips: FewerChips | None = None
    tried_fewer: bool = True


def search_all_and_fewer(
    space: Space, profile: Profile, goal: Goal, should_continue: ShouldContinue
) -> AnswerOnChips:
    """Return the answer on all chips, or on fewer where no layout uses all of them or fewer are
    faster. It is not exact where there was no time to try fewer. Raise NothingFaster where no
    number of chips meets the goal, and otherwise what search_all_else_fewer raises."""
    try:
        found = search_all_else_fewer(space, profile, goal, should_continue)
        if found.fewer_chips is None:
            found = fewer_if_faster(found, profile, goal, should_continue)
    except NothingFaster:
        best, tried_all = fastest_on_fewer(space, profile, goal.faster_than, should_continue)
        if best is None:
            raise
        # Without `fewer_chips`: that reason compares with a step on all chips, and none is known.
        found = AnswerOnChips(best.space, best.answer, tried_fewer=tried_all)
    if found.tried_fewer:
        return found
    # An untried number of chips may be faster, but no faster than the peak of all chips allows.
    return replace(found, answer=found.answer.inexact(space.problem.step_time_at_peak_s))


# -- where no layout uses all chips
# --------------------------------------------------------------------------------------------------


def search_all_else_fewer(
    space: Space,
    profile: Profile,
    goal: Goal,
    should_continue: ShouldContinue,
    known: Layouts | None = None,
) -> AnswerOnChips:
    """Return the answer on all chips; only where no layout uses all of them, that on fewer. The
    search starts from `known`, layouts on all chips. Raise Infeasible where none fits, or where no
    layout uses all though the constraints ask for that; raise NothingFaster and TooLarge as
    `search` does."""
    try:
        return AnswerOnChips(space, search(space, profile, goal, should_continue, known))
    except NoLegalLayout:
        if space.constraints.use_all_chips:
            raise none_legal(space) from None
        return _search_fewer(space, profile, goal, should_continue)


def _search_fewer(
    space: Space, profile: Profile, goal: Goal, should_continue: ShouldContinue
) -> AnswerOnChips:
    """Return the fastest answer among promising smaller numbers of chips. It is not exact where
    time ran out before all were tried.

    If layouts on all chips exist and the constraints rule them out, the constraints are refused
    instead. The error names a number of chips on which they can be met. An answer on fewer chips
    would hide the mistake, and might be faster than the best on all.
    """
    problem = space.problem
    factorizations = factorizations_by_devices(problem, space.constraints)
    if error := constraints_in_the_way(space):
        fewer = next(promising_spaces(space, factorizations), None)
        if fewer is None:
            raise error
        count = fewer.problem.cluster.num_chips
        raise error.with_cure(f"{count} of the chips have one: ask with num_chips {count}")
    rule, message = rule_to_blame(problem)
    tried = spaces_to_try(space, factorizations, _MAX_TRIED)
    best, failure, tried_all = fastest_space(
        most_promising_first(tried, factorizations), profile, goal, should_continue
    )
    if best is None:
        conflict = _contradiction_on_fewer(problem, space.constraints, message)
        raise failure or conflict or Infeasible(rule, message)
    answer = best.answer_to(goal, should_continue)
    used = best.space.problem.cluster.num_chips
    text = f"{none_uses_all(problem, message)}; the answer uses {used}."
    if not tried_all:
        text += " Time ran out before every other number that promises as much was tried."
        # An untried number may be as fast as the peak of all chips allows.
        answer = answer.inexact(problem.step_time_at_peak_s)
    fewer_chips = FewerChips(rule=rule, message=text, num_chips=used)
    return AnswerOnChips(best.space, answer, fewer_chips)


def _contradiction_on_fewer(
    problem: Problem, constraints: Constraints, message: str
) -> Infeasible | None:
    """Return an error about the constraint that rules out every layout on fewer chips, as the
    largest promising number shows. None if no smaller number has layouts at all, so that
    constraints are not to blame. `message` says why no layout uses all chips."""
    if not constraints.allowed:
        return None
    no_constraints = Constraints()
    factorizations = factorizations_by_devices(problem, no_constraints)
    unconstrained = next(promising_spaces(Space(problem, no_constraints), factorizations), None)
    if unconstrained is None:
        return None
    error = contradiction(unconstrained.problem, constraints)
    return error.with_preface(f"{none_uses_all(problem, message)}, and of fewer")


# -- where fewer chips may be faster
# --------------------------------------------------------------------------------------------------


def fewer_if_faster(
    on_all: AnswerOnChips, profile: Profile, goal: Goal, should_continue: ShouldContinue
) -> AnswerOnChips:
    """Return the answer on fewer chips, if a step is shorter there; else the given one on all."""
    all_chips_s = float(on_all.answer.times[0])
    best, tried_all = fastest_on_fewer(on_all.space, profile, all_chips_s, should_continue)
    if best is None:
        return replace(on_all, tried_fewer=tried_all)
    fewer_chips = FewerChips.that_are_faster(
        best.space.problem.cluster.num_chips,
        on_all.space.problem.cluster.num_chips,
        best.step_time_s,
        all_chips_s,
    )
    answer = best.answer_to(goal, should_continue)
    return AnswerOnChips(best.space, answer, fewer_chips, tried_all)


def fastest_on_fewer(
    space: Space, profile: Profile, limit_s: float, should_continue: ShouldContinue
) -> tuple[FastestAnswer | None, bool]:
    """Return the fastest answer on fewer chips, and whether there was time to try all promising
    numbers. The answer is None where no step takes less than `limit_s`. No number is tried where
    the constraints ask for all chips. Numbers use at least half of the devices, or whole scale-up
    domains."""
    if space.constraints.use_all_chips:
        return None, True
    devices = space.problem.cluster.num_devices
    factorizations = factorizations_by_devices(space.problem, space.constraints)
    # At least half of the devices, and not all of them.
    upper_half = {
        count: ways for count, ways in factorizations.items() if devices <= 2 * count < 2 * devices
    }
    # On few devices searches are short, so more numbers are tried.
    most = _MAX_TRIED_FASTER if devices > FEW_DEVICES else _MAX_TRIED
    # A number that divides in no more ways than all devices would hardly make up for idle chips.
    better_divided = spaces_to_try(
        space, upper_half, most, more_than=factorizations.get(devices, 0)
    )
    of_whole_domains = [space.on_cluster(cluster) for cluster in whole_domains(space.problem)]
    # A number that is in both lists is tried once.
    by_devices = {
        tried.problem.cluster.num_devices: tried for tried in (*of_whole_domains, *better_divided)
    }
    best, _, tried_all = fastest_space(
        most_promising_first(by_devices.values(), factorizations),
        profile,
        Goal(faster_than=limit_s),
        should_continue,
    )
    return best, tried_all


def fastest_space(
    spaces: Iterable[Space], profile: Profile, goal: Goal, should_continue: ShouldContinue
) -> tuple[FastestAnswer | None, Infeasible | None, bool]:
    """Return (fastest answer, first failure, whether there was time for all spaces). The failure is
    that of the first space that has layouts but none that fits.

    The spaces are searched for the goal until there is an answer, and then only for layouts that
    are faster than the best so far. A space that is too large for a search is left out.
    """
    best = None
    failure = None
    in_time = True
    for space in spaces:
        in_time = should_continue()
        # When time is up, stop if there is an answer, or if the goal has a limit of step time: no
        # answer then means that nothing faster was found. Otherwise go on until there is one.
        has_fallback = best is not None or np.isfinite(goal.faster_than)
        if has_fallback and not in_time:
            break
        improved_goal = Goal(faster_than=best.step_time_s) if best else goal
        try:
            answer = search(space, profile, improved_goal, should_continue)
            best = FastestAnswer(space, answer, improved_goal)
        except (NoLegalLayout, NothingFaster, TooLarge):
            pass
        except Infeasible as error:
            failure = failure or error
        in_time = should_continue()
    return best, failure, in_time
