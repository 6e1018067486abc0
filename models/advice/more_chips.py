"""More chips says how many chips of the same kind would hold a model that does not fit on the given
ones."""

from __future__ import annotations

from dataclasses import replace

from models.advice.chip_counts import attempt_each, clusters_with_devices
from models.advice.fewer_chips import search_all_else_fewer
from models.errors import Infeasible
from models.layouts.space import Space
from models.search.result import Goal, ShouldContinue
from models.spec.constraints import Constraints
from models.spec.hardware import Cluster
from models.spec.problem import Problem
from models.spec.profile import Profile

_DOUBLINGS = 6  # up to 64 times as many chips are tried
_ANY_TIME = Goal(faster_than=1e30)
"""A goal that any step time meets. Unlike an open goal it fails with NothingFaster, before the
search works out how much memory is missing. That figure would not be used here."""


def add_enough_chips(
    error: Infeasible,
    problem: Problem,
    profile: Profile,
    constraints: Constraints,
    should_continue: ShouldContinue,
) -> Infeasible:
    """Return the error with a number of chips that holds the model. Two, four, eight and so on
    times as many are tried. The first that fits is named, or the part of it that a layout uses; if
    none fits, the error says so."""
    cluster = problem.cluster
    multiples = [cluster.num_devices << doublings for doublings in range(1, _DOUBLINGS + 1)]
    clusters = clusters_with_devices(cluster, multiples)

    def chips_used(larger: Cluster) -> int:
        """Return the chips that some layout on this cluster uses. Raise one of the errors that
        `attempt_each` catches where none fits."""
        whole = Space(replace(problem, cluster=larger), constraints)
        # Any layout that fits will do, so the goal is a step time that all of them meet.
        found = search_all_else_fewer(whole, profile, _ANY_TIME, should_continue)
        return found.space.problem.cluster.num_chips

    largest_refused = 1  # as a multiple of the given chips, which were refused before
    for attempt in attempt_each(clusters, chips_used, should_continue):
        larger = attempt.cluster.num_chips
        times = larger // cluster.num_chips
        if attempt.too_large:  # larger clusters have even more layouts
            return error
        if attempt.solution is not None:
            part = "" if attempt.solution == larger else f"{attempt.solution} of "
            enough = f"{part}{larger} chips, {times} times as many, have a layout that fits"
            return error.with_detail(enough, enough_chips=attempt.solution)
        if should_continue():  # Otherwise the search may have ended for want of time.
            largest_refused = times
    if largest_refused == 1 or not should_continue():
        return error
    return error.with_detail(f"{largest_refused} times as many chips would not help")
