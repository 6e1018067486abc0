"""A choice is one place to run (a cluster, or a number of its chips), with the time and the cost of
the job there, and its rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from models.advice.objective import Objective, probability_within
from models.prediction.prediction import Prediction
from models.spec.layout import Layout
from models.spec.problem import Problem

UNCHECKED_EXCESS = math.nextafter(1.0, 2.0)
"""The excess over a limit that cannot be checked: more than that of a place that keeps it, and less
than that of one that is known to break it."""

Rank = tuple[float, float, float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One cluster, with the time and the cost of the job there.

    Figures are None where no layout is legal and fits; `refused` says why. `layout` is the fastest.
    `chips_used` are fewer than `num_chips` where no layout uses all, or where fewer are faster; in
    the second case a step takes `all_chips_s` with all of them. All `num_chips` are held, and paid:
    `usd` counts all of them, and `usd_used` only `chips_used`. `goodput` is the share of time that
    is not lost to failures, and `checkpoint_every_s` is None without failures. `missing` says what
    the objective asks for and is not known. `meets` says that every limit is kept with the
    probability that the objective asks for, and `meets_probability` with which it is; None where
    there is no limit, or one cannot be checked. `exact` says that there was time for all layouts,
    and for all numbers of chips that are worth a try.
    """

    name: str
    chip: str
    num_chips: int
    chips_used: int | None = None
    all_chips_s: float | None = None
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    mfu: dict[str, float] = field(default_factory=dict)
    grade: str | None = None
    tokens_per_s: float | None = None
    goodput: float | None = None
    checkpoint_every_s: float | None = None
    hours: float | None = None
    usd_per_chip_hour: float | None = None
    usd: float | None = None
    usd_used: float | None = None
    usd_per_million_tokens: float | None = None
    missing: str | None = None
    meets: bool = False
    meets_probability: float | None = None
    exact: bool = True
    refused: str | None = None
    layout: Layout | None = None

    @property
    def is_answered(self) -> bool:
        return self.refused is None

    @property
    def is_unreached(self) -> bool:
        """Return whether there are no figures because time ran out."""
        return self.refused is not None and not self.exact

    @property
    def hours_low(self) -> float | None:
        """Return the lower end of the 80% interval of the hours, which is proportional to that of a
        step."""
        return self._in_proportion(self.hours, self.step_time_low_s)

    @property
    def hours_high(self) -> float | None:
        return self._in_proportion(self.hours, self.step_time_high_s)

    @property
    def usd_low(self) -> float | None:
        """Return the lower end of the 80% interval of the cost."""
        return self._in_proportion(self.usd, self.step_time_low_s)

    @property
    def usd_high(self) -> float | None:
        return self._in_proportion(self.usd, self.step_time_high_s)

    def _in_proportion(self, figure: float | None, end_s: float | None) -> float | None:
        """Return a figure scaled from the predicted step time to an end of its interval; None where
        either is not known."""
        if figure is None or end_s is None or not self.step_time_s:
            return None
        return figure * (end_s / self.step_time_s)


def refused_choice(
    name: str, problem: Problem, why: str, num_chips: int, *, exact: bool = True
) -> Choice:
    """Return a choice without figures, because of `why`. `exact` is false where a longer search
    might find some."""
    chip = problem.cluster.chip.id
    return Choice(name=name, chip=chip, num_chips=num_chips, refused=why, exact=exact)


def choice_with_figures(
    name: str,
    problem: Problem,
    objective: Objective,
    step_time_s: float,
    *,
    chips_used: int,
    num_chips: int,
) -> Choice:
    """Return a choice of `num_chips` chips with the time and the cost of the job, which follow from
    the step time alone. A step takes `step_time_s` on `chips_used` of the chips; all are paid."""
    chip = problem.cluster.chip
    price = chip.usd_per_chip_hour
    checkpoint_every_s, goodput = objective.checkpointing(chips_used)
    tokens_per_s = problem.workload.tokens / step_time_s
    # Goodput takes off what is lost to failures.
    lasting_tokens_per_s = tokens_per_s * goodput
    hours = missing = None
    costs: dict[str, Any] = {}
    if objective.tokens is not None:
        hours = objective.tokens / lasting_tokens_per_s / 3600
    if price is not None:
        usd_per_hour = price * num_chips
        costs["usd_per_million_tokens"] = usd_per_hour / 3600 / lasting_tokens_per_s * 1e6
        if hours is not None:
            costs["usd"] = usd_per_hour * hours
            costs["usd_used"] = price * chips_used * hours
    elif objective.needs_price:
        missing = (
            f"a price: none is published for {chip.id}, so that this place is compared by"
            " hours; objective.prices takes one"
        )
    return Choice(
        name=name,
        chip=chip.id,
        num_chips=num_chips,
        chips_used=chips_used,
        step_time_s=step_time_s,
        tokens_per_s=tokens_per_s,
        goodput=goodput,
        checkpoint_every_s=checkpoint_every_s,
        hours=hours,
        usd_per_chip_hour=price,
        missing=missing,
        **costs,
    )


