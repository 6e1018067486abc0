"""Compiles the cost model before anybody waits for it."""

from __future__ import annotations

from functools import cache

from models.cost.layout_parts import LayoutParts
from models.layouts.space import Space
from models.search.enumeration import search
from models.search.result import Goal
from models.spec import catalogue
from models.spec.constraints import Constraints
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.workload import Workload


@cache
def warm_up() -> None:
    """Compiles whatever an answer may need, or loads what an earlier process compiled: that is all
    that the answer to a small question needs, since all questions are of the same types."""
    problem = Problem(
        architecture=catalogue.architecture("llama-3.1-8b"),
        cluster=catalogue.cluster("h100", 8),
        workload=Workload(seq_len=4096, global_batch=8),
        stack=catalogue.stack("torchtitan"),
    )
    profile = shipped_profile()
    answer = search(Space(problem, Constraints()), profile, Goal())
    answer.tables.predict(answer.layouts)
    LayoutParts.of(problem, answer.layouts[0], profile.coefficients(problem.scopes))
