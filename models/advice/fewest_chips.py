"""Fewest chips finds the smallest number of chips of a kind that trains so many tokens by a
deadline, or within a budget.

Twice the chips do not take half the time: a number that divides badly may be slower than a smaller
one, so that bisection would not do. Numbers are tried upwards from the least that the chip's peak
allows. Each is searched only for layouts that are fast enough. Bounds settle that quickly where a
number is far from enough. The numbers are those that divide a scale-up domain, and the multiples of
the largest power of two that does (for domains of 72: 1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, …).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from models.advice.cluster_choice import SUPERLATIVES, Minimized, Objective, max_step_time_s
from models.advice.fewer_chips import clusters_with_devices
from models.advice.safe_fit import solve_avoiding_oom
from models.columns import Array
from models.errors import Infeasible, TooLarge
from models.layouts.factors import divisors
from models.layouts.space import Space
from models.search.enumeration import search
from models.search.result import (
    Goal,
    NothingFaster,
    SearchAnswer,
    ShouldContinue,
    run_to_completion,
)
from models.search.tables import NoLegalLayout
from models.spec.constraints import Constraints
from models.spec.hardware import Cluster
from models.spec.problem import Problem
from models.spec.profile import Profile

_MAX_TRIED = 1024  # numbers of chips; where there are more, multiples of a larger unit are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class FewestChips:
    """The smallest number of chips, of those tried, that keeps the limits: `num_chips`, None where
    no number does.

    There were `tried` numbers up to `most`: divisors of a scale-up `domain`, and multiples of
    `unit`; all count chips. The answer is not `exact` where some were too large for a search, or
    time ran out. `minimize` is what the objective asks for besides the limits.
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
) -> FewestChips:
    """Return the fewest of the problem's chips, up to `most`, that keep the limits of an objective
    with tokens and a limit. The number of chips that the problem has is ignored. Layouts that need
    as much memory as `oom_gib`, with which a run like these ran out, are left out."""
    clusters, unit = _clusters_to_try(problem, objective, most)
    none = FewestChips(
        num_chips=None,
        most=most,
        tried=len(clusters),
        domain=_domain_chips(problem.cluster),
        unit=unit,
        exact=False,
        minimize=objective.minimize,
    )
    searched_all = True
    for cluster in clusters:
        if not should_continue():
            return none
        sized = replace(problem, cluster=cluster)
        # A step that takes just as long as is allowed keeps the limits too.
        limit_s = math.nextafter(max_step_time_s(sized, objective), math.inf)
        search_fast = partial(
            _search_fast_enough,
            sized,
            profile,
            Goal(faster_than=limit_s),
            should_continue,
            oom_gib,
        )
        try:
            solve_avoiding_oom(oom_gib, sized, constraints, search_fast)
        except (NothingFaster, NoLegalLayout, Infeasible):
            continue
        except TooLarge:
            searched_all = False
            continue
        return replace(none, num_chips=cluster.num_chips, exact=searched_all)
    return replace(none, exact=searched_all and should_continue())


def _search_fast_enough(
    problem: Problem,
    profile: Profile,
    goal: Goal,
    should_continue: ShouldContinue,
    oom_gib: float,
    constraints: Constraints,
) -> SearchAnswer:
    """Return the answer to the goal. Raise NothingFaster where layouts fit but none is fast enough.
    Raise Infeasible where none fits that needs less than `oom_gib`, because solve_avoiding_oom then
    tries again with all memory."""
    space = Space(problem, constraints)
    try:
        return search(space, profile, goal, should_continue)
    except NothingFaster:
        if math.isfinite(oom_gib):
            search(space, profile, Goal(), should_continue)
        raise


def _clusters_to_try(
    problem: Problem, objective: Objective, most: int
) -> tuple[list[Cluster], int]:
    """Return the clusters on which the peak of the chips keeps the limits, by size, and the number
    of chips that divides them all, beyond the divisors of a domain. That number is a larger power
    of two where there would be more than _MAX_TRIED clusters."""
    cluster = replace(problem.cluster, torus_shape=None)
    domain = _domain_chips(cluster)
    chip_seconds = problem.step_time_at_peak_s * cluster.num_chips
    able = [
        size
        for size in _clusters_up_to(cluster, most)
        if chip_seconds / size.num_chips
        <= max_step_time_s(replace(problem, cluster=size), objective)
    ]
    doublings = max(math.ceil(math.log2(max(len(able), 1) / _MAX_TRIED)), 0)
    unit = _largest_power_of_two_in(domain) << doublings
    tried = [size for size in able if size.num_chips % unit == 0 or domain % size.num_chips == 0]
    return tried, unit


def _clusters_up_to(cluster: Cluster, most: int) -> Iterator[Cluster]:
    """Yield the cluster in all sizes up to `most` chips that divide a domain, or are multiples of
    the largest power of two in it."""
    domain = _domain_chips(cluster)
    unit = _largest_power_of_two_in(domain)
    multiples: Array = np.arange(unit, most + 1, unit)
    parts = [part for part in divisors(domain) if part <= most]
    chips = np.union1d(multiples, parts).astype(np.int64)
    return clusters_with_devices(cluster, chips * cluster.chip.devices_per_chip)


def _domain_chips(cluster: Cluster) -> int:
    """Return the chips of a scale-up domain; 1 where a slice may be any number, or one domain joins
    all."""
    return cluster.fabric.domain or 1


def _largest_power_of_two_in(domain: int) -> int:
    """Return the largest power of two that divides a domain: 8 for 72 and for 8."""
    return domain & -domain
