"""Fewest chips finds the smallest number of chips of a kind that trains so many tokens by a
deadline, or within a budget.

Twice the chips do not take half the time: a number that divides badly may be slower than a smaller
one, so that bisection would not do. Numbers are tried upwards from the least that the chip's peak
allows. Each is searched only for layouts that are fast enough. Bounds settle that quickly where a
number is far from enough. The numbers are those that divide a scale-up domain, and multiples of a
unit. The unit is the largest power of two that divides a domain (8 for domains of 8). Where a
domain is a rack of several machines, racks are whole (1, 2, 3, 4, 6, 8, …, 36, 72, 144, 216, …).
The caller may name another unit, and then only its multiples are tried.

A number is enough where its fastest layout keeps the limits with the probability that the objective
asks for. Where numbers are not those that divide well, some of the chips may stay unused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from models.advice.chip_counts import attempt_each, clusters_with_devices
from models.advice.fewer_chips import AnswerOnChips, search_all_and_fewer
from models.advice.objective import SUPERLATIVES, Minimized, Objective, max_step_time_s
from models.advice.safe_fit import solve_avoiding_oom
from models.layouts.factors import divisors
from models.layouts.space import Space
from models.prediction.prediction import predict_layouts
from models.search.enumeration import search
from models.search.result import Goal, NothingFaster, ShouldContinue, run_to_completion
from models.spec.constraints import Constraints
from models.spec.hardware import Cluster
from models.spec.problem import Problem
from models.spec.profile import Profile

_LARGEST_MACHINE_CHIPS = 16  # of Trn1 and DGX-2; a larger scale-up domain is a rack of machines
_MAX_TRIED = 1024  # numbers of chips; where there are more, multiples of a larger unit are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class FewestChips:
    """The smallest number of chips that keeps the limits, of those tried: `num_chips`, None where
    no number does.

    `tried` numbers up to `most` were candidates: divisors of a scale-up `domain` (1 where none are
    tried), and multiples of `unit`; all count chips. The answer is not `exact` where some were too
    large for a search, or time ran out. `minimize` is what the objective asks for besides the
    limits.
    """

    num_chips: int | None
    most: int
    tried: int
    domain: int
    unit: int
    exact: bool
    minimize: Minimized

    @property
    def reason(self) -> str:
        """Return a sentence on the number that was found, or why none was."""
        divisors_too = f"divisors of {self.domain} and " if self.domain > 1 else ""
        tried = f"of {self.tried} numbers that were tried ({divisors_too}multiples of {self.unit})"
        if self.num_chips is not None:
            reason = f"{self.num_chips} chips are the fewest {tried} that keep the limits"
            if not self.exact:
                reason += ", but for some that are too large to search"
            if self.minimize != "chips":
                reason += (
                    f"; others may have {SUPERLATIVES[self.minimize]}: alternatives.num_chips"
                    " compares those that it names"
                )
            return reason
        if not self.tried:
            return (
                f"fewest chips: up to {self.most} chips not even the peak of all keeps the limits"
            )
        if self.exact:
            return f"fewest chips: none {tried} keeps the limits"
        return (
            "fewest chips: time ran out, or numbers were too large to search, before one"
            f" {tried} kept the limits"
        )


def fewest_chips(
    problem: Problem,
    profile: Profile,
    constraints: Constraints,
    objective: Objective,
    most: int,
    should_continue: ShouldContinue = run_to_completion,
    oom_gib: float = math.inf,
    multiple_of: int | None = None,
) -> FewestChips:
    """Return the fewest chips, up to `most`, that keep the limits of an objective with tokens and a
    limit. The number of chips of the problem is ignored. Layouts that need `oom_gib` or more, at
    which a run of this model, chip and stack ran out of memory, are left out. Only multiples of
    `multiple_of` are tried, if it is given."""
    numbers = _Numbers.of(problem.cluster, multiple_of)
    clusters, unit = _clusters_to_try(problem, objective, most, numbers)
    none_found = FewestChips(
        num_chips=None,
        most=most,
        tried=len(clusters),
        domain=numbers.domain,
        unit=unit,
        exact=False,
        minimize=objective.minimize,
    )

    def is_enough(cluster: Cluster) -> bool:
        """Return whether a layout on this cluster keeps the limits."""
        return solve_avoiding_oom(
            oom_gib,
            Space(replace(problem, cluster=cluster), constraints),
            lambda space: _keeps_limits(
                space, profile, objective, should_continue, oom_gib, numbers.uses_fewer
            ),
        )

    searched_all = True
    for attempt in attempt_each(clusters, is_enough, should_continue):
        searched_all &= not attempt.too_large
        if attempt.solution:
            return replace(none_found, num_chips=attempt.cluster.num_chips, exact=searched_all)
    # None is proved only if none was too large to search, and time did not end the loop early.
    return replace(none_found, exact=searched_all and should_continue())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    """The numbers of chips to try: divisors of a `domain`, and multiples of `unit`. With
    `uses_fewer`, a layout may leave some chips unused, because smaller numbers that divide better
    are not tried themselves."""

    domain: int
    unit: int
    uses_fewer: bool

    @classmethod
    def of(cls, cluster: Cluster, multiple_of: int | None) -> _Numbers:
        """Return the numbers to try: multiples of `multiple_of` where it is given, or of a domain
        that is larger than a machine, or else of the largest power of two that divides a domain."""
        if multiple_of is not None:
            # With domain 1 no divisors of a domain are tried.
            return cls(domain=1, unit=multiple_of, uses_fewer=True)
        # A slice of a torus may be any number, and so may a part of one domain that joins all.
        domain = cluster.fabric.domain or 1
        if domain > _LARGEST_MACHINE_CHIPS:
            return cls(domain=domain, unit=domain, uses_fewer=True)
        largest_power_of_two = domain & -domain
        return cls(domain=domain, unit=largest_power_of_two, uses_fewer=False)

    @property
    def domain_divisors(self) -> list[int]:
        """Return the divisors of a domain, in chips; none where they are not tried."""
        return divisors(self.domain) if self.domain > 1 else []


def _keeps_limits(
    space: Space,
    profile: Profile,
    objective: Objective,
    should_continue: ShouldContinue,
    oom_gib: float,
    uses_fewer: bool,
) -> bool:
    """Return whether the fastest layout of a space, or with `uses_fewer` on some of its chips,
    keeps the limits with the probability that the objective asks for.

    Raise NothingFaster where layouts fit but none keeps the limits at the median, and Infeasible
    where none fits. A finite `oom_gib` says that the caller (solve_avoiding_oom) tries again with
    more memory after Infeasible, so the two errors must be told apart.
    """
    problem = space.problem
    limit_s = max_step_time_s(problem, objective)
    # A step that takes just as long as is allowed keeps the limits too.
    goal = Goal(faster_than=math.nextafter(limit_s, math.inf))
    try:
        if uses_fewer:
            found = search_all_and_fewer(space, profile, goal, should_continue)
        else:
            found = AnswerOnChips(space, search(space, profile, goal, should_continue))
    except NothingFaster:
        if math.isfinite(oom_gib):
            # A search without a goal for the time tells whether any layout fits: it raises
            # Infeasible where none does.
            search(space, profile, Goal(), should_continue)
        raise
    used = found.space.problem
    (fastest,) = predict_layouts(used, [found.answer.layouts[0]], profile)
    to_keep_s = objective.step_time_to_keep_s(fastest.step_time_s, fastest.step_time_high_s)
    # The limit is worked out again: fewer chips fail less often, which leaves more time for a step.
    return to_keep_s <= max_step_time_s(problem, objective, used.cluster.num_chips)


def _clusters_to_try(
    problem: Problem, objective: Objective, most: int, numbers: _Numbers
) -> tuple[list[Cluster], int]:
    """Return the clusters of at most `most` chips that would keep the limits at the chips' peak, in
    ascending order, and the unit: clusters have multiples of it, or a divisor of a domain. If there
    would be more than _MAX_TRIED clusters, the unit is doubled until there are not."""
    # A given shape of a torus' slice would fix the number of chips.
    cluster = replace(problem.cluster, torus_shape=None)
    divisors_to_try = [chips for chips in numbers.domain_divisors if chips <= most]
    counts = sorted({*range(numbers.unit, most + 1, numbers.unit), *divisors_to_try})
    devices = [chips * cluster.chip.devices_per_chip for chips in counts]
    # At the peak, twice the chips take half the time.
    chip_seconds = problem.step_time_at_peak_s * cluster.num_chips
    fast_enough = [
        resized
        for resized in clusters_with_devices(cluster, devices)
        if chip_seconds / resized.num_chips
        <= max_step_time_s(replace(problem, cluster=resized), objective)
    ]
    # Each doubling of the unit halves how many multiples there are.
    doublings = max(math.ceil(math.log2(max(len(fast_enough), 1) / _MAX_TRIED)), 0)
    unit = numbers.unit << doublings
    tried = [
        resized
        for resized in fast_enough
        if resized.num_chips % unit == 0 or resized.num_chips in divisors_to_try
    ]
    return tried, unit
