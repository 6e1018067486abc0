"""A cluster choice answers "where should this run?". It ranks clusters, or numbers of chips, by the
time and the cost of a job of so many tokens on each.

A *choice* is one of them, with its figures or with the reason why it is *refused*. *Goodput* is the
share of time that failures leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from models.advice.choice import (
    Choice,
    Rank,
    choice_with_figures,
    choice_with_prediction,
    rank,
    refused_choice,
)
from models.advice.choice_words import place_words
from models.advice.fewer_chips import search_all_and_fewer
from models.advice.goodput import LEAST_GOODPUT
from models.advice.objective import Objective
from models.advice.recommendation import Recommendation
from models.advice.safe_fit import solve_avoiding_oom
from models.errors import Infeasible, Invalid, OutOfTime, TooLarge
from models.layouts.space import Space
from models.prediction.prediction import predict_layouts
from models.search.result import Goal, ShouldContinue, run_to_completion
from models.spec.constraints import Constraints
from models.spec.problem import Problem
from models.spec.profile import Profile

_HOPELESS_GOODPUT = 1e-6  # where no cluster keeps more, the question is refused
_NOTHING_HELD: Mapping[str, int] = MappingProxyType({})


def rank_clusters(
    problems: Mapping[str, Problem],
    profile: Profile,
    constraints: Constraints,
    objective: Objective,
    should_continue: ShouldContinue = run_to_completion,
    oom_gib: Callable[[Problem], float] = lambda _: math.inf,
    find_more: Callable[[], Mapping[str, Problem]] = dict,
    held_chips: Mapping[str, int] = _NOTHING_HELD,
) -> list[Choice]:
    """Return a choice for every cluster; `problems` has them by name. Clusters that meet the limits
    come first, from the best on; then come the others, by how much they miss the limits.

    Each cluster is searched once, the most promising first, until time runs out. `oom_gib` returns
    the least need of memory at which a run of a problem's model, chip and stack ran out.
    `find_more` is called when all have been searched, and returns more clusters, by default none.
    `held_chips` has, for each cluster that is a part of held nodes, how many chips are held, and
    paid. That part was chosen before, so its layouts must use all of its chips.
    """
    choices: list[Choice] = []

    def choice_on(name: str, problem: Problem) -> Choice:
        """Return the choice that a search of a cluster makes. A cluster that there is no time for
        is refused, unless it is the first: one at least is searched."""
        num_chips = held_chips.get(name, problem.cluster.num_chips)
        if choices and not should_continue():
            late = "time ran out before this cluster"
            return refused_choice(name, problem, late, num_chips, exact=False)
        # The cluster was made out of held nodes to be used as a whole.
        is_part = name in held_chips
        return _choice_on_cluster(
            name,
            problem,
            profile,
            replace(constraints, use_all_chips=True) if is_part else constraints,
            objective,
            should_continue,
            oom_gib=oom_gib(problem),
            num_chips=num_chips,
        )

    for name, problem in _most_promising_first(problems, objective):
        choices.append(choice_on(name, problem))
    for name, problem in _most_promising_first(find_more(), objective):
        choices.append(choice_on(name, problem))
    _require_time_between_failures(choices, objective)
    return sorted(choices, key=lambda choice: rank(choice, objective))


def _most_promising_first(
    problems: Mapping[str, Problem], objective: Objective
) -> list[tuple[str, Problem]]:
    """Return the clusters with their names, in the order in which they would rank if all chips ran
    at their peak."""

    def rank_at_peak(named_problem: tuple[str, Problem]) -> Rank:
        """Return the rank that a cluster would have if its chips ran at their peak."""
        name, problem = named_problem
        chips = problem.cluster.num_chips
        at_peak = choice_with_figures(
            name, problem, objective, problem.step_time_at_peak_s, chips_used=chips, num_chips=chips
        )
        return rank(at_peak, objective)

    return sorted(problems.items(), key=rank_at_peak)


def _require_time_between_failures(choices: Sequence[Choice], objective: Objective) -> None:
    """Raise Invalid if failures leave next to no time on the best cluster."""
    goodputs = [choice.goodput for choice in choices if choice.goodput is not None]
    best = max(goodputs, default=1.0)
    if best <= _HOPELESS_GOODPUT:
        share = "next to nothing" if best <= LEAST_GOODPUT else f"{best:.2g}"
        rule = (
            f"leaves next to no time between failures: of it {share} is kept with these"
            " checkpoint_s and restart_s"
        )
        raise Invalid("objective.failures_per_chip_hour", objective.failures_per_chip_hour, rule)


def with_recommendation(
    choice: Choice, problem: Problem, objective: Objective, recommendation: Recommendation
) -> Choice:
    """Return the choice with the figures of a recommendation for its cluster. The recommendation
    had more time to search, so its layout may be faster than that of the choice."""
    fastest = recommendation.fastest.prediction
    figures = choice_with_figures(
        choice.name,
        problem,
        objective,
        fastest.step_time_s,
        chips_used=recommendation.chips_used,
        num_chips=choice.num_chips,
    )
    all_chips_s = recommendation.fewer_chips.all_chips_s if recommendation.fewer_chips else None
    tried_all = recommendation.tried_fewer
    if choice.all_chips_s is not None:
        # The choice found fewer chips to be faster, and the recommendation was searched on these
        # alone. Whether all larger numbers were tried is known to the choice.
        tried_all = tried_all and choice.exact
    exact = recommendation.certificate.exact and tried_all
    return choice_with_prediction(figures, objective, fastest, all_chips_s, exact=exact)


def no_cluster_fits(choices: Sequence[Choice], first_error: Infeasible) -> Infeasible:
    """Return the error that says why no cluster has an answer, cluster by cluster. Its figures are
    those of `first_error`, the error of the first cluster."""
    reasons = "; ".join(f"{place_words(choice)}: {choice.refused}" for choice in choices)
    if not all(choice.exact for choice in choices):
        return OutOfTime(f"; {reasons}")  # appended to its own message
    detail = f"none of {len(choices)} clusters has a layout that fits; {reasons}"
    return Infeasible(
        constraint=first_error.constraint,
        detail=detail,
        needed=first_error.needed,
        available=first_error.available,
        unit=first_error.unit,
        enough_chips=first_error.enough_chips,
        surest=first_error.surest,
    )


# -- one cluster
# --------------------------------------------------------------------------------------------------


def _choice_on_cluster(
    name: str,
    problem: Problem,
    profile: Profile,
    constraints: Constraints,
    objective: Objective,
    should_continue: ShouldContinue,
    *,
    oom_gib: float,
    num_chips: int,
) -> Choice:
    """Return one cluster, after a search, as a choice with its figures, or refused with the reason.
    `num_chips` are paid, and layouts need less memory than `oom_gib`."""
    try:
        found = solve_avoiding_oom(
            oom_gib,
            Space(problem, constraints),
            lambda searched: search_all_and_fewer(searched, profile, Goal(), should_continue),
        )
    except Infeasible as error:
        exact = not isinstance(error, OutOfTime)
        return refused_choice(name, problem, error.brief, num_chips, exact=exact)
    except TooLarge as error:
        # `exact` stays true: more time would not make the search possible.
        return refused_choice(name, problem, str(error), num_chips)
    except Invalid as error:
        # A constraint that this cluster's stack does not know refuses this cluster alone. All other
        # errors are about the question as a whole.
        if not error.field.startswith("constraints"):
            raise
        return refused_choice(name, problem, f"{error.field}: {error.rule}", num_chips)
    used, answer = found.space.problem, found.answer
    choice = choice_with_figures(
        name,
        problem,
        objective,
        float(answer.times[0]),
        chips_used=used.cluster.num_chips,
        num_chips=num_chips,
    )
    (fastest,) = predict_layouts(used, [answer.layouts[0]], profile)
    all_chips_s = found.fewer_chips.all_chips_s if found.fewer_chips else None
    return choice_with_prediction(
        choice, objective, fastest, all_chips_s, exact=answer.certificate.exact
    )
