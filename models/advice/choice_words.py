"""A choice between places to run, in words.

A choice is a cluster, or a number of its chips, with the time and the cost of the job there. It is
*refused* where it has no figures, and *unreached* where only time was short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from models.advice.choice import Choice, limit_shares, minimized
from models.advice.objective import SUPERLATIVES, Objective
from models.spec.constraints import EVEN_CHANCE

_WORTH_SAYING_GOODPUT = 0.9  # a reason names goodput below this
_LEAST_PLAIN = 1e-4  # numbers from here up are written without an exponent
_MOST_PLAIN = 1e13  # and numbers below this


def choice_reason(choices: Sequence[Choice], objective: Objective) -> str:
    """Return the reason why the first of the choices is the best. It compares its figures with
    those of the next best, and names the choices that are refused or that there was no time for."""
    best = choices[0]
    answered = [choice for choice in choices if choice.is_answered]
    keeping_limits = [choice for choice in answered if choice.meets]
    unreached = sum(choice.is_unreached for choice in choices)
    places = len(choices) - unreached
    if answered:
        words = _best_choice_words(best, len(keeping_limits), places, objective)
    else:
        words = f"none of {len(choices)} places has a layout that is known to fit"
    reason = f"where: {words}"
    # Where no place keeps the limits, the best is compared with the next nearest.
    others = [choice for choice in keeping_limits or answered if choice is not best]
    if others:
        reason += f"; then {_place_and_figures(others[0])}"
        if _intervals_overlap(best, others[0], objective):
            reason += " (within their 80% intervals either may be the better)"
    refused = [
        place_words(choice)
        for choice in choices
        if choice.refused is not None and not choice.is_unreached
    ]
    if refused:
        reason += f"; refused: {', '.join(refused)}"
    reason += _unpriced_words(answered)
    if unreached:
        plural = "s" if unreached > 1 else ""
        reason += f"; time ran out before {unreached} other{plural}, of which any may be better"
    return reason


def _best_choice_words(best: Choice, num_keeping: int, places: int, objective: Objective) -> str:
    """Return words on what makes a choice the best of `places` places, of which `num_keeping` keep
    the limits of the objective, such as a deadline."""
    limits = " and ".join(_limit_words(objective).values())
    if not num_keeping:
        nearest = ""
        if places > 1:
            limits += _odds_words(objective)
            nearest = f"none of {places} places keeps {limits}; the nearest is "
        return f"{nearest}{_place_and_figures(best)}{_missed_words(best, objective)}"
    if limits:
        limits += _odds_words(objective)
    if places == 1:
        return _place_and_figures(best)
    if limits and num_keeping == 1:
        return f"only one of {places} places keeps {limits}: {_place_and_figures(best)}"
    among = f"of {places} places"
    if limits:
        among = f"{num_keeping} of {places} places keep {limits}, and of those"
    # Choices without a price are compared by hours (Choice.missing), so the best has the least.
    lacks_cost = objective.minimize == "cost" and best.usd_per_million_tokens is None
    superlative = SUPERLATIVES["time" if lacks_cost else objective.minimize]
    return f"{among} {place_words(best)} has {superlative}: {_figures_words(best)}"


def _limit_words(objective: Objective) -> dict[str, str]:
    """Return each limit as words such as "deadline_hours = 72", by its name."""
    return {name: f"{name} = {_format_plain(limit)}" for name, limit in objective.limits.items()}


def _odds_words(objective: Objective) -> str:
    """Return the probability with which limits are to be kept, such as " with a probability of
    0.9". Empty at even odds, where the median decides."""
    probability = objective.deadline_probability
    return "" if probability == EVEN_CHANCE else f" with a probability of {probability:.4g}"


def _missed_words(choice: Choice, objective: Objective) -> str:
    """Return words on the limits that a choice misses: not checkable, broken, or kept with too
    small a probability."""
    shares = limit_shares(choice, objective)
    words = _limit_words(objective)
    unchecked = [words[name] for name in objective.limits if name not in shares]
    if unchecked:
        return f", where {' and '.join(unchecked)} cannot be checked"
    broken = [words[name] for name, share in shares.items() if share > 1]
    if broken:
        return f", which breaks {' and '.join(broken)}"
    # The probability is known, since every limit could be checked.
    kept = f"{choice.meets_probability or 0.0:.2g}"
    return f", which keeps {' and '.join(words.values())} with a probability of {kept} only"


def _unpriced_words(answered: Sequence[Choice]) -> str:
    """Return words on the places that are compared without the price that the objective asks for;
    empty where there are none."""
    unpriced = [choice for choice in answered if choice.missing]
    if not unpriced:
        return ""
    places = ", ".join(place_words(choice) for choice in unpriced)
    chips = " and ".join(sorted({choice.chip for choice in unpriced}))
    return (
        f"; compared by hours alone, since no price of {chips} is known: {places}"
        " (objective.prices takes a price)"
    )


def _place_and_figures(choice: Choice) -> str:
    return f"{place_words(choice)}: {_figures_words(choice)}"


def place_words(choice: Choice) -> str:
    """Return words such as "cluster (96 of 128 h100-sxm)"."""
    # chips_used is None for a place without a layout.
    is_partly_used = choice.chips_used not in (None, choice.num_chips)
    fewer = f"{choice.chips_used} of " if is_partly_used else ""
    return f"{choice.name} ({fewer}{choice.num_chips} {choice.chip})"


def _figures_words(choice: Choice) -> str:
    """Return the figures of a choice in words, such as "12.3 s a step (11.2 to 13.4), 340
    hours"."""
    words = [
        f"{choice.step_time_s:.4g} s a step ({choice.step_time_low_s:.3g} to"
        f" {choice.step_time_high_s:.3g})"
    ]
    figures = {"hours": choice.hours, "USD": choice.usd}
    # Without a number of tokens there is no total cost.
    if choice.usd is None:
        figures["USD per million tokens"] = choice.usd_per_million_tokens
    words += [
        f"{_format_plain(value)} {unit}" for unit, value in figures.items() if value is not None
    ]
    if (choice.goodput or 1.0) < _WORTH_SAYING_GOODPUT:
        words.append(f"{choice.goodput:.3g} of the time kept")
    return ", ".join(words)


def _format_plain(value: float) -> str:
    """Return a number with four digits, such as "12,340" or "0.0123"; with an exponent only where
    it is very small or large."""
    if not _LEAST_PLAIN <= value < _MOST_PLAIN:
        return f"{value:.4g}"
    decimals = 3 - math.floor(math.log10(value))
    shown = f"{round(value, decimals):,.{max(decimals, 0)}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def _intervals_overlap(best: Choice, other: Choice, objective: Objective) -> bool:
    """Return whether another choice may be as good as the best, by the 80% intervals of what is
    minimised."""
    # A number of chips, or a cost of 0, has no interval.
    depends_on_time = objective.minimize != "chips" and minimized(best, objective) > 0
    if not (depends_on_time and best.step_time_s and best.step_time_high_s and other.step_time_s):
        return False
    low, high = _interval_of_minimized(best, objective)
    other_low, other_high = _interval_of_minimized(other, objective)
    return other_low <= high and low <= other_high


def _interval_of_minimized(choice: Choice, objective: Objective) -> tuple[float, float]:
    """Return the 80% interval of the figure that is minimised, which is proportional to that of
    step time."""
    per_second = minimized(choice, objective) / (choice.step_time_s or math.inf)
    # Where an end is not known, the interval is open there.
    low_s = choice.step_time_low_s or 0.0
    high_s = choice.step_time_high_s or math.inf
    return per_second * low_s, per_second * high_s