def choice_with_prediction(
    choice: Choice,
    objective: Objective,
    fastest: Prediction,
    all_chips_s: float | None,
    *,
    exact: bool,
) -> Choice:
    """Return a choice that has the figures of choice_with_figures, completed by what only a
    prediction knows: the fastest layout, the interval of its step, and whether the limits are met.
    `all_chips_s` is the step time on all chips where fewer are faster."""
    predicted = replace(
        choice,
        layout=fastest.layout,
        all_chips_s=all_chips_s,
        step_time_low_s=fastest.step_time_low_s,
        step_time_high_s=fastest.step_time_high_s,
        mfu=fastest.mfu,
        grade=fastest.provenance.grade,
        exact=exact,
    )
    return replace(
        predicted,
        meets=limit_excess(predicted, objective) <= 1,
        meets_probability=_meets_probability(predicted, objective),
    )


def _meets_probability(choice: Choice, objective: Objective) -> float | None:
    """Return the probability that every limit is kept; None where there is no limit, or one cannot
    be checked. Every limit depends on the step time alone, so the tightest limit decides."""
    shares = limit_shares(choice, objective)
    if not shares or len(shares) < len(objective.limits) or choice.step_time_s is None:
        return None
    # A share is a figure over its limit: a step of step_time_s / tightest seconds just keeps the
    # tightest limit. Without an interval the step time counts as certain.
    tightest = max(shares.values())
    return probability_within(
        choice.step_time_s / tightest if tightest else math.inf,
        step_time_s=choice.step_time_s,
        low_s=choice.step_time_low_s or choice.step_time_s,
        high_s=choice.step_time_high_s or choice.step_time_s,
    )


# -- rank
# --------------------------------------------------------------------------------------------------


def rank(choice: Choice, objective: Objective) -> Rank:
    """Return the key that sorts choices from best to worst: how far a limit is exceeded, the figure
    that is minimised, the time, and the number of chips."""
    return (
        limit_excess(choice, objective),
        minimized(choice, objective),
        minimized(choice, replace(objective, minimize="time")),
        choice.num_chips,
    )


def minimized(choice: Choice, objective: Objective) -> float:
    """Return the figure that the objective minimises, per token where tokens count: choices are
    only compared with each other. Infinite where it is not known."""
    if choice.step_time_s is None or choice.tokens_per_s is None or choice.goodput is None:
        return math.inf
    usd = choice.usd_per_million_tokens
    return {
        "step_time": choice.step_time_s,
        "time": 1 / (choice.tokens_per_s * choice.goodput),
        "cost": math.inf if usd is None else usd,
        "chips": float(choice.num_chips),
    }[objective.minimize]


def limit_excess(choice: Choice, objective: Objective) -> float:
    """Return how far a choice misses the limits: the largest ratio of a figure to its limit, at the
    probability that the objective asks for. It is 1 where all limits are kept, so that such choices
    rank alike, slightly more where one cannot be checked (UNCHECKED_EXCESS), and infinite for a
    choice that is refused."""
    if choice.refused is not None:
        return math.inf
    shares = limit_shares(choice, objective)
    median_s = choice.step_time_s or 1.0  # known for every choice that is not refused
    high_s = choice.step_time_high_s or median_s  # a bound at the chips' peak has no interval
    # How much longer than its median a step takes at that probability. Hours and cost grow alike.
    margin = objective.step_time_to_keep_s(median_s, high_s) / median_s
    # A limit has no share where its figure is not known.
    least = 1.0 if len(shares) == len(objective.limits) else UNCHECKED_EXCESS
    return max([least, *(share * margin for share in shares.values())])


def limit_shares(choice: Choice, objective: Objective) -> dict[str, float]:
    """Return the ratio of the median figure to its limit, by the name of the limit. A figure that
    is not known has none, such as the cost without a price. The choice must not be refused."""
    figures = {"deadline_hours": choice.hours, "budget_usd": choice.usd}
    return {
        name: figure / limit
        for name, limit in objective.limits.items()
        if (figure := figures[name]) is not None
    }
