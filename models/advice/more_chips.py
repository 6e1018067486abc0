"""More chips of the same kind, where what there are cannot hold the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from models.advice.fewer_chips import built, search_all_or_fewer
from models.errors import Infeasible, TooLarge
from models.layouts.space import Space
from models.search.result import Goal, NothingFaster, ShouldContinue
from models.spec.constraints import Constraints
from models.spec.problem import Problem
from models.spec.profile import Profile

_DOUBLINGS = 6
_WHATEVER = Goal(faster_than=1e30)
"""Any time will do; and where there is none, nobody asks how much memory is missing."""


def with_enough_chips(
    error: Infeasible,
    problem: Problem,
    profile: Profile,
    constraints: Constraints,
    should_continue: ShouldContinue,
) -> Infeasible:
    """The error, with a number of chips that holds the model: of two times, four times, … as many
    the first that does, or fewer of those where no layout uses all."""
    cluster, most = problem.cluster, 1
    for larger in built(cluster, cluster.num_devices << np.arange(1, _DOUBLINGS + 1)):
        if not should_continue():
            return error
        times = larger.num_chips // cluster.num_chips
        whole = Space(replace(problem, cluster=larger), constraints)
        try:
            space, *_ = search_all_or_fewer(whole, profile, _WHATEVER, should_continue)
        except TooLarge:
            return error
        except (NothingFaster, Infeasible):
            most = times if should_continue() else most
            continue
        chips = space.problem.cluster.num_chips
        of = "" if chips == larger.num_chips else f"{chips} of "
        enough = f"{of}{larger.num_chips} chips, {times} times as many, have a layout that fits"
        return error.with_detail(enough, enough_chips=chips)
    return error if most == 1 else error.with_detail(f"{most} times as many chips would not help")
