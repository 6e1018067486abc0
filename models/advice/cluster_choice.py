"""Where should this run? Clusters, or numbers of chips, by what a job of so many tokens takes and
costs on each.

Goodput: with a failure every M = 1/(rate · chips) seconds on average, at times that nothing
foretells, a checkpoint that takes C and a restart that takes R, work of τ seconds between
checkpoints takes M · e^(R/M) · (e^((τ + C)/M) - 1) (Daly 2006, doi:10.1016/j.future.2004.11.016,
equation 20); least for τ/M = 1 - e^-((τ + C)/M), which is nearly √(2·C·M) where failures are rare
(Young 1974, doi:10.1145/361147.361115).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from models.advice.fewer_chips import best_with_fewer, search_all_or_fewer
from models.advice.recommendation import Recommendation
from models.advice.safe_fit import avoiding
from models.errors import Infeasible, Invalid, OutOfTime, TooLarge
from models.layouts.space import Space
from models.prediction.prediction import Prediction, predict_layouts
from models.search.result import Answer, Goal, ShouldContinue, run_to_completion
from models.spec.constraints import Constraints
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile

_NEVER = 1e-12  # failures an hour
_LITTLE = 1e-12  # of the time: less is kept of nothing
_HOPELESS = 1e-6  # of the time: with no more kept anywhere, the question is refused
_MUCH = 0.9  # of the time: to keep less than that is worth a word
_STEPS = 8
_LEAST_PLAIN, _MOST_PLAIN = 1e-4, 1e13
BEST = {
    "step_time": "the shortest step",
    "time": "the shortest time",
    "cost": "the lowest cost",
    "chips": "the fewest chips",
}

Minimized = Literal["step_time", "time", "cost", "chips"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What to `minimize`: seconds of a step, hours until `tokens` are trained, US dollars for them,
    or chips; among those that keep `deadline_hours` and `budget_usd`. Without tokens, "time" and
    "cost" are per million of them.

    Failures per chip and hour, and seconds that a checkpoint (which stops training) and a restart
    take.
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
    """One cluster. `goodput`: the share of time that is not lost to failures; `checkpoint_every_s`,
    None without failures. Figures are None where no layout is legal and fits, `refused` says why;
    `meets`: every limit is kept. `chips_used` are fewer than its `num_chips` where no layout uses
    all, or fewer are faster: with all a step takes `all_chips_s`. `exact`: there was time for all
    layouts, and all numbers of chips that are worth a try; `layout`: the fastest."""

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


def choose(
    problems: Mapping[str, Problem],
    profile: Profile,
    constraints: Constraints,
    objective: Objective,
    should_continue: ShouldContinue = run_to_completion,
    failed_gib: Callable[[Problem], float] = lambda _: math.inf,
    more: Callable[[], Mapping[str, Problem]] = dict,
) -> list[Choice]:
    """Every cluster by name, those that meet the limits first, the best of them foremost, then
    those that miss them by less; one exact search each, of what would be the best at the peak of
    its chips first. `failed_gib`: with which a run like these has run out of memory there, if any
    has; `more`: clusters that are looked for after these."""
    found: list[Choice] = []

    def add(places: Mapping[str, Problem]) -> None:
        for name, problem in _promising(places, objective):
            if found and not should_continue():
                late = "time ran out before this cluster"
                chip, chips = problem.cluster.chip.id, problem.cluster.num_chips
                found.append(
                    Choice(name=name, chip=chip, num_chips=chips, refused=late, exact=False)
                )
            else:
                failed = failed_gib(problem)
                found.append(
                    _choice(name, problem, profile, constraints, objective, should_continue, failed)
                )

    add(problems)
    add(more())
    _require_hope(found, objective)
    return sorted(found, key=lambda one: _rank(one, objective))


def _promising(problems: Mapping[str, Problem], objective: Objective) -> list[tuple[str, Problem]]:
    """Those first that would be the best at the peak of their chips."""

    def rank(name: str) -> tuple[float, float, float, int]:
        problem = problems[name]
        return _rank(
            _figured(
                name, problem, objective, problem.step_time_at_peak_s, problem.cluster.num_chips
            ),
            objective,
        )

    return [(name, problems[name]) for name in sorted(problems, key=rank)]


def _require_hope(choices: Sequence[Choice], objective: Objective) -> None:
    """Refuse failures that leave no time anywhere."""
    kept = max((choice.goodput for choice in choices if choice.goodput is not None), default=1.0)
    if kept <= _HOPELESS:
        of_it = "next to nothing" if kept <= _LITTLE else f"{kept:.2g}"
        rule = (
            f"leaves next to no time between failures: of it {of_it} is kept with these"
            " checkpoint_s and restart_s"
        )
        raise Invalid("objective.failures_per_chip_hour", objective.failures_per_chip_hour, rule)


def settled(
    choice: Choice, problem: Problem, objective: Objective, found: Recommendation
) -> Choice:
    """The same with the figures of the answer on it, for which there was more time."""
    figures = _figured(
        choice.name, problem, objective, found.fastest.prediction.step_time_s, found.chips_used
    )
    all_tried = found.tried_fewer and found.faster_on_fewer is None
    if choice.all_chips_s is not None:
        all_tried = all_tried and choice.exact
    exact = found.certificate.exact and all_tried
    return _judged(figures, objective, found.fastest.prediction, choice.all_chips_s, exact=exact)


def _rank(choice: Choice, objective: Objective) -> tuple[float, float, float, int]:
    """The lower the better."""
    sooner = _least(choice, replace(objective, minimize="time"))
    return _excess(choice, objective), _least(choice, objective), sooner, choice.num_chips


def told(choices: Sequence[Choice], objective: Objective) -> str:
    """Why the first of them is: its figures beside those of the next that keeps the limits as it
    does."""
    best, possible = choices[0], [choice for choice in choices if choice.refused is None]
    keeping, late = [choice for choice in possible if choice.meets], sum(map(_is_late, choices))
    said = f"where: {_first(best, len(keeping), len(choices) - late, objective)}"
    if others := [choice for choice in keeping or possible if choice is not best]:
        said += f"; then {_figures(others[0])}"
        said += (
            " (within their 80% intervals either may be the better)"
            if _overlap(best, others[0], objective)
            else ""
        )
    if refused := [
        _where(choice) for choice in choices if choice.refused is not None and not _is_late(choice)
    ]:
        said += f"; refused: {', '.join(refused)}"
    if late:
        said += f"; time ran out before {late} other{'s' * (late > 1)}, of which any may be better"
    return said


def _is_late(choice: Choice) -> bool:
    """Whether it has no figures for want of time."""
    return choice.refused is not None and not choice.exact


def _first(best: Choice, keeping: int, places: int, objective: Objective) -> str:
    """The best of so many places, so many of which keep the limits."""
    named = {name: f"{name} = {_plain(limit)}" for name, limit in _limits(objective).items()}
    limits, figures = " and ".join(named.values()), _figures(best)
    if not keeping:
        broken = " and ".join(
            named[name] for name, taken in _taken(best, objective).items() if taken > 1
        )
        none = f"none of {places} places keeps {limits}; the nearest is " if places > 1 else ""
        return f"{none}{figures}, which breaks {broken}"
    if places == 1:
        return figures
    if limits and keeping == 1:
        return f"only one of {places} places keeps {limits}: {figures}"
    among = (
        f"{keeping} of {places} places keep {limits}, and of those"
        if limits
        else f"of {places} places"
    )
    return f"{among} {_where(best)} has {BEST[objective.minimize]}: {_numbers(best)}"


def longest_step_s(problem: Problem, objective: Objective) -> float:
    """With which the tokens are trained within the limits, of which there is one at least."""
    cluster, limits = problem.cluster, [math.inf]
    if objective.deadline_hours is not None:
        limits.append(objective.deadline_hours)
    if objective.budget_usd is not None:
        price = _price("cluster", problem, objective)
        limits.append(objective.budget_usd / (cluster.num_chips * price) if price else math.inf)
    _, goodput = _goodput(cluster.num_chips, objective)
    return min(limits) * 3600 * goodput * problem.workload.tokens / (objective.tokens or math.inf)


def none_fits(choices: Sequence[Choice], error: Infeasible) -> Infeasible:
    """Why there is no answer on any cluster; `error` says why on the first."""
    each = "; ".join(f"{_where(choice)}: {choice.refused}" for choice in choices)
    if not all(choice.exact for choice in choices):
        return OutOfTime(f"; {each}")
    detail = f"none of {len(choices)} clusters has a layout that fits; {each}"
    return Infeasible(
        error.constraint, detail, error.needed, error.available, error.unit, error.enough_chips
    )


def _excess(choice: Choice, objective: Objective) -> float:
    """How many times the limits it takes; 1 where it keeps them."""
    return (
        math.inf if choice.refused is not None else max([1.0, *_taken(choice, objective).values()])
    )


def _taken(choice: Choice, objective: Objective) -> dict[str, float]:
    """By the name of each limit that is set, how much of it a choice that is not refused takes."""
    figures = {"deadline_hours": choice.hours, "budget_usd": choice.usd}
    return {name: (figures[name] or 0.0) / limit for name, limit in _limits(objective).items()}


def _limits(objective: Objective) -> dict[str, float]:
    limits = {"deadline_hours": objective.deadline_hours, "budget_usd": objective.budget_usd}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _figures(choice: Choice) -> str:
    return f"{_where(choice)}: {_numbers(choice)}"


def _numbers(choice: Choice) -> str:
    step = (
        f"{choice.step_time_s:.4g} s a step ({choice.step_time_low_s:.3g} to"
        f" {choice.step_time_high_s:.3g})"
    )
    figures = {"hours": choice.hours, "USD": choice.usd}
    if choice.usd is None:
        figures["USD per million tokens"] = choice.usd_per_million_tokens
    kept = [f"{choice.goodput:.3g} of the time kept"] if (choice.goodput or 1.0) < _MUCH else []
    others = [f"{_plain(value)} {unit}" for unit, value in figures.items() if value is not None]
    return ", ".join([step, *others, *kept])


def _plain(value: float) -> str:
    """To four digits, without an exponent where a person would write none."""
    if not _LEAST_PLAIN <= value < _MOST_PLAIN:
        return f"{value:.4g}"
    decimals = 3 - math.floor(math.log10(value))
    shown = f"{round(value, decimals):,.{max(decimals, 0)}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def _overlap(best: Choice, other: Choice, objective: Objective) -> bool:
    """Whether by their intervals of step time the other may be as good."""
    by_time = objective.minimize != "chips" and _least(best, objective) > 0
    if not (by_time and best.step_time_s and best.step_time_high_s and other.step_time_s):
        return False
    (low, high), (other_low, other_high) = (_interval(one, objective) for one in (best, other))
    return other_low <= high and low <= other_high


def _interval(choice: Choice, objective: Objective) -> tuple[float, float]:
    """Of what is minimised, by that of step time."""
    of_a_second = _least(choice, objective) / (choice.step_time_s or math.inf)
    return of_a_second * (choice.step_time_low_s or 0.0), of_a_second * (
        choice.step_time_high_s or math.inf
    )


def _where(choice: Choice) -> str:
    fewer = f"{choice.chips_used} of " if choice.chips_used not in (None, choice.num_chips) else ""
    return f"{choice.name} ({fewer}{choice.num_chips} {choice.chip})"


def _choice(
    name: str,
    problem: Problem,
    profile: Profile,
    constraints: Constraints,
    objective: Objective,
    should_continue: ShouldContinue,
    failed_gib: float,
) -> Choice:
    chip, chips = problem.cluster.chip.id, problem.cluster.num_chips
    try:
        space, answer, slower = avoiding(
            failed_gib,
            problem,
            constraints,
            lambda heeded: _best_of(Space(problem, heeded), profile, should_continue),
        )
    except Infeasible as error:
        exact = not isinstance(error, OutOfTime)
        return Choice(name=name, chip=chip, num_chips=chips, refused=error.brief, exact=exact)
    except TooLarge as error:
        return Choice(name=name, chip=chip, num_chips=chips, refused=str(error))
    except Invalid as error:  # a constraint that its stack does not know
        if not error.field.startswith("constraints"):
            raise
        return Choice(name=name, chip=chip, num_chips=chips, refused=f"{error.field}: {error.rule}")
    seconds, used = float(answer.times[0]), space.problem.cluster.num_chips
    (found,) = predict_layouts(space.problem, [answer.layouts[0]], profile)
    choice = _figured(name, problem, objective, seconds, used)
    return _judged(choice, objective, found, slower, exact=answer.certificate.exact)


def _judged(
    choice: Choice,
    objective: Objective,
    fastest: Prediction,
    all_chips_s: float | None,
    *,
    exact: bool,
) -> Choice:
    """With what its fastest layout says of it."""
    return replace(
        choice,
        layout=fastest.layout,
        all_chips_s=all_chips_s,
        step_time_low_s=fastest.step_time_low_s,
        step_time_high_s=fastest.step_time_high_s,
        grade=fastest.provenance.grade,
        meets=_excess(choice, objective) <= 1,
        exact=exact,
    )


def _figured(
    name: str, problem: Problem, objective: Objective, seconds: float, used: int
) -> Choice:
    """What it comes to where a step takes so long on so many of its chips."""
    price = _price(name, problem, objective)
    every, goodput = _goodput(used, objective)
    rate = problem.workload.tokens / seconds
    hours = None if objective.tokens is None else objective.tokens / (rate * goodput) / 3600
    usd = None if hours is None or price is None else price * used * hours
    per_million = None if price is None else price * used / 3600 / (rate * goodput) * 1e6
    return Choice(
        name=name,
        chip=problem.cluster.chip.id,
        num_chips=problem.cluster.num_chips,
        chips_used=used,
        step_time_s=seconds,
        tokens_per_s=rate,
        goodput=goodput,
        checkpoint_every_s=every,
        hours=hours,
        usd_per_chip_hour=price,
        usd=usd,
        usd_per_million_tokens=per_million,
    )


def _best_of(
    space: Space, profile: Profile, should_continue: ShouldContinue
) -> tuple[Space, Answer, float | None]:
    """The answer on all chips, or on fewer where no layout uses all; or on fewer that are faster,
    and then what a step takes with all of them."""
    found, answer, fewer = search_all_or_fewer(space, profile, Goal(), should_continue)
    seconds = float(answer.times[0])
    faster, tried_fewer = (
        (None, True) if fewer else best_with_fewer(found, profile, seconds, should_continue)
    )
    space, best = (faster.space, faster.answer) if faster else (found, answer)
    return (
        space,
        best if tried_fewer else best.inexact(found.problem.step_time_at_peak_s),
        seconds if faster else None,
    )


def _price(name: str, problem: Problem, objective: Objective) -> float | None:
    price = problem.cluster.chip.usd_per_chip_hour
    if price is None and (objective.minimize == "cost" or objective.budget_usd is not None):
        rule = (
            f"is required, or a usd_per_chip_hour of {name}: chip {problem.cluster.chip.id} has no"
            " known price"
        )
        raise Invalid("objective.usd_per_chip_hour", None, rule)
    return price


def _goodput(chips: int, objective: Objective) -> tuple[float | None, float]:
    """(seconds between checkpoints, share of time that is kept)."""
    if objective.failures_per_chip_hour * chips < _NEVER:
        return None, 1.0
    between = 3600 / (objective.failures_per_chip_hour * chips)
    saving, restart = objective.checkpoint_s / between, objective.restart_s / between
    work = _work(saving)
    kept = (
        work * math.exp(-saving - restart) / (math.expm1(work) - math.expm1(-saving))
        if work
        else math.exp(-restart)
    )
    return work * between, max(kept, _LITTLE)


def _work(saving: float) -> float:
    """Between checkpoints, of which each takes `saving`; both in mean times between failures.
    Newton's method."""
    work = min(math.sqrt(2 * saving), 1.0)
    for _ in range(_STEPS if work else 0):
        work += 1 + work / math.expm1(-work - saving)
    return work


def _least(choice: Choice, objective: Objective) -> float:
    if choice.step_time_s is None or choice.tokens_per_s is None or choice.goodput is None:
        return math.inf
    return {
        "step_time": choice.step_time_s,
        "time": 1 / (choice.tokens_per_s * choice.goodput),
        "cost": choice.usd_per_million_tokens or 0.0,
        "chips": float(choice.chips_used or choice.num_chips),
    }[objective.minimize]
