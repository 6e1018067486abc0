"""The form for a choice: a question, other places where it could run, and what decides. A *place*
is a cluster, with a number of chips and a stack, and each other place is a *row* of the form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import Invalid
from service.pages.question_form import DEFAULTS, QuestionForm, number, whole_number, without_empty

_FEWEST_ROWS = 4
_MOST_ROWS = 12
"""The number of the last row for another place that the form shows at first, and ever. More places
make a picture that nobody reads; the API takes 50."""
_ROW_FIELDS = ("cluster", "chips", "stack")
_SINGLE_FIELDS = (
    "num_chips", "up_to", "tokens", "deadline_hours", "budget_usd", "prices", "minimize",
    "deadline_probability",
)  # fmt: skip
_PRESET = {**DEFAULTS, "minimize": "time", "deadline_probability": "0.9"}
"""The values that an empty form begins with."""
_SCALED = re.compile(r"(\d+(?:\.\d+)?) ?([MBT])", re.ASCII | re.IGNORECASE)
_SCALES = {"m": 10**6, "b": 10**9, "t": 10**12}
MINIMIZED = {"time": "time", "cost": "cost", "chips": "number of chips"}
"""Objectives that tokens decide, in words."""


@dataclass(frozen=True, slots=True)
class ChooseForm:
    question: QuestionForm
    others: Mapping[str, str]
    """Rows of other places, by names such as cluster_2; the first place is the question's."""
    values: Mapping[str, str]

    @classmethod
    def of(cls, sent: Mapping[str, str]) -> ChooseForm:
        """Returns the form with the fields that a URL has. Fields that it lacks are empty."""
        names = [f"{name}_{row}" for row in _form_rows(_MOST_ROWS) for name in _ROW_FIELDS]
        return cls(
            QuestionForm.of(sent),
            {name: sent.get(name, "").strip() for name in names},
            {name: sent.get(name, "").strip() for name in _SINGLE_FIELDS},
        )

    @property
    def shown(self) -> dict[str, str]:
        """Returns the values of all fields, as typed. In a form without a question, fields that
        were not typed have their preset value."""
        typed = {**self.question.values, **self.others, **self.values}
        return {**typed, **_PRESET, **without_empty(**typed)} if self.question.is_empty else typed

    @property
    def rows(self) -> range:
        """Returns the numbers of the rows that the form shows: up to the last filled row, and one
        empty row more."""
        filled = [row for row in _form_rows(_MOST_ROWS) if any(self._row(row))]
        # Row 1 would be the place of the question. One more than the last is empty, to type in.
        last = max(filled, default=1) + 1
        return _form_rows(min(max(last, _FEWEST_ROWS), _MOST_ROWS))

    def body(self) -> dict[str, Any]:
        """Returns the body of a request for a recommendation among several places. Raises Invalid
        where prices cannot be read, or the tokens to train are not given: the API takes requests
        without them, but this page compares whole training runs."""
        values = self.values
        if not values["tokens"]:
            rule = "is required: hours and dollars are those of a whole training run"
            raise Invalid("objective.tokens", None, rule)
        alternatives = without_empty(
            clusters=[self._cluster(row) for row in _form_rows(_MOST_ROWS) if any(self._row(row))],
            num_chips=[whole_number(text) for text in re.findall(r"[^,\s]+", values["num_chips"])],
            up_to_chips=whole_number(values["up_to"]),
        )
        objective = without_empty(
            minimize=values["minimize"],
            tokens=_quantity(values["tokens"]),
            deadline_hours=number(values["deadline_hours"]),
            budget_usd=number(values["budget_usd"]),
            deadline_probability=number(values["deadline_probability"]),
            prices=_prices(values["prices"]),
        )
        return {**self.question.question(), "alternatives": alternatives, "objective": objective}

    def _row(self, row: int) -> tuple[str, ...]:
        """Returns the texts of the fields of a row: cluster, chips and stack."""
        return tuple(self.others[f"{name}_{row}"] for name in _ROW_FIELDS)

    def _cluster(self, row: int) -> dict[str, Any]:
        """Returns the place in a row as a request has it."""
        preset, chips, stack = self._row(row)
        return without_empty(preset=preset, num_chips=whole_number(chips), stack=stack)


def _form_rows(most: int) -> range:
    """Returns the numbers of the form's rows for other places. The question itself is row 1."""
    return range(2, most + 1)


def _quantity(text: str) -> float | str:
    """Returns the number in a text such as 15T, 1e12 or 2,000,000. Returns any other text as it is,
    which the schema then refuses by name."""
    scaled = _SCALED.fullmatch(text)
    return float(scaled[1]) * _SCALES[scaled[2].lower()] if scaled else number(text)


def _prices(text: str) -> dict[str, float | str]:
    """Returns the price of each chip, in dollars an hour, from a text such as "gb300=8.5, b200=5".
    Raises Invalid for a part without an equals sign."""
    prices = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, price = part.partition("=")
        if not equals:
            rule = "must be names of chips with prices, such as gb300=8.5, b200=5"
            raise Invalid("objective.prices", part, rule)
        prices[name.strip()] = number(price.strip())
    return prices
