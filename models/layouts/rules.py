"""The rules that make a layout legal: each has a name, a vectorised test and a message.

A rule states a fact of the arithmetic (the degrees multiply to the number of devices), of the model
(tensor parallelism divides the heads), of a framework (whose source its docstring names) or of the
stack's data; a few state how far we search (`kind`). The search counts how many layouts each rule
refuses; a prediction of a single layout fails with the message of the first rule that it breaks,
which has the layout's values in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from models.columns import Array
from models.errors import Invalid
from models.layouts.degree_rules import DEGREE_RULES, limits_over
from models.layouts.memory_rules import MEMORY_RULES
from models.layouts.mesh_rules import MESH_RULES
from models.layouts.pipeline_rules import PIPELINE_RULES
from models.layouts.placement_rules import PLACEMENT_RULES
from models.layouts.rule import Rule
from models.layouts.sharding_rules import SHARDING_RULES
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem

RULES: tuple[Rule, ...] = (
    *MESH_RULES,
    *PIPELINE_RULES,
    *SHARDING_RULES,
    *DEGREE_RULES,
    *MEMORY_RULES,
    *PLACEMENT_RULES,
)
"""Every rule, in the order in which a layout is held against them: errors name the first that is
broken."""


RULES_BY_NAME: dict[str, Rule] = {rule.name: rule for rule in RULES}


def lift_search_limits(problem: Problem, layout: Layout) -> Problem:
    """Return the problem with the limits of its stack raised as far as this layout needs. They only
    keep the search small (rules of the kind "search"): the framework runs layouts beyond them, so a
    layout that a caller gives must be predicted all the same."""
    row = Layouts.of([layout])
    search_rules = (rule for rule in RULES if rule.kind == "search")
    broken = {rule.name for rule in search_rules if not np.all(rule.test(problem, row))}
    if not broken:
        return problem
    raised: dict[str, Any] = {}
    if "virtual_stages_searched" in broken:
        raised["max_virtual_stages"] = layout.virtual_stages
    if "degrees_searched" in broken:
        raised |= limits_over(problem, layout)
    if "sharding_searched" in broken:
        stack, stage = problem.stack, layout.zero_stage
        raised["zero_stages"] = (*stack.zero_stages, stage)
        raised["hybrid_stages"] = (*stack.hybrid_stages, stage)
    if "sequence_parallel_searched" in broken:
        searched = problem.stack.sequence_parallel
        raised["sequence_parallel"] = (*searched, layout.sequence_parallel)
    return replace(problem, stack=replace(problem.stack, **raised))


def first_broken(problem: Problem, layouts: Layouts) -> Array:
    """Return an index into RULES of the first rule that each layout breaks, or -1; shape (n,)."""
    passes = _passes(problem, layouts)
    return np.where(passes.all(axis=0), -1, passes.argmin(axis=0))  # argmin: the first false


def broken_by_each(problem: Problem, layouts: Sequence[Layout]) -> list[list[Rule]]:
    """Return every rule that each of the layouts breaks, in the order of RULES."""
    return [
        [rule for rule, is_obeyed in zip(RULES, column, strict=True) if not is_obeyed]
        for column in _passes(problem, Layouts.of(layouts)).T.tolist()
    ]


def _passes(problem: Problem, layouts: Layouts) -> Array:
    """Return whether each rule is obeyed by each of n layouts; shape (len(RULES), n)."""
    passes = np.empty((len(RULES), len(layouts)), dtype=bool)
    for index, rule in enumerate(RULES):
        passes[index] = rule.test(problem, layouts)
    return passes


def broken_rules(problem: Problem, layout: Layout) -> list[Rule]:
    """Return every rule that a layout breaks, in the order of RULES."""
    (broken,) = broken_by_each(problem, [layout])
    return broken


def require_legal(problem: Problem, layout: Layout) -> None:
    """Raise Invalid with the message of the first broken rule."""
    for rule in broken_rules(problem, layout):
        field = rule.blamed_field(problem, layout)
        raise Invalid(field, rule.name, rule.message(problem, layout))
