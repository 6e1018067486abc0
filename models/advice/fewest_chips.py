"""The fewest chips of a kind that train so many tokens by a deadline, or within a budget.

Twice the chips are not half the time: a number that divides badly may be slower than a smaller one,
so that there is nothing to bisect. Numbers are tried from the least that the chip's peak allows
upwards, each searched only for what is fast enough, which bounds settle quickly where it is far
from that: those that divide a scale-up domain, and multiples of the largest power of two that does
(of 72: 1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, …).
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
from models.search.branch_and_bound import search
from models.search.result import Answer, Goal, NothingFaster, ShouldContinue, run_to_completion
from models.search.tables import NoLegalLayout
from models.spec.constraints import Constraints
from models.spec.hardware import Cluster
from models.spec.problem import Problem
from models.spec.profile import Profile

_TRIED = 1024  # numbers of chips, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class FewestChips:
    """`num_chips` that keep the limits; None where no number that was tried does. Not `exact` where
    some were too large for a search, or time ran out before all were. `tried`: how many numbers up
    to `most` there were to try: divisors of a scale-up `domain`, and multiples of `unit`; all in
    chips. `minimize`: what else the objective asks for."""

    num_chips: int | None
    most: int
    tried: int
    domain: int
    unit: int
    exact: bool
    minimize: Minimized

    @property
    def reason(self) -> str:
        parts = f"divisors of {self.domain} and " if self.domain > 1 else ""
        of = f"of {self.tried} numbers that were tried ({parts}multiples of {self.unit})"
        if self.num_chips is not None:
            but = "" if self.exact else ", but for some that are too large to search"
            better = (
                f"; others may have {SUPERLATIVES[self.minimize]}: alternatives.num_chips compares those"
                " that it names"
            )
            more = "" if self.minimize == "chips" else better
            return f"{self.num_chips} chips are the fewest {of} that keep the limits{but}{more}"
        if not self.tried:
            return (
                f"fewest chips: up to {self.most} chips not even the peak of all keeps the limits"
            )
        if self.exact:
            return f"fewest chips: none {of} keeps the limits"
        return (
            f"fewest chips: time ran out, or numbers were too large to search, before one {of} kept"
            " the limits"
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
    """Of the problem's chips and links, up to `most`, whatever their number there. The objective
    has tokens and a limit for them. `oom_gib`: with which a run like these has run out of
    memory."""
    sizes, unit = _sizes(problem, objective, most)
    domain = _domain(problem.cluster)
    none = FewestChips(
        num_chips=None,
        most=most,
        tried=len(sizes),
        domain=domain,
        unit=unit,
        exact=False,
        minimize=objective.minimize,
    )
    searched_all = True
    for tried in (replace(problem, cluster=cluster) for cluster in sizes):
        if not should_continue():
            return none
        fast = Goal(faster_than=math.nextafter(max_step_time_s(tried, objective), math.inf))
        try:
            solve_avoiding_oom(
                oom_gib,
                tried,
                constraints,
                partial(_found, tried, profile, fast, should_continue, oom_gib),
            )
        except (NothingFaster, NoLegalLayout, Infeasible):
            continue
        except TooLarge:
            searched_all = False
            continue
        return replace(none, num_chips=tried.cluster.num_chips, exact=searched_all)
    return replace(none, exact=searched_all and should_continue())


def _found(
    problem: Problem,
    profile: Profile,
    goal: Goal,
    should_continue: ShouldContinue,
    oom_gib: float,
    constraints: Constraints,
) -> Answer:
    """Raises NothingFaster, or, where it may be for want of memory that is left alone, Infeasible
    if nothing fits."""
    try:
        return search(Space(problem, constraints), profile, goal, should_continue)
    except NothingFaster:
        if math.isfinite(oom_gib):
            search(Space(problem, constraints), profile, Goal(), should_continue)
        raise


def _sizes(problem: Problem, objective: Objective, most: int) -> tuple[list[Cluster], int]:
    """Those that the peak allows, in order; and of how many chips they are multiples beyond the
    divisors of a domain, which where there are very many is a larger power of two."""
    cluster = replace(problem.cluster, torus_shape=None)
    domain, chip_s = _domain(cluster), problem.step_time_at_peak_s * cluster.num_chips
    able = [
        size
        for size in _whole(cluster, most)
        if chip_s / size.num_chips <= max_step_time_s(replace(problem, cluster=size), objective)
    ]
    apart = _unit(domain) << max(math.ceil(math.log2(max(len(able), 1) / _TRIED)), 0)
    return [
        size for size in able if size.num_chips % apart == 0 or domain % size.num_chips == 0
    ], apart


def _whole(cluster: Cluster, most: int) -> Iterator[Cluster]:
    """Of all parts of a domain, and all units, that there are room for."""
    domain = _domain(cluster)
    units: Array = np.arange(_unit(domain), most + 1, _unit(domain))
    parts = [part for part in divisors(domain) if part <= most]
    return clusters_with_devices(
        cluster, np.union1d(units, parts).astype(np.int64) * cluster.chip.devices_per_chip
    )


def _domain(cluster: Cluster) -> int:
    """Chips of a scale-up domain; 1 where a slice may be any number, or one domain joins all."""
    return cluster.fabric.domain or 1


def _unit(domain: int) -> int:
    """The largest power of two that divides a domain: of 72 as of 8 it is 8."""
    return domain & -domain
