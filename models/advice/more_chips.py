"""More chips says how many chips of the same kind would hold a model that does not fit on the given
ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from models.advice.fewer_chips import clusters_with_devices, search_all_or_fewer
from models.errors import Infeasible, TooLarge
from models.layouts.space import Space
from models.search.result import Goal, NothingFaster, ShouldContinue
from models.spec.constraints import Constraints
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
    """Return the error with a number of chips that holds the model. Two, four, eight … times as
    many are tried. The first that fits is named, or the part of it that a layout uses."""
    cluster = problem.cluster
    largest_refused = 1
    for larger in clusters_with_devices(
        cluster, cluster.num_devices << np.arange(1, _DOUBLINGS + 1)
    ):
        if not should_continue():
            return error
        times = larger.num_chips // cluster.num_chips
        whole = Space(replace(problem, cluster=larger), constraints)
        try:
            space, *_ = search_all_or_fewer(whole, profile, _ANY_TIME, should_continue)
        except TooLarge:
            return error
        except (NothingFaster, Infeasible):
            if should_continue():  # otherwise the search may have ended for want of time
                largest_refused = times
            continue
        chips = space.problem.cluster.num_chips
        of = "" if chips == larger.num_chips else f"{chips} of "
        enough = f"{of}{larger.num_chips} chips, {times} times as many, have a layout that fits"
        return error.with_detail(enough, enough_chips=chips)
    if largest_refused == 1:
        return error
    return error.with_detail(f"{largest_refused} times as many chips would not help")
