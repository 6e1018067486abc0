"""Places to run as rows of a table and marks of a picture, out of the API's document. A *place* is
a cluster, with a number of chips and a stack; the API calls it a choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

_SUPERLATIVES = {
    "step_time": "takes the shortest step",
    "time": "takes least time",
    "cost": "costs least",
    "chips": "has fewest chips",
}
_LIMITS = {"deadline_hours": "the deadline", "budget_usd": "the budget"}


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    choice: Mapping[str, Any]
    """As the API has it."""
    name: str
    link: str | None
    """The question for this place alone, on Ask; None for a place without an answer."""

    @classmethod
    def of(cls, choice: Mapping[str, Any], query: Mapping[str, str]) -> ChoiceRow:
        """Returns the row of a place to run. `choice` is the place in the API's document, and
        `query` holds the fields of the question as the URL has them. The link asks the same
        question for this place alone."""
        preset, chips = choice["cluster"]["preset"], choice["num_chips"]
        place_query = {**query, "cluster": preset, "chips": str(chips), "stack": choice["stack"]}
        name = f"{chips:,} × {preset} with {choice['stack']}"
        is_answered = choice["step_time_s"] is not None
        return cls(choice, name, f"/ask?{urlencode(place_query)}" if is_answered else None)


def limit_words(objective: Mapping[str, Any]) -> str:
    """Returns the limits of an objective, in words; empty where there are none."""
    return " and ".join(words for name, words in _LIMITS.items() if objective.get(name))


def title(rows: Sequence[ChoiceRow], objective: Mapping[str, Any]) -> str:
    """Returns the heading of a comparison: the best place, and whether it keeps the deadline and
    the budget. `rows` come best first, and `objective` is that of the request."""
    best = rows[0]
    limits = limit_words(objective)
    if limits and not best.choice["meets"]:  # places that meet the limits come first
        surely = f"{100 * objective['deadline_probability']:.4g}%"
        return f"No place keeps {limits} with a probability of {surely}"
    if len(rows) == 1:
        return f"{best.name} keeps {limits}" if limits else best.name
    if limits and sum(row.choice["meets"] for row in rows) == 1:
        return f"Only {best.name} keeps {limits}"
    # The best place lacks a price only where all do, and they are then ranked by time.
    lacks_cost = objective["minimize"] == "cost" and best.choice["usd"] is None
    superlative = _SUPERLATIVES["time" if lacks_cost else objective["minimize"]]
    among = f"Of the places that keep {limits}, " if limits else ""
    return f"{among}{best.name} {superlative}"
