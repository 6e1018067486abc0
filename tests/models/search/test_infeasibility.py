"""Why no layout is legal, told by constraint and by rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.advice.recommendation import recommend
from models.errors import Infeasible
from models.layouts.space import Space
from models.spec import catalogue
from models.spec.constraints import BOOLEAN_KNOBS, KNOB_CHOICES, Constraints
from models.spec.problem import Problem
from tests.benchmarks.problems import problem
from tests.long import one_in
from tests.models.advice.problems import PROFILE, llama


@pytest.mark.parametrize(("stack", "left"), [("megatron", "no schedule"), ("torchtitan", "afab")])
def test_schedules_that_the_recipe_rules_out_are_named_with_the_rule(stack: str, left: str) -> None:
    question = problem("deepseek-v3", ("h800", 256), stack, seq_len=4096, global_batch=1024)
    strict = replace(
        question, workload=replace(question.workload, load_balancing="global_batch_loss")
    )
    found, free = recommend(strict, PROFILE), recommend(question, PROFILE)
    assert found.pipelining.forbidden == ("1f1b", "interleaved")
    assert found.pipelining.verdict.endswith(
        f"this rules out 1f1b, interleaved, which leaves stack {stack} {left} with more than one"
        " micro-batch."
    )
    assert "load_balancing(global_batch_loss)" in found.pipelining.verdict
    assert free.pipelining.forbidden == ()
    assert "load_balancing" not in free.pipelining.verdict


def test_layouts_that_no_schedule_serves_count_against_the_rule_it_breaks_first() -> None:
    question = problem("deepseek-v3", ("h800", 256), "megatron", seq_len=4096, global_batch=1024)
    strict = replace(
        question, workload=replace(question.workload, load_balancing="global_batch_loss")
    )
    rejected, free = (recommend(one, PROFILE).certificate.rejected for one in (strict, question))
    rows = Space(strict, Constraints()).trunks[0].rows
    assert rejected["balancing_needs_all_forwards_first"] > 0
    assert "balancing_needs_all_forwards_first" not in free
    assert (rows.num_micro_batches(1024)[rows.pp > 1] == 1).all()


def test_constraints_that_no_number_of_chips_can_meet_are_named() -> None:
    with pytest.raises(Infeasible) as refused:
        recommend(llama(61, 512), PROFILE, Constraints(allowed={"ep": (8,)}))
    assert refused.value.constraint == "constraints.ep"


KNOBS: dict[str, tuple[object, ...]] = {
    **KNOB_CHOICES,
    **dict.fromkeys(BOOLEAN_KNOBS, (False, True)),
    "virtual_stages": (1, 2, 99),
}


@pytest.mark.parametrize(
    ("stack", "knob", "value"),
    one_in(
        2,
        [
            (stack, knob, value)
            for stack in ("megatron", "fsdp", "deepspeed", "deepseek")
            for knob, values in KNOBS.items()
            for value in values
        ],
    ),
)
def test_any_value_of_a_knob_is_answered_or_refused_by_name(
    stack: str, knob: str, value: object
) -> None:
    question = replace(llama(8, 16), stack=catalogue.stack(stack))
    fault = refusal(question, Constraints(allowed={knob: (value,)}))
    assert fault is None or fault.constraint in (f"constraints.{knob}", "memory")
    assert fault is None or fault.constraint == "memory" or str([value]) in fault.detail


def refusal(question: Problem, constraints: Constraints) -> Infeasible | None:
    try:
        found = recommend(question, PROFILE, constraints).fastest.prediction.layout
    except Infeasible as fault:
        return fault
    assert all(getattr(found, knob) in values for knob, values in constraints.allowed.items())
    return None


def test_sharding_and_offload_that_go_together_nowhere_are_both_named() -> None:
    fault = refusal(
        llama(8, 16), Constraints(allowed={"zero_stage": (0,), "offload_optimizer": (True,)})
    )
    assert fault
    assert [one.field for one in fault.blamed] == [
        "constraints.zero_stage",
        "constraints.offload_optimizer",
    ]
    assert "offload_needs_sharding" in fault.detail


@pytest.mark.parametrize(
    ("allowed", "rule"),
    [({"reshard": (False,)}, "reshard_offered"), ({"torus_block": (4,)}, "block_divides_torus")],
)
def test_a_constraint_that_a_stack_or_a_fabric_does_not_know_is_told_by_its_rule(
    allowed: dict[str, tuple[object, ...]], rule: str
) -> None:
    fault = refusal(llama(64, 64), Constraints(allowed=allowed))
    assert fault
    assert f"breaks {rule}: " in fault.detail
