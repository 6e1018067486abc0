"""An objective says by what a place to run is chosen, and the limits that it must keep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from models.advice.goodput import best_checkpointing
from models.errors import Invalid
from models.spec.constraints import EVEN_CHANCE
from models.spec.problem import Problem
from models.spec.profile import Z80

SUPERLATIVES = {
    "step_time": "the shortest step",
    "time": "the shortest time",
    "cost": "the lowest cost",
    "chips": "the fewest chips",
}
Minimized = Literal["step_time", "time", "cost", "chips"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The aim by which a cluster is chosen.

    `minimize` is seconds of a step ("step_time"), hours until `tokens` are trained ("time"), US
    dollars for them ("cost"), or "chips". It is minimised among the clusters that keep
    `deadline_hours` and `budget_usd` with a probability of `deadline_probability` each. Without
    tokens, time and cost are counted for a million tokens. Failures are counted per chip and hour.
    `checkpoint_s` and `restart_s` are the seconds of a checkpoint, which stops training, and of a
    restart.
    """

    minimize: Minimized = "step_time"
    tokens: float | None = None
    deadline_hours: float | None = None
    budget_usd: float | None = None
    deadline_probability: float = 0.9
    failures_per_chip_hour: float = 0.0
    checkpoint_s: float = 0.0
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        for name in self.limits:
            if self.tokens is None:
                raise Invalid("objective.tokens", None, f"is required with {name}")
        # Below even odds a place would pass that misses its limits more often than not.
        if not EVEN_CHANCE <= self.deadline_probability < 1:
            rule = f"must be at least {EVEN_CHANCE:g} and less than 1"
            raise Invalid("objective.deadline_probability", self.deadline_probability, rule)

    @property
    def limits(self) -> dict[str, float]:
        """Return the limits that are given, by name."""
        limits = {"deadline_hours": self.deadline_hours, "budget_usd": self.budget_usd}
        return {name: limit for name, limit in limits.items() if limit is not None}

    @property
    def needs_price(self) -> bool:
        return self.minimize == "cost" or self.budget_usd is not None

    def checkpointing(self, chips: int) -> tuple[float | None, float]:
        """Return (seconds of work between checkpoints, goodput) of a job on so many chips."""
        return best_checkpointing(
            failures_per_hour=self.failures_per_chip_hour * chips,
            checkpoint_s=self.checkpoint_s,
            restart_s=self.restart_s,
        )

    def step_time_to_keep_s(self, step_time_s: float, step_time_high_s: float) -> float:
        """Return the seconds that a step takes at most, with `deadline_probability`. `step_time_s`
        is the median, above which step times are log-normal, and `step_time_high_s` ends their 80%
        interval."""
        deviations = NormalDist().inv_cdf(self.deadline_probability)
        # The 80% interval ends Z80 standard deviations above the median.
        return step_time_s * (step_time_high_s / step_time_s) ** (deviations / Z80)


def probability_within(limit_s: float, *, step_time_s: float, low_s: float, high_s: float) -> float:
    """Return the probability that a step takes at most `limit_s`. `step_time_s` is its median, and
    `low_s` and `high_s` end its 80% interval. The spread above the median may differ from that
    below."""
    if math.isinf(limit_s):
        return 1.0
    end_s = high_s if limit_s >= step_time_s else low_s
    spread = abs(math.log(end_s / step_time_s)) / Z80
    if not spread:
        return float(limit_s >= step_time_s)
    return NormalDist().cdf(math.log(limit_s / step_time_s) / spread)


def max_step_time_s(problem: Problem, objective: Objective, chips_used: int | None = None) -> float:
    """Return the longest step, in seconds, with which the tokens are trained within the limits.
    `chips_used` of the problem's chips run, by default all, and all of them are paid. The objective
    must have a limit. A budget limits nothing without a price."""
    _, goodput = objective.checkpointing(chips_used or problem.cluster.num_chips)
    limits_hours = [objective.limits.get("deadline_hours", math.inf)]
    price = problem.cluster.usd_per_hour
    if objective.budget_usd is not None and price:
        limits_hours.append(objective.budget_usd / price)
    tokens = objective.tokens or math.inf  # never infinite: a limit requires tokens
    # Seconds of useful work within the limits, over the number of steps.
    return min(limits_hours) * 3600 * goodput * problem.workload.tokens / tokens
