"""A cluster choice answers "where should this run?". It ranks clusters, or numbers of chips, by the
time and the cost of a job of so many tokens on each.

Goodput is the share of time that failures leave. Failures happen every M = 1/(rate · chips) seconds
on average, at times that nothing foretells; a checkpoint takes C, and a restart R. Work of τ
seconds between checkpoints then takes M · e^(R/M) · (e^((τ + C)/M) - 1) (Daly 2006,
doi:10.1016/j.future.2004.11.016, equation 20). The loss is least for τ/M = 1 - e^-((τ + C)/M),
which is nearly √(2·C·M) where failures are rare (Young 1974, doi:10.1145/361147.361115).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from models.advice.fewer_chips import fastest_on_fewer, search_all_or_fewer
from models.advice.recommendation import Recommendation
from models.advice.safe_fit import solve_avoiding_oom
from models.errors import Infeasible, Invalid, OutOfTime, TooLarge
from models.layouts.space import Space
from models.prediction.prediction import Prediction, predict_layouts
from models.search.result import Goal, SearchAnswer, ShouldContinue, run_to_completion
from models.spec.constraints import Constraints
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile

_NO_FAILURES = 1e-12  # an hour: fewer count as none, which keeps the time between them finite
_LEAST_GOODPUT = 1e-12  # less is shown as this, so that divisions by it stay finite
_HOPELESS_GOODPUT = 1e-6  # where no cluster keeps more, the question is refused
_WORTH_SAYING_GOODPUT = 0.9  # a reason names goodput below this
_NEWTON_STEPS = 8  # it converges quadratically from Young's estimate
_LEAST_PLAIN = 1e-4  # numbers from here up are written without an exponent
_MOST_PLAIN = 1e13  # and numbers below this
SUPERLATIVES = {
    "step_time": "the shortest step",
    "time": "the shortest time",
    "cost": "the lowest cost",
    "chips": "the fewest chips",
}

Minimized = Literal["step_time", "time", "cost", "chips"]
_Rank = tuple[float, float, float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The aim by which a cluster is chosen.

    `minimize` is seconds of a step ("step_time"), hours until `tokens` are trained ("time"), US
    dollars for them ("cost"), or "chips". It is minimised among the clusters that keep
    `deadline_hours` and `budget_usd`. Without tokens, time and cost are counted for a million
    tokens. Failures are counted per chip and hour. `checkpoint_s` and `restart_s` are the seconds
    of a checkpoint, which stops training, and of a restart.
    """

    minimize: Minimized = "step_time"
    tokens: float | None = None
    deadline_hours: float | None = None
    budget_usd: float | None = None
    failures_per_chip_hour: float = 0.0
    checkpoint_s: float = 0.0
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("deadline_hours", "budget_usd"):
            if getattr(self, name) is not None and self.tokens is None:
                raise Invalid("objective.tokens", None, f"is required with {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One cluster, with the time and the cost of the job there.

    Figures are None where no layout is legal and fits; `refused` says why. `layout` is the fastest.
    `chips_used` are fewer than `num_chips` where no layout uses all, or where fewer are faster; in
    the second case a step takes `all_chips_s` with all of them. `goodput` is the share of time that
    is not lost to failures, and `checkpoint_every_s` is None without failures. `meets` says that
    every limit is kept. `exact` says that there was time for all layouts, and for all numbers of
    chips that are worth a try.
    """

    name: str
    chip: str
    num_chips: int
    chips_used: int | None = None
    all_chips_s: float | None = None
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    grade: str | None = None
    tokens_per_s: float | None = None
    goodput: float | None = None
    checkpoint_every_s: float | None = None
    hours: float | None = None
    usd_per_chip_hour: float | None = None
    usd: float | None = None
    usd_per_million_tokens: float | None = None
    meets: bool = False
    exact: bool = True
    refused: str | None = None
    layout: Layout | None = None


def rank_clusters(
    problems: Mapping[str, Problem],
    profile: Profile,
    constraints: Constraints,
    objective: Objective,
    should_continue: ShouldContinue = run_to_completion,
    oom_gib: Callable[[Problem], float] = lambda _: math.inf,
    find_more: Callable[[], Mapping[str, Problem]] = dict,
    whole: Collection[str] = (),
) -> list[Choice]:
    """Return every cluster, by name in `problems`, as a choice. Those that meet the limits come
    first, the best of them foremost; then come the others, by how much they miss the limits.

    Each is searched exactly once, the most promising first, until time runs out. `oom_gib` returns
    the memory with which a run like these ran out on a cluster. `find_more` returns clusters to
    add, and is called after the others have been searched. `whole` are the clusters of which all
    chips are used, since nodes were chosen for them already.
    """
    found: list[Choice] = []

    def add(more_problems: Mapping[str, Problem]) -> None:
        for name in _most_promising_first(more_problems, objective):
            problem = more_problems[name]
            if found and not should_continue():
                late = "time ran out before this cluster"
                found.append(_refused_choice(name, problem, late, exact=False))
            else:
                limit_gib = oom_gib(problem)
                asked = replace(constraints, use_all_chips=True) if name in whole else constraints
                found.append(
                    _choice_on_cluster(
                        name, problem, profile, asked, objective, should_continue, limit_gib
                    )
                )

    add(problems)
    add(find_more())
    _require_time_between_failures(found, objective)
    return sorted(found, key=lambda choice: _rank(choice, objective))


def _most_promising_first(problems: Mapping[str, Problem], objective: Objective) -> list[str]:
    """Return the names of the clusters in the order in which they would rank if a step took no
    longer than at the peak of their chips."""

    def rank_at_peak(name: str) -> _Rank:
        problem = problems[name]
        step_time_s = problem.step_time_at_peak_s
        chips = problem.cluster.num_chips
        return _rank(_choice_with_figures(name, problem, objective, step_time_s, chips), objective)

    return sorted(problems, key=rank_at_peak)


def _require_time_between_failures(choices: Sequence[Choice], objective: Objective) -> None:
    """Raise Invalid where failures leave next to no time on any cluster."""
    goodputs = [choice.goodput for choice in choices if choice.goodput is not None]
    best = max(goodputs, default=1.0)
    if best <= _HOPELESS_GOODPUT:
        kept = "next to nothing" if best <= _LEAST_GOODPUT else f"{best:.2g}"
        rule = (
            f"leaves next to no time between failures: of it {kept} is kept with these"
            " checkpoint_s and restart_s"
        )
        raise Invalid("objective.failures_per_chip_hour", objective.failures_per_chip_hour, rule)


def with_recommendation(
    choice: Choice, problem: Problem, objective: Objective, found: Recommendation
) -> Choice:
    """Return the choice with the figures of its recommendation, for which there was more time."""
    fastest = found.fastest.prediction
    figures = _choice_with_figures(
        choice.name, problem, objective, fastest.step_time_s, found.chips_used
    )
    all_chips_s = found.fewer_chips.all_chips_s if found.fewer_chips else None
    tried_all = found.tried_fewer
    if choice.all_chips_s is not None:
        # The recommendation is on fewer chips already, and knows nothing of the numbers above.
        tried_all = tried_all and choice.exact
    exact = found.certificate.exact and tried_all
    return _choice_with_prediction(figures, objective, fastest, all_chips_s, exact=exact)


def max_step_time_s(problem: Problem, objective: Objective) -> float:
    """Return the longest step, in seconds, with which the tokens are trained within the limits of
    the objective. The objective must have a limit."""
    chips = problem.cluster.num_chips
    limits_hours = [math.inf]
    if objective.deadline_hours is not None:
        limits_hours.append(objective.deadline_hours)
    if objective.budget_usd is not None:
        price = _usd_per_chip_hour("cluster", problem, objective)
        limits_hours.append(objective.budget_usd / (chips * price) if price else math.inf)
    _, goodput = _checkpointing(chips, objective)
    tokens = objective.tokens or math.inf
    return min(limits_hours) * 3600 * goodput * problem.workload.tokens / tokens


def no_cluster_fits(choices: Sequence[Choice], error: Infeasible) -> Infeasible:
    """Return the error that says why no cluster has an answer. `error` says why the first has
    none."""
    each = "; ".join(f"{_place_words(choice)}: {choice.refused}" for choice in choices)
    if not all(choice.exact for choice in choices):
        return OutOfTime(f"; {each}")
    detail = f"none of {len(choices)} clusters has a layout that fits; {each}"
    return Infeasible(
        error.constraint,
        detail,
        error.needed,
        error.available,
        error.unit,
        error.enough_chips,
        surest=error.surest,
    )


# -- rank
# --------------------------------------------------------------------------------------------------


def _rank(choice: Choice, objective: Objective) -> _Rank:
    """Return the key by which choices are ordered, the best least: the excess over the limits, the
    figure that is minimised, the time, and the number of chips."""
    return (
        _limit_excess(choice, objective),
        _minimized(choice, objective),
        _minimized(choice, replace(objective, minimize="time")),
        choice.num_chips,
    )


def _minimized(choice: Choice, objective: Objective) -> float:
    """Return the figure that the objective minimises; infinite where a choice has none."""
    if choice.step_time_s is None or choice.tokens_per_s is None or choice.goodput is None:
        return math.inf
    return {
        "step_time": choice.step_time_s,
        "time": 1 / (choice.tokens_per_s * choice.goodput),
        "cost": choice.usd_per_million_tokens or 0.0,
        "chips": float(choice.chips_used or choice.num_chips),
    }[objective.minimize]


def _limit_excess(choice: Choice, objective: Objective) -> float:
    """Return the largest ratio of a figure to its limit; 1 where the choice keeps all limits."""
    if choice.refused is not None:
        return math.inf
    return max([1.0, *_limit_shares(choice, objective).values()])


def _limit_shares(choice: Choice, objective: Objective) -> dict[str, float]:
    """Return the share of each limit that a choice takes, by the name of the limit. The choice must
    not be refused."""
    figures = {"deadline_hours": choice.hours, "budget_usd": choice.usd}
    return {name: (figures[name] or 0.0) / limit for name, limit in _limits(objective).items()}


def _limits(objective: Objective) -> dict[str, float]:
    limits = {"deadline_hours": objective.deadline_hours, "budget_usd": objective.budget_usd}
    return {name: limit for name, limit in limits.items() if limit is not None}


# -- one cluster
# --------------------------------------------------------------------------------------------------


def _choice_on_cluster(
    name: str,
    problem: Problem,
    profile: Profile,
    constraints: Constraints,
    objective: Objective,
    should_continue: ShouldContinue,
    oom_gib: float,
) -> Choice:
    """Search one cluster, and return it with its figures, or with the reason why it is refused."""
    try:
        space, answer, all_chips_s = solve_avoiding_oom(
            oom_gib,
            problem,
            constraints,
            lambda tighter: _search_all_and_fewer(
                Space(problem, tighter), profile, should_continue
            ),
        )
    except Infeasible as error:
        exact = not isinstance(error, OutOfTime)
        return _refused_choice(name, problem, error.brief, exact=exact)
    except TooLarge as error:
        return _refused_choice(name, problem, str(error))
    except Invalid as error:
        # A constraint that this cluster's stack does not know refuses this cluster alone.
        if not error.field.startswith("constraints"):
            raise
        return _refused_choice(name, problem, f"{error.field}: {error.rule}")
    choice = _choice_with_figures(
        name, problem, objective, float(answer.times[0]), space.problem.cluster.num_chips
    )
    (prediction,) = predict_layouts(space.problem, [answer.layouts[0]], profile)
    return _choice_with_prediction(
        choice, objective, prediction, all_chips_s, exact=answer.certificate.exact
    )


def _search_all_and_fewer(
    space: Space, profile: Profile, should_continue: ShouldContinue
) -> tuple[Space, SearchAnswer, float | None]:
    """Return the space and the answer on all chips, or on fewer where no layout uses all or fewer
    are faster. The third value is the step time with all chips where fewer are faster, and None
    elsewhere."""
    space, answer, fewer_chips = search_all_or_fewer(space, profile, Goal(), should_continue)
    if fewer_chips:
        return space, answer, None
    all_chips_s = float(answer.times[0])
    faster, tried_fewer = fastest_on_fewer(space, profile, all_chips_s, should_continue)
    best = faster.answer if faster else answer
    if not tried_fewer:
        best = best.inexact(space.problem.step_time_at_peak_s)
    return (faster.space, best, all_chips_s) if faster else (space, best, None)


def _refused_choice(name: str, problem: Problem, why: str, *, exact: bool = True) -> Choice:
    cluster = problem.cluster
    return Choice(
        name=name, chip=cluster.chip.id, num_chips=cluster.num_chips, refused=why, exact=exact
    )


def _choice_with_figures(
    name: str, problem: Problem, objective: Objective, step_time_s: float, chips_used: int
) -> Choice:
    """Return a cluster with the time and the cost of the job, for a step that takes so long on so
    many of its chips."""
    price = _usd_per_chip_hour(name, problem, objective)
    checkpoint_every_s, goodput = _checkpointing(chips_used, objective)
    tokens_per_s = problem.workload.tokens / step_time_s
    hours = None
    usd = None
    usd_per_million = None
    if objective.tokens is not None:
        hours = objective.tokens / (tokens_per_s * goodput) / 3600
    if price is not None:
        usd_per_million = price * chips_used / 3600 / (tokens_per_s * goodput) * 1e6
        if hours is not None:
            usd = price * chips_used * hours
    return Choice(
        name=name,
        chip=problem.cluster.chip.id,
        num_chips=problem.cluster.num_chips,
        chips_used=chips_used,
        step_time_s=step_time_s,
        tokens_per_s=tokens_per_s,
        goodput=goodput,
        checkpoint_every_s=checkpoint_every_s,
        hours=hours,
        usd_per_chip_hour=price,
        usd=usd,
        usd_per_million_tokens=usd_per_million,
    )


def _choice_with_prediction(
    choice: Choice,
    objective: Objective,
    fastest: Prediction,
    all_chips_s: float | None,
    *,
    exact: bool,
) -> Choice:
    """Return the choice with the figures of its fastest layout's prediction, and whether it meets
    the limits."""
    return replace(
        choice,
        layout=fastest.layout,
        all_chips_s=all_chips_s,
        step_time_low_s=fastest.step_time_low_s,
        step_time_high_s=fastest.step_time_high_s,
        grade=fastest.provenance.grade,
        meets=_limit_excess(choice, objective) <= 1,
        exact=exact,
    )


def _usd_per_chip_hour(name: str, problem: Problem, objective: Objective) -> float | None:
    """Return the price of a chip; None where it is not known. Raise Invalid where it is not known
    and the objective asks for it."""
    chip = problem.cluster.chip
    asks_for_price = objective.minimize == "cost" or objective.budget_usd is not None
    if chip.usd_per_chip_hour is None and asks_for_price:
        rule = f"is required, or a usd_per_chip_hour of {name}: chip {chip.id} has no known price"
        raise Invalid("objective.usd_per_chip_hour", None, rule)
    return chip.usd_per_chip_hour


def _checkpointing(chips: int, objective: Objective) -> tuple[float | None, float]:
    """Return (seconds of work between checkpoints, goodput) where goodput is highest. Times are
    counted in mean times between failures. The module's docstring has the formulas."""
    if objective.failures_per_chip_hour * chips < _NO_FAILURES:
        return None, 1.0
    between_failures_s = 3600 / (objective.failures_per_chip_hour * chips)
    checkpoint = objective.checkpoint_s / between_failures_s
    restart = objective.restart_s / between_failures_s
    work = _best_work_between_checkpoints(checkpoint)
    if work:
        # This is work / (e^restart · (e^(work + checkpoint) - 1)), in a form that keeps its digits
        # for short times and does not overflow for long ones.
        time = math.expm1(work) - math.expm1(-checkpoint)
        goodput = work * math.exp(-checkpoint - restart) / time
    else:
        goodput = math.exp(-restart)
    return work * between_failures_s, max(goodput, _LEAST_GOODPUT)


def _best_work_between_checkpoints(checkpoint: float) -> float:
    """Return the work between checkpoints that loses least, for a checkpoint that takes so long;
    both in mean times between failures. It is found by Newton's method from Young's estimate."""
    work = min(math.sqrt(2 * checkpoint), 1.0)
    if not work:
        return work
    for _ in range(_NEWTON_STEPS):
        work += 1 + work / math.expm1(-work - checkpoint)
    return work


# -- reasons
# --------------------------------------------------------------------------------------------------


def choice_reason(choices: Sequence[Choice], objective: Objective) -> str:
    """Return the reason why the first of the choices is the best. It puts the figures of the best
    beside those of the next that keeps the limits as it does, and names the clusters that are
    refused or were not reached."""
    best = choices[0]
    answered = [choice for choice in choices if choice.refused is None]
    keeping = [choice for choice in answered if choice.meets]
    unreached = sum(map(_is_unreached, choices))
    places = len(choices) - unreached
    if answered:
        words = _best_choice_words(best, len(keeping), places, objective)
    else:
        words = f"none of {len(choices)} places has a layout that is known to fit"
    reason = f"where: {words}"
    others = [choice for choice in keeping or answered if choice is not best]
    if others:
        reason += f"; then {_place_and_figures(others[0])}"
        if _intervals_overlap(best, others[0], objective):
            reason += " (within their 80% intervals either may be the better)"
    refused = [
        _place_words(choice)
        for choice in choices
        if choice.refused is not None and not _is_unreached(choice)
    ]
    if refused:
        reason += f"; refused: {', '.join(refused)}"
    if unreached:
        plural = "s" if unreached > 1 else ""
        reason += f"; time ran out before {unreached} other{plural}, of which any may be better"
    return reason


def _is_unreached(choice: Choice) -> bool:
    """Say whether a choice has no figures for want of time."""
    return choice.refused is not None and not choice.exact


def _best_choice_words(best: Choice, keeping: int, places: int, objective: Objective) -> str:
    """Return, in words, what makes a choice the best of so many `places`, of which so many are
    `keeping` the limits."""
    limit_words = {
        name: f"{name} = {_format_plain(limit)}" for name, limit in _limits(objective).items()
    }
    limits = " and ".join(limit_words.values())
    if not keeping:
        shares = _limit_shares(best, objective)
        broken = " and ".join(limit_words[name] for name, share in shares.items() if share > 1)
        nearest = f"none of {places} places keeps {limits}; the nearest is " if places > 1 else ""
        return f"{nearest}{_place_and_figures(best)}, which breaks {broken}"
    if places == 1:
        return _place_and_figures(best)
    if limits and keeping == 1:
        return f"only one of {places} places keeps {limits}: {_place_and_figures(best)}"
    among = f"of {places} places"
    if limits:
        among = f"{keeping} of {places} places keep {limits}, and of those"
    superlative = SUPERLATIVES[objective.minimize]
    return f"{among} {_place_words(best)} has {superlative}: {_figures_words(best)}"


def _place_and_figures(choice: Choice) -> str:
    return f"{_place_words(choice)}: {_figures_words(choice)}"


def _place_words(choice: Choice) -> str:
    is_partly_used = choice.chips_used not in (None, choice.num_chips)
    fewer = f"{choice.chips_used} of " if is_partly_used else ""
    return f"{choice.name} ({fewer}{choice.num_chips} {choice.chip})"


def _figures_words(choice: Choice) -> str:
    words = [
        f"{choice.step_time_s:.4g} s a step ({choice.step_time_low_s:.3g} to"
        f" {choice.step_time_high_s:.3g})"
    ]
    figures = {"hours": choice.hours, "USD": choice.usd}
    if choice.usd is None:
        figures["USD per million tokens"] = choice.usd_per_million_tokens
    words += [
        f"{_format_plain(value)} {unit}" for unit, value in figures.items() if value is not None
    ]
    if (choice.goodput or 1.0) < _WORTH_SAYING_GOODPUT:
        words.append(f"{choice.goodput:.3g} of the time kept")
    return ", ".join(words)


def _format_plain(value: float) -> str:
    """Return a number with four digits, without an exponent where a person would write none."""
    if not _LEAST_PLAIN <= value < _MOST_PLAIN:
        return f"{value:.4g}"
    decimals = 3 - math.floor(math.log10(value))
    shown = f"{round(value, decimals):,.{max(decimals, 0)}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def _intervals_overlap(best: Choice, other: Choice, objective: Objective) -> bool:
    """Say whether, by their intervals of step time, the other may be as good as the best."""
    depends_on_time = objective.minimize != "chips" and _minimized(best, objective) > 0
    if not (depends_on_time and best.step_time_s and best.step_time_high_s and other.step_time_s):
        return False
    low, high = _interval_of_minimized(best, objective)
    other_low, other_high = _interval_of_minimized(other, objective)
    return other_low <= high and low <= other_high


def _interval_of_minimized(choice: Choice, objective: Objective) -> tuple[float, float]:
    """Return the interval of the figure that is minimised, in proportion to that of step time."""
    per_second = _minimized(choice, objective) / (choice.step_time_s or math.inf)
    low_s = choice.step_time_low_s or 0.0
    high_s = choice.step_time_high_s or math.inf
    return per_second * low_s, per_second * high_s
