"""A rule of legality, and what the tests of rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.columns import Array
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of legality. `field` is the dotted path of the value that an error blames, unless
    `blame` names another for a layout.

    `test` returns an array of truth values, one for each of n layouts: true where the layout obeys.
    The rule has the name of this function: `_batch_divides` tests the rule "batch_divides". The
    first paragraph of its docstring says what the rule asks, as the documentation shows it.
    `message` says what the rule asks of a layout that breaks it.

    A rule of the kind "framework" says what cannot run. One of the kind "search" says how far
    layouts are searched: the framework runs what it refuses, and `lift_search_limits`
    (models.layouts.rules) raises its limit for a layout that a caller states.
    """

    field: str
    test: Callable[[Problem, Layouts], Array]
    message: Callable[[Problem, Layout], str]
    blame: Callable[[Problem, Layout], str] | None = None
    kind: Literal["framework", "search"] = "framework"

    @property
    def name(self) -> str:
        return self.test.__name__.removeprefix("_")

    def blamed_field(self, problem: Problem, layout: Layout) -> str:
        """Return the dotted path of the value to blame for a layout that breaks the rule."""
        return self.field if self.blame is None else self.blame(problem, layout)

    def blamed_knob(self, problem: Problem, layout: Layout) -> str | None:
        """Return the layout's field to blame, such as "tp", for a layout that breaks the rule.
        Return None where no single field is to blame, or one outside the layout."""
        # "layout.tp" -> "tp". "layout" alone, "cluster.num_chips" and the like -> None.
        part, _, knob = self.blamed_field(problem, layout).partition(".")
        return knob if part == "layout" and knob else None


def holds_for_all(layouts: Layouts) -> Array:
    """Return true for each of the layouts, for a rule that does not concern this problem."""
    # Columns may have two dimensions, as where Space tests rules on chains by schedules.
    return np.ones(layouts.pp.shape, dtype=bool)


def is_one_of(column: Array, offered: Iterable[int]) -> Array:
    """Return for each value of a column whether it is one of `offered`. For the few values that
    rules offer, this is several times as fast as np.isin."""
    is_offered = np.zeros(column.shape, dtype=bool)
    for value in offered:
        is_offered |= column == value
    return is_offered
