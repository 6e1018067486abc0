"""Facts are kept by what they depend on. What is found again must be what would be worked out."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import make_dataclass, replace

import numpy as np
import pytest

from models.cost.facts import PolicyFacts, ProblemRecords, facts_from
from models.cost.problem_records import question
from models.spec.problem import Problem
from models.spec.recompute import FULL, MODULES, NONE, STACK_SELECTIVE
from tests.oracles.random_questions import random_problem

PROBLEMS = 12
RECOMPUTE = np.array([NONE, STACK_SELECTIVE, FULL])


def variants(problem: Problem) -> Iterator[Problem]:
    """Problems that have parts in common with one that was asked of, and share what is kept."""
    stack, workload = problem.stack, problem.workload
    yield problem
    yield replace(problem, stack=replace(stack, recomputes_last=not stack.recomputes_last))
    other_modules = tuple(name for name in MODULES if name not in stack.selective[0])
    yield replace(problem, stack=replace(stack, selective=(other_modules,)))
    yield replace(problem, workload=replace(workload, global_batch=2 * workload.global_batch))
    yield replace(problem, workload=replace(workload, seq_len=2 * workload.seq_len))
    chip = replace(problem.cluster.chip, memory_bandwidth_gb_s=1000.0)
    yield replace(problem, cluster=replace(problem.cluster, chip=chip))


def require_same(found: ProblemRecords, expected: ProblemRecords) -> None:
    for name in ("facts", "layers", "policies", "dims"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)
    for own, other in zip(found.order, expected.order, strict=True):
        np.testing.assert_array_equal(own, other)
    for own, other in zip(found.images, expected.images, strict=True):
        np.testing.assert_array_equal(own, other)


@pytest.mark.parametrize("seed", range(PROBLEMS))
def test_kept_facts_are_those_of_a_problem_that_nobody_has_asked_of(seed: int) -> None:
    asked = [*variants(random_problem(np.random.default_rng(seed)))]
    for problem in asked:
        question(problem, RECOMPUTE)
    for problem in asked:
        require_same(question(problem, RECOMPUTE), question(deepcopy(problem), RECOMPUTE))


def test_another_batch_of_a_model_finds_its_layers_and_links() -> None:
    problem = random_problem(np.random.default_rng(0))
    batch = 2 * problem.workload.global_batch
    other = replace(problem, workload=replace(problem.workload, global_batch=batch))
    found, again = question(problem, RECOMPUTE), question(other, RECOMPUTE)
    assert again.layers is found.layers
    assert again.policies is found.policies
    assert again.dims is found.dims
    assert again.facts["global_batch"] == 2 * found.facts["global_batch"]


def test_facts_that_are_not_worked_out_come_from_the_first_source_that_has_them() -> None:
    fields = {"whole": True, "pieces": "names", "tensor": 0.5}
    first = make_dataclass("First", fields)(**fields)
    fields = {"tensor": 1.0, "context": 0.25, "expert": 0.75, "skips_last": False}
    second = make_dataclass("Second", fields)(**fields)
    made = facts_from(PolicyFacts, (first, second), pieces=3, skips_last=True)
    assert made == PolicyFacts(
        whole=True, pieces=3, skips_last=True, tensor=0.5, context=0.25, expert=0.75
    )
