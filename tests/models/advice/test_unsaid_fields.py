"""What is predicted of the software, and no launch argument says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from models.advice.unsaid_fields import UnsaidField, unsaid_fields
from models.layouts.defaults import with_stack_defaults
from models.spec import catalogue
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.stack import Stack
from models.spec.switches import as_of, changed
from tests.models.cost.examples import question

PROFILE = shipped_profile()
KNOBS: list[dict[str, Any]] = [
    {"dp_shard": 16, "zero_stage": 3, "recompute": "full"},
    {"dp_shard": 8, "tp": 2, "ep": 8, "zero_stage": 0},
    {"dp_shard": 8, "cp": 2, "zero_stage": 1, "recompute": "selective"},
    {"dp_shard": 4, "tp": 2, "pp": 2, "ep": 4, "schedule": "interleaved", "virtual_stages": 2},
]
STACKS = sorted({one.id for one in catalogue.stacks().values()})


def problem_of(stack: Stack, model: str) -> Problem:
    chip = "h100" if "nvidia" in (stack.vendors or ("nvidia",)) else "mi300x"
    return replace(question(model), cluster=catalogue.cluster(chip, 16), stack=stack)


def layouts(problem: Problem) -> Iterator[Layout]:
    for knobs in KNOBS:
        given = dict(knobs) if problem.architecture.is_moe else {**knobs, "ep": 1}
        yield with_stack_defaults(problem, Layout(**given), set(given))


def unsaid(stack: str, changes: dict[str, Any], *, model: str, **knobs: Any) -> list[UnsaidField]:
    problem = problem_of(changed(catalogue.stack(stack), changes), model)
    given = {"dp_shard": 16, "zero_stage": 1, **knobs}
    layout = with_stack_defaults(problem, Layout(**given), set(given))
    return unsaid_fields(problem, PROFILE, layout)


@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("age_years", [0.0, 0.7, 3.0])
def test_of_a_stack_that_nobody_changed_all_is_said(
    stack: str, model: str, age_years: float
) -> None:
    then = catalogue.stack(stack)
    if age_years:  # Without an age, a stack is that of its newest release.
        then = as_of(then, PROFILE.software_year - age_years)
    problem = problem_of(replace(then, age_years=age_years), model)
    for layout in layouts(problem):
        assert unsaid_fields(problem, PROFILE, layout) == [], layout.summary()


@pytest.mark.parametrize("stack", ["torchtitan", "maxtext", "deepspeed", "fsdp"])
def test_graphs_of_experts_are_unsaid_where_no_switch_makes_them(stack: str) -> None:
    (one,) = unsaid(stack, {"moe_graphs": "partial"}, model="mixtral-8x7b", zero_stage=3)
    assert (one.field, one.value, one.launched) == ("moe_graphs", "partial", "none")
    assert one.switch is None


@pytest.mark.parametrize("graphs", ["partial", "full"])
def test_graphs_of_experts_are_said_by_a_switch(graphs: str) -> None:
    assert unsaid("megatron", {"moe_graphs": graphs}, model="mixtral-8x7b") == []


def test_a_switch_that_is_of_other_models_is_named() -> None:
    (one,) = unsaid("megatron", {"launch": "graph"}, model="mixtral-8x7b")
    assert (one.field, one.launched) == ("launch", "eager")
    assert one.switch is not None
    assert (one.switch.name, one.switch.condition) == ("--cuda-graph-impl", "dense")
    assert unsaid("megatron", {"launch": "graph"}, model="llama-3-8b") == []


def test_what_moves_nothing_is_unnamed() -> None:
    """Abilities decide which layouts there are; and what no message waits for overlaps nothing."""
    changes = {"max_pp": 1, "zero_stages": (3,), "overlap_expert": True, "moe_graphs": "full"}
    assert unsaid("torchtitan", changes, model="llama-3-8b", zero_stage=3) == []


def test_what_an_argument_decides_beside_its_switch_is_not_free() -> None:
    """torchtitan compiles loss and other kernels together, and eager ones are not fused."""
    assert unsaid("torchtitan", {"launch": "eager"}, model="llama-3-8b", zero_stage=3) == []
    changes = {"launch": "eager", "fused": True}
    (one,) = unsaid("torchtitan", changes, model="llama-3-8b", zero_stage=3)
    assert (one.field, one.value, one.launched) == ("fused", True, False)


def test_every_field_that_moves_the_prediction_is_looked_at() -> None:
    changes = {"gather_bytes": 4.0, "overlap_data": False, "recomputes_last": True}
    found = unsaid("torchtitan", changes, model="llama-3-8b", zero_stage=3, recompute="full")
    assert {one.field for one in found} == set(changes)
