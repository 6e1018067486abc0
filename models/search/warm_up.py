"""Compiles the cost model before anybody waits for it."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

from models.cost.layout_parts import LayoutParts
from models.errors import Infeasible
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
    that the answers to two small questions need, since all questions are of the same types. One is
    of a sparse model, and of the other none fits."""
    profile, problem = shipped_profile(), _problem("qwen3-30b-a3b", 16)
    answer = search(Space(problem, Constraints()), profile, Goal())
    answer.tables.predict(answer.layouts).fits()
    LayoutParts.of(problem, answer.layouts[0], profile.coefficients(problem.scopes))
    with suppress(Infeasible):
        search(Space(_problem("llama-3.1-405b", 8), Constraints()), profile, Goal())


def _problem(model: str, num_chips: int) -> Problem:
    return Problem(
        architecture=catalogue.architecture(model),
        cluster=catalogue.cluster("h100", num_chips),
        workload=Workload(seq_len=4096, global_batch=16),
        stack=catalogue.stack("megatron"),
    )
